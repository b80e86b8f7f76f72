// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/frozen_files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr uint64_t kKernelBytes = 2048;  // per open file: inode, name, file, lease
constexpr int kBuilderNice = 10;
constexpr std::chrono::seconds kCopyPatience{60};  // the kernel waits for less
constexpr int64_t kScanMicros = 120'000'000;       // home's first scan may take that long
// Between two checks for changes: checking a file takes 0.25 us, so this is half a percent of a processor.
constexpr int64_t kLookMillis = 2000;
constexpr size_t kFilesLookedAtAMilli = 20;

// Three quarters of the descriptors, and a thirty-second of the memory.
size_t MostFiles() {
  rlimit limit{512, 512};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  struct sysinfo memory {};
  (void)::sysinfo(&memory);
  const uint64_t by_memory = memory.totalram * memory.mem_unit / 32 / kKernelBytes;
  return static_cast<size_t>(std::min<uint64_t>(limit.rlim_cur / 4 * 3, std::max<uint64_t>(by_memory, 1024)));
}

bool SameInode(const struct stat& st, const tree::FileVersion& version) {
  return st.st_dev == version.dev && st.st_ino == version.ino;
}

}  // namespace

// One version of one file. What is not const is guarded by the owner's mutex.
struct FrozenFiles::File {
  File(FrozenFiles* owner, const tree::Entry& entry)
      : owner(owner), version(entry.version()), mtime_ns(entry.mtime_ns) {}
  ~File() { owner->Gone(this); }

  FrozenFiles* const owner;
  const tree::FileVersion version;
  const int64_t mtime_ns;
  UniqueFd fd;            // the file itself
  bool leased = false;    // so its content cannot have changed since
  bool verified = false;  // it was this version when it was leased
  bool busy = false;      // being copied
  bool passing = false;   // being replaced by its copy
  UniqueFd copy;          // until it is on disk, or for good if that failed
  bool kept = false;      // the copy is on disk
  std::string lost;       // why there is neither

  // For files without a lease. A write changes the mtime; only resetting it to the nanosecond goes unnoticed.
  bool LooksTheSame(const struct stat& st) const {
    return SameInode(st, version) && static_cast<uint64_t>(st.st_size) == version.size &&
           ToNanos(st.st_mtim) == mtime_ns;
  }
};

// All files at and below one path with one directory object; shared by all trees that have it.
struct FrozenFiles::Directory {
  FrozenFiles* owner = nullptr;
  std::string key;
  std::vector<FilePtr> files;
  std::vector<DirectoryPtr> children;
  uint64_t below = 0;     // files, held or not
  uint64_t left_out = 0;  // of these, not held
  ~Directory() {
    // On the builder, the only thread that creates them.
    const auto it = owner->directories_.find(key);
    if (it != owner->directories_.end() && it->second.expired()) owner->directories_.erase(it);
  }
};

struct FrozenFiles::Hold::Parts {
  std::vector<DirectoryPtr> directories;
  std::vector<FilePtr> files;
};

struct FrozenFiles::Walk {
  const std::weak_ptr<Hold>& hold;
  size_t most;  // limit of files, of all holds together
  // Files not found at their paths, and the directories that they belong to.
  std::unordered_map<tree::FileVersion, std::shared_ptr<Directory>, tree::FileVersionHash> missed;
  bool Wanted() const { return !hold.expired(); }
};

FrozenFiles::Hold::~Hold() {
  if (owner_ == nullptr) return;
  // Closing 100,000 files takes a while.
  owner_->builder_.Post([parts = std::move(parts_)]() mutable { parts.reset(); });
}

FrozenFiles::FrozenFiles(const ContentFiles* root, Options options)
    : root_(root),
      options_(std::move(options)),
      max_files_(options_.max_files != 0 ? options_.max_files : MostFiles()),
      kept_(options_.kept) {
  auto breaks = LeaseBreaks::Open();
  if (breaks) breaks_ = std::make_unique<LeaseBreaks>(*std::move(breaks));
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

FrozenFiles::~FrozenFiles() { Close(); }

void FrozenFiles::Close() {
  if (stopping_.exchange(true)) return;
  builder_.Stop();
  ::eventfd_write(wake_.get(), 1);
  if (attendant_.joinable()) attendant_.join();
  CopyWhatChanged();
  keepers_.Drain();
}

FrozenFiles::HoldPtr FrozenFiles::MakeHold() {
  auto hold = std::make_shared<Hold>();
  hold->owner_ = this;
  hold->parts_ = std::make_shared<Hold::Parts>();
  {
    MutexLock lock(mutex_);
    if (breaks_ && !std::exchange(attending_, true)) attendant_ = std::thread([this] { Attend(); });
  }
  return hold;
}

FrozenFiles::HoldPtr FrozenFiles::Freeze(tree::TreePtr tree, std::vector<std::string> first, HoldPtr before) {
  HoldPtr hold = MakeHold();
  builder_.Post([this, weak = std::weak_ptr(hold), tree = std::move(tree), first = std::move(first),
                 before = std::move(before)] { Build(weak, tree, first, true); });
  return hold;
}

FrozenFiles::HoldPtr FrozenFiles::FreezeFirst(tree::TreePtr tree, std::vector<std::string> first) {
  HoldPtr hold = MakeHold();
  builder_.Post([this, weak = std::weak_ptr(hold), tree = std::move(tree), first = std::move(first)] {
    Build(weak, tree, first, false);
  });
  return hold;
}

void FrozenFiles::Settle() {
  const auto built = [this] {
    std::promise<void> done;
    builder_.Post([&] { done.set_value(); });
    done.get_future().wait();
  };
  built();
  {
    MutexLock lock(mutex_);
    settled_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return keeping_ == 0; });
  }
  built();
}

void FrozenFiles::DropUnclaimed() {
  builder_.Post([this] {
    {
      // A running copy is claimed by the thread that makes it.
      MutexLock lock(mutex_);
      drop_again_ = keeping_ > 0;
    }
    kept_.Retain([this](const tree::FileVersion& version) {
      MutexLock lock(mutex_);
      const auto it = files_.find(version);
      return it != files_.end() && !it->second.expired();
    });
  });
}

// --- holding ---

void FrozenFiles::Build(const std::weak_ptr<Hold>& hold, const tree::TreePtr& tree,
                        const std::vector<std::string>& first, bool all_of_it) {
  (void)::setpriority(PRIO_PROCESS, 0, kBuilderNice);  // for this thread
  Walk walk{hold, max_files_, {}};
  const auto parts = [&] {
    const HoldPtr held = hold.lock();
    return held ? held->parts_ : nullptr;
  }();
  if (!parts) return;
  for (const std::string& path : first) {
    if (auto directory = tree::LookupDirectory(*tree, path)) {
      parts->directories.push_back(BuildDirectory(&walk, path, *directory));
    } else if (auto entry = tree::Lookup(*tree, path); entry && entry->is_regular()) {
      if (FilePtr file = Protect(path, *entry, walk.most)) parts->files.push_back(std::move(file));
    }
  }
  if (!all_of_it) return;
  // The rest leaves room for the `first` files of the next job.
  walk.most = max_files_ / 4 * 3;
  DirectoryPtr all = BuildDirectory(&walk, "/", tree->directory);
  const uint64_t files = all->below, left_out = all->left_out - ProtectMoved(&walk);
  // Replaces the parts held first: the whole tree includes all of them.
  parts->directories = {std::move(all)};
  parts->files.clear();
  const HoldPtr held = hold.lock();
  if (!held) return;
  held->files_ = files;
  held->left_out_ = left_out;
  held->complete_ = true;
  const Stats now = stats();
  LogInfo("frozen root: {} files, {} left out; {} are held open, {} copies of {} bytes", files, left_out, now.held,
          now.kept.files, now.kept.bytes);
}

FrozenFiles::DirectoryPtr FrozenFiles::BuildDirectory(Walk* walk, const std::string& path,
                                                      const tree::DirectoryPtr& directory) {
  std::string key = path + '\0' + std::string(directory->digest().view());
  if (const auto it = directories_.find(key); it != directories_.end()) {
    if (DirectoryPtr known = it->second.lock()) return known;
  }
  auto made = std::make_shared<Directory>();
  made->owner = this;
  for (size_t i = 0; i < directory->size(); ++i) {
    if (stopping_ || !walk->Wanted()) return made;  // incomplete: not entered in directories_
    if (tree::DirectoryPtr child = directory->Child(i)) {
      made->children.push_back(BuildDirectory(walk, tree::JoinPath(path, directory->NameAt(i)), child));
      made->below += made->children.back()->below;
      made->left_out += made->children.back()->left_out;
      continue;
    }
    const tree::Entry entry = directory->At(i);
    if (!entry.is_regular() || entry.size == 0) continue;
    ++made->below;
    if (FilePtr file = Protect(tree::JoinPath(path, entry.name), entry, walk->most)) {
      made->files.push_back(std::move(file));
    } else {
      ++made->left_out;
      if (options_.now && HasRoom(walk->most)) walk->missed.emplace(entry.version(), made);
    }
  }
  if (stopping_ || !walk->Wanted()) return made;
  made->key = key;
  directories_[std::move(key)] = made;
  return made;
}

bool FrozenFiles::HasRoom(size_t most) const {
  MutexLock lock(mutex_);
  return held_.size() < most;
}

// Renaming a directory causes no event for the files below. Files that are held open remain available, but home may
// have been restarted since.
uint64_t FrozenFiles::ProtectMoved(Walk* walk) {
  if (walk->missed.empty()) return 0;
  tree::TreePtr now = options_.now();
  for (const int64_t patience = MonotonicMicros() + kScanMicros;
       !now && !stopping_ && walk->Wanted() && MonotonicMicros() < patience; now = options_.now()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (!now) return 0;
  std::vector<uint64_t> inodes;
  for (const auto& [version, directory] : walk->missed) inodes.push_back(version.ino);
  std::sort(inodes.begin(), inodes.end());
  uint64_t found = 0;
  std::vector<std::pair<std::string, tree::DirectoryPtr>> left{{"/", now->directory}};
  while (!left.empty() && !stopping_ && walk->Wanted()) {
    const auto [path, directory] = std::move(left.back());
    left.pop_back();
    for (size_t i = 0; i < directory->size(); ++i) {
      if (tree::DirectoryPtr child = directory->Child(i)) {
        const tree::Directory::Totals& below = child->totals();
        const auto at = std::lower_bound(inodes.begin(), inodes.end(), below.min_ino);
        if (at == inodes.end() || *at > below.max_ino) continue;
        left.emplace_back(tree::JoinPath(path, directory->NameAt(i)), std::move(child));
        continue;
      }
      const tree::Entry entry = directory->At(i);
      const auto missed = entry.is_regular() ? walk->missed.find(entry.version()) : walk->missed.end();
      if (missed == walk->missed.end()) continue;
      if (FilePtr file = Protect(tree::JoinPath(path, entry.name), entry, walk->most)) {
        missed->second->files.push_back(std::move(file));
        --missed->second->left_out;
        ++found;
      }
      walk->missed.erase(missed);
    }
  }
  return found;
}

// Null: the content has already changed, there is no room, or the file may not be read (then nobody can request it).
FrozenFiles::FilePtr FrozenFiles::Protect(const std::string& path, const tree::Entry& entry, size_t most) {
  const tree::FileVersion version = entry.version();
  if (FilePtr known = Find(version)) return known;
  auto file = std::make_shared<File>(this, entry);
  const bool kept = kept_.Has(version);
  {
    MutexLock lock(mutex_);
    if (!kept && held_.size() >= most) return nullptr;
    file->kept = kept;
    if (kept) files_[version] = file;
  }
  if (kept) return file;
  auto opened = root_->OpenVersion(path, version);
  if (!opened) return nullptr;
  const int fd = opened->get();
  {
    // Registered before the lease is taken: its signal may come at once.
    MutexLock lock(mutex_);
    file->fd = *std::move(opened);
    file->leased = breaks_ != nullptr;
    files_[version] = file;
    held_[fd] = file;
  }
  const Status leased = breaks_ ? TakeFileLease(fd) : Error(Code::kUnsupported, "no signals of leases");
  // It may have been written to between our check and the lease; from here on it cannot.
  const bool same = root_->Check(fd, path, version).has_value();
  {
    MutexLock lock(mutex_);
    if (!leased) file->leased = false;
    if (same) file->verified = true;
  }
  if (!same) {
    MutexLock lock(mutex_);
    if (!file->copy && !file->kept) return nullptr;  // a writer may have come at once; there may be a copy already
    return file;
  }
  if (!leased && leased.error().error_number() == EAGAIN) {
    // Somebody has it open for writing.
    if (version.size > kEagerBytes) return nullptr;
    Keep(file, false);
    MutexLock lock(mutex_);
    if (!file->kept) return nullptr;
  }
  return file;
}

FrozenFiles::FilePtr FrozenFiles::Find(const tree::FileVersion& version) const {
  MutexLock lock(mutex_);
  const auto it = files_.find(version);
  return it == files_.end() ? nullptr : it->second.lock();
}

void FrozenFiles::Gone(File* file) {
  // A duplicate of the descriptor would keep the lease.
  if (file->leased && file->fd) (void)GiveFileLeaseBack(file->fd.get());
  MutexLock lock(mutex_);
  if (file->fd) held_.erase(file->fd.get());
  const auto it = files_.find(file->version);
  // There may be another File of that version by now.
  if (it == files_.end() || !it->second.expired()) return;
  files_.erase(it);
}

// --- changes at home ---

void FrozenFiles::Attend() {
  ::pthread_setname_np(::pthread_self(), "leases");
  int64_t looked = MonotonicMicros();
  while (!stopping_) {
    pollfd fds[] = {{breaks_->fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    int64_t pause;
    {
      MutexLock lock(mutex_);
      pause = std::max(kLookMillis, static_cast<int64_t>(held_.size() / kFilesLookedAtAMilli));
    }
    const int64_t left = looked / 1000 + pause - MonotonicMicros() / 1000;
    const int n = ::poll(fds, 2, static_cast<int>(std::max<int64_t>(left, 0)));
    if (n < 0 && errno != EINTR) return;
    if (n > 0 && (fds[0].revents & POLLIN)) {
      const LeaseBreaks::Batch batch = breaks_->Read();
      for (const int fd : batch.descriptors) {
        FilePtr file;
        {
          MutexLock lock(mutex_);
          if (const auto it = held_.find(fd); it != held_.end()) file = it->second.lock();
        }
        // The signal may be about an earlier file with this descriptor.
        if (file && !LeaseIsQuiet(fd)) CopySoon(std::move(file), true);
      }
      // No writer waits for files without a lease; Keep checks that.
      if (batch.lost) CopyThose(true, [](int fd, const tree::FileVersion&) { return !LeaseIsQuiet(fd); });
    }
    if (left > 0 && n != 0) continue;
    CopyWhatChanged();
    looked = MonotonicMicros();
  }
}

// The next home could not find files that have lost their name or changed attributes.
void FrozenFiles::CopyWhatChanged() {
  CopyThose(false, [](int fd, const tree::FileVersion& version) {
    struct stat st;
    return ::fstat(fd, &st) == 0 && ToNanos(st.st_ctim) != version.ctime_ns;
  });
}

void FrozenFiles::CopyThose(bool writer_waits, const std::function<bool(int, const tree::FileVersion&)>& so) {
  std::vector<std::pair<int, FilePtr>> all;
  {
    MutexLock lock(mutex_);
    all.reserve(held_.size());
    for (const auto& [fd, weak] : held_) {
      if (FilePtr file = weak.lock()) all.emplace_back(fd, std::move(file));
    }
  }
  // Without the lock, which readers need. A descriptor that is another file by now costs an unneeded copy at worst.
  for (auto& [fd, file] : all) {
    if (so(fd, file->version)) CopySoon(std::move(file), writer_waits);
  }
}

void FrozenFiles::CopySoon(FilePtr file, bool writer_waits) {
  {
    MutexLock lock(mutex_);
    ++keeping_;
  }
  keepers_.Post([this, file = std::move(file), writer_waits]() mutable {
    Keep(file, writer_waits);
    file.reset();
    {
      MutexLock lock(mutex_);
      // With the lock: a thread that waits for the last copy waits for this too.
      if (--keeping_ == 0 && drop_again_) DropUnclaimed();
    }
    settled_.notify_all();
  });
}

void FrozenFiles::Keep(const FilePtr& file, bool writer_waits) {
  int fd;
  bool leased, verified;
  {
    MutexLock lock(mutex_);
    if (file->busy || !file->fd || (writer_waits && !file->leased)) return;
    file->busy = true;
    fd = file->fd.get();
    leased = file->leased;
    verified = file->verified;
  }
  const auto looks_the_same = [&] {
    struct stat st;
    return ::fstat(fd, &st) == 0 && file->LooksTheSame(st);
  };
  // Under a lease nothing changes. Without one, or before it was verified under it, the times must prove that.
  const bool sure = leased && verified;
  Result<OldContent::Copy> copy =
      sure || looks_the_same()
          ? kept_.Make(fd, file->version)
          : Result<OldContent::Copy>(Error(Code::kAborted, "the file changed before it could be copied"));
  if (copy && !sure && !looks_the_same()) copy = Error(Code::kAborted, "the file changed while it was copied");
  UniqueFd readable, gone;
  if (copy) readable.Reset(::fcntl(copy->fd(), F_DUPFD_CLOEXEC, 3));
  {
    MutexLock lock(mutex_);
    file->busy = false;
    // Without room: keep the file open while no writer waits. A writer that came meanwhile found us busy.
    if (!copy && !writer_waits && (!leased || LeaseIsQuiet(fd))) return;
    // Readers use neither the file nor the copy until the lease is released: only then is it certain that nothing was
    // written before.
    file->passing = true;
    held_.erase(fd);
    gone = std::move(file->fd);
  }
  if (leased && !GiveFileLeaseBack(fd) && copy) {
    copy = Error(Code::kTimeout, "copying took longer than the kernel lets a writer wait (fs.lease-break-time)");
  }
  {
    MutexLock lock(mutex_);
    file->passing = file->leased = false;
    if (copy) {
      file->copy = std::move(readable);
    } else {
      file->lost = copy.error().message();
      ++lost_;
      last_lost_ = file->lost;
    }
  }
  settled_.notify_all();
  if (!copy) {
    LogWarning("cannot copy the old content of inode {} before a writer changes it: {}", file->version.ino,
               copy.error().message());
    return;
  }
  // The writer has continued by now.
  if (Status durable = kept_.Keep(*std::move(copy), file->version); !durable) {
    LogWarning("the old content of inode {} will not survive a restart of home: {}", file->version.ino,
               durable.error().message());
    return;
  }
  MutexLock lock(mutex_);
  file->kept = true;
  file->copy.Reset();
}

// --- reading ---

// Call with the lock.
bool FrozenFiles::Intact(const File& file) {
  if (file.leased && file.verified && LeaseIsQuiet(file.fd.get())) return true;
  struct stat st;
  return ::fstat(file.fd.get(), &st) == 0 && file.LooksTheSame(st);
}

Result<UniqueFd> FrozenFiles::OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                                       uint64_t length) const {
  auto held = OpenHeld(path, version, offset, length);
  if (held || held.error().code() != Code::kAborted) return held;
  auto grown = grown_.Open(*root_, path, version);
  return grown ? std::move(grown) : std::move(held);
}

Result<UniqueFd> FrozenFiles::OpenHeld(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                                       uint64_t length) const {
  auto fd = root_->OpenPart(path, version, offset, length);
  if (fd || fd.error().code() != Code::kAborted) return fd;
  // An empty file has no content to lose.
  if (version.size == 0) return OpenFile("/dev/null", O_RDONLY);
  const FilePtr file = Find(version);
  if (!file) return fd;
  {
    MutexLock lock(mutex_);
    while (file->fd || file->passing) {
      if (!file->passing && Intact(*file)) {
        UniqueFd mine(::fcntl(file->fd.get(), F_DUPFD_CLOEXEC, 3));
        return mine ? Result<UniqueFd>(std::move(mine)) : ErrnoError("open " + Escape(path));
      }
      // A writer waits, and the copy is being made.
      if (!file->leased || settled_.wait_for(lock, kCopyPatience) == std::cv_status::timeout) return fd;
    }
    if (!file->lost.empty()) return Error(Code::kAborted, fd.error().message() + ": " + file->lost);
    if (file->copy) {
      UniqueFd mine(::fcntl(file->copy.get(), F_DUPFD_CLOEXEC, 3));
      return mine ? Result<UniqueFd>(std::move(mine)) : ErrnoError("open " + Escape(path));
    }
  }
  auto kept = kept_.Open(version);
  return kept || kept.error().code() == Code::kExhausted ? std::move(kept) : std::move(fd);
}

Status FrozenFiles::Check(int fd, std::string_view path, const tree::FileVersion& version) const {
  Status same = root_->Check(fd, path, version);
  if (same || same.error().code() != Code::kAborted) return same;
  if (version.size == 0 || GrownFiles::IsCopy(fd, version)) return {};
  const FilePtr file = Find(version);
  struct stat st, copy;
  if (!file || ::fstat(fd, &st) != 0) return same;
  const auto ours = [&](int other) {
    return ::fstat(other, &copy) == 0 && st.st_dev == copy.st_dev && st.st_ino == copy.st_ino;
  };
  {
    MutexLock lock(mutex_);
    if (file->passing) return same;  // must be read again
    if (file->fd) return SameInode(st, version) && Intact(*file) ? Status() : same;
    if (file->copy) return ours(file->copy.get()) ? Status() : same;
  }
  const auto kept = kept_.Open(version);
  return kept && ours(kept->get()) ? Status() : same;
}

FrozenFiles::Stats FrozenFiles::stats() const {
  Stats out;
  out.kept = kept_.stats();
  MutexLock lock(mutex_);
  out.held = held_.size();
  out.lost = lost_;
  out.last_lost = last_lost_;
  return out;
}

}  // namespace vrun::home
