// SPDX-License-Identifier: Apache-2.0
// vfs::Source over home and the other nodes of the pool that read from the same home. Units of files and frames of
// traces come from the node that owns them by rendezvous hashing (node/peers/rendezvous.h), which fetches them from
// home once for all; everything else comes from home.
//
//   range ─▶ groups ─▶ own group: home, shared with those who ask us for it
//                  └─▶ another's: an errand to its owners and, if need be, home (node/peers/peer_errand.h)
//
// Nothing of another node is believed but what home has signed. An owner that does not answer in time costs that time,
// and home is asked as well; one that is gone or lies costs a question; both are left alone for a while. Errors are
// home's only.
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
  std::string name;     // of this node's certificate
  std::string address;  // where others reach it
  std::string pool;     // whose nodes reach each other
  rpc::Credentials credentials;
  int64_t silence_micros = 300'000;  // an owner that says nothing for so long is asked in vain; adapts upwards
  int64_t wait_micros = 15'000'000;  // so long an owner may wait for home; adapts upwards
};

struct PeerStats {
  uint64_t mates = 0;
  uint64_t fetched_bytes = 0;  // from other nodes
  uint64_t served_bytes = 0;   // to them
  uint64_t lies = 0;
  uint64_t fallbacks = 0;  // pieces for which home was asked because the owner did not give them
};

v1::PeerRequest UnitsQuestion(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency);

// Any thread. Callbacks that are owed when it is destroyed do not run.
class PeerSource final : public vfs::Source {
 public:
  // `home` outlives it.
  PeerSource(PeerSourceOptions options, ContentSource* home);
  ~PeerSource() override;

  // Home is connected (again).
  void HomeIsBack();
  // Home's list, which ContentSource::WatchPeers gives.
  void Update(const v1::Peers& peers);
  // Called after each new list.
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
  // What is signed with home's present key.
  bool Signed(const tree::FileVersion& version, const SignedUnits& statement) const;

  // --- for PeerFrames ---
  PeerPace& pace() { return pace_; }
  const std::shared_ptr<vfs::Gate>& gate() const { return gate_; }
  void Fetched(uint64_t bytes) { pace_.fetched_bytes += bytes; }
  // Units that `holder`, if any, is said to have; what it does not give comes as in FetchRange.
  void FetchUnits(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency,
                  const PeerLinks::MemberPtr& holder, std::function<void(Result<vfs::FetchedRange>)> done);
  Result<SignedRange> CheckUnits(const v1::PeerReply& reply, const UnitPlace& place, uint64_t first, uint64_t count);
  void Start(std::vector<PeerLinks::MemberPtr> owners, PeerErrand::Work work);

 private:
  struct Gather;

  void FetchPiece(const std::shared_ptr<Gather>& gather, const UnitPlace& place, uint64_t first, uint64_t count,
                  vfs::Urgency urgency, const PeerLinks::MemberPtr& holder);
  // What the exchange fetches: from who had it before this node came, else from home.
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
