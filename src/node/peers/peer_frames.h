// SPDX-License-Identifier: Apache-2.0
// Frames of traces for PeerSource: from the node that owns them by rendezvous hashing among those that have the table,
// which fetches them from home once for all.
//
//   frame ─▶ its owners in turn; those without the table say so, once a table ─▶ a frame, or "ask for its units"
//         └▶ own: who began before, the next owner ─▶ who has the units ─▶ home, shared with those who ask us for it
//
// A node that has the units of a frame in its store, but not the frame as home signed it, gives them as units: home
// signs their digests, and its uplink carries no content again. So does one that ran the same without a trace; whether
// anybody has them is found out with one unit of each frame, unless the first frames' were nowhere.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "node/peers/peer_links.h"
#include "node/source/frame_exchange.h"
#include "vfs/content/source.h"

namespace vrun::node {

class PeerSource;

// Any thread. Owned by the source; what outlives it finds the source's gate closed.
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
  // What this node knows of others and one table, for a while.
  struct Notes {
    int64_t until = 0;
    std::set<uint64_t> lack;  // seeds of members that do not have the table
    std::string holder;       // who gave units of it last
    int misses = 0;           // frames in a row of which nobody has the units
  };

  void Fetch(const vfs::RunId& run, const TablePtr& table, uint32_t index, const Got& got);
  // What the exchange fetches.
  void Elsewhere(const vfs::RunId& run, const TablePtr& table, uint32_t index, const FrameExchange::Done& done);
  void FromUnits(const vfs::RunId& run, const TablePtr& table, uint32_t index, const FrameExchange::Done& done);
  void FromHome(const vfs::RunId& run, const TablePtr& table, uint32_t index, const FrameExchange::Done& done);
  // Its units, from `holder` or, what that one does not give, from wherever they come.
  void Gather(const TablePtr& table, uint32_t index, const PeerLinks::MemberPtr& holder, const Got& got);
  // kCorrupt: home did not sign it.
  Result<vfs::TraceFrame> Check(const v1::TraceFrame& told, const vfs::TraceTable& table, uint32_t index) const;

  Notes& NotesLocked(const Digest& table);
  bool Lacks(const Digest& table, const PeerLinks::Member& member);
  void NoteLacks(const Digest& table, const PeerLinks::Member& member);
  // Who may have the units of a frame; empty when nobody may.
  std::vector<PeerLinks::MemberPtr> Holders(const Digest& table, uint64_t group_key);
  void NoteHolder(const Digest& table, const PeerLinks::Member* holder);

  PeerSource* const source_;
  FrameExchange exchange_;
  std::mutex mutex_;
  std::unordered_map<Digest, Notes, DigestHash> notes_;  // by table
};

}  // namespace vrun::node
