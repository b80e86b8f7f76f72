// SPDX-License-Identifier: Apache-2.0
// The part of State that keeps jobs from starting for reasons that the scheduler does not know: the start or the
// failure of other jobs, arrays, the element of another array, jobs of the same name, and budgets that are used up. To
// the scheduler such a job has no begin time yet. It knows `after` and `after_ok` of jobs itself.
#include <algorithm>
#include <set>

#include "base/escape.h"
#include "base/log.h"
#include "control/state/state.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

// At most so many obstacles of one job are named.
constexpr size_t kMostBlockers = 100;

std::string NameKey(const JobRow& job) { return job.user + '\n' + job.name; }

std::string Named(const JobRow& job) { return (job.elements != 0 ? "array " : "job ") + std::to_string(job.id); }

v1::WhyAnswer::Blocker BlockerOf(const std::string& kind, uint64_t other, const std::string& text) {
  v1::WhyAnswer::Blocker blocker;
  blocker.set_kind(kind);
  blocker.set_text(text);
  blocker.set_other_job(other);
  return blocker;
}

}  // namespace

bool State::LeftToScheduler(const JobRow& job, const JobRow& other, Depends how) {
  return job.elements == 0 && other.elements == 0 && (how == Depends::kEnd || how == Depends::kSuccess);
}

// A dependency that is not among the unfinished jobs is fulfilled: this job would have ended together with it
// otherwise.
void State::Remember(const JobRow& job) {
  const auto add = [&](const auto& list, Depends how) {
    for (const uint64_t id : list) {
      const auto other = jobs_.find(id);
      if (other == jobs_.end()) continue;
      dependents_.emplace(id, Dependent{job.id, how});
      if (how != Depends::kCorresponding && !LeftToScheduler(job, other->second, how)) ++blocks_[job.id];
    }
  };
  add(job.scheduling.after(), Depends::kEnd);
  add(job.scheduling.after_ok(), Depends::kSuccess);
  add(job.scheduling.after_not_ok(), Depends::kFailure);
  add(job.scheduling.after_start(), Depends::kStart);
  add(job.scheduling.after_corresponding(), Depends::kCorresponding);
  if (job.array == 0) names_[NameKey(job)].insert(job.id);
}

bool State::Blocked(const JobRow& job) const {
  if (StoppedBy(job.scheduling.team()) != nullptr) return true;
  if (blocks_.contains(job.id)) return true;
  if (!job.scheduling.singleton()) return false;
  const auto same = names_.find(NameKey(job));
  return same != names_.end() && *same->second.begin() != job.id;
}

std::vector<v1::WhyAnswer::Blocker> State::BlockersOf(const JobRow& job) const {
  std::vector<v1::WhyAnswer::Blocker> out;
  if (job.state != v1::PENDING) return out;
  if (const v1::Budget* budget = StoppedBy(job.scheduling.team())) {
    out.push_back(BlockerOf("budget", 0, budget->text() + ". Jobs of other teams may start: -A TEAM"));
    out.back().set_team(budget->team());
  }
  const auto add = [&](const auto& list, Depends how) {
    for (const uint64_t id : list) {
      const auto other = jobs_.find(id);
      if (out.size() >= kMostBlockers) return;
      if (other == jobs_.end() || LeftToScheduler(job, other->second, how)) continue;
      const std::string name = Named(other->second);
      std::string text = "waits for the end of " + name;
      if (how == Depends::kFailure) text = "starts only if " + name + " fails";
      if (how == Depends::kStart) {
        text = "waits for the start of " + (other->second.elements != 0 ? "all elements of " + name : name);
      }
      out.push_back(BlockerOf("dependency", id, text));
    }
  };
  if (blocks_.contains(job.id)) {
    add(job.scheduling.after(), Depends::kEnd);
    add(job.scheduling.after_ok(), Depends::kSuccess);
    add(job.scheduling.after_not_ok(), Depends::kFailure);
    add(job.scheduling.after_start(), Depends::kStart);
  }
  const auto same = job.scheduling.singleton() ? names_.find(NameKey(job)) : names_.end();
  if (same != names_.end() && *same->second.begin() != job.id) {
    const uint64_t first = *same->second.begin();
    out.push_back(BlockerOf("singleton", first,
                            "waits for the end of " + Named(jobs_.at(first)) +
                                ": it has the same name, and only one of them may run at a time"));
  }
  if (job.parked) {
    const Array* array = FindArray(job.array);
    const uint32_t most = array != nullptr ? array->row.array.most_running() : 0;
    out.push_back(BlockerOf("array", job.array,
                            "at most " + std::to_string(most) + (most == 1 ? " element" : " elements") + " of array " +
                                std::to_string(job.array) + " may run at a time"));
  }
  return out;
}

core::JobSpec State::SpecForScheduler(const JobRow& job) const {
  core::JobSpec spec = SpecOf(job);
  if (job.parked || Blocked(job)) spec.begin_after = core::kNever;
  return spec;
}

void State::FeedAgain(const JobRow& job) {
  // Jobs that wait for this one see it at the end of the step, as ever.
  scheduler_.Feed(core::JobEnded{job.id, true, true});
  scheduler_.Feed(core::JobSubmitted{SpecForScheduler(job)});
}

Status State::Unblock(const JobRow& job) {
  if (job.state != v1::PENDING || Blocked(job)) return {};
  outbox_.jobs.insert(job.id);
  if (job.elements != 0) {
    Touch(job.id);
    return {};
  }
  FeedAgain(job);
  JobRow& waits = jobs_.at(job.id);
  waits.waits_since_us = AccountingNow();  // until now it waited for others, not for room
  return Save(waits);
}

Status State::Fulfil(const Dependent& dependent, const JobRow& other) {
  JobRow& job = jobs_.at(dependent.job);
  switch (dependent.how) {
    case Depends::kCorresponding: return {};  // told for each element
    case Depends::kEnd: break;
    case Depends::kSuccess:
      if (other.state == v1::COMPLETED) break;
      consequences_.push_back({job.id, Named(other) + " did not succeed, and this was to start only then", {}});
      return {};
    case Depends::kFailure:
      if (other.state != v1::COMPLETED) break;
      consequences_.push_back({job.id, "depends on " + Named(other) + ", which did not fail", {}});
      return {};
    case Depends::kStart: {
      // Stored, because the other one may wait again later.
      auto* starts = job.scheduling.mutable_after_start();
      starts->erase(std::remove(starts->begin(), starts->end(), other.id), starts->end());
      VRUN_TRY(Save(job));
      break;
    }
  }
  const auto blocks = blocks_.find(job.id);
  if (blocks == blocks_.end()) return {};
  if (--blocks->second > 0) return {};
  blocks_.erase(blocks);
  return Unblock(job);
}

Status State::Doom(uint64_t id, const std::string& reason) {
  const JobRow& job = jobs_.at(id);
  if (job.state != v1::PENDING) return {};
  if (job.elements != 0) {
    Positions all;
    all.Add(0, job.elements);
    VRUN_TRY(DropElements(id, all));
  }
  return End(id, v1::CANCELLED, reason);
}

Status State::CarryConsequences() {
  while (!consequences_.empty() || !started_.empty()) {
    VRUN_TRY(NoteStarts());
    if (consequences_.empty()) continue;
    const Consequence next = std::move(consequences_.front());
    consequences_.pop_front();
    if (!jobs_.contains(next.job)) continue;
    if (!next.reason.empty()) {
      VRUN_TRY(Doom(next.job, next.reason));
    } else {
      VRUN_TRY(DropElements(next.job, next.never));
      VRUN_TRY(EndIfOver(next.job));
    }
  }
  return {};
}

Status State::NoteStarts() {
  while (!started_.empty()) {
    const std::vector<uint64_t> started = std::exchange(started_, {});
    for (const uint64_t id : started) {
      const auto other = jobs_.find(id);
      if (other == jobs_.end()) continue;  // its end has told them
      const bool has = other->second.elements != 0 ? AllStarted(id) : other->second.started_us != 0;
      if (!has) continue;
      std::vector<Dependent> told;
      for (auto [it, end] = dependents_.equal_range(id); it != end;) {
        if (it->second.how != Depends::kStart) {
          ++it;
          continue;
        }
        told.push_back(it->second);
        it = dependents_.erase(it);
      }
      for (const Dependent& dependent : told) {
        if (jobs_.contains(dependent.job)) VRUN_TRY(Fulfil(dependent, other->second));
      }
    }
  }
  return {};
}

Status State::PassTurn(const JobRow& ended) {
  const auto same = names_.find(NameKey(ended));
  if (same == names_.end()) return {};
  const bool was_first = *same->second.begin() == ended.id;
  same->second.erase(ended.id);
  if (same->second.empty()) {
    names_.erase(same);
    return {};
  }
  const JobRow& next = jobs_.at(*same->second.begin());
  return was_first && next.scheduling.singleton() ? Unblock(next) : Status();
}

// --- elements that wait for those of other arrays ---

Status State::GateElements(const JobRow& job, Array* array) {
  Positions never;
  for (const uint64_t id : job.scheduling.after_corresponding()) {
    VRUN_ASSIGN(const JobRow other, Find(id));
    VRUN_ASSIGN(const v1::ArrayInfo info, InfoOfArray(other, false));
    VRUN_ASSIGN(const std::vector<ElementEnd> ends, store_->EndedElements(id));
    const Array* open = FindArray(id);
    std::set<uint32_t> jobs;
    for (const v1::ArrayElement& element : ElementsOf(id)) jobs.insert(element.index());
    auto end = ends.begin();
    ElementWalk theirs(info.array());
    for (ElementWalk mine(array->row.array); !mine.over(); mine.Next()) {
      while (!theirs.over() && theirs.index() < mine.index()) theirs.Next();
      if (theirs.over() || theirs.index() != mine.index()) {
        return Error(Code::kInvalid, "dependency: array " + std::to_string(id) + " has no element " +
                                         std::to_string(mine.index()) + ": give this array the indexes of that one");
      }
      while (end != ends.end() && end->index < mine.index()) ++end;
      if (end != ends.end() && end->index == mine.index()) {
        if (!end->completed) never.Add(mine.position());
      } else if (open != nullptr && (open->row.left.Contains(theirs.position()) || jobs.contains(mine.index()))) {
        array->row.gated.Add(mine.position());
      } else {
        never.Add(mine.position());
      }
    }
  }
  if (never.size() == ElementCount(array->row.array)) {
    return Error(Code::kInvalid,
                 "dependency: no corresponding element has succeeded or still can, so this would never start: "
                 "leave the dependency out");
  }
  array->row.left.Remove(never);
  array->row.gated.Remove(never);
  array->row.cancelled += never.size();
  return {};
}

Result<std::optional<bool>> State::Completed(uint64_t id, uint32_t index) {
  if (const Array* array = FindArray(id)) {
    const auto position = PositionOf(array->row.array, index);
    if (position && array->row.left.Contains(*position)) return std::optional<bool>();
  }
  VRUN_ASSIGN(const std::optional<uint64_t> job, store_->FindElement(id, index));
  if (!job) return std::optional<bool>(false);
  if (jobs_.contains(*job)) return std::optional<bool>();
  VRUN_ASSIGN(const std::optional<v1::JobState> state, store_->StateOfJob(*job));
  return std::optional<bool>(state == v1::COMPLETED);
}

Status State::TellCorresponding(uint64_t id, const Positions& which, bool completed) {
  std::vector<uint64_t> others;
  for (auto [it, end] = dependents_.equal_range(id); it != end; ++it) {
    if (it->second.how == Depends::kCorresponding) others.push_back(it->second.job);
  }
  if (others.empty()) return {};
  std::vector<uint32_t> indexes;
  for (const v1::Array::Range& range : RangesOf(arrays_.at(id).row.array, which)) {
    for (uint64_t index = range.first(); index <= range.last(); index += std::max(range.step(), 1u)) {
      indexes.push_back(static_cast<uint32_t>(index));
    }
  }
  for (const uint64_t other : others) {
    const auto it = arrays_.find(other);
    if (it == arrays_.end()) continue;
    Array& array = it->second;
    Positions mine;
    for (const uint32_t index : indexes) {
      const auto position = PositionOf(array.row.array, index);
      if (!position || !array.row.gated.Contains(*position)) continue;
      bool free = true;
      for (const uint64_t also : jobs_.at(other).scheduling.after_corresponding()) {
        if (!completed || also == id || !free) continue;
        VRUN_ASSIGN(const std::optional<bool> succeeded, Completed(also, index));
        free = succeeded == true;
      }
      if (free) mine.Add(*position);
    }
    if (mine.empty()) continue;
    if (!completed) {
      consequences_.push_back({other, "", std::move(mine)});
      continue;
    }
    array.row.gated.Remove(mine);
    mine.Remove(array.row.held);
    array.ready.Add(mine);
    array.sets_changed = true;
    unsaved_.insert(other);
    Touch(other);
  }
  return {};
}

}  // namespace vrun::control
