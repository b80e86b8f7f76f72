// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/driver_bundle.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "gpu/testing/fake_driver.h"

namespace vrun::gpu {
namespace {

constexpr char kVersion[] = "580.159.04";

class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeFakeDriver(directory_, Root("usr/lib64"), kVersion));
    directory_.Write("root/usr/bin/nvidia-smi", "#!/bin/sh\n", 0755);
  }
  std::string Root(const std::string& name = "") const { return directory_.path() + "/root/" + name; }
  DriverSearch Search() const { return {.root = Root(), .directories = {}, .kernel_version = ""}; }
  std::string Parent() const { return directory_.path() + "/bundles"; }
  static std::string Target(const Bundle& bundle, const std::string& name) {
    for (const BundleLibrary& library : bundle.libraries) {
      if (library.name == name) return library.target;
    }
    return "";
  }

  TestDirectory directory_;
};

TEST_F(DriverTest, IsFoundBesideLibcuda) {
  ASSERT_TRUE(
      MakeFakeLibrary(directory_, Root("usr/lib64/libnvidia-brandnew.so.580.159.04"), "libnvidia-brandnew.so.1", "x"));
  ASSERT_TRUE(MakeFakeLibrary(directory_, Root("usr/lib64/libz.so.1.2.13"), "libz.so.1", "x"));
  ASSERT_TRUE(MakeFakeLibrary(directory_, Root("usr/lib64/libnvidia-egl-gbm.so.1.1.2"), "libnvidia-egl-gbm.so.1", "x"));
  directory_.Write("root/usr/lib64/libnvidia-text.so.580.159.04", "no library");
  const Result<Driver> driver = FindDriver(Search());
  ASSERT_TRUE(driver) << driver.error().message();
  EXPECT_EQ(driver->version, kVersion);
  std::vector<std::string> names;
  for (const DriverFile& file : driver->files) names.push_back(file.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "bin/nvidia-smi", "etc/OpenCL/vendors/nvidia.icd", "lib64/libEGL_nvidia.so.580.159.04",
                       "lib64/libcuda.so.580.159.04", "lib64/libnvidia-brandnew.so.580.159.04",
                       "lib64/libnvidia-egl-gbm.so.1.1.2", "lib64/libnvidia-ml.so.580.159.04",
                       "lib64/libnvidia-opencl.so.580.159.04", "share/glvnd/egl_vendor.d/10_nvidia.json"}));
  for (const DriverFile& file : driver->files) {
    const bool graphics = file.name.find("egl") != std::string::npos || file.name.find("EGL") != std::string::npos;
    EXPECT_EQ(file.use, graphics ? DriverUse::kGraphics : DriverUse::kCompute) << file.name;
  }
}

TEST_F(DriverTest, TheKernelChoosesAmongSeveral) {
  ASSERT_TRUE(MakeFakeDriver(directory_, Root("usr/lib"), "550.54.14"));
  DriverSearch search = Search();
  EXPECT_EQ(FindDriver(search)->version, kVersion);
  search.kernel_version = "550.54.14";
  EXPECT_EQ(FindDriver(search)->version, "550.54.14");
  search.kernel_version = "535.1.2";
  EXPECT_EQ(FindDriver(search).error().message(),
            "the kernel has driver 535.1.2, its libraries are of 580.159.04: reboot, or install libraries of the "
            "kernel's version");
}

TEST_F(DriverTest, OthersMustNotBeAbleToWriteIt) {
  ASSERT_EQ(::chmod(Root("usr/lib64/libcuda.so.580.159.04").c_str(), 0777), 0);
  const Result<Driver> driver = FindDriver(Search());
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code(), Code::kDenied) << driver.error().message();
}

TEST_F(DriverTest, NoneIsOneClearLine) {
  ASSERT_TRUE(MakeDirs(directory_.path() + "/none", 0755));
  const Result<Driver> driver =
      FindDriver({.root = directory_.path() + "/none", .directories = {}, .kernel_version = ""});
  EXPECT_EQ(driver.error().code(), Code::kNotFound);
  EXPECT_NE(driver.error().message().find("no GPU driver"), std::string::npos) << driver.error().message();
}

TEST_F(DriverTest, VersionOfTheKernel) {
  EXPECT_EQ(
      KernelDriverVersion("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\n"
                          "GCC version:  gcc version 13.3.0\n"),
      kVersion);
  EXPECT_EQ(KernelDriverVersion("GCC 12\n"), "");
  EXPECT_EQ(KernelDriverVersion(""), "");
}

TEST_F(DriverTest, BundleIsMadeOnceAndOfLinks) {
  const Driver driver = *FindDriver(Search());
  const Result<Bundle> bundle = MakeBundle(driver, Parent());
  ASSERT_TRUE(bundle) << bundle.error().message();
  EXPECT_EQ(bundle->version, kVersion);
  EXPECT_EQ(Target(*bundle, "libcuda.so.1"), "libcuda.so.580.159.04");
  EXPECT_EQ(Target(*bundle, "libcuda.so"), "libcuda.so.580.159.04");
  EXPECT_EQ(Target(*bundle, "libnvidia-ml.so"), "libnvidia-ml.so.580.159.04");
  EXPECT_EQ(bundle->programs, std::vector<std::string>{"nvidia-smi"});
  EXPECT_TRUE(bundle->Has("etc/OpenCL/vendors/nvidia.icd"));
  struct stat in, from;
  ASSERT_EQ(::stat((bundle->directory + "/lib64/libcuda.so").c_str(), &in), 0);
  ASSERT_EQ(::stat(Root("usr/lib64/libcuda.so.1").c_str(), &from), 0);
  EXPECT_EQ(in.st_ino, from.st_ino);

  EXPECT_EQ(MakeBundle(driver, Parent())->directory, bundle->directory);
  const Result<Bundle> read = Bundle::Read(bundle->directory);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->libraries, bundle->libraries);
}

TEST_F(DriverTest, AnotherDriverMakesAnotherBundle) {
  const Bundle first = *MakeBundle(*FindDriver(Search()), Parent());
  // Installed again with the same version, and then a new one.
  ASSERT_TRUE(MakeFakeDriver(directory_, Root("usr/lib64/again"), kVersion));
  ASSERT_EQ(
      ::rename(Root("usr/lib64/again/libcuda.so.580.159.04").c_str(), Root("usr/lib64/libcuda.so.580.159.04").c_str()),
      0);
  const Bundle second = *MakeBundle(*FindDriver(Search()), Parent());
  EXPECT_NE(first.directory, second.directory);
  // The old one still has its files.
  EXPECT_TRUE(PathExists(first.directory + "/lib64/libcuda.so.580.159.04"));
  directory_.Write("bundles/.new-580.1-aa/lib64/half", "");
  ASSERT_TRUE(RemoveBundles(Parent(), {second.directory}));
  EXPECT_FALSE(PathExists(first.directory));
  EXPECT_FALSE(PathExists(Parent() + "/.new-580.1-aa"));
  EXPECT_TRUE(PathExists(second.directory + "/list"));
}

TEST_F(DriverTest, OnAnotherFileSystemItIsCopiedWithoutGraphics) {
  ASSERT_TRUE(MakeDirs(Parent(), 0755));
  if (::mount("tmpfs", Parent().c_str(), "tmpfs", 0, "size=16m") != 0) GTEST_SKIP() << "SKIP: cannot mount here";
  const Result<Bundle> bundle = MakeBundle(*FindDriver(Search()), Parent());
  const bool libcuda = bundle && PathExists(bundle->directory + "/lib64/libcuda.so.580.159.04");
  const bool egl = bundle && PathExists(bundle->directory + "/lib64/libEGL_nvidia.so.580.159.04");
  const Result<Bundle> all = MakeBundle(*FindDriver(Search()), Parent(), {DriverUse::kCompute, DriverUse::kGraphics});
  const bool all_egl = all && PathExists(all->directory + "/lib64/libEGL_nvidia.so.580.159.04");
  ASSERT_EQ(::umount2(Parent().c_str(), MNT_DETACH), 0);
  ASSERT_TRUE(bundle) << bundle.error().message();
  EXPECT_TRUE(libcuda);
  EXPECT_FALSE(egl);
  EXPECT_TRUE(all_egl);
}

TEST_F(DriverTest, AHalfMadeBundleIsMadeAgain) {
  const Driver driver = *FindDriver(Search());
  const Bundle bundle = *MakeBundle(driver, Parent());
  ASSERT_EQ(::unlink((bundle.directory + "/list").c_str()), 0);
  const Result<Bundle> again = MakeBundle(driver, Parent());
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(PathExists(again->directory + "/lib64/libcuda.so"));
}

}  // namespace
}  // namespace vrun::gpu
