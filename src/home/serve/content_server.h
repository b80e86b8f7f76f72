// SPDX-License-Identifier: Apache-2.0
// Answers the nodes' requests for content: directory objects of the trees in the table, and ranges of their files.
// Signs content that a node will pass on to its peers, and tells each node who its peers are.
//
// Only what a tree of the table names can be requested. A range is served only if the tree has a regular file of that
// version at that path, the deny-list allows it at the moment of the request, and the file is still that version before
// and after the read. Directory objects overtake ranges; ranges overtake whole trees.
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
#include "home/root/tree_board.h"
#include "home/root/tree_table.h"
#include "home/serve/hidden_board.h"
#include "home/serve/lent_files.h"
#include "home/serve/peer_board.h"
#include "home/serve/served_files.h"

namespace vrun::home {

class ContentSession;
class LiveWrites;

// Shared by all nodes. Any thread. All sessions must be gone before it is destroyed.
class ContentServer {
 public:
  // None is owned; all must outlive the server. `threads` read, hash and compress. `trace_directory`: see Traces.
  // `home_id` becomes part of what is signed. `peer_file`: see PeerBoard.
  ContentServer(const TreeTable* trees, const ContentFiles* files, DigestCache* digests, unsigned threads = 3,
                const std::string& trace_directory = "", const std::string& home_id = "",
                const std::string& peer_file = "");
  ~ContentServer();

  Traces& traces() { return traces_; }
  PeerBoard& peers() { return peers_; }
  HiddenBoard& hidden() { return hidden_; }
  TreeBoard& tree_board() { return tree_board_; }
  LentFiles& lent() { return lent_; }
  // Takes what live views write. Call before the first session; `writes` must outlive all sessions. Null: nodes are
  // told that writes are not accepted.
  void SetLiveWrites(LiveWrites* writes) { live_writes_ = writes; }
  // `stale` is called, on any thread, for files that differ from what a tree says. Set before the first session.
  void SetStale(std::function<void(const std::string& path)> stale) { served_.SetStale(std::move(stale)); }
  uint64_t served_bytes() const { return served_bytes_.load(std::memory_order_relaxed); }
  // Number of requests for roots, directories and whole trees: round trips that a node with a warm store does not make.
  uint64_t metadata_requests() const { return metadata_requests_.load(std::memory_order_relaxed); }

 private:
  friend class ContentSession;
  const TreeTable* const trees_;
  DigestCache* const digests_;
  Compressor compressor_;
  HotUnits hot_units_;
  std::atomic<uint64_t> served_bytes_{0};
  std::atomic<uint64_t> metadata_requests_{0};
  ContentIds ids_;
  Traces traces_;
  PeerBoard peers_;
  HiddenBoard hidden_;
  const Signer signer_;
  TreeBoard tree_board_;
  LentFiles lent_;
  ServedFiles served_;
  LiveWrites* live_writes_ = nullptr;
  WorkQueue workers_;
};

}  // namespace vrun::home
