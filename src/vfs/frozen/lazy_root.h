// SPDX-License-Identifier: Apache-2.0
// The file system of a frozen view: answers FUSE requests from a tree whose directories and content are fetched on
// first use.
//
// Locks: `mutex_` guards the inode table and is held for memory work only, never during disk or network access or a
// notification. A request that must wait keeps its Reply in a callback guarded by a Gate, so that a view can be
// destroyed while home still owes answers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/id_map.h"
#include "base/thread/mutex.h"
#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"
#include "vfs/frozen/inode_table.h"
#include "vfs/frozen/saved_view.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/push/pusher.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

struct LazyRootOptions {
  IdMap ids;
  bool passthrough = true;
  bool xattrs = true;
  bool posix_acls = false;
  bool push = true;
  bool list_attributes = true;
  bool no_open = true;
  bool resend = true;  // false: behave as if the kernel could not resend requests
  std::function<void(const std::string& path, const std::string& reason)> on_content_lost;
};

// The root entry of a tree: from the store, else from home, verified against `tree`. Blocks.
Result<tree::Entry> FetchRootEntry(Backend& backend, const Digest& tree);

class LazyRoot final : public Operations, private TracedFiles::Listener {
 public:
  // `backend`, `transport` and `saved` must outlive it. With `saved`, another process can take over the mount
  // (Restore).
  LazyRoot(Backend& backend, Transport& transport, const Digest& tree, tree::Entry root, LazyRootOptions options,
           SavedView* saved = nullptr);
  // Call after the Dispatcher has stopped. Pending callbacks from home do nothing.
  ~LazyRoot() override;

  // Call before any request: restores the state in `saved`, left by a dead process. Blocks while directories that are
  // not in the store come from home. Parts of the tree that do not arrive by the deadline are lost to their users
  // (ESTALE).
  void Restore() VRUN_NO_THREAD_SAFETY_ANALYSIS;

  // See View::Advance. Notifies through `dispatcher`.
  Status Advance(Dispatcher& dispatcher, const Digest& tree);

  Digest tree() const;
  size_t inodes() const;
  // Stops pushing. Call after the connection has ended.
  void StopPushing();
  uint64_t pushed() const { return pusher_ ? pusher_->pushed() : 0; }
  uint64_t passthrough_opens() const { return passthrough_opens_.load(); }
  bool passthrough_offered() const { return passthrough_offered_.load(); }

  InitChoice Init(const KernelOffer& offer) override;
  void Lookup(const Request& request, std::string_view name, Reply reply) override;
  void Forget(uint64_t nodeid, uint64_t count) override;
  void GetAttr(const Request& request, Reply reply) override;
  void ReadLink(const Request& request, Reply reply) override;
  void Open(const Request& request, uint32_t flags, Reply reply) override;
  void Read(const Request& request, uint64_t offset, uint32_t size, Reply reply) override;
  void Release(const Request& request, uint64_t handle, Reply reply) override;
  void OpenDir(const Request& request, Reply reply) override;
  void ReadDir(const Request& request, uint64_t offset, uint32_t size, bool plus, Reply reply) override;
  void StatFs(const Request& request, Reply reply) override;
  void GetXattr(const Request& request, std::string_view name, uint32_t size, Reply reply) override;
  void ListXattr(const Request& request, uint32_t size, Reply reply) override;
  void Seek(const Request& request, uint64_t offset, uint32_t whence, Reply reply) override;

 private:
  using SharedReply = std::shared_ptr<Reply>;
  struct OpenFiles {
    uint32_t cached = 0;
    uint32_t passthrough = 0;
    int backing = 0;
    uint32_t saved = SavedTable<SavedOpen>::kNone;  // its record
    std::shared_ptr<FileContent> content;           // not evicted while the file is open
  };
  struct Changes;  // advance.cc

  // Runs `then` with the directory loaded, now or once it has arrived; on an error, answers the request itself.
  void WithDirectory(uint64_t nodeid, Reply reply, std::function<void(Reply)> then);
  void LookupLoaded(uint64_t nodeid, const std::string& name, Reply reply);
  void ReadDirLoaded(uint64_t nodeid, uint64_t offset, uint32_t size, bool plus, Reply reply);
  void ReadOrFetch(uint64_t nodeid, std::shared_ptr<FileContent> content, uint64_t offset, uint32_t size, int tries,
                   Reply reply);
  // Records what a reader got, for the next run's trace.
  void Record(uint64_t nodeid, const tree::FileVersion& version, uint64_t offset, uint64_t n);
  void OpenCached(uint64_t nodeid, const std::shared_ptr<FileContent>& content, Reply reply);
  // False: passthrough is not possible this time; open the file cached.
  bool OpenThrough(uint64_t nodeid, const std::shared_ptr<FileContent>& content, Reply* reply);
  bool AnswerThrough(uint64_t nodeid, Reply* reply);
  enum class Opened { kNot, kCached, kThrough };
  Opened HowOpen(uint64_t nodeid);
  // Opens a file that is already open with passthrough but not verified in its current state.
  void OpenChecked(uint64_t nodeid, const std::shared_ptr<FileContent>& content, int tries, SharedReply reply);
  // Fetches what is missing from `offset` on, then opens the file.
  void Repair(uint64_t nodeid, const std::shared_ptr<FileContent>& content, uint64_t offset, int tries,
              SharedReply reply);
  void CloseHandle(uint64_t nodeid, uint64_t handle);
  // Call before the kernel hears of an open, and after it has reported a close.
  void SaveOpenLocked(uint64_t nodeid, OpenFiles* files) VRUN_REQUIRES(open_mutex_);
  // restore.cc. Nothing else runs yet.
  size_t RestoreInodes() VRUN_NO_THREAD_SAFETY_ANALYSIS;
  void RestoreOpens() VRUN_NO_THREAD_SAFETY_ANALYSIS;

  // push_ahead.cc. Called after a read of a whole small file that reached us as a request.
  void PushAfterRead(uint64_t nodeid);
  bool MayPushLocked(const Inode& inode) const VRUN_REQUIRES(mutex_);
  bool ClaimPush(uint64_t nodeid);

  // push_traced.cc. The kernel has been told of these nodes, or (`opened`) opens them.
  void PushTraced(std::span<const uint64_t> nodeids, bool opened);
  void TraceArrived(const tree::FileVersion& version, TracedFiles::Range range) override;
  void TracesOver() override;
  Pusher::Piece PieceLocked(const Inode& inode, TracedFiles::Range range) const VRUN_REQUIRES(mutex_);
  bool opens_are_seen() const { return passthrough_works_ || !options_.no_open; }

  std::shared_ptr<FileContent> ContentLocked(const Inode& inode) VRUN_REQUIRES(mutex_);
  std::optional<tree::Entry> EntryLocked(const Inode& inode) const VRUN_REQUIRES(mutex_);
  fuse_entry_out EntryOutLocked(const Inode& inode, const tree::Entry& entry) const VRUN_REQUIRES(mutex_);
  fuse_attr AttrLocked(const Inode& inode, const tree::Entry& entry) const VRUN_REQUIRES(mutex_);

  void ReportLost(uint64_t nodeid, const std::string& path, const Error& error);

  // advance.cc
  bool FindMissing(const Inode& directory, const std::string& path, const LoadedDirectoryPtr& next,
                   const std::unordered_map<Digest, LoadedDirectoryPtr, DigestHash>& have,
                   std::vector<std::pair<Digest, std::string>>* missing) const;
  void Apply(Inode* directory, const Digest& digest, const LoadedDirectoryPtr& next,
             const std::unordered_map<Digest, LoadedDirectoryPtr, DigestHash>& have, Changes* changes)
      VRUN_REQUIRES(mutex_);

  Backend& backend_;
  Transport& transport_;
  const LazyRootOptions options_;
  SavedView* const saved_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::atomic<bool> passthrough_offered_{false};
  std::atomic<bool> passthrough_works_{false};  // until the kernel refuses a backing file permanently
  std::atomic<uint64_t> passthrough_opens_{0};

  mutable Mutex mutex_;
  Digest tree_ VRUN_GUARDED_BY(mutex_);
  tree::Entry root_ VRUN_GUARDED_BY(mutex_);
  InodeTable inodes_ VRUN_GUARDED_BY(mutex_);
  // For files of a trace: the inode into which arriving content is pushed.
  std::unordered_map<tree::FileVersion, uint64_t, tree::FileVersionHash> traced_nodes_ VRUN_GUARDED_BY(mutex_);

  std::unique_ptr<Pusher> pusher_;  // null: nothing is pushed

  Mutex open_mutex_;  // never together with mutex_
  std::unordered_map<uint64_t, OpenFiles> open_files_ VRUN_GUARDED_BY(open_mutex_);
};

}  // namespace vrun::vfs
