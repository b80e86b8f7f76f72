// SPDX-License-Identifier: Apache-2.0
// An applier in a root of its own, and the messages of a batch job.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "home/apply/apply.h"
#include "home/root/deny_list.h"

namespace vrun::home {

using v1::BaseVersion;
using v1::WriteBack;

constexpr int64_t kMtime = 1'600'000'000'123'456'789;

inline bool PrivateMounts() {
  static const bool have = ::geteuid() == 0 && ::unshare(CLONE_NEWNS) == 0 &&
                           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return have;
}

class Apply : public ::testing::Test {
 protected:
  void SetUp() override {
    ::alarm(60);
    PrivateMounts();  // before anything is opened here
    std::string pattern = "/var/tmp/vrun-apply-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    top_ = pattern;
    ::chmod(top_.c_str(), 0755);
    ASSERT_EQ(::mkdir(Path("").c_str(), 0755), 0);
    Open();
  }
  void TearDown() override {
    applier_.reset();
    for (const std::string& mount : mounts_) ::umount2(mount.c_str(), MNT_DETACH);
    EXPECT_TRUE(RemoveTree(top_).has_value());
    ::alarm(0);
  }

  // `kept`: a path denied to jobs. "?": not known yet.
  void Open(uint64_t job = 7, const std::string& kept = "") {
    applier_.reset();
    ApplyOptions options;
    options.root = Path("");
    options.job = job;
    options.attempt = 1;
    if (kept == "?") {
      options.rules = [] { return nullptr; };
    } else if (!kept.empty()) {
      options.rules =
          [rules = DenyList({.root = Path(""), .homes = {}, .home_parents = {}, .own = {Path(kept)}}).Current()] {
            return rules;
          };
    }
    options.journal = top_ + "/journal." + std::to_string(job);
    options.notice = [this](const std::string& text) { notices_.push_back(text); };
    options.conflict = [this](const std::string& path) { conflicts_.push_back(path); };
    auto applier = Applier::Open(std::move(options));
    ASSERT_TRUE(applier.has_value()) << applier.error().message();
    applier_ = *std::move(applier);
  }
  void Mount(const std::string& path, const std::string& options) {
    ASSERT_EQ(::mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()), 0);
    mounts_.push_back(path);
  }

  std::string Path(const std::string& in_root) const { return top_ + "/root" + in_root; }
  void Write(const std::string& path, const std::string& data) {
    auto fd = OpenFile(Path(path), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_TRUE(fd.has_value()) << path;
    ASSERT_TRUE(WriteAll(fd->get(), data).has_value());
  }
  std::string Read(const std::string& path) { return ReadFile(Path(path)).value_or("(none)"); }
  std::vector<std::string> List(const std::string& path) {
    std::vector<std::string> out;
    DIR* dir = ::opendir(Path(path).c_str());
    while (dirent* entry = dir == nullptr ? nullptr : ::readdir(dir)) {
      if (entry->d_name[0] != '.' || std::strlen(entry->d_name) > 2) out.emplace_back(entry->d_name);
    }
    if (dir != nullptr) ::closedir(dir);
    return out;
  }
  struct stat Stat(const std::string& path) {
    struct stat st = {};
    ::lstat(Path(path).c_str(), &st);
    return st;
  }
  BaseVersion Base(const std::string& path) {
    struct stat st = Stat(path);
    BaseVersion base;
    base.set_ino(st.st_ino);
    base.set_type(st.st_mode & S_IFMT);
    base.set_ctime_ns(int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec);
    base.set_mtime_ns(int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec);
    base.set_size(static_cast<uint64_t>(st.st_size));
    base.set_nlink(st.st_nlink);
    return base;
  }

  WriteBack Message(const std::string& path, const std::optional<BaseVersion>& base = std::nullopt) {
    WriteBack m;
    m.set_sequence(++next_);
    m.set_path(path);
    if (base) *m.mutable_base() = *base;
    return m;
  }
  v1::Meta Meta(uint32_t mode) {
    v1::Meta meta;
    meta.set_mode(mode);
    meta.set_uid(::geteuid());
    meta.set_gid(::getegid());
    meta.set_mtime_ns(kMtime);
    meta.set_atime_ns(kMtime);
    return meta;
  }
  std::vector<WriteBack> Put(const std::string& path, const std::string& data,
                             const std::optional<BaseVersion>& base = std::nullopt, uint32_t mode = 0644) {
    WriteBack put = Message(path, base);
    *put.mutable_put_file()->mutable_meta() = Meta(S_IFREG | mode);
    put.mutable_put_file()->set_size(data.size());
    WriteBack content = Message(path);
    content.mutable_file_data()->set_data(data);
    content.mutable_file_data()->set_last(true);
    return {put, content};
  }
  WriteBack MakeDirectory(const std::string& path, const std::optional<BaseVersion>& base = std::nullopt) {
    WriteBack m = Message(path, base);
    *m.mutable_make_directory()->mutable_meta() = Meta(S_IFDIR | 0755);
    return m;
  }
  WriteBack Remove(const std::string& path, const BaseVersion& base) {
    WriteBack m = Message(path, base);
    m.mutable_remove();
    return m;
  }
  WriteBack Rename(const std::string& from, const std::string& to, const BaseVersion& source) {
    WriteBack m = Message(to);
    m.mutable_rename()->set_from(from);
    *m.mutable_rename()->mutable_source() = source;
    return m;
  }
  Status Do(const std::vector<WriteBack>& messages) {
    for (const WriteBack& m : messages) VRUN_TRY(applier_->Apply(m));
    return {};
  }
  Status Do(const WriteBack& message) { return applier_->Apply(message); }

  // Runs `body` as an ordinary user in a child; true if `body` returned true.
  template <typename Body>
  bool AsUser(Body body) {
    if (::geteuid() != 0) return body();
    EXPECT_EQ(::chown(top_.c_str(), 1000, 1000), 0);
    EXPECT_EQ(::chown(Path("").c_str(), 1000, 1000), 0);
    ::unlink((top_ + "/journal.7").c_str());
    pid_t child = ::fork();
    if (child == 0) {
      bool ok =
          ::setgroups(0, nullptr) == 0 && ::setresgid(1000, 1000, 1000) == 0 && ::setresuid(1000, 1000, 1000) == 0;
      if (ok) Open();
      ok = ok && applier_ && body();
      applier_.reset();
      ::_exit(ok ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status == 0;
  }

  std::string top_;
  std::unique_ptr<Applier> applier_;
  std::vector<std::string> notices_;
  std::vector<std::string> conflicts_;
  std::vector<std::string> mounts_;
  uint64_t next_ = 0;
};

#define EXPECT_OK(expression)                                          \
  do {                                                                 \
    auto ok_result = (expression);                                     \
    EXPECT_TRUE(ok_result.has_value()) << ok_result.error().message(); \
  } while (0)

}  // namespace vrun::home
