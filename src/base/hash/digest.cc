// SPDX-License-Identifier: Apache-2.0
#include "base/hash/digest.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include "base/result.h"

namespace vrun {

std::string Digest::Hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(64);
  for (uint8_t b : bytes) {
    out.push_back(kDigits[b >> 4]);
    out.push_back(kDigits[b & 15]);
  }
  return out;
}

std::optional<Digest> Digest::FromBytes(std::string_view raw) {
  Digest d;
  if (raw.size() != d.bytes.size()) return std::nullopt;
  std::memcpy(d.bytes.data(), raw.data(), raw.size());
  return d;
}

std::optional<Digest> Digest::FromHex(std::string_view hex) {
  Digest d;
  if (hex.size() != 64) return std::nullopt;
  auto nibble = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  for (size_t i = 0; i < 32; ++i) {
    int hi = nibble(hex[2 * i]), lo = nibble(hex[2 * i + 1]);
    if (hi < 0 || lo < 0) return std::nullopt;
    d.bytes[i] = static_cast<uint8_t>(hi << 4 | lo);
  }
  return d;
}

Digest Sha256(std::string_view data) {
  Digest d;
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(), d.bytes.data());
  return d;
}

struct Sha256Stream::Impl {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(ctx); }
};

Sha256Stream::Sha256Stream() : impl_(std::make_unique<Impl>()) {
  VRUN_CHECK(EVP_DigestInit_ex(impl_->ctx, EVP_sha256(), nullptr) == 1);
}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

void Sha256Stream::Update(std::string_view data) {
  VRUN_CHECK(EVP_DigestUpdate(impl_->ctx, data.data(), data.size()) == 1);
}

Digest Sha256Stream::Finish() {
  Digest d;
  unsigned len = 0;
  VRUN_CHECK(EVP_DigestFinal_ex(impl_->ctx, d.bytes.data(), &len) == 1 && len == 32);
  return d;
}

}  // namespace vrun
