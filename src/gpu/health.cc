// SPDX-License-Identifier: Apache-2.0
#include "gpu/health.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

#include "base/files.h"

namespace vrun::gpu {
namespace {

//   number, text, own, fatal, gpu, node
constexpr XidMeaning kXids[] = {
    {13, "graphics engine exception: the program accessed memory or used an instruction wrongly", true, true, false,
     false},
    {31, "GPU memory page fault: the program accessed memory that is not its own", true, true, false, false},
    {32, "invalid or corrupted push buffer stream", false, true, false, false},
    {38, "driver firmware error", false, true, true, false},
    {43, "the program's channel was stopped after a fault of its own", true, true, false, false},
    {45, "the program's work was cleaned up after an earlier fault or a kill", true, false, false, false},
    {46, "GPU stopped processing", false, true, true, false},
    {48, "double-bit ECC error", false, true, true, false},
    {54, "auxiliary power is not connected", false, true, true, false},
    {61, "internal microcontroller breakpoint", false, true, true, false},
    {62, "internal microcontroller halt", false, true, true, false},
    {63, "row remapping was recorded: it takes effect at the next reset", false, false, false, false},
    {64, "row remapping failed", false, true, true, false},
    {68, "video processor exception", true, true, false, false},
    {69, "graphics engine class error", true, true, false, false},
    {74, "NVLink error", false, true, true, false},
    {79, "GPU has fallen off the bus", false, true, true, false},
    {92, "high rate of single-bit ECC errors", false, false, false, false},
    {94, "contained ECC error: only the program that had the memory is affected", false, true, false, false},
    {95, "uncontained ECC error: all programs on the GPU are affected", false, true, true, false},
    {109, "context switch timeout", false, true, true, false},
    {110, "security fault", false, true, true, false},
    {119, "GPU system processor does not answer", false, true, true, false},
    {120, "GPU system processor error", false, true, true, false},
    {121, "chip-to-chip link error", false, false, false, false},
    {136, "link training failed", false, true, true, false},
    {140, "unrecovered ECC error", false, true, true, false},
    {143, "GPU initialization failed", false, true, true, false},
    {144, "NVLink switch fabric error", false, true, true, true},
    {145, "NVLink remote link error", false, true, true, false},
    {149, "NVLink link error", false, true, true, false},
    {154, "GPU recovery action is needed", false, false, true, false},
    {155, "NVLink software-defined error", false, true, true, false},
    {158, "GPU fatal timeout", false, true, true, false},
};

template <typename Number>
bool ReadNumber(std::string_view* text, Number* out) {
  while (!text->empty() && text->front() == ' ') text->remove_prefix(1);
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), *out);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(rest - text->data()));
  return true;
}

constexpr char kHot[] = "too hot: ";
constexpr uint32_t kCoolDown = 5;  // degrees

}  // namespace

XidMeaning MeaningOfXid(uint32_t number) {
  for (const XidMeaning& xid : kXids) {
    if (xid.number == number) return xid;
  }
  return {number, "", false, false, false, false};
}

std::string XidText(uint32_t number) {
  const XidMeaning meaning = MeaningOfXid(number);
  const std::string name = "XID " + std::to_string(number);
  return meaning.text[0] == '\0' ? name : name + ": " + meaning.text;
}

std::optional<XidLine> ParseXidLine(std::string_view line) {
  constexpr std::string_view kBegin = "NVRM: Xid (PCI:";
  const size_t at = line.find(kBegin);
  if (at == line.npos) return std::nullopt;
  line.remove_prefix(at + kBegin.size());
  const size_t close = line.find(')');
  if (close == line.npos || close > 32) return std::nullopt;
  XidLine out;
  out.pci = line.substr(0, close);
  line.remove_prefix(close + 1);
  if (line.empty() || line.front() != ':') return std::nullopt;
  line.remove_prefix(1);
  if (!ReadNumber(&line, &out.number)) return std::nullopt;
  // "pid=1294" or "pid='<unknown>'". Only directly behind the number: what follows may have a program's own text.
  constexpr std::string_view kPid = ", pid=";
  if (line.starts_with(kPid)) {
    line.remove_prefix(kPid.size());
    if (!ReadNumber(&line, &out.pid)) out.pid = 0;
  }
  return out;
}

bool SamePci(const std::string& line_pci, const std::string& bus_id) {
  // The log has a domain of four or more digits and no function.
  const size_t function = bus_id.rfind('.');
  const std::string place = bus_id.substr(0, function);
  auto trimmed = [](std::string text) {
    text.erase(0, std::min(text.find_first_not_of('0'), text.size()));
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  return trimmed(line_pci) == trimmed(place);
}

Result<KernelLog> KernelLog::Open(const std::string& path) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(path, O_RDONLY | O_NONBLOCK));
  if (::lseek(fd.get(), 0, SEEK_END) < 0) return ErrnoError(path);
  return KernelLog(std::move(fd));
}

std::vector<XidLine> KernelLog::Read() {
  std::vector<XidLine> found;
  char buffer[8192];  // at least one record of /dev/kmsg, which are read one by one
  constexpr int kMostReads = 10'000;
  for (int i = 0; i < kMostReads; ++i) {
    const ssize_t n = ::read(fd_.get(), buffer, sizeof buffer);
    if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: records were overwritten before they were read
    if (n <= 0) break;
    rest_.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = rest_.find('\n')) != rest_.npos; rest_.erase(0, end + 1)) {
      if (const auto line = ParseXidLine(std::string_view(rest_).substr(0, end))) found.push_back(*line);
    }
    if (rest_.size() > sizeof buffer) rest_.clear();
  }
  return found;
}

Reading Read(Nvml* nvml, uint32_t number, bool all) {
  Reading out;
  const Result<Nvml::Device> device = nvml->At(number);
  const Result<Nvml::Memory> memory = device ? nvml->MemoryOf(*device) : Result<Nvml::Memory>(device.error());
  if (!memory) {
    out.lost = true;
    out.why_lost = memory.error().message();
    return out;
  }
  out.used_bytes = memory->used;
  out.processes = nvml->Processes(*device).value_or(std::vector<Nvml::Process>{});
  if (!all) return out;
  const auto optional = [](const auto& result, auto* to) {
    if (result) *to = *result;
  };
  optional(nvml->Temperature(*device), &out.temperature);
  optional(nvml->SlowdownTemperature(*device), &out.slowdown);
  optional(nvml->Remapped(*device), &out.remapped);
  optional(nvml->UncorrectedEccErrors(*device), &out.uncorrected);
  return out;
}

std::string Problem(const Reading& reading, bool was_hot) {
  if (reading.lost) return "it does not answer: " + reading.why_lost;
  if (reading.remapped && reading.remapped->failed) return "row remapping failed: replace it";
  if (reading.remapped && reading.remapped->pending) return "memory rows wait to be remapped: reset it";
  if (reading.temperature && reading.slowdown && *reading.slowdown > kCoolDown) {
    const uint32_t limit = *reading.slowdown - (was_hot ? kCoolDown : 0);
    if (*reading.temperature >= limit) {
      return kHot + std::to_string(*reading.temperature) + " degrees Celsius, it slows down at " +
             std::to_string(*reading.slowdown);
    }
  }
  return "";
}

bool IsTemperature(std::string_view problem) { return problem.starts_with(kHot); }

}  // namespace vrun::gpu
