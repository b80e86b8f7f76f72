// SPDX-License-Identifier: Apache-2.0
#include "node/peers/peer_errand.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"

namespace vrun::node {
namespace {

constexpr int64_t kMostSilence = 2'000'000;
constexpr int64_t kMostGap = 2'500'000;  // doubled by Silence
constexpr int64_t kGapHalves = 10'000'000;
// for a stream: many nodes that start together open many streams at the same time
constexpr int64_t kOpeningMicros = 3'000'000;
constexpr int64_t kPatience = 1'000'000;   // four times the interval of PeerServer's signs of life
constexpr int64_t kMostWait = 30'000'000;  // a reader waits for home up to a minute
constexpr int64_t kMostDoubt = 3'000'000;  // silence after patience has run out, until the owner is considered dead
constexpr int64_t kDoubtAgain = 50'000;

}  // namespace

// Longer times count fully: a link that fills up must not be taken for a dead one and be given everything twice.
// Shorter times count by an eighth, as in TCP (RFC 6298).
void PeerPace::Smooth(int64_t measure, std::atomic<int64_t>* average) {
  const int64_t old = average->load(std::memory_order_relaxed);
  average->store(measure > old ? measure : old + (measure - old) / 8, std::memory_order_relaxed);
}

int64_t PeerPace::Silence() const {
  const int64_t first = std::clamp(8 * first_sign_.load(std::memory_order_relaxed), least_silence_,
                                   std::max(kMostSilence, least_silence_));
  const int64_t now = MonotonicMicros();
  MutexLock lock(mutex_);
  return std::max(first, 2 * GapLocked(now));
}

int64_t PeerPace::GapLocked(int64_t now) const { return gap_ >> std::min((now - gap_at_) / kGapHalves, int64_t{62}); }

void PeerPace::Spoke(int64_t micros) {
  const int64_t now = MonotonicMicros();
  MutexLock lock(mutex_);
  if (micros <= GapLocked(now)) return;
  gap_ = std::min(micros, kMostGap);
  gap_at_ = now;
}

int64_t PeerPace::Patience() const { return std::max(kPatience, Silence()); }

int64_t PeerPace::MostWait(int64_t now) {
  int64_t home = home_.load(std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    if (!asked_.empty()) home = std::max(home, now - *asked_.begin());
  }
  return std::clamp(6 * home, least_wait_, std::max(kMostWait, least_wait_));
}

int64_t PeerPace::AskHome() {
  const int64_t now = MonotonicMicros();
  MutexLock lock(mutex_);
  asked_.insert(now);
  return now;
}

void PeerPace::HomeAnswered(int64_t asked, bool well) {
  if (well) Smooth(MonotonicMicros() - asked, &home_);
  MutexLock lock(mutex_);
  if (const auto it = asked_.find(asked); it != asked_.end()) asked_.erase(it);
}

bool PeerErrand::Claim(size_t turn) {
  size_t silent;
  {
    MutexLock lock(mutex_);
    if (std::exchange(over_, true)) return false;
    silent = std::exchange(silent_, kNobody);
  }
  if (silent != kNobody) owners_[silent]->client->doubt().Over(turn != silent);
  return true;
}

void PeerErrand::Ask() {
  size_t turn;
  {
    MutexLock lock(mutex_);
    if (over_ || home_asked_) return;
    while (turn_ < owners_.size() && owners_[turn_]->client && work_.lacks && work_.lacks(*owners_[turn_])) ++turn_;
    turn = turn_;
    if (turn < owners_.size() && owners_[turn]->client) {
      asked_at_ = heard_at_ = MonotonicMicros();
      signs_ = false;
      stalls_ = opening_ = !owners_[turn]->client->proved();
      patience_ = stalls_ ? kOpeningMicros : roads_.pace->Silence();
      LookLaterLocked(patience_);
    }
  }
  if (turn >= owners_.size() || !owners_[turn]->client) return AskHome();
  const uint64_t question =
      owners_[turn]->client->Ask(work_.question, [self = shared_from_this(), turn](Result<v1::PeerReply> reply) {
        const vfs::Gate::Pass pass(self->roads_.gate.get());
        if (pass) self->Answered(turn, std::move(reply));
      });
  MutexLock lock(mutex_);
  // The answer may already have come.
  if (!over_ && turn_ == turn) question_ = question;
}

void PeerErrand::AskHome() {
  {
    MutexLock lock(mutex_);
    if (over_ || std::exchange(home_asked_, true)) return;
  }
  work_.home([self = shared_from_this()](const Deliver& deliver) {
    if (!self->Claim(kFromHome)) return;
    uint64_t question;
    size_t turn;
    {
      MutexLock lock(self->mutex_);
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
    MutexLock lock(mutex_);
    if (over_ || turn_ != turn) return;
    const int64_t now = MonotonicMicros();
    const int64_t silent = now - std::exchange(heard_at_, now);
    if (reply && !std::exchange(opening_, false)) roads_.pace->Spoke(silent);
    // A sign of life sent to all of the owner's askers does not measure this question.
    if (reply && !(waits && reply->id() == 0) && !std::exchange(signs_, true))
      roads_.pace->FirstSign(heard_at_ - asked_at_);
    if (waits) {
      stalls_ = true;
      patience_ = roads_.pace->Patience();
      return;
    }
    question_ = 0;
    ++turn_;
    timer = std::exchange(timer_, 0);
  }
  if (timer != 0) roads_.timers->Cancel(timer);
  if (!reply) {
    // A broken stream reports to all its questions at once; only the first report counts.
    roads_.links->Broke(member);
    ++roads_.pace->fallbacks;
    return Ask();
  }
  if (reply->has_absent() && work_.only_if_held) {
    roads_.links->Answered(member);
    if (work_.absent) work_.absent(member);
    return Ask();
  }
  if (auto deliver = work_.check(*reply, owners_[turn])) {
    roads_.links->Answered(member);
    if (Claim(turn)) (*deliver)();
    return;
  } else if (deliver.error().code() == Code::kCorrupt) {
    ++roads_.pace->lies;
    LogWarning("peer {}: {}", Escape(member.name), Escape(deliver.error().message()));
    roads_.links->Lied(member);
  }
  if (reply->has_error()) LogDebug("peer {}: {}: home is asked", Escape(member.name), Escape(reply->error().message()));
  ++roads_.pace->fallbacks;
  AskHome();
}

void PeerErrand::LookLaterLocked(int64_t micros) {
  timer_ = roads_.timers->After(micros, [self = shared_from_this(), turn = turn_] { self->Look(turn); });
}

void PeerErrand::Look(size_t turn) {
  const vfs::Gate::Pass pass(roads_.gate.get());
  if (!pass) return;
  bool stalls, waits, next = false;
  int64_t after;
  uint64_t question = 0;
  {
    MutexLock lock(mutex_);
    if (over_ || home_asked_ || turn_ != turn) return;
    timer_ = 0;
    const int64_t now = MonotonicMicros(), heard = std::max(heard_at_, owners_[turn]->client->heard());
    const int64_t silent = heard + patience_, waited = asked_at_ + roads_.pace->MostWait(now);
    const int64_t due = heard == asked_at_ ? silent : std::min(silent, waited);
    if (due > now) return LookLaterLocked(due - now);
    waits = now < silent;
    after = now - asked_at_;
    stalls = stalls_;
    const bool certain = waits || silent_ != kNobody || now - heard > patience_ + kMostDoubt;
    if (!certain) {
      if (!owners_[turn]->client->doubt().Begin()) return LookLaterLocked(kDoubtAgain);
      silent_ = turn;
      next = work_.next_when_silent;
    }
    if (next) {
      ++turn_;
      question = std::exchange(question_, 0);
    }
  }
  const PeerLinks::Member& member = *owners_[turn];
  LogDebug("peer {}: {}, {} ms after it was asked: {} is asked", Escape(member.name),
           waits ? "waits for too long" : "silent", after / 1000, next ? "the next" : "home");
  if (stalls)
    roads_.links->Stalled(member);
  else
    roads_.links->Late(member);
  if (question != 0) member.client->Cancel(question);
  ++roads_.pace->fallbacks;
  next ? Ask() : AskHome();
}

}  // namespace vrun::node
