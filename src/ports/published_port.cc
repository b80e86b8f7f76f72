// SPDX-License-Identifier: Apache-2.0
#include "ports/published_port.h"

#include <arpa/inet.h>

#include <charconv>
#include <set>

#include "base/escape.h"

namespace vrun {
namespace {

constexpr const char* kDefaultAddress = "127.0.0.1";

// 0: it is none.
uint32_t ParsePort(std::string_view text) {
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port <= 65535 ? port : 0;
}

bool IsNumericAddress(const std::string& text) {
  uint8_t bytes[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, text.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

// Takes what precedes the first colon, or all. An address in brackets may contain colons.
std::string_view TakePart(std::string_view* rest) {
  const size_t bracket = rest->starts_with('[') ? rest->find(']') : 0;
  const size_t colon = bracket == std::string_view::npos ? bracket : rest->find(':', bracket);
  const std::string_view part = rest->substr(0, colon);
  *rest = colon == std::string_view::npos ? std::string_view() : rest->substr(colon + 1);
  return part;
}

}  // namespace

Result<v1::PublishedPort> ParsePublishedPort(std::string_view text) {
  const auto invalid = [&](const std::string& why) {
    return Error(Code::kInvalid, Escape(text) + ": " + why + ": write PORT, PORT:JOB_PORT or ADDRESS:PORT:JOB_PORT");
  };
  std::string_view rest = text;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (rest.substr(slash) != "/tcp") return invalid("only tcp is forwarded");
    rest = rest.substr(0, slash);
  }
  if (rest.ends_with(':')) return invalid("a port is missing");
  std::string_view parts[3];
  size_t count = 0;
  for (; !rest.empty(); ++count) {
    if (count == 3) return invalid("too many parts");
    parts[count] = TakePart(&rest);
  }
  if (count == 0) return invalid("a port is missing");
  v1::PublishedPort out;
  const std::string_view last = parts[count - 1];
  out.set_pod_port(ParsePort(last));
  if (out.pod_port() == 0) return invalid(Escape(last) + " is no port from 1 to 65535");
  // ADDRESS:PORT is the same port on both sides.
  const bool address_first = count == 3 || (count == 2 && parts[0].find_first_not_of("0123456789") != parts[0].npos);
  const std::string_view home = count == 1 || (count == 2 && address_first) ? last : parts[count - 2];
  out.set_port(ParsePort(home));
  if (out.port() == 0) return invalid(Escape(home) + " is no port from 1 to 65535");
  if (!address_first) return out;
  std::string address(parts[0]);
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    address = address.substr(1, address.size() - 2);
  if (address == "localhost") address = kDefaultAddress;
  if (!IsNumericAddress(address)) return invalid(Escape(address) + " is no numeric address of this machine");
  out.set_address(address);
  return out;
}

bool LooksLikePublishedPort(std::string_view text) {
  if (text.ends_with("/tcp") || text.ends_with("/udp")) text.remove_suffix(4);
  return !text.empty() && text.find_first_not_of("0123456789.:") == text.npos;
}

std::string HomeAddressText(const v1::PublishedPort& port) {
  const std::string address = port.address().empty() ? kDefaultAddress : port.address();
  return (address.find(':') == address.npos ? address : "[" + address + "]") + ":" + std::to_string(port.port());
}

std::string PublishedPortText(const v1::PublishedPort& port) {
  return HomeAddressText(port) + (port.port() == port.pod_port() ? "" : " -> " + std::to_string(port.pod_port()));
}

Status CheckPublishedPorts(const v1::RunSpec& spec) {
  if (spec.ports_size() > kMostPublishedPorts) {
    return Error(Code::kInvalid, "more than " + std::to_string(kMostPublishedPorts) + " published ports");
  }
  std::set<std::string> seen;
  for (const v1::PublishedPort& port : spec.ports()) {
    const std::string text = HomeAddressText(port);
    if (!seen.insert(text).second) return Error(Code::kInvalid, text + " is published twice: leave one out");
  }
  return {};
}

}  // namespace vrun
