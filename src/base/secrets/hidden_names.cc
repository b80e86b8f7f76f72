// SPDX-License-Identifier: Apache-2.0
#include "base/secrets/hidden_names.h"

#include <algorithm>
#include <utility>

#include "base/hash/secret.h"

namespace vrun {
namespace {

constexpr size_t kDigestBytes = 16;
constexpr size_t kMostSalt = 64;

// FNV-1a: it need not resist anybody, there are 65,536 tags.
uint64_t Continue(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

uint64_t SeedOf(std::string_view salt) { return Continue(0xcbf29ce484222325u, salt); }

uint32_t TagOf(uint64_t seed, std::string_view name) {
  const uint64_t hash = Continue(seed, name);
  return static_cast<uint32_t>((hash ^ (hash >> 16) ^ (hash >> 32) ^ (hash >> 48)) & 0xffff);
}

std::string DigestOf(std::string_view salt, std::string_view path) {
  return std::string(HmacSha256(salt, path).view().substr(0, kDigestBytes));
}

}  // namespace

void HiddenNames::Sort() {
  seed_ = SeedOf(salt_);
  const auto unique = [](auto* list) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  };
  unique(&tags_);
  unique(&digests_);
}

HiddenNames HiddenNames::Of(std::string salt, const std::vector<std::string>& paths) {
  HiddenNames names;
  names.salt_ = std::move(salt);
  const uint64_t seed = SeedOf(names.salt_);
  for (size_t i = 0; i < std::min(paths.size(), kMost); ++i) {
    names.tags_.push_back(TagOf(seed, std::string_view(paths[i]).substr(paths[i].rfind('/') + 1)));
    names.digests_.push_back(DigestOf(names.salt_, paths[i]));
  }
  names.Sort();
  return names;
}

Result<HiddenNames> HiddenNames::From(std::string salt, std::vector<uint32_t> tags, std::vector<std::string> digests) {
  const bool whole =
      std::all_of(digests.begin(), digests.end(), [](const auto& d) { return d.size() == kDigestBytes; });
  if (salt.size() > kMostSalt || tags.size() > kMost || digests.size() > kMost || !whole) {
    return Error(Code::kCorrupt, "malformed list of hidden names");
  }
  HiddenNames names;
  names.salt_ = std::move(salt);
  names.tags_ = std::move(tags);
  names.digests_ = std::move(digests);
  names.Sort();
  return names;
}

bool HiddenNames::MayHave(std::string_view name) const {
  return !tags_.empty() && std::binary_search(tags_.begin(), tags_.end(), TagOf(seed_, name));
}

std::optional<size_t> HiddenNames::Find(std::string_view path) const {
  if (digests_.empty()) return std::nullopt;
  const std::string digest = DigestOf(salt_, path);
  const auto it = std::lower_bound(digests_.begin(), digests_.end(), digest);
  if (it == digests_.end() || *it != digest) return std::nullopt;
  return static_cast<size_t>(it - digests_.begin());
}

}  // namespace vrun
