// SPDX-License-Identifier: Apache-2.0
#include "node/agent/isolation.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "base/escape.h"

namespace vrun::node {
namespace {

bool ParseNumber(const std::string& text, uint32_t most, uint32_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() && *out >= 1 && *out <= most;
}

}  // namespace

Result<v1::Isolation::Destination> ParseRefused(const std::string& text) {
  const auto invalid = [&](const char* why) {
    return Error(Code::kInvalid,
                 Escape(text) + ": " + why + ": ADDRESS, ADDRESS/BITS, ADDRESS:PORT, [ADDRESS]:PORT or :PORT");
  };
  v1::Isolation::Destination out;
  std::string address = text, port;
  const size_t bracket = text.rfind(']'), colon = text.rfind(':');
  const bool one_colon = colon != std::string::npos && text.find(':') == colon;
  if (colon != std::string::npos && (one_colon || (bracket != std::string::npos && colon == bracket + 1))) {
    address = text.substr(0, colon);
    port = text.substr(colon + 1);
    uint32_t number = 0;
    if (!ParseNumber(port, 65535, &number)) return invalid("no port");
    out.set_port(number);
  }
  if (address.size() > 2 && address.front() == '[' && address.back() == ']') {
    address = address.substr(1, address.size() - 2);
  }
  if (const size_t slash = address.find('/'); slash != std::string::npos) {
    uint32_t bits = 0;
    if (!ParseNumber(address.substr(slash + 1), address.find(':') == std::string::npos ? 32 : 128, &bits)) {
      return invalid("no number of bits");
    }
    out.set_prefix_bits(bits);
    address.resize(slash);
  }
  if (address.empty() && port.empty()) return invalid("empty");
  uint8_t bytes[16];
  const int family = address.find(':') == std::string::npos ? AF_INET : AF_INET6;
  if (!address.empty() && ::inet_pton(family, address.c_str(), bytes) != 1) return invalid("not a numeric address");
  out.set_address(address);
  return out;
}

Result<v1::Isolation> IsolationOf(const IsolationOptions& options, const std::string& controller,
                                  const std::vector<uint32_t>& own_ports) {
  v1::Isolation out;
  out.set_allow_setuid(options.allow_setuid);
  out.set_refuse_namespaces(options.refuse_namespaces);
  out.set_allow_fuse(options.allow_fuse);
  out.set_require_device_filter(options.require_device_filter);
  for (const std::string& text : options.refuse) {
    VRUN_ASSIGN(*out.add_refused(), ParseRefused(text));
  }
  for (size_t at = 0; at <= controller.size();) {
    const size_t end = std::min(controller.find(',', at), controller.size());
    Result<v1::Isolation::Destination> it = ParseRefused(controller.substr(at, end - at));
    if (it) *out.add_refused() = *std::move(it);
    at = end + 1;
  }
  for (const uint32_t port : own_ports) {
    if (port != 0) out.add_refused()->set_port(port);
  }
  return out;
}

uint64_t DefaultMemory(uint64_t machine_bytes, uint32_t job_milli_cpus, uint32_t machine_cpus, uint32_t job_gpus,
                       uint32_t machine_gpus) {
  const double cpus = machine_cpus == 0 ? 1 : job_milli_cpus / 1000.0 / machine_cpus;
  const double gpus = machine_gpus == 0 ? 0 : static_cast<double>(job_gpus) / machine_gpus;
  const auto share = static_cast<uint64_t>(static_cast<double>(machine_bytes) * std::min(1.0, std::max(cpus, gpus)));
  return std::min(std::max(share, uint64_t{2} << 30), machine_bytes / 10 * 9);
}

}  // namespace vrun::node
