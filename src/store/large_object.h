// SPDX-License-Identifier: Apache-2.0
// A file of several units: a sparse content file and its unit map.
//
// A *life* of an object on disk begins when the two files are made and ends when they are removed; the map's nonce
// names it. What is remembered in memory belongs to one life: if the files turn out to be of another one (another
// process evicted the object and somebody made it anew), everything remembered is forgotten. Descriptors that are open
// keep the old life readable, and right.
//
// What was verified counts as long as the content file is as our last write left it (its Stamp). Other processes write
// as well: what they do to the file looks like what anybody does to it, and is verified once more. Whoever finds it
// touched opens both files again, and finds out whether they still belong together.
//
// Locks, in this order: write_mu_ (one writer of this process), flock of the map (keeps other processes' writers out),
// mu_ (the state), flock of the directory, Core's.
#pragma once

#include <sys/stat.h>

#include <optional>

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
    bool verified = false;  // by this process, in this life, since the file was touched
  };
  // What every change of a content file changes, the names that it has included.
  struct Stamp {
    uint64_t device, inode;
    int64_t size, changed_seconds, changed_nanos;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp StampOf(const struct stat& st);
  // Its life goes on on disk: nobody has evicted it.
  static bool StillLinked(const ObjectFiles& files);
  // While we write by ourselves: what that does to the stamp is no news. write_mu_ and the flock of the map are held.
  class OwnWrite;

  // mu_ held. The files of the current life, opened (and the map read) if need be, or because somebody has touched the
  // content; null when nothing is on disk.
  ObjectFilesPtr FilesLocked();
  ObjectFilesPtr OpenLocked();
  // One system call. Without `files` of the file by its name.
  bool UntouchedLocked(const ObjectFiles* files) const;
  // The content file is like this now: unless that is how we left it, nothing is verified any more.
  void NoteStampLocked(const Stamp& now);
  std::vector<UnitRange> MissingLocked(UnitRange range) const;
  // Takes over what other processes may have put there, unless that was done just now: a cold import asks for units
  // that are not there thousands of times, and five system calls each were to find it so.
  void RefreshLocked();
  void ForgetLocked();
  // Applies the records between map_end_ and the end of the map; stops at a damaged one.
  void ReadMapLocked(int map_fd);
  void ApplyLocked(const MapRecord& record);
  void AccountLocked();
  bool DigestsMatchIdLocked() const;

  // write_mu_ held, mu_ not.
  Result<ObjectFilesPtr> FilesForWriting();
  Status CreateFiles();
  // The same, and flock of the map held.
  Status SyncMap(const ObjectFiles& files);  // takes over what other processes wrote; cuts off a damaged end
  enum class Outcome { kDone, kAgain };      // kAgain: the files are gone, begin with new ones
  Result<Outcome> PutInto(const ObjectFilesPtr& files, uint64_t first_unit, std::span<const PutUnit> units);
  Status WriteUnits(const ObjectFiles& files, std::span<const uint64_t> at, uint64_t first_unit,
                    std::span<const PutUnit> units);
  Status Append(const ObjectFiles& files, const std::vector<MapRecord>& records);
  // Once the last unit is there: kCorrupt, with everything removed, unless it is what a final id says.
  Status CheckComplete(const ObjectFilesPtr& files);
  void RemoveFromDisk(const ObjectFiles& files);
  // The life of `from` goes on as ours, by renaming its content. False when we have a life of our own.
  Result<bool> Adopt(LargeObject* from, const ObjectFilesPtr& from_files);

  // No lock held.
  void DropUnit(const ObjectFilesPtr& files, uint64_t unit, const Digest& expected);
  // `epoch`: before the unit was read.
  void MarkVerified(uint64_t epoch, uint64_t unit, const Digest& digest);
  // Reads a unit that is present into *scratch; drops it when it is wrong. False when it is wrong or not there.
  bool VerifyUnit(const ObjectFilesPtr& files, uint64_t unit, std::string* scratch);
  bool UnitMatches(const ObjectFiles& files, uint64_t unit, const Digest& digest, std::string* scratch) const;

  const uint64_t files_key_;
  std::mutex write_mu_;
  std::mutex mu_;
  bool loaded_ = false;           // the disk has been looked at
  int64_t refreshed_micros_ = 0;  // when RefreshLocked last looked
  std::optional<MapNonce> life_;  // nullopt: nothing on disk
  uint64_t map_end_ = 0;          // bytes of the map that are in the state
  uint64_t present_ = 0;
  uint64_t verified_ = 0;
  std::vector<Unit> units_;  // empty or unit_count()
  std::optional<Stamp> stamp_;
  bool writing_ = false;  // an OwnWrite is under way
  uint64_t epoch_ = 1;    // another one whenever what was verified does not count any more
  bool moved_ = false;    // write_mu_: stands for another object
};

}  // namespace vrun::store
