// SPDX-License-Identifier: Apache-2.0
#include "control/notify/mail.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "control/notify/sign.h"

namespace vrun::control::notify {
namespace {

constexpr size_t kMostSubject = 300;  // bytes
constexpr size_t kEncoded = 45;       // of UTF-8 in one encoded word: with all around them they are 72 characters
constexpr size_t kLine = 76;

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// At most `most` bytes, and no part of a character.
size_t CutAt(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  size_t n = most;
  while (n > 0 && IsContinuation(text[n])) --n;
  return n == 0 ? most : n;
}

// As of RFC 5322, whatever the locale is.
std::string DateText(int64_t at_us) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t seconds = static_cast<time_t>(at_us / 1'000'000);
  tm at = {};
  (void)::gmtime_r(&seconds, &at);
  char text[80];
  std::snprintf(text, sizeof text, "%s, %d %s %d %02d:%02d:%02d +0000", kDays[at.tm_wday % 7], at.tm_mday,
                kMonths[at.tm_mon % 12], at.tm_year + 1900, at.tm_hour, at.tm_min, at.tm_sec);
  return text;
}

}  // namespace

std::string EncodeHeader(const std::string& given) {
  std::string text = given.substr(0, CutAt(given, kMostSubject));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  if (IsAscii(text) && text.find("=?") == std::string::npos) return text;
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t n = CutAt(rest, kEncoded);
    out += (out.empty() ? "=?UTF-8?B?" : "\r\n =?UTF-8?B?") + ToBase64(rest.substr(0, n)) + "?=";
    rest.remove_prefix(n);
  }
  return out;
}

std::string Compose(const Mail& mail) {
  const std::string domain = mail.from.substr(mail.from.find('@') + 1);
  std::string out;
  const auto header = [&](const char* name, const std::string& value) {
    out += std::string(name) + ": " + value + "\r\n";
  };
  header("Date", DateText(mail.date_us));
  header("From", "vrun <" + mail.from + ">");
  header("To", mail.to);
  header("Subject", EncodeHeader(mail.subject));
  header("Message-ID", "<" + mail.id + "@" + domain + ">");
  header("Auto-Submitted", "auto-generated");
  header("MIME-Version", "1.0");
  header("Content-Type", "text/plain; charset=utf-8");
  size_t longest = 0;
  for (size_t at = 0; at < mail.text.size();) {
    const size_t end = std::min(mail.text.find('\n', at), mail.text.size());
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  const bool plain = IsAscii(mail.text) && longest < 900 && mail.text.find('\r') == std::string::npos;
  header("Content-Transfer-Encoding", plain ? "7bit" : "base64");
  out += "\r\n";
  std::string body;
  for (const char c : mail.text) body += c == '\n' ? std::string("\r\n") : std::string(1, c);
  if (plain) return out + body;
  const std::string encoded = ToBase64(body);
  for (size_t at = 0; at < encoded.size(); at += kLine) out += encoded.substr(at, kLine) + "\r\n";
  return out;
}

}  // namespace vrun::control::notify
