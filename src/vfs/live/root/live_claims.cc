// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/root/live_claims.h"

#include <algorithm>

#include "base/clock.h"

namespace vrun::vfs {
namespace {

using State = LiveSavedClaim::State;

constexpr int64_t kLookMicros = 250'000;
constexpr int64_t kBriefMicros = 2'000'000;  // more than kLookMicros
constexpr size_t kMostNames = 1024;          // SharedUse::names
constexpr size_t kMostPostponed = 10'000;    // the kernel does not cache them

bool IsOfDirectory(const LiveNode* node) { return node != nullptr && node->is_directory(); }

}  // namespace

// --- requests --------------------------------------------------------------------------------------------------------

bool LiveClaims::MayWantLocked(const LiveNode& directory) const {
  return tree_.journaled() && (directory.directory->shared != nullptr || MonotonicMicros() < anywhere_until_);
}

bool LiveClaims::WantsLocked(LiveNode* directory, const std::string& name) {
  if (!tree_.journaled() || !tree_.stream().takes_claims() || notices_.doubted()) return false;
  const int64_t now = MonotonicMicros();
  if (now < anywhere_until_) directory->directory->Shared().SeenFor(anywhere_until_ - now, 0, now);
  SharedUse* const use = directory->directory->shared.get();
  if (use == nullptr || use->until <= now) return false;
  if (now < anywhere_until_ && use->names.empty() && use->fresh == 0) use->fresh = kFresh;
  if (use->names.contains(name)) {
    UncacheLocked(directory, SharedUse::kMicros);
    return true;
  }
  if (use->fresh == 0) return false;
  --use->fresh;
  if (use->names.size() >= kMostNames) use->names.clear();
  use->names.insert(name);
  return true;
}

void LiveClaims::AddLocked(uint64_t unique, uint64_t operation, LiveNode* directory, const std::string& name) {
  UncacheLocked(directory, kBriefMicros);
  if (!ever_) NoteEver(tree_.FrameLocked());
  ever_ = true;
  Claim& claim = claims_[unique];
  claim.is = {operation, directory->nodeid, name, State::kAsked};
  NoteLocked(unique, claim);
}

std::optional<bool> LiveClaims::WaitLocked(uint64_t unique, Done done) {
  Claim& claim = claims_.at(unique);
  if (claim.is.state == State::kRefused) return false;
  if (claim.is.state == State::kMade && !NeedsTreeLocked(claim)) return true;
  claim.done = std::move(done);
  claim.deadline = MonotonicMicros() + (claim.is.state == State::kMade ? kMostForTree : kMostMicros);
  WatchLater(unique);
  return std::nullopt;
}

void LiveClaims::OverLocked(uint64_t unique) {
  const auto it = claims_.find(unique);
  if (it == claims_.end()) return;
  it->second.is.state = State::kOver;
  NoteLocked(unique, it->second);
  claims_.erase(it);
}

bool LiveClaims::IsUncached(const LiveNode& directory) {
  const SharedUse* const use = directory.directory->shared.get();
  return use != nullptr && use->uncached != 0 && use->uncached > MonotonicMicros();
}

void LiveClaims::NoteLocked(uint64_t unique, const Claim& claim) {
  if (LiveFrame* frame = tree_.FrameLocked()) frame->Claim(unique, claim.is);
}

// While the kernel is being told of names of the directory, no other tree is merged, and telling waits for the lock
// that the kernel holds for the request.
bool LiveClaims::NeedsTreeLocked(const Claim& claim) const {
  return !telling_restored_ && !telling_.contains(claim.is.directory);
}

void LiveClaims::FinishLocked(Claim* claim, bool made, Calls* calls) {
  if (!claim->done) return;
  calls->push_back([done = std::exchange(claim->done, nullptr), made] { done(made); });
}

void LiveClaims::UncacheLocked(LiveNode* directory, int64_t micros) {
  const int64_t now = MonotonicMicros();
  SharedUse& use = directory->directory->Shared();
  if (use.uncached <= now) expiring_.insert(directory->nodeid);
  use.uncached = std::max(use.uncached, now + micros);
}

void LiveClaims::WatchLater(uint64_t unique) {
  timers_.After(kLookMicros, tree_.Guarded([this, unique] { Watch(unique); }));
}

// Ends the wait for a home that is silent or slow.
void LiveClaims::Watch(uint64_t unique) {
  Calls calls;
  {
    const TreeLock lock(tree_);
    const auto it = claims_.find(unique);
    if (it == claims_.end()) return;
    if (!it->second.done) {
      OverLocked(unique);  // its answer failed on the way
    } else if (notices_.doubted() || MonotonicMicros() > it->second.deadline) {
      FinishLocked(&it->second, true, &calls);
    } else {
      if (LiveNode* node = tree_.Find(it->second.is.directory); IsOfDirectory(node)) UncacheLocked(node, kBriefMicros);
      WatchLater(unique);
    }
  }
  for (const auto& call : calls) call();
}

// --- home ------------------------------------------------------------------------------------------------------------

void LiveClaims::AcknowledgedLocked(uint64_t number, const std::vector<LiveStream::Applied>& applied, Calls* calls) {
  for (auto& [unique, claim] : claims_) {
    if (claim.is.state != State::kAsked) continue;
    const bool refused = std::any_of(applied.begin(), applied.end(), [&claim = claim](const LiveStream::Applied& one) {
      return one.refused && one.number == claim.is.number;
    });
    if (!refused && claim.is.number > number) continue;
    claim.is.state = refused ? State::kRefused : State::kMade;
    LiveNode* const node = refused ? tree_.Find(claim.is.directory) : nullptr;
    if (IsOfDirectory(node)) UncacheLocked(node, SharedUse::kMicros);
    NoteLocked(unique, claim);
    claim.deadline = std::min(claim.deadline, MonotonicMicros() + kMostForTree);
    if (refused || !NeedsTreeLocked(claim)) FinishLocked(&claim, !refused, calls);
  }
}

void LiveClaims::ShownLocked(uint64_t operation, Calls* calls) {
  for (auto& [unique, claim] : claims_) {
    if (claim.is.state == State::kMade && claim.is.number <= operation) FinishLocked(&claim, true, calls);
  }
}

void LiveClaims::OthersLocked(const std::vector<uint64_t>& directories) {
  if (!tree_.journaled()) return;
  const int64_t now = MonotonicMicros();
  for (const uint64_t nodeid : directories) {
    LiveNode* const node = tree_.Find(nodeid);
    if (IsOfDirectory(node)) node->directory->Shared().SeenFor(SharedUse::kMicros, kFresh, now);
  }
}

LiveClaims::Names LiveClaims::ClaimedLocked() const {
  Names names;
  for (const auto& [unique, claim] : claims_) names.emplace(claim.is.directory, claim.is.name);
  return names;
}

void LiveClaims::PostponeLocked(bool can_expire, std::vector<std::pair<uint64_t, std::string>>* names, Names* expire) {
  std::vector<std::pair<uint64_t, std::string>> now;
  const auto sort = [&](const std::pair<uint64_t, std::string>& name) {
    const LiveNode* const node = tree_.Find(name.first);
    const bool later = IsOfDirectory(node) && IsUncached(*node);
    if (!later) now.push_back(name);
    return later;
  };
  for (auto it = postponed_.begin(); it != postponed_.end();) it = sort(*it) ? std::next(it) : postponed_.erase(it);
  // What got a postponed name meanwhile may be somebody's working directory, which must keep its path.
  std::erase_if(now, [&](const auto& name) {
    const LiveNode* const node = tree_.Find(name.first);
    if (!can_expire || !IsOfDirectory(node)) return false;
    const auto entry = node->directory->entries.find(name.second);
    const bool named = entry != node->directory->entries.end() && entry->second.node != nullptr;
    if (named) expire->insert(name);
    return named;
  });
  for (const auto& name : *names) {
    if (sort(name)) postponed_.insert(name);
  }
  if (postponed_.size() > kMostPostponed) postponed_.clear();
  *names = std::move(now);
  std::set<uint64_t> waiting;
  for (const auto& [unique, claim] : claims_) {
    if (claim.done) waiting.insert(claim.is.directory);
  }
  for (auto it = expiring_.begin(); it != expiring_.end();) {
    const LiveNode* const node = tree_.Find(*it);
    if (waiting.contains(*it)) {
      ++it;
      continue;
    }
    if (IsOfDirectory(node) && can_expire) {
      for (const auto& [name, entry] : node->directory->entries) {
        if (entry.node != nullptr && entry.node->lookups > 0) expire->emplace(*it, name);
      }
      for (auto& name : notices_.TakeAbsentIn(*it)) expire->insert(std::move(name));
    }
    it = expiring_.erase(it);
  }
  names->insert(names->end(), expire->begin(), expire->end());
  for (const auto& [directory, name] : *names) telling_.insert(directory);
}

// --- restart ---------------------------------------------------------------------------------------------------------

void LiveClaims::Restore(const LiveState& state) {
  for (const auto& [unique, saved] : state.claims) {
    if (unique != kEver) claims_[unique] = {saved, nullptr, 0, true};
  }
  ever_ = state.claims.contains(kEver);
  anywhere_until_ = MonotonicMicros() + SharedUse::kMicros;
  telling_restored_ = true;
}

void LiveClaims::NoteEver(LiveFrame* frame) {
  if (frame != nullptr) frame->Claim(kEver, {0, 0, "", State::kMade});
}

void LiveClaims::AddToCheckpoint(LiveFrame* all) const {
  if (ever_) NoteEver(all);
  for (const auto& [unique, claim] : claims_) all->Claim(unique, claim.is);
}

void LiveClaims::DropUnclaimedLocked(std::vector<LiveSavedClaim>* made) {
  for (auto it = claims_.begin(); it != claims_.end();) {
    const auto [unique, claim] = std::pair(it->first, &it->second);
    ++it;
    if (!claim->restored || claim->done || claim->is.state == State::kAsked) continue;
    if (claim->is.state == State::kMade) made->push_back(claim->is);
    OverLocked(unique);
  }
}

bool LiveClaims::IsWaitingForResentLocked() const {
  return std::any_of(claims_.begin(), claims_.end(),
                     [](const auto& item) { return item.second.restored && !item.second.done; });
}

}  // namespace vrun::vfs
