// SPDX-License-Identifier: Apache-2.0
// The files of frozen trees: their content stays available, whatever happens at home.
//
// Nothing is copied when a tree is frozen. A background thread holds its files open, each with a read lease (lease.h):
//   removed, or replaced by a rename          the descriptor keeps the inode
//   about to be written to or truncated       the writer blocks until there is a copy (kept_content.h)
//   mode, owner, times, another name          the lease shows that the content is the same
// A file that has changed in any of these ways is copied soon after, so that it survives the end of this process.
//
// A file that cannot be leased because somebody has it open for writing is copied at once, up to kEagerBytes. A file
// that somebody else owns (if we are not root) is only held open: it counts as unchanged while its size and mtime are
// the same. Everything else, and what changed before its turn, is lost: reading it fails with an error that names it,
// as for any tree. A read returns the requested version or an error, never a mixture.
//
// Costs one descriptor and about 2 KiB of kernel memory per file, and 10 us of background time when it is first held.
// Trees share what they have in common. A file system with held files cannot be unmounted until the last job that uses
// it ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/io/work_queue.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "home/frozen/file_lease.h"
#include "home/frozen/grown_files.h"
#include "home/frozen/old_content.h"
#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread. Call BlockLeaseSignals first.
class FrozenFiles final : public ContentFiles {
 public:
  struct Options {
    OldContent::Options kept;
    size_t max_files = 0;  // held at a time; 0: as descriptors and memory allow
    // The current tree of the root, to find files whose directory was renamed. Null: not known yet. Any thread.
    std::function<tree::TreePtr()> now = nullptr;
  };
  static constexpr uint64_t kEagerBytes = 64u << 20;

  // A claim on the files of one tree: first the `first` paths, then the rest. Must not outlive the FrozenFiles.
  class Hold {
   public:
    ~Hold();
    // True: every file that can be held is held.
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
    OldContent::Stats kept;
    uint64_t lost = 0;      // could not be held or copied in time
    std::string last_lost;  // reason of the last loss
  };

  // `root` is not owned.
  FrozenFiles(const ContentFiles* root, Options options);
  ~FrozenFiles() override;

  // Call at the end of home, while holds exist: waits until everything that has changed so far is copied. Nothing is
  // copied afterwards.
  void Close();

  // Returns at once. `first`: absolute paths of files and directories that are likely to change. `before`: the hold
  // that this one replaces. It is kept until the new hold has everything that both share, so that no copy is without a
  // hold in between and dropped.
  HoldPtr Freeze(tree::TreePtr tree, std::vector<std::string> first, HoldPtr before = nullptr);
  // Holds only `first`, until another hold replaces it.
  HoldPtr FreezeFirst(tree::TreePtr tree, std::vector<std::string> first);
  // For tests: waits until everything requested before is held or cannot be held, and no copy is in progress.
  void Settle();
  // Soon drops copies that belong to no hold. (Not done when a hold ends: at the end of home all holds end, and the
  // next home needs the copies.)
  void DropUnclaimed();
  Stats stats() const;
  // Tell it of each append that home makes to a file.
  GrownFiles& grown() { return grown_; }

  // --- ContentFiles: current and old content of the root ---
  Result<UniqueFd> OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const override;
  Status Check(int fd, std::string_view path, const tree::FileVersion& version) const override;

 private:
  // As OpenPart, but for the beginnings of files that have grown.
  Result<UniqueFd> OpenHeld(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const;
  struct File;
  struct Directory;
  struct Walk;
  using FilePtr = std::shared_ptr<File>;
  using DirectoryPtr = std::shared_ptr<Directory>;

  HoldPtr MakeHold();
  // On the builder.
  void Build(const std::weak_ptr<Hold>& hold, const tree::TreePtr& tree, const std::vector<std::string>& first,
             bool all_of_it);
  DirectoryPtr BuildDirectory(Walk* walk, const std::string& path, const tree::DirectoryPtr& directory);
  // Holds files that have moved from their path. Returns how many are held now.
  uint64_t ProtectMoved(Walk* walk);
  bool HasRoom(size_t most) const;
  // Does nothing if `most` files are already held.
  FilePtr Protect(const std::string& path, const tree::Entry& entry, size_t most);

  void Attend();  // the thread that handles lease breaks
  void CopyWhatChanged();
  void CopyThose(bool writer_waits, const std::function<bool(int fd, const tree::FileVersion&)>& so);
  void CopySoon(FilePtr file, bool writer_waits);
  // Copies the file and releases it. `writer_waits`: the lease is released in any case.
  void Keep(const FilePtr& file, bool writer_waits);
  void Gone(File* file);
  static bool Intact(const File& file);
  FilePtr Find(const tree::FileVersion& version) const;

  const ContentFiles* const root_;
  const Options options_;
  const size_t max_files_;
  mutable OldContent kept_;
  GrownFiles grown_;
  mutable Mutex mutex_;
  mutable CondVar settled_;  // a held file was replaced by its copy
  // Guarded by mutex_, as are the members of File that are marked so.
  std::unordered_map<tree::FileVersion, std::weak_ptr<File>, tree::FileVersionHash> files_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<int, std::weak_ptr<File>> held_ VRUN_GUARDED_BY(mutex_);  // by descriptor
  size_t keeping_ VRUN_GUARDED_BY(mutex_) = 0;                                 // requested copies that are not finished
  bool drop_again_ VRUN_GUARDED_BY(mutex_) = false;  // run DropUnclaimed again when keeping_ is 0
  uint64_t lost_ VRUN_GUARDED_BY(mutex_) = 0;
  std::string last_lost_ VRUN_GUARDED_BY(mutex_);
  bool attending_ VRUN_GUARDED_BY(mutex_) = false;

  // used by the builder only; by path and digest
  std::unordered_map<std::string, std::weak_ptr<Directory>> directories_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<LeaseBreaks> breaks_;
  UniqueFd wake_;
  std::thread attendant_;
  WorkQueue keepers_{"keep", 4};
  WorkQueue builder_{"freeze"};
};

}  // namespace vrun::home
