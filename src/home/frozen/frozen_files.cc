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

constexpr uint64_t kKernelBytes = 2048;  // of one open file: inode, name, file, lease
constexpr int kBuilderNice = 10;
constexpr std::chrono::seconds kCopyPatience{60};  // the kernel has less
constexpr int64_t kScanMicros = 120'000'000;       // so long home's first look at its root may take
// Between two looks at what has changed: a look at one file takes 0.25 us, so that it is half a percent of a processor.
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
  bool passing = false;   // from the file to its copy
  UniqueFd copy;          // until it is on the disk, or for good where that failed
  bool kept = false;      // it is
  std::string lost;       // why neither

  // Without a lease. A write moves the time of modification; only who sets it back to the nanosecond goes unseen.
  bool LooksTheSame(const struct stat& st) const {
    return SameInode(st, version) && static_cast<uint64_t>(st.st_size) == version.size &&
           ToNanos(st.st_mtim) == mtime_ns;
  }
};

// All files at and below one path with one directory object: shared by all trees that have it.
struct FrozenFiles::Directory {
  FrozenFiles* owner = nullptr;
  std::string key;
  std::vector<FilePtr> files;
  std::vector<DirectoryPtr> children;
  uint64_t below = 0;     // files, held or not
  uint64_t left_out = 0;  // of them
  ~Directory() {
    // On the builder, which alone makes them.
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
  size_t most;  // files, of all holds together
  // Not to be had by their paths, and whose they are.
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
  KeepWhatChanged();
  keepers_.Drain();
}

FrozenFiles::HoldPtr FrozenFiles::MakeHold() {
  auto hold = std::make_shared<Hold>();
  hold->owner_ = this;
  hold->parts_ = std::make_shared<Hold::Parts>();
  {
    std::lock_guard lock(mutex_);
    if (breaks_ && !std::exchange(attending_, true)) attendant_ = std::thread([this] { Attend(); });
  }
  return hold;
}

FrozenFiles::HoldPtr FrozenFiles::Freeze(tree::SnapshotPtr tree, std::vector<std::string> first, HoldPtr before) {
  HoldPtr hold = MakeHold();
  builder_.Post([this, weak = std::weak_ptr(hold), tree = std::move(tree), first = std::move(first),
                 before = std::move(before)] { Build(weak, tree, first, true); });
  return hold;
}

FrozenFiles::HoldPtr FrozenFiles::FreezeFirst(tree::SnapshotPtr tree, std::vector<std::string> first) {
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
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return keeping_ == 0; });
  }
  built();
}

void FrozenFiles::DropUnclaimed() {
  builder_.Post([this] {
    {
      // A copy under way is claimed by whoever makes it.
      std::lock_guard lock(mutex_);
      drop_again_ = keeping_ > 0;
    }
    kept_.Retain([this](const tree::FileVersion& version) {
      std::lock_guard lock(mutex_);
      const auto it = files_.find(version);
      return it != files_.end() && !it->second.expired();
    });
  });
}

// --- holding ---

void FrozenFiles::Build(const std::weak_ptr<Hold>& hold, const tree::SnapshotPtr& tree,
                        const std::vector<std::string>& first, bool all_of_it) {
  (void)::setpriority(PRIO_PROCESS, 0, kBuilderNice);  // of this thread
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
  // The rest leaves room for what the next job has first.
  walk.most = max_files_ / 4 * 3;
  DirectoryPtr all = BuildDirectory(&walk, "/", tree->directory);
  const uint64_t files = all->below, left_out = all->left_out - ProtectMoved(&walk);
  // The order in which they were held means nothing any more: the whole has all of them.
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
    if (stopping_ || !walk->Wanted()) return made;  // not whole: nobody finds it
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
  std::lock_guard lock(mutex_);
  return held_.size() < most;
}

// A directory that is renamed is no event of the files below it: held open they are there all the same, but home may
// have been started again since.
uint64_t FrozenFiles::ProtectMoved(Walk* walk) {
  if (walk->missed.empty()) return 0;
  tree::SnapshotPtr now = options_.now();
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

// Null: its content has changed already, there is no room for it, or it may not be read (then nobody can ask for it).
FrozenFiles::FilePtr FrozenFiles::Protect(const std::string& path, const tree::Entry& entry, size_t most) {
  const tree::FileVersion version = entry.version();
  if (FilePtr known = Find(version)) return known;
  auto file = std::make_shared<File>(this, entry);
  const bool kept = kept_.Has(version);
  {
    std::lock_guard lock(mutex_);
    if (!kept && held_.size() >= most) return nullptr;
    file->kept = kept;
    if (kept) files_[version] = file;
  }
  if (kept) return file;
  auto opened = root_->OpenVersion(path, version);
  if (!opened) return nullptr;
  const int fd = opened->get();
  {
    // Known before the lease is: its signal may come at once.
    std::lock_guard lock(mutex_);
    file->fd = *std::move(opened);
    file->leased = breaks_ != nullptr;
    files_[version] = file;
    held_[fd] = file;
  }
  const Status leased = breaks_ ? TakeLease(fd) : Error(Code::kUnsupported, "no signals of leases");
  // It may have been written to between our look at it and the lease; from here on it cannot.
  const bool same = root_->Check(fd, path, version).has_value();
  {
    std::lock_guard lock(mutex_);
    if (!leased) file->leased = false;
    if (same) file->verified = true;
  }
  if (!same) {
    std::lock_guard lock(mutex_);
    if (!file->copy && !file->kept) return nullptr;  // a writer may have been that quick, and found us as quick
    return file;
  }
  if (!leased && leased.error().error_number() == EAGAIN) {
    // Somebody writes to it.
    if (version.size > kEagerBytes) return nullptr;
    Keep(file, false);
    std::lock_guard lock(mutex_);
    if (!file->kept) return nullptr;
  }
  return file;
}

FrozenFiles::FilePtr FrozenFiles::Find(const tree::FileVersion& version) const {
  std::lock_guard lock(mutex_);
  const auto it = files_.find(version);
  return it == files_.end() ? nullptr : it->second.lock();
}

void FrozenFiles::Gone(File* file) {
  // Somebody may have a duplicate of it, which would keep the lease.
  if (file->leased && file->fd) (void)GiveLeaseBack(file->fd.get());
  std::lock_guard lock(mutex_);
  if (file->fd) held_.erase(file->fd.get());
  const auto it = files_.find(file->version);
  // Another one of that version may be there by now.
  if (it == files_.end() || !it->second.expired()) return;
  files_.erase(it);
}

// --- what happens at home ---

void FrozenFiles::Attend() {
  ::pthread_setname_np(::pthread_self(), "leases");
  int64_t looked = MonotonicMicros();
  while (!stopping_) {
    pollfd fds[] = {{breaks_->fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    int64_t pause;
    {
      std::lock_guard lock(mutex_);
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
          std::lock_guard lock(mutex_);
          if (const auto it = held_.find(fd); it != held_.end()) file = it->second.lock();
        }
        // The signal may be about a file that had this descriptor before.
        if (file && !LeaseIsQuiet(fd)) KeepSoon(std::move(file), true);
      }
      // Of those without a lease nobody waits, which Keep sees.
      if (batch.lost) KeepThose(true, [](int fd, const tree::FileVersion&) { return !LeaseIsQuiet(fd); });
    }
    if (left > 0 && n != 0) continue;
    KeepWhatChanged();
    looked = MonotonicMicros();
  }
}

// What has lost its name, or got other attributes, would not be found again by the next home.
void FrozenFiles::KeepWhatChanged() {
  KeepThose(false, [](int fd, const tree::FileVersion& version) {
    struct stat st;
    return ::fstat(fd, &st) == 0 && ToNanos(st.st_ctim) != version.ctime_ns;
  });
}

void FrozenFiles::KeepThose(bool writer_waits, const std::function<bool(int, const tree::FileVersion&)>& so) {
  std::vector<std::pair<int, FilePtr>> all;
  {
    std::lock_guard lock(mutex_);
    all.reserve(held_.size());
    for (const auto& [fd, weak] : held_) {
      if (FilePtr file = weak.lock()) all.emplace_back(fd, std::move(file));
    }
  }
  // Without the lock, which readers want. A descriptor that means another file by now costs a copy, at worst.
  for (auto& [fd, file] : all) {
    if (so(fd, file->version)) KeepSoon(std::move(file), writer_waits);
  }
}

void FrozenFiles::KeepSoon(FilePtr file, bool writer_waits) {
  {
    std::lock_guard lock(mutex_);
    ++keeping_;
  }
  keepers_.Post([this, file = std::move(file), writer_waits]() mutable {
    Keep(file, writer_waits);
    file.reset();
    {
      std::lock_guard lock(mutex_);
      // With the lock: whoever waits for the last copy waits for this, too.
      if (--keeping_ == 0 && drop_again_) DropUnclaimed();
    }
    settled_.notify_all();
  });
}

void FrozenFiles::Keep(const FilePtr& file, bool writer_waits) {
  int fd;
  bool leased, verified;
  {
    std::lock_guard lock(mutex_);
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
  // Under a lease nothing changes. Without one, or before it was looked at under it, the times have to say so.
  const bool sure = leased && verified;
  Result<KeptContent::Copy> copy = sure || looks_the_same()
                                       ? kept_.Make(fd, file->version)
                                       : Result<KeptContent::Copy>(Error(Code::kAborted, "it changed before that"));
  if (copy && !sure && !looks_the_same()) copy = Error(Code::kAborted, "it changed meanwhile");
  UniqueFd readable, gone;
  if (copy) readable.Reset(::fcntl(copy->fd(), F_DUPFD_CLOEXEC, 3));
  {
    std::lock_guard lock(mutex_);
    file->busy = false;
    // Without room there is time while nobody waits; one who came meanwhile has found us busy.
    if (!copy && !writer_waits && (!leased || LeaseIsQuiet(fd))) return;
    // Nobody reads the file itself any more, and nobody the copy yet: only when the lease is given back it is known
    // that nothing was written until then.
    file->passing = true;
    held_.erase(fd);
    gone = std::move(file->fd);
  }
  if (leased && !GiveLeaseBack(fd) && copy) {
    copy = Error(Code::kTimeout, "to copy it took longer than the kernel lets a writer wait (fs.lease-break-time)");
  }
  {
    std::lock_guard lock(mutex_);
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
    LogWarning("inode {} is written to, and what it was is lost: {}", file->version.ino, copy.error().message());
    return;
  }
  // The writer goes on by now.
  if (Status durable = kept_.Keep(*std::move(copy), file->version); !durable) {
    LogWarning("old content of inode {} is kept until home ends: {}", file->version.ino, durable.error().message());
    return;
  }
  std::lock_guard lock(mutex_);
  file->kept = true;
  file->copy.Reset();
}

// --- reading ---

// With the lock.
bool FrozenFiles::Intact(const File& file) {
  if (file.leased && file.verified && LeaseIsQuiet(file.fd.get())) return true;
  struct stat st;
  return ::fstat(file.fd.get(), &st) == 0 && file.LooksTheSame(st);
}

Result<UniqueFd> FrozenFiles::OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                                       uint64_t length) const {
  auto fd = root_->OpenPart(path, version, offset, length);
  if (fd || fd.error().code() != Code::kAborted) return fd;
  // What is empty has no content to lose.
  if (version.size == 0) return OpenFile("/dev/null", O_RDONLY);
  const FilePtr file = Find(version);
  if (!file) return fd;
  {
    std::unique_lock lock(mutex_);
    while (file->fd || file->passing) {
      if (!file->passing && Intact(*file)) {
        UniqueFd mine(::fcntl(file->fd.get(), F_DUPFD_CLOEXEC, 3));
        return mine ? Result<UniqueFd>(std::move(mine)) : ErrnoError("open " + Escape(path));
      }
      // A writer waits, and the copy is on its way.
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
  if (version.size == 0) return {};
  const FilePtr file = Find(version);
  struct stat st, copy;
  if (!file || ::fstat(fd, &st) != 0) return same;
  const auto ours = [&](int other) {
    return ::fstat(other, &copy) == 0 && st.st_dev == copy.st_dev && st.st_ino == copy.st_ino;
  };
  {
    std::lock_guard lock(mutex_);
    if (file->passing) return same;  // to be read once more
    if (file->fd) return SameInode(st, version) && Intact(*file) ? Status() : same;
    if (file->copy) return ours(file->copy.get()) ? Status() : same;
  }
  const auto kept = kept_.Open(version);
  return kept && ours(kept->get()) ? Status() : same;
}

FrozenFiles::Stats FrozenFiles::stats() const {
  Stats out;
  out.kept = kept_.stats();
  std::lock_guard lock(mutex_);
  out.held = held_.size();
  out.lost = lost_;
  out.last_lost = last_lost_;
  return out;
}

}  // namespace vrun::home
