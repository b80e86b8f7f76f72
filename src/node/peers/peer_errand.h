// SPDX-License-Identifier: Apache-2.0
// One thing that other nodes should have, asked of its owners in turn, and of home when they do not give it, or not in
// time.
//
//   Start ─▶ owner ─▶ its answer, checked ─▶ delivered
//              │ its stream breaks, or it does not have what was asked for only if it is held: the next owner
//              │ it is silent, or says no more that it waits for home, or says so for too long, or home refused it, or
//              │ it lies: home; the owner may still be first
//              └ no owner (left), or this node owns it: home
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "node/peers/peer_links.h"
#include "proto/peer.pb.h"
#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::node {

// How long others take to answer, and what became of the questions to them. Any thread.
class PeerPace {
 public:
  PeerPace(int64_t least_silence_micros, int64_t least_wait_micros)
      : least_silence_(least_silence_micros), least_wait_(least_wait_micros) {}

  // How long an owner may say nothing at all: eight times what they usually take to say the first word, or twice as
  // long as one was silent lately that then spoke: where all are short of processors, nobody is dead so soon.
  int64_t Silence() const;
  // How long an owner that waits for home may say so no more: it does several times a second, whatever home does.
  int64_t Patience() const;
  // How long an owner may wait for home in all: six times what home usually takes, or keeps this node waiting now. A
  // home that is slow for all is not to be asked twice.
  int64_t MostWait(int64_t now);
  void FirstSign(int64_t micros) { Smooth(micros, &first_sign_); }
  // An owner was silent for so long, and speaks.
  void Spoke(int64_t micros);
  // This node asks home; HomeAnswered follows with what it returned.
  int64_t AskHome();
  void HomeAnswered(int64_t asked, bool well);

  std::atomic<uint64_t> fetched_bytes{0}, served_bytes{0}, lies{0}, fallbacks{0};

 private:
  static void Smooth(int64_t measure, std::atomic<int64_t>* average);

  const int64_t least_silence_, least_wait_;
  std::atomic<int64_t> first_sign_{0}, home_{0};
  int64_t GapLocked(int64_t now) const;
  mutable std::mutex mutex_;
  std::multiset<int64_t> asked_;  // when, of home, and not answered yet
  int64_t gap_ = 0, gap_at_ = 0;  // the longest silence, and when it ended; half of it 10 s later
};

// What errands need of their source; it outlives none of them, and the gate tells.
struct PeerRoads {
  PeerLinks* links;
  PeerPace* pace;
  vfs::TimerThread* timers;
  std::shared_ptr<vfs::Gate> gate;
};

// Any thread. Lives until it is over.
class PeerErrand : public std::enable_shared_from_this<PeerErrand> {
 public:
  using Deliver = std::function<void()>;
  struct Work {
    v1::PeerRequest question;
    // What is to be done with an answer if it is the first good one. kCorrupt: it is a lie; another error: it is none.
    std::function<Result<Deliver>(const v1::PeerReply&, const PeerLinks::MemberPtr& from)> check;
    // Asks home. `came` takes what is to be done with what home says.
    std::function<void(std::function<void(Deliver)> came)> home;
    bool only_if_held = false;  // that an owner does not have it is no surprise
    // Who is asked after an owner that says nothing: the next owner, who asks home for all, or home. The next owner is
    // another round of patience, so it is for what nobody waits for at the moment.
    bool next_when_silent = false;
    // Of that, if set: who is known not to have it, and who says so.
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
  // The owner may be late by now.
  void Look(size_t turn);
  void LookLaterLocked(int64_t micros);
  // True for the first answer; `turn`: of the owner that gave it, kFromHome: home did.
  bool Claim(size_t turn);

  static constexpr size_t kFromHome = SIZE_MAX;
  static constexpr size_t kNobody = SIZE_MAX - 1;

  const PeerRoads roads_;
  const std::vector<PeerLinks::MemberPtr> owners_;
  const Work work_;
  std::mutex mutex_;
  size_t turn_ = 0;  // of the owner that is asked
  bool over_ = false;
  bool home_asked_ = false;
  bool signs_ = false;  // the owner has said something to this question
  int64_t asked_at_ = 0;
  int64_t heard_at_ = 0;     // of the owner, if only that it lives
  int64_t patience_ = 0;     // for so long after that
  bool opening_ = false;     // its stream; silence says nothing until then
  bool stalls_ = false;      // the owner that says nothing more does nothing more
  uint64_t question_ = 0;    // at the owner; 0: none
  size_t silent_ = kNobody;  // turn of an owner that said nothing, before the one of now or before home
  vfs::TimerThread::Id timer_ = 0;
};

}  // namespace vrun::node
