// SPDX-License-Identifier: Apache-2.0
// Tells a node with live views of every new state of the root.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/thread/mutex.h"
#include "home/pack/compressor.h"
#include "home/pack/digest_cache.h"
#include "home/root/tree_board.h"
#include "home/root/tree_table.h"
#include "home/serve/requests/request.h"
#include "home/serve/requests/unit_reader.h"

namespace vrun::home {

// One per node. Any thread. While the stream is congested nothing is queued; afterwards only the newest state is sent.
class TreeWatch {
 public:
  // `reader` is told for which view it lends files.
  TreeWatch(const TreeTable* trees, TreeBoard* board, const DigestCache* digests, Compressor* compressor,
            UnitReader* reader, NodeStream* stream)
      : trees_(trees), board_(board), digests_(digests), compressor_(compressor), reader_(reader), stream_(stream) {}

  // Replaces an earlier one.
  Status Begin(const v1::ContentRequest& request);
  // The node has cancelled this request.
  void Cancel(uint64_t id);
  void Heard(const v1::ContentRequest::Heard& heard);
  // The stream accepts more again.
  void Writable();
  void Leave();
  // When the node's live view was last known to show home's state; monotonic. 0: never, or the node has no live view.
  int64_t shown_micros() const { return shown_micros_.load(std::memory_order_relaxed); }

 private:
  class Telling;

  // The root has a new state.
  void Changed();
  void Ping();
  // The next message for the node; null: nothing.
  std::unique_ptr<Request> NextLocked() VRUN_REQUIRES(mutex_);
  void Over();

  const TreeTable* const trees_;
  TreeBoard* const board_;
  const DigestCache* const digests_;
  Compressor* const compressor_;
  UnitReader* const reader_;
  NodeStream* const stream_;
  std::atomic<int64_t> shown_micros_{0};
  Mutex mutex_;
  uint64_t board_id_ VRUN_GUARDED_BY(mutex_) = 0;  // id on the board; 0: not on it
  uint64_t id_ VRUN_GUARDED_BY(mutex_) = 0;        // of the WatchTree request; 0: the node is not watching
  v1::ContentRequest::WatchTree wanted_ VRUN_GUARDED_BY(mutex_);
  tree::TreePtr told_
      VRUN_GUARDED_BY(mutex_);  // the last tree sent: the node has all of it or can request it; null: none
  uint64_t told_included_ VRUN_GUARDED_BY(mutex_) = 0;  // TreeNow.included of the last one
  bool telling_ VRUN_GUARDED_BY(mutex_) = false;        // a Telling is in progress
  bool tell_again_ VRUN_GUARDED_BY(mutex_) = false;     // a newer state exists, or the stream was full
};

}  // namespace vrun::home
