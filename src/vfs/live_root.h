// SPDX-License-Identifier: Apache-2.0
// The file system of a live view: home's tree, read and written. decisions/0013.
//
// What is read comes from the tree and the file cache, as in LazyRoot; what is changed lies in a LiveTree (names and
// attributes, in memory) and in LiveFiles (content, on the node's disk). Files written here are opened with passthrough
// where the kernel can: reads and writes then go straight to the backing file. The kernel caches names, absent names,
// attributes and pages for ever: all changes of this tree come through it.
//
// Locks: `mutex_` guards the tree and is held for memory work only (and fstatat of a backing file); `open_mutex_` the
// modes in which files are open; never both. What must wait keeps its Reply in a callback guarded by a Gate.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/id_map.h"
#include "vfs/backend.h"
#include "vfs/dispatcher.h"
#include "vfs/file_cache.h"
#include "vfs/gate.h"
#include "vfs/live_doubt.h"
#include "vfs/live_file.h"
#include "vfs/live_journal.h"
#include "vfs/live_push.h"
#include "vfs/live_stream.h"
#include "vfs/live_tree.h"
#include "vfs/timer_thread.h"
#include "vfs/write_operations.h"

namespace vrun::vfs {

struct LiveRootOptions {
  IdMap ids;
  bool passthrough = true;
  // Files are opened without a request: WatchCloses says what is closed. With a journal, without passthrough.
  bool no_open = false;
  std::function<void(const std::string& path, const std::string& reason)> on_content_lost;
  // What home changed could not be shown because it was in use, and now it is not: Advance again, with the same tree
  // if there is no newer one. Any thread, no lock held.
  std::function<void()> on_released;
  std::function<void()> on_doubt;  // as LiveViewOptions
  // As LiveViewOptions.
  uint64_t publish_bytes = 64u << 20;
  int64_t publish_micros = 1'000'000;
  bool list_attributes = true;
  uint64_t hidden_flags = 0;
  bool nameless_files = true;
};

class CloseWatch;

class LiveRoot final : public Operations, public WriteOperations {
 public:
  // `backend`, `transport` and `files` must outlive it.
  LiveRoot(Backend& backend, Transport& transport, LiveFiles& files, const Digest& tree, const tree::Entry& root,
           LiveRootOptions options);
  // After the Dispatcher has stopped. Callbacks that home still owes find nothing.
  ~LiveRoot() override;

  // live_advance.cc. See LiveView. Notifies through `dispatcher`.
  Status Advance(Dispatcher& dispatcher, const Digest& tree, uint64_t included);
  Status AdvanceAgain(Dispatcher& dispatcher);  // with the same tree: something was released
  // After a take-over: what the server before had not told the kernel. Blocks, as Advance.
  Status TellRestored(Dispatcher& dispatcher);
  void Acknowledge(uint64_t nodeid, const tree::FileVersion& version);
  // live_doubt.cc. As LiveView::Doubt.
  void Doubt(Dispatcher& dispatcher, bool doubt);

  Digest tree() const;
  uint64_t changes() const;
  // live_publish.cc. From now on what changes is written to the journal, and goes home by the stream. Both must outlive
  // it; before the first request. `state`: what the journal has, of another process that served this view.
  Status Begin(LiveJournal* journal, LiveStream* stream, LiveState* state);
  // As agreed on with the kernel, once it has said INIT.
  uint64_t init_flags() const { return init_flags_.load(); }
  // Of a connection whose INIT another process answered, before the first request.
  void SetInitialized(uint64_t init_flags);
  bool no_open() const { return no_open_.load(); }
  uint64_t PublishAll();

  // live_drop.cc. See LiveView.
  uint64_t DropWritten(uint64_t keep_bytes);

  // live_closes.cc. From now on `closes` tells Closed and ClosesMissed; null: not any more. What was written before may
  // have been closed.
  void WatchCloses(CloseWatch* closes);
  // From now on `push`, which must outlive it, is told which files the kernel knows.
  void PushInto(LivePush* push) { push_ = push; }
  void Closed(uint64_t nodeid);
  void ClosesMissed();
  // All that was closed before is published, but for what home has a part of that is not here yet.
  void SeeCloses();
  // Those, too (for half a minute at most).
  void SettleCloses();

  size_t inodes() const;
  uint64_t passthrough_opens() const { return passthrough_opens_.load(); }
  bool passthrough_works() const { return passthrough_works_.load(); }

  WriteOperations* writes() override { return this; }
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

  void SetAttr(const Request& request, const fuse_setattr_in& in, Reply reply) override;
  void Make(const Request& request, const NewName& made, Reply reply) override;
  void Link(const Request& request, uint64_t source, std::string_view name, Reply reply) override;
  void Create(const Request& request, const NewName& made, uint32_t flags, Reply reply) override;
  void Remove(const Request& request, std::string_view name, bool directory, Reply reply) override;
  void Rename(const Request& request, std::string_view name, uint64_t to_parent, std::string_view to_name,
              uint32_t flags, Reply reply) override;
  void Write(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) override;
  void Flush(const Request& request, Reply reply) override;
  void Sync(const Request& request, bool data_only, Reply reply) override;
  void Allocate(const Request& request, const fuse_fallocate_in& in, Reply reply) override;
  void Seek(const Request& request, uint64_t offset, uint32_t whence, Reply reply) override;
  void CopyRange(const Request& request, const fuse_copy_file_range_in& in, Reply reply) override;
  void SetXattr(const Request& request, std::string_view name, std::string_view value, uint32_t flags, bool kill_sgid,
                Reply reply) override;
  void RemoveXattr(const Request& request, std::string_view name, Reply reply) override;

 private:
  // How long a request waits for home to tell what there is instead of what it has not any more. What is instead may be
  // our own, of which home tells once it is on its disk: seconds, where that is busy.
  static constexpr int64_t kHomeMicros = 30'000'000;
  using SharedReply = std::shared_ptr<Reply>;
  using Then = std::function<void(Reply)>;
  // An inode is open through the page cache or passed through, never both at once (fs/fuse/iomode.c).
  struct OpenFiles {
    uint32_t cached = 0;
    uint32_t passthrough = 0;
    int backing = 0;
    std::shared_ptr<LiveFile> file;
    std::shared_ptr<FileContent> content;  // not evicted while the file is open
  };
  // What a node has of content; both null: nothing, or no such node.
  struct Content {
    std::shared_ptr<LiveFile> file;
    std::shared_ptr<FileContent> home;
    FileContent::Place place;
    bool sparse = false;   // `home`, as far as its attributes tell
    uint64_t news = 0;     // as of when
    bool opened = false;   // LiveNode::opened
    bool fetched = false;  // what is read was asked for, and came
  };
  // mutex_, and what goes with nodes that were dropped under it.
  // With a journal: at its end what was touched under it is in the journal, and what was told may go home.
  class TreeLock {
   public:
    explicit TreeLock(LiveRoot& root) : root_(root), lock_(root.mutex_) {}
    ~TreeLock();

   private:
    LiveRoot& root_;
    std::unique_lock<std::mutex> lock_;
  };

  // Runs `then` when home has been asked, where it is in doubt.
  void AfterDoubt(Reply reply, Then then);
  uint64_t ValidSeconds() const;  // of what the kernel is told
  // The same, of a name that is not there, which is noted. With mutex_ held (by a TreeLock).
  uint64_t AbsentSecondsLocked(uint64_t directory, std::string_view name);

  // With advance_mutex_ held.
  Status AdvanceLocked(Dispatcher& dispatcher, const Digest& tree, const tree::Entry& root);
  void LoadRestored();
  void AddUntoldLocked(const LiveNotices& notices);
  void ToldLocked(LiveNotices* told);
  // `waited`: who waits for this word of home's. `moved`: names of directories that are elsewhere, as in a LiveMerge.
  using Names = std::set<std::pair<uint64_t, std::string>>;
  Status Tell(Dispatcher& dispatcher, const LiveNotices& notices, const std::vector<std::function<void()>>& waited,
              const Names& moved = {});

  // live_root.cc. Runs `then` with home's part of the directory loaded, now or once it has come; answers the error
  // itself.
  void WithDirectory(uint64_t nodeid, Reply reply, Then then, int64_t deadline = 0);
  // Runs `again` once home has told more than `seen` (news_), or at the deadline. What home has not any more it has
  // otherwise, and tells us so in a moment.
  void AfterNews(uint64_t seen, int64_t deadline, std::function<void()> again);
  // With mutex_ held: home has told something. Returned: to be called without it.
  [[nodiscard]] std::vector<std::function<void()>> NewsLocked();
  void InstallDirectory(uint64_t nodeid, const Digest& digest, const LoadedDirectoryPtr& loaded);
  // The same, and of the directory `name` in it, if it is one: whether it is empty can be told then.
  void WithChild(uint64_t nodeid, const std::string& name, Reply reply, Then then);
  void LookupLoaded(uint64_t nodeid, const std::string& name, Reply reply);
  void ReadDirLoaded(uint64_t nodeid, uint64_t offset, uint32_t size, bool plus, Reply reply);
  // With mutex_ held.
  LiveNode* DirectoryLocked(uint64_t nodeid);  // null: none, or not loaded
  fuse_attr AttrLocked(const LiveNode& node, uint64_t* valid) const;
  fuse_entry_out EntryOutLocked(const LiveNode& node) const;
  fuse_entry_out CountedEntryLocked(LiveNode* node);  // what the kernel is about to be told of
  // The kernel is told of this node.
  void NoteForPushLocked(const LiveNode& node, std::vector<PushPiece>* files) const;
  void PushTold(const std::vector<PushPiece>& files);
  void AnswerAttr(uint64_t nodeid, Reply reply);
  void ReportLost(uint64_t nodeid, const std::string& path, const Error& error);

  // live_names.cc
  void MakeLoaded(const Request& request, const NewName& made, Reply reply);
  void CreateLoaded(const Request& request, const NewName& made, bool write, Reply reply);
  void LinkLoaded(const Request& request, uint64_t source, const std::string& name, Reply reply);
  void AnswerCreated(uint64_t nodeid, Reply reply);               // lookups counted already
  uint64_t ChildId(uint64_t directory, const std::string& name);  // 0: none
  // 0 or an errno; home is told.
  int RemoveLocked(LiveNode* parent, const std::string& name, bool directory);
  int RenameLocked(LiveNode* from, const std::string& name, LiveNode* to, const std::string& to_name, uint32_t flags);
  void RenameLoaded(const Request& request, const std::string& name, uint64_t to_parent, const std::string& to_name,
                    uint32_t flags, Reply reply);
  // A node of the kind in `made`, in `parent` and by its rules. 0 or an errno.
  int MakeNodeLocked(const Request& request, LiveNode* parent, const NewName& made, std::shared_ptr<LiveFile> file,
                     LiveNode** out);

  // live_removed.cc. With mutex_ held, but for KeepRemoved.
  struct Removed {
    uint64_t nodeid = 0;
    FileContent::Place place;
    tree::FileVersion version;
    std::optional<store::ObjectId> known_id;
  };
  std::optional<Removed> LosesContentLocked(const LiveNode* node) const;
  void HoldRemovedLocked(const std::optional<Removed>& removed);
  void KeepRemoved(const Removed& removed, uint64_t number);
  // The operation that waits for the node; 0: none. To be let go of without the lock.
  uint64_t TakeHeldLocked(uint64_t nodeid);

  // live_attributes.cc
  void SetAttrNow(const Request& request, const fuse_setattr_in& in, Reply reply);
  void SetAttrResized(const Request& request, const fuse_setattr_in& in, Reply reply);
  // What a write, truncation or change of owner takes away: the set-id bits if it is `by` somebody who may not keep
  // them. True: something that the kernel has cached.
  bool DropPrivileges(LiveNode* node, const Request* by) const;
  static void SetMode(LiveNode* node, uint32_t mode);
  static std::string* FindXattr(LiveNode* node, std::string_view name);
  static bool EraseXattr(LiveNode* node, std::string_view name);
  static int CheckXattrName(std::string_view name);

  // live_publish.cc. Without a journal none of these does anything.
  using Kind = LiveOperation::Kind;
  // Runs `then` when there is room for what is going to be written, now or once home has taken some; answers itself
  // where there never will be.
  void WithRoom(Reply reply, Then then);
  // A request changed names, and made `node` (0: nothing). The server may die before it is answered: then it comes
  // again.
  void DidLocked(const Request& request, uint64_t node);
  // It was done by the server before: answers it (but for `reply` null, where there is more to the answer), and says
  // with what it made.
  std::optional<uint64_t> WasDone(const Request& request, Reply* reply);
  // Runs `then` when all of a file's content is on this node, if it is about to be published.
  void WithContent(uint64_t nodeid, Reply reply, Then then);
  // Tells home of a change; with mutex_ held (by a TreeLock), as all that follow.
  void TellLocked(Kind kind, LiveNode* node, std::string path, std::string from = {}, uint64_t other = 0);
  void TellMadeLocked(LiveNode* node);
  void TellMetaLocked(LiveNode* node);
  // Home gets the content as it is. The node is to have a name. 0, or an errno: it has not, and is published later.
  int PublishLocked(LiveNode* node);
  std::string PlaceOfOvertakenLocked(const LiveNode& node);
  // What was written to a file that is closed goes nowhere: home is told, and says so.
  void TellIfLostLocked(LiveNode* node);
  void NothingToTellLocked();
  // `gone`: it was a file's last name.
  void TellRemovedLocked(uint64_t nodeid, const std::string& path, bool gone);
  LiveOperation OperationLocked(Kind kind, LiveNode* node) const;
  // At the end of a TreeLock. Operations up to this one may be sent; 0: there are no more than before.
  uint64_t WriteJournalLocked();
  // Something is about to be changed under this lock: 0, or ENOSPC where the journal has no room for it, and `bytes`
  // more.
  int ChangeLocked(uint64_t bytes = 0);
  // Without mutex_. Has the journal's disk, and the cache on it, asked for room. 0 or an errno.
  int MakeJournalRoom();
  // The same, where there is not even room for ChangeLocked.
  void SeekJournalRoom();
  bool JournalIsBehind() const { return journal_ != nullptr && journal_->behind(); }
  Status RestoreFrom(LiveState* state);
  // Number of the last change that home knows of with this operation. With mutex_ held; operations ascend.
  uint64_t ChangesIn(uint64_t operation);
  void AddLocked(LiveOperation operation);
  void Checkpoint();
  LiveState NumbersLocked();
  void AppliedLocked(LiveNode* node, const LiveStream::Applied& one);
  void OnAcknowledged(uint64_t number, const std::vector<LiveStream::Applied>& applied);
  // Without mutex_. A file has something that was not published, or has been closed (then it is).
  void NoteDirty(uint64_t nodeid);
  void Publish(uint64_t nodeid);
  // All of it. Returned: what could not be.
  std::vector<uint64_t> PublishDirty();
  void ReportUnpublished(uint64_t nodeid);
  void SyncHome(uint64_t nodeid, Reply reply);
  // live_drop.cc. What was written of it is at home, as the version that the tree has.
  static bool IsHomes(const LiveNode& node);
  // live_closes.cc
  // Once all of it is here; while nobody has closed it only what was appended.
  void PublishWhole(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, bool closed);
  // Of one that its writer goes on with.
  void PublishWritten(uint64_t nodeid, const std::shared_ptr<LiveFile>& file);
  void WaitForWhole(int64_t micros);
  void PublishAppended(uint64_t nodeid, const std::shared_ptr<LiveFile>& file);
  void Tick();

  // live_write.cc
  // The node's own content, made when there is none. `empty`: without home's. 0 or an errno.
  int Materialize(uint64_t nodeid, bool empty, std::shared_ptr<LiveFile>* out);
  int Truncate(uint64_t nodeid, uint64_t size, const Request* by, bool open);
  // `by`: who may not keep the set-id bits, or null. `open`: by a descriptor or mapping, of whose end we hear.
  void BeforeWrite(uint64_t nodeid, const Request* by, bool open);
  // What a write needs of a file that is home's until then comes before the file is ours: as long as it is not, home's
  // next version may take its place.
  static std::vector<ByteRange> KeptByWrite(const FileContent& content, ByteRange range);
  bool LacksForWriting(uint64_t nodeid, ByteRange range);
  void FetchForWriting(uint64_t nodeid, ByteRange range, int64_t deadline, std::function<void(int error)> done);
  enum class After : uint8_t { kNow, kNews, kLost };  // when to try again
  After AfterLoss(uint64_t nodeid, const FileContent& lost);
  // LiveFile::Need, wherever home has the content by now. What is lost is told, and EIO; not with `quietly`, where
  // `done` gets LiveFile::kLost.
  void NeedOwn(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, ByteRange range, bool overwrite,
               std::function<void(int error)> done, bool quietly = false, int64_t deadline = 0);
  void WriteNow(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply);
  void WriteHere(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply);
  void WriteOwn(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, uint64_t offset, std::string_view data,
                Reply reply);
  void AllocateNow(const Request& request, const fuse_fallocate_in& in, Reply reply);

  // live_data.cc
  Content ContentOf(uint64_t nodeid);
  void OpenAt(uint64_t nodeid, bool write, int64_t deadline, Reply reply);
  void FinishOpen(uint64_t nodeid, const Content& content, bool write, int64_t deadline, Reply reply);
  void OpenLost(uint64_t nodeid, const Content& content, bool write, int64_t deadline, const Error& error, Reply reply);
  OpenOut OpenData(uint64_t nodeid, bool write);
  int OpenThroughLocked(LiveFile& file);
  void CloseHandle(uint64_t nodeid, uint64_t handle);
  void CloseWriter(uint64_t nodeid);
  void NoteWritten(uint64_t nodeid);
  // live_read.cc
  // Home's content of a node that lost its name is not evicted before the kernel has forgotten the node: nobody knows
  // whether it is open.
  void KeepContent(uint64_t nodeid);
  bool HasName(uint64_t nodeid);
  // From now on somebody has seen this version. False: home's next tree came in between.
  bool BeginReading(uint64_t nodeid, const FileContent& content);
  LiveTree::Objects DirectoriesInMemory() const;
  // Before the first write to it: a file that home has renamed, or whose attributes it has changed, gets its name back.
  void Reclaim(uint64_t nodeid);
  // With mutex_ held. True: on_released is to be called without it.
  bool TakeBackLocked(LiveNode* node, const LiveTree::Successor& successor);
  void ReadSuccessor(uint64_t nodeid, ByteRange range, int64_t deadline, const std::shared_ptr<Reply>& reply);
  bool Declines(uint64_t nodeid, uint64_t offset, uint32_t size);
  void ReadAt(uint64_t nodeid, uint64_t offset, uint32_t size, int tries, int64_t deadline, Reply reply);
  void ReadHome(uint64_t nodeid, Content content, uint64_t offset, uint32_t size, int tries, int64_t deadline,
                Reply reply);
  static void ReadOwn(LiveFile& file, uint64_t offset, uint32_t size, Reply reply);
  void Record(const Content& content, uint64_t offset, uint64_t n);
  void ForgetAttributes(uint64_t nodeid);

  Backend& backend_;
  Transport& transport_;
  LiveFiles& files_;
  const LiveRootOptions options_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  LiveDoubt doubt_;
  std::atomic<bool> passthrough_works_{false};
  std::atomic<bool> no_open_{false};
  std::atomic<CloseWatch*> closes_{nullptr};
  std::atomic<LivePush*> push_{nullptr};
  std::atomic<uint64_t> init_flags_{0};
  std::atomic<uint64_t> passthrough_opens_{0};

  std::mutex advance_mutex_;  // over all of an Advance; before mutex_
  uint64_t included_ = 0;     // guarded by it, as root_
  tree::Entry root_;          // of home_tree_
  bool restored_ = false;     // guarded by it: no tree was taken since the take-over

  mutable std::mutex mutex_;
  Digest home_tree_;
  LiveTree tree_;
  std::unordered_map<uint64_t, std::shared_ptr<FileContent>> kept_;  // by node: KeepContent
  LiveNotices untold_;                                               // of merges; changed under advance_mutex_, too
  LiveNotices left_untold_;                                          // of the server before
  uint64_t news_ = 0;                                                // trees and acknowledgements of home's
  std::vector<std::function<void()>> waiting_for_news_;

  std::mutex open_mutex_;
  std::unordered_map<uint64_t, OpenFiles> open_files_;

  // With a journal; guarded by mutex_ where not const once begun.
  LiveJournal* journal_ = nullptr;
  LiveStream* stream_ = nullptr;
  std::deque<std::pair<uint64_t, uint64_t>> lately_;  // what DidLocked was told
  std::unordered_map<uint64_t, uint64_t> done_;       // of the server before: unique -> node; const
  LiveFrame frame_;                                   // of this TreeLock
  bool changing_ = false;                             // ChangeLocked was asked under it
  size_t told_ = 0;                                   // operations in it, and NothingToTellLocked
  // (operation, change): all changes up to that one were told with operations up to that one. Ascending.
  std::deque<std::pair<uint64_t, uint64_t>> told_changes_;
  uint64_t included_changes_ = 0;
  uint64_t acknowledged_ = 0;              // with this operation and those before, `at_home` of the nodes is right
  bool behind_ = false;                    // the tree that is shown has later ones
  std::vector<uint64_t> gone_;             // not in the journal yet: with the next frame
  std::vector<LiveOperation> taken_back_;  // until the journal knows
  std::unordered_map<uint64_t, uint64_t> held_;  // nodes without names -> the operation that waits for them
  std::mutex checkpoint_mutex_;                  // over all of a Checkpoint; before mutex_
  struct Dirty {
    int64_t since = 0;  // monotonic microseconds
    bool owed = false;  // it was to be published, and could not be
  };
  std::mutex dirty_mutex_;                     // after mutex_
  std::unordered_map<uint64_t, Dirty> dirty_;  // by node
  TimerThread::Id tick_ = 0;                   // guarded by dirty_mutex_
  // Nodes of which home's part is on its way, and how often they were closed since it was asked for. Guarded by it,
  // too.
  std::unordered_map<uint64_t, size_t> completing_;
  std::condition_variable completed_;
};

// The time that changes are stamped with: the file systems' own coarse clock, so that ours and theirs compare.
timespec LiveNow();

}  // namespace vrun::vfs
