// SPDX-License-Identifier: Apache-2.0
// The file system of a live view: home's tree, read and written. decisions/0013.
//
// Reads come from the tree and the file cache, as in LazyRoot. Changes are in a LiveTree (names and attributes, in
// memory) and in LiveFiles (content, on the node's disk). This class answers requests about names and attributes. Its
// parts do the rest:
//
//   JournaledTree   the tree with its lock, and the journal of the changes made under it
//   KernelNotices   what the kernel may cache, and the notifications to it
//   LiveContents    where a file's content is; LiveOpens, LiveReader, LiveWriter: what requests do with it
//   HomeTeller      what home is told; Publisher: when home gets written content; RemovedFiles: removals that wait
//   LiveDirectories home's part of a directory
//   HomeTrees       home's next tree
//
// Lock order: HomeTrees', the checkpoint's, the tree's; then that of Publisher, HomeNews or LiveDoubt. LiveOpens' lock
// is never held with another. A request that must wait keeps its Reply in a callback guarded by a Gate.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/id_map.h"
#include "vfs/fuse/write_operations.h"
#include "vfs/live/content/live_reader.h"
#include "vfs/live/content/live_writer.h"
#include "vfs/live/content/removed_files.h"
#include "vfs/live/root/done_requests.h"
#include "vfs/live/root/home_trees.h"
#include "vfs/live/root/live_directories.h"

namespace vrun::vfs {

struct LiveRootOptions {
  IdMap ids;
  bool passthrough = true;
  // Files are opened without a request; WatchCloses reports closes. With a journal, without passthrough.
  bool no_open = false;
  std::function<void(const std::string& path, const std::string& reason)> on_content_lost;
  // A change of home could not be shown because the name was in use, and now it is not: Advance again, with the same
  // tree if there is no newer one. Any thread, no lock held.
  std::function<void()> on_released;
  std::function<void()> on_doubt;  // as LiveViewOptions
  // As LiveViewOptions.
  uint64_t publish_bytes = 64u << 20;
  int64_t publish_micros = 1'000'000;
  bool list_attributes = true;
  uint64_t hidden_flags = 0;
  bool nameless_files = true;
};

class LiveRoot final : public Operations, public WriteOperations {
 public:
  // `backend`, `transport` and `files` must outlive it.
  LiveRoot(Backend& backend, Transport& transport, LiveFiles& files, const Digest& tree, const tree::Entry& root,
           LiveRootOptions options);
  // Call after the Dispatcher has stopped. Pending callbacks from home do nothing.
  ~LiveRoot() override;

  // From now on changes are written to the journal and go home through the stream. Both must outlive it; call before
  // the first request. `state`: read from a journal that another server of this view left.
  Status Begin(LiveJournal* journal, LiveStream* stream, LiveState* state);
  // As agreed with the kernel at INIT.
  uint64_t init_flags() const { return init_flags_.load(); }
  // For a connection whose INIT another process answered; call before the first request.
  void SetInitialized(uint64_t init_flags);
  bool no_open() const { return notices_.no_open(); }
  // From now on reports the files that the kernel knows to `push`, which must outlive it.
  void PushInto(LivePush* push) { push_ = push; }
  // From now on `closes` calls Closed and ClosesMissed; null: no longer. Files written earlier may have been closed.
  void WatchCloses(CloseWatch* closes) { publisher_.WatchCloses(closes); }
  void Closed(uint64_t nodeid) { publisher_.Closed(nodeid); }
  void ClosesMissed() { publisher_.ClosesMissed(); }

  // As LiveView, like all methods below; notifies through `dispatcher`.
  Status Advance(Dispatcher& dispatcher, const Digest& tree, uint64_t included) {
    return home_trees_.Advance(dispatcher, tree, included, push_);
  }
  // Merges the same tree again: something was released.
  Status AdvanceAgain(Dispatcher& dispatcher) { return home_trees_.AdvanceAgain(dispatcher, push_); }
  // After a take-over: sends the notifications that the previous server did not send. Blocks, as Advance.
  Status TellRestored(Dispatcher& dispatcher);
  void Acknowledge(uint64_t nodeid, const tree::FileVersion& version) { home_trees_.Acknowledge(nodeid, version); }
  void Doubt(Dispatcher& dispatcher, bool doubt) { notices_.Doubt(dispatcher, doubt); }
  uint64_t PublishAll() { return publisher_.PublishAll(); }
  void SettleCloses() { publisher_.SettleCloses(); }
  uint64_t DropWritten(uint64_t rest_bytes) { return contents_.DropWritten(rest_bytes); }
  Digest tree() const { return tree_.HomeTreeNow(); }
  uint64_t changes() const { return tree_.ChangesNow(); }
  size_t inodes() const { return tree_.SizeNow(); }
  uint64_t passthrough_opens() const { return opens_.passthrough_opens(); }
  bool passthrough_works() const { return opens_.passthrough_works(); }

  WriteOperations* writes() override { return this; }
  InitChoice Init(const KernelOffer& offer) override;
  void Lookup(const Request& request, std::string_view name, Reply reply) override;
  void Forget(uint64_t nodeid, uint64_t count) override;
  void GetAttr(const Request& request, Reply reply) override;
  void ReadLink(const Request& request, Reply reply) override;
  void Open(const Request& request, uint32_t flags, Reply reply) override;
  void Read(const Request& request, uint64_t offset, uint32_t size, Reply reply) override {
    reader_.Read(request, offset, size, std::move(reply));
  }
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
  void Write(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) override {
    writer_.Write(request, in, data, std::move(reply));
  }
  void Flush(const Request& request, Reply reply) override;
  void Sync(const Request& request, bool data_only, Reply reply) override;
  void Allocate(const Request& request, const fuse_fallocate_in& in, Reply reply) override {
    writer_.Allocate(request, in, std::move(reply));
  }
  void Seek(const Request& request, uint64_t offset, uint32_t whence, Reply reply) override {
    reader_.Seek(request.nodeid, offset, whence, std::move(reply));
  }
  void CopyRange(const Request& request, const fuse_copy_file_range_in& in, Reply reply) override {
    writer_.CopyRange(request, in, std::move(reply));
  }
  void SetXattr(const Request& request, std::string_view name, std::string_view value, uint32_t flags, bool kill_sgid,
                Reply reply) override;
  void RemoveXattr(const Request& request, std::string_view name, Reply reply) override;

 private:
  using Kind = LiveOperation::Kind;

  // With a TreeLock.
  fuse_attr AttrLocked(const LiveNode& node, uint64_t* valid) const;
  fuse_entry_out EntryOutLocked(const LiveNode& node) const;
  fuse_entry_out CountedEntryLocked(LiveNode* node);  // call when the kernel is about to be told of it
  // The kernel is being told of this node: adds its parts to push.
  void NoteForPushLocked(const LiveNode& node, std::vector<PushPiece>* files) const;
  void PushTold(const std::vector<PushPiece>& files);
  void AnswerAttr(uint64_t nodeid, Reply reply);
  // Publishes the file and answers, once all of its content is here.
  void PublishAndAnswer(uint64_t nodeid, Reply reply);
  // A request changed names, and made `node` (0: nothing). If the server dies before the answer, the kernel sends it
  // again. With a TreeLock.
  void DidLocked(const Request& request, uint64_t node) { done_.Did(request.unique, node, tree_.FrameLocked()); }
  // If the previous server has done the request: answers it (`reply` null: the caller answers) and returns the node
  // that it made.
  std::optional<uint64_t> WasDone(const Request& request, Reply* reply);

  // Once home's part of the directories is loaded.
  void LookupLoaded(uint64_t nodeid, const std::string& name, Reply reply);
  void ReadDirLoaded(uint64_t nodeid, uint64_t offset, uint32_t size, bool plus, Reply reply);
  // `claimed`: home has made the name for this request.
  void MakeLoaded(const Request& request, const NewName& made, Reply reply, bool claimed);
  void CreateLoaded(const Request& request, const NewName& made, uint32_t flags, Reply reply, bool claimed);
  void LinkLoaded(const Request& request, uint64_t source, const std::string& name, Reply reply, bool claimed);
  void RenameLoaded(const Request& request, const std::string& name, uint64_t to_parent, const std::string& to_name,
                    uint32_t flags, Reply reply);
  bool AnswerCreated(uint64_t nodeid, Reply reply);               // lookups are already counted
  uint64_t ChildId(uint64_t directory, const std::string& name);  // 0: none
  // With a TreeLock. 0 or an errno; also tells home.
  int RemoveLocked(LiveNode* parent, const std::string& name, bool directory);
  int RenameLocked(LiveNode* from, const std::string& name, LiveNode* to, const std::string& to_name, uint32_t flags);
  // A node of the kind in `made`, created in `parent` according to its ACL and set-group-id bit.
  // `claimed`: home has it.
  int MakeNodeLocked(const Request& request, LiveNode* parent, const NewName& made, std::shared_ptr<LiveFile> file,
                     LiveNode** out, bool claimed = false);

  // --- exclusive_names.cc: names that home makes (live_claims.h)

  using Claimed = std::function<void(Reply, bool claimed)>;
  // The name must be exclusive: where others work too, home makes it first. Answers EEXIST if home has it. `source`: of
  // a link; 0: none.
  void Exclusively(const Request& request, const NewName& made, uint64_t source, Reply reply, Claimed then);
  void AnswerClaim(const Request& request, Reply reply, bool made, const Claimed& then);
  // With a TreeLock.
  bool WantsClaimLocked(LiveNode* parent, const NewName& made, uint64_t source);
  int AddClaimLocked(const Request& request, LiveNode* parent, const NewName& made, uint64_t source);
  // What home has made, if a tree has shown it. The request is over.
  LiveNode* TakeClaimedLocked(const Request& request, LiveNode* parent, std::string_view name, uint32_t mode);
  // The caller did not get what home has made.
  void Unclaim(uint64_t directory, const std::string& name, bool is_directory);
  void DropUnclaimed();
  void SetAttrNow(const Request& request, const fuse_setattr_in& in, Reply reply);
  void SetAttrResized(const Request& request, const fuse_setattr_in& in, Reply reply);

  Backend& backend_;
  LiveFiles& files_;
  const LiveRootOptions options_;
  std::atomic<LivePush*> push_{nullptr};
  std::atomic<uint64_t> init_flags_{0};

  JournaledTree tree_;
  KernelNotices notices_;
  LiveContents contents_;
  LiveDirectories directories_;
  HomeTeller teller_;
  Publisher publisher_;
  RemovedFiles removed_;
  LiveOpens opens_;
  LiveReader reader_;
  LiveWriter writer_;
  LiveClaims claims_;
  HomeTrees home_trees_;
  DoneRequests done_;  // guarded by the tree's lock
};

}  // namespace vrun::vfs
