// SPDX-License-Identifier: Apache-2.0
// Reads, hashes, compresses (where that pays) and signs units of files for one node.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "home/pack/compression_policy.h"
#include "home/pack/compressor.h"
#include "home/pack/content_ids.h"
#include "home/pack/hot_units.h"
#include "home/serve/peer_board.h"
#include "home/serve/served_files.h"
#include "proto/content.pb.h"
#include "tree/tree.h"

namespace vrun::home {

inline tree::FileVersion Version(const v1::FileVersion& v) { return {v.dev(), v.ino(), v.ctime_ns(), v.size()}; }

inline v1::FileVersion ToWire(const tree::FileVersion& v) {
  v1::FileVersion out;
  out.set_dev(v.dev);
  out.set_ino(v.ino);
  out.set_ctime_ns(v.ctime_ns);
  out.set_size(v.size);
  return out;
}

// Any thread.
class UnitReader {
 public:
  static constexpr uint64_t kMaxPart = 1u << 20;  // of content in one reply

  // None is owned. `policy` is that of the node's stream.
  UnitReader(ServedFiles* files, ContentIds* ids, HotUnits* hot, Compressor* compressor, const Signer* signer,
             CompressionPolicy* policy)
      : files_(files), ids_(ids), hot_(hot), compressor_(compressor), signer_(signer), policy_(policy) {}

  // From now on, files that are not read whole are held open for this live view of the node. Nullopt: the node has no
  // live view any more.
  void LendTo(std::optional<uint64_t> view);
  ServedFiles& files() { return *files_; }

  // Returns the next part of the range, from `offset` to at most `end`; *length is set to its size in bytes.
  Result<v1::ContentReply> Read(const v1::ContentRequest::GetRange& get, uint64_t offset, uint64_t end,
                                uint64_t* length);

 private:
  // Hashes the units and compresses those for which it pays (not those of which only the digests are sent). Returns the
  // digests.
  std::vector<Digest> Pack(const tree::FileVersion& version, v1::Units* units, bool digests_only);
  // Adds the signature, or reduces the answer to digests, as requested.
  void Attest(const v1::ContentRequest::GetRange& get, const tree::FileVersion& version, v1::Units* units) const;
  std::optional<uint64_t> LentTo();

  ServedFiles* const files_;
  ContentIds* const ids_;
  HotUnits* const hot_;
  Compressor* const compressor_;
  const Signer* const signer_;
  CompressionPolicy* const policy_;
  Mutex mutex_;
  std::optional<uint64_t> view_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<tree::FileVersion, Shrinks, tree::FileVersionHash> shrinks_
      VRUN_GUARDED_BY(mutex_);  // of files served lately
};

}  // namespace vrun::home
