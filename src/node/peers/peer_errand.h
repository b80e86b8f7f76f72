// SPDX-License-Identifier: Apache-2.0
// One piece of content that other nodes should have. Asks its owners in turn, and home when they refuse or are late.
//
//   Start ─▶ owner ─▶ its answer, checked ─▶ delivered
//              │ its stream breaks, or it lacks something that was asked for only if held: the next owner
//              │ it is silent, stops reporting that it waits for home, waits too long, was refused by home,
//              │ or sends false content: home; the owner may still answer first
//              └ no owner (left), or this node is the owner: home
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "base/thread/mutex.h"
#include "node/peers/peer_links.h"
#include "proto/peer.pb.h"
#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::node {

// Measures how long others take to answer, and how questions to them ended. Any thread.
class PeerPace {
 public:
  PeerPace(int64_t least_silence_micros, int64_t least_wait_micros)
      : least_silence_(least_silence_micros), least_wait_(least_wait_micros) {}

  // How long an owner may be silent: eight times the usual time to the first word, or twice the longest recent silence
  // after which an owner still answered. Where all nodes are short of CPU, a silent owner is less likely to be dead.
  int64_t Silence() const;
  // How long an owner that waits for home may stop saying so. It says so several times a second, whatever home does.
  int64_t Patience() const;
  // How long an owner may wait for home in total: six times what home usually takes, or what it currently keeps this
  // node waiting. A home that is slow for everybody must not be asked twice.
  int64_t MostWait(int64_t now);
  void FirstSign(int64_t micros) { Smooth(micros, &first_sign_); }
  // An owner answered after this long a silence.
  void Spoke(int64_t micros);
  // This node asks home. Call HomeAnswered later with the returned value.
  int64_t AskHome();
  void HomeAnswered(int64_t asked, bool well);

  std::atomic<uint64_t> fetched_bytes{0}, served_bytes{0}, lies{0}, fallbacks{0};

 private:
  static void Smooth(int64_t measure, std::atomic<int64_t>* average);

  const int64_t least_silence_, least_wait_;
  std::atomic<int64_t> first_sign_{0}, home_{0};
  int64_t GapLocked(int64_t now) const VRUN_REQUIRES(mutex_);
  mutable Mutex mutex_;
  std::multiset<int64_t> asked_ VRUN_GUARDED_BY(mutex_);  // start times of unanswered questions to home
  int64_t gap_ VRUN_GUARDED_BY(mutex_) = 0, gap_at_ VRUN_GUARDED_BY(mutex_) =
                                                0;  // the longest silence and when it ended; halved 10 s later
};

// What errands need from their source. It does not outlive the source; check the gate before use.
struct PeerRoads {
  PeerLinks* links;
  PeerPace* pace;
  vfs::TimerThread* timers;
  std::shared_ptr<vfs::Gate> gate;
};

// Any thread. Keeps itself alive until it is over.
class PeerErrand : public std::enable_shared_from_this<PeerErrand> {
 public:
  using Deliver = std::function<void()>;
  struct Work {
    v1::PeerRequest question;
    // Checks an answer and returns how to deliver it if it is the first good one. kCorrupt: false content; another
    // error: not an answer.
    std::function<Result<Deliver>(const v1::PeerReply&, const PeerLinks::MemberPtr& from)> check;
    // Asks home. Pass to `came` how to deliver home's answer.
    std::function<void(std::function<void(Deliver)> came)> home;
    bool only_if_held = false;  // expected that an owner may not have it
    // Whether to ask the next owner instead of home after a silent owner. The next owner asks home for all nodes, but
    // costs another round of waiting, so this is for content that nobody waits for yet.
    bool next_when_silent = false;
    // If set: members known not to have it, because they said so.
    std::function<bool(const PeerLinks::Member&)> lacks;
    std::function<void(const PeerLinks::Member&)> absent;
  };

  PeerErrand(PeerRoads roads, std::vector<PeerLinks::MemberPtr> owners, Work work)
      : roads_(std::move(roads)), owners_(std::move(owners)), work_(std::move(work)) {}
  void Start() { Ask(); }

 private:
  void Ask();
  void AskHome();
  void Answered(size_t turn, Result<v1::PeerReply> reply);
  // Checks whether the owner is late.
  void Look(size_t turn);
  void LookLaterLocked(int64_t micros) VRUN_REQUIRES(mutex_);
  // True for the first answer. `turn`: the owner that gave it; kFromHome: home did.
  bool Claim(size_t turn);

  static constexpr size_t kFromHome = SIZE_MAX;
  static constexpr size_t kNobody = SIZE_MAX - 1;

  const PeerRoads roads_;
  const std::vector<PeerLinks::MemberPtr> owners_;
  const Work work_;
  Mutex mutex_;
  size_t turn_ VRUN_GUARDED_BY(mutex_) = 0;  // the owner being asked
  bool over_ VRUN_GUARDED_BY(mutex_) = false;
  bool home_asked_ VRUN_GUARDED_BY(mutex_) = false;
  bool signs_ VRUN_GUARDED_BY(mutex_) = false;  // the owner has reacted to this question
  int64_t asked_at_ VRUN_GUARDED_BY(mutex_) = 0;
  int64_t heard_at_ VRUN_GUARDED_BY(mutex_) = 0;   // last message of the owner, of any kind
  int64_t patience_ VRUN_GUARDED_BY(mutex_) = 0;   // allowed silence after heard_at_
  bool opening_ VRUN_GUARDED_BY(mutex_) = false;   // its stream is being opened; silence means nothing yet
  bool stalls_ VRUN_GUARDED_BY(mutex_) = false;    // an owner that goes silent now has stalled
  uint64_t question_ VRUN_GUARDED_BY(mutex_) = 0;  // id at the owner; 0: none
  size_t silent_ VRUN_GUARDED_BY(mutex_) =
      kNobody;  // turn of a silent owner asked before the current one or before home
  vfs::TimerThread::Id timer_ VRUN_GUARDED_BY(mutex_) = 0;
};

}  // namespace vrun::node
