// SPDX-License-Identifier: Apache-2.0
#include "control/backup/places.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"
#include "base/unique_fd.h"

namespace vrun::control {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;  // of a file, in one record

bool IsDirectory(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

// Names in the directory, in order. Empty: it is not there.
std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  DIR* const opened = ::opendir(directory.c_str());
  if (opened == nullptr) return names;
  while (const dirent* entry = ::readdir(opened)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(opened);
  std::sort(names.begin(), names.end());
  return names;
}

bool HasFiles(const std::string& path) {
  if (!IsDirectory(path)) return true;
  const std::vector<std::string> names = NamesIn(path);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return HasFiles(path + "/" + name); });
}

// As NamesIn, without directories in which no file is: a backup has none.
std::vector<std::string> FilledIn(const std::string& directory) {
  std::vector<std::string> names = NamesIn(directory);
  std::erase_if(names, [&](const std::string& name) { return !HasFiles(directory + "/" + name); });
  return names;
}

Status ReadOne(const std::string& path, const std::string& name, const std::function<Status(v1::BackupFile)>& each) {
  Result<UniqueFd> file = OpenFile(path, O_RDONLY | O_NOFOLLOW);
  if (!file && file.error().code() == Code::kNotFound) return {};
  if (!file) return file.error();
  struct stat st {};
  if (::fstat(file->get(), &st) != 0) return ErrnoError("stat " + Escape(path));
  if (!S_ISREG(st.st_mode)) return {};
  // A file that grows has the length that it had at the beginning.
  for (uint64_t left = static_cast<uint64_t>(st.st_size);;) {
    v1::BackupFile part;
    part.set_path(name);
    part.set_mode(st.st_mode & 0777);
    std::string content(std::min<uint64_t>(kPartBytes, left), '\0');
    VRUN_ASSIGN(const size_t n, ReadUpTo(file->get(), content.data(), content.size()));
    const bool cut = n < content.size();
    content.resize(n);
    left -= n;
    part.set_content(std::move(content));
    part.set_more(left > 0 && !cut);
    const bool more = part.more();
    VRUN_TRY(each(std::move(part)));
    if (!more) return {};
  }
}

Status ReadTree(const std::string& path, const std::string& name, const std::function<Status(v1::BackupFile)>& each) {
  if (!IsDirectory(path)) return ReadOne(path, name, each);
  for (const std::string& entry : NamesIn(path)) VRUN_TRY(ReadTree(path + "/" + entry, name + "/" + entry, each));
  return {};
}

bool SameTree(const std::string& a, const std::string& b) {
  if (IsDirectory(a) != IsDirectory(b)) return false;
  if (IsDirectory(a)) {
    const std::vector<std::string> names = FilledIn(a);
    return names == FilledIn(b) && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
             return SameTree(a + "/" + name, b + "/" + name);
           });
  }
  const auto one = OpenFile(a, O_RDONLY | O_NOFOLLOW), other = OpenFile(b, O_RDONLY | O_NOFOLLOW);
  struct stat sa {
  }, sb{};
  return one && other && ::fstat(one->get(), &sa) == 0 && ::fstat(other->get(), &sb) == 0 && sa.st_size == sb.st_size &&
         SameBeginning(one->get(), other->get(), static_cast<uint64_t>(sa.st_size));
}

// The paths of a backup come from a file that anybody may have written.
bool StaysInside(const std::string& path) {
  if (path.empty() || path.size() > 4000 || path.front() == '/' || path.find('\0') != std::string::npos) return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view word = std::string_view(path).substr(at, end - at);
    if (word.empty() || word == "." || word == "..") return false;
    at = end + 1;
  }
  return true;
}

Status SyncDirectory(const std::string& path) {
  VRUN_ASSIGN(const UniqueFd directory, OpenFile(path, O_RDONLY | O_DIRECTORY));
  if (::fsync(directory.get()) != 0 && errno != EINVAL) return ErrnoError("fsync " + Escape(path));
  return {};
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

std::string DatabaseFile(const StatePlace& place) {
  return place.database.empty() ? place.state_directory + "/vrun.db" : "";
}

std::string SharedDirectory(const StatePlace& place) {
  return place.shared_directory.empty() ? place.state_directory : place.shared_directory;
}

std::vector<StatePart> StateParts(const StatePlace& place) {
  const std::string shared = SharedDirectory(place);
  std::vector<StatePart> parts = {
      {"vrun.db.key", (place.database.empty() ? place.state_directory : shared) + "/vrun.db.key", true},
      {"content-secret", shared + "/content-secret"},
      {"people", shared + "/people"}};
  if (!place.authority.empty()) {
    for (const char* name : {"ca.pem", "ca.key"}) {
      parts.push_back({std::string("authority/") + name, place.authority + "/" + name});
    }
  }
  return parts;
}

Status ReadParts(const std::vector<StatePart>& parts, const std::function<Status(v1::BackupFile)>& each) {
  for (const StatePart& part : parts) VRUN_TRY(ReadTree(part.path, part.name, each));
  return {};
}

StagedFiles::~StagedFiles() { (void)RemoveTree(directory_); }

Status StagedFiles::Start() {
  VRUN_TRY(RemoveTree(directory_));
  return MakeDirs(directory_, 0700);
}

Status StagedFiles::Add(const v1::BackupFile& file) {
  if (!StaysInside(file.path()))
    return Error(Code::kCorrupt, "the backup has a file of the name " + Escape(file.path()));
  const std::string path = directory_ + "/" + file.path();
  VRUN_TRY(MakeDirs(ParentOf(path), 0700));
  // Parts of a file come one after another.
  VRUN_ASSIGN(const UniqueFd to, OpenFile(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600));
  if (Status done = WriteAll(to.get(), file.content()); !done) return done.error().With("write " + Escape(path));
  if (file.more()) return {};
  if (::fchmod(to.get(), static_cast<mode_t>(file.mode() & 0700)) != 0) return ErrnoError("chmod " + Escape(path));
  if (::fsync(to.get()) != 0) return ErrnoError("fsync " + Escape(path));
  return {};
}

Status StagedFiles::Check(const std::vector<StatePart>& parts) const {
  for (const StatePart& part : parts) {
    const std::string staged = directory_ + "/" + part.name;
    if (part.with_database || !PathExists(staged) || !PathExists(part.path)) continue;
    if (SameTree(staged, part.path) || !HasFiles(part.path)) continue;
    return Error(Code::kExists, Escape(part.path) +
                                    " is there and is not as in the backup: with --replace it is moved "
                                    "aside");
  }
  return {};
}

Status MoveAside(const std::string& path, const std::string& directory) {
  if (!PathExists(path)) return {};
  VRUN_TRY(MakeDirs(directory, 0700));
  const std::string to = directory + path.substr(path.rfind('/'));
  if (::rename(path.c_str(), to.c_str()) != 0) return ErrnoError("move " + Escape(path) + " to " + Escape(to));
  return {};
}

Result<bool> StagedFiles::Place(const std::vector<StatePart>& parts, const std::string& aside) {
  bool moved = false;
  for (const StatePart& part : parts) {
    const std::string staged = directory_ + "/" + part.name;
    if (!PathExists(staged) || SameTree(staged, part.path)) continue;
    VRUN_TRY(MakeDirs(ParentOf(part.path), 0700));
    if (PathExists(part.path)) {
      // Beside what it is, so that it is a rename.
      VRUN_TRY(MoveAside(part.path, ParentOf(part.path) + "/" + aside));
      moved = true;
    }
    if (::rename(staged.c_str(), part.path.c_str()) == 0) {
      VRUN_TRY(SyncDirectory(ParentOf(part.path)));
      continue;
    }
    if (errno != EXDEV) return ErrnoError("move " + Escape(staged) + " to " + Escape(part.path));
    // On another file system: only the authority's files, which are small, and the key.
    struct stat st {};
    if (::lstat(staged.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
      return ErrnoError(EXDEV, "move " + Escape(staged) + " to " + Escape(part.path));
    }
    VRUN_ASSIGN(const std::string content, ReadFile(staged));
    VRUN_TRY(WriteFileAtomic(part.path, content, st.st_mode & 0700));
  }
  return moved;
}

}  // namespace vrun::control
