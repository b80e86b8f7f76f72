// SPDX-License-Identifier: Apache-2.0
// Random secrets, proofs of knowing a secret, and signatures. OpenSSL's libcrypto; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/hash/digest.h"
#include "base/result.h"

namespace vrun {

// From the kernel's generator.
Result<std::string> RandomSecret(size_t bytes);
Digest HmacSha256(std::string_view key, std::string_view message);
// Constant-time comparison, for secrets.
bool SameSecret(std::string_view a, std::string_view b);

// An Ed25519 key (RFC 8032): 64-byte signatures, about 50 us each.
class SigningKey {
 public:
  static constexpr size_t kSeedBytes = 32;
  static Result<SigningKey> Generate();
  // The key for this secret seed; kInvalid for a wrong length.
  static Result<SigningKey> FromSeed(std::string_view seed);
  SigningKey(SigningKey&&) noexcept;
  SigningKey& operator=(SigningKey&&) noexcept;
  ~SigningKey();
  std::string Sign(std::string_view message) const;
  const std::string& public_key() const { return public_key_; }  // 32 bytes

 private:
  struct Impl;
  explicit SigningKey(std::unique_ptr<Impl> impl, std::string public_key);
  std::unique_ptr<Impl> impl_;
  std::string public_key_;
};

// False also for malformed arguments. About 150 us.
bool VerifySignature(std::string_view public_key, std::string_view message, std::string_view signature);

}  // namespace vrun
