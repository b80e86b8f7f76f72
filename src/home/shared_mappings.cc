// SPDX-License-Identifier: Apache-2.0
#include "home/shared_mappings.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/clock.h"
#include "base/files.h"

namespace vrun::home {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRestPerWork = 100;
constexpr std::chrono::seconds kShortestRest{1};

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

std::optional<tree::FileVersion> VersionOf(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return {};
  return tree::FileVersion{st.st_dev, st.st_ino, ToNanos(st.st_ctim), static_cast<uint64_t>(st.st_size)};
}

}  // namespace

std::set<std::string> WritableSharedFilesIn(std::string_view maps) {
  std::set<std::string> files;
  while (!maps.empty()) {
    const std::string_view line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(std::min(line.size() + 1, maps.size()));
    // ADDRESSES PERMISSIONS OFFSET DEVICE INODE   PATH
    const size_t permissions = line.find(' '), path = line.find('/');
    if (permissions == line.npos || path == line.npos || permissions + 5 > path) continue;
    if (line[permissions + 2] == 'w' && line[permissions + 4] == 's') files.emplace(line.substr(path));
  }
  return files;
}

std::set<std::string> WritableSharedFiles(const std::string& pid) {
  const std::string list = "/proc/" + pid + "/maps";
  const UniqueFd maps(::open(list.c_str(), O_RDONLY | O_CLOEXEC));
  if (!maps) return {};
  std::set<std::string> files;
  char name[PATH_MAX];
  MapQuery query{};
  for (query.size = sizeof query;; query.address = query.end) {
    query.flags = kWritable | kShared | kOrNext | kOfFile;
    query.name = reinterpret_cast<uintptr_t>(name);
    query.name_size = sizeof name;
    if (::ioctl(maps.get(), kMapQuery, &query) != 0) break;
    if (query.name_size > 0 && name[0] == '/') files.emplace(name);
  }
  if (errno == ENOTTY) return WritableSharedFilesIn(ReadFile(list).value_or(""));
  return files;
}

SharedMappings::SharedMappings(std::string root) : root_(root == "/" ? "" : std::move(root)) {}

SharedMappings::~SharedMappings() { worker_.Stop(); }

void SharedMappings::Look() {
  const std::lock_guard lock(mutex_);
  if (looking_ || Clock::now() < next_look_) return;
  looking_ = true;
  worker_.Post([this] { LookNow(); });
}

void SharedMappings::LookNow() {
  const auto began = Clock::now();
  std::set<std::string> mapped;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename();
    if (pid.find_first_not_of("0123456789") != pid.npos) continue;
    for (const std::string& path : WritableSharedFiles(pid)) {
      if (path.starts_with(root_ + "/")) mapped.insert(path);
    }
  }
  std::set<std::pair<uint64_t, uint64_t>> inodes;
  std::erase_if(mapped, [&](const std::string& path) {
    const auto version = VersionOf(path);  // not there: it has no name any more
    if (version) inodes.emplace(version->dev, version->ino);
    return !version;
  });
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  mapped_ = std::move(mapped);
  inodes_ = std::move(inodes);
  next_look_ = now + std::max<Clock::duration>(kShortestRest, kRestPerWork * (now - began));
  looking_ = false;
  looked_.notify_all();
}

void SharedMappings::AddChanged(std::chrono::milliseconds patience, tree::DirtySet* dirty) {
  std::set<std::string> mapped;
  {
    std::unique_lock lock(mutex_);
    looked_.wait_for(lock, patience, [this] { return !looking_; });
    mapped = mapped_;
  }
  std::erase_if(told_, [&](const auto& file) { return !mapped.contains(file.first); });
  for (const std::string& path : mapped) {
    const auto version = VersionOf(path);
    if (!version) continue;
    const auto [known, is_new] = told_.try_emplace(path, *version);
    if (!is_new && known->second == *version) continue;
    known->second = *version;
    const std::string_view inside = std::string_view(path).substr(root_.size());
    const size_t slash = inside.rfind('/');
    dirty->names[slash == 0 ? "/" : std::string(inside.substr(0, slash))].emplace(inside.substr(slash + 1));
  }
}

void SharedMappings::Settle(int fd, const tree::FileVersion& version, uint64_t offset, uint64_t length) const {
  {
    const std::lock_guard lock(mutex_);
    if (!inodes_.contains({version.dev, version.ino})) return;
  }
  // Of the range alone: a whole large file may be seconds. Cleaning protects the pages from stores that go unnoticed
  // (folio_mkclean in mm/rmap.c, file_update_time in each file system's page_mkwrite).
  constexpr unsigned kWriteAndWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (length > 0) ::sync_file_range(fd, static_cast<off64_t>(offset), static_cast<off64_t>(length), kWriteAndWait);
}

}  // namespace vrun::home
