// SPDX-License-Identifier: Apache-2.0
#include "control/dashboard/recent.h"

#include <algorithm>

namespace vrun::control {
namespace {

constexpr size_t kMostPreemptions = 100;
constexpr size_t kMostWaits = 500;  // of a team
constexpr size_t kMostTeams = 2000;

}  // namespace

void Recent::NotePreemption(State& state, uint64_t job, uint32_t attempt) {
  google::protobuf::RepeatedPtrField<v1::AttemptInfo> attempts;
  Preempted preempted{state.clock().Wall(), job, attempt, ""};
  if (state.AddAttempts(job, &attempts)) {
    const auto found = std::find_if(attempts.begin(), attempts.end(),
                                    [&](const v1::AttemptInfo& a) { return a.attempt() == attempt; });
    if (found != attempts.end()) preempted.reason = found->reason();
  }
  preempted_.push_front(std::move(preempted));
  if (preempted_.size() > kMostPreemptions) preempted_.pop_back();
}

void Recent::NoteStart(const std::string& team, int64_t waited_us) {
  if (waits_.size() >= kMostTeams && !waits_.contains(team)) return;
  std::deque<int64_t>& waits = waits_[team];
  waits.push_back(waited_us);
  if (waits.size() > kMostWaits) waits.pop_front();
}

}  // namespace vrun::control
