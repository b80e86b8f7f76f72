// SPDX-License-Identifier: Apache-2.0
#include "vfs/frozen/lazy_root.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "tree/codec.h"
#include "tree/rules.h"
#include "vfs/content/seek.h"
#include "vfs/content/withheld.h"
#include "vfs/fuse/attributes.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;  // per answer
constexpr int kReadTries = 8;
// Number of listed entries that come with attributes. Each becomes an inode here and in the kernel, so that it needs no
// lookup later; a program rarely wants all entries of a huge directory.
constexpr uint64_t kListedWithAttributes = 2048;

}  // namespace

Result<tree::Entry> FetchRootEntry(Backend& backend, const Digest& tree) {
  if (const auto blob = backend.store()->GetBlob(tree)) {
    if (auto entry = tree::DecodeRoot(*blob, tree)) return entry;
  }
  struct Wait {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<tree::Entry>> answer VRUN_GUARDED_BY(mutex);
  };
  Retry retry{.deadline = MonotonicMicros() + backend.options().home_deadline_micros};
  for (;;) {
    const auto wait = std::make_shared<Wait>();
    backend.source()->FetchRoot(tree, [wait](Result<tree::Entry> answer) {
      MutexLock lock(wait->mutex);
      wait->answer = std::move(answer);
      wait->changed.notify_all();
    });
    const int64_t left = std::max<int64_t>(retry.deadline - MonotonicMicros(), 0);
    MutexLock lock(wait->mutex);
    if (!wait->changed.wait_for(lock, std::chrono::microseconds(left),
                                [&]() VRUN_REQUIRES(wait->mutex) { return wait->answer.has_value(); })) {
      return Error(Code::kTimeout, "fetch the root of a tree: home did not answer in time");
    }
    Result<tree::Entry> answer = *std::move(wait->answer);
    if (answer) {
      const std::string encoded = tree::EncodeRoot(*answer);
      if (Sha256(encoded) == tree && answer->is_directory()) {
        if (!backend.store()->PutBlob(tree, encoded)) ++backend.mutable_counters().store_write_failures;
        return answer;
      }
      answer = Error(Code::kCorrupt, "fetch the root of a tree: home's answer does not match the digest");
    }
    const int64_t delay = retry.Next(answer.error(), MonotonicMicros());
    if (delay < 0) return answer;
    wait->changed.wait_for(lock, std::chrono::microseconds(delay), [] { return false; });
  }
}

LazyRoot::LazyRoot(Backend& backend, Transport& transport, const Digest& tree, tree::Entry root,
                   LazyRootOptions options, SavedView* saved)
    : backend_(backend),
      transport_(transport),
      options_(std::move(options)),
      saved_(saved),
      tree_(tree),
      root_(std::move(root)),
      inodes_(root_.child, saved) {
  inodes_.root()->mode = root_.mode;
  if (saved_ != nullptr) saved_->SetTree(tree_);
  if (options_.push) {
    pusher_ = std::make_unique<Pusher>(backend_, PushByNotice(backend_, transport_),
                                       Pusher::Callbacks{.claim = [this](uint64_t nodeid) { return ClaimPush(nodeid); },
                                                         .taken =
                                                             [this](const Pusher::Piece& piece) {
                                                               Record(piece.nodeid, piece.version, piece.offset,
                                                                      piece.length);
                                                             }});
    backend_.traced().Listen(this);
  }
}

LazyRoot::~LazyRoot() {
  backend_.traced().Unlisten(this);
  StopPushing();
  gate_->Close();
}

void LazyRoot::StopPushing() {
  if (pusher_) pusher_->Stop();
}

Digest LazyRoot::tree() const {
  MutexLock lock(mutex_);
  return tree_;
}

size_t LazyRoot::inodes() const {
  MutexLock lock(mutex_);
  return inodes_.size();
}

InitChoice LazyRoot::Init(const KernelOffer& offer) {
  InitChoice choice;
  // Not READDIRPLUS_AUTO, which gives attributes only with the first page of a listing: we decide how many get them.
  choice.flags = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_CACHE_SYMLINKS | FUSE_NO_OPEN_SUPPORT |
                 FUSE_NO_OPENDIR_SUPPORT | FUSE_EXPLICIT_INVAL_DATA;
  if (options_.list_attributes) choice.flags |= FUSE_DO_READDIRPLUS;
  // Without extended attributes there are no ACLs, and with this flag the kernel remembers that for each inode.
  // Otherwise it checks again for each component of each path (a tenth of the time of opening a cached file).
  if (!options_.xattrs || options_.posix_acls) choice.flags |= FUSE_POSIX_ACL;
  passthrough_offered_ = (offer.flags & kFusePassthrough) != 0;
  if (options_.passthrough && passthrough_offered_) {
    choice.flags |= kFusePassthrough;
    passthrough_works_ = true;
  }
  const bool resend = options_.resend && (offer.flags & kFuseHasResend) != 0;
  if (resend) choice.flags |= kFuseHasResend;
  if (saved_ != nullptr) {
    saved_->header().passthrough = passthrough_works_ ? 1 : 0;
    saved_->header().resend = resend ? 1 : 0;
  }
  return choice;
}

// --- names and attributes --------------------------------------------------------------------------------------------

std::optional<tree::Entry> LazyRoot::EntryLocked(const Inode& inode) const {
  if (inode.nodeid == InodeTable::kRootId) return root_;
  return inodes_.EntryOf(inode);
}

fuse_attr LazyRoot::AttrLocked(const Inode& inode, const tree::Entry& entry) const {
  return AttributesOf(entry, options_.ids, root_.dev, inode.nodeid);
}

fuse_entry_out LazyRoot::EntryOutLocked(const Inode& inode, const tree::Entry& entry) const {
  fuse_entry_out out{};
  out.nodeid = inode.nodeid;
  out.entry_valid = kForeverSeconds;
  out.attr_valid = kForeverSeconds;
  out.attr = AttrLocked(inode, entry);
  return out;
}

void LazyRoot::WithDirectory(uint64_t nodeid, Reply reply, std::function<void(Reply)> then) {
  Digest digest;
  Digest tree;
  std::string path;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(nodeid);
    if (inode == nullptr || !inode->is_directory()) {
      reply.Error(inode == nullptr ? ESTALE : ENOTDIR);
      return;
    }
    if (!inode->directory->loaded) {
      digest = inode->directory->digest;
      tree = tree_;
      const auto found = inodes_.PathOf(*inode);
      if (!found) {
        reply.Error(ESTALE);
        return;
      }
      path = *found;
    }
  }
  if (path.empty()) {
    then(std::move(reply));
    return;
  }
  const auto install = [this, nodeid, digest](const LoadedDirectoryPtr& loaded) {
    MutexLock lock(mutex_);
    Inode* inode = inodes_.Find(nodeid);
    if (inode == nullptr || !inode->is_directory()) return false;
    if (inode->directory->loaded) return true;  // another request was faster, or the tree has advanced
    if (inode->directory->digest != digest) return false;
    inodes_.SetLoaded(inode, loaded);
    return true;
  };
  if (const LoadedDirectoryPtr loaded = backend_.directories().Find(digest)) {
    if (!install(loaded)) {
      reply.Error(ESTALE);
      return;
    }
    then(std::move(reply));
    return;
  }
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  backend_.directories().Get(tree, path, digest,
                             [this, gate = gate_, shared, install, nodeid, path,
                              then = std::move(then)](const Result<LoadedDirectoryPtr>& loaded) {
                               const Gate::Pass pass(gate.get());
                               if (!pass) return;
                               if (!loaded) {
                                 if (IsLost(loaded.error())) ReportLost(nodeid, path, loaded.error());
                                 shared->Error(ErrnoOf(loaded.error()));
                               } else if (!install(*loaded)) {
                                 shared->Error(ESTALE);
                               } else {
                                 then(std::move(*shared));
                               }
                             });
}

void LazyRoot::Lookup(const Request& request, std::string_view name, Reply reply) {
  const uint64_t nodeid = request.nodeid;
  WithDirectory(nodeid, std::move(reply), [this, nodeid, name = std::string(name)](Reply loaded) {
    LookupLoaded(nodeid, name, std::move(loaded));
  });
}

void LazyRoot::LookupLoaded(uint64_t nodeid, const std::string& name, Reply reply) {
  fuse_entry_out out{};
  std::optional<std::string> asked;  // the directory of a name that home may hide
  {
    MutexLock lock(mutex_);
    Inode* parent = inodes_.Find(nodeid);
    if (parent == nullptr || !parent->is_directory() || !parent->directory->loaded) {
      reply.Error(ESTALE);
      return;
    }
    const tree::Directory& directory = *parent->directory->loaded->directory;
    const size_t index = directory.Find(name);
    if (index < directory.size()) {
      const tree::Entry entry = directory.At(index);
      Inode* child = inodes_.Child(parent, static_cast<uint32_t>(index), entry);
      inodes_.CountLookup(child);
      out = EntryOutLocked(*child, entry);
    } else {
      out.entry_valid = kForeverSeconds;  // nodeid 0: the name does not exist
      if (backend_.withheld().MayBe(name)) asked = inodes_.PathOf(*parent);
    }
  }
  if (asked && backend_.withheld().Asked(tree::JoinPath(*asked, name))) out.entry_valid = 0;
  if (reply.Struct(out)) {
    PushTraced({&out.nodeid, 1}, false);
  } else if (out.nodeid != 0) {
    Forget(out.nodeid, 1);
  }
}

void LazyRoot::Forget(uint64_t nodeid, uint64_t count) {
  MutexLock lock(mutex_);
  inodes_.Forget(nodeid, count);
}

void LazyRoot::GetAttr(const Request& request, Reply reply) {
  fuse_attr_out out{};
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(request.nodeid);
    const auto entry = inode != nullptr ? EntryLocked(*inode) : std::nullopt;
    if (!entry) {
      reply.Error(ESTALE);
      return;
    }
    out.attr_valid = kForeverSeconds;
    out.attr = AttrLocked(*inode, *entry);
  }
  reply.Struct(out);
}

void LazyRoot::ReadLink(const Request& request, Reply reply) {
  std::optional<tree::Entry> entry;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(request.nodeid);
    if (inode != nullptr) entry = EntryLocked(*inode);
  }
  if (!entry) {
    reply.Error(ESTALE);
  } else if (!entry->is_symlink() || entry->target.empty()) {
    reply.Error(EINVAL);
  } else {
    reply.Data(entry->target);
  }
}

void LazyRoot::OpenDir(const Request&, Reply reply) {
  if (!options_.no_open) {
    reply.Struct(OpenOut{0, kOpenKeepCache | kOpenCacheDir, 0});
    return;
  }
  // The kernel then opens directories without a request and caches their listings.
  reply.Error(ENOSYS);
}

void LazyRoot::ReadDir(const Request& request, uint64_t offset, uint32_t size, bool plus, Reply reply) {
  const uint64_t nodeid = request.nodeid;
  WithDirectory(nodeid, std::move(reply), [this, nodeid, offset, size, plus](Reply loaded) {
    ReadDirLoaded(nodeid, offset, size, plus, std::move(loaded));
  });
}

void LazyRoot::ReadDirLoaded(uint64_t nodeid, uint64_t offset, uint32_t size, bool plus, Reply reply) {
  std::string out;
  std::vector<uint64_t> counted;
  size = std::min(size, kMostBytes);
  const size_t prefix = plus ? sizeof(fuse_entry_out) : 0;
  // False: it does not fit.
  const auto add = [&](const fuse_entry_out* entry_out, uint64_t ino, uint64_t next, uint32_t type,
                       std::string_view name) {
    const size_t bytes = FUSE_DIRENT_ALIGN(prefix + FUSE_NAME_OFFSET + name.size());
    if (out.size() + bytes > size) return false;
    const size_t at = out.size();
    out.resize(at + bytes);
    if (plus && entry_out != nullptr) std::memcpy(out.data() + at, entry_out, sizeof *entry_out);
    fuse_dirent dirent{};
    dirent.ino = ino;
    dirent.off = next;
    dirent.namelen = static_cast<uint32_t>(name.size());
    dirent.type = type;
    std::memcpy(out.data() + at + prefix, &dirent, FUSE_NAME_OFFSET);
    std::memcpy(out.data() + at + prefix + FUSE_NAME_OFFSET, name.data(), name.size());
    return true;
  };
  {
    MutexLock lock(mutex_);
    Inode* inode = inodes_.Find(nodeid);
    if (inode == nullptr || !inode->is_directory() || !inode->directory->loaded) {
      reply.Error(ESTALE);
      return;
    }
    const tree::Directory& directory = *inode->directory->loaded->directory;
    const Inode* above = inode->link.parent != nullptr ? inode->link.parent : inode;
    const auto ino_of = [&](const Inode& of) VRUN_REQUIRES(mutex_) {
      const auto entry = EntryLocked(of);
      return entry ? InodeNumber(*entry, root_.dev, of.nodeid) : of.nodeid;
    };
    bool fits = true;
    if (offset == 0) fits = add(nullptr, ino_of(*inode), 1, S_IFDIR >> 12, ".");
    if (fits && offset <= 1) fits = add(nullptr, ino_of(*above), 2, S_IFDIR >> 12, "..");
    for (uint64_t i = offset < 2 ? 0 : offset - 2; fits && i < directory.size(); ++i) {
      const tree::Entry entry = directory.At(i);
      fuse_entry_out entry_out{};
      uint64_t ino = 0;
      // A node id of 0 means that there are no attributes.
      if (plus && i < kListedWithAttributes) {
        if (out.size() + prefix + FUSE_NAME_OFFSET + entry.name.size() > size) break;  // before making an inode
        Inode* child = inodes_.Child(inode, static_cast<uint32_t>(i), entry);
        entry_out = EntryOutLocked(*child, entry);
        ino = entry_out.attr.ino;
        if (add(&entry_out, ino, i + 3, entry.mode >> 12, entry.name)) {
          inodes_.CountLookup(child);
          counted.push_back(child->nodeid);
        } else {
          inodes_.Drop(child);
          fits = false;
        }
        continue;
      }
      ino = InodeNumber(entry, root_.dev, i + 2);
      fits = add(nullptr, ino, i + 3, entry.mode >> 12, entry.name);
    }
  }
  if (reply.Data(out)) {
    PushTraced(counted, false);
  } else {
    for (const uint64_t id : counted) Forget(id, 1);
  }
}

void LazyRoot::StatFs(const Request&, Reply reply) {
  fuse_statfs_out out{};  // no blocks, none free, as for a read-only image
  out.st.bsize = 4096;
  out.st.frsize = 4096;
  out.st.namelen = 255;
  reply.Struct(out);
}

void LazyRoot::GetXattr(const Request& request, std::string_view name, uint32_t size, Reply reply) {
  if (!options_.xattrs) {
    reply.Error(ENOSYS);  // the kernel does not ask again
    return;
  }
  std::optional<std::string> value;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(request.nodeid);
    // An overlay asks for its own attributes of every file that it looks up; the tree never has them.
    if (inode != nullptr && !name.starts_with("trusted.overlay.")) {
      if (const auto entry = EntryLocked(*inode); entry && !entry->xattrs.empty()) {
        value = XattrOf(*entry, name, options_.ids);
      }
    }
  }
  if (!value) {
    reply.Error(ENODATA);
  } else if (size == 0) {
    reply.Struct(fuse_getxattr_out{static_cast<uint32_t>(value->size()), 0});
  } else if (value->size() > size) {
    reply.Error(ERANGE);
  } else {
    reply.Data(*value);
  }
}

void LazyRoot::ListXattr(const Request& request, uint32_t size, Reply reply) {
  std::string names;
  if (options_.xattrs) {  // if disabled: an empty list, because ENOSYS would be an error for callers
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(request.nodeid);
    const auto entry = inode != nullptr ? EntryLocked(*inode) : std::nullopt;
    if (entry) names = XattrNames(*entry);
  }
  if (size == 0) {
    reply.Struct(fuse_getxattr_out{static_cast<uint32_t>(names.size()), 0});
  } else if (names.size() > size) {
    reply.Error(ERANGE);
  } else {
    reply.Data(names);
  }
}

void LazyRoot::Seek(const Request& request, uint64_t offset, uint32_t whence, Reply reply) {
  std::shared_ptr<FileContent> content;
  FileContent::Place place;
  bool sparse = false;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(request.nodeid);
    if (inode != nullptr) content = ContentLocked(*inode);
    const auto entry = content ? EntryLocked(*inode) : std::nullopt;
    sparse = entry && IsSparse(entry->size, entry->blocks);
    if (sparse) place = {tree_, inodes_.PathOf(*inode).value_or("")};
  }
  if (!content) {
    reply.Error(EIO);
    return;
  }
  AnswerSeek(content, place, sparse, offset, whence, std::move(reply));
}

// --- content ---------------------------------------------------------------------------------------------------------

std::shared_ptr<FileContent> LazyRoot::ContentLocked(const Inode& inode) {
  if (!S_ISREG(inode.mode)) return nullptr;
  return backend_.files().Get(inode.version, inodes_.KnownId(inode));
}

void LazyRoot::Read(const Request& request, uint64_t offset, uint32_t size, Reply reply) {
  std::shared_ptr<FileContent> content;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(request.nodeid);
    if (inode != nullptr) content = ContentLocked(*inode);
  }
  if (!content) {
    reply.Error(EIO);
    return;
  }
  size = std::min(size, kMostBytes);
  if (!request.direct && content->Declines(offset, size)) {
    reply.Error(EAGAIN);
    return;
  }
  ReadOrFetch(request.nodeid, std::move(content), offset, size, kReadTries, std::move(reply));
}

void LazyRoot::ReadOrFetch(uint64_t nodeid, std::shared_ptr<FileContent> content, uint64_t offset, uint32_t size,
                           int tries, Reply reply) {
  // One buffer per thread, never cleared: a fresh megabyte for each read would cost more than the read.
  thread_local const std::unique_ptr<char[]> buffer(new char[kMostBytes]);
  if (const auto n = content->TryRead(offset, buffer.get(), size)) {
    if (*n > 0) Record(nodeid, content->version(), offset, *n);
    reply.Data({buffer.get(), *n});
    if (offset == 0 && *n == content->size() && *n <= Pusher::kMostBytes) PushAfterRead(nodeid);
    return;
  }
  if (tries == 0) {
    reply.Error(EIO);
    return;
  }
  if (tries < kReadTries && content->Has(offset, size)) {
    reply.Suspend();
    backend_.timers().After(PauseMicros(kReadTries - tries),
                            [this, gate = gate_, shared = std::make_shared<Reply>(std::move(reply)), nodeid,
                             content = std::move(content), offset, size, tries] {
                              const Gate::Pass pass(gate.get());
                              if (pass) ReadOrFetch(nodeid, content, offset, size, tries - 1, std::move(*shared));
                            });
    return;
  }
  FileContent::Place place;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(nodeid);
    const auto path = inode != nullptr ? inodes_.PathOf(*inode) : std::nullopt;
    if (!path) {  // the view has advanced past this file
      reply.Error(EIO);
      return;
    }
    place = {tree_, *path};
  }
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  content->Ensure(
      place, offset, size,
      [this, gate = gate_, shared, content, nodeid, offset, size, tries, path = place.path](const Status& done) {
        const Gate::Pass pass(gate.get());
        if (!pass) return;
        if (done) {
          ReadOrFetch(nodeid, content, offset, size, tries - 1, std::move(*shared));
          return;
        }
        // Report first: a user who sees the read fail may look for the reason.
        if (IsLost(done.error())) ReportLost(nodeid, path, done.error());
        shared->Error(ErrnoOf(done.error()));
      });
}

void LazyRoot::Record(uint64_t nodeid, const tree::FileVersion& version, uint64_t offset, uint64_t n) {
  if (!backend_.recorder().active()) return;
  const uint64_t unit = store::UnitBytes(version.size);
  const uint64_t first = offset / unit, end = (offset + n - 1) / unit + 1;
  backend_.recorder().Used(version, first, end - first, [this, nodeid] {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(nodeid);
    return inode != nullptr ? inodes_.PathOf(*inode).value_or("") : "";
  });
}

void LazyRoot::ReportLost(uint64_t nodeid, const std::string& path, const Error& error) {
  {
    MutexLock lock(mutex_);
    Inode* inode = inodes_.Find(nodeid);
    if (inode == nullptr || inode->lost_reported) return;
    inode->lost_reported = true;
  }
  LogWarning("content of {} is lost: {}", Escape(path), Escape(error.message()));
  if (options_.on_content_lost) options_.on_content_lost(path, error.message());
}

}  // namespace vrun::vfs
