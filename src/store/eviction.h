// SPDX-License-Identifier: Apache-2.0
// Which object goes first: a segmented LRU over bytes. New objects are on probation and leave first, so that one walk
// over the whole root does not push out what is used every day; an object used again moves to the protected segment,
// which holds at most `protected_bytes`.
//
// Also the table of the objects that are in memory. Not thread safe: the store's lock is around it.
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
  // The entry, made if need be, as the most recently used of its segment; promoted when it was there already with
  // content and nobody was using it.
  Entry& Use(const ObjectId& id);
  // An object found on disk by the scan, older than everything known. No-op when known.
  void AddOldest(const ObjectId& id, uint64_t bytes);
  void SetBytes(Entry& entry, uint64_t bytes);
  void SetProtectedLimit(uint64_t bytes);
  // Takes the entry out. Its object is handed back so that it can be destroyed outside the lock.
  std::shared_ptr<ObjectBase> Remove(const ObjectId& id);

  // The next one to evict, taken out of the index; nullptr-like (bytes 0, false) when all are in use or none has bytes.
  bool TakeVictim(Entry* victim);
  // Lets go of in-memory objects that nobody uses, at most all but `keep` of them, oldest first. They are handed back.
  std::vector<std::shared_ptr<ObjectBase>> TrimResident(size_t keep);
  // All of them, in use or not: the end.
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
