// SPDX-License-Identifier: Apache-2.0
// Serves /vrun.v1.Peer/Exchange: gives other nodes the content of this home that this node has, and fetches from home
// what it owns.
//
// A client must be a node of this cluster (mTLS), be on home's list of readers and prove that home told it the secret.
// This is the same right that a node's cache gives to any job of the same home: whoever may ask home for a version may
// get it from here. Order of answers: first what somebody waits for, then prefetches.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/io/work_queue.h"
#include "base/thread/mutex.h"
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
  // All must outlive it. `backend` stores the content.
  PeerServer(PeerSource* source, vfs::Backend* backend);
  // Destroy the streams' server first, or make sure that no requests arrive.
  ~PeerServer();

  Result<rpc::Stream::Handler*> Accept(const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream);
  // Home has sent a new member list: accepts clients that connected slightly before it arrived.
  void Updated();
  // Whether jobs of this home run here. Home gives a node nothing while none does, so without one this server gives
  // only what it has, at once, and others ask home themselves.
  void SetReads(bool reads) { reads_ = reads; }
  // Call about once a second. Disconnects clients that cannot prove themselves; forgets ended streams.
  void Tick(int64_t now_micros);

 private:
  class Session;
  using SessionPtr = std::shared_ptr<Session>;
  friend class Session;

  // While home's stream is up, tells clients that wait for home through this node that it is still waiting. On a full
  // uplink a frame may take longer than anybody waits for a silent node.
  void Beat();
  void BeatLater();
  void Answer(const SessionPtr& session, uint64_t id, const v1::PeerRequest::GetUnits& get);
  // Replies with the frame as home signed it; or with no units, if its content is here and can be asked for as units;
  // or that it is not here and no run here has its table.
  void AnswerFrame(const SessionPtr& session, uint64_t id, const v1::PeerRequest::GetFrame& get);
  void GetFrame(const SessionPtr& session, uint64_t id, const Digest& name);
  bool Holds(const FrameExchange::Place& place);
  void Absent(const SessionPtr& session, uint64_t id);
  void FromHome(const SessionPtr& session, uint64_t id, const UnitPlace& place, uint64_t first, uint64_t count,
                vfs::Urgency urgency);
  // Sends units that are here, with home's signed statements. False: they are not here.
  bool Held(const SessionPtr& session, uint64_t id, const UnitPlace& place, uint64_t first, uint64_t count);
  void Give(const SessionPtr& session, uint64_t id, const tree::FileVersion& version, uint64_t first,
            const std::vector<HeldUnit>& units);
  void GiveData(const SessionPtr& session, uint64_t id, const tree::FileVersion& version, uint64_t first,
                uint64_t count, std::string data, const std::vector<SignedUnitsPtr>& statements);

  PeerSource* const source_;
  vfs::Backend* const backend_;
  const std::shared_ptr<vfs::Gate> gate_ = std::make_shared<vfs::Gate>();
  std::atomic<bool> reads_{true};
  Mutex mutex_;
  std::vector<SessionPtr> sessions_ VRUN_GUARDED_BY(mutex_);
  WorkQueue workers_;
};

}  // namespace vrun::node
