// SPDX-License-Identifier: Apache-2.0
// Content of snapshots that are still being made: what a job reads before it has come is asked of home at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "home/pack/digest_cache.h"
#include "node/source/content_source.h"
#include "store/store.h"
#include "tree/tree.h"

namespace vrun::snapshots {

// Any thread.
class LateFiles {
 public:
  // Owns none of them. `home_id`: the home that `source` asks.
  LateFiles(node::ContentSource* source, store::Store* store, home::DigestCache* ids, std::string home_id)
      : source_(source), store_(store), ids_(ids), home_id_(std::move(home_id)) {}

  // Home has this tree, and its content is on the way.
  void Await(const tree::TreePtr& tree);
  void Over(const tree::TreePtr& tree);

  // Brings a part of a file here. Blocks until home has answered, or has been away for a minute. kNotFound: no tree
  // that is awaited has it.
  Result<std::shared_ptr<store::Object>> Fetch(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                                               uint64_t length);
  // Something was stored since the last call.
  bool TakeStored();

 private:
  tree::TreePtr TreeWith(std::string_view path, const tree::FileVersion& version) const;

  node::ContentSource* const source_;
  store::Store* const store_;
  home::DigestCache* const ids_;
  const std::string home_id_;
  mutable Mutex mu_;
  std::map<Digest, tree::TreePtr> awaited_ VRUN_GUARDED_BY(mu_);
  bool stored_ VRUN_GUARDED_BY(mu_) = false;
};

}  // namespace vrun::snapshots
