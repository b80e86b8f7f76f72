// SPDX-License-Identifier: Apache-2.0
// Views whose requests come through io_uring, and views that asked for it in vain.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>

#include "vfs/view_fixture.h"

namespace vrun::vfs {
namespace {

class FuseRingTest : public ViewTest {
 protected:
  void SetUp() override {
    if (!KernelHasIoUring()) GTEST_SKIP() << kNoIoUring;
    ViewTest::SetUp();
    options_.io_uring = true;
    options_.push = false;
  }
};

// No io_uring for this thread and those that it starts, as in a container.
void ForbidIoUring() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{sizeof filter / sizeof *filter, filter};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(FuseRingTest, WhereItIsForbiddenRequestsComeThroughTheDevice) {
  Write("/file", "content");
  std::thread forbidden([this] {
    ForbidIoUring();
    Mount(Scan());
  });
  forbidden.join();
  ASSERT_TRUE(view_);
  EXPECT_FALSE(view_->stats().io_uring);
  EXPECT_EQ(ReadFile(mount_ + "/file", 100).value_or("?"), "content");
  EXPECT_TRUE(view_->Handle());
}

TEST_F(FuseRingTest, SuchAViewIsNotHandedOver) {
  Mount(Scan());
  ASSERT_TRUE(view_->stats().io_uring);
  const auto handle = view_->Handle();
  ASSERT_FALSE(handle);
  EXPECT_EQ(handle.error().code(), Code::kUnsupported);
}

// More readers wait than a queue has entries: the others wait in the kernel, and all are answered.
TEST_F(FuseRingTest, MoreWaitForHomeThanThereAreEntries) {
  constexpr int kReaders = 150;
  for (int i = 0; i < kReaders; ++i) Write("/" + std::to_string(i), Noise(70'000, static_cast<uint32_t>(i)));
  Mount(Scan());
  for (int i = 0; i < kReaders; ++i) ASSERT_EQ(::access((mount_ + "/" + std::to_string(i)).c_str(), F_OK), 0);
  source_.Hold(true);
  std::atomic<int> right{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([this, i, &right] {
      const auto content = ReadFile(mount_ + "/" + std::to_string(i), 100'000);
      if (content && *content == Noise(70'000, static_cast<uint32_t>(i))) ++right;
    });
  }
  ASSERT_TRUE(source_.WaitHeld(20));
  source_.Hold(false);
  source_.Release();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, kReaders);
}

TEST_F(FuseRingTest, AKilledReaderLeavesWhileHomeIsAway) {
  Write("/file", Noise(1 << 20, 1));
  Mount(Scan());
  ASSERT_EQ(::access((mount_ + "/file").c_str(), F_OK), 0);
  source_.Hold(true);
  const std::string path = mount_ + "/file";
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    const int fd = ::open(path.c_str(), O_RDONLY);
    (void)!::read(fd, &byte, 1);
    ::_exit(0);
  }
  ASSERT_TRUE(source_.WaitHeld(1));
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);  // else the watchdog
  EXPECT_TRUE(WIFSIGNALED(status));
  source_.Hold(false);
  source_.Release();
  EXPECT_EQ(ReadFile(path, 2 << 20).value_or("?"), Noise(1 << 20, 1));
}

TEST_F(FuseRingTest, GoingAwayWhileReadersWaitDoesNotHang) {
  for (int i = 0; i < 4; ++i) Write("/" + std::to_string(i), Noise(70'000, 1));
  Mount(Scan());
  for (int i = 0; i < 4; ++i) ASSERT_EQ(::access((mount_ + "/" + std::to_string(i)).c_str(), F_OK), 0);
  source_.Hold(true);
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([this, i] { EXPECT_FALSE(ReadFile(mount_ + "/" + std::to_string(i), 100'000)); });
  }
  ASSERT_TRUE(source_.WaitHeld(4));
  view_.reset();
  for (std::thread& reader : readers) reader.join();
  source_.Hold(false);
  source_.Release();  // answers that nobody waits for
}

TEST_F(FuseRingTest, ManyThreadsLookAndReadAtOnce) {
  constexpr int kFiles = 400;
  for (int i = 0; i < kFiles; ++i) {
    Write("/d" + std::to_string(i % 8) + "/" + std::to_string(i), Noise(1000 + 37 * static_cast<size_t>(i), 7));
  }
  Mount(Scan());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t, &wrong] {
      for (int n = 0; n < kFiles; ++n) {
        const int i = (n * 31 + t * 57) % kFiles;
        const auto content = ReadFile(mount_ + "/d" + std::to_string(i % 8) + "/" + std::to_string(i), 100'000);
        if (!content || *content != Noise(1000 + 37 * static_cast<size_t>(i), 7)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(Requests()[FUSE_READ], 0u);
  EXPECT_EQ(view_->stats().malformed, 0u);
}

}  // namespace
}  // namespace vrun::vfs
