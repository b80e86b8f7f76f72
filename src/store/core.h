// SPDX-License-Identifier: Apache-2.0
// State shared by the objects of one store: paths, limits, counters, the object table. Lives as long as the Store or
// any Object. Any thread.
//
// Lock order: an object's own locks, then Core's. Eviction does its disk I/O outside Core's lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "store/eviction.h"
#include "store/format/aliases.h"
#include "store/open_files.h"
#include "store/store.h"

namespace vrun::store {

class ObjectBase;

class Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(const Options& options);

  // Creates the directories and loads the aliases. Deletes anything else that occupies one of these names: the
  // directory belongs to the store.
  Status Prepare();

  // `used`: counts as a use for eviction.
  Result<std::shared_ptr<ObjectBase>> Acquire(const ObjectId& id, uint64_t size, bool used = true);
  void SetAlias(const ObjectId& provisional, const ObjectId& final_id);

  // "objects/ab/HEX.A" and, with `map`, ".map".
  std::string ContentPath(const ObjectId& id) const;
  std::string MapPath(const ObjectId& id) const { return ContentPath(id) + ".map"; }
  std::string ShardPath(const ObjectId& id) const;
  // Takes flock (LOCK_SH or LOCK_EX) on the directory that holds the object's files. While shared, an object's two
  // files belong together; exclusive to create or remove them. Also works between processes. Released with the
  // descriptor. LOCK_EX creates a missing directory.
  Result<UniqueFd> LockShard(const ObjectId& id, int operation);
  Status MakeShard(const ObjectId& id);

  // Evicts until `bytes` more fit below the limit and the watermark. False when that is impossible.
  bool MakeRoom(uint64_t bytes);
  // After a write failed for lack of space: evicts at least `bytes`, regardless of the limits.
  bool EvictAtLeast(uint64_t bytes);
  // Removes the object, even if in use. Returns its size on disk, as far as known.
  uint64_t Remove(const ObjectId& id);
  // Evicts until at most `bytes` are left or nothing more can be evicted.
  void EvictDownTo(uint64_t bytes);
  // Evicts until the watermark's free space is available. Others may be filling the file system, so it is called
  // repeatedly.
  void KeepFreeSpace();
  void SetLimit(uint64_t max_bytes);
  void OnPressure(std::function<void()> release);
  uint64_t limit() const { return max_bytes_; }
  // Free bytes of the file system, and how many must stay free; 0 and 0 if unknown.
  void FreeSpace(uint64_t* available, uint64_t* keep) const;
  // Like OpenFile; closes cached descriptors and retries when the process has none left.
  Result<UniqueFd> Open(const std::string& path, int flags, mode_t mode = 0);

  // Drops the cached objects, which reference this. Those in use live on.
  void Close();

  // Updates the object's size on disk.
  void SetBytes(const ObjectId& id, uint64_t bytes);
  // The object's content is gone from disk: damaged, or moved to another name.
  void Forget(const ObjectId& id);
  void AddScanned(const ObjectId& id, uint64_t bytes);
  // Bytes that belong to no object (directory objects).
  void SetOtherBytes(uint64_t bytes) { other_bytes_ = bytes; }
  uint64_t bytes() const;
  size_t objects() const;

  const Options options;
  OpenFiles files;
  std::atomic<uint64_t> hits{0}, misses{0}, corrupt{0}, evictions{0}, failed_writes{0};
  std::atomic<uint64_t> temporary_serial{0};

 private:
  int RemoveFiles(const ObjectId& id);
  // False when everything is in use, even after release_, or nothing can be removed from the disk.
  bool EvictOne(uint64_t* freed, bool asked = false);  // `asked`: evict even with never_evict
  bool TakeVictim(EvictionIndex::Entry* victim);
  // How much space is lacking to add `bytes` above the watermark; `spare`: the remaining space, if none is lacking.
  uint64_t FreeSpaceShortage(uint64_t bytes, uint64_t* spare = nullptr) const;
  // The same for inodes, which small files exhaust first; 0 if the file system has no fixed number.
  uint64_t InodeShortage(uint64_t inodes, uint64_t* spare = nullptr) const;
  bool EvictInodes(uint64_t count);

  mutable Mutex mu_;
  EvictionIndex index_ VRUN_GUARDED_BY(mu_);
  Mutex pressure_mu_;  // held while release_ runs
  std::function<void()> release_ VRUN_GUARDED_BY(pressure_mu_);
  Aliases aliases_;  // has its own lock
  std::atomic<uint64_t> other_bytes_{0};
  std::atomic<uint64_t> max_bytes_;
  std::atomic<uint64_t> unchecked_bytes_;  // at kFreeSpaceEvery the free space is checked again
};

// Whether the error means "no room" rather than "broken".
bool IsDiskFull(const Error& error);
// Whether the directory does not exist, or something else is in its place.
bool IsMissing(const Error& error);
// Whether we ran out of descriptors or memory, which says nothing about the disk's content.
bool SaysNothing(const Error& error);

}  // namespace vrun::store
