// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_list.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>

#include "base/escape.h"

namespace vrun {
namespace {

constexpr uint32_t kMostCpus = 65536;
constexpr uint32_t kBits = sizeof(unsigned long) * CHAR_BIT;

bool ParseNumber(std::string_view text, uint32_t* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out < kMostCpus;
}

}  // namespace

std::string FormatCpuList(const CpuList& cpus) {
  std::string out;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    out += (out.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (last != i) out += "-" + std::to_string(cpus[last]);
    i = last + 1;
  }
  return out;
}

Result<CpuList> ParseCpuList(std::string_view text) {
  auto wrong = [whole = std::string(text)] {
    return Error(Code::kInvalid, Escape(whole) + ": not a list of processors, as in 0-3,8");
  };
  if (text.ends_with('\n')) text.remove_suffix(1);
  CpuList cpus;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const size_t dash = std::min(item.find('-'), item.size());
    uint32_t first = 0, last = 0;
    if (!ParseNumber(item.substr(0, dash), &first)) return wrong();
    last = first;
    if (dash != item.size() && (!ParseNumber(item.substr(dash + 1), &last) || last < first)) return wrong();
    for (uint32_t cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (cpus.size() > kMostCpus || (comma + 1 == text.size())) return wrong();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

CpuList AllowedCpus() {
  // The raw system call: it takes a mask for any kernel's size and returns how much was filled.
  std::vector<unsigned long> mask(kMostCpus / kBits);
  const long bytes = ::syscall(SYS_sched_getaffinity, 0, mask.size() * sizeof(unsigned long), mask.data());
  CpuList cpus;
  for (uint32_t cpu = 0; bytes > 0 && cpu < static_cast<uint32_t>(bytes) * CHAR_BIT; ++cpu) {
    if (mask[cpu / kBits] >> cpu % kBits & 1) cpus.push_back(cpu);
  }
  return cpus.empty() ? CpuList{0} : cpus;
}

std::vector<unsigned long> CpuMask(const CpuList& cpus) {
  std::vector<unsigned long> mask;
  for (uint32_t cpu : cpus) {
    if (mask.size() <= cpu / kBits) mask.resize(cpu / kBits + 1);
    mask[cpu / kBits] |= 1ul << cpu % kBits;
  }
  return mask;
}

}  // namespace vrun
