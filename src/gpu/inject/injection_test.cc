// SPDX-License-Identifier: Apache-2.0
// The injection as a list, and carried out: programs in real roots, with real loaders, open libcuda.so.1 and say which
// one they got.
#include "gpu/inject/injection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/files.h"
#include "gpu/testing/execute.h"
#include "gpu/testing/fake_driver.h"

namespace vrun::gpu {
namespace {

constexpr char kProcDevices[] =
    "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n239 nvidia-nvswitch\n241 nvidia-caps\n"
    "242 nvidia-caps-imex-channels\n\nBlock devices:\n  7 nvidia-uvm\n";

std::vector<v1::Gpu> TwoGpus() {
  std::vector<v1::Gpu> gpus(2);
  for (uint32_t i = 0; i < 2; ++i) {
    gpus[i].set_uuid("GPU-" + std::to_string(i));
    gpus[i].set_minor(i + 4);
    gpus[i].set_pci_bus_id(i == 0 ? "00000000:1B:00.0" : "00000000:3D:00.0");
  }
  return gpus;
}

std::vector<std::string> Devices(const v1::GpuInjection& injection) {
  std::vector<std::string> all;
  for (const auto& device : injection.devices()) {
    all.push_back(device.path() + " " + std::to_string(device.major()) + ":" + std::to_string(device.minor()));
  }
  return all;
}

bool HasWord(const google::protobuf::RepeatedPtrField<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

const v1::GpuInjection::File* FileAt(const v1::GpuInjection& injection, const std::string& path) {
  for (const auto& file : injection.files()) {
    if (file.path() == path) return &file;
  }
  return nullptr;
}

std::string TargetsOf(const v1::GpuInjection& injection) {
  std::string all;
  for (const auto& mount : injection.mounts()) all += mount.target() + (mount.read_only() ? "" : " rw") + "\n";
  return all;
}

class InjectionTest : public testing::Test {
 protected:
  Result<v1::GpuInjection> Make(const Allotment& allotment) {
    return MakeInjection({.gpus = &gpus_,
                          .allotment = &allotment,
                          .bundle = &bundle_,
                          .majors = ParseDeviceMajors(kProcDevices),
                          .proc = {.version = "NVRM version\n",
                                   .registry = "Binary: \"\"\n",
                                   .params = "ResmanDebugLevel: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"},
                          .gpu_information = {"Model: A\n", "Model: B\n"}});
  }
  std::string Problem(const Allotment& allotment) {
    const Result<v1::GpuInjection> made = Make(allotment);
    return made ? "none" : made.error().message();
  }

  std::vector<v1::Gpu> gpus_ = TwoGpus();
  Bundle bundle_{.directory = "/state/nvidia/580-ab",
                 .version = "580",
                 .libraries = {{"libcuda.so.1", "libcuda.so.580"}, {"libcuda.so", "libcuda.so.580"}},
                 .programs = {"nvidia-smi"},
                 .data = {"etc/OpenCL/vendors/nvidia.icd"}};
};

TEST_F(InjectionTest, WholeGpus) {
  const auto injection = Make({.gpus = {0, 1}, .mig = {}, .mps = {}});
  ASSERT_TRUE(injection) << injection.error().message();
  EXPECT_EQ(Devices(*injection),
            (std::vector<std::string>{"nvidia4 195:4", "nvidia5 195:5", "nvidiactl 195:255", "nvidia-uvm 238:0"}));
  EXPECT_EQ(TargetsOf(*injection), "/run/vrun/nvidia\n/proc/driver/nvidia\n");
  EXPECT_TRUE(HasWord(injection->environment(), "CUDA_VISIBLE_DEVICES=0,1"));
  EXPECT_TRUE(HasWord(injection->environment(), "NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1"));
  EXPECT_TRUE(HasWord(injection->prepend(), "PATH=/run/vrun/nvidia/bin"));
  EXPECT_TRUE(HasWord(injection->prepend(), "LD_LIBRARY_PATH=/run/vrun/nvidia/lib64"));
}

TEST_F(InjectionTest, ProcHasOnlyThePodsGpu) {
  const auto injection = Make({.gpus = {1}, .mig = {}, .mps = {}});
  ASSERT_TRUE(injection);
  EXPECT_EQ(FileAt(*injection, "/proc/driver/nvidia/params")->content(),
            "ResmanDebugLevel: 1\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n");
  EXPECT_EQ(FileAt(*injection, "/proc/driver/nvidia/gpus/0000:3d:00.0/information")->content(), "Model: B\n");
  EXPECT_EQ(FileAt(*injection, "/proc/driver/nvidia/gpus/0000:1b:00.0/information"), nullptr);
  EXPECT_TRUE(HasWord(injection->environment(), "CUDA_VISIBLE_DEVICES=0"));
}

TEST_F(InjectionTest, MigInstanceHasItsTwoCapabilities) {
  const auto injection = Make({.gpus = {0}, .mig = MigInstance{7, 0, 66, 67, "MIG-a"}, .mps = {}});
  ASSERT_TRUE(injection) << injection.error().message();
  EXPECT_EQ(Devices(*injection),
            (std::vector<std::string>{"nvidia4 195:4", "nvidiactl 195:255", "nvidia-uvm 238:0",
                                      "nvidia-caps/nvidia-cap66 241:66", "nvidia-caps/nvidia-cap67 241:67"}));
  EXPECT_TRUE(HasWord(injection->environment(), "CUDA_VISIBLE_DEVICES=MIG-a"));
}

TEST_F(InjectionTest, MpsShare) {
  const auto injection = Make({.gpus = {0}, .mig = {}, .mps = MpsShare{"/state/mps/0-1000", 25, uint64_t{20} << 30}});
  ASSERT_TRUE(injection);
  EXPECT_EQ(TargetsOf(*injection), "/run/vrun/nvidia\n/proc/driver/nvidia\n/run/vrun/mps rw\n");
  EXPECT_TRUE(HasWord(injection->environment(), "CUDA_MPS_PIPE_DIRECTORY=/run/vrun/mps"));
  EXPECT_TRUE(HasWord(injection->environment(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"));
  EXPECT_TRUE(HasWord(injection->environment(), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M"));
  EXPECT_EQ(injection->devices_size(), 3);
}

TEST_F(InjectionTest, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(Problem({.gpus = {2}, .mig = {}, .mps = {}}), "GPU 2 of a node with 2");
  EXPECT_EQ(Problem({.gpus = {}, .mig = {}, .mps = {}}), "an allotment of no GPU");
  EXPECT_EQ(Problem({.gpus = {0, 1}, .mig = {}, .mps = {}, .time_slice = true}),
            "an allotment of parts of several GPUs");
  EXPECT_EQ(Problem({.gpus = {0}, .mig = MigInstance{0, 0, 1, 2, ""}, .mps = {}}),
            "a MIG instance with capabilities 1 and 2");
  EXPECT_EQ(Problem({.gpus = {0}, .mig = MigInstance{0, 0, 5, 6, ""}, .mps = MpsShare{"/x"}}),
            "an allotment of two kinds of parts of a GPU");
}

TEST_F(InjectionTest, MajorsAreOfCharacterDevices) {
  const DeviceMajors majors = ParseDeviceMajors(kProcDevices);
  EXPECT_EQ(majors.nvidia, 195u);
  EXPECT_EQ(majors.nvidia_uvm, 238u);
  EXPECT_EQ(majors.nvidia_caps, 241u);
  EXPECT_EQ(ParseDeviceMajors("").nvidia_uvm, 0u);
}

TEST_F(InjectionTest, TheUsersOwnChoicesStay) {
  v1::GpuInjection injection = *Make({.gpus = {0}, .mig = {}, .mps = {}});
  RootFacts root;
  AddForRoot(bundle_, root, {"OCL_ICD_VENDORS=/mine", "LD_LIBRARY_PATH=/usr/local/cuda/compat:/b"}, &injection);
  for (const std::string& variable : injection.environment()) EXPECT_FALSE(variable.starts_with("OCL_ICD_VENDORS"));
  EXPECT_TRUE(HasWord(injection.environment(), "LD_LIBRARY_PATH=/usr/local/cuda/compat:/run/vrun/nvidia/lib64:/b"));
  EXPECT_FALSE(HasWord(injection.prepend(), "LD_LIBRARY_PATH=/run/vrun/nvidia/lib64"));
}

TEST_F(InjectionTest, NothingIsMadeInALiveRoot) {
  RootFacts root{.frozen = false, .ld_cache = {}, .glibc = true, .musl = true, .musl_path = {}, .stale = {}};
  v1::GpuInjection injection = *Make({.gpus = {0}, .mig = {}, .mps = {}});
  AddForRoot(bundle_, root, {}, &injection);
  EXPECT_EQ(FileAt(injection, "/etc/ld.so.cache"), nullptr);
  EXPECT_EQ(FileAt(injection, MuslPathFile()), nullptr);
  root.frozen = true;
  AddForRoot(bundle_, root, {}, &injection);
  ASSERT_NE(FileAt(injection, "/etc/ld.so.cache"), nullptr);
  EXPECT_FALSE(FileAt(injection, "/etc/ld.so.cache")->optional());
}

// --- carried out ----------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
constexpr char kLibraries[] = "/usr/lib/x86_64-linux-gnu";
#else
constexpr char kLibraries[] = "/usr/lib/aarch64-linux-gnu";
#endif
constexpr char kOurs[] = "580.159.04";

// LD_LIBRARY_PATH alone would do in most roots: without it the other ways must.
enum class With { kEverything, kNoVariables };

class RealRootTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "SKIP: needs root for mounts";
    ASSERT_TRUE(MakeFakeDriver(directory_, directory_.path() + "/driver/usr/lib64", kOurs));
    directory_.Write("driver/usr/bin/nvidia-smi", "#!/bin/probe\n", 0755);
    const auto driver = FindDriver({.root = directory_.path() + "/driver", .directories = {}, .kernel_version = ""});
    ASSERT_TRUE(driver) << driver.error().message();
    const auto bundle = MakeBundle(*driver, directory_.path() + "/bundles");
    ASSERT_TRUE(bundle) << bundle.error().message();
    bundle_ = *bundle;
    ASSERT_TRUE(MakeDirs(directory_.path() + "/scratch", 0755));
  }

  std::string Root(const std::string& name = "") const { return directory_.path() + "/root" + name; }

  // What a program prints.
  std::string Run(std::vector<std::string> argv, bool frozen, With with = With::kEverything,
                  const std::vector<std::string>& environment = {}) {
    const std::vector<v1::Gpu> gpus = TwoGpus();
    const Allotment allotment{.gpus = {1}, .mig = {}, .mps = {}};
    Result<v1::GpuInjection> injection = MakeInjection({.gpus = &gpus,
                                                        .allotment = &allotment,
                                                        .bundle = &bundle_,
                                                        .majors = ParseDeviceMajors(kProcDevices),
                                                        .proc = {},
                                                        .gpu_information = {}});
    if (!injection) return injection.error().message();
    const UniqueFd root(::open(Root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const auto begin = std::chrono::steady_clock::now();
    const Status done = CompleteForRoot(root.get(), frozen, environment, &*injection);
    took_ = std::chrono::steady_clock::now() - begin;
    if (!done) return done.error().message();
    if (with == With::kNoVariables) injection->clear_prepend();
    const Result<Outcome> outcome = Execute(*injection, {.root = Root(),
                                                         .live = !frozen,
                                                         .scratch = directory_.path() + "/scratch",
                                                         .argv = std::move(argv),
                                                         .environment = environment});
    return outcome ? outcome->output : outcome.error().message();
  }

  void MakeCache() const {
    const Result<std::string> made = RunHere({"ldconfig", "-X", "-r", Root()});
    ASSERT_TRUE(made) << made.error().message();
  }

  TestDirectory directory_;
  Bundle bundle_;
  std::chrono::nanoseconds took_{};
};

TEST_F(RealRootTest, ARootWithAnotherDriver) {
  ASSERT_TRUE(MakeGlibcRoot(directory_, Root()));
  ASSERT_TRUE(MakeFakeDriver(directory_, Root(kLibraries), "550.54.14"));
  directory_.Write("root/etc/ld.so.conf", std::string(kLibraries) + "\n");
  MakeCache();
  const std::vector<std::string> probe = {"/bin/probe", "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1",
                                          std::string(kLibraries) + "/libcuda.so.1"};
  for (const bool frozen : {true, false}) {
    // The last one asks for the root's own file by its path: it is covered.
    EXPECT_EQ(Run(probe, frozen, With::kNoVariables), "580.159.04\n580.159.04\n580.159.04\n580.159.04\n") << frozen;
    EXPECT_EQ(Run(probe, frozen), "580.159.04\n580.159.04\n580.159.04\n580.159.04\n") << frozen;
  }
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(took_).count();
  RecordProperty("facts_and_list_us", static_cast<int>(us));
  std::printf("facts of the root and the list: %d us\n", static_cast<int>(us));
  // The root itself is as before.
  EXPECT_EQ(*RunHere({"ls", Root("/run"), Root("/dev")}), Root("/dev") + ":\n\n" + Root("/run") + ":\n");
}

TEST_F(RealRootTest, ARootWithoutADriver) {
  ASSERT_TRUE(MakeGlibcRoot(directory_, Root()));
  MakeCache();
  for (const bool frozen : {true, false}) {
    EXPECT_EQ(Run({"/bin/probe", "libcuda.so.1", "libEGL_nvidia.so.0"}, frozen, With::kNoVariables),
              "580.159.04\n580.159.04\n");
  }
  EXPECT_NE(Run({"/bin/probe", "libcuda.so.2"}, true).find("libcuda.so.2: cannot open"), std::string::npos);
}

TEST_F(RealRootTest, GlibcWithoutACache) {
  ASSERT_TRUE(MakeGlibcRoot(directory_, Root()));
  ASSERT_TRUE(MakeFakeDriver(directory_, Root(kLibraries), "550.54.14"));
  // The loader's own directories are no obstacle: what is there is covered.
  EXPECT_EQ(Run({"/bin/probe", "libcuda.so.1"}, false, With::kNoVariables), "580.159.04\n");
  EXPECT_EQ(Run({"/bin/probe", "libcuda.so.1", "libnvidia-opencl.so.1"}, false), "580.159.04\n580.159.04\n");
  // Only in a frozen view a cache can be made.
  EXPECT_EQ(Run({"/bin/probe", "libcuda.so"}, true, With::kNoVariables), "580.159.04\n");
}

TEST_F(RealRootTest, AnEnvironmentWithRpathAndAnotherLibcuda) {
  ASSERT_TRUE(MakeGlibcRoot(directory_, Root()));
  MakeCache();
  ASSERT_TRUE(
      MakeProbe(directory_, Root("/opt/conda/bin/probe"), "cc", {"-Wl,--disable-new-dtags,-rpath,/opt/conda/lib"}));
  ASSERT_TRUE(MakeFakeLibrary(directory_, Root("/opt/conda/lib/libcuda.so.1"), "libcuda.so.1", "stub"));
  for (const bool frozen : {true, false}) {
    for (const char* variable : {"CONDA_PREFIX=/opt/conda", "PATH=/opt/conda/bin:/usr/bin"}) {
      EXPECT_EQ(Run({"/opt/conda/bin/probe", "libcuda.so.1"}, frozen, With::kEverything, {variable}), "580.159.04\n");
    }
  }
  // The control: a RPATH comes before LD_LIBRARY_PATH and the cache.
  EXPECT_EQ(Run({"/opt/conda/bin/probe", "libcuda.so.1"}, true), "stub\n");
}

// Programs of Nix have this directory in their RUNPATH, and a loader that reads no cache of the root.
TEST_F(RealRootTest, ProgramsOfNix) {
  ASSERT_TRUE(MakeGlibcRoot(directory_, Root()));
  ASSERT_TRUE(MakeProbe(directory_, Root("/nix/store/probe"), "cc", {"-Wl,-rpath,/run/opengl-driver/lib"}));
  EXPECT_EQ(Run({"/nix/store/probe", "libcuda.so.1"}, false, With::kNoVariables), "580.159.04\n");
}

TEST_F(RealRootTest, Musl) {
  if (!RunHere({"musl-gcc", "--version"})) GTEST_SKIP() << "SKIP: no musl-gcc: tools/install-deps --test";
#if defined(__x86_64__)
  const std::string machine = "x86_64";
#else
  const std::string machine = "aarch64";
#endif
  ASSERT_TRUE(MakeEmptyRoot(Root()));
  ASSERT_TRUE(MakeDirs(Root("/lib"), 0755));
  ASSERT_TRUE(RunHere({"cp", "-L", "/lib/ld-musl-" + machine + ".so.1", Root("/lib/")}));
  ASSERT_TRUE(MakeProbe(directory_, Root("/bin/probe"), "musl-gcc"));
  const std::vector<std::string> probe = {"/bin/probe", "libcuda.so.1"};
  EXPECT_EQ(Run(probe, true, With::kNoVariables), "580.159.04\n");
  ASSERT_EQ(*RunHere({"rm", Root(MuslPathFile())}), "");  // made as a mount point
  EXPECT_EQ(Run(probe, false), "580.159.04\n");
  // Without the file and in a live view only the variable helps.
  EXPECT_NE(Run(probe, false, With::kNoVariables).find("libcuda.so.1"), std::string::npos);
  directory_.Write("root/etc/ld-musl-" + machine + ".path", "/lib:/usr/lib\n");
  ASSERT_TRUE(MakeFakeLibrary(directory_, Root("/usr/lib/libcuda.so.1"), "libcuda.so.1", "stale"));
  EXPECT_EQ(Run(probe, false, With::kNoVariables), "580.159.04\n");
}

TEST_F(RealRootTest, AnEmptyRootStaysUsable) {
  ASSERT_TRUE(MakeEmptyRoot(Root()));
  ASSERT_TRUE(MakeProbe(directory_, Root("/bin/probe"), "cc", {"-static", "-w"}));
  EXPECT_EQ(Run({"/bin/probe"}, true), "");
  EXPECT_EQ(Run({"/bin/probe"}, false), "");
}

TEST_F(RealRootTest, LinksOfTheRootLeadNowhereOutside) {
  ASSERT_TRUE(MakeGlibcRoot(directory_, Root()));
  directory_.Write("outside", "secret");
  ASSERT_EQ(::symlink((directory_.path() + "/outside").c_str(), Root("/etc/ld.so.cache").c_str()), 0);
  const UniqueFd root(::open(Root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  EXPECT_FALSE(ReadRootFacts(root.get(), true, bundle_, {}).ld_cache);
  ASSERT_EQ(::unlink(Root("/etc/ld.so.cache").c_str()), 0);
  // A FIFO would block whoever opens it.
  ASSERT_EQ(::mkfifo(Root("/etc/ld.so.cache").c_str(), 0644), 0);
  EXPECT_FALSE(ReadRootFacts(root.get(), true, bundle_, {}).ld_cache);
}

TEST_F(RealRootTest, ProcIsMasked) {
  ASSERT_TRUE(MakeGlibcRoot(directory_, Root()));
  MakeCache();
  ASSERT_TRUE(RunHere({"cp", "/bin/busybox", Root("/bin/busybox")})) << "busybox-static";
  const std::string seen =
      Run({"/bin/busybox", "sh", "-c",
           "b=/bin/busybox; $b cat /proc/driver/nvidia/params; $b ls /proc/driver/nvidia; $b ls /dev; "
           "echo $PATH $CUDA_VISIBLE_DEVICES; $b readlink /run/opengl-driver/lib; "
           "$b touch /run/vrun/nvidia/lib64/x 2>/dev/null || echo read-only"},
          false, With::kEverything, {"PATH=/bin"});
  EXPECT_EQ(seen,
            "ModifyDeviceFiles: 0\nparams\nregistry\nversion\nnvidia-uvm\nnvidia5\nnvidiactl\n"
            "/run/vrun/nvidia/bin:/bin 0\n/run/vrun/nvidia/lib64\nread-only\n");
}

}  // namespace
}  // namespace vrun::gpu
