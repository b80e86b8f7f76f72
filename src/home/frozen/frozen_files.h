// SPDX-License-Identifier: Apache-2.0
// The files of trees that were frozen: their content stays to be had, whatever happens at home meanwhile.
//
// Nothing is copied when a tree is frozen. Its files are held open instead, each with a read lease (lease.h), by a
// thread in the background:
//   removed, or another one renamed over it   the descriptor keeps the inode
//   about to be written to or cut             the writer waits until there is a copy (kept_content.h)
//   mode, owner, times, another name          the lease says that the content is the same
// What has changed in any of these ways is copied soon after, so that it survives the end of this process.
//
// What cannot be leased because somebody has it open to write is copied at once, up to kEagerBytes. What belongs to
// somebody else (we are not root) is only held open: it counts as unchanged while its size and its time of modification
// are what they were. All else, and what changed before its turn, is lost: to read it is an error that names it, as for
// any tree. Never a mixture: what is read is the version that was asked for, or nothing.
//
// Costs one descriptor and some 2 KiB of kernel memory a file, and 10 us of the background when it is first held; trees
// share what they have in common. Who is removed as a mount point has to wait for the end of the last job that has it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/io/work_queue.h"
#include "base/unique_fd.h"
#include "home/frozen/kept_content.h"
#include "home/frozen/lease.h"
#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread. BlockLeaseSignals comes before.
class FrozenFiles final : public ContentFiles {
 public:
  struct Options {
    KeptContent::Options kept;
    size_t max_files = 0;  // held at a time; 0: as many as descriptors and memory allow
    // The root as it is by now: where a file is whose directory was renamed. Null: it is not known yet. Any thread.
    std::function<tree::SnapshotPtr()> now = nullptr;
  };
  static constexpr uint64_t kEagerBytes = 64u << 20;

  // A claim to the files of one tree: what it was given first, then the rest. Must not outlive the FrozenFiles.
  class Hold {
   public:
    ~Hold();
    // Every file that can be held is.
    bool complete() const { return complete_.load(); }
    uint64_t files() const { return files_.load(); }
    uint64_t left_out() const { return left_out_.load(); }

   private:
    friend class FrozenFiles;
    struct Parts;
    FrozenFiles* owner_ = nullptr;
    std::shared_ptr<Parts> parts_;
    std::atomic<bool> complete_{false};
    std::atomic<uint64_t> files_{0}, left_out_{0};
  };
  using HoldPtr = std::shared_ptr<Hold>;

  struct Stats {
    size_t held = 0;  // open
    KeptContent::Stats kept;
    uint64_t lost = 0;      // could not be held, or could not be copied in time
    std::string last_lost;  // why, the last time
  };

  // `root` is not owned.
  FrozenFiles(const ContentFiles* root, Options options);
  ~FrozenFiles() override;

  // At the end of home, while holds are there: what has changed so far is copied, which is waited for. Nothing is
  // copied after it.
  void Close();

  // Returns at once. `first`: absolute paths of files and directories, the ones that are likely to change. `before`:
  // the hold that this one takes the place of; it stays until this one holds what both have, also where it has not
  // begun yet: copies that belong to neither for a moment would be dropped.
  HoldPtr Freeze(tree::SnapshotPtr tree, std::vector<std::string> first, HoldPtr before = nullptr);
  // Only what is first, until another hold takes its place.
  HoldPtr FreezeFirst(tree::SnapshotPtr tree, std::vector<std::string> first);
  // Waits until everything that was asked for before is held, or cannot be, and no copy is under way; for tests.
  void Settle();
  // Drops copies that belong to no hold, soon. (Not done when a hold goes: at the end of home all of them go, and the
  // copies are for the next one.)
  void DropUnclaimed();
  Stats stats() const;

  // --- ContentFiles: what the root has, and what it had ---
  Result<UniqueFd> OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const override;
  Status Check(int fd, std::string_view path, const tree::FileVersion& version) const override;

 private:
  struct File;
  struct Directory;
  struct Walk;
  using FilePtr = std::shared_ptr<File>;
  using DirectoryPtr = std::shared_ptr<Directory>;

  HoldPtr MakeHold();
  // On the builder.
  void Build(const std::weak_ptr<Hold>& hold, const tree::SnapshotPtr& tree, const std::vector<std::string>& first,
             bool all_of_it);
  DirectoryPtr BuildDirectory(Walk* walk, const std::string& path, const tree::DirectoryPtr& directory);
  // Files that are not at their path any more, but elsewhere. How many of them are held now.
  uint64_t ProtectMoved(Walk* walk);
  bool HasRoom(size_t most) const;
  // Unless `most` are held already.
  FilePtr Protect(const std::string& path, const tree::Entry& entry, size_t most);

  void Attend();  // the thread that hears of leases
  void KeepWhatChanged();
  void KeepThose(bool writer_waits, const std::function<bool(int fd, const tree::FileVersion&)>& so);
  void KeepSoon(FilePtr file, bool writer_waits);
  // Copies it and lets go of it. `writer_waits`: the lease is given back in any case.
  void Keep(const FilePtr& file, bool writer_waits);
  void Gone(File* file);
  static bool Intact(const File& file);
  FilePtr Find(const tree::FileVersion& version) const;

  const ContentFiles* const root_;
  const Options options_;
  const size_t max_files_;
  mutable KeptContent kept_;
  mutable std::mutex mutex_;
  mutable std::condition_variable settled_;  // a file has passed to its copy
  // Guarded by mutex_, as what is marked so in File.
  std::unordered_map<tree::FileVersion, std::weak_ptr<File>, tree::FileVersionHash> files_;
  std::unordered_map<int, std::weak_ptr<File>> held_;  // by descriptor
  size_t keeping_ = 0;                                 // copies that were asked for
  bool drop_again_ = false;                            // when they are made
  uint64_t lost_ = 0;
  std::string last_lost_;
  bool attending_ = false;

  std::unordered_map<std::string, std::weak_ptr<Directory>> directories_;  // the builder's; by path and digest
  std::atomic<bool> stopping_{false};
  std::unique_ptr<LeaseBreaks> breaks_;
  UniqueFd wake_;
  std::thread attendant_;
  WorkQueue keepers_{"keep", 4};
  WorkQueue builder_{"freeze"};
};

}  // namespace vrun::home
