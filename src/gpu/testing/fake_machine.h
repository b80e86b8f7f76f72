// SPDX-License-Identifier: Apache-2.0
// A machine with a fake GPU driver, for a test, in a directory of its own: the library of tests/testlib/gpu with a file
// that says what GPUs there are. tests/testlib/fake_gpus.py makes the whole tree, for end-to-end tests.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/files.h"

namespace vrun::gpu {

class FakeMachine {
 public:
  explicit FakeMachine(uint32_t count = 2, const std::string& product = "NVIDIA H100 80GB HBM3", uint64_t mib = 81559) {
    root_ = "/var/tmp/vrun-gpu-XXXXXX";
    VRUN_CHECK(::mkdtemp(root_.data()) != nullptr);
    const std::string libraries = root_ + "/usr/lib/x86_64-linux-gnu";
    VRUN_CHECK(MakeDirs(libraries, 0755) && MakeDirs(root_ + "/usr/bin", 0755) && MakeDirs(root_ + "/fake", 0755) &&
               MakeDirs(root_ + "/proc/driver/nvidia-caps", 0755) && MakeDirs(root_ + "/state", 0755));
    for (const auto& [soname, name] :
         {std::pair("libnvidia-ml.so.1", "libnvidia-ml.so"), {"libcuda.so.1", "libcuda.so"}}) {
      const std::string file = std::string(name) + ".580.159.04";
      std::filesystem::copy_file(std::string(FAKE_GPU) + "/" + soname, libraries + "/" + file);
      std::filesystem::create_symlink(file, libraries + "/" + soname);
    }
    VRUN_CHECK(MakeDirs(root_ + "/proc/driver/nvidia", 0755) && MakeDirs(root_ + "/dev", 0755));
    std::ofstream(root_ + "/proc/devices")
        << "Character devices:\n195 nvidia\n238 nvidia-uvm\n241 nvidia-caps\n\nBlock devices:\n";
    std::ofstream(root_ + "/proc/driver/nvidia/version")
        << "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n";
    std::ofstream(root_ + "/proc/driver/nvidia/params") << "ModifyDeviceFiles: 1\n";
    std::ofstream(root_ + "/proc/driver/nvidia/registry") << "Binary: \"\"\n";
    std::ofstream(root_ + "/dev/kmsg");
    std::filesystem::copy_file(std::string(FAKE_GPU) + "/fake_mps_control", root_ + "/usr/bin/nvidia-cuda-mps-control");
    values_["driver"] = "580.159.04";
    values_["count"] = std::to_string(count);
    for (uint32_t i = 0; i < count; ++i) {
      Put(i, "product", product);
      Put(i, "uuid", "GPU-" + std::to_string(i));
      Put(i, "bus", "00000000:" + std::to_string(10 + i) + ":00.0");
      Put(i, "memory", std::to_string(mib << 20));
      Put(i, "numa", std::to_string(i * 2 / count));
      Put(i, "power", "100000");
    }
    Save();
    std::ofstream(root_ + "/fake/xids");
    std::ofstream minors(root_ + "/proc/driver/nvidia-caps/mig-minors");
    minors << "config 1\nmonitor 2\n";
    for (int gpu = 0, minor = 3; gpu < 4; ++gpu) {
      for (int gi = 0; gi < 15; ++gi) {
        minors << "gpu" << gpu << "/gi" << gi << "/access " << minor++ << "\n";
        for (int ci = 0; ci < 8; ++ci)
          minors << "gpu" << gpu << "/gi" << gi << "/ci" << ci << "/access " << minor++ << "\n";
      }
    }
  }
  ~FakeMachine() { (void)RemoveTree(root_); }

  const std::string& root() const { return root_; }
  void Set(uint32_t gpu, const std::string& field, const std::string& value) {
    Put(gpu, field, value);
    Save();
  }
  void SetAll(const std::string& key, const std::string& value) {
    values_[key] = value;
    Save();
  }
  // The kernel's log names `pid`, if it is not 0.
  void Xid(uint32_t gpu, uint32_t number, uint32_t pid = 0) {
    if (pid != 0) {
      std::ofstream(root_ + "/dev/kmsg", std::ios::app)
          << "3,1,1,-;NVRM: Xid (PCI:0000:" << 10 + gpu << ":00): " << number << ", pid=" << pid << ", name=x\n";
    }
    std::ofstream(root_ + "/fake/xids", std::ios::app) << gpu << " " << number << "\n";
  }
  std::string Instances() const { return ReadFile(root_ + "/fake/mig").value_or(""); }

 private:
  void Put(uint32_t gpu, const std::string& field, const std::string& value) {
    values_["gpu." + std::to_string(gpu) + "." + field] = value;
  }
  void Save() {
    std::string text;
    for (const auto& [key, value] : values_) text += key + " " + value + "\n";
    VRUN_CHECK(WriteFileAtomic(root_ + "/fake/gpus", text, 0644).has_value());
  }

  std::string root_;
  std::map<std::string, std::string> values_;
};

}  // namespace vrun::gpu
