// SPDX-License-Identifier: Apache-2.0
#include "home/root/used_places.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <memory>

#include "home/root/safe_root.h"

namespace vrun::home {
namespace {

// The kernel's name: ends in " (deleted)" if the directory is gone, and then is not found.
std::optional<std::string> PathOf(int fd) {
  std::array<char, PATH_MAX> path{};
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size());
  if (n <= 0 || static_cast<size_t>(n) == path.size() || path[0] != '/') return std::nullopt;
  return std::string(path.data(), static_cast<size_t>(n));
}

}  // namespace

void UsedPlaces::UseDirectory(const std::string& path, int fd, int root) {
  struct stat st {
  }, top{};
  if (path == "/" || ::fstat(fd, &st) != 0) return;
  const Inode inode{st.st_dev, st.st_ino};
  if (const auto known = directories_.find(path); known != directories_.end()) {
    order_.splice(order_.begin(), order_, known->second.place);
    if (known->second.inode == inode) return;
    order_.erase(known->second.place);
    directories_.erase(known);
  }
  if (::fstat(root, &top) != 0 || st.st_dev != top.st_dev) return;
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return;
  if (directories_.size() >= kMost) {
    directories_.erase(order_.back());
    order_.pop_back();
  }
  order_.push_front(path);
  directories_[path] = {inode, std::move(own), order_.begin()};
}

void UsedPlaces::UseFile(const std::string& path, const struct stat& file) {
  if (files_.size() >= 4 * kMost) files_.clear();
  files_[path] = {file.st_dev, file.st_ino};
}

void UsedPlaces::Forget(const std::string& path) {
  std::erase_if(files_, [&](const auto& file) { return AtOrBelow(file.first, path); });
  std::erase_if(directories_, [&](const auto& directory) {
    if (!AtOrBelow(directory.first, path)) return false;
    order_.erase(directory.second.place);
    return true;
  });
}

std::optional<std::string> UsedPlaces::DirectoryNow(const std::string& path, int root) const {
  const std::optional<std::string> top = PathOf(root);
  if (!top) return std::nullopt;
  for (std::string_view at = ParentOf(path); at.size() > 1; at = ParentOf(at)) {
    const auto known = directories_.find(std::string(at));
    if (known == directories_.end()) continue;
    std::optional<std::string> now = PathOf(known->second.fd.get());
    struct stat st {};
    if (!now || ::lstat(now->c_str(), &st) != 0 || Inode{st.st_dev, st.st_ino} != known->second.inode) {
      return std::nullopt;
    }
    if (*top != "/") {
      if (!AtOrBelow(*now, *top) || now->size() == top->size()) return std::nullopt;
      now->erase(0, top->size());
    }
    if (*now == at) return std::nullopt;
    return *now + path.substr(at.size());
  }
  return std::nullopt;
}

std::optional<std::string> UsedPlaces::FileNow(const std::string& path, int directory,
                                               const std::optional<struct stat>& current) const {
  const auto known = files_.find(path);
  if (known == files_.end()) return std::nullopt;
  if (current && Inode{current->st_dev, current->st_ino} == known->second) return std::nullopt;
  const int fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(fd), ::closedir);
  if (!listing) {
    ::close(fd);
    return std::nullopt;
  }
  while (const dirent* entry = ::readdir(listing.get())) {
    if (entry->d_ino != known->second.number) continue;
    struct stat st {};
    const bool is = ::fstatat(directory, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
                    Inode{st.st_dev, st.st_ino} == known->second;
    if (is) return std::string(entry->d_name);
  }
  return std::nullopt;
}

}  // namespace vrun::home
