// SPDX-License-Identifier: Apache-2.0
// A file of several units: a sparse content file and its unit map.
//
// A *life* of an object on disk begins when the two files are created and ends when they are removed; the map's nonce
// identifies it. In-memory state belongs to one life. If the files belong to another life (another process evicted the
// object and somebody recreated it), all state is forgotten. Open descriptors keep the old life readable and valid.
//
// Verification is valid while the content file is as our last write left it (its Stamp). A write of another process
// cannot be told from tampering, so the file is verified again. A thread that finds the file changed reopens both files
// and checks whether they still belong together.
//
// Lock order: write_mu_ (one writer in this process), flock of the map (excludes other processes' writers), mu_ (the
// state), flock of the directory, Core's.
#pragma once

#include <sys/stat.h>

#include <optional>

#include "base/thread/mutex.h"
#include "store/format/unit_map.h"
#include "store/object_base.h"

namespace vrun::store {

class LargeObject final : public ObjectBase {
 public:
  LargeObject(std::shared_ptr<Core> core, const ObjectId& id, uint64_t size);
  ~LargeObject() override;

  void VerifyAll(Store::VerifyReport* report) override;

 private:
  std::vector<UnitRange> DoMissing(UnitRange units) override;
  Result<size_t> DoRead(uint64_t offset, char* buffer, size_t n) override;
  Status DoPut(uint64_t first_unit, std::span<const PutUnit> units) override;
  std::optional<uint64_t> DoVerifySome(uint64_t bytes) override;
  Result<UniqueFd> DoOpenForPassthrough() override;
  Result<UniqueFd> DoOpenPart(UnitRange range) override;
  Status MoveInto(const std::shared_ptr<ObjectBase>& target) override;

  struct Unit {
    Digest digest;
    bool present = false;
    bool verified = false;  // by this process, in this life, since the file last changed
  };
  // Properties of a content file of which every change alters at least one; includes its number of names.
  struct Stamp {
    uint64_t device, inode;
    int64_t size, changed_seconds, changed_nanos;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp StampOf(const struct stat& st);
  // Whether this life still exists on disk: nobody has evicted it.
  static bool StillLinked(const ObjectFiles& files);
  // Marks our own write, whose change of the stamp is expected. write_mu_ and the flock of the map are held.
  class OwnWrite;

  // mu_ held. The files of the current life. Opens them and reads the map if needed, also when somebody has changed the
  // content; null when nothing is on disk.
  ObjectFilesPtr FilesLocked() VRUN_REQUIRES(mu_);
  ObjectFilesPtr OpenLocked() VRUN_REQUIRES(mu_);
  // One system call. Without `files`, checks the file by its name.
  bool UntouchedLocked(const ObjectFiles* files) const VRUN_REQUIRES(mu_);
  // Records the content file's current stamp. Unless we left it like this, all verification is invalidated.
  void NoteStampLocked(const Stamp& now) VRUN_REQUIRES(mu_);
  std::vector<UnitRange> MissingLocked(UnitRange range) const VRUN_REQUIRES(mu_);
  // Takes over units that other processes have written, unless that was done recently: a cold import asks for missing
  // units thousands of times, and each check costs five system calls.
  void RefreshLocked() VRUN_REQUIRES(mu_);
  void ForgetLocked() VRUN_REQUIRES(mu_);
  // Applies the records between map_end_ and the end of the map; stops at a damaged one.
  void ReadMapLocked(int map_fd) VRUN_REQUIRES(mu_);
  void ApplyLocked(const MapRecord& record) VRUN_REQUIRES(mu_);
  void AccountLocked() VRUN_REQUIRES(mu_);
  bool DigestsMatchIdLocked() const VRUN_REQUIRES(mu_);

  // write_mu_ held, mu_ not.
  Result<ObjectFilesPtr> FilesForWriting();
  Status CreateFiles();
  // The same, with the flock of the map held.
  Status SyncMap(const ObjectFiles& files);  // takes over other processes' writes; cuts off a damaged end
  enum class Outcome { kDone, kAgain };      // kAgain: the files are gone, start over with new ones
  Result<Outcome> PutInto(const ObjectFilesPtr& files, uint64_t first_unit, std::span<const PutUnit> units);
  Status WriteUnits(const ObjectFiles& files, std::span<const uint64_t> at, uint64_t first_unit,
                    std::span<const PutUnit> units);
  Status Append(const ObjectFiles& files, const std::vector<MapRecord>& records);
  // After the last unit: unless the content matches its final id, removes everything and returns kCorrupt.
  Status CheckComplete(const ObjectFilesPtr& files);
  void RemoveFromDisk(const ObjectFiles& files);
  // Takes over the life of `from` by renaming its content. False when we have a life of our own.
  Result<bool> Adopt(LargeObject* from, const ObjectFilesPtr& from_files);

  // No lock held.
  void DropUnit(const ObjectFilesPtr& files, uint64_t unit, const Digest& expected);
  // `epoch`: as it was before the unit was read.
  void MarkVerified(uint64_t epoch, uint64_t unit, const Digest& digest);
  // Reads a present unit into *scratch; drops it if corrupt. False if corrupt or absent.
  bool VerifyUnit(const ObjectFilesPtr& files, uint64_t unit, std::string* scratch);
  bool UnitMatches(const ObjectFiles& files, uint64_t unit, const Digest& digest, std::string* scratch) const;

  const uint64_t files_key_;
  Mutex write_mu_;
  Mutex mu_;
  bool loaded_ VRUN_GUARDED_BY(mu_) = false;           // the disk has been checked
  int64_t refreshed_micros_ VRUN_GUARDED_BY(mu_) = 0;  // time of the last RefreshLocked check
  std::optional<MapNonce> life_ VRUN_GUARDED_BY(mu_);  // nullopt: nothing is on disk
  uint64_t map_end_ VRUN_GUARDED_BY(mu_) = 0;          // bytes of the map that have been applied
  uint64_t present_ VRUN_GUARDED_BY(mu_) = 0;
  uint64_t verified_ VRUN_GUARDED_BY(mu_) = 0;
  std::vector<Unit> units_ VRUN_GUARDED_BY(mu_);  // empty or unit_count()
  std::optional<Stamp> stamp_ VRUN_GUARDED_BY(mu_);
  bool writing_ VRUN_GUARDED_BY(mu_) = false;      // an OwnWrite is in progress
  uint64_t epoch_ VRUN_GUARDED_BY(mu_) = 1;        // changes whenever earlier verification becomes invalid
  bool moved_ VRUN_GUARDED_BY(write_mu_) = false;  // stands for another object
};

}  // namespace vrun::store
