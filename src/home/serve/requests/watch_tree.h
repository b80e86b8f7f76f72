// SPDX-License-Identifier: Apache-2.0
// A node with live views, which is told of every state of the root.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "home/pack/compressor.h"
#include "home/pack/digest_cache.h"
#include "home/root/snapshot_table.h"
#include "home/root/tree_board.h"
#include "home/serve/requests/request.h"
#include "home/serve/requests/unit_reader.h"

namespace vrun::home {

// Of one node. Any thread. A stream that is behind is told once it has caught up, and then of the newest state only.
class TreeWatch {
 public:
  // `reader` learns for which view it has to lend files.
  TreeWatch(const SnapshotTable* trees, TreeBoard* board, const DigestCache* digests, Compressor* compressor,
            UnitReader* reader, NodeStream* stream)
      : trees_(trees), board_(board), digests_(digests), compressor_(compressor), reader_(reader), stream_(stream) {}

  // Replaces an earlier one.
  Status Begin(const v1::ContentRequest& request);
  // The node does not want an answer to this request any more.
  void Cancel(uint64_t id);
  void Heard(const v1::ContentRequest::Heard& heard);
  // The stream takes more again.
  void Writable();
  void Leave();
  // When the node's live view was known last to show what home has; monotonic, 0: never, or there is none.
  int64_t shown_micros() const { return shown_micros_.load(std::memory_order_relaxed); }

 private:
  class Telling;

  // There is another state.
  void Changed();
  void Ping();
  // What the node is to be told next; null: nothing.
  std::unique_ptr<Request> NextLocked();
  void Over();

  const SnapshotTable* const trees_;
  TreeBoard* const board_;
  const DigestCache* const digests_;
  Compressor* const compressor_;
  UnitReader* const reader_;
  NodeStream* const stream_;
  std::atomic<int64_t> shown_micros_{0};
  std::mutex mutex_;
  uint64_t board_id_ = 0;  // on the board; 0: not on it; guarded by mutex_, as all below
  uint64_t id_ = 0;        // of the request that put it there; 0: the node does not want to hear
  v1::ContentRequest::WatchTree wanted_;
  tree::SnapshotPtr told_;      // the node has, or can ask for, all of this tree; null: of none
  uint64_t told_included_ = 0;  // TreeNow.included of the last one
  bool telling_ = false;        // there is a Telling
  bool tell_again_ = false;     // there is a newer state, or the stream was full
};

}  // namespace vrun::home
