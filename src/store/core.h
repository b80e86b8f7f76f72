// SPDX-License-Identifier: Apache-2.0
// What the objects of one store share: places, limits, counters, the table of objects. Lives as long as the Store or
// any Object. Any thread.
//
// Lock order: an object's own locks, then Core's. Disk I/O of eviction happens outside Core's lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
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

  // Makes the directories, loads the aliases. What has the name of one of them and is none goes: all that is here is
  // the store's.
  Status Prepare();

  // `used`: for the order of eviction.
  Result<std::shared_ptr<ObjectBase>> Acquire(const ObjectId& id, uint64_t size, bool used = true);
  void SetAlias(const ObjectId& provisional, const ObjectId& final_id);

  // "objects/ab/HEX.A" and, with `map`, ".map".
  std::string ContentPath(const ObjectId& id) const;
  std::string MapPath(const ObjectId& id) const { return ContentPath(id) + ".map"; }
  std::string ShardPath(const ObjectId& id) const;
  // flock(LOCK_SH or LOCK_EX) on the directory that holds the object's files: while shared, the two files of an object
  // belong together; exclusive to make or remove them. Also between processes. Released with the descriptor.
  // With LOCK_EX it is made where there is none.
  Result<UniqueFd> LockShard(const ObjectId& id, int operation);
  Status MakeShard(const ObjectId& id);

  // Evicts so that `bytes` more fit below the limit and the watermark. False when that cannot be had.
  bool MakeRoom(uint64_t bytes);
  // After a write failed for want of space: evicts at least `bytes`, whatever the limits say.
  bool EvictAtLeast(uint64_t bytes);
  // Removes the object, in use or not. Returns what it took on disk, as far as that is known.
  uint64_t Remove(const ObjectId& id);
  // Evicts until at most `bytes` are there or nothing more can go.
  void EvictDownTo(uint64_t bytes);
  // Evicts what the file system lacks for the watermark. Others may be filling it: called again and again.
  void KeepFreeSpace();
  void SetLimit(uint64_t max_bytes);
  void OnPressure(std::function<void()> release);
  uint64_t limit() const { return max_bytes_; }
  // Free bytes of the file system, and how many of them are to stay free; 0 and 0 when it cannot be told.
  void FreeSpace(uint64_t* available, uint64_t* keep) const;
  // OpenFile; descriptors that are kept open are given up for it when there are no more.
  Result<UniqueFd> Open(const std::string& path, int flags, mode_t mode = 0);

  // Lets go of the objects that are kept in memory, which hold this. Those in use live on.
  void Close();

  // The object's size on disk is now this.
  void SetBytes(const ObjectId& id, uint64_t bytes);
  // The object's content is gone from disk: damaged, or moved to another name.
  void Forget(const ObjectId& id);
  void AddScanned(const ObjectId& id, uint64_t bytes);
  // Bytes that are not an object's (directory objects).
  void SetOtherBytes(uint64_t bytes) { other_bytes_ = bytes; }
  uint64_t bytes() const;
  size_t objects() const;

  const Options options;
  OpenFiles files;
  std::atomic<uint64_t> hits{0}, misses{0}, corrupt{0}, evictions{0}, failed_writes{0};
  std::atomic<uint64_t> temporary_serial{0};

 private:
  int RemoveFiles(const ObjectId& id);
  // False when all is in use, also after release_, or the disk lets nothing be removed.
  bool EvictOne(uint64_t* freed, bool asked = false);  // `asked`: though all is to be kept
  bool TakeVictim(EvictionIndex::Entry* victim);
  // What is lacking for `bytes` more above the watermark; `spare`: what is left for others, if nothing is.
  uint64_t FreeSpaceShortage(uint64_t bytes, uint64_t* spare = nullptr) const;
  // The same of inodes, which small files use up first; 0 where the file system has no fixed number.
  uint64_t InodeShortage(uint64_t inodes, uint64_t* spare = nullptr) const;
  bool EvictInodes(uint64_t count);

  mutable std::mutex mu_;
  EvictionIndex index_;
  std::mutex pressure_mu_;  // held while release_ runs
  std::function<void()> release_;
  Aliases aliases_;  // has its own lock
  std::atomic<uint64_t> other_bytes_{0};
  std::atomic<uint64_t> max_bytes_;
  std::atomic<uint64_t> unchecked_bytes_;  // at kFreeSpaceEvery the free space is looked at again
};

// The errnos that say "no room" rather than "broken".
bool IsDiskFull(const Error& error);
// There is no such directory: gone, or something else is in its place.
bool IsMissing(const Error& error);
// Out of descriptors or memory: no news about what is on disk.
bool SaysNothing(const Error& error);

}  // namespace vrun::store
