// SPDX-License-Identifier: Apache-2.0
#include "control/notify/sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

namespace vrun::control::notify {
namespace {

constexpr size_t kLeastKey = 16;

const unsigned char* Bytes(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

bool IsDigit64(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
}

}  // namespace

std::string ToBase64(std::string_view bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int n =
      ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), Bytes(bytes), static_cast<int>(bytes.size()));
  out.resize(static_cast<size_t>(std::max(n, 0)));
  return out;
}

Result<std::string> ParseSecret(std::string_view text) {
  const Error bad(Code::kInvalid,
                  "not a secret: write whsec_ and the base64 of 16 bytes or more, as "
                  "`echo whsec_$(head -c 32 /dev/urandom | base64)` makes it");
  constexpr std::string_view kSpace = " \t\r\n", kPrefix = "whsec_";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return bad;
  text = text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  const size_t padding = text.size() - std::min(text.find_last_not_of('=') + 1, text.size());
  const std::string_view digits = text.substr(0, text.size() - padding);
  if (text.empty() || text.size() % 4 != 0 || padding > 2 || !std::all_of(digits.begin(), digits.end(), IsDigit64)) {
    return bad;
  }
  std::string key(text.size() / 4 * 3, '\0');
  const int n =
      ::EVP_DecodeBlock(reinterpret_cast<unsigned char*>(key.data()), Bytes(text), static_cast<int>(text.size()));
  if (n < 0 || static_cast<size_t>(n) != key.size()) return bad;
  key.resize(key.size() - padding);  // the padding was decoded to zeros
  if (key.size() < kLeastKey) return bad;
  return key;
}

std::string Sign(const std::string& key, const std::string& id, int64_t at_s, std::string_view body) {
  const std::string text = id + "." + std::to_string(at_s) + "." + std::string(body);
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  (void)::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), Bytes(text), text.size(), mac, &length);
  return "v1," + ToBase64({reinterpret_cast<const char*>(mac), length});
}

}  // namespace vrun::control::notify
