// SPDX-License-Identifier: Apache-2.0
// LiveRoot: sets up its parts, answers reads of names and attributes, and forwards other requests to the parts.
#include "vfs/live/root/live_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/store.h"
#include "vfs/content/withheld.h"
#include "vfs/fuse/attributes.h"
#include "vfs/live/tree/node_attributes.h"

namespace vrun::vfs {
namespace {

void SetTime(const timespec& time, uint64_t* seconds, uint32_t* nanoseconds) {
  *seconds = static_cast<uint64_t>(time.tv_sec);
  *nanoseconds = static_cast<uint32_t>(time.tv_nsec);
}

}  // namespace

LiveRoot::LiveRoot(Backend& backend, Transport& transport, LiveFiles& files, const Digest& tree,
                   const tree::Entry& root, LiveRootOptions options)
    : backend_(backend),
      files_(files),
      options_(std::move(options)),
      tree_(files, backend.timers(), tree, root, options_.ids, options_.on_released),
      notices_(tree_, transport, backend.timers(), options_.on_doubt),
      contents_(backend, tree_, options_.on_content_lost),
      directories_(backend, tree_, contents_),
      teller_(tree_),
      publisher_(tree_, teller_, contents_, notices_, backend.timers(), options_.publish_bytes,
                 options_.publish_micros),
      removed_(backend, tree_, contents_, notices_),
      opens_(transport, tree_, contents_, notices_),
      reader_(backend, tree_, contents_, notices_),
      writer_(backend, tree_, contents_, opens_, publisher_, notices_),
      claims_(tree_, notices_, backend.timers()),
      home_trees_(backend, tree_, contents_, directories_, notices_, claims_, root) {
  (void)LiveNow();  // opens its file while there are descriptors
  files_.SetGiveWay([store = backend.store()](int error, uint64_t bytes) { return store->GiveWay(error, bytes); });
}

LiveRoot::~LiveRoot() {
  tree_.Close();
  files_.Close();
}

Status LiveRoot::Begin(LiveJournal* journal, LiveStream* stream, LiveState* state) {
  if (state != nullptr) {
    home_trees_.Restore(*state);
    done_.Restore(*state);
    notices_.Restore(state);
    claims_.Restore(*state);
  }
  VRUN_TRY(tree_.Begin(journal, stream, state, backend_, [this](LiveFrame* all) {
    done_.AddToCheckpoint(all);
    notices_.AddToCheckpointLocked(all);
    claims_.AddToCheckpoint(all);
  }));
  stream->SetOnApplied(tree_.Guarded([this](uint64_t number, const std::vector<LiveStream::Applied>& applied) {
    home_trees_.OnAcknowledged(number, applied);
  }));
  publisher_.Begin();
  if (state != nullptr) DropUnclaimed();
  if (claims_.ever()) stream->SetTakesClaims(true);  // until it says otherwise
  return {};
}

Status LiveRoot::TellRestored(Dispatcher& dispatcher) {
  const Status told = notices_.TellRestored(dispatcher);
  const TreeLock lock(tree_);
  claims_.SetTellingRestored(false);
  return told;
}

InitChoice LiveRoot::Init(const KernelOffer& offer) {
  const uint64_t offered = offer.flags & ~options_.hidden_flags;
  InitChoice choice;
  choice.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC | FUSE_PARALLEL_DIROPS | FUSE_CACHE_SYMLINKS |
                 FUSE_NO_OPENDIR_SUPPORT | FUSE_EXPLICIT_INVAL_DATA | FUSE_POSIX_ACL | FUSE_DONT_MASK |
                 FUSE_HANDLE_KILLPRIV_V2 | FUSE_SETXATTR_EXT;
  if (options_.list_attributes) choice.flags |= FUSE_DO_READDIRPLUS;
  if (options_.passthrough && (offered & kFusePassthrough) != 0) {
    choice.flags |= kFusePassthrough;
    opens_.AllowPassthrough();
  }
  choice.flags |= kFuseHasExpireOnly;
  choice.flags |= kFuseHasResend;  // another server can take over (LiveView::Handle)
  if (options_.no_open) choice.flags &= ~uint64_t{FUSE_ATOMIC_O_TRUNC};  // no-open sends no open that could truncate
  choice.flags &= offered;
  SetInitialized(choice.flags);
  return choice;
}

void LiveRoot::SetInitialized(uint64_t init_flags) {
  init_flags_ = init_flags;
  notices_.SetNoOpen((init_flags & FUSE_ATOMIC_O_TRUNC) == 0);
}

// --- attributes ------------------------------------------------------------------------------------------------------

fuse_attr LiveRoot::AttrLocked(const LiveNode& node, uint64_t* valid) const {
  const LiveAttributes a = CurrentAttributes(node);
  *valid = node.file && node.file->passed_through ? 0 : notices_.ValidSeconds();
  fuse_attr attr{};
  attr.ino = a.ino;
  attr.mode = a.mode;
  attr.uid = a.uid;
  attr.gid = a.gid;
  attr.nlink = a.nlink;
  attr.rdev = DeviceNumber(a.mode);
  attr.size = a.size;
  attr.blocks = a.blocks;
  attr.blksize = 4096;
  SetTime(a.atime, &attr.atime, &attr.atimensec);
  SetTime(a.mtime, &attr.mtime, &attr.mtimensec);
  SetTime(a.ctime, &attr.ctime, &attr.ctimensec);
  return attr;
}

fuse_entry_out LiveRoot::EntryOutLocked(const LiveNode& node) const {
  fuse_entry_out out{};
  out.nodeid = node.nodeid;
  const bool uncached = std::any_of(node.names.begin(), node.names.end(),
                                    [](const LiveName& link) { return LiveClaims::IsUncached(*link.parent); });
  out.entry_valid = uncached ? 0 : notices_.ValidSeconds();
  uint64_t valid = 0;
  out.attr = AttrLocked(node, &valid);
  out.attr_valid = valid;
  return out;
}

fuse_entry_out LiveRoot::CountedEntryLocked(LiveNode* node) {
  ++node->lookups;
  return EntryOutLocked(*node);
}

void LiveRoot::AnswerAttr(uint64_t nodeid, Reply reply) {
  fuse_attr_out out{};
  {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) {
      reply.Error(ESTALE);
      return;
    }
    uint64_t valid = 0;
    out.attr = AttrLocked(*node, &valid);
    out.attr_valid = valid;
  }
  reply.Struct(out);
}

void LiveRoot::GetAttr(const Request& request, Reply reply) {
  notices_.AfterDoubt(std::move(reply),
                      [this, nodeid = request.nodeid](Reply asked) { AnswerAttr(nodeid, std::move(asked)); });
}

void LiveRoot::ReadLink(const Request& request, Reply reply) {
  std::string target;
  {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(request.nodeid);
    if (node != nullptr) target = node->target;
  }
  if (target.empty()) {
    reply.Error(EINVAL);
  } else {
    reply.Data(target);
  }
}

void LiveRoot::StatFs(const Request&, Reply reply) {
  struct statvfs of {};
  if (::fstatvfs(files_.fd(), &of) != 0) {
    reply.Error(errno);
    return;
  }
  fuse_statfs_out out{};
  out.st.blocks = of.f_blocks;
  out.st.bfree = of.f_bfree;
  out.st.bavail = of.f_bavail;
  out.st.files = of.f_files;
  out.st.ffree = of.f_ffree;
  out.st.bsize = static_cast<uint32_t>(of.f_bsize);
  out.st.frsize = static_cast<uint32_t>(of.f_frsize);
  out.st.namelen = 255;
  reply.Struct(out);
}

// --- names -----------------------------------------------------------------------------------------------------------

void LiveRoot::Lookup(const Request& request, std::string_view name, Reply reply) {
  notices_.AfterDoubt(std::move(reply), [this, nodeid = request.nodeid, name = std::string(name)](Reply asked) {
    directories_.With(nodeid, std::move(asked),
                      [this, nodeid, name](Reply loaded) { LookupLoaded(nodeid, name, std::move(loaded)); });
  });
}

void LiveRoot::LookupLoaded(uint64_t nodeid, const std::string& name, Reply reply) {
  fuse_entry_out out{};
  std::vector<PushPiece> traced;
  std::string asked;  // a name that home may hide
  {
    const TreeLock lock(tree_);
    LiveNode* directory = directories_.FindLocked(nodeid);
    if (directory == nullptr) {
      reply.Error(ESTALE);
      return;
    }
    if (LiveNode* child = tree_.Child(directory, name)) {
      out = CountedEntryLocked(child);
      NoteForPushLocked(*child, &traced);
    } else {
      // nodeid 0: the name does not exist.
      out.entry_valid = LiveClaims::IsUncached(*directory) ? 0 : notices_.AbsentSecondsLocked(nodeid, name);
      if (backend_.withheld().MayBe(name)) asked = tree_.PathOf(*directory, name);
    }
  }
  if (!asked.empty() && backend_.withheld().Asked(asked)) out.entry_valid = 0;
  if (!reply.Struct(out) && out.nodeid != 0) Forget(out.nodeid, 1);
  PushTold(traced);
}

void LiveRoot::NoteForPushLocked(const LiveNode& node, std::vector<PushPiece>* files) const {
  const LivePush* push = push_;
  if (push == nullptr || !push->active() || !S_ISREG(node.attributes.mode) || node.file) return;
  files->push_back({.nodeid = node.nodeid, .version = node.version, .known_id = node.known_id});
}

void LiveRoot::PushTold(const std::vector<PushPiece>& files) {
  if (LivePush* push = push_; push != nullptr && !files.empty()) push->Told(files);
}

void LiveRoot::Forget(uint64_t nodeid, uint64_t count) {
  std::shared_ptr<FileContent> kept;  // released after the lock
  uint64_t held = 0;
  {
    const TreeLock lock(tree_);
    if (LiveNode* node = tree_.Find(nodeid)) {
      // The file is closed, though the close may not be reported yet, and the node is about to be dropped.
      if (node->lookups <= count && node->gone_at_home() && node->file && node->file->dirty()) {
        (void)publisher_.PublishLocked(node);
        publisher_.TellIfLostLocked(node);
      }
      tree_.Forget(node, count);
    }
    if (tree_.Find(nodeid) != nullptr) return;
    held = removed_.TakeHeldLocked(nodeid);
    kept = contents_.TakeKeptLocked(nodeid);
  }
  if (held != 0) tree_.stream().Unhold(held);
}

std::optional<uint64_t> LiveRoot::WasDone(const Request& request, Reply* reply) {
  const std::optional<uint64_t> made = done_.Find(request.unique);
  if (!made || reply == nullptr) return made;
  if (*made == DoneRequests::kExists) {
    reply->Error(EEXIST);
    return made;
  }
  fuse_entry_out out{};
  {
    const TreeLock lock(tree_);
    if (LiveNode* node = tree_.Find(*made)) out = CountedEntryLocked(node);
  }
  if (out.nodeid == 0) {
    reply->Error(0);
  } else if (!reply->Struct(out)) {
    Forget(out.nodeid, 1);
  }
  return made;
}

// --- content ---------------------------------------------------------------------------------------------------------

void LiveRoot::Open(const Request& request, uint32_t flags, Reply reply) {
  if (notices_.no_open()) {  // the kernel stops asking
    reply.Error(ENOSYS);
    return;
  }
  if ((flags & O_TRUNC) != 0) {
    const int error = writer_.Truncate(request.nodeid, 0, request.kill_privileges ? &request : nullptr, true);
    if (error != 0) {
      reply.Error(error);
      return;
    }
  }
  opens_.Open(request.nodeid, (flags & O_ACCMODE) != O_RDONLY, std::move(reply));
}

void LiveRoot::Release(const Request& request, uint64_t handle, Reply reply) {
  if (notices_.no_open()) {  // for files created before the kernel knew
    reply.Empty();
    return;
  }
  opens_.Close(request.nodeid, handle);
  // Content written after the last FLUSH: a mapping outlives its descriptor.
  PublishAndAnswer(request.nodeid, std::move(reply));
}

void LiveRoot::Flush(const Request& request, Reply reply) {
  if (notices_.no_open()) {
    reply.Error(ENOSYS);
    return;
  }
  opens_.Flushed(request.nodeid);
  PublishAndAnswer(request.nodeid, std::move(reply));
}

void LiveRoot::PublishAndAnswer(uint64_t nodeid, Reply reply) {
  publisher_.WithContent(nodeid, std::move(reply), [this, nodeid](Reply whole) {
    publisher_.Publish(nodeid);
    whole.Empty();
  });
}

void LiveRoot::Sync(const Request& request, bool data_only, Reply reply) {
  publisher_.SeeCloses();
  const NodeContent content = contents_.Of(request.nodeid);
  const int error = content.file ? content.file->Sync(data_only) : 0;
  if (error != 0 || !tree_.journaled()) {
    reply.Error(error);
    return;
  }
  publisher_.Sync(request.nodeid, std::move(reply));
}

}  // namespace vrun::vfs
