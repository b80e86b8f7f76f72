// SPDX-License-Identifier: Apache-2.0
// Sends directory objects to a node: in parts, several in one pack, or as a delta against an object that the node has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "home/pack/compressor.h"
#include "home/pack/digest_cache.h"
#include "proto/content.pb.h"
#include "tree/diff.h"
#include "tree/tree.h"

namespace vrun::home {

// The directories of one answer. Any thread, one at a time.
class Directories {
 public:
  struct Form {
    bool packed = false;  // small ones may be packed together
    bool deltas = false;  // a directory of which the node has an older version may be sent as a delta
  };
  // `last`: this is the final message.
  using Send = std::function<void(v1::ContentReply* reply, bool last)>;
  Directories(const DigestCache* digests, Compressor* compressor, std::vector<tree::NewDirectory> directories,
              Form form, Send send);

  // Sends some directories. True: all are sent.
  bool Step();
  bool empty() const { return directories_.empty(); }
  // Call only before the first Step, which forgets what it has sent.
  const std::vector<tree::NewDirectory>& all() const { return directories_; }

 private:
  // Sends one part of the next directory.
  uint64_t SendPart();
  // Sends the next directories that fit into one pack, at least one.
  uint64_t SendPack();
  // False: a delta would save nothing.
  bool SendDelta();
  // Whether it is worth computing a delta.
  bool HasDelta(const tree::NewDirectory& item) const;
  void Sent();
  // Object ids of these entries (or all) as far as home knows them.
  std::string KnownIds(const tree::Directory& directory, std::span<const size_t> entries) const;
  std::string KnownIds(const tree::Directory& directory) const;

  const DigestCache* const digests_;
  Compressor* const compressor_;
  std::vector<tree::NewDirectory> directories_;
  const Form form_;
  const Send send_;
  size_t next_ = 0;
  uint64_t done_ = 0;  // bytes sent of the directory next_
};

}  // namespace vrun::home
