// SPDX-License-Identifier: Apache-2.0
// Requests for what is likely to be read together with a file (home/ahead/guess.h).
#pragma once

#include <mutex>
#include <unordered_set>

#include "home/pack/digest_cache.h"
#include "home/serve/served_files.h"
#include "proto/content.pb.h"

namespace vrun::home {

// Of one node. Any thread.
class Resident {
 public:
  Resident(ServedFiles* files, const DigestCache* digests) : files_(files), digests_(digests) {}
  Result<v1::ContentReply> Get(const v1::ContentRequest::GetResident& get);

 private:
  bool Offer(const tree::FileVersion& version);
  bool Offered(const tree::FileVersion& version);

  ServedFiles* const files_;
  const DigestCache* const digests_;
  std::mutex mutex_;
  // What this node was told to fetch ahead, so that it is not looked at again for each file that loads it. Guarded by
  // mutex_.
  std::unordered_set<tree::FileVersion, tree::FileVersionHash> offered_;
};

}  // namespace vrun::home
