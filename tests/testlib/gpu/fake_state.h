// SPDX-License-Identifier: Apache-2.0
// What the fake GPUs are and have: a text file that a test writes and may replace at any time (fake_gpus.py), and a
// file of MIG instances that the fake library itself keeps, so that several processes agree.
//
// The text is lines of "key value", not JSON: the library must need nothing but libc, and no JSON parser is among the
// project's packages.
//
//   driver 580.159.04
//   count 8
//   gpu.0.product NVIDIA H100 80GB HBM3
//   gpu.0.memory 85520809984
//   ...
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fake {

struct Process {
  uint32_t pid;
  uint64_t bytes;
  uint32_t sm;                  // percent
  uint32_t gpu_instance = ~0u;  // none
};

struct Instance {
  uint32_t gpu, id, profile, start, size;
  bool computes;  // it has its compute instance
};

class State {
 public:
  // Rereads the file if it has changed. False: there is no file.
  bool Refresh();

  uint32_t count() const { return static_cast<uint32_t>(Number("count", 0)); }
  std::string Text(const std::string& key, const std::string& otherwise = "") const;
  uint64_t Number(const std::string& key, uint64_t otherwise) const;
  std::string GpuText(uint32_t gpu, const char* field, const std::string& otherwise = "") const;
  uint64_t GpuNumber(uint32_t gpu, const char* field, uint64_t otherwise = 0) const;
  // Those of the file ("PID:BYTES:SM[:GI],...") and every process of this machine whose environment has
  // FAKE_GPU_USE=GPU:BYTES:SM[:GI].
  std::vector<Process> Processes(uint32_t gpu) const;
  std::vector<uint32_t> Xids(size_t* position) const;

  const std::string& directory() const { return directory_; }

 private:
  std::map<std::string, std::string> values_;
  std::string directory_;
  int64_t changed_ = -1;
  uint64_t inode_ = 0;
};

// $VRUN_FAKE_GPUS, or FAKE in the root that this library lies in (ROOT/usr/lib/x86_64-linux-gnu/).
std::string StateDirectory();

// The instances, read and written while the lock is held.
class Instances {
 public:
  explicit Instances(const std::string& directory);
  ~Instances();
  std::vector<Instance> all;
  void Save();

 private:
  std::string path_;
  int lock_ = -1;
};

std::vector<std::string> Split(const std::string& text, char by);
std::string ReadAll(const std::string& path);

}  // namespace fake
