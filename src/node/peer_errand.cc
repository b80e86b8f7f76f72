// SPDX-License-Identifier: Apache-2.0
#include "node/peer_errand.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"

namespace vrun::node {
namespace {

constexpr int64_t kMostSilence = 2'000'000;
constexpr int64_t kOpeningMicros = 3'000'000;  // of a stream: many nodes that start together open many at a time
constexpr int64_t kLeastPatience = 1'000'000, kMostPatience = 15'000'000;
constexpr int64_t kFirstHomeMicros = 1'000'000;  // as long as home has not been measured

}  // namespace

// What takes longer counts at once: a link that fills up must not be taken for one that is dead, and be given
// everything twice. What takes less counts by an eighth, as with TCP (RFC 6298).
void PeerPace::Smooth(int64_t measure, std::atomic<int64_t>* average) {
  const int64_t old = average->load(std::memory_order_relaxed);
  average->store(measure > old ? measure : old + (measure - old) / 8, std::memory_order_relaxed);
}

int64_t PeerPace::Silence() const {
  return std::clamp(8 * first_sign_.load(std::memory_order_relaxed), least_silence_,
                    std::max(kMostSilence, least_silence_));
}

int64_t PeerPace::Patience() const {
  const int64_t home = home_.load(std::memory_order_relaxed);
  return std::clamp(4 * (home == 0 ? kFirstHomeMicros : home), kLeastPatience, kMostPatience);
}

bool PeerErrand::Claim() {
  std::lock_guard lock(mutex_);
  return !std::exchange(over_, true);
}

void PeerErrand::Ask() {
  size_t turn;
  {
    std::lock_guard lock(mutex_);
    turn = turn_;
    asked_at_ = MonotonicMicros();
    signs_ = false;
  }
  if (turn >= owners_.size() || !owners_[turn]->client) return AskHome();
  const auto self = shared_from_this();
  const int64_t silence = owners_[turn]->client->proved() ? roads_.pace->Silence() : kOpeningMicros;
  const vfs::TimerThread::Id timer = roads_.timers->After(silence, [self, turn] { self->Late(turn); });
  const uint64_t question = owners_[turn]->client->Ask(work_.question, [self, turn](Result<v1::PeerReply> reply) {
    const vfs::Gate::Pass pass(self->roads_.gate.get());
    if (pass) self->Answered(turn, std::move(reply));
  });
  std::lock_guard lock(mutex_);
  // It may have been quick.
  if (over_ || turn_ != turn) return roads_.timers->Cancel(timer);
  question_ = question;
  if (signs_ || timer_ != 0) return roads_.timers->Cancel(timer);
  timer_ = timer;
}

void PeerErrand::AskHome() {
  {
    std::lock_guard lock(mutex_);
    if (over_ || std::exchange(home_asked_, true)) return;
  }
  work_.home([self = shared_from_this()](const Deliver& deliver) {
    if (!self->Claim()) return;
    uint64_t question;
    size_t turn;
    {
      std::lock_guard lock(self->mutex_);
      question = std::exchange(self->question_, 0);
      turn = self->turn_;
    }
    if (question != 0) self->owners_[turn]->client->Cancel(question);
    deliver();
  });
}

void PeerErrand::Answered(size_t turn, Result<v1::PeerReply> reply) {
  const PeerLinks::Member& member = *owners_[turn];
  vfs::TimerThread::Id timer = 0;
  const bool waits = reply && reply->has_waiting();
  {
    std::lock_guard lock(mutex_);
    if (over_ || turn_ != turn) return;
    timer = std::exchange(timer_, 0);
    // A sign of life that goes to all of the owner's askers says nothing of how long this question took.
    if (reply && !(waits && reply->id() == 0) && !std::exchange(signs_, true))
      roads_.pace->FirstSign(MonotonicMicros() - asked_at_);
    if (!waits) {
      question_ = 0;
      ++turn_;
    } else if (!home_asked_) {
      timer_ = roads_.timers->After(roads_.pace->Patience(), [self = shared_from_this(), turn] { self->Late(turn); });
    }
  }
  if (timer != 0) roads_.timers->Cancel(timer);
  if (waits) return;
  if (!reply) {
    // A stream that broke says so to all its questions at once; the first of them counts.
    roads_.links->Broke(member);
    ++roads_.pace->fallbacks;
    return Ask();
  }
  if (auto deliver = work_.check(*reply)) {
    roads_.links->Answered(member);
    if (Claim()) (*deliver)();
    return;
  } else if (deliver.error().code() == Code::kCorrupt) {
    ++roads_.pace->lies;
    LogWarning("peer {}: {}", Escape(member.name), Escape(deliver.error().message()));
    roads_.links->Lied(member);
  }
  if (reply->has_error()) LogDebug("peer {}: {}: home is asked", Escape(member.name), Escape(reply->error().message()));
  if (!reply->has_absent() || !work_.only_if_held) ++roads_.pace->fallbacks;
  AskHome();
}

void PeerErrand::Late(size_t turn) {
  const vfs::Gate::Pass pass(roads_.gate.get());
  if (!pass) return;
  {
    std::lock_guard lock(mutex_);
    if (over_ || turn_ != turn) return;
    timer_ = 0;
  }
  LogDebug("peer {}: silent: home is asked", Escape(owners_[turn]->name));
  roads_.links->Late(*owners_[turn]);
  ++roads_.pace->fallbacks;
  AskHome();
}

}  // namespace vrun::node
