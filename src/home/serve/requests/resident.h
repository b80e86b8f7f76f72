// SPDX-License-Identifier: Apache-2.0
// Answers requests for what is likely to be read together with a file (home/ahead/guess.h).
#pragma once

#include <unordered_set>

#include "base/thread/mutex.h"
#include "home/pack/digest_cache.h"
#include "home/serve/served_files.h"
#include "proto/content.pb.h"

namespace vrun::home {

// One per node. Any thread.
class Resident {
 public:
  Resident(ServedFiles* files, const DigestCache* digests) : files_(files), digests_(digests) {}
  Result<v1::ContentReply> Get(const v1::ContentRequest::GetResident& get);

 private:
  bool Offer(const tree::FileVersion& version);
  bool Offered(const tree::FileVersion& version);

  ServedFiles* const files_;
  const DigestCache* const digests_;
  Mutex mutex_;
  // Files already offered to this node, so that they are not examined again for each file that loads them. Guarded by
  // mutex_.
  std::unordered_set<tree::FileVersion, tree::FileVersionHash> offered_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::home
