// SPDX-License-Identifier: Apache-2.0
// The node's disk cache of file content and directory objects. Everything in it can be fetched again, so a lost entry
// is never an error; a wrong byte always is. Each unit that is read was verified by this process on arrival, or against
// its digest on first use since this process started or since another writer changed its file. If the file's change
// time, size or inode differ from what our last write left, none of its units count as verified. Not detected while
// this process lives: damage by the disk itself, which does not alter the change time, and damage while we write to the
// same file or within the clock tick of our last write (4 ms before Linux 6.13). Verify finds it.
//
// On disk, below Options::directory. There is one for each user and home, so no name reaches another tenant's content:
//   objects/ab/HEX.A      content at its true offsets, sparse while incomplete; A is the IdAlgorithm
//   objects/ab/HEX.A.map  log of the units that are present, with their digests (src/store/format/unit_map.h). A
//                         file of one unit with its final id has none: its name is the digest
//   blobs/*.pack          directory objects, appended (src/store/format/blob_packs.h)
//   aliases               provisional id -> final id, appended
// The directory must be on a file system whose files can back FUSE passthrough (not overlayfs). Several processes may
// share one directory; what one evicts is simply missing for the others.
//
// Thread safety: all of Store and Object, any thread. Calls may block on disk I/O. Objects hold no descriptors: an LRU
// keeps at most Options::max_open_files open.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "store/format/object_id.h"

namespace vrun::store {

struct Options {
  std::string directory;
  uint64_t max_bytes = 20ull << 30;  // the store evicts down to this size
  // ... and until the file system has this much free, whoever fills it. Checked while writing and from time to time.
  // The amount is limited to a tenth of the file system; a percentage, if given, replaces it. Likewise 10,000 inodes
  // stay free, or a tenth of all inodes, or that percentage.
  uint64_t min_free_bytes = 1ull << 30;
  uint32_t min_free_percent = 0;
  int64_t free_space_check_micros = 1'000'000;
  size_t max_open_files = 256;
  // The maximum delay until another process's writes to an object are noticed.
  int64_t refresh_micros = 100'000;
  // Not a cache: nothing is evicted automatically, a full disk is an error, and only Sweep and Prune remove. The limits
  // above do not apply.
  bool never_evict = false;
};

struct Stats {
  uint64_t bytes = 0;  // on disk, as far as counted in the background
  uint64_t limit_bytes = 0;
  uint64_t objects = 0;
  uint64_t hits = 0;           // units served by Read
  uint64_t misses = 0;         // requested units that were not present
  uint64_t corrupt_units = 0;  // dropped because of a wrong digest (including directory objects)
  uint64_t evictions = 0;      // objects
  uint64_t failed_writes = 0;  // Puts that failed on the disk
  uint64_t disk_free_bytes = 0;
  uint64_t min_free_bytes = 0;  // the effective watermark
};

struct UnitRange {
  uint64_t first = 0;  // unit index
  uint64_t count = 0;
  bool operator==(const UnitRange&) const = default;
};

struct PutUnit {
  Digest digest;
  std::string_view data;  // a whole unit; the file's last unit may be shorter
};

// One file's content. Holding the pointer protects it against eviction by this process, so hold it while a file is open
// or being fetched, not for every known name. After the Store's destruction every call fails.
class Object {
 public:
  virtual ~Object() = default;

  // The final id after Resolve, or after a provisional object of one unit got its content.
  virtual ObjectId id() const = 0;
  virtual uint64_t size() const = 0;

  // Whether all units that [offset, offset+length) touches, up to the end of the file, are present. Unverified ones
  // count; Read may still find one corrupt.
  virtual bool Has(uint64_t offset, uint64_t length) = 0;
  // The missing units, ascending, neighbours merged.
  virtual std::vector<UnitRange> MissingUnits(uint64_t offset, uint64_t length) = 0;
  // Returns the bytes read: n, or less at the end of the file. kNotFound when a unit is missing, or was corrupt and has
  // been dropped: fetch MissingUnits and try again. `buffer` is undefined after an error.
  virtual Result<size_t> Read(uint64_t offset, void* buffer, size_t n) = 0;

  // Adds consecutive units. Data is written before the map marks it present, so after a crash a unit is either there or
  // absent. Units already present are not changed. Errors:
  //   kInvalid    wrong unit count or length
  //   kCorrupt    data does not match its digest (checked unless `verified`), or the completed object does not match
  //               its id: all of it is dropped
  //   kAborted    a unit is present with another digest: the file changed at home without a new version
  //   kExhausted  the disk is full (or fails) and eviction did not help; serve the data from memory
  virtual Status Put(uint64_t first_unit, std::span<const PutUnit> units, bool verified) = 0;
  Status Put(uint64_t first_unit, std::span<const PutUnit> units) { return Put(first_unit, units, false); }

  virtual bool complete() = 0;
  // Verifies up to this many unverified bytes and drops corrupt units. Returns the unverified rest; nullopt when the
  // object is incomplete. With 0 it costs one system call on the warm path.
  virtual std::optional<uint64_t> VerifySome(uint64_t bytes) = 0;
  // A read-only descriptor with the whole file's content, for FUSE passthrough. Verifies everything unverified (about 1
  // s per GB on the first call after a restart: do not call on a hot thread). kNotFound when incomplete.
  virtual Result<UniqueFd> OpenForPassthrough() = 0;
  // A descriptor for reading [offset, offset+length) of the file, up to its end. Verifies that range. Outside it, data
  // may be missing or wrong; with length 0 all of it may. kNotFound as for Read.
  virtual Result<UniqueFd> OpenPart(uint64_t offset, uint64_t length) = 0;

  // Gives a provisional object its final name. The provisional name is gone afterwards and this Object forwards to the
  // final one; if that exists, the units are merged. Survives restarts: Acquire(provisional) returns the final object.
  // kInvalid when this object has another final id already. kCorrupt as for Put.
  virtual Status Resolve(const ObjectId& final_id) = 0;
};

class Store {
 public:
  // Creates the directory. Counts existing content in the background. Fails if the directory is not writable.
  static Result<std::unique_ptr<Store>> Open(const Options& options);
  virtual ~Store() = default;

  // No I/O; nothing is created on disk before the first Put. kInvalid if the object is known with another size.
  virtual Result<std::shared_ptr<Object>> Acquire(const ObjectId& id, uint64_t size) = 0;

  // Directory objects. GetBlob verifies: kNotFound when absent or corrupt. PutBlob does not check the digest, the
  // caller must have; kExhausted as for Put.
  virtual Result<std::string> GetBlob(const Digest& digest) = 0;
  virtual Status PutBlob(const Digest& digest, std::string_view bytes) = 0;

  virtual Stats stats() const = 0;
  // Evicts unused objects until the store holds at most `bytes`. Returns the remaining size, larger if the rest is in
  // use. Directory objects stay; they have their own limit.
  virtual Result<uint64_t> Prune(uint64_t bytes) = 0;
  // Removes every object and blob that is not needed, even if in use. Nothing may be written meanwhile: new content
  // that is not needed yet would be removed. Returns the bytes freed on disk.
  virtual Result<uint64_t> Sweep(const std::function<bool(const ObjectId&)>& object_needed,
                                 const std::function<bool(const Digest&)>& blob_needed) = 0;
  // Replaces Options::max_bytes. No I/O; the excess is evicted soon after, in the background.
  virtual void SetLimit(uint64_t max_bytes) = 0;
  // Sets a callback for when nothing can be evicted because everything is in use, before that becomes an error. It lets
  // the owner release Objects that nobody reads at the moment. It runs on the thread that needs room, with store locks
  // held: it may only release Objects. Null: none. Returns when the previous callback no longer runs.
  virtual void OnPressure(std::function<void()> release) = 0;
  // Called when other code has run out of a resource that the store uses, for data that cannot be fetched again:
  // `bytes` of disk (`error`: ENOSPC, EDQUOT) or descriptors (EMFILE, ENFILE). True: some was freed, retry.
  virtual bool GiveWay(int error, uint64_t bytes) = 0;

  struct VerifyReport {
    uint64_t objects = 0;
    uint64_t units = 0;
    uint64_t bytes = 0;
    uint64_t corrupt_units = 0;  // dropped by this call
    uint64_t total_objects = 0;  // number of objects at the start
  };
  // Reads and verifies everything, even if verified before. Takes as long as the disk needs. `progress` (may be null)
  // is called after every object; kAborted once it returns false.
  virtual Result<VerifyReport> Verify(const std::function<bool(const VerifyReport&)>& progress) = 0;
  Result<VerifyReport> Verify() { return Verify(nullptr); }
  // Waits for the background count (tests, statistics).
  virtual void WaitForScan() = 0;
};

}  // namespace vrun::store
