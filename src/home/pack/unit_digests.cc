// SPDX-License-Identifier: Apache-2.0
#include "home/pack/unit_digests.h"

namespace vrun::home {

std::optional<store::ObjectId> UnitDigests::Add(const tree::FileVersion& version, uint64_t first,
                                                const std::vector<Digest>& digests) {
  uint64_t count = store::UnitCount(version.size);
  if (count > max_units_ || first + digests.size() > count) return std::nullopt;
  if (digests.size() == count) return store::ContentId(version.size, digests);
  MutexLock lock(mutex_);
  auto it = files_.find(version);
  if (it == files_.end()) {
    while (units_ + count > max_units_ && !used_.empty()) {
      auto oldest = files_.find(used_.back());
      units_ -= oldest->second.digests.size();
      files_.erase(oldest);
      used_.pop_back();
    }
    used_.push_front(version);
    it = files_.emplace(version, File{std::vector<Digest>(count), count, used_.begin()}).first;
    units_ += count;
  } else {
    used_.splice(used_.begin(), used_, it->second.used);
  }
  File& file = it->second;
  for (size_t i = 0; i < digests.size(); ++i) {
    Digest& d = file.digests[first + i];
    if (d.is_zero() && !digests[i].is_zero()) --file.missing;
    d = digests[i];
  }
  if (file.missing > 0) return std::nullopt;
  const store::ObjectId id = store::ContentId(version.size, file.digests);
  units_ -= file.digests.size();
  used_.erase(file.used);
  files_.erase(it);
  return id;
}

}  // namespace vrun::home
