// SPDX-License-Identifier: Apache-2.0
// Directory objects on their way to a node: in parts, several in a pack, or as what they differ in from what the node
// has.
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
    bool packed = false;  // small ones may come together
    bool deltas = false;  // one that the node has an older version of may come as the difference
  };
  // `last`: there are no more.
  using Send = std::function<void(v1::ContentReply* reply, bool last)>;
  Directories(const DigestCache* digests, Compressor* compressor, std::vector<tree::NewDirectory> directories,
              Form form, Send send);

  // Sends some of them. True: that was all.
  bool Step();
  bool empty() const { return directories_.empty(); }
  // Only before the first Step: it forgets what is sent.
  const std::vector<tree::NewDirectory>& all() const { return directories_; }

 private:
  // One part of the next directory.
  uint64_t SendPart();
  // The next ones that go into one pack, at least one.
  uint64_t SendPack();
  // False: that would save nothing.
  bool SendDelta();
  // Whether it is worth looking at what it differs in.
  bool HasDelta(const tree::NewDirectory& item) const;
  void Sent();
  // Names of the contents of these entries (all of them), where home knows them.
  std::string KnownIds(const tree::Directory& directory, std::span<const size_t> entries) const;
  std::string KnownIds(const tree::Directory& directory) const;

  const DigestCache* const digests_;
  Compressor* const compressor_;
  std::vector<tree::NewDirectory> directories_;
  const Form form_;
  const Send send_;
  size_t next_ = 0;
  uint64_t done_ = 0;  // bytes of that one
};

}  // namespace vrun::home
