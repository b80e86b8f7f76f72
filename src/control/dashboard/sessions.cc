// SPDX-License-Identifier: Apache-2.0
#include "control/dashboard/sessions.h"

#include <sys/random.h>
#include <sys/types.h>

namespace vrun::control {
namespace {

constexpr char kDigits[] = "0123456789abcdef";
constexpr size_t kMostBytes = 256;

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::optional<std::string> Unhex(std::string_view text) {
  if (text.empty() || text.size() % 2 != 0 || text.size() > 2 * kMostBytes) return std::nullopt;
  std::string bytes;
  const std::string_view digits(kDigits, 16);
  for (size_t i = 0; i < text.size(); i += 2) {
    const size_t high = digits.find(text[i]), low = digits.find(text[i + 1]);
    if (high == digits.npos || low == digits.npos) return std::nullopt;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

std::string Combine(std::string_view a, std::string_view b) {
  std::string out(a);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(out[i] ^ b[i]);
  return out;
}

// Cookies do not tell ports apart, and a machine may show several clusters.
std::string CookieName(const http::Request& request) {
  const auto host = request.headers.find("host");
  std::string port;
  if (host != request.headers.end()) {
    const size_t colon = host->second.rfind(':');
    if (colon != std::string::npos) port = host->second.substr(colon + 1);
  }
  if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) port.clear();
  return "vrun_session" + (port.empty() ? "" : "_" + port);
}

std::string CookieOf(const http::Request& request) {
  const auto header = request.headers.find("cookie");
  if (header == request.headers.end()) return "";
  const std::string name = CookieName(request) + "=";
  std::string_view left = header->second;
  while (!left.empty()) {
    const size_t end = std::min(left.find(';'), left.size());
    std::string_view one = left.substr(0, end);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    if (one.starts_with(name)) return std::string(one.substr(name.size()));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return "";
}

}  // namespace

std::optional<Halves> Split(std::string_view token) {
  if (token.size() > kMostBytes) return std::nullopt;
  std::string pad(token.size(), '\0');
  if (::getrandom(pad.data(), pad.size(), 0) != static_cast<ssize_t>(pad.size())) return std::nullopt;
  return Halves{Hex(pad), Hex(Combine(token, pad))};
}

std::string SessionToken(const http::Request& request) {
  const auto proof = request.headers.find("x-vrun-session");
  if (proof == request.headers.end()) return "";
  const auto one = Unhex(proof->second), other = Unhex(CookieOf(request));
  if (!one || !other || one->size() != other->size()) return "";
  return Combine(*one, *other);
}

std::string SessionCookie(const http::Request& request, const std::string& half, int64_t seconds, bool secure) {
  return CookieName(request) + "=" + half + "; Path=/; HttpOnly; SameSite=Strict; Max-Age=" + std::to_string(seconds) +
         (secure ? "; Secure" : "");
}

std::string EndedCookie(const http::Request& request, bool secure) { return SessionCookie(request, "", 0, secure); }

}  // namespace vrun::control
