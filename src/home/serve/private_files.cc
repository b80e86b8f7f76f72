// SPDX-License-Identifier: Apache-2.0
#include "home/serve/private_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr int64_t kLargestSecret = 64 << 10;
constexpr size_t kBeginning = 4096;
// Times of files are up to 10 ms behind the clock.
constexpr int64_t kCoarseMicros = 20'000;
// A file that others may read is no good place for a secret: looked for so often at most.
constexpr int64_t kPatienceMicros = 1'000'000;

// More than a few people have. When it is full, only what is private now stays.
constexpr size_t kMostPast = 20'000;
constexpr int64_t kWalkMicros = 60'000'000;

// Nanoseconds since 1970. Where the file system does not tell, that of the last change of the content, as a negative
// number: a move keeps it, and another file that has the inode later does not have it.
int64_t BornNanos(int fd, const char* path) {
  struct statx st {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC;
  if (::statx(fd, path, kFlags, STATX_BTIME | STATX_MTIME, &st) != 0) return 0;
  if ((st.stx_mask & STATX_BTIME) == 0) return -(st.stx_mtime.tv_sec * 1'000'000'000 + st.stx_mtime.tv_nsec);
  return st.stx_btime.tv_sec * 1'000'000'000 + st.stx_btime.tv_nsec;
}

bool ForOwnerOnly(const struct stat& st) { return (st.st_mode & (S_IRWXG | S_IRWXO)) == 0; }

bool HasSecret(int fd, const struct stat& st) {
  if (!ForOwnerOnly(st) || st.st_size == 0 || st.st_size > kLargestSecret) return false;
  std::array<char, kBeginning> beginning;
  const ssize_t n = ::pread(fd, beginning.data(), beginning.size(), 0);
  return n > 0 && LooksLikeSecret({beginning.data(), static_cast<size_t>(n)});
}

}  // namespace

bool LooksLikeSecret(std::string_view beginning) {
  constexpr std::string_view kSigns[] = {"PRIVATE KEY-----",       // PEM, OpenSSH
                                         "PuTTY-User-Key-File-",   //
                                         "AGE-SECRET-KEY-1",       //
                                         "aws_secret_access_key",  //
                                         "\"private_key\":"};      // service accounts of Google
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view sign) { return beginning.find(sign) != std::string_view::npos; });
}

bool PrivateFiles::IsOtherName(const struct stat& st, const DenyRules& rules) const {
  if (st.st_nlink < 2) return false;
  MutexLock lock(mutex_);
  // A name that was made later has changed the ctime.
  const int64_t now = WallMicros();
  const bool newer = st.st_ctim.tv_sec * 1'000'000 + st.st_ctim.tv_nsec / 1000 > looked_us_ - kCoarseMicros;
  if (newer && (ForOwnerOnly(st) || now - looked_us_ > kPatienceMicros)) {
    linked_ = rules.Linked();
    looked_us_ = now;
  }
  return std::find(linked_.begin(), linked_.end(), FileId{st.st_dev, st.st_ino}) != linked_.end();
}

PrivateFiles::PrivateFiles(const TreeTable* trees, std::string memory) : memory_(std::move(memory)), trees_(trees) {
  Load();
}

void PrivateFiles::Remember(const DenyRules& rules, bool thorough) {
  const int64_t now = MonotonicMicros();
  {
    MutexLock lock(mutex_);
    thorough = thorough && (walked_us_ == 0 || now - walked_us_ > kWalkMicros);
    if (thorough) walked_us_ = now;
  }
  std::vector<Past> found;
  rules.ForEachPrivate(thorough, [&](const std::string& path, const struct stat& st) {
    found.push_back({st.st_dev, st.st_ino, BornNanos(AT_FDCWD, path.c_str())});
  });
  MutexLock lock(mutex_);
  if (past_.size() + found.size() > kMostPast) past_.clear();
  bool more = false;
  for (const Past& past : found) more = (past_.size() < kMostPast && AddLocked(past)) || more;
  if (more) Save();
}

bool PrivateFiles::AddLocked(const Past& past) {
  const auto [begin, end] = past_.equal_range(past.inode);
  for (auto it = begin; it != end; ++it) {
    if (it->second.born_ns == past.born_ns && (past.born_ns > 0 || it->second.device == past.device)) return false;
  }
  past_.emplace(past.inode, past);
  return true;
}

bool PrivateFiles::WasPrivate(int fd, const struct stat& st) const {
  MutexLock lock(mutex_);
  const auto [begin, end] = past_.equal_range(st.st_ino);
  if (begin == end) return false;
  const int64_t born = BornNanos(fd, "");
  return std::any_of(begin, end, [&](const auto& past) {
    return past.second.born_ns == born && (born > 0 || past.second.device == st.st_dev);
  });
}

// A line for each: inode, time of birth, device. What it cannot read it forgets.
void PrivateFiles::Load() {
  if (memory_.empty()) return;
  std::istringstream text(ReadFile(memory_).value_or(""));
  MutexLock lock(mutex_);
  for (Past past; past_.size() < kMostPast && text >> past.inode >> past.born_ns >> past.device;) AddLocked(past);
}

void PrivateFiles::Save() const {
  if (memory_.empty()) return;
  std::string text;
  for (const auto& [inode, past] : past_) {
    text += std::to_string(inode) + " " + std::to_string(past.born_ns) + " " + std::to_string(past.device) + "\n";
  }
  if (const Status saved = WriteFileAtomic(memory_, text, 0600); !saved) {
    LogWarning("private files: {}", Escape(saved.error().message()));
  }
}

Status PrivateFiles::Check(int fd, const struct stat& st, std::string_view path) const {
  const auto rules = trees_->rules();
  if (!rules || (!IsOtherName(st, *rules) && !WasPrivate(fd, st) && !HasSecret(fd, st))) return {};
  if (rules->Opened(path)) return {};
  for (const std::string& exposed : trees_->Exposed()) {
    if (tree::IsBelow(path, exposed)) return {};
  }
  return PrivateFile(path);
}

}  // namespace vrun::home
