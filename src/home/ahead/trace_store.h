// SPDX-License-Identifier: Apache-2.0
// Traces on home's disk, a file each, named by its key: bounded in number, the one used longest ago goes first.
//
// A file is a magic, the SHA-256 of what follows, and a v1::TraceRecord. What does not check is removed and was never
// there. A store that cannot be written forgets; nothing fails.
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

  // The bytes of a file, and back: for the tests too.
  static std::string Encode(const Trace& trace);
  static std::optional<Trace> Decode(std::string_view bytes);

 private:
  std::string PathOf(const Digest& key) const { return directory_ + "/" + key.Hex() + ".trace"; }
  void Trim() const;

  const std::string directory_;
  const size_t limit_;
};

}  // namespace vrun::home
