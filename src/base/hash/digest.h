// SPDX-License-Identifier: Apache-2.0
// 32-byte digests, and SHA-256: the identity of trees, records and messages. File content uses BLAKE3 (blake3.h).
//
// Computed by OpenSSL's libcrypto (SHA-NI where available, about 1.5 GB/s per core).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace vrun {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  bool operator==(const Digest&) const = default;
  auto operator<=>(const Digest&) const = default;
  bool is_zero() const { return *this == Digest{}; }

  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  std::string Hex() const;
  // nullopt unless exactly 32 raw bytes / 64 hex digits.
  static std::optional<Digest> FromBytes(std::string_view raw);
  static std::optional<Digest> FromHex(std::string_view hex);
};

struct DigestHash {
  size_t operator()(const Digest& d) const {
    size_t h;
    std::memcpy(&h, d.bytes.data(), sizeof h);
    return h;
  }
};

Digest Sha256(std::string_view data);

// Incremental hashing. One thread at a time.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;
  void Update(std::string_view data);
  // Ends the stream; only destruction is allowed afterwards.
  Digest Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vrun
