// SPDX-License-Identifier: Apache-2.0
#include "node/source/unit_exchange.h"

#include <algorithm>
#include <utility>

namespace vrun::node {

bool UnitExchange::Get(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency, Done done) {
  auto waiter = std::make_shared<Waiter>();
  waiter->place = place;
  waiter->urgency = urgency;
  waiter->first = first;
  waiter->units.resize(count);
  std::vector<std::pair<uint64_t, uint64_t>> start;  // first, count
  bool all_here = false;
  {
    MutexLock lock(mutex_);
    for (uint64_t unit = first; unit < first + count; ++unit) {
      const Key key{place.version, unit};
      if (const auto kept = recent_.find(key); kept != recent_.end()) {
        waiter->units[unit - first] = kept->second.unit;
        continue;
      }
      ++waiter->missing;
      auto [flight, fresh] = under_way_.try_emplace(key);
      flight->second.push_back(waiter);
      if (!fresh) continue;
      if (!start.empty() && start.back().first + start.back().second == unit)
        ++start.back().second;
      else
        start.emplace_back(unit, 1);
    }
    all_here = waiter->missing == 0;
    waiter->done = std::move(done);
  }
  if (all_here) waiter->done(std::move(waiter->units));
  for (const auto& [begin, n] : start) {
    fetch_(place, begin, n, urgency, [this, waiter, begin = begin, n = n](Result<SignedRange> range) {
      Arrived(waiter, begin, n, std::move(range));
    });
  }
  return !start.empty();
}

void UnitExchange::Arrived(const WaiterPtr& asker, uint64_t first, uint64_t count, Result<SignedRange> range) {
  const bool whole = range && range->units.size() == count;
  const Error error = range ? Error(Code::kInternal, "an answer of another length") : range.error();
  std::vector<std::pair<WaiterPtr, Done>> ready;
  {
    MutexLock lock(mutex_);
    for (uint64_t i = 0; i < count; ++i) {
      const Key key{asker->place.version, first + i};
      std::vector<WaiterPtr> waiters;
      if (const auto flight = under_way_.find(key); flight != under_way_.end()) {
        waiters = std::move(flight->second);
        under_way_.erase(flight);
      }
      if (whole) {
        KeepLocked(key, range->units[i]);
        if (range->units[i].statement) RememberLocked(key, range->units[i].statement);
      }
      for (const WaiterPtr& waiter : waiters) {
        if (whole) waiter->units[first + i - waiter->first] = range->units[i];
        if (!waiter->done || (whole && --waiter->missing > 0)) continue;
        ready.emplace_back(waiter, std::exchange(waiter->done, nullptr));
      }
    }
  }
  for (auto& [waiter, done] : ready) {
    if (whole) {
      done(std::move(waiter->units));
    } else if (waiter == asker) {
      done(error);
    } else {
      // A fetch of its own: the wrong request of another caller must not fail this one.
      fetch_(waiter->place, waiter->first, waiter->units.size(), waiter->urgency,
             [count = waiter->units.size(), done](Result<SignedRange> again) {
               if (!again) return done(again.error());
               if (again->units.size() != count) return done(Error(Code::kInternal, "an answer of another length"));
               done(std::move(again->units));
             });
    }
  }
}

std::optional<std::vector<HeldUnit>> UnitExchange::Recent(const tree::FileVersion& version, uint64_t first,
                                                          uint64_t count) {
  std::vector<HeldUnit> units;
  MutexLock lock(mutex_);
  for (uint64_t unit = first; unit < first + count; ++unit) {
    const auto kept = recent_.find({version, unit});
    if (kept == recent_.end()) return std::nullopt;
    units.push_back(kept->second.unit);
  }
  return units;
}

bool UnitExchange::UnderWay(const tree::FileVersion& version, uint64_t first, uint64_t count) const {
  MutexLock lock(mutex_);
  for (uint64_t unit = first; unit < first + count; ++unit) {
    if (!under_way_.contains({version, unit}) && !recent_.contains({version, unit})) return false;
  }
  return true;
}

SignedUnitsPtr UnitExchange::StatementOf(const tree::FileVersion& version, uint64_t unit) {
  MutexLock lock(mutex_);
  const auto known = statements_.find({version, unit});
  if (known == statements_.end()) return nullptr;
  statement_ages_.splice(statement_ages_.end(), statement_ages_, known->second.age);
  return known->second.statement;
}

void UnitExchange::Remember(const tree::FileVersion& version, const SignedUnitsPtr& statement) {
  const uint64_t first = statement->offset / store::UnitBytes(version.size);
  MutexLock lock(mutex_);
  for (uint64_t i = 0; i < statement->count(); ++i) RememberLocked({version, first + i}, statement);
}

void UnitExchange::ForgetStatements() {
  MutexLock lock(mutex_);
  statements_.clear();
  statement_ages_.clear();
  recent_.clear();
  recent_ages_.clear();
  recent_bytes_ = 0;
}

void UnitExchange::KeepLocked(const Key& key, const HeldUnit& unit) {
  if (recent_.contains(key)) return;
  recent_[key] = {unit, recent_ages_.insert(recent_ages_.end(), key)};
  recent_bytes_ += unit.data->size();
  while (recent_bytes_ > limits_.recent_bytes) {
    const auto oldest = recent_.find(recent_ages_.front());
    recent_bytes_ -= oldest->second.unit.data->size();
    recent_.erase(oldest);
    recent_ages_.pop_front();
  }
}

void UnitExchange::RememberLocked(const Key& key, const SignedUnitsPtr& statement) {
  if (const auto known = statements_.find(key); known != statements_.end()) {
    // A later statement may include the object id.
    known->second.statement = statement;
    statement_ages_.splice(statement_ages_.end(), statement_ages_, known->second.age);
    return;
  }
  statements_[key] = {statement, statement_ages_.insert(statement_ages_.end(), key)};
  while (statements_.size() > limits_.statements) {
    statements_.erase(statement_ages_.front());
    statement_ages_.pop_front();
  }
}

}  // namespace vrun::node
