// SPDX-License-Identifier: Apache-2.0
// A vfs::Source over home and the other nodes of the pool that read from the same home. Units of files and frames of
// traces come from the node that owns them by rendezvous hashing (node/peers/rendezvous.h), which fetches them from
// home once for all. Everything else comes from home.
//
//   range ─▶ groups ─▶ own group: home, shared with nodes that ask us for it
//                  └─▶ another node's: an errand to its owners and, if need be, home (node/peers/peer_errand.h)
//
// Content from another node is accepted only if home has signed it. An owner that is late costs that time, and home is
// asked as well; an owner that is gone or sends false content costs one question. Both are then not asked for a while.
// Errors are reported only if they come from home.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "node/peers/peer_errand.h"
#include "node/peers/peer_frames.h"
#include "node/peers/peer_links.h"
#include "node/source/content_source.h"
#include "node/source/unit_exchange.h"
#include "vfs/content/source.h"
#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::node {

struct PeerSourceOptions {
  std::string home_id;
  std::string name;     // as in this node's certificate
  std::string address;  // where other nodes reach it
  std::string pool;     // nodes of one pool can reach each other
  rpc::Credentials credentials;
  int64_t silence_micros = 300'000;  // an owner silent for this long is given up; adapts upwards
  int64_t wait_micros = 15'000'000;  // how long an owner may wait for home; adapts upwards
};

struct PeerStats {
  uint64_t mates = 0;
  uint64_t fetched_bytes = 0;  // received from other nodes
  uint64_t served_bytes = 0;   // sent to them
  uint64_t lies = 0;
  uint64_t fallbacks = 0;  // pieces fetched from home because the owner did not deliver
};

v1::PeerRequest UnitsQuestion(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency);

// Any thread. Callbacks still pending at destruction do not run.
class PeerSource final : public vfs::Source {
 public:
  // `home` must outlive it.
  PeerSource(PeerSourceOptions options, ContentSource* home);
  ~PeerSource() override;

  // Home is connected (again).
  void HomeIsBack();
  // Home's member list, from ContentSource::WatchPeers.
  void Update(const v1::Peers& peers);
  // Sets a function to call after each new list.
  void OnUpdate(std::function<void()> updated) { updated_ = std::move(updated); }

  void FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) override {
    home_->FetchRoot(tree, std::move(done));
  }
  void FetchDirectory(const Digest& tree, const std::string& path, const Digest& digest,
                      std::function<void(Result<vfs::FetchedDirectory>)> done) override {
    home_->FetchDirectory(tree, path, digest, std::move(done));
  }
  void FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version, uint64_t offset,
                  uint64_t length, vfs::Urgency urgency, std::function<void(Result<vfs::FetchedRange>)> done) override;
  void Borrow(const Digest& tree, const std::string& path, const tree::FileVersion& version,
              std::function<void()> done) override {
    home_->Borrow(tree, path, version, std::move(done));
  }
  void FetchResident(const Digest& tree, const std::string& path, const tree::FileVersion& version, bool siblings,
                     std::function<void(Result<std::vector<vfs::ResidentFile>>)> done) override {
    home_->FetchResident(tree, path, version, siblings, std::move(done));
  }
  void FetchExtents(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                    std::function<void(Result<vfs::Extents>)> done) override {
    home_->FetchExtents(tree, path, version, std::move(done));
  }
  void FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                  std::function<void(Result<vfs::TraceTable>)> done) override;
  void FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table, std::vector<uint32_t> frames,
                   std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done) override;

  PeerStats stats() const;

  // --- for PeerServer ---
  PeerLinks& links() { return links_; }
  UnitExchange& units() { return units_; }
  FrameExchange& frames() { return frames_.exchange(); }
  ContentSource* home() { return home_; }
  const PeerSourceOptions& options() const { return options_; }
  void Served(uint64_t bytes) { pace_.served_bytes += bytes; }
  // Whether this is signed with home's current key.
  bool Signed(const tree::FileVersion& version, const SignedUnits& statement) const;

  // --- for PeerFrames ---
  PeerPace& pace() { return pace_; }
  const std::shared_ptr<vfs::Gate>& gate() const { return gate_; }
  void Fetched(uint64_t bytes) { pace_.fetched_bytes += bytes; }
  // Units that `holder`, if any, is said to have; the rest comes as in FetchRange.
  void FetchUnits(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                  const PeerLinks::MemberPtr& holder, std::function<void(Result<vfs::FetchedRange>)> done);
  Result<SignedRange> CheckUnits(const v1::PeerReply& reply, const UnitPlace& place, uint64_t first, uint64_t count);
  void Start(std::vector<PeerLinks::MemberPtr> owners, PeerErrand::Work work);

 private:
  struct Gather;

  void FetchPiece(const std::shared_ptr<Gather>& gather, const UnitPlace& place, uint64_t first, uint64_t count,
                  vfs::Urgency urgency, const PeerLinks::MemberPtr& holder);
  // The fetch function of the exchange: asks the owners before this node joined, else home.
  void Elsewhere(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency, UnitExchange::Got got);
  void FromHome(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency, UnitExchange::Got got);

  const PeerSourceOptions options_;
  ContentSource* const home_;
  std::function<void()> updated_;
  const std::shared_ptr<vfs::Gate> gate_ = std::make_shared<vfs::Gate>();
  PeerPace pace_;
  vfs::TimerThread timers_;
  PeerLinks links_;
  UnitExchange units_;
  PeerFrames frames_;
  std::atomic<bool> watching_{false};
};

}  // namespace vrun::node
