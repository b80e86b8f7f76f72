// SPDX-License-Identifier: Apache-2.0
// One thing that other nodes should have, asked of its owners in turn, and of home when they do not give it, or not in
// time.
//
//   Start ─▶ owner ─▶ its answer, checked ─▶ delivered
//              │ its stream breaks: the next owner
//              │ it is silent, or says no more that it waits for home, or does not have it after all, or lies: home;
//              the owner may still be first └ no owner (left), or this node owns it: home
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "node/peer_links.h"
#include "proto/peer.pb.h"
#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::node {

// How long others take to answer, and what became of the questions to them. Any thread.
class PeerPace {
 public:
  explicit PeerPace(int64_t least_silence_micros) : least_silence_(least_silence_micros) {}

  // How long an owner may say nothing at all: eight times what they usually take.
  int64_t Silence() const;
  // How long an owner that waits for home may say so no more: four times what home usually takes.
  int64_t Patience() const;
  void FirstSign(int64_t micros) { Smooth(micros, &first_sign_); }
  void HomeAnswered(int64_t micros) { Smooth(micros, &home_); }

  std::atomic<uint64_t> fetched_bytes{0}, served_bytes{0}, lies{0}, fallbacks{0};

 private:
  static void Smooth(int64_t measure, std::atomic<int64_t>* average);

  const int64_t least_silence_;
  std::atomic<int64_t> first_sign_{0}, home_{0};
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
    std::function<Result<Deliver>(const v1::PeerReply&)> check;
    // Asks home. `came` takes what is to be done with what home says.
    std::function<void(std::function<void(Deliver)> came)> home;
    bool only_if_held = false;  // that the owner does not have it is no surprise
  };

  PeerErrand(PeerRoads roads, std::vector<PeerLinks::MemberPtr> owners, Work work)
      : roads_(std::move(roads)), owners_(std::move(owners)), work_(std::move(work)) {}
  void Start() { Ask(); }

 private:
  void Ask();
  void AskHome();
  void Answered(size_t turn, Result<v1::PeerReply> reply);
  void Late(size_t turn);
  // True for the first answer.
  bool Claim();

  const PeerRoads roads_;
  const std::vector<PeerLinks::MemberPtr> owners_;
  const Work work_;
  std::mutex mutex_;
  size_t turn_ = 0;  // of the owner that is asked
  bool over_ = false;
  bool home_asked_ = false;
  bool signs_ = false;  // the owner has said something
  int64_t asked_at_ = 0;
  uint64_t question_ = 0;  // at the owner; 0: none
  vfs::TimerThread::Id timer_ = 0;
};

}  // namespace vrun::node
