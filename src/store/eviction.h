// SPDX-License-Identifier: Apache-2.0
// The eviction order: a segmented LRU by bytes. New objects are on probation and are evicted first, so that one walk
// over the whole root does not evict what is used daily. An object used again moves to the protected segment, which
// holds at most `protected_bytes`.
//
// Also the table of objects in memory. Not thread safe: guarded by the store's lock.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "store/format/object_id.h"
#include "store/store.h"

namespace vrun::store {

class ObjectBase;

class EvictionIndex {
 public:
  struct Entry {
    ObjectId id;
    uint64_t bytes = 0;                    // on disk
    std::shared_ptr<ObjectBase> resident;  // null: not in memory
    bool is_protected = false;
  };

  explicit EvictionIndex(uint64_t protected_bytes) : protected_limit_(protected_bytes) {}

  Entry* Find(const ObjectId& id);
  // Returns the entry, created if needed, as the most recently used of its segment. Promotes it if it already had
  // content and was not in use.
  Entry& Use(const ObjectId& id);
  // Adds an object found on disk by the scan, as the oldest. Does nothing if it is known.
  void AddOldest(const ObjectId& id, uint64_t bytes);
  void SetBytes(Entry& entry, uint64_t bytes);
  void SetProtectedLimit(uint64_t bytes);
  // Removes the entry. Returns its object, to be destroyed outside the lock.
  std::shared_ptr<ObjectBase> Remove(const ObjectId& id);

  // Removes the next victim from the index; false when all are in use or none has bytes.
  bool TakeVictim(Entry* victim);
  // Drops unused objects from memory until at most `keep` are left, oldest first. Returns them.
  std::vector<std::shared_ptr<ObjectBase>> TrimResident(size_t keep);
  // Returns all of them, even those in use; for shutdown.
  std::vector<std::shared_ptr<ObjectBase>> TakeResident();

  uint64_t bytes() const { return bytes_; }
  size_t size() const { return index_.size(); }
  size_t resident() const { return resident_; }
  void NoteResident() { ++resident_; }

 private:
  using List = std::list<Entry>;
  static bool InUse(const Entry& entry) { return entry.resident && entry.resident.use_count() > 1; }
  bool TakeFrom(List* list, Entry* victim);
  void Demote();

  uint64_t protected_limit_;
  uint64_t bytes_ = 0;
  uint64_t protected_bytes_ = 0;
  size_t resident_ = 0;
  List probation_;  // front: most recently used
  List protected_;
  std::unordered_map<ObjectId, List::iterator, ObjectIdHash> index_;
};

}  // namespace vrun::store
