// SPDX-License-Identifier: Apache-2.0
#include "store/eviction.h"

#include <utility>

#include "store/object_base.h"

namespace vrun::store {

EvictionIndex::Entry* EvictionIndex::Find(const ObjectId& id) {
  auto it = index_.find(id);
  return it == index_.end() ? nullptr : &*it->second;
}

EvictionIndex::Entry& EvictionIndex::Use(const ObjectId& id) {
  auto it = index_.find(id);
  if (it == index_.end()) {
    probation_.push_front(Entry{.id = id});
    index_[id] = probation_.begin();
    return probation_.front();
  }
  Entry& entry = *it->second;
  if (entry.is_protected) {
    protected_.splice(protected_.begin(), protected_, it->second);
  } else if (entry.bytes > 0 && !InUse(entry)) {
    protected_.splice(protected_.begin(), probation_, it->second);
    entry.is_protected = true;
    protected_bytes_ += entry.bytes;
    Demote();
  } else {
    probation_.splice(probation_.begin(), probation_, it->second);
  }
  return entry;
}

void EvictionIndex::Demote() {
  while (protected_bytes_ > protected_limit_ && protected_.size() > 1) {
    Entry& oldest = protected_.back();
    oldest.is_protected = false;
    protected_bytes_ -= oldest.bytes;
    probation_.splice(probation_.begin(), protected_, std::prev(protected_.end()));
  }
}

void EvictionIndex::SetProtectedLimit(uint64_t bytes) {
  protected_limit_ = bytes;
  Demote();
}

void EvictionIndex::AddOldest(const ObjectId& id, uint64_t bytes) {
  if (index_.contains(id)) return;
  probation_.push_back(Entry{.id = id, .bytes = bytes});
  index_[id] = std::prev(probation_.end());
  bytes_ += bytes;
}

void EvictionIndex::SetBytes(Entry& entry, uint64_t bytes) {
  bytes_ += bytes - entry.bytes;
  if (entry.is_protected) protected_bytes_ += bytes - entry.bytes;
  entry.bytes = bytes;
}

std::shared_ptr<ObjectBase> EvictionIndex::Remove(const ObjectId& id) {
  auto it = index_.find(id);
  if (it == index_.end()) return nullptr;
  Entry& entry = *it->second;
  SetBytes(entry, 0);
  auto object = std::move(entry.resident);
  if (object) --resident_;
  (entry.is_protected ? protected_ : probation_).erase(it->second);
  index_.erase(it);
  return object;
}

bool EvictionIndex::TakeFrom(List* list, Entry* victim) {
  // Entries in use count as recently used: they move to the front, so each is skipped only once.
  for (size_t left = list->size(); left > 0; --left) {
    auto it = std::prev(list->end());
    if (it->bytes == 0 || InUse(*it)) {
      list->splice(list->begin(), *list, it);
      continue;
    }
    victim->id = it->id;
    victim->bytes = it->bytes;
    victim->resident = Remove(it->id);
    return true;
  }
  return false;
}

bool EvictionIndex::TakeVictim(Entry* victim) { return TakeFrom(&probation_, victim) || TakeFrom(&protected_, victim); }

std::vector<std::shared_ptr<ObjectBase>> EvictionIndex::TrimResident(size_t keep) {
  std::vector<std::shared_ptr<ObjectBase>> gone;
  for (List* list : {&probation_, &protected_}) {
    for (auto it = list->end(); it != list->begin() && resident_ > keep;) {
      --it;
      if (!it->resident || InUse(*it)) continue;
      gone.push_back(std::move(it->resident));
      it->resident.reset();
      --resident_;
      if (it->bytes == 0) {
        index_.erase(it->id);
        it = list->erase(it);
      }
    }
  }
  return gone;
}

std::vector<std::shared_ptr<ObjectBase>> EvictionIndex::TakeResident() {
  std::vector<std::shared_ptr<ObjectBase>> all;
  for (List* list : {&probation_, &protected_}) {
    for (auto& entry : *list) {
      if (entry.resident) all.push_back(std::exchange(entry.resident, nullptr));
    }
  }
  resident_ = 0;
  return all;
}

}  // namespace vrun::store
