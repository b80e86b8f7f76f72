// SPDX-License-Identifier: Apache-2.0
#include "home/root/shared_mappings.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "home/root/root_files.h"
#include "home/root/root_tree.h"
#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

using std::chrono_literals::operator""ms;

// A file that this process has mapped, as np.memmap(mode="r+") does.
class Mapped {
 public:
  explicit Mapped(const std::string& path, int protection = PROT_READ | PROT_WRITE, int how = MAP_SHARED) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat st {};
    VRUN_CHECK(fd && ::fstat(fd.get(), &st) == 0);
    size_ = static_cast<size_t>(st.st_size);
    void* const at = ::mmap(nullptr, size_, protection, how, fd.get(), 0);
    VRUN_CHECK(at != MAP_FAILED);
    bytes_ = static_cast<char*>(at);
  }
  ~Mapped() { ::munmap(bytes_, size_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  char* bytes() const { return bytes_; }

 private:
  char* bytes_ = nullptr;
  size_t size_ = 0;
};

std::set<std::string> Paths(const std::vector<MappedFile>& files) {
  std::set<std::string> paths;
  for (const MappedFile& file : files) paths.insert(file.path);
  return paths;
}

TEST(MappedFilesTest, OfThisProcess) {
  TestDirectory root;
  root.Put("a b\nc", "12345678");
  root.Put("read", "1");
  root.Put("private", "1");
  const Mapped written(root / "a b\nc"), read(root / "read", PROT_READ), own(root / "private", PROT_WRITE, MAP_PRIVATE);
  const std::vector<MappedFile> files = MappedFilesOf("self");
  const std::set<std::string> paths = Paths(files);
  EXPECT_TRUE(paths.contains(root / "a b\nc"));
  EXPECT_FALSE(paths.contains(root / "read"));
  EXPECT_FALSE(paths.contains(root / "private"));
  for (const MappedFile& file : files) {
    struct stat st {};
    if (file.path != root / "a b\nc") continue;
    ASSERT_EQ(::stat(file.path.c_str(), &st), 0);
    EXPECT_EQ(file.ino, st.st_ino);
    if (::geteuid() != 0) continue;
    struct stat by_mapping {};
    EXPECT_EQ(::stat(("/proc/self/map_files/" + file.range).c_str(), &by_mapping), 0);
    EXPECT_EQ(by_mapping.st_ino, st.st_ino);
  }
  EXPECT_TRUE(MappedFilesOf("0").empty());
}

TEST(MappedFilesTest, InTheTextOfOlderKernels) {
  EXPECT_EQ(MappedFilesIn("55d0-55d1 r--p 00000000 fe:00 1 /usr/bin/cat\n"
                          "7f00-7f01 rw-s 00001000 fe:0a 22 /home/u/a b\n"
                          "7f00-7f01 -w-s 00000000 00:10 23                         /home/u/c\n"
                          "7f02-7f03 r--s 00000000 fe:00 24 /home/u/read\n"
                          "7f02-7f03 rw-p 00000000 fe:00 25 /home/u/private\n"
                          "7f02-7f03 rw-s 00000000 00:01 26 anon_inode:[perf_event]\n"
                          "7f04-7f05 rw-p 00000000 00:00 0 [stack]\n"),
            (std::vector<MappedFile>{{"/home/u/a b", makedev(0xfe, 0xa), 22, "7f00-7f01"},
                                     {"/home/u/c", makedev(0, 0x10), 23, "7f00-7f01"}}));
  for (const char* text : {"", "\n", " ", "/", " /", "a /", "rw-s /", " rw-s", "x rw-s 0 0 0 ", "x rw-s 0 0 0 /f",
                           "x rw-s 0 a:g 0 /f", "x rw-s 0 0:0 - /f"}) {
    EXPECT_TRUE(MappedFilesIn(text).empty()) << text;
  }
}

class SharedMappingsTest : public testing::Test {
 protected:
  void SetUp() override {
    struct statfs fs {};
    ASSERT_EQ(::statfs(root_.path().c_str(), &fs), 0);
    if (fs.f_type == 0x01021994) GTEST_SKIP() << "a tmpfs, whose times do not move: set TMPDIR";
    root_.Put("d/array", std::string(kBytes, '0'));
    root_.Put("d/other", "other");
    RootTree::Options options;
    options.root = root_.path();
    options.deny.root = root_.path();
    options.cookie_directory = state_.path() + "/watch";
    options.backend = WatchOptions::Backend::kInotify;
    options.mappings = mappings_ = std::make_shared<SharedMappings>(root_.path());
    tree_ = std::make_unique<RootTree>(&loop_, options, &table_);
    tree_->Start();
    files_ = std::make_unique<RootFiles>(*RootFiles::Open(root_.path(), mappings_));
  }

  tree::FileVersion Current(const std::string& path = "/d/array") {
    std::optional<tree::FileVersion> version;
    tree_->Current({}, [&](Result<tree::TreePtr> snapshot) {
      ASSERT_TRUE(snapshot) << snapshot.error().message();
      version = tree::Lookup(**snapshot, path)->version();
    });
    for (const int64_t end = MonotonicMicros() + 20'000'000; !version && MonotonicMicros() < end;) loop_.RunOnce(10);
    return version.value_or(tree::FileVersion{});
  }
  // Waits until home knows that the file is mapped (scans are rarer on a busy machine), then stores something.
  bool Known(const std::function<void()>& store, const std::string& path = "/d/array") {
    const tree::FileVersion before = Current(path);
    for (const int64_t end = MonotonicMicros() + 20'000'000; MonotonicMicros() < end;) {
      store();
      std::this_thread::sleep_for(10ms);
      if (Current(path) != before) return true;
    }
    return false;
  }
  // The content of this version, or the error.
  std::string Content(const tree::FileVersion& version, const std::string& path = "/d/array") {
    auto fd = files_->OpenPart(path, version, 0, 4096);
    if (!fd) return fd.error().message();
    char byte = '?';
    EXPECT_EQ(::pread(fd->get(), &byte, 1, 0), 1);
    const Status same = files_->Check(fd->get(), path, version);
    return same ? std::string(1, byte) : same.error().message();
  }

  // The content of the current version. A scan that ends meanwhile may make the file another: then there is a newer
  // version, never old content.
  std::string SettledContent() {
    std::string content;
    for (const int64_t end = MonotonicMicros() + 20'000'000; MonotonicMicros() < end;) {
      content = Content(Current());
      if (content != "/d/array: changed at home after the job's tree was taken") break;
    }
    return content;
  }

  static constexpr size_t kBytes = 64 << 10;
  TestDirectory root_, state_;
  EventLoop loop_;
  TreeTable table_;
  std::shared_ptr<SharedMappings> mappings_;
  std::unique_ptr<RootTree> tree_;
  std::unique_ptr<RootFiles> files_;
};

TEST_F(SharedMappingsTest, WhatIsStoredIsInTheNextTree) {
  const tree::FileVersion first = Current();
  const Mapped array(root_ / "d/array");
  ASSERT_TRUE(Known([&] { array.bytes()[0] = '1'; }));
  EXPECT_EQ(Content(Current()), "1");
  for (char value = 'a'; value < 'f'; ++value) {
    array.bytes()[0] = value;
    const tree::FileVersion now = Current();
    EXPECT_NE(now, first);
    EXPECT_EQ(Content(now), std::string(1, value));
    EXPECT_EQ(Current(), now) << "nothing was stored since";
  }
}

TEST_F(SharedMappingsTest, NoContentIsTakenForAVersionThatItIsNot) {
  const Mapped array(root_ / "d/array");
  array.bytes()[0] = 'a';
  const tree::FileVersion a = Current();
  EXPECT_EQ(Content(a), "a");
  array.bytes()[0] = 'b';  // without settling: a store to a dirty page, which moves no times
  EXPECT_EQ(Content(a), "/d/array: changed at home after the job's tree was taken");
  const tree::FileVersion b = Current();
  EXPECT_EQ(Content(b), "b");
  // A part that nobody has read: its page is still clean.
  array.bytes()[kBytes - 1] = 'c';
  EXPECT_NE(Current(), b);
}

// Between two scans: the page is dirty when it is read, and the next store moves no times.
TEST_F(SharedMappingsTest, WhatWasReadBeforeItWasKnownToBeMappedIsAnother) {
  const tree::FileVersion first = Current();
  const Mapped array(root_ / "d/array");
  array.bytes()[0] = 'a';
  struct stat st {};
  ASSERT_EQ(::stat((root_ / "d/array").c_str(), &st), 0);
  const tree::FileVersion unknown{st.st_dev, st.st_ino, ToNanos(st.st_ctim), static_cast<uint64_t>(st.st_size)};
  ASSERT_NE(unknown, first);
  EXPECT_EQ(Content(unknown), "a");
  array.bytes()[0] = 'b';
  std::this_thread::sleep_for(100ms);
  tree::FileVersion now = Current();
  EXPECT_NE(now, unknown);
  std::string content = Content(now);
  // Since Linux 6.13 the look itself may give the file one more time: then there is a newer version, never old content.
  if (content != "b") {
    EXPECT_EQ(content, "/d/array: changed at home after the job's tree was taken");
    now = Current();
    content = Content(now);
  }
  EXPECT_EQ(content, "b");
  ASSERT_EQ(::stat((root_ / "d/array").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0644u);
  EXPECT_EQ(Current(), now) << "once";
}

// The only sign is that the mapping is gone; no time has moved since the file was read.
TEST_F(SharedMappingsTest, WhatWasMappedBetweenTwoLooksAndReadIsAnother) {
  Current();
  struct stat st {};
  tree::FileVersion read;
  {
    const Mapped array(root_ / "d/array");
    array.bytes()[0] = 'a';
    ASSERT_EQ(::stat((root_ / "d/array").c_str(), &st), 0);
    read = {st.st_dev, st.st_ino, ToNanos(st.st_ctim), static_cast<uint64_t>(st.st_size)};
    EXPECT_EQ(Content(read), "a");
    array.bytes()[0] = 'b';
  }
  const tree::FileVersion now = Current();
  EXPECT_NE(now, read);
  EXPECT_EQ(Content(now), "b");
  EXPECT_EQ(Current(), now);
}

// The holder of a tree gets content of that time, or an error.
TEST_F(SharedMappingsTest, WhatIsStoredAfterTheTreeWasTakenIsNotOfIt) {
  const Mapped array(root_ / "d/array");
  array.bytes()[0] = 'a';
  std::this_thread::sleep_for(30ms);
  const tree::FileVersion taken = Current();
  array.bytes()[0] = 'b';
  EXPECT_EQ(Content(taken), "/d/array: changed at home after the job's tree was taken");
  EXPECT_EQ(Content(Current()), "b");
}

// As in a container that has the project at another path: the kernel names the file as the process does.
TEST_F(SharedMappingsTest, AFileIsFoundUnderWhateverNameItIsMapped) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  root_.Put("d/far/array", std::string(kBytes, '0'));
  const tree::FileVersion first = Current("/d/far/array");
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(go[1]);
    ::close(ready[0]);
    // The process has its own name for the directory, and ours does not exist there.
    const std::string elsewhere = state_.path() + "/elsewhere";
    ::mkdir(elsewhere.c_str(), 0700);
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(1);
    if (::mount((root_ / "d/far").c_str(), elsewhere.c_str(), nullptr, MS_BIND, nullptr) != 0) ::_exit(1);
    const Mapped array(elsewhere + "/array");
    char value;
    (void)!::write(ready[1], "r", 1);
    while (::read(go[0], &value, 1) == 1) {
      array.bytes()[0] = value;
      (void)!::write(ready[1], "w", 1);
    }
    ::_exit(0);
  }
  ::close(go[0]);
  ::close(ready[1]);
  char answer;
  EXPECT_EQ(::read(ready[0], &answer, 1), 1);
  const auto store = [&](char value) {
    EXPECT_EQ(::write(go[1], &value, 1), 1);
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
  };
  ASSERT_TRUE(Known([&] { store('1'); }, "/d/far/array"));
  tree::FileVersion before = Current("/d/far/array");
  EXPECT_NE(before, first);
  for (char value = 'a'; value < 'd'; ++value) {
    store(value);
    const tree::FileVersion now = Current("/d/far/array");
    EXPECT_NE(now, before);
    EXPECT_EQ(Content(now, "/d/far/array"), std::string(1, value));
    before = now;
  }
  ::close(go[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(ready[0]);
}

TEST_F(SharedMappingsTest, WhatIsNotMappedAnyMoreIsForgotten) {
  struct stat st {};
  ASSERT_EQ(::stat((root_ / "d/array").c_str(), &st), 0);
  {
    const Mapped array(root_ / "d/array");
    ASSERT_TRUE(Known([&] { array.bytes()[0] = '1'; }));
    array.bytes()[0] = 'a';
  }
  EXPECT_EQ(SettledContent(), "a");
  // Other programs of this machine map files of this file system too, so only this one is looked for. While it is
  // known, each of its versions is told.
  const auto forgotten = [&] {
    const UniqueFd fd(::open((root_ / "d/array").c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::futimens(fd.get(), nullptr), 0);
    tree::DirtySet dirty;
    mappings_->Look();
    mappings_->AddChanged(&dirty);
    return !dirty.inodes.contains(st.st_ino) && dirty.names.empty();
  };
  const int64_t end = MonotonicMicros() + 20'000'000;
  bool gone = forgotten();
  while (!gone && MonotonicMicros() < end) {
    std::this_thread::sleep_for(10ms);
    gone = forgotten();
  }
  EXPECT_TRUE(gone);
}

}  // namespace
}  // namespace vrun::home
