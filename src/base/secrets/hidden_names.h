// SPDX-License-Identifier: Apache-2.0
// Paths that another machine shall recognize when it meets them, and not learn from us: digests with a salt.
//
// They hide what cannot be guessed: "~/.ssh/id_of_a_customer", not "~/.netrc". A tag of 16 bits for each last name
// makes the common question, about a name that is not among them, cheap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun {

// Immutable.
class HiddenNames {
 public:
  static constexpr size_t kMost = 256;

  HiddenNames() = default;
  // `paths`: absolute and clean; those beyond kMost are left out.
  static HiddenNames Of(std::string salt, const std::vector<std::string>& paths);
  // From another machine's words. kCorrupt.
  static Result<HiddenNames> From(std::string salt, std::vector<uint32_t> tags, std::vector<std::string> digests);

  // False: no path among them ends with this name. Less than 100 ns.
  bool MayHave(std::string_view name) const;
  // Its place among them. Some microseconds.
  std::optional<size_t> Find(std::string_view path) const;

  size_t size() const { return digests_.size(); }
  const std::string& salt() const { return salt_; }
  const std::vector<uint32_t>& tags() const { return tags_; }           // ascending
  const std::vector<std::string>& digests() const { return digests_; }  // ascending

 private:
  void Sort();
  std::string salt_;
  uint64_t seed_ = 0;
  std::vector<uint32_t> tags_;
  std::vector<std::string> digests_;
};

}  // namespace vrun
