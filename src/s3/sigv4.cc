// SPDX-License-Identifier: Apache-2.0
#include "s3/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <ctime>

#include "base/hash/digest.h"
#include "base/result.h"

namespace vrun::s3 {

std::string HmacSha256(std::string_view key, std::string_view data) {
  std::string out(32, '\0');
  unsigned length = 0;
  const unsigned char* done = ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                     reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                                     reinterpret_cast<unsigned char*>(out.data()), &length);
  VRUN_CHECK(done != nullptr && length == out.size());
  return out;
}

std::string Hex(std::string_view raw) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(raw.size() * 2);
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

std::string UriEncode(std::string_view text, bool keep_slashes) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes);
    if (plain) {
      out.push_back(c);
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

std::string SigningKey(std::string_view secret, std::string_view date, std::string_view region,
                       std::string_view service) {
  const std::string of_date = HmacSha256("AWS4" + std::string(secret), date);
  return HmacSha256(HmacSha256(HmacSha256(of_date, region), service), "aws4_request");
}

Presigner::Presigner(Keys keys, std::string host, std::string region, int64_t wall_micros, uint32_t expires_s)
    : host_(std::move(host)) {
  const std::time_t seconds = wall_micros / 1'000'000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  time_ = text;
  const std::string date = time_.substr(0, 8);
  scope_ = date + "/" + region + "/s3/aws4_request";
  // Sorted by name, as the canonical request requires.
  query_ = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + UriEncode(keys.access_key + "/" + scope_, false) +
           "&X-Amz-Date=" + time_ + "&X-Amz-Expires=" + std::to_string(expires_s);
  if (!keys.session_token.empty()) query_ += "&X-Amz-Security-Token=" + UriEncode(keys.session_token, false);
  query_ += "&X-Amz-SignedHeaders=host";
  key_ = SigningKey(keys.secret_key, date, region, "s3");
}

std::string Presigner::Sign(std::string_view method, std::string_view path) const {
  const std::string canonical = std::string(method) + "\n" + UriEncode(path, true) + "\n" + query_ + "\nhost:" + host_ +
                                "\n\nhost\nUNSIGNED-PAYLOAD";
  const std::string to_sign = "AWS4-HMAC-SHA256\n" + time_ + "\n" + scope_ + "\n" + Sha256(canonical).Hex();
  return Hex(HmacSha256(key_, to_sign));
}

}  // namespace vrun::s3
