// SPDX-License-Identifier: Apache-2.0
// The answering end of /vrun.v1.Peer/Exchange: gives other nodes what this one holds of its home's content, and what it
// owns it fetches from home for them.
//
// Who is answered: a node of this cluster (mTLS) that is on home's list of those who read from it and proves that home
// told it the secret. That is the same right as a cache on this node gives to any job of the same home: whoever may ask
// home for a version may have it from here. Answered in this order: what somebody waits for, then what is fetched
// ahead.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/io/work_queue.h"
#include "node/peers/peer_source.h"
#include "node/source/frame_exchange.h"
#include "rpc/rpc.h"

namespace vrun::vfs {
class Backend;
}

namespace vrun::node {

// Any thread.
class PeerServer {
 public:
  // All outlive it. `backend` is where content is kept.
  PeerServer(PeerSource* source, vfs::Backend* backend);
  // Before this, the streams' server must be gone, or nobody asks any more.
  ~PeerServer();

  Result<rpc::Stream::Handler*> Accept(const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream);
  // Home has told who takes part: whoever came a little early is let in.
  void Updated();
  // About once a second: sends away who cannot prove anything, forgets streams that have ended.
  void Tick(int64_t now_micros);

 private:
  class Session;
  using SessionPtr = std::shared_ptr<Session>;
  friend class Session;

  // Tells those who wait for home through this node that it does so too, as long as home's stream is up. A full uplink
  // may take longer for a frame than anybody would wait for a node that is silent.
  void Beat();
  void BeatLater();
  void Answer(const SessionPtr& session, uint64_t id, const v1::PeerRequest::GetUnits& get);
  // With the frame as home signed it; with no units at all, when what is in it is here and can be asked for as units;
  // or that it is not here, and no run here has its table.
  void AnswerFrame(const SessionPtr& session, uint64_t id, const v1::PeerRequest::GetFrame& get);
  void GetFrame(const SessionPtr& session, uint64_t id, const Digest& name);
  bool Holds(const FrameExchange::Place& place);
  void FromHome(const SessionPtr& session, uint64_t id, const UnitPlace& place, uint64_t first, uint64_t count,
                vfs::Urgency urgency);
  // Units that are here, with home's word for them. False: they are not here.
  bool Held(const SessionPtr& session, uint64_t id, const UnitPlace& place, uint64_t first, uint64_t count);
  void Give(const SessionPtr& session, uint64_t id, const tree::FileVersion& version, uint64_t first,
            const std::vector<HeldUnit>& units);
  void GiveData(const SessionPtr& session, uint64_t id, const tree::FileVersion& version, uint64_t first,
                uint64_t count, std::string data, const std::vector<SignedUnitsPtr>& statements);

  PeerSource* const source_;
  vfs::Backend* const backend_;
  const std::shared_ptr<vfs::Gate> gate_ = std::make_shared<vfs::Gate>();
  std::mutex mutex_;
  std::vector<SessionPtr> sessions_;
  WorkQueue workers_;
};

}  // namespace vrun::node
