// SPDX-License-Identifier: Apache-2.0
// Fetches frames of traces for PeerSource. Asks the node that owns a frame by rendezvous hashing among those that have
// the table. The owner fetches it from home once for all.
//
//   frame ─▶ its owners in turn (those without the table say so, once per table) ─▶ a frame, or "ask for its units"
//        └▶ own: earlier owners, the next owner ─▶ holders of the units ─▶ home (shared with nodes that ask us)
//
// A node that has a frame's units in its store, but not the frame as signed by home, serves the units: home signs their
// digests, and its uplink does not carry the content again. A node that ran the same program without a trace does so
// too. To find holders, one unit of each frame is requested, unless nobody had those of the first frames.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread/mutex.h"
#include "node/peers/peer_links.h"
#include "node/source/frame_exchange.h"
#include "vfs/content/source.h"

namespace vrun::node {

class PeerSource;

// Any thread. Owned by the source; callbacks that outlive it find the source's gate closed.
class PeerFrames {
 public:
  using TablePtr = FrameExchange::TablePtr;

  explicit PeerFrames(PeerSource* source);

  void FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                  std::function<void(Result<vfs::TraceTable>)> done);
  void FetchFrames(const vfs::RunId& run, const TablePtr& table, const std::vector<uint32_t>& frames,
                   std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done);
  FrameExchange& exchange() { return exchange_; }

 private:
  using Got = std::function<void(const Result<vfs::TraceFrame>&)>;
  // Temporary knowledge about other nodes and one table.
  struct Notes {
    int64_t until = 0;
    std::set<uint64_t> lack;  // seeds of members without the table
    std::string holder;       // the last node that gave units of it
    int misses = 0;           // consecutive frames of which nobody has the units
  };

  void Fetch(const vfs::RunId& run, const TablePtr& table, uint32_t index, const Got& got);
  // The fetch function of the exchange.
  void Elsewhere(const vfs::RunId& run, const TablePtr& table, uint32_t index, const FrameExchange::Done& done);
  void FromUnits(const vfs::RunId& run, const TablePtr& table, uint32_t index, const FrameExchange::Done& done);
  void FromHome(const vfs::RunId& run, const TablePtr& table, uint32_t index, const FrameExchange::Done& done);
  // Fetches the frame's units from `holder`; what it does not give comes from any source.
  void Gather(const TablePtr& table, uint32_t index, const PeerLinks::MemberPtr& holder, const Got& got);
  // kCorrupt: not signed by home.
  Result<vfs::TraceFrame> Check(const v1::TraceFrame& told, const vfs::TraceTable& table, uint32_t index) const;

  Notes& NotesLocked(const Digest& table) VRUN_REQUIRES(mutex_);
  bool Lacks(const Digest& table, const PeerLinks::Member& member);
  void NoteLacks(const Digest& table, const PeerLinks::Member& member);
  // Nodes that may have the units of a frame; may be empty.
  std::vector<PeerLinks::MemberPtr> Holders(const Digest& table, uint64_t group_key);
  void NoteHolder(const Digest& table, const PeerLinks::Member* holder);

  PeerSource* const source_;
  FrameExchange exchange_;
  Mutex mutex_;
  std::unordered_map<Digest, Notes, DigestHash> notes_ VRUN_GUARDED_BY(mutex_);  // by table
};

}  // namespace vrun::node
