// SPDX-License-Identifier: Apache-2.0
// LiveRoot: names and attributes as they are read.
#include "vfs/live_root.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "store/store.h"
#include "vfs/retry.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;          // of one answer
constexpr uint64_t kListedWithAttributes = 2048;  // entries of a listing, as in lazy_root.cc
constexpr uint64_t kNameRoom = 16 * 1024;         // in the journal, for a name that is looked up, with its attributes
constexpr uint64_t kListedInJournal = 4;          // bytes of the journal for one of a listing

// Runs once, for news or for the time that is over, and is nothing any more then.
class NewsWaiter {
 public:
  NewsWaiter(std::shared_ptr<Gate> gate, std::function<void()> again)
      : gate_(std::move(gate)), again_(std::move(again)) {}
  void Run() {
    const Gate::Pass pass(gate_.get());
    if (!pass || done_.exchange(true)) return;
    const auto again = std::exchange(again_, nullptr);
    again();
  }

 private:
  const std::shared_ptr<Gate> gate_;
  std::atomic<bool> done_{false};
  std::function<void()> again_;
};

bool Later(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

void SetTime(const timespec& time, uint64_t* seconds, uint32_t* nanoseconds) {
  *seconds = static_cast<uint64_t>(time.tv_sec);
  *nanoseconds = static_cast<uint32_t>(time.tv_nsec);
}

}  // namespace

timespec LiveNow() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now;
}

LiveRoot::LiveRoot(Backend& backend, Transport& transport, LiveFiles& files, const Digest& tree,
                   const tree::Entry& root, LiveRootOptions options)
    : backend_(backend),
      transport_(transport),
      files_(files),
      options_(std::move(options)),
      doubt_(&backend.timers(), options_.on_doubt),
      root_(root),
      home_tree_(tree),
      tree_(root, options_.ids) {
  files_.SetGiveWay([store = backend_.store()](int error, uint64_t bytes) { return store->GiveWay(error, bytes); });
}

LiveRoot::~LiveRoot() {
  gate_->Close();
  files_.Close();
  std::lock_guard lock(dirty_mutex_);
  if (tick_ != 0) backend_.timers().Cancel(tick_);
}

LiveRoot::TreeLock::~TreeLock() {
  const uint64_t told = root_.WriteJournalLocked();
  std::vector<LiveOperation> taken_back;
  if (!root_.JournalIsBehind()) taken_back.swap(root_.taken_back_);
  const auto dropped = root_.tree_.TakeDropped();
  lock_.unlock();
  if (told > 0) root_.stream_->Release(told);
}

Digest LiveRoot::tree() const {
  std::lock_guard lock(mutex_);
  return home_tree_;
}

uint64_t LiveRoot::changes() const {
  std::lock_guard lock(mutex_);
  return tree_.changes();
}

size_t LiveRoot::inodes() const {
  std::lock_guard lock(mutex_);
  return tree_.size();
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
    passthrough_works_ = true;
  }
  choice.flags |= kFuseHasExpireOnly;
  choice.flags |= kFuseHasResend;  // another server can take over (LiveView::Handle)
  if (options_.no_open) choice.flags &= ~uint64_t{FUSE_ATOMIC_O_TRUNC};  // of which no open would tell
  choice.flags &= offered;
  SetInitialized(choice.flags);
  return choice;
}

void LiveRoot::SetInitialized(uint64_t init_flags) {
  init_flags_ = init_flags;
  no_open_ = (init_flags & FUSE_ATOMIC_O_TRUNC) == 0;
}

// What is perhaps not in the journal the next server does not know.
uint64_t LiveRoot::ValidSeconds() const {
  const bool known = journal_ == nullptr || journal_->RoomForReading() >= kNameRoom;
  return known && !doubt_.doubted() ? kForeverSeconds : 0;
}

// --- attributes ------------------------------------------------------------------------------------------------------

fuse_attr LiveRoot::AttrLocked(const LiveNode& node, uint64_t* valid) const {
  LiveAttributes a = node.attributes;
  *valid = ValidSeconds();
  struct stat st {};
  if (node.file && node.file->Stat(&st) == 0) {
    a.size = static_cast<uint64_t>(st.st_size);
    a.blocks = static_cast<uint64_t>(st.st_blocks);
    a.atime = st.st_atim;
    a.mtime = st.st_mtim;
    // Data that was written moved both of the backing file's times. One alone is utimens (mtime), or home's content
    // that was filled in (ctime), which changes nothing for anybody.
    const timespec written = Later(st.st_mtim, st.st_ctim) ? st.st_ctim : st.st_mtim;
    if (Later(written, a.ctime)) a.ctime = written;
    if (node.file->passed_through) *valid = 0;
  }
  fuse_attr attr{};
  attr.ino = a.ino;
  attr.mode = a.mode;
  attr.uid = a.uid;
  attr.gid = a.gid;
  attr.nlink = a.nlink;
  attr.rdev = a.rdev;
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
  out.entry_valid = ValidSeconds();
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
    const TreeLock lock(*this);
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
  AfterDoubt(std::move(reply), [this, nodeid = request.nodeid](Reply asked) { AnswerAttr(nodeid, std::move(asked)); });
}

void LiveRoot::ReadLink(const Request& request, Reply reply) {
  std::string target;
  {
    const TreeLock lock(*this);
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

// --- directories -----------------------------------------------------------------------------------------------------

LiveNode* LiveRoot::DirectoryLocked(uint64_t nodeid) {
  LiveNode* node = tree_.Find(nodeid);
  return node != nullptr && node->is_directory() && !LiveTree::NeedsLoading(*node) ? node : nullptr;
}

void LiveRoot::InstallDirectory(uint64_t nodeid, const Digest& digest, const LoadedDirectoryPtr& loaded) {
  const TreeLock lock(*this);
  LiveNode* node = tree_.Find(nodeid);
  if (node == nullptr || !node->is_directory() || node->directory->digest != digest) return;
  if (LiveTree::NeedsLoading(*node)) LiveTree::SetLoaded(node, loaded);
}

std::vector<std::function<void()>> LiveRoot::NewsLocked() {
  ++news_;
  return std::exchange(waiting_for_news_, {});
}

void LiveRoot::AfterNews(uint64_t seen, int64_t deadline, std::function<void()> again) {
  {
    const TreeLock lock(*this);
    if (news_ == seen) {
      const auto waiter = std::make_shared<NewsWaiter>(gate_, std::move(again));
      waiting_for_news_.push_back([waiter] { waiter->Run(); });
      // The timer keeps nothing of the view alive.
      backend_.timers().After(std::max<int64_t>(deadline - MonotonicMicros(), 0), [weak = std::weak_ptr(waiter)] {
        if (const auto late = weak.lock()) late->Run();
      });
      return;
    }
  }
  again();
}

void LiveRoot::WithDirectory(uint64_t nodeid, Reply reply, Then then, int64_t deadline) {
  Digest tree, digest;
  std::string path;
  uint64_t news = 0;
  {
    const TreeLock lock(*this);
    const LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || !node->is_directory()) {
      reply.Error(node == nullptr ? ESTALE : ENOTDIR);
      return;
    }
    if (LiveTree::NeedsLoading(*node)) {
      tree = home_tree_;
      digest = node->directory->digest;
      path = node->HomePath();
      news = news_;
    }
  }
  if (path.empty()) return then(std::move(reply));
  if (const LoadedDirectoryPtr loaded = backend_.directories().Find(digest)) {
    InstallDirectory(nodeid, digest, loaded);
    return WithDirectory(nodeid, std::move(reply), std::move(then), deadline);
  }
  if (deadline == 0) deadline = MonotonicMicros() + kHomeMicros;
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  backend_.directories().Get(tree, path, digest,
                             [this, gate = gate_, shared, nodeid, news, digest, path, deadline,
                              then = std::move(then)](const Result<LoadedDirectoryPtr>& loaded) {
                               const Gate::Pass pass(gate.get());
                               if (!pass) return;
                               if (loaded) {
                                 InstallDirectory(nodeid, digest, *loaded);
                                 WithDirectory(nodeid, std::move(*shared), then, deadline);
                               } else if (IsLost(loaded.error()) && MonotonicMicros() < deadline) {
                                 AfterNews(news, deadline, [this, nodeid, shared, then, deadline] {
                                   WithDirectory(nodeid, std::move(*shared), then, deadline);
                                 });
                               } else {
                                 if (IsLost(loaded.error())) ReportLost(nodeid, path, loaded.error());
                                 shared->Error(ErrnoOf(loaded.error()));
                               }
                             });
}

void LiveRoot::WithChild(uint64_t nodeid, const std::string& name, Reply reply, Then then) {
  WithDirectory(nodeid, std::move(reply), [this, nodeid, name, then = std::move(then)](Reply loaded) {
    uint64_t below = 0;
    {
      const TreeLock lock(*this);
      LiveNode* directory = DirectoryLocked(nodeid);
      const LiveNode* child = directory != nullptr ? tree_.Child(directory, name) : nullptr;
      if (child != nullptr && child->is_directory()) below = child->nodeid;
    }
    if (below == 0) return then(std::move(loaded));
    WithDirectory(below, std::move(loaded), then);
  });
}

void LiveRoot::Lookup(const Request& request, std::string_view name, Reply reply) {
  AfterDoubt(std::move(reply), [this, nodeid = request.nodeid, name = std::string(name)](Reply asked) {
    WithDirectory(nodeid, std::move(asked),
                  [this, nodeid, name](Reply loaded) { LookupLoaded(nodeid, name, std::move(loaded)); });
  });
}

void LiveRoot::LookupLoaded(uint64_t nodeid, const std::string& name, Reply reply) {
  fuse_entry_out out{};
  std::vector<PushPiece> traced;
  {
    const TreeLock lock(*this);
    LiveNode* directory = DirectoryLocked(nodeid);
    if (directory == nullptr) {
      reply.Error(ESTALE);
      return;
    }
    if (LiveNode* child = tree_.Child(directory, name)) {
      out = CountedEntryLocked(child);
      NoteForPushLocked(*child, &traced);
    } else {
      // nodeid 0: the name is known not to be there.
      out.entry_valid = AbsentSecondsLocked(nodeid, name);
    }
  }
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
  std::shared_ptr<FileContent> kept;  // goes after the lock
  uint64_t held = 0;
  {
    const TreeLock lock(*this);
    if (LiveNode* node = tree_.Find(nodeid)) {
      // Closed, though perhaps nobody has said so yet; and it goes.
      if (node->lookups <= count && node->gone_at_home && node->file && node->file->dirty()) {
        (void)PublishLocked(node);
        TellIfLostLocked(node);
      }
      tree_.Forget(node, count);
    }
    if ((kept_.empty() && held_.empty()) || tree_.Find(nodeid) != nullptr) return;
    held = TakeHeldLocked(nodeid);
    if (const auto it = kept_.find(nodeid); it != kept_.end()) {
      kept = std::move(it->second);
      kept_.erase(it);
    }
  }
  if (held != 0) stream_->Unhold(held);
}

void LiveRoot::OpenDir(const Request&, Reply reply) {
  // The kernel then opens directories without asking and caches their listings; it drops them with each change of its
  // own.
  reply.Error(ENOSYS);
}

void LiveRoot::ReadDir(const Request& request, uint64_t offset, uint32_t size, bool plus, Reply reply) {
  AfterDoubt(std::move(reply), [this, nodeid = request.nodeid, offset, size, plus](Reply asked) {
    WithDirectory(nodeid, std::move(asked), [this, nodeid, offset, size, plus](Reply loaded) {
      ReadDirLoaded(nodeid, offset, size, plus, std::move(loaded));
    });
  });
}

namespace {

// One answer to READDIR or READDIRPLUS.
class Listing {
 public:
  Listing(uint32_t size, bool plus) : size_(std::min(size, kMostBytes)), prefix_(plus ? sizeof(fuse_entry_out) : 0) {}

  bool Fits(size_t name) const { return out_.size() + Bytes(name) <= size_; }
  // REQUIRES: it fits. `entry` (may be null: no attributes) of READDIRPLUS.
  void Add(const fuse_entry_out* entry, uint64_t ino, uint64_t next, uint32_t mode, std::string_view name) {
    const size_t at = out_.size();
    out_.resize(at + Bytes(name.size()));
    if (prefix_ != 0 && entry != nullptr) std::memcpy(out_.data() + at, entry, sizeof *entry);
    fuse_dirent dirent{};
    dirent.ino = ino;
    dirent.off = next;
    dirent.namelen = static_cast<uint32_t>(name.size());
    dirent.type = (mode & S_IFMT) >> 12;
    std::memcpy(out_.data() + at + prefix_, &dirent, FUSE_NAME_OFFSET);
    std::memcpy(out_.data() + at + prefix_ + FUSE_NAME_OFFSET, name.data(), name.size());
  }
  const std::string& data() const { return out_; }

 private:
  size_t Bytes(size_t name) const { return FUSE_DIRENT_ALIGN(prefix_ + FUSE_NAME_OFFSET + name); }
  const size_t size_;
  const size_t prefix_;
  std::string out_;
};

}  // namespace

void LiveRoot::ReadDirLoaded(uint64_t nodeid, uint64_t offset, uint32_t size, bool plus, Reply reply) {
  // Offsets stay good whatever is added and removed between two calls, and what is added meanwhile is not listed any
  // more: a loop that renames or makes a file for each one that it finds comes to an end. So ours come first, newest
  // first (offset after one: its cookie, which is never used twice), then home's (place + 3).
  Listing listing(size, plus);
  std::vector<uint64_t> counted;
  std::vector<PushPiece> traced;
  {
    const TreeLock lock(*this);
    LiveNode* directory = DirectoryLocked(nodeid);
    if (directory == nullptr) {
      reply.Error(ESTALE);
      return;
    }
    const LiveDirectory& of = *directory->directory;
    const LiveNode* above = directory->names.empty() ? directory : directory->names.front().parent;
    bool fits = true;
    const auto add = [&](LiveNode* node, uint64_t next, std::string_view name, bool with_attributes) {
      fits = listing.Fits(name.size());
      if (!fits) return;
      fuse_entry_out out{};
      if (with_attributes) {
        out = CountedEntryLocked(node);
        counted.push_back(node->nodeid);
        NoteForPushLocked(*node, &traced);
      }
      listing.Add(with_attributes ? &out : nullptr, node->attributes.ino, next, node->attributes.mode, name);
    };
    if (offset == 0) add(directory, 1, ".", false);
    if (fits && offset <= 1) add(const_cast<LiveNode*>(above), 2, "..", false);
    const bool in_home = offset > 2 && offset < LiveTree::kFirstCookie;
    auto newest = offset <= 2 ? of.ours.end() : of.ours.lower_bound(offset);  // ours before it are still to come
    while (fits && !in_home && newest != of.ours.begin()) {
      --newest;
      add(of.entries.find(newest->second)->second.node, newest->first, newest->second, plus);
    }
    // Of what is looked up here at most a few times as much comes into the journal.
    const uint64_t most = journal_ != nullptr ? journal_->RoomForReading() / kListedInJournal : UINT64_MAX;
    const uint64_t lower = of.loaded ? of.loaded->directory->size() : 0;
    const uint64_t from = in_home ? offset - 2 : 0;  // the first place that is still to come
    uint64_t at = from;
    if (!of.places.empty()) {
      const auto first = std::lower_bound(of.places.begin(), of.places.end(), std::pair(uint32_t(from), uint32_t{0}));
      at = static_cast<uint64_t>(first - of.places.begin());
    }
    for (; fits && at < lower; ++at) {
      const uint64_t place = of.places.empty() ? at : of.places[at].first;
      const uint64_t i = of.places.empty() ? at : of.places[at].second;
      const std::string_view name = of.loaded->directory->NameAt(i);
      const auto it = of.entries.find(name);
      if (it != of.entries.end() && (it->second.node == nullptr || it->second.cookie != 0)) continue;  // hidden
      const bool with_attributes = plus && at < kListedWithAttributes && listing.data().size() < most;
      fits = listing.Fits(name.size());
      if (!fits) break;  // before a node is made for nothing
      if (with_attributes || it != of.entries.end()) {
        add(tree_.ChildAt(directory, i), place + 3, name, with_attributes);
      } else {
        const tree::Entry entry = of.loaded->directory->At(i);
        listing.Add(nullptr, tree_.InodeNumberOf(entry, i + 2), place + 3, entry.mode, name);
      }
    }
  }
  if (!reply.Data(listing.data())) {
    for (const uint64_t id : counted) Forget(id, 1);
    return;
  }
  PushTold(traced);
}

void LiveRoot::ReportLost(uint64_t nodeid, const std::string& path, const Error& error) {
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || std::exchange(node->lost_reported, true)) return;
  }
  LogWarning("content of {} is lost: {}", Escape(path), Escape(error.message()));
  if (options_.on_content_lost) options_.on_content_lost(path, error.message());
}

}  // namespace vrun::vfs
