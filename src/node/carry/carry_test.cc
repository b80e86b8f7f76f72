// SPDX-License-Identifier: Apache-2.0
// Carry's output for single operations. Random operations and their arrival at home are tested in tests/writeback.
#include "node/carry/carry.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "base/files.h"

namespace vrun::node {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using v1::WriteBack;

bool HaveMounts() {
  static const bool have = ::geteuid() == 0 && ::unshare(CLONE_NEWNS) == 0 &&
                           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return have;
}

class CarryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HaveMounts()) GTEST_SKIP() << "needs root and mount namespaces";
    ::alarm(60);
    std::string pattern = "/var/tmp/vrun-carry-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    base_ = pattern;
    for (const char* name : {"/lower", "/upper", "/work", "/merged"}) {
      ASSERT_EQ(::mkdir((base_ + name).c_str(), 0755), 0);
    }
    options_.upper = base_ + "/upper";
    options_.lower = base_ + "/lower";
    options_.job = 7;
  }
  void TearDown() override {
    Unmount();
    if (!base_.empty()) {
      EXPECT_TRUE(RemoveTree(base_).has_value());
    }
    ::alarm(0);
  }
  void Mount() {
    ASSERT_TRUE(PrepareUpper(options_.upper, options_.lower, options_.apart).has_value());
    const std::string above = options_.apart.empty() ? "" : options_.apart + ":";
    std::string options = "lowerdir=" + above + options_.lower + ",upperdir=" + options_.upper + ",workdir=" + base_ +
                          "/work,redirect_dir=on,metacopy=on,index=off,volatile";
    if (::mount("overlay", (base_ + "/merged").c_str(), "overlay", 0, options.c_str()) != 0) {
      GTEST_SKIP() << "no overlay with redirect_dir and metacopy here: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void Unmount() {
    if (mounted_) {
      EXPECT_EQ(::umount2((base_ + "/merged").c_str(), 0), 0);
    }
    mounted_ = false;
  }
  std::string Lower(const std::string& path) const { return base_ + "/lower" + path; }
  std::string Merged(const std::string& path) const { return base_ + "/merged" + path; }
  static void Write(const std::string& path, const std::string& data) {
    auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_TRUE(fd.has_value()) << path;
    ASSERT_TRUE(WriteAll(fd->get(), data).has_value());
  }
  std::vector<WriteBack> Series(uint64_t after = 0) {
    Unmount();
    std::vector<WriteBack> out;
    auto carry = Carry::Open(options_);
    EXPECT_TRUE(carry.has_value()) << carry.error().message();
    if (!carry) return out;
    EXPECT_TRUE((*carry)->Restart(after).has_value());
    for (;;) {
      auto message = (*carry)->Next();
      EXPECT_TRUE(message.has_value()) << message.error().message();
      if (!message || !*message) return out;
      out.push_back(**std::move(message));
    }
  }
  // "put /f", "data 0+5!", "meta /", ...
  static std::vector<std::string> Told(const std::vector<WriteBack>& series) {
    std::vector<std::string> out;
    for (const WriteBack& m : series) {
      switch (m.op_case()) {
        case WriteBack::kPutFile: out.push_back("put " + m.path()); break;
        case WriteBack::kFileData:
          out.push_back("data " + std::to_string(m.file_data().offset()) + "+" +
                        std::to_string(m.file_data().data().size()) + (m.file_data().last() ? "!" : ""));
          break;
        case WriteBack::kMakeDirectory: out.push_back("mkdir " + m.path()); break;
        case WriteBack::kMakeSymlink: out.push_back("symlink " + m.path()); break;
        case WriteBack::kMakeSpecial: out.push_back("special " + m.path()); break;
        case WriteBack::kMakeHardLink: out.push_back("link " + m.path() + " " + m.make_hard_link().existing()); break;
        case WriteBack::kRemove: out.push_back("remove " + m.path()); break;
        case WriteBack::kRename: out.push_back("rename " + m.rename().from() + " " + m.path()); break;
        case WriteBack::kSetMeta: out.push_back("meta " + m.path()); break;
        case WriteBack::OP_NOT_SET: out.push_back("?"); break;
      }
    }
    return out;
  }

  std::string base_;
  CarryOptions options_;
  bool mounted_ = false;
};

TEST(Carry, AnUpperThatIsNotThereIsAnError) {
  CarryOptions options;
  options.upper = "/nonexistent/upper";
  options.lower = "/";
  EXPECT_FALSE(Carry::Open(options).has_value());
}

TEST_F(CarryTest, ACommandThatOnlyReadsTellsNothing) {
  Write(Lower("/f"), "x");
  Mount();
  EXPECT_TRUE(ReadFile(Merged("/f")).has_value());
  EXPECT_THAT(Told(Series()), IsEmpty());
}

TEST_F(CarryTest, AnUnpreparedUpperSaysNothingAboutTheRootItself) {
  ::chmod(options_.upper.c_str(), 0700);
  Write(options_.upper + "/f", "x");
  EXPECT_THAT(Told(Series()), ElementsAre("put /f", "data 0+1!"));
}

TEST_F(CarryTest, AnEmptyFileIsOneFileWithAnEnd) {
  Mount();
  Write(Merged("/f"), "");
  EXPECT_THAT(Told(Series()), ElementsAre("put /f", "data 0+0!", "meta /"));
}

TEST_F(CarryTest, VersionsAreThoseOfTheLower) {
  Write(Lower("/f"), "old");
  Mount();
  Write(Merged("/f"), "newer");
  auto series = Series();
  ASSERT_FALSE(series.empty());
  struct stat st;
  ASSERT_EQ(::lstat(Lower("/f").c_str(), &st), 0);
  EXPECT_EQ(series[0].base().ino(), st.st_ino);
  EXPECT_EQ(series[0].base().size(), 3u);
  EXPECT_EQ(series[0].base().ctime_ns(), int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec);
  EXPECT_EQ(series[0].put_file().size(), 5u);
}

TEST_F(CarryTest, WhatWasOnlyAppendedIsToldAsThat) {
  const std::string large(3'000'000, 'x');
  for (const char* name : {"/appended", "/changed", "/cut"}) Write(Lower(name), large);
  Write(Lower("/empty"), "");
  Mount();
  Write(Merged("/appended"), large + "more");
  Write(Merged("/changed"), large.substr(1) + "y and more");
  Write(Merged("/cut"), "less");
  Write(Merged("/empty"), "more");
  Write(Merged("/new"), "new");
  std::map<std::string, bool> appended;
  for (const WriteBack& message : Series()) {
    if (message.has_put_file()) appended[message.path()] = message.put_file().appended();
  }
  const std::map<std::string, bool> expected{
      {"/appended", true}, {"/changed", false}, {"/cut", false}, {"/empty", true}, {"/new", false}};
  EXPECT_EQ(appended, expected);
}

TEST_F(CarryTest, AChangeOfModeSendsNoData) {
  Write(Lower("/f"), std::string(100'000, 'x'));
  Mount();
  ASSERT_EQ(::chmod(Merged("/f").c_str(), 0600), 0);
  auto series = Series();
  EXPECT_THAT(Told(series), ElementsAre("meta /f", "meta /"));
  EXPECT_EQ(series[0].set_meta().meta().mode(), static_cast<uint32_t>(S_IFREG | 0600));
}

TEST_F(CarryTest, ARenamedDirectoryIsOneRename) {
  ASSERT_EQ(::mkdir(Lower("/a").c_str(), 0755), 0);
  for (int i = 0; i < 50; ++i) Write(Lower("/a/f" + std::to_string(i)), "x");
  Mount();
  ASSERT_EQ(::rename(Merged("/a").c_str(), Merged("/b").c_str()), 0);
  EXPECT_THAT(Told(Series()), ElementsAre("rename /a /b", "meta /"));
}

TEST_F(CarryTest, SwappedDirectoriesGoByWayOfATemporaryName) {
  for (const char* name : {"/a", "/b"}) ASSERT_EQ(::mkdir(Lower(name).c_str(), 0755), 0);
  Mount();
  ASSERT_EQ(::renameat2(AT_FDCWD, Merged("/a").c_str(), AT_FDCWD, Merged("/b").c_str(), RENAME_EXCHANGE), 0);
  EXPECT_THAT(Told(Series()), ElementsAre("rename /a /.vrun-7-1", "rename /b /a", "rename /.vrun-7-1 /b", "meta /"));
}

TEST_F(CarryTest, ARenamedDirectoryWhoseOldNameIsNewAgain) {
  ASSERT_EQ(::mkdir(Lower("/a").c_str(), 0755), 0);
  Write(Lower("/a/f"), "x");
  Mount();
  ASSERT_EQ(::rename(Merged("/a").c_str(), Merged("/b").c_str()), 0);
  ASSERT_EQ(::mkdir(Merged("/a").c_str(), 0755), 0);
  Write(Merged("/a/g"), "y");
  EXPECT_THAT(Told(Series()), ElementsAre("rename /a /b", "mkdir /a", "put /a/g", "data 0+1!", "meta /a", "meta /"));
}

TEST_F(CarryTest, ARemovedTreeIsRemovedOneByOne) {
  ASSERT_EQ(::mkdir(Lower("/d").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(Lower("/d/e").c_str(), 0755), 0);
  Write(Lower("/d/e/f"), "x");
  Write(Lower("/d/g"), "x");
  Mount();
  ASSERT_TRUE(RemoveTree(Merged("/d")).has_value());
  EXPECT_THAT(Told(Series()), ElementsAre("remove /d/e/f", "remove /d/e", "remove /d/g", "remove /d", "meta /"));
}

TEST_F(CarryTest, HardLinksOfTheCommandAreLinks) {
  Write(Lower("/old"), "x");
  Mount();
  Write(Merged("/a"), "x");
  ASSERT_EQ(::link(Merged("/a").c_str(), Merged("/b").c_str()), 0);
  ASSERT_EQ(::link(Merged("/old").c_str(), Merged("/new").c_str()), 0);
  EXPECT_THAT(Told(Series()), ElementsAre("put /a", "data 0+1!", "link /b /a", "link /new /old", "meta /"));
}

TEST_F(CarryTest, LargeFilesComeInPiecesAndHolesDoNotCome) {
  Mount();
  Write(Merged("/large"), std::string(2'500'000, 'x'));
  auto fd = OpenFile(Merged("/sparse"), O_WRONLY | O_CREAT, 0644);
  ASSERT_TRUE(fd.has_value());
  ASSERT_TRUE(PwriteAll(fd->get(), "end of a gigabyte", 1u << 30).has_value());
  ASSERT_EQ(::ftruncate(fd->get(), int64_t{1} << 40), 0);
  fd->Reset();
  auto series = Series();
  EXPECT_THAT(Told(series), ElementsAre("put /large", "data 0+1048576", "data 1048576+1048576", "data 2097152+402848!",
                                        "put /sparse", "data 1073741824+4096", "data 1099511627776+0!", "meta /"));
  EXPECT_TRUE(series[4].put_file().sparse());
  EXPECT_EQ(series[4].put_file().size(), uint64_t{1} << 40);
  // In the middle of a file: restarts at its beginning.
  auto rest = Series(series[1].sequence());
  ASSERT_FALSE(rest.empty());
  EXPECT_EQ(rest[0].sequence(), series[0].sequence());
  rest = Series(series[3].sequence());
  ASSERT_FALSE(rest.empty());
  EXPECT_EQ(rest[0].SerializeAsString(), series[4].SerializeAsString());
}

TEST_F(CarryTest, AttributesOfTheLowerAreThoseOfWhatLiesApart) {
  options_.apart = base_ + "/apart";
  for (const std::string& top : {options_.lower, options_.apart}) {
    ASSERT_TRUE(MakeDirs(top + "/d", 0755));
    Write(top + "/marked", "text");
    const timespec times[2] = {{1'600'000'000, 1}, {1'600'000'000, 2}};
    for (const char* name : {"/marked", "/d"}) {
      ASSERT_EQ(::utimensat(AT_FDCWD, (top + name).c_str(), times, 0), 0);
      if (top == options_.apart) {
        ASSERT_EQ(::setxattr((top + name).c_str(), "user.note", "1", 1, 0), 0);
      }
    }
  }
  Mount();
  ASSERT_EQ(::chmod(Merged("/marked").c_str(), 0600), 0);
  ASSERT_EQ(::chmod(Merged("/d").c_str(), 0700), 0);  // copied up, then restored
  ASSERT_EQ(::chmod(Merged("/d").c_str(), 0755), 0);
  Unmount();
  bool marked = false;
  for (const WriteBack& m : Series()) {
    EXPECT_NE(m.path(), "/d") << "its attributes are what they were";
    if (m.path() != "/marked") continue;
    marked = true;
    ASSERT_TRUE(m.has_set_meta()) << "its content is the lower's";
    EXPECT_EQ(m.set_meta().meta().mode() & 07777, 0600u);
    EXPECT_EQ(m.set_meta().meta().xattrs_size(), 1);
  }
  EXPECT_TRUE(marked);
}

TEST_F(CarryTest, OwnersAreHomesAndForeignOnesNobodys) {
  options_.ids = 200'000;
  Write(options_.upper + "/mine", "x");
  Write(options_.upper + "/foreign", "x");
  ASSERT_EQ(::chown((options_.upper + "/mine").c_str(), 201'000, 200'100), 0);
  ASSERT_EQ(::chown((options_.upper + "/foreign").c_str(), 1000, 265'536), 0);
  // user::rw-, user:201000:r--, group::r--, mask::r--, other::r--
  unsigned char acl[] = {2, 0,  0,   0,   1,   0,   6,  0, 255, 255, 255, 255, 2,   0,  4,
                         0, 40, 17,  3,   0,   4,   0,  4, 0,   255, 255, 255, 255, 16, 0,
                         4, 0,  255, 255, 255, 255, 32, 0, 4,   0,   255, 255, 255, 255};
  ASSERT_EQ(::setxattr((options_.upper + "/mine").c_str(), "system.posix_acl_access", acl, sizeof acl, 0), 0);
  // A capability of the sandbox's root: revision 3 with its host uid.
  unsigned char capability[24] = {1, 0, 0, 3, 0, 4};
  capability[20] = 0x40, capability[21] = 0x0d, capability[22] = 3;
  ASSERT_EQ(::setxattr((options_.upper + "/mine").c_str(), "security.capability", capability, sizeof capability, 0), 0);
  auto series = Series();
  ASSERT_EQ(series.size(), 4u);
  EXPECT_EQ(series[0].path(), "/foreign");
  EXPECT_EQ(series[0].put_file().meta().uid(), 65534u);
  EXPECT_EQ(series[0].put_file().meta().gid(), 65534u);
  const v1::Meta& meta = series[2].put_file().meta();
  EXPECT_EQ(meta.uid(), 1000u);
  EXPECT_EQ(meta.gid(), 100u);
  ASSERT_EQ(meta.xattrs_size(), 2);
  EXPECT_EQ(meta.xattrs(0).name(), "security.capability");
  EXPECT_EQ(meta.xattrs(0).value().size(), 20u);
  EXPECT_EQ(meta.xattrs(0).value()[3], 2);
  EXPECT_EQ(meta.xattrs(1).name(), "system.posix_acl_access");
  EXPECT_EQ(meta.xattrs(1).value().substr(16, 4), std::string("\xe8\x03\x00\x00", 4));
}

TEST_F(CarryTest, TemporaryPlacesAreNotCarried) {
  Mount();
  for (const char* name : {"/tmp", "/run", "/dev", "/d", "/d/tmp"}) ASSERT_EQ(::mkdir(Merged(name).c_str(), 0755), 0);
  Write(Merged("/tmp/f"), "x");
  Write(Merged("/d/tmp/f"), "x");
  EXPECT_THAT(Told(Series()),
              ElementsAre("mkdir /d", "mkdir /d/tmp", "put /d/tmp/f", "data 0+1!", "meta /d/tmp", "meta /d", "meta /"));
}

TEST_F(CarryTest, AttributesOfTheOverlayAreNotTheUsers) {
  Mount();
  Write(Merged("/f"), "x");
  // The overlay uses trusted marks here, so these belong to the command, as left by rootless containers.
  ASSERT_EQ(::setxattr(Merged("/f").c_str(), "user.overlay.redirect", "/etc", 4, 0), 0);
  auto series = Series();
  ASSERT_EQ(series.size(), 3u);
  ASSERT_EQ(series[0].put_file().meta().xattrs_size(), 1);
  EXPECT_EQ(series[0].put_file().meta().xattrs(0).name(), "user.overlay.redirect");
}

TEST_F(CarryTest, MarksInTheUsersNamespace) {
  options_.user_xattrs = true;
  ASSERT_EQ(::mkdir(Lower("/d").c_str(), 0755), 0);
  Write(Lower("/d/f"), "x");
  Write(Lower("/gone"), "x");
  ASSERT_EQ(::mkdir((options_.upper + "/d").c_str(), 0755), 0);
  ASSERT_EQ(::setxattr((options_.upper + "/d").c_str(), "user.overlay.opaque", "y", 1, 0), 0);
  Write(options_.upper + "/gone", "");
  ASSERT_EQ(::setxattr((options_.upper + "/gone").c_str(), "user.overlay.whiteout", "y", 1, 0), 0);
  EXPECT_THAT(Told(Series()), ElementsAre("remove /d/f", "meta /d", "remove /gone"));
}

TEST_F(CarryTest, PathsLongerThanTheKernelsLimit) {
  int at = ::open(options_.upper.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::string name(200, 'n');
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(::mkdirat(at, name.c_str(), 0755), 0);
    int next = ::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ::close(at);
    at = next;
  }
  int fd = ::openat(at, "f", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  EXPECT_EQ(::write(fd, "deep", 4), 4);
  ::close(fd);
  EXPECT_EQ(::symlinkat("target", at, "s"), 0);
  ::close(at);
  auto told = Told(Series());
  EXPECT_EQ(told.size(), 63u);  // 30 created, 2 filled, 30 closed
  EXPECT_THAT(told, Contains("data 0+4!"));
}

TEST_F(CarryTest, MarksThatMakeNoSenseAreAnError) {
  ASSERT_EQ(::mkdir((options_.upper + "/d").c_str(), 0755), 0);
  ASSERT_EQ(::setxattr((options_.upper + "/d").c_str(), "trusted.overlay.redirect", "../x", 4, 0), 0);
  auto carry = Carry::Open(options_);
  ASSERT_FALSE(carry.has_value());
  EXPECT_EQ(carry.error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace vrun::node
