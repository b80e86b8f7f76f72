// SPDX-License-Identifier: Apache-2.0
#include "node/frame_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "proto/content.pb.h"
#include "store/statement.h"

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
    std::lock_guard lock(mutex_);
    for (const auto& [name, place] : places) {
      // The latest run is the one that home knows best.
      if (places_.insert_or_assign(name, place).second && wanted_.contains(name)) start.emplace_back(name, place);
    }
    std::erase(tables_, table->id);
    tables_.push_back(table->id);
    if (tables_.size() > kTables) {
      std::erase_if(places_, [&](const auto& item) { return item.second.table->id == tables_.front(); });
      tables_.pop_front();
    }
  }
  for (const auto& [name, place] : start) {
    fetch_(place.run, place.table, place.index,
           [this, name = name](Result<Frame> frame) { Arrived(name, std::move(frame)); });
  }
}

void FrameExchange::Get(const Digest& name, Done done) {
  Frame kept;
  std::optional<Place> place;
  {
    std::lock_guard lock(mutex_);
    if (const auto recent = recent_.find(name); recent != recent_.end()) {
      kept = recent->second.frame;
    } else {
      auto [wanted, fresh] = wanted_.try_emplace(name);
      wanted->second.push_back(std::move(done));
      if (!fresh) return;
      if (const auto known = places_.find(name); known != places_.end())
        place = known->second;
      else
        timers_->After(table_micros_, [this, name] { GiveUp(name); });
    }
  }
  if (kept) return done(kept);
  if (!place) return;
  fetch_(place->run, place->table, place->index,
         [this, name](Result<Frame> frame) { Arrived(name, std::move(frame)); });
}

void FrameExchange::Expect() {
  std::lock_guard lock(mutex_);
  ++expected_;
}

void FrameExchange::CameOrNot() {
  std::lock_guard lock(mutex_);
  --expected_;
}

void FrameExchange::GiveUp(const Digest& name) {
  {
    std::lock_guard lock(mutex_);
    if (places_.contains(name)) return;  // it is under way
    if (expected_ > 0) {
      timers_->After(table_micros_, [this, name] { GiveUp(name); });
      return;
    }
  }
  Arrived(name, Error(Code::kNotFound, "no run here has that trace"));
}

void FrameExchange::Arrived(const Digest& name, Result<Frame> frame) {
  std::vector<Done> waiting;
  {
    std::lock_guard lock(mutex_);
    if (const auto wanted = wanted_.find(name); wanted != wanted_.end()) {
      waiting = std::move(wanted->second);
      wanted_.erase(wanted);
    }
    if (frame && !recent_.contains(name)) {
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
  for (auto& done : waiting) done(frame);
}

void FrameExchange::Forget() {
  std::lock_guard lock(mutex_);
  recent_.clear();
  ages_.clear();
  recent_bytes_ = 0;
}

}  // namespace vrun::node
