// SPDX-License-Identifier: Apache-2.0
// A live view whose home changes.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "vfs/testing/live_testing.h"

namespace vrun::vfs {

class LiveAdvanceTest : public LiveViewFixture {
 protected:
  // Merges home's current state into a view that has told home of its changes up to `included`.
  void Follow(uint64_t included = 0) {
    const Status advanced = view_->Advance(Scan(), included);
    ASSERT_TRUE(advanced) << advanced.error().message();
  }
  // The same as home's stream does it: new objects arrive before the tree.
  void FollowPushed(uint64_t included = 0) {
    const auto snapshot = tree::Scan({.root = origin_, .hollow = {}});
    ASSERT_TRUE(snapshot) << snapshot.error().message();
    source_.Add(*snapshot);
    std::vector<FetchedDirectory> objects;
    const std::function<void(const tree::DirectoryPtr&)> add = [&](const tree::DirectoryPtr& directory) {
      objects.push_back({directory, {}});
      for (size_t i = 0; i < directory->size(); ++i) {
        if (const tree::DirectoryPtr child = directory->Child(i)) add(child);
      }
    };
    add((*snapshot)->directory);
    backend_->Preload(std::move(objects));
    const Status advanced = view_->Advance((*snapshot)->id, included);
    ASSERT_TRUE(advanced) << advanced.error().message();
  }
  void FollowAll() { Follow(view_->changes()); }
  std::string Origin(const std::string& path) const { return origin_ + path; }
  // Saves as an editor does: another file takes over the name.
  void Save(const std::string& path, const std::string& content) {
    ASSERT_TRUE(WriteFileAtomic(Origin(path), content, 0644));
  }
  static std::string All(int fd) {
    std::string data(1 << 20, 0);
    const ssize_t n = ::pread(fd, data.data(), data.size(), 0);
    return n < 0 ? std::string("error: ") + std::strerror(errno) : data.substr(0, static_cast<size_t>(n));
  }
  static void Put(const std::string& path, const std::string& content, int flags = O_WRONLY | O_CREAT | O_TRUNC) {
    const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
    ASSERT_TRUE(fd) << path << ": " << std::strerror(errno);
    ASSERT_TRUE(WriteAll(fd.get(), content));
  }
  // Waits: the kernel reports a close only after close(2) has returned.
  static bool Soon(const std::function<bool()>& holds) {
    for (int i = 0; i < 1000 && !holds(); ++i) ::usleep(2'000);
    return holds();
  }
  static bool Is(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }
  static struct stat Stat(const std::string& path) {
    struct stat st {};
    EXPECT_EQ(::lstat(path.c_str(), &st), 0) << path << ": " << std::strerror(errno);
    return st;
  }
  static uint64_t NodeOf(const std::string& path) { return Stat(path).st_ino & ~(1ull << 60); }  // made in the view
  tree::FileVersion VersionOf(const std::string& path) const {
    const UniqueFd fd(::open(Origin(path).c_str(), O_PATH | O_CLOEXEC));
    return vfs::VersionOf(fd.get());
  }
  static std::string Link(const std::string& path) {
    std::array<char, 4096> target{};
    const ssize_t n = ::readlink(path.c_str(), target.data(), target.size());
    return {target.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))};
  }
  uint64_t Requests(uint32_t opcode) const { return view_->stats().requests[opcode]; }
};

}  // namespace vrun::vfs
