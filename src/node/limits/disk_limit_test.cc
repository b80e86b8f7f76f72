// SPDX-License-Identifier: Apache-2.0
#include "node/limits/disk_limit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"

namespace vrun::node {
namespace {

class DiskLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    ASSERT_TRUE(MakeDirs(directory_ + "/watched/below", 0755));
    ASSERT_TRUE(MakeDirs(directory_ + "/outside", 0755));
  }
  void TearDown() override { static_cast<void>(RemoveTree(directory_)); }
  void Write(const std::string& name, size_t bytes) const {
    auto file = OpenFile(directory_ + "/" + name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    ASSERT_TRUE(file);
    ASSERT_TRUE(WriteAll(file->get(), std::string(bytes, 'x')));
  }
  uint64_t Bytes(uint64_t enough = UINT64_MAX) const {
    const UniqueFd fd(::open((directory_ + "/watched").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return BytesBelow({fd.get()}, enough);
  }

  std::string directory_ = "/var/tmp/vrun-disk-XXXXXX";
};

constexpr size_t kMega = 1u << 20;

TEST_F(DiskLimitTest, CountsWhatIsBelowAndNothingElse) {
  const uint64_t empty = Bytes();
  Write("watched/a", kMega);
  Write("watched/below/b", kMega);
  Write("outside/c", 8 * kMega);
  ASSERT_EQ(::symlink((directory_ + "/outside").c_str(), (directory_ + "/watched/link").c_str()), 0);
  ASSERT_EQ(::link((directory_ + "/watched/a").c_str(), (directory_ + "/watched/below/again").c_str()), 0);
  // A hole is not on the disk.
  ASSERT_EQ(::truncate((directory_ + "/watched/below/b").c_str(), 1 << 30), 0);
  EXPECT_GE(Bytes(), empty + 2 * kMega);
  EXPECT_LT(Bytes(), empty + 3 * kMega);
  EXPECT_GT(Bytes(kMega), kMega);
}

TEST_F(DiskLimitTest, TellsOnceAndLeavesNoChild) {
  EventLoop loop;
  int told = 0;
  {
    DiskLimit limit(&loop);
    ASSERT_TRUE(limit.Start({directory_ + "/watched", directory_ + "/missing"}, 2 * kMega, [&] { ++told; }));
    Write("watched/a", kMega);
    for (int i = 0; i < 20; ++i) loop.RunOnce(50);
    EXPECT_EQ(told, 0);
    Write("watched/below/b", 2 * kMega);
    const int64_t end = MonotonicMicros() + 30'000'000;
    while (told == 0 && MonotonicMicros() < end) loop.RunOnce(50);
    EXPECT_EQ(told, 1);
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

TEST_F(DiskLimitTest, DirectoriesThatAreNestedVeryDeepCountAsTooMuch) {
  UniqueFd at(::open((directory_ + "/watched").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; i < 600; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), "d", 0755), 0);
    at.Reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(at);
  }
  EXPECT_EQ(Bytes(), UINT64_MAX);
  // From the inside out: the path is too long for one call.
  for (int i = 0; i < 600; ++i) {
    at.Reset(::openat(at.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::unlinkat(at.get(), "d", AT_REMOVEDIR), 0);
  }
}

}  // namespace
}  // namespace vrun::node
