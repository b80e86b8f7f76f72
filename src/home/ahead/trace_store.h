// SPDX-License-Identifier: Apache-2.0
// Traces on home's disk, one file each, named by the key. Bounded in number: the least recently used goes first.
//
// A file is a magic, the SHA-256 of the rest, and a v1::TraceRecord. A corrupt file is removed and treated as missing.
// If the store cannot be written, traces are lost; nothing fails.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash/digest.h"
#include "home/ahead/trace.h"

namespace vrun::home {

// One thread at a time.
class TraceStore {
 public:
  // `directory` is made when needed; "" keeps nothing.
  explicit TraceStore(std::string directory, size_t limit = 512) : directory_(std::move(directory)), limit_(limit) {}

  std::optional<Trace> Load(const Digest& key) const;
  void Save(const Digest& key, const Trace& trace);

  // Encoding and decoding of a file; also for tests.
  static std::string Encode(const Trace& trace);
  static std::optional<Trace> Decode(std::string_view bytes);

 private:
  std::string PathOf(const Digest& key) const { return directory_ + "/" + key.Hex() + ".trace"; }
  void Trim() const;

  const std::string directory_;
  const size_t limit_;
};

}  // namespace vrun::home
