// SPDX-License-Identifier: Apache-2.0
// The node's disk cache of file content and directory objects. Everything in it can be fetched again, so losing an
// entry is never an error; serving a wrong byte always is. What is read was verified on arrival by this process, or
// against its digest on the first use since this process started, or since somebody else touched its file: when the
// file's change time, size or inode are not as our own last write left them, nothing of it counts as verified any more.
// Not seen while this process lives: damage that leaves the change time alone, which is the disk's own, and damage
// while we write to the same file, or in the clock's tick of our last write (4 ms before Linux 6.13). Verify finds it.
//
// On disk, below Options::directory (one for each user and home: content of one is never reachable by another's name):
//   objects/ab/HEX.A      content at its true offsets, sparse while incomplete; A is the IdAlgorithm
//   objects/ab/HEX.A.map  log of the units that are present, with their digests (src/store/format/unit_map.h); a file
//   of one
//                         unit with its final id has none: its name is the digest
//   blobs/*.pack          directory objects, appended (src/store/format/blob_packs.h)
//   aliases               provisional id -> final id, appended
// The directory must be on a file system on which files can back FUSE passthrough (not overlayfs). Several processes
// may use one directory at the same time; what one of them evicts, another finds missing.
//
// Thread safety: all of Store and Object, any thread. Calls do disk I/O and may block for it. No fd is held per object:
// an LRU keeps at most Options::max_open_files open.
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
  uint64_t max_bytes = 20ull << 30;  // the store evicts down to this
  // ... and until the file system has this much left, whoever fills it: looked at while writing, and every so often.
  // The amount counts up to a tenth of the file system; a percentage, when given, replaces it. With it 10,000 inodes
  // stay free, or a tenth of those there are, or that percentage.
  uint64_t min_free_bytes = 1ull << 30;
  uint32_t min_free_percent = 0;
  int64_t free_space_check_micros = 1'000'000;
  size_t max_open_files = 256;
  // What another process has put into an object may go unnoticed for so long.
  int64_t refresh_micros = 100'000;
  // Not a cache: nothing is evicted by itself, a disk that is full is an error, and only Sweep and Prune remove. The
  // bounds above do not count then.
  bool keep_all = false;
};

struct Stats {
  uint64_t bytes = 0;  // on disk, as far as the background count has come
  uint64_t limit_bytes = 0;
  uint64_t objects = 0;
  uint64_t hits = 0;           // units served by Read
  uint64_t misses = 0;         // units asked for and not present
  uint64_t corrupt_units = 0;  // dropped because they did not match their digest (directory objects too)
  uint64_t evictions = 0;      // objects
  uint64_t failed_writes = 0;  // Puts that the disk refused
  uint64_t disk_free_bytes = 0;
  uint64_t min_free_bytes = 0;  // the watermark, as it counts here
};

struct UnitRange {
  uint64_t first = 0;  // unit index
  uint64_t count = 0;
  bool operator==(const UnitRange&) const = default;
};

struct PutUnit {
  Digest digest;
  std::string_view data;  // a whole unit; the last of the file may be shorter
};

// One file's content. Holding the pointer pins it against eviction by this process, so hold it while a file is open or
// being fetched, not for every known name. Survives the Store's destruction only as a reference: every call fails then.
class Object {
 public:
  virtual ~Object() = default;

  // The final id after Resolve (or after a provisional object of one unit got its content).
  virtual ObjectId id() const = 0;
  virtual uint64_t size() const = 0;

  // All units that [offset, offset+length) touches, cut at the end of the file, are present. Unverified ones count:
  // Read may still find one of them corrupt.
  virtual bool Has(uint64_t offset, uint64_t length) = 0;
  // Those that are not, ascending, neighbours merged.
  virtual std::vector<UnitRange> MissingUnits(uint64_t offset, uint64_t length) = 0;
  // Bytes read: n, less at the end of the file. kNotFound when a unit is not there, or was corrupt and has been
  // dropped: fetch what MissingUnits says and try again. `buffer` is undefined after an error.
  virtual Result<size_t> Read(uint64_t offset, void* buffer, size_t n) = 0;

  // Adds consecutive units. Data is on disk before the map says that it is present: a crash leaves a unit either there
  // or absent. Units that are present already are left alone. Errors:
  //   kInvalid    wrong unit count or length
  //   kCorrupt    data does not match its digest (only looked at unless `verified`), or the object became complete and
  //               is not what its id says: all of it is dropped
  //   kAborted    a unit is present with another digest: the file changed at home under one version
  //   kExhausted  the disk is full (or fails) and eviction did not help; serve the data from memory
  virtual Status Put(uint64_t first_unit, std::span<const PutUnit> units, bool verified) = 0;
  Status Put(uint64_t first_unit, std::span<const PutUnit> units) { return Put(first_unit, units, false); }

  virtual bool complete() = 0;
  // Verifies so many bytes of what does not count as verified, and drops what is wrong. How many are left then; nullopt
  // when the object is incomplete. With 0 it is one system call on the warm path.
  virtual std::optional<uint64_t> VerifySome(uint64_t bytes) = 0;
  // A read-only descriptor whose content is the whole file, for FUSE passthrough. Verifies all that is left to verify
  // (about 1 s per GB on the first call after a restart: not on a hot thread). kNotFound when incomplete.
  virtual Result<UniqueFd> OpenForPassthrough() = 0;
  // A descriptor to read [offset, offset+length) of the file with, cut at its end: verifies what of that is left to
  // verify. The rest may be missing in it, or not as it should be; with length 0 all of it may. kNotFound as for Read.
  virtual Result<UniqueFd> OpenPart(uint64_t offset, uint64_t length) = 0;

  // Gives a provisional object its final name; the provisional one is gone then and this Object stands for the final
  // one. If that exists, the units are merged. Remembered across restarts: Acquire(provisional) gives the final one.
  // kInvalid when this object has another final id already. kCorrupt as for Put.
  virtual Status Resolve(const ObjectId& final_id) = 0;
};

class Store {
 public:
  // Makes the directory. Counts what is there in the background. Fails when it cannot be written.
  static Result<std::unique_ptr<Store>> Open(const Options& options);
  virtual ~Store() = default;

  // No I/O; nothing is created on disk before the first Put. kInvalid when the object is known with another size.
  virtual Result<std::shared_ptr<Object>> Acquire(const ObjectId& id, uint64_t size) = 0;

  // Directory objects. GetBlob verifies: kNotFound when absent or corrupt. PutBlob does not check the digest (the
  // caller has); kExhausted as for Put.
  virtual Result<std::string> GetBlob(const Digest& digest) = 0;
  virtual Status PutBlob(const Digest& digest, std::string_view bytes) = 0;

  virtual Stats stats() const = 0;
  // Evicts objects in no use until the store holds at most `bytes`. Returns what it holds then: more than that when the
  // rest is in use. Directory objects stay; they have a bound of their own.
  virtual Result<uint64_t> Prune(uint64_t bytes) = 0;
  // Removes every object and every blob that is not needed, in use or not. Nobody may be writing meanwhile: what was
  // put and is not needed yet would go. Returns the bytes on disk that became free.
  virtual Result<uint64_t> Sweep(const std::function<bool(const ObjectId&)>& object_needed,
                                 const std::function<bool(const Digest&)>& blob_needed) = 0;
  // The bound from now on, instead of Options::max_bytes. No I/O; what is beyond it goes soon after, in the background.
  virtual void SetLimit(uint64_t max_bytes) = 0;
  // Called when nothing can be evicted because all of it is in use, before that becomes an error: for whoever keeps
  // Objects that nobody reads at the moment. On the thread that needs the room, which holds locks of the store: it may
  // release Objects and do nothing else with the store. Null: nobody. Returns when the one before runs no more.
  virtual void OnPressure(std::function<void()> release) = 0;
  // Somebody else has run out of what this takes, for something that cannot be fetched again: of `bytes` of the disk
  // (`error`: ENOSPC, EDQUOT) or of descriptors (EMFILE, ENFILE). True: some of it was given up, it is worth another
  // try.
  virtual bool GiveWay(int error, uint64_t bytes) = 0;

  struct VerifyReport {
    uint64_t objects = 0;
    uint64_t units = 0;
    uint64_t bytes = 0;
    uint64_t corrupt_units = 0;  // dropped by this call
    uint64_t total_objects = 0;  // that there were at the beginning
  };
  // Reads everything, verified before or not. Takes as long as the disk needs. `progress` (may be null) is called after
  // every object; kAborted once it returns false.
  virtual Result<VerifyReport> Verify(const std::function<bool(const VerifyReport&)>& progress) = 0;
  Result<VerifyReport> Verify() { return Verify(nullptr); }
  // Waits for the background count (tests, stats for people).
  virtual void WaitForScan() = 0;
};

}  // namespace vrun::store
