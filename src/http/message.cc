// SPDX-License-Identifier: Apache-2.0
#include "http/message.h"

#include <algorithm>
#include <cstdint>

namespace vrun::http {
namespace {

// The length of the valid UTF-8 sequence at the start of `s`; 0: there is none.
size_t Utf8Length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || s.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xe0 && byte(1) < 0xa0) return 0;  // too long for its value
  if (first == 0xed && byte(1) > 0x9f) return 0;  // a surrogate
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) > 0x8f) return 0;
  return n;
}

}  // namespace

bool IsUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t n = Utf8Length(bytes);
    if (n == 0) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

bool IsJson(const Request& request) {
  const auto type = request.headers.find("content-type");
  if (type == request.headers.end()) return false;
  std::string_view text = std::string_view(type->second).substr(0, type->second.find(';'));
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  constexpr std::string_view kJson = "application/json";
  return std::equal(text.begin(), text.end(), kJson.begin(), kJson.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

std::string JsonQuote(std::string_view bytes) {
  std::string out = "\"";
  while (!bytes.empty()) {
    const size_t n = Utf8Length(bytes);
    const char c = bytes[0];
    if (n == 0) {
      out += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (n == 1 && static_cast<unsigned char>(c) < 0x20) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += "\\u00";
      out += kDigits[static_cast<unsigned char>(c) >> 4];
      out += kDigits[static_cast<unsigned char>(c) & 15];
    } else {
      out += bytes.substr(0, n);
    }
    bytes.remove_prefix(n == 0 ? 1 : n);
  }
  return out + '"';
}

std::string_view StatusText(int status) {
  switch (status) {
    case 200: return "OK";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Error";
  }
}

Response Problem(int status, std::string_view detail) {
  Response response;
  response.status = status;
  response.content_type = "application/problem+json";
  response.body = "{\"type\":\"about:blank\",\"title\":" + JsonQuote(StatusText(status)) +
                  ",\"status\":" + std::to_string(status) + ",\"detail\":" + JsonQuote(detail) + "}";
  return response;
}

}  // namespace vrun::http
