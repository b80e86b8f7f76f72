// SPDX-License-Identifier: Apache-2.0
// Bytes that only the holder of a key can read or change: AES-256-GCM by OpenSSL's libcrypto.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun {

// Any thread.
class SealKey {
 public:
  // How much longer sealed bytes are.
  static constexpr size_t kOverhead = 12 + 16;

  // Reads the key from a file of mode 0600. kDenied: others may read it. kNotFound, kCorrupt.
  static Result<SealKey> Read(const std::string& path);
  // Makes a new one there. kExists: there is one. On disk when this returns.
  static Result<SealKey> Create(const std::string& path);
  ~SealKey();  // wiped
  SealKey(SealKey&&) noexcept = default;
  SealKey& operator=(SealKey&&) noexcept = default;

  // `about`: what the bytes belong to. Open asks for the same.
  std::string Seal(std::string_view bytes, std::string_view about) const;
  // kCorrupt: sealed with another key or about something else, or changed.
  Result<std::string> Open(std::string_view sealed, std::string_view about) const;

 private:
  explicit SealKey(std::string_view key);  // of 32 bytes
  std::array<unsigned char, 32> key_{};
};

}  // namespace vrun
