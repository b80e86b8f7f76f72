// SPDX-License-Identifier: Apache-2.0
#include "home/root/shared_mappings.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/clock.h"
#include "base/files.h"
#include "tree/rules.h"
#include "tree/scan/mounts.h"

namespace vrun::home {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

constexpr int kRestPerWork = 20;
constexpr auto kShortestRest = 10ms;
constexpr auto kPatience = 25ms, kLongPatience = 250ms;
constexpr auto kLongAgo = 10s;
constexpr size_t kMostRead = 65536;
constexpr size_t kMostNames = 4096;          // per scan
constexpr off_t kMostProtected = 256 << 20;  // larger files are protected only where they are read
constexpr int kTries = 3;

// struct procmap_query of <linux/fs.h>, Linux 6.11: Debian 12 has older headers.
struct MapQuery {
  uint64_t size, flags, address;
  uint64_t start, end, vma_flags, page_size, offset, inode;
  uint32_t device_major, device_minor, name_size, build_id_size;
  uint64_t name, build_id;
};
static_assert(sizeof(MapQuery) == 104);
constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);
constexpr uint64_t kWritable = 0x02, kShared = 0x08, kOrNext = 0x10, kOfFile = 0x20;

std::chrono::nanoseconds ThreadTime() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

std::optional<struct stat> StatFile(const std::string& path, bool follow) {
  struct stat st {};
  if ((follow ? ::stat(path.c_str(), &st) : ::lstat(path.c_str(), &st)) != 0 || !S_ISREG(st.st_mode)) return {};
  return st;
}

std::pair<uint64_t, uint64_t> InodeOf(const struct stat& st) { return {st.st_dev, st.st_ino}; }

// Removes the first word and the spaces after it from `line`, and returns the word.
std::string_view TakeWord(std::string_view* line) {
  const std::string_view word = line->substr(0, line->find(' '));
  line->remove_prefix(std::min(line->find_first_not_of(' ', word.size()), line->size()));
  return word;
}

template <typename Number>
bool Parse(std::string_view text, int base, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number, base);
  return error == std::errc() && end == text.data() + text.size();
}

tree::FileVersion VersionOf(const struct stat& st) {
  return {st.st_dev, st.st_ino, ToNanos(st.st_ctim), static_cast<uint64_t>(st.st_size)};
}

// Opens regular files only: opening a FIFO or a device would have effects. `follow`: the path is a kernel link in
// /proc.
UniqueFd OpenRegular(const std::string& path, bool follow) {
  const UniqueFd handle(::open(path.c_str(), O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW)));
  struct stat st {};
  if (!handle || ::fstat(handle.get(), &st) != 0 || !S_ISREG(st.st_mode)) return UniqueFd();
  return UniqueFd(::open(("/proc/self/fd/" + std::to_string(handle.get())).c_str(), O_RDONLY | O_CLOEXEC));
}

// Starts writing the dirty pages to disk, which write-protects them. Does not wait.
void Protect(const std::string& path, bool follow) {
  const UniqueFd fd = OpenRegular(path, follow);
  if (fd) ::sync_file_range(fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

}  // namespace

// Makes all pages clean and write-protected, and gives the file times that differ from those of the content that was
// read.
void SharedMappings::MakeAnother(const std::string& path, bool follow) {
  const UniqueFd fd = OpenRegular(path, follow);
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0) return;
  ::sync_file_range(fd.get(), 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  // Setting the atime to its present value changes the ctime and nothing else, whoever changes mode or content
  // meanwhile.
  const timespec times[2] = {st.st_atim, {0, UTIME_OMIT}};
  if (::futimens(fd.get(), times) != 0 || ::fstat(fd.get(), &st) != 0) return;
  const MutexLock lock(mutex_);
  if (made_.size() >= kMostRead) made_.clear();
  made_.insert_or_assign(InodeOf(st), VersionOf(st));
}

std::vector<MappedFile> MappedFilesIn(std::string_view maps) {
  std::vector<MappedFile> files;
  while (!maps.empty()) {
    std::string_view line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(std::min(line.size() + 1, maps.size()));
    // ADDRESSES PERMISSIONS OFFSET DEVICE INODE   PATH
    const std::string_view range = TakeWord(&line), permissions = TakeWord(&line);
    TakeWord(&line);
    const std::string_view device = TakeWord(&line), inode = TakeWord(&line);
    if (permissions.size() != 4 || permissions[1] != 'w' || permissions[3] != 's' || !line.starts_with('/')) continue;
    const size_t colon = device.find(':');
    unsigned major = 0, minor = 0;
    MappedFile file{std::string(line), 0, 0, std::string(range)};
    if (colon == device.npos || !Parse(device.substr(0, colon), 16, &major) ||
        !Parse(device.substr(colon + 1), 16, &minor) || !Parse(inode, 10, &file.ino)) {
      continue;
    }
    file.dev = makedev(major, minor);
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<MappedFile> MappedFilesOf(const std::string& pid) {
  const std::string list = "/proc/" + pid + "/maps";
  const UniqueFd maps(::open(list.c_str(), O_RDONLY | O_CLOEXEC));
  if (!maps) return {};
  std::vector<MappedFile> files;
  char name[PATH_MAX];
  MapQuery query{};
  for (query.size = sizeof query;; query.address = query.end) {
    query.flags = kWritable | kShared | kOrNext | kOfFile;
    query.name = reinterpret_cast<uintptr_t>(name);
    query.name_size = sizeof name;
    if (::ioctl(maps.get(), kMapQuery, &query) != 0) break;
    if (query.name_size == 0 || name[0] != '/') continue;
    char range[40];
    std::snprintf(range, sizeof range, "%llx-%llx", static_cast<unsigned long long>(query.start),
                  static_cast<unsigned long long>(query.end));
    files.push_back({name, makedev(query.device_major, query.device_minor), query.inode, range});
  }
  if (errno == ENOTTY) return MappedFilesIn(ReadFile(list).value_or(""));
  return files;
}

SharedMappings::SharedMappings(std::string root) : root_(root == "/" ? "" : std::move(root)) {}

SharedMappings::~SharedMappings() { worker_.Stop(); }

void SharedMappings::Look() {
  const MutexLock lock(mutex_);
  if (looking_ || Clock::now() < next_look_) return;
  looking_ = true;
  worker_.Post([this] { LookNow(); });
}

std::map<SharedMappings::Inode, SharedMappings::Known> SharedMappings::Find() const {
  std::map<Inode, Known> found;
  std::map<Inode, std::string> elsewhere;  // mapped under a path that is not valid for us
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename();
    if (pid.find_first_not_of("0123456789") != pid.npos) continue;
    for (const MappedFile& file : MappedFilesOf(pid)) {
      const auto st = file.path.starts_with(root_ + "/") ? StatFile(file.path, false) : std::nullopt;
      if (st) found.emplace(InodeOf(*st), Known{file.path, file.path.substr(root_.size())});
      if (!st || st->st_ino != file.ino) {
        elsewhere.emplace(Inode(file.dev, file.ino), "/proc/" + pid + "/map_files/" + file.range);
      }
    }
  }
  if (elsewhere.empty()) return found;
  std::set<uint64_t> devices;  // of the root's file systems
  if (const auto mounts = tree::MountTable::Read(root_.empty() ? "/" : root_)) {
    for (const tree::Mount& mount : mounts->mounts()) {
      if (mount.included) devices.insert(mount.dev);
    }
  }
  for (auto& [inode, path] : elsewhere) {
    if (devices.contains(inode.first) && StatFile(path, true)) found.try_emplace(inode, Known{std::move(path), ""});
  }
  return found;
}

void SharedMappings::LookNow() {
  const std::chrono::nanoseconds began = ThreadTime();
  bool read_more = false;
  {
    const MutexLock lock(mutex_);
    read_before_ = std::exchange(read_, {});
    read_more = std::exchange(read_more_, false);
  }
  std::map<Inode, Known> found = Find();
  std::vector<Known> spoiled;
  {
    const MutexLock lock(mutex_);
    for (const auto& [inode, known] : found) {
      if (mapped_.contains(inode)) continue;
      const bool read = read_.contains(inode) || read_before_.contains(inode) || read_more || read_more_;
      if (read) spoiled.push_back(known);
    }
    mapped_ = std::move(found);  // reads from now on are settled
  }
  for (const Known& known : spoiled) MakeAnother(known.stat_path, known.path.empty());
  const MutexLock lock(mutex_);
  looked_at_ = Clock::now();
  next_look_ = looked_at_ + std::max<Clock::duration>(kShortestRest, kRestPerWork * (ThreadTime() - began));
  looking_ = false;
  looked_.notify_all();
}

// Adds files that were mapped between two scans, were read meanwhile, and still have that version although they may
// have been written: the content that was read is unreliable.
void SharedMappings::AddUntold(const tree::DirtySet& dirty) {
  size_t names = 0;
  for (const auto& [directory, changed] : dirty.names) {
    for (const std::string& name : changed) {
      if (++names > kMostNames) return;
      const std::string path = root_ + tree::JoinPath(directory, name);
      const auto st = StatFile(path, false);
      if (st && IsUntold(InodeOf(*st), VersionOf(*st))) MakeAnother(path, false);
    }
  }
}

bool SharedMappings::IsUntold(const Inode& inode, const tree::FileVersion& now) {
  const MutexLock lock(mutex_);
  const auto own = made_.find(inode);
  const bool ours = own != made_.end() && own->second == now;  // the change is our own
  if (own != made_.end()) made_.erase(own);
  if (ours) return false;
  for (const auto* read : {&read_, &read_before_}) {
    if (const auto known = read->find(inode); known != read->end() && known->second == now) return true;
  }
  return false;
}

void SharedMappings::AddChanged(tree::DirtySet* dirty) {
  AddUntold(*dirty);
  std::map<Inode, Known> mapped;
  {
    MutexLock lock(mutex_);
    const bool long_ago = Clock::now() - looked_at_ > kLongAgo;
    looked_.wait_for(lock, long_ago ? kLongPatience : kPatience, [this]() VRUN_REQUIRES(mutex_) { return !looking_; });
    mapped = mapped_;
  }
  std::erase_if(told_, [&](const auto& file) { return !mapped.contains(file.first); });
  for (const auto& [inode, known] : mapped) {
    const bool follow = known.path.empty();
    auto st = StatFile(known.stat_path, follow);
    if (!st) continue;
    if (const auto before = told_.find(inode); before != told_.end() && before->second == VersionOf(*st)) continue;
    // Later stores move the times, so the version now stands for the present content.
    for (int tries = 0; st && st->st_size <= kMostProtected && tries < kTries; ++tries) {
      Protect(known.stat_path, follow);
      const auto then = std::exchange(st, StatFile(known.stat_path, follow));
      if (st && VersionOf(*st) == VersionOf(*then)) break;
    }
    if (!st) continue;
    const tree::FileVersion version = VersionOf(*st);
    const auto [told, is_new] = told_.try_emplace(inode, version);
    if (!is_new && told->second == version) continue;
    told->second = version;
    dirty->inodes.insert(inode.second);  // under all names that the tree has for it
    if (known.path.empty()) continue;
    const size_t slash = known.path.rfind('/');
    dirty->names[slash == 0 ? "/" : known.path.substr(0, slash)].insert(known.path.substr(slash + 1));
  }
}

void SharedMappings::Settle(int fd, const tree::FileVersion& version, uint64_t offset, uint64_t length) const {
  {
    const MutexLock lock(mutex_);
    if (!mapped_.contains({version.dev, version.ino})) {
      if (read_.size() < kMostRead)
        read_.insert_or_assign(Inode(version.dev, version.ino), version);
      else
        read_more_ = true;
      return;
    }
  }
  // Only the range: a whole large file may take seconds. Cleaning write-protects the pages, so no store goes unnoticed
  // (folio_mkclean in mm/rmap.c, file_update_time in each file system's page_mkwrite).
  constexpr unsigned kWriteAndWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (length > 0) ::sync_file_range(fd, static_cast<off64_t>(offset), static_cast<off64_t>(length), kWriteAndWait);
}

}  // namespace vrun::home
