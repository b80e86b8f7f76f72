// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/live_view.h"

#include <dirent.h>
#include <grp.h>
#include <linux/fuse.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <array>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "vfs/testing/live_testing.h"

namespace vrun::vfs {
namespace {

using LiveViewTest = LiveViewFixture;

void Put(const std::string& path, const std::string& content, int flags = O_WRONLY | O_CREAT | O_TRUNC) {
  const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  ASSERT_TRUE(fd) << path << ": " << std::strerror(errno);
  ASSERT_TRUE(WriteAll(fd.get(), content));
}
struct stat Stat(const std::string& path) {
  struct stat st {};
  EXPECT_EQ(::lstat(path.c_str(), &st), 0) << path << ": " << std::strerror(errno);
  return st;
}
std::set<std::string> List(const std::string& path) {
  std::set<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return {std::strerror(errno)};
  while (const dirent* entry = ::readdir(directory)) names.insert(entry->d_name);
  ::closedir(directory);
  names.erase(".");
  names.erase("..");
  return names;
}
// Runs `act` as a user without privileges and returns its result.
int AsNobody(const std::function<int()>& act) {
  return InChild(
      [&] { return ::setgroups(0, nullptr) == 0 && ::setgid(1000) == 0 && ::setuid(1000) == 0 ? act() : 97; });
}
int ErrnoOf(long result) { return result < 0 ? errno : 0; }

TEST_F(LiveViewTest, WhatIsWrittenIsReadAndHomeIsNotTouched) {
  Write("/src/main.c", "int main() {}\n");
  Mount();
  EXPECT_EQ(Content("/src/main.c"), "int main() {}\n");
  Put(In("/src/main.c"), "void f();\n");
  Put(In("/src/new.c"), "new");
  Put(In("/src/new.c"), "er", O_WRONLY | O_APPEND);
  EXPECT_EQ(Content("/src/main.c"), "void f();\n");
  EXPECT_EQ(Content("/src/new.c"), "newer");
  EXPECT_EQ(List(In("/src")), (std::set<std::string>{"main.c", "new.c"}));
  EXPECT_EQ(*ReadFile(origin_ + "/src/main.c"), "int main() {}\n");
  EXPECT_EQ(List(origin_ + "/src"), std::set<std::string>{"main.c"});
}

TEST_F(LiveViewTest, OneByteOfALargeFileCostsOneUnit) {
  const std::string content = Noise(32 << 20, 5);
  Write("/large", content);
  Mount();
  const UniqueFd fd(::open(In("/large").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::pwrite(fd.get(), "X", 1, 10'000'000), 1);
  EXPECT_LE(backend_->counters().bytes_fetched, 4u << 20);
  std::string around(3, '\0');
  ASSERT_EQ(::pread(fd.get(), around.data(), 3, 9'999'999), 3);
  EXPECT_EQ(around, content.substr(9'999'999, 1) + "X" + content.substr(10'000'001, 1));
  // Writes all of it; afterwards the kernel reads the file directly.
  std::string want = content;
  want[10'000'000] = 'X';
  EXPECT_TRUE(Content("/large") == want);
}

TEST_F(LiveViewTest, OverwritingAllOfAFileFetchesNothing) {
  Write("/large", Noise(8 << 20, 5));
  Mount();
  const std::string content = Noise(8 << 20, 6);
  const UniqueFd fd(::open(In("/large").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(WriteAll(fd.get(), content));
  EXPECT_EQ(backend_->counters().bytes_fetched, 0u);
  EXPECT_TRUE(Content("/large") == content);
}

TEST_F(LiveViewTest, TheKernelWritesNewFilesByItself) {
  Mount();
  if (!view_->stats().passthrough) GTEST_SKIP() << "this kernel has no FUSE passthrough";
  const UniqueFd fd(::open(In("/log").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::write(fd.get(), "1", 1), 1);  // the first write asks for capabilities that it would drop
  const auto before = view_->stats().requests;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(::write(fd.get(), "line\n", 5), 5);
  const auto after = view_->stats().requests;
  EXPECT_EQ(after[FUSE_WRITE], before[FUSE_WRITE]);
  EXPECT_EQ(after[FUSE_GETXATTR], before[FUSE_GETXATTR]);
  EXPECT_EQ(Stat(In("/log")).st_size, 5001);
}

TEST_F(LiveViewTest, ADirectoryOfHomesIsMovedWithAllThatNobodyHasLookedAt) {
  Write("/a/deep/er/file", "content");
  Write("/a/deep/other", "other");
  Mount();
  ASSERT_EQ(::rename(In("/a/deep").c_str(), In("/moved").c_str()), 0) << std::strerror(errno);
  EXPECT_EQ(Content("/moved/er/file"), "content");
  EXPECT_EQ(List(In("/a")), std::set<std::string>{});
  ASSERT_EQ(::mkdir(In("/a/deep").c_str(), 0755), 0);
  EXPECT_EQ(List(In("/a/deep")), std::set<std::string>{});  // a new directory: home's names do not show through
  EXPECT_EQ(List(In("/moved")), (std::set<std::string>{"er", "other"}));
}

TEST_F(LiveViewTest, AnUnlinkedFileLivesAsLongAsItIsOpen) {
  Write("/f", "of home's");
  Mount();
  const UniqueFd home(::open(In("/f").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::unlink(In("/f").c_str()), 0);
  Put(In("/f"), "another");
  const UniqueFd own(::open(In("/f").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::unlink(In("/f").c_str()), 0);
  std::string data(20, '\0');
  EXPECT_EQ(data.substr(0, size_t(::pread(home.get(), data.data(), 20, 0))), "of home's");
  ASSERT_EQ(::pwrite(home.get(), "OF", 2, 0), 2);
  EXPECT_EQ(data.substr(0, size_t(::pread(home.get(), data.data(), 20, 0))), "OF home's");
  EXPECT_EQ(data.substr(0, size_t(::pread(own.get(), data.data(), 20, 0))), "another");
  struct stat st {};
  ASSERT_EQ(::fstat(own.get(), &st), 0);
  EXPECT_EQ(st.st_nlink, 0u);
  EXPECT_EQ(::access(In("/f").c_str(), F_OK), -1);
}

TEST_F(LiveViewTest, NothingIsLeftOfWhatWasRemoved) {
  Mount();
  for (int i = 0; i < 50; ++i) Put(In("/f" + std::to_string(i)), "x");
  for (int i = 0; i < 50; ++i) ASSERT_EQ(::unlink(In("/f" + std::to_string(i)).c_str()), 0);
  // The kernel sends forgets at some later time.
  for (int i = 0; i < 500 && !List(directory_.path() + "/written").empty(); ++i) ::poll(nullptr, 0, 10);
  EXPECT_EQ(List(directory_.path() + "/written"), std::set<std::string>{});
}

TEST_F(LiveViewTest, HardLinksOfHomesAreOneFile) {
  Write("/one", "same");
  ASSERT_EQ(::mkdir((origin_ + "/d").c_str(), 0755), 0);
  ASSERT_EQ(::link((origin_ + "/one").c_str(), (origin_ + "/d/two").c_str()), 0);
  Mount();
  Put(In("/one"), "changed", O_WRONLY | O_TRUNC);
  EXPECT_EQ(Content("/d/two"), "changed");
  EXPECT_EQ(Stat(In("/d/two")).st_nlink, 2u);
  EXPECT_EQ(Stat(In("/d/two")).st_ino, Stat(In("/one")).st_ino);
  ASSERT_EQ(::link(In("/one").c_str(), In("/three").c_str()), 0);
  ASSERT_EQ(::unlink(In("/one").c_str()), 0);
  EXPECT_EQ(Stat(In("/three")).st_nlink, 2u);
  EXPECT_EQ(Content("/three"), "changed");
}

TEST_F(LiveViewTest, TemporaryFilesMayGetAName) {
  Mount();
  const UniqueFd fd(::open(mount_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_TRUE(fd) << std::strerror(errno);
  ASSERT_EQ(::write(fd.get(), "whole", 5), 5);
  EXPECT_EQ(List(mount_), std::set<std::string>{});
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  ASSERT_EQ(::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, In("/f").c_str(), AT_SYMLINK_FOLLOW), 0) << std::strerror(errno);
  EXPECT_EQ(Content("/f"), "whole");
  EXPECT_EQ(Stat(In("/f")).st_nlink, 1u);
  EXPECT_EQ(Stat(In("/f")).st_mode, mode_t{S_IFREG | 0640});
}

TEST_F(LiveViewTest, TemporaryFilesWaitForNoNames) {
  Write("/f", "home's");
  Mount();
  source_.Hold(true);
  const UniqueFd fd(::open(mount_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_TRUE(fd) << std::strerror(errno);
  EXPECT_EQ(::write(fd.get(), "whole", 5), 5);
  EXPECT_FALSE(source_.WaitHeld(1, 0));  // home was asked for nothing
  source_.Hold(false);
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  EXPECT_EQ(::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, In("/f").c_str(), AT_SYMLINK_FOLLOW), -1);
  EXPECT_EQ(errno, EEXIST);
  ASSERT_EQ(::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, In("/g").c_str(), AT_SYMLINK_FOLLOW), 0) << std::strerror(errno);
  EXPECT_EQ(Content("/g"), "whole");
}

TEST_F(LiveViewTest, ListingsAreWholeWhileNamesComeAndGo) {
  for (int i = 0; i < 300; ++i) Write("/d/home" + std::to_string(i), "");
  Mount();
  for (int i = 0; i < 300; ++i) Put(In("/d/own" + std::to_string(i)), "");
  // Names that stay are listed once, whatever happens meanwhile.
  DIR* directory = ::opendir(In("/d").c_str());
  std::multiset<std::string> seen;
  int removed = 0;
  while (const dirent* entry = ::readdir(directory)) {
    seen.insert(entry->d_name);
    const std::string doomed = In((removed % 2 == 0 ? "/d/home" : "/d/own") + std::to_string(removed));
    if (removed < 200) {
      ASSERT_EQ(::unlink(doomed.c_str()), 0);
    }
    Put(In("/d/later" + std::to_string(removed++)), "");
  }
  ::closedir(directory);
  for (int i = 200; i < 300; ++i) {
    EXPECT_EQ(seen.count("home" + std::to_string(i)), 1u) << i;
    EXPECT_EQ(seen.count("own" + std::to_string(i)), 1u) << i;
  }
  ASSERT_EQ(std::system(("rm -rf " + In("/d")).c_str()), 0);
  EXPECT_EQ(List(mount_), std::set<std::string>{});
}

TEST_F(LiveViewTest, TimesAreKeptToTheNanosecond) {
  Write("/home", "content");
  Mount();
  Put(In("/own"), "content");
  for (const char* name : {"/home", "/own"}) {
    const timespec times[2] = {{1'000'000'000, 123'456'789}, {1'100'000'000, 987'654'321}};
    ASSERT_EQ(::utimensat(AT_FDCWD, In(name).c_str(), times, 0), 0);
    struct stat st = Stat(In(name));
    EXPECT_EQ(st.st_atim.tv_nsec, 123'456'789);
    EXPECT_EQ(st.st_mtim.tv_sec, 1'100'000'000);
    EXPECT_EQ(st.st_mtim.tv_nsec, 987'654'321);
    EXPECT_GT(st.st_ctim.tv_sec, 1'700'000'000);
    ASSERT_EQ(::chmod(In(name).c_str(), 0600), 0);
    EXPECT_EQ(Stat(In(name)).st_mtim.tv_nsec, 987'654'321);
    Put(In(name), "more", O_WRONLY | O_APPEND);
    EXPECT_GT(Stat(In(name)).st_mtim.tv_sec, 1'700'000'000);
  }
}

TEST_F(LiveViewTest, ReadingAFileThatIsPartlyHomesDoesNotChangeItsTimes) {
  Write("/large", Noise(4 << 20, 3));
  Mount();
  ASSERT_EQ(::truncate(In("/large").c_str(), 3 << 20), 0);
  const timespec times[2] = {{0, UTIME_OMIT}, {1'100'000'000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, In("/large").c_str(), times, 0), 0);
  const struct stat before = Stat(In("/large"));
  EXPECT_EQ(Content("/large").size(), size_t{3 << 20});
  const struct stat after = Stat(In("/large"));
  EXPECT_EQ(after.st_mtim.tv_sec, 1'100'000'000);
  EXPECT_EQ(after.st_ctim.tv_nsec, before.st_ctim.tv_nsec);
}

TEST_F(LiveViewTest, AWriteThroughAMappingMovesTheTime) {
  Mount();
  Put(In("/f"), std::string(8192, 'a'));
  const timespec old[2] = {{0, UTIME_OMIT}, {1'100'000'000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, In("/f").c_str(), old, 0), 0);
  ASSERT_EQ(Stat(In("/f")).st_mtim.tv_sec, 1'100'000'000);
  ASSERT_EQ(InChild([&] {
              const int fd = ::open(In("/f").c_str(), O_RDWR | O_CLOEXEC);
              auto* map = static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
              if (map == MAP_FAILED) return errno;
              map[5000] = 'b';
              return ::msync(map, 8192, MS_SYNC);
            }),
            0);
  // Not stat: after mapping a file the kernel requests its atime, and all other attributes with it.
  struct statx st {};
  ASSERT_EQ(::statx(AT_FDCWD, In("/f").c_str(), 0, STATX_MTIME, &st), 0);
  EXPECT_GT(st.stx_mtime.tv_sec, 1'700'000'000);
  EXPECT_EQ(Content("/f")[5000], 'b');
}

TEST_F(LiveViewTest, PagesFromBeforeTheKernelWroteByItselfAreNotShown) {
  Mount();
  // Files with set-id bits do not use passthrough. So one file is accessed through the page cache, past it, and with
  // passthrough.
  Put(In("/f"), "before");
  ASSERT_EQ(::chmod(In("/f").c_str(), 04755), 0);
  EXPECT_EQ(Content("/f"), "before");
  ASSERT_EQ(::chmod(In("/f").c_str(), 0755), 0);
  Put(In("/f"), "after!", O_WRONLY);
  ASSERT_EQ(::chmod(In("/f").c_str(), 04755), 0);
  EXPECT_EQ(Content("/f"), "after!");
}

TEST_F(LiveViewTest, WhoMayNotWriteCannot) {
  Write("/home", "x", 0644);
  Mount();
  ASSERT_EQ(::mkdir(In("/d").c_str(), 01777), 0);
  ASSERT_EQ(::chmod(In("/d").c_str(), 01777), 0);
  Put(In("/d/roots"), "x");
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::open(In("/home").c_str(), O_WRONLY)); }), EACCES);
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::mkdir(In("/x").c_str(), 0777)); }), EACCES);
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::unlink(In("/d/roots").c_str())); }), EPERM);  // sticky bit
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::chmod(In("/home").c_str(), 0777)); }), EPERM);
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::chown(In("/home").c_str(), 1000, -1)); }), EPERM);
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::mkdir(In("/d/mine").c_str(), 0777)); }), 0);
  EXPECT_EQ(Stat(In("/d/mine")).st_uid, 1000u);
}

TEST_F(LiveViewTest, GroupsAreInheritedFromSetGroupIdDirectories) {
  Mount();
  ASSERT_EQ(::mkdir(In("/d").c_str(), 0777), 0);
  ASSERT_EQ(::chown(In("/d").c_str(), 0, 55), 0);
  ASSERT_EQ(::chmod(In("/d").c_str(), 02777), 0);
  Put(In("/d/f"), "");
  ASSERT_EQ(::mkdir(In("/d/sub").c_str(), 0755), 0);
  EXPECT_EQ(Stat(In("/d/f")).st_gid, 55u);
  EXPECT_EQ(Stat(In("/d/sub")).st_gid, 55u);
  EXPECT_EQ(Stat(In("/d/sub")).st_mode, mode_t{S_IFDIR | 02755});
}

TEST_F(LiveViewTest, WritingAndChangingOwnersEndsSetUserId) {
  Write("/home", "x");
  for (const bool passthrough : {true, false}) {
    options_.passthrough = passthrough;
    Mount();
    Put(In("/own"), "x");
    for (const char* name : {"/home", "/own"}) {
      ASSERT_EQ(::chmod(In(name).c_str(), 06777), 0);
      EXPECT_EQ(AsNobody([&] {
                  const int fd = ::open(In(name).c_str(), O_WRONLY);
                  return fd >= 0 && ::write(fd, "y", 1) == 1 ? 0 : errno;
                }),
                0);
      EXPECT_EQ(Stat(In(name)).st_mode & 07777, 0777u) << name << " " << passthrough;
      ASSERT_EQ(::chmod(In(name).c_str(), 06777), 0);
      EXPECT_EQ(AsNobody([&] { return ErrnoOf(::truncate(In(name).c_str(), 0)); }), 0);
      EXPECT_EQ(Stat(In(name)).st_mode & 07777, 0777u) << name << " " << passthrough;
      ASSERT_EQ(::chmod(In(name).c_str(), 06777), 0);
      ASSERT_EQ(::chown(In(name).c_str(), 5, 5), 0);
      EXPECT_EQ(Stat(In(name)).st_mode & 07777, 0777u) << name << " " << passthrough;
      ASSERT_EQ(::chmod(In(name).c_str(), 06767), 0);  // set-group-id without group execute permission
      EXPECT_EQ(AsNobody([&] {
                  const int fd = ::open(In(name).c_str(), O_WRONLY);
                  return fd >= 0 && ::fallocate(fd, 0, 0, 9000) == 0 ? 0 : errno;
                }),
                0);
      EXPECT_EQ(Stat(In(name)).st_mode & 07777, 0767u) << name << " " << passthrough;
    }
  }
}

TEST_F(LiveViewTest, ExtendedAttributesAndTheirErrors) {
  Write("/f", "x");
  ASSERT_EQ(::setxattr((origin_ + "/f").c_str(), "user.home", "there", 5, 0), 0);
  Mount();
  const std::string f = In("/f");
  std::array<char, 64> value{};
  EXPECT_EQ(::getxattr(f.c_str(), "user.home", value.data(), value.size()), 5);
  EXPECT_EQ(::setxattr(f.c_str(), "user.home", "here", 4, XATTR_CREATE), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(::setxattr(f.c_str(), "user.own", "x", 1, XATTR_REPLACE), -1);
  EXPECT_EQ(errno, ENODATA);
  ASSERT_EQ(::setxattr(f.c_str(), "user.home", "here", 4, XATTR_REPLACE), 0);
  ASSERT_EQ(::setxattr(f.c_str(), "user.empty", "", 0, 0), 0);
  EXPECT_EQ(::getxattr(f.c_str(), "user.home", value.data(), 2), -1);
  EXPECT_EQ(errno, ERANGE);
  EXPECT_EQ(::getxattr(f.c_str(), "user.home", value.data(), value.size()), 4);
  EXPECT_EQ(::getxattr(f.c_str(), "user.empty", value.data(), value.size()), 0);
  EXPECT_EQ(::listxattr(f.c_str(), value.data(), value.size()), ssize_t(sizeof "user.home" + sizeof "user.empty"));
  ASSERT_EQ(::removexattr(f.c_str(), "user.home"), 0);
  EXPECT_EQ(::removexattr(f.c_str(), "user.home"), -1);
  EXPECT_EQ(errno, ENODATA);
  // Names that home's file system would not accept are refused at once.
  for (const auto& [name, error] : {std::pair("plain", EOPNOTSUPP), {"other.name", EOPNOTSUPP}, {"user.", EINVAL}}) {
    EXPECT_EQ(::setxattr(f.c_str(), name, "x", 1, 0), -1);
    EXPECT_EQ(errno, error) << name;
  }
  EXPECT_EQ(::removexattr(f.c_str(), "system.posix_acl_access"), 0);  // as on other file systems: it has none
}

TEST_F(LiveViewTest, AccessControlListsCountAndAreInherited) {
  Mount();
  ASSERT_EQ(::mkdir(In("/d").c_str(), 0700), 0);
  struct {
    posix_acl_xattr_header header{POSIX_ACL_XATTR_VERSION};
    posix_acl_xattr_entry entries[5] = {
        {ACL_USER_OBJ, 7, ~0u}, {ACL_USER, 7, 1000}, {ACL_GROUP_OBJ, 0, ~0u}, {ACL_MASK, 7, ~0u}, {ACL_OTHER, 0, ~0u}};
  } acl;
  const auto reach = [&] { return AsNobody([&] { return ErrnoOf(::open(In("/d").c_str(), O_RDONLY)); }); };
  EXPECT_EQ(reach(), EACCES);
  ASSERT_EQ(::setxattr(In("/d").c_str(), "system.posix_acl_access", &acl, sizeof acl, 0), 0) << std::strerror(errno);
  ASSERT_EQ(::setxattr(In("/d").c_str(), "system.posix_acl_default", &acl, sizeof acl, 0), 0) << std::strerror(errno);
  EXPECT_EQ(reach(), 0);
  EXPECT_EQ(Stat(In("/d")).st_mode & 0777, 0770u);
  ::umask(077);  // ignored if there is a default ACL
  Put(In("/d/f"), "x");
  ::umask(022);
  EXPECT_EQ(Stat(In("/d/f")).st_mode & 0777, 0660u);
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::open(In("/d/f").c_str(), O_RDWR)); }), 0);
  ASSERT_EQ(::chmod(In("/d/f").c_str(), 0600), 0);  // clears the mask
  EXPECT_EQ(AsNobody([&] { return ErrnoOf(::open(In("/d/f").c_str(), O_RDWR)); }), EACCES);
}

TEST_F(LiveViewTest, SpecialFilesWork) {
  Mount();
  ASSERT_EQ(::mkfifo(In("/fifo").c_str(), 0600), 0);
  const UniqueFd fifo(::open(In("/fifo").c_str(), O_RDWR | O_CLOEXEC));
  char c = 0;
  ASSERT_EQ(::write(fifo.get(), "f", 1), 1);
  ASSERT_EQ(::read(fifo.get(), &c, 1), 1);
  EXPECT_EQ(c, 'f');
  const UniqueFd server(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), client(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(In("/sock").size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, In("/sock").c_str());
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(::bind(server.get(), at, sizeof address), 0) << std::strerror(errno);
  ASSERT_EQ(::listen(server.get(), 1), 0);
  EXPECT_EQ(::connect(client.get(), at, sizeof address), 0) << std::strerror(errno);
  ASSERT_EQ(::mknod(In("/null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
  EXPECT_EQ(Stat(In("/null")).st_rdev, makedev(0, 1));   // attributes.h, DeviceNumber
  EXPECT_EQ(::open(In("/null").c_str(), O_RDONLY), -1);  // the mount is nodev
  const std::string target(4000, 't');
  ASSERT_EQ(::symlink(target.c_str(), In("/link").c_str()), 0);
  std::string read(5000, '\0');
  read.resize(size_t(::readlink(In("/link").c_str(), read.data(), read.size())));
  EXPECT_EQ(read, target);
  EXPECT_EQ(Stat(In("/link")).st_size, 4000);
}

TEST_F(LiveViewTest, LocksAreBetweenProcessesOfThisNode) {
  Mount();
  const UniqueFd fd(::open(In("/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  ASSERT_EQ(::flock(fd.get(), LOCK_EX), 0);
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_len = 10;
  ASSERT_EQ(::fcntl(fd.get(), F_SETLK, &range), 0);
  EXPECT_EQ(AsNobody([&] {
              const int other = ::open(In("/lock").c_str(), O_RDONLY);
              return other >= 0 && ::flock(other, LOCK_EX | LOCK_NB) < 0 ? errno : 0;
            }),
            EWOULDBLOCK);
}

TEST_F(LiveViewTest, AppendsOfManyWritersAreAllThere) {
  Write("/log", "start\n");
  Mount();
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < 100; ++i) Put(In("/log"), std::string(1, char('a' + w)) + "\n", O_WRONLY | O_APPEND);
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(Content("/log").size(), 6u + 800u);
}

TEST_F(LiveViewTest, HolesAreFoundAndMade) {
  Write("/home", std::string(300'000, 'x'));
  Mount();
  const UniqueFd fd(::open(In("/sparse").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  ASSERT_EQ(::ftruncate(fd.get(), 10 << 20), 0);
  ASSERT_EQ(::pwrite(fd.get(), "data", 4, 5 << 20), 4);
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_DATA), 5 << 20);
  EXPECT_EQ(::lseek(fd.get(), 5 << 20, SEEK_HOLE), (5 << 20) + 4096);
  EXPECT_EQ(::lseek(fd.get(), 11 << 20, SEEK_DATA), -1);
  EXPECT_EQ(errno, ENXIO);
  EXPECT_LT(Stat(In("/sparse")).st_blocks, 100);
  ASSERT_EQ(::posix_fallocate(fd.get(), 0, 20 << 20), 0);
  EXPECT_EQ(Stat(In("/sparse")).st_size, 20 << 20);
  const UniqueFd home(::open(In("/home").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::lseek(home.get(), 10, SEEK_DATA), 10);
  EXPECT_EQ(::lseek(home.get(), 10, SEEK_HOLE), 300'000);
}

TEST_F(LiveViewTest, DirectIo) {
  Write("/home", std::string(65536, 'h'));
  Mount();
  void* buffer = nullptr;
  ASSERT_EQ(::posix_memalign(&buffer, 4096, 8192), 0);
  std::memset(buffer, 'd', 8192);
  for (const char* name : {"/home", "/own"}) {
    const UniqueFd fd(::open(In(name).c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0666));
    ASSERT_TRUE(fd) << std::strerror(errno);
    ASSERT_EQ(::pwrite(fd.get(), buffer, 8192, 4096), 8192) << std::strerror(errno);
    ASSERT_EQ(::pread(fd.get(), buffer, 8192, 4096), 8192);
    EXPECT_EQ(Content(name).substr(4096, 8192), std::string(8192, 'd'));
  }
  ::free(buffer);
}

TEST_F(LiveViewTest, AProgramThatWasWrittenRuns) {
  Mount();
  ASSERT_EQ(std::system(("cp /bin/true " + In("/t") + " && chmod +x " + In("/t") + " && " + In("/t")).c_str()), 0);
  struct statvfs of {};
  ASSERT_EQ(::statvfs(mount_.c_str(), &of), 0);
  EXPECT_GT(of.f_bavail, 0u);
}

TEST_F(LiveViewTest, GitAndSqliteFindAFileSystemThatTheyCanTrust) {
  for (int i = 0; i < 200; ++i) Write("/repo/src/file" + std::to_string(i), Noise(2000, unsigned(i)));
  ASSERT_EQ(std::system(("cd " + origin_ +
                         "/repo && git init -q . && git add . && git -c user.name=a -c user.email=b commit -qm one")
                            .c_str()),
            0);
  Mount();
  const std::string script =
      "set -e; cd " + mount_ +
      "; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; git config --global --add safe.directory '*'; cd repo; "
      "test -z \"$(git status --porcelain)\"; echo more >> src/file7; git mv src/file8 src/file9000; "
      "git add -A; git -c user.name=a -c user.email=b commit -qm two; git gc -q; git fsck --strict; "
      "git clone -q . ../clone; cd ../clone; git fsck --strict; test -z \"$(git status --porcelain)\"; "
      "cd ..; sqlite3 db 'pragma journal_mode=wal; create table t(x); begin;' "
      "'insert into t with recursive n(i) as (select 1 union all select i+1 from n where i<5000) select i from n;' "
      "'commit; pragma integrity_check;' | grep -q ok; test \"$(sqlite3 db 'select sum(x) from t')\" = 12502500";
  ASSERT_TRUE(WriteFileAtomic(directory_.path() + "/script", script, 0700));
  EXPECT_EQ(std::system(("bash " + directory_.path() + "/script").c_str()), 0);
}

// For external test suites: VRUN_LIVE_COMMAND is run with a fresh view as its working directory.
TEST_F(LiveViewTest, DISABLED_RunsTheCommandOfTheEnvironment) {
  const char* command = std::getenv("VRUN_LIVE_COMMAND");
  if (command == nullptr) GTEST_SKIP() << "VRUN_LIVE_COMMAND is not set";
  Mount();
  EXPECT_EQ(std::system(("cd " + mount_ + " && " + command).c_str()), 0);
}

TEST_F(LiveViewTest, HomeBeingAwayIsAnErrorOfWhoNeedsItAlone) {
  Write("/lost", std::string(200'000, 'x'));
  Mount();
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what != 'f' && asked.what != 'a') return std::nullopt;
    return Error(Code::kAborted, "the file has changed");
  });
  const UniqueFd fd(::open(In("/lost").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(::pwrite(fd.get(), "x", 1, 100), -1);
  EXPECT_EQ(errno, EIO);
  const std::string all(200'000, 'n');
  EXPECT_EQ(::pwrite(fd.get(), all.data(), all.size(), 0), ssize_t(all.size())) << std::strerror(errno);
  EXPECT_TRUE(Content("/lost") == all);
  Put(In("/other"), "works");
  EXPECT_EQ(Content("/other"), "works");
}

}  // namespace
}  // namespace vrun::vfs
