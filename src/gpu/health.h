// SPDX-License-Identifier: Apache-2.0
// Whether a GPU is fit for work: what XIDs mean, what the kernel's log says of them, and what readings say.
//
// XIDs (NVIDIA, "XID Errors"): the driver's numbers for what went wrong. The meanings are NVIDIA's, the consequences
// ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "gpu/nvml.h"
#include "proto/common.pb.h"

namespace vrun::gpu {

struct XidMeaning {
  uint32_t number;
  const char* text;
  bool own;    // the program's doing: an illegal access, and so on
  bool fatal;  // a program that uses the GPU cannot go on
  bool gpu;    // the GPU is given to nobody until it was reset or replaced
  bool node;   // all GPUs of the node are affected, so it drains
};
// Unknown numbers: fatal for nobody, the GPU stays; "XID 200".
XidMeaning MeaningOfXid(uint32_t number);
// "XID 79: GPU has fallen off the bus".
std::string XidText(uint32_t number);

// One line of the kernel's log: "NVRM: Xid (PCI:0000:00:06): 31, pid=1294, name=python3, ...".
struct XidLine {
  std::string pci;  // "0000:00:06"
  uint32_t number = 0;
  uint32_t pid = 0;  // as the host counts; 0: not named
};
std::optional<XidLine> ParseXidLine(std::string_view line);
// Whether a line of the log means the GPU with this bus id of NVML ("00000000:00:06.0").
bool SamePci(const std::string& line_pci, const std::string& bus_id);

// The kernel's log from now on: /dev/kmsg, or in tests a file that grows.
class KernelLog {
 public:
  // Without a log (kDenied, kNotFound) XIDs are known, but not whose they are.
  static Result<KernelLog> Open(const std::string& path);
  // What was logged since the last call. Never waits.
  std::vector<XidLine> Read();

 private:
  explicit KernelLog(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
  std::string rest_;  // a line that is not whole yet
};

// What the driver says of one GPU at one moment. nullopt: it has no such value.
struct Reading {
  bool lost = false;  // it does not answer
  std::string why_lost;
  std::optional<uint32_t> temperature, slowdown;  // degrees Celsius
  std::optional<Nvml::RemappedRows> remapped;
  std::optional<uint64_t> uncorrected;  // ECC errors since the driver was loaded
  uint64_t used_bytes = 0;
  std::vector<Nvml::Process> processes;
};
// Blocks for about 10 ms; without `all` it reads only memory and processes, in less than one.
Reading Read(Nvml* nvml, uint32_t number, bool all = true);

// Why no job may get this GPU, in one line; "" if it is fit. `was_hot`: it had a problem of temperature before, so that
// it must cool down by some degrees.
std::string Problem(const Reading& reading, bool was_hot);
// Whether it is a problem of temperature, which goes away by itself.
bool IsTemperature(std::string_view problem);

}  // namespace vrun::gpu
