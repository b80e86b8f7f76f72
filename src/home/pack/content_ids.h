// SPDX-License-Identifier: Apache-2.0
// The object ids of files: the known ones, and those that become known as files are read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "home/pack/background_hasher.h"
#include "home/pack/digest_cache.h"
#include "home/pack/unit_digests.h"
#include "store/format/object_id.h"

namespace vrun::home {

// Any thread.
class ContentIds {
 public:
  ContentIds(const ContentFiles* files, DigestCache* digests)
      : digests_(digests), hasher_(files, [digests](const tree::FileVersion& version, const store::ObjectId& id) {
          digests->Remember(version, id, WallMicros() * 1000);
          digests->Flush();  // the hasher runs when nothing else does
        }) {}

  std::optional<store::ObjectId> Find(const tree::FileVersion& version) const { return digests_->Find(version); }

  // Reports digests of units from `first` on. Returns the file's id once all units have been read; a large file is
  // hashed in the background.
  std::optional<store::ObjectId> Learn(const std::string& path, const tree::FileVersion& version, uint64_t first,
                                       const std::vector<Digest>& digests) {
    if (auto known = Find(version)) return known;
    auto known = units_.Add(version, first, digests);
    if (known) {
      digests_->Remember(version, *known, WallMicros() * 1000);
    } else if (version.size > store::kWholeFileLimit) {
      hasher_.Add(path, version);
    }
    return known;
  }

  // Pauses hashing: something more urgent is running.
  void Busy() { hasher_.Busy(); }

 private:
  DigestCache* const digests_;
  UnitDigests units_;
  BackgroundHasher hasher_;
};

}  // namespace vrun::home
