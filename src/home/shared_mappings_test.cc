// SPDX-License-Identifier: Apache-2.0
#include "home/shared_mappings.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "home/root_files.h"
#include "home/root_tree.h"
#include "home/test_directory.h"

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

TEST(WritableSharedFilesTest, OfThisProcess) {
  TestDirectory root;
  root.Put("a b\nc", "12345678");
  root.Put("read", "1");
  root.Put("private", "1");
  const Mapped written(root / "a b\nc"), read(root / "read", PROT_READ), own(root / "private", PROT_WRITE, MAP_PRIVATE);
  const std::set<std::string> files = WritableSharedFiles("self");
  EXPECT_TRUE(files.contains(root / "a b\nc"));
  EXPECT_FALSE(files.contains(root / "read"));
  EXPECT_FALSE(files.contains(root / "private"));
  EXPECT_EQ(WritableSharedFiles("0"), std::set<std::string>());
}

TEST(WritableSharedFilesTest, InTheTextOfOlderKernels) {
  EXPECT_EQ(WritableSharedFilesIn("55d0-55d1 r--p 00000000 fe:00 1 /usr/bin/cat\n"
                                  "7f00-7f01 rw-s 00001000 fe:00 22 /home/u/a b\n"
                                  "7f00-7f01 -w-s 00000000 fe:00 23                         /home/u/c\n"
                                  "7f02-7f03 r--s 00000000 fe:00 24 /home/u/read\n"
                                  "7f02-7f03 rw-p 00000000 fe:00 25 /home/u/private\n"
                                  "7f02-7f03 rw-s 00000000 00:01 26 anon_inode:[perf_event]\n"
                                  "7f04-7f05 rw-p 00000000 00:00 0 [stack]\n"),
            (std::set<std::string>{"/home/u/a b", "/home/u/c"}));
  for (const char* text : {"", "\n", " ", "/", " /", "a /", "rw-s /", " rw-s", "x rw-s 0 0 0 "}) {
    EXPECT_TRUE(WritableSharedFilesIn(text).empty()) << text;
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

  tree::FileVersion Current() {
    std::optional<tree::FileVersion> version;
    tree_->Current({}, [&](Result<tree::SnapshotPtr> snapshot) {
      ASSERT_TRUE(snapshot) << snapshot.error().message();
      version = tree::Lookup(**snapshot, "/d/array")->version();
    });
    for (const int64_t end = MonotonicMicros() + 20'000'000; !version && MonotonicMicros() < end;) loop_.RunOnce(10);
    return version.value_or(tree::FileVersion{});
  }
  // What is there of this version, or the error.
  std::string Content(const tree::FileVersion& version, size_t offset = 0) {
    auto fd = files_->OpenPart("/d/array", version, offset, 4096);
    if (!fd) return fd.error().message();
    char byte = '?';
    EXPECT_EQ(::pread(fd->get(), &byte, 1, static_cast<off_t>(offset)), 1);
    const Status same = files_->Check(fd->get(), "/d/array", version);
    return same ? std::string(1, byte) : same.error().message();
  }

  static constexpr size_t kBytes = 64 << 10;
  TestDirectory root_, state_;
  EventLoop loop_;
  SnapshotTable table_;
  std::shared_ptr<SharedMappings> mappings_;
  std::unique_ptr<RootTree> tree_;
  std::unique_ptr<RootFiles> files_;
};

TEST_F(SharedMappingsTest, WhatIsStoredIsInTheNextTree) {
  const tree::FileVersion first = Current();
  const Mapped array(root_ / "d/array");
  std::this_thread::sleep_for(1100ms);  // longer than between two looks
  EXPECT_EQ(Content(Current()), "0");
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
  array.bytes()[0] = 'b';  // would be to a dirty page, and move nothing
  EXPECT_EQ(Content(a), "/d/array: changed at home after the job's tree was taken");
  const tree::FileVersion b = Current();
  EXPECT_EQ(Content(b), "b");
  // Another part of it that nobody has read is another matter: its page is still to be written to the first time.
  array.bytes()[kBytes - 1] = 'c';
  EXPECT_NE(Current(), b);
}

TEST_F(SharedMappingsTest, WhatIsNotMappedAnyMoreIsForgotten) {
  {
    const Mapped array(root_ / "d/array");
    Current();
    array.bytes()[0] = 'a';
  }
  std::this_thread::sleep_for(1100ms);
  EXPECT_EQ(Content(Current()), "a");
  tree::DirtySet dirty;
  mappings_->Look();
  mappings_->AddChanged(1000ms, &dirty);
  EXPECT_TRUE(dirty.empty());
}

}  // namespace
}  // namespace vrun::home
