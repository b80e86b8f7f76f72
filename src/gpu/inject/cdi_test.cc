// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/cdi.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/testing/test_directory.h"

namespace vrun::gpu {
namespace {

// As nvidia-ctk writes it, shortened.
constexpr char kVendor[] = R"(---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      major: 195
      minor: 0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      major: 195
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
    major: 195
    minor: 255
  - path: /proc/self/mem
    major: 1
    minor: 1
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, create-symlinks, --link, "../lib64::/run/opengl-driver/lib", --link, "a::/etc/b"]
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib64]
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, enable-cuda-compat]
  mounts:
  - hostPath: DRIVER/libcuda.so.580.159.04
    containerPath: /usr/lib64/libcuda.so.580.159.04
    options: [ro, nosuid, nodev, bind]
  - hostPath: /tmp/of-a-user
    containerPath: /usr/lib64/evil
)";

class CdiTest : public testing::Test {
 protected:
  std::string Vendor() const {
    std::string text = kVendor;
    return text.replace(text.find("DRIVER"), 6, directory_.path());
  }
  TestDirectory directory_;
};

TEST_F(CdiTest, ImportsNodesAndMountsButNoHooks) {
  directory_.Write("libcuda.so.580.159.04", "x");
  const Result<CdiSpec> spec = ParseCdi(Vendor());
  ASSERT_TRUE(spec) << spec.error().message();
  EXPECT_EQ(spec->kind, "nvidia.com/gpu");
  std::vector<std::string> skipped;
  const auto injection = CdiInjection({*spec}, "nvidia.com/gpu=0", &skipped);
  ASSERT_TRUE(injection) << injection.error().message();
  ASSERT_EQ(injection->devices_size(), 2);
  EXPECT_EQ(injection->devices(1).path(), "nvidia0");
  ASSERT_EQ(injection->mounts_size(), 1);
  EXPECT_EQ(injection->mounts(0).source(), directory_.path() + "/libcuda.so.580.159.04");
  EXPECT_TRUE(injection->mounts(0).read_only());
  ASSERT_EQ(injection->links_size(), 1);
  EXPECT_EQ(injection->links(0).path(), "/run/opengl-driver/lib");
  EXPECT_EQ(skipped.size(), 4u);  // /proc/self/mem, the missing source, the link in /etc, enable-cuda-compat
  EXPECT_EQ(CdiDriverDirectories({*spec}), std::vector<std::string>{directory_.path()});
  EXPECT_FALSE(CdiInjection({*spec}, "nvidia.com/gpu=7", &skipped));
  EXPECT_FALSE(CdiInjection({*spec}, "7", &skipped));
}

TEST_F(CdiTest, SourcesOfUsersAreLeftOut) {
  const std::string library = directory_.Write("libcuda.so.580.159.04", "x");
  ASSERT_EQ(::chmod(library.c_str(), 0666), 0);
  std::vector<std::string> skipped;
  const auto injection = CdiInjection({*ParseCdi(Vendor())}, "nvidia.com/gpu=0", &skipped);
  ASSERT_TRUE(injection);
  EXPECT_EQ(injection->mounts_size(), 0);
}

TEST_F(CdiTest, FilesOfUsersAreNotBelieved) {
  directory_.Write("cdi/good.yaml", kVendor);
  directory_.Write("cdi/good.json", R"({"cdiVersion": "1.1.0", "kind": "a.b/c", "devices": [{"name": "x"}]})");
  directory_.Write("cdi/notes.txt", "no");
  directory_.Write("cdi/new.json", R"({"cdiVersion": "2.0.0", "kind": "a.b/c"})");
  ASSERT_EQ(::chmod(directory_.Write("cdi/open.yaml", kVendor).c_str(), 0666), 0);
  const CdiFiles files = ReadCdi({directory_.path() + "/cdi", directory_.path() + "/missing"});
  EXPECT_EQ(files.specs.size(), 2u);
  ASSERT_EQ(files.problems.size(), 2u);
  EXPECT_NE(files.problems[0].find("versions up to 1.1.0 are known"), std::string::npos) << files.problems[0];
  EXPECT_NE(files.problems[1].find("others than root can write it"), std::string::npos) << files.problems[1];
}

TEST_F(CdiTest, BadFilesAreOneClearLine) {
  EXPECT_EQ(ParseCdi("").error().message(), "no YAML document");
  EXPECT_EQ(ParseCdi("a: b").error().message(), "no CDI specification: cdiVersion or kind is missing");
  EXPECT_EQ(ParseCdi("a: &x [1]\nb: *x").error().message(), "an anchor or an alias: not used in such files");
  EXPECT_FALSE(ParseCdi("{\"cdiVersion\": "));
  EXPECT_FALSE(ParseCdi(std::string(1000, '[')));
}

TEST_F(CdiTest, OursIsReadByOurselves) {
  std::vector<v1::Gpu> gpus(2);
  gpus[0].set_uuid("GPU-a");
  gpus[1].set_uuid("GPU-b");
  gpus[1].set_minor(1);
  const Bundle bundle{
      .directory = directory_.path(), .version = "580", .libraries = {}, .programs = {"nvidia-smi"}, .data = {}};
  directory_.Write("bin/nvidia-smi", "");
  const std::string text = FormatCdi(gpus, bundle, {.nvidia_uvm = 238});
  const Result<CdiSpec> spec = ParseCdi(text);
  ASSERT_TRUE(spec) << spec.error().message() << text;
  ASSERT_EQ(spec->devices.size(), 5u);
  std::vector<std::string> skipped;
  const auto injection = CdiInjection({*spec}, "vrun/gpu=GPU-b", &skipped);
  ASSERT_TRUE(injection);
  EXPECT_TRUE(skipped.empty());
  ASSERT_EQ(injection->devices_size(), 3);
  EXPECT_EQ(injection->devices(2).path(), "nvidia1");
  EXPECT_EQ(injection->mounts_size(), 2);
}

}  // namespace
}  // namespace vrun::gpu
