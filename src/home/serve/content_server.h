// SPDX-License-Identifier: Apache-2.0
// Answers the nodes' questions for content: directory objects of the trees in the table and ranges of their files.
// Signs what one node is to pass on to others, and tells each who the others are.
//
// What may be asked for: what a tree of the table names, and nothing else. A range is answered only when the tree has
// that path as a regular file of that version, the deny-list (looked at again here) allows it, and the file still is
// that version before and after it is read. Directory objects overtake ranges, ranges overtake whole trees.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/io/work_queue.h"
#include "home/ahead/traces.h"
#include "home/pack/compressor.h"
#include "home/pack/content_ids.h"
#include "home/pack/digest_cache.h"
#include "home/pack/hot_units.h"
#include "home/root/content_files.h"
#include "home/root/snapshot_table.h"
#include "home/root/tree_board.h"
#include "home/serve/lent_files.h"
#include "home/serve/peer_board.h"
#include "home/serve/served_files.h"

namespace vrun::home {

class ContentSession;
class LiveWrites;

// Shared by all nodes. Any thread. All sessions must be gone before it is destroyed.
class ContentServer {
 public:
  // None is owned; all must outlive the server. `threads` read, hash and compress. `trace_directory`: as for Traces.
  // `home_id` goes into what is signed; `peer_file`: as for PeerBoard.
  ContentServer(const SnapshotTable* trees, const ContentFiles* files, DigestCache* digests, unsigned threads = 3,
                const std::string& trace_directory = "", const std::string& home_id = "",
                const std::string& peer_file = "");
  ~ContentServer();

  Traces& traces() { return traces_; }
  PeerBoard& peers() { return peers_; }
  TreeBoard& tree_board() { return tree_board_; }
  LentFiles& lent() { return lent_; }
  // Who takes what live views write, before the first session; it must outlive all. Null: nobody, which their nodes are
  // told.
  void SetLiveWrites(LiveWrites* writes) { live_writes_ = writes; }
  // `stale` is told of files that are not what a tree says, on any thread. Before the first session.
  void SetStale(std::function<void(const std::string& path)> stale) { served_.SetStale(std::move(stale)); }
  uint64_t served_bytes() const { return served_bytes_.load(std::memory_order_relaxed); }
  // Requests for roots, directories and whole trees: round trips that a warm node does not make.
  uint64_t metadata_requests() const { return metadata_requests_.load(std::memory_order_relaxed); }

 private:
  friend class ContentSession;
  const SnapshotTable* const trees_;
  DigestCache* const digests_;
  Compressor compressor_;
  HotUnits hot_units_;
  std::atomic<uint64_t> served_bytes_{0};
  std::atomic<uint64_t> metadata_requests_{0};
  ContentIds ids_;
  Traces traces_;
  PeerBoard peers_;
  const Signer signer_;
  TreeBoard tree_board_;
  LentFiles lent_;
  ServedFiles served_;
  LiveWrites* live_writes_ = nullptr;
  WorkQueue workers_;
};

}  // namespace vrun::home
