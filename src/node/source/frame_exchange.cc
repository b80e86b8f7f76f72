// SPDX-License-Identifier: Apache-2.0
#include "node/source/frame_exchange.h"

#include <algorithm>
#include <utility>

#include "proto/content.pb.h"
#include "store/format/statement.h"

namespace vrun::node {

Digest FrameNameOf(const vfs::TraceTable& table, uint32_t index) {
  store::FrameNamer namer;
  for (const vfs::TraceRange& range : table.frames[index]) {
    namer.Add(table.files[range.file].version, range.first, range.count);
  }
  return namer.Name();
}

void FrameExchange::Add(const vfs::RunId& run, const TablePtr& table) {
  std::vector<std::pair<Digest, Place>> start;
  std::vector<std::pair<Digest, Place>> places;
  for (uint32_t i = 0; i < table->frames.size(); ++i) places.emplace_back(FrameNameOf(*table, i), Place{run, table, i});
  {
    MutexLock lock(mutex_);
    for (const auto& [name, place] : places) {
      // The latest run: home still knows it best.
      places_.insert_or_assign(name, place);
      if (in_vain_.erase(name) > 0) {
        shared_.insert(table->id);
        late_.insert(table->id);
      }
      const auto wanted = wanted_.find(name);
      if (wanted == wanted_.end() || std::exchange(wanted->second.under_way, true)) continue;
      const auto of_another = [](const Waiter& waiter) { return !waiter.asker.empty(); };
      if (std::ranges::any_of(wanted->second.waiters, of_another)) shared_.insert(table->id);
      start.emplace_back(name, place);
    }
    std::erase(tables_, table->id);
    tables_.push_back(table->id);
    if (tables_.size() > kTables) {
      std::erase_if(places_,
                    [&](const auto& item) VRUN_REQUIRES(mutex_) { return item.second.table->id == tables_.front(); });
      late_.erase(tables_.front());
      shared_.erase(tables_.front());
      tables_.pop_front();
    }
  }
  for (const auto& [name, place] : start) Start(name, place);
}

void FrameExchange::Start(const Digest& name, const Place& place) {
  fetch_(place.run, place.table, place.index, [this, name](Result<Frame> frame) { Arrived(name, std::move(frame)); });
}

void FrameExchange::Get(const Digest& name, Done done, const std::string& asker) {
  Frame kept;
  Place place;
  {
    MutexLock lock(mutex_);
    const auto known = places_.find(name);
    if (!asker.empty() && known != places_.end()) shared_.insert(known->second.table->id);
    if (const auto recent = recent_.find(name); recent != recent_.end()) {
      kept = recent->second.frame;
    } else if (const auto wanted = wanted_.find(name); wanted != wanted_.end()) {
      wanted->second.waiters.push_back({std::move(done), asker});
      return;
    } else if (known != places_.end() || !expected_.empty()) {
      wanted_[name] = {{{std::move(done), asker}}, known != places_.end(), next_expected_};
      if (known == places_.end()) return;
      place = known->second;
    } else {
      InVainLocked(name, asker);
    }
  }
  if (place.table) return Start(name, place);
  done(kept);
}

std::optional<FrameExchange::Place> FrameExchange::Resting(const Digest& name) const {
  MutexLock lock(mutex_);
  const auto known = places_.find(name);
  if (known == places_.end() || recent_.contains(name) || wanted_.contains(name)) return std::nullopt;
  return known->second;
}

uint64_t FrameExchange::Expect() {
  MutexLock lock(mutex_);
  expected_.insert(next_expected_);
  return next_expected_++;
}

void FrameExchange::CameOrNot(uint64_t expected) {
  std::vector<Waiter> in_vain;
  {
    MutexLock lock(mutex_);
    expected_.erase(expected);
    for (auto it = wanted_.begin(); it != wanted_.end();) {
      auto& [name, wanted] = *it;
      if (wanted.under_way || (!expected_.empty() && *expected_.begin() < wanted.expected)) {
        ++it;
        continue;
      }
      for (Waiter& waiter : wanted.waiters) {
        InVainLocked(name, waiter.asker);
        in_vain.push_back(std::move(waiter));
      }
      it = wanted_.erase(it);
    }
  }
  for (const Waiter& waiter : in_vain) waiter.done(Frame());
}

void FrameExchange::InVainLocked(const Digest& name, const std::string& asker) {
  if (asker.empty()) return;
  if (!in_vain_.insert(name).second) return;
  in_vain_ages_.push_back(name);
  if (in_vain_ages_.size() <= kInVain) return;
  in_vain_.erase(in_vain_ages_.front());
  in_vain_ages_.pop_front();
}

bool FrameExchange::Shared(const Digest& table) const {
  MutexLock lock(mutex_);
  return shared_.contains(table);
}

bool FrameExchange::Late(const Digest& table) const {
  MutexLock lock(mutex_);
  return late_.contains(table);
}

void FrameExchange::Arrived(const Digest& name, Result<Frame> frame) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    if (const auto wanted = wanted_.find(name); wanted != wanted_.end()) {
      waiters = std::move(wanted->second.waiters);
      wanted_.erase(wanted);
    }
    // An unsigned frame is useful only here, where its units are in the store.
    if (frame && !(*frame)->signature().empty() && !recent_.contains(name)) {
      recent_[name] = {*frame, ages_.insert(ages_.end(), name)};
      recent_bytes_ += (*frame)->data().size();
      while (recent_bytes_ > kRecentBytes) {
        const auto oldest = recent_.find(ages_.front());
        recent_bytes_ -= oldest->second.frame->data().size();
        recent_.erase(oldest);
        ages_.pop_front();
      }
    }
  }
  for (const Waiter& waiter : waiters) waiter.done(frame);
}

void FrameExchange::Forget() {
  MutexLock lock(mutex_);
  recent_.clear();
  ages_.clear();
  recent_bytes_ = 0;
}

}  // namespace vrun::node
