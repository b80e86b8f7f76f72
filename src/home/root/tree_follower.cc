// SPDX-License-Identifier: Apache-2.0
#include "home/root/tree_follower.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"

namespace vrun::home {
namespace {

// Delay from the first event to the refresh: an edit often causes several events (the new file is written, then
// renamed) and is shown with the last.
constexpr int64_t kSettleMicros = 300;
// Between two refreshes: the gap grows during a burst.
constexpr int64_t kFirstGapMicros = 300;
constexpr int64_t kGapMicros = 3'000;
constexpr int64_t kQuietMicros = 12'000;    // after this pause the next change is not part of a burst
constexpr int64_t kBeatMicros = 1'000'000;  // without any change
// If two refreshes in a row take longer than this (a root that cannot be watched is rescanned each time), we refresh
// for only a part of the time.
constexpr int64_t kSlowMicros = 1'000;
constexpr int64_t kRest = 4;
constexpr int64_t kMostRestMicros = 5'000'000;

}  // namespace

TreeFollower::TreeFollower(EventLoop* loop, RootTree* tree, TreeBoard* board)
    : loop_(loop), tree_(tree), board_(board) {
  const auto post = [loop, alive = alive_](auto act) {
    return [loop, alive, act](auto... arguments) {
      loop->Post([alive, act, arguments...] {
        if (*alive) act(arguments...);
      });
    };
  };
  tree_->Listen(post([this] { Changed(); }));
  board_->SetWanted(post([this](bool wanted) { Wanted(wanted); }));
  board_->SetLook(post([this] { Changed(); }));
}

TreeFollower::~TreeFollower() {
  *alive_ = false;
  board_->SetWanted(nullptr);
  board_->SetLook(nullptr);
  loop_->Cancel(timer_);
  loop_->Cancel(ping_);
}

void TreeFollower::Beat() {
  board_->Ping();
  ping_ = loop_->After(kBeatMicros, [this] { Beat(); });
}

void TreeFollower::Wanted(bool wanted) {
  wanted_ = wanted;
  tree_->Attend(wanted);
  loop_->Cancel(std::exchange(ping_, 0));
  if (wanted) {
    Beat();
    took_ = rest_ = 0;  // a job is waiting
    Changed();
  } else {
    loop_->Cancel(std::exchange(timer_, 0));
  }
}

void TreeFollower::Changed() {
  if (!wanted_) return;
  if (changed_ == 0) changed_ = MonotonicMicros();
  if (running_ || (timer_ != 0 && !timer_is_beat_)) return;
  loop_->Cancel(std::exchange(timer_, 0));
  Refresh();
}

void TreeFollower::Refresh() {
  const int64_t gap = std::max(gap_, rest_);
  const int64_t due = std::max(began_ + gap, changed_ + kSettleMicros) - MonotonicMicros();
  if (due > 0) {
    timer_is_beat_ = false;
    timer_ = loop_->After(due, [this] {
      timer_ = 0;
      Refresh();
    });
    return;
  }
  running_ = true;
  changed_ = 0;
  const int64_t now = MonotonicMicros();
  gap_ = now - began_ > kQuietMicros ? kFirstGapMicros : std::min(gap_ * 2, kGapMicros);
  began_ = now;
  // Marked before the barrier: writes applied during the refresh may or may not be in the tree.
  tree_->Known({}, [this, alive = alive_, included = board_->Mark()](Result<tree::TreePtr> result) {
    if (*alive) Refreshed(std::move(result), included);
  });
}

void TreeFollower::Refreshed(Result<tree::TreePtr> result, const std::map<uint64_t, uint64_t>& included) {
  running_ = false;
  const int64_t took = MonotonicMicros() - began_;
  const int64_t slow = std::min(took, std::exchange(took_, took));
  // During the first scan a node waits for each refresh: it has asked for a directory.
  const bool rests = slow > kSlowMicros && tree_->facts().scanned;
  rest_ = rests ? slow + std::min(slow * (kRest - 1), kMostRestMicros) : 0;
  if (result) {
    board_->Tell(included);
  } else {
    LogWarning("cannot read changes of the root, live views do not get them: {}", Escape(result.error().message()));
  }
  if (!wanted_) return;
  if (changed_ != 0) return Refresh();
  timer_is_beat_ = true;
  timer_ = loop_->After(std::max(kBeatMicros, rest_), [this] {
    timer_ = 0;
    Refresh();
  });
}

}  // namespace vrun::home
