// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "base/io/copy_content.h"
#include "home/root/file_meta.h"
#include "home/root/safe_root.h"

namespace vrun::home {
namespace {

constexpr size_t kBlock = 4096;
constexpr int kMaxDepth = 2000;

Result<UniqueFd> OpenToRead(int directory, const std::string& name, int flags = 0) {
  UniqueFd fd(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags));
  if (!fd) return ErrnoError("open " + Escape(name));
  return fd;
}

std::optional<std::string> LinkTarget(int directory, const std::string& name) {
  char buffer[PATH_MAX + 1];
  ssize_t n = ::readlinkat(directory, name.c_str(), buffer, sizeof buffer);
  if (n < 0) return std::nullopt;
  return std::string(buffer, static_cast<size_t>(n));
}

Status CopyOne(int from_directory, const std::string& from, int to_directory, const std::string& to, int depth);

Status CopyEntries(int from, int to, int depth) {
  UniqueFd readable(::openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!readable) return ErrnoError("list");
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(readable.get()), ::closedir);
  if (dir == nullptr) return ErrnoError("list");
  readable.Release();
  while (dirent* entry = ::readdir(dir.get())) {
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    VRUN_TRY(CopyOne(from, name, to, name, depth + 1));
  }
  return {};
}

Status CopyOne(int from_directory, const std::string& from, int to_directory, const std::string& to, int depth) {
  auto fail = [&](const char* what) { return ErrnoError(std::string(what) + " " + Escape(to)); };
  if (depth > kMaxDepth) return Error(Code::kUnsupported, Escape(from) + ": nested too deep to be copied");
  VRUN_ASSIGN(auto st, LstatAt(from_directory, from));
  if (!st) return ErrnoError(ENOENT, "copy " + Escape(from));
  UniqueFd made;
  if (S_ISDIR(st->st_mode)) {
    if (::mkdirat(to_directory, to.c_str(), 0700) != 0) return fail("make");
    made = UniqueFd(::openat(to_directory, to.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!made) return fail("open");
    VRUN_ASSIGN(UniqueFd source, OpenToRead(from_directory, from, O_DIRECTORY));
    VRUN_TRY(CopyEntries(source.get(), made.get(), depth));
  } else if (S_ISREG(st->st_mode)) {
    VRUN_ASSIGN(UniqueFd source, OpenToRead(from_directory, from));
    made = UniqueFd(::openat(to_directory, to.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made) return fail("make");
    struct stat now {};
    if (::fstat(source.get(), &now) != 0) return fail("read");
    if (const auto copied = CopyContent(source.get(), made.get(), static_cast<uint64_t>(now.st_size)); !copied) {
      return Error(copied.error()).With("make " + Escape(to));
    }
  } else {
    if (S_ISLNK(st->st_mode)) {
      auto target = LinkTarget(from_directory, from);
      if (!target || ::symlinkat(target->c_str(), to_directory, to.c_str()) != 0) return fail("make");
    } else if (::mknodat(to_directory, to.c_str(), (st->st_mode & S_IFMT) | 0600, st->st_rdev) != 0) {
      return fail("make");
    }
    VRUN_ASSIGN(made, OpenName(to_directory, to));
  }
  VRUN_ASSIGN(UniqueFd source, OpenName(from_directory, from));
  VRUN_ASSIGN(auto meta, GetFileMeta(source.get()));
  std::string left_out;
  return SetFileMeta(made.get(), meta, MetaFor::kFinal, &left_out);
}

int RenameToFreeName(int from_directory, const std::string& from, int to_directory, const std::string& to) {
  int result = ::renameat2(from_directory, from.c_str(), to_directory, to.c_str(), RENAME_NOREPLACE);
  if (result == 0 || (errno != EINVAL && errno != ENOSYS)) return result;
  struct stat st;
  if (::fstatat(to_directory, to.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0) {
    errno = EEXIST;
    return -1;
  }
  return ::renameat(from_directory, from.c_str(), to_directory, to.c_str());
}

bool AllZero(std::string_view block) {
  return block.empty() || (block[0] == 0 && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0);
}

}  // namespace

Result<UniqueFd> OpenName(int directory, const std::string& name) {
  UniqueFd fd(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return ErrnoError("open " + Escape(name));
  return fd;
}

bool SameContent(int directory_a, const std::string& a, int directory_b, const std::string& b) {
  auto sa = LstatAt(directory_a, a);
  auto sb = LstatAt(directory_b, b);
  if (!sa || !*sa || !sb || !*sb || ((*sa)->st_mode & S_IFMT) != ((*sb)->st_mode & S_IFMT)) return false;
  mode_t mode = (*sa)->st_mode;
  if (S_ISDIR(mode)) return false;
  if (S_ISLNK(mode)) {
    auto target = LinkTarget(directory_a, a);
    return target && target == LinkTarget(directory_b, b);
  }
  if (!S_ISREG(mode)) return (*sa)->st_rdev == (*sb)->st_rdev;
  if ((*sa)->st_size != (*sb)->st_size) return false;
  auto fa = OpenToRead(directory_a, a);
  auto fb = OpenToRead(directory_b, b);
  if (!fa || !fb) return false;
  return SameBeginning(fa->get(), fb->get(), static_cast<uint64_t>((*sa)->st_size));
}

int WithWritable(int directory, const std::function<int()>& call) {
  if (call() == 0) return 0;
  if (errno != EACCES) return errno;
  struct stat st;
  if (::fstat(directory, &st) != 0 || st.st_uid != ::geteuid() || (st.st_mode & 0300) == 0300) return EACCES;
  std::string path = "/proc/self/fd/" + std::to_string(directory);
  if (::chmod(path.c_str(), (st.st_mode & 07777) | 0300) != 0) return EACCES;
  int error = call() == 0 ? 0 : errno;
  ::chmod(path.c_str(), st.st_mode & 07777);
  return error;
}

int RemoveName(int directory, const std::string& name, bool is_directory) {
  return WithWritable(directory, [&] { return ::unlinkat(directory, name.c_str(), is_directory ? AT_REMOVEDIR : 0); });
}

std::string NamePath(int directory, const std::string& name) {
  return "/proc/self/fd/" + std::to_string(directory) + "/" + name;
}

Status MakeTemporaryName(int directory, const std::string& name, const std::string& path,
                         const std::function<int()>& make) {
  int error = WithWritable(directory, make);
  if (error == EEXIST) {
    const int gone = RemoveName(directory, name);
    error = gone != 0 ? gone : WithWritable(directory, make);
  }
  if (error != 0) return ErrnoError(error, "write " + Escape(path));
  return {};
}

int MoveName(int from_directory, const std::string& from, int to_directory, const std::string& to, bool replace) {
  const auto rename = [&] {
    return replace ? ::renameat(from_directory, from.c_str(), to_directory, to.c_str())
                   : RenameToFreeName(from_directory, from, to_directory, to);
  };
  return WithWritable(from_directory, [&] {
    errno = WithWritable(to_directory, rename);
    return errno == 0 ? 0 : -1;
  });
}

Status WriteRange(int fd, std::string_view data, uint64_t offset, bool sparse) {
  if (!sparse) return PwriteAll(fd, data, offset);
  while (!data.empty()) {
    // Up to the next block boundary of the file; consecutive blocks of the same kind are handled together.
    auto block = [&](size_t at) {
      size_t length = kBlock - static_cast<size_t>((offset + at) % kBlock);
      return data.substr(at, length);
    };
    std::string_view first = block(0);
    bool zero = AllZero(first);
    size_t run = first.size();
    while (run < data.size() && AllZero(block(run)) == zero) run += block(run).size();
    if (!zero) VRUN_TRY(PwriteAll(fd, data.substr(0, run), offset));
    offset += run;
    data.remove_prefix(run);
  }
  return {};
}

Status CopyTree(int from_directory, const std::string& from, int to_directory, const std::string& to) {
  Status status = CopyOne(from_directory, from, to_directory, to, 0);
  if (!status) (void)RemoveTree(NamePath(to_directory, to));
  return status;
}

}  // namespace vrun::home
