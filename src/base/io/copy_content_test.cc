// SPDX-License-Identifier: Apache-2.0
#include "base/io/copy_content.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"

namespace vrun {
namespace {

constexpr uint64_t kGiB = 1ull << 30;

UniqueFd Nameless() {
  UniqueFd fd(::open("/var/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  EXPECT_TRUE(fd) << "/var/tmp: no O_TMPFILE";
  return fd;
}

UniqueFd Memory() { return UniqueFd(::memfd_create("copy_content_test", MFD_CLOEXEC)); }

UniqueFd Sparse(uint64_t size, const std::vector<std::pair<uint64_t, std::string>>& parts) {
  UniqueFd fd = Nameless();
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  for (const auto& [offset, text] : parts) EXPECT_TRUE(PwriteAll(fd.get(), text, offset));
  return fd;
}

std::string Read(const UniqueFd& fd, uint64_t offset, size_t n) {
  std::string out(n, 'x');
  const auto got = PreadUpTo(fd.get(), out.data(), n, offset);
  EXPECT_TRUE(got);
  out.resize(got.value_or(0));
  return out;
}

struct stat Stat(const UniqueFd& fd) {
  struct stat st {};
  EXPECT_EQ(::fstat(fd.get(), &st), 0);
  return st;
}

// Reading 64 GiB takes a minute, and writing it fills the disk.
TEST(CopyContent, ASparseFileCostsItsData) {
  const std::string data(1 << 20, 'd');
  const UniqueFd from = Sparse(64 * kGiB, {{0, data}, {7 * kGiB + 5, "middle"}, {64 * kGiB - 3, "end"}});
  for (const bool memory : {false, true}) {
    const UniqueFd to = memory ? Memory() : Nameless();
    EXPECT_EQ(CopyContent(from.get(), to.get(), 64 * kGiB).value_or(0), 64 * kGiB);
    EXPECT_EQ(static_cast<uint64_t>(Stat(to).st_size), 64 * kGiB);
    EXPECT_LT(Stat(to).st_blocks * 512, 4 << 20);
    EXPECT_EQ(Read(to, 0, data.size() + 2), data + std::string(2, '\0'));
    EXPECT_EQ(Read(to, 7 * kGiB + 4, 8), std::string("\0middle\0", 8));
    EXPECT_EQ(Read(to, 64 * kGiB - 5, 9), std::string("\0\0end", 5));
  }
}

TEST(CopyContent, OnlyHoles) {
  const UniqueFd from = Sparse(64 * kGiB, {}), to = Nameless();
  ASSERT_TRUE(PwriteAll(to.get(), "old", 10));
  EXPECT_EQ(CopyContent(from.get(), to.get(), 64 * kGiB).value_or(0), 64 * kGiB);
  EXPECT_EQ(Read(to, 0, 20), std::string(20, '\0'));
  EXPECT_LT(Stat(to).st_blocks * 512, 1 << 20);
}

TEST(CopyContent, NothingOfTheOldContentStays) {
  const uint64_t size = 4 << 20;
  for (const bool larger : {false, true}) {
    const UniqueFd from = Sparse(size, {{1 << 20, "new"}, {3 << 20, "more"}});
    const UniqueFd to = Nameless();
    ASSERT_TRUE(PwriteAll(to.get(), std::string(larger ? 2 * size : size / 2, 'o'), 0));
    EXPECT_EQ(CopyContent(from.get(), to.get(), size).value_or(0), size);
    std::string wanted(size, '\0');
    wanted.replace(1 << 20, 3, "new").replace(3 << 20, 4, "more");
    EXPECT_TRUE(Read(to, 0, 3 * size) == wanted) << larger;
  }
}

TEST(CopyContent, TheBeginningOfALongerFileAndAShorterFile) {
  const UniqueFd from = Sparse(10, {{0, "0123456789"}});
  for (const bool memory : {false, true}) {
    const UniqueFd to = memory ? Memory() : Nameless();
    EXPECT_EQ(CopyContent(from.get(), to.get(), 4).value_or(0), 4u);
    EXPECT_EQ(Read(to, 0, 100), "0123");
    EXPECT_EQ(CopyContent(from.get(), to.get(), 1000).value_or(0), 10u);
    EXPECT_EQ(Read(to, 0, 100), "0123456789");
    EXPECT_EQ(CopyContent(from.get(), to.get(), 0).value_or(1), 0u);
    EXPECT_EQ(Stat(to).st_size, 0);
  }
}

TEST(CopyContent, ATargetThatCannotBeWritten) {
  const UniqueFd from = Sparse(10, {{0, "0123456789"}});
  const UniqueFd to(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(CopyContent(from.get(), to.get(), 10));
}

TEST(ReserveForContent, OnlyRoomForTheData) {
  const UniqueFd from = Sparse(1024 * kGiB, {{512 * kGiB, "data"}}), to = Nameless();
  EXPECT_TRUE(ReserveForContent(from.get(), to.get(), 1024 * kGiB));
  EXPECT_EQ(Stat(to).st_size, 0);
  EXPECT_LT(Stat(to).st_blocks * 512, 1 << 20);
}

TEST(ForEachData, StopsWithAnError) {
  const UniqueFd from = Sparse(4 << 20, {{0, "a"}, {2 << 20, "b"}});
  int visits = 0;
  const Status status = ForEachData(from.get(), 0, 4 << 20, [&](uint64_t offset, uint64_t /*length*/) -> Status {
    ++visits;
    EXPECT_EQ(offset, 0u);
    return Error(Code::kAborted, "enough");
  });
  EXPECT_FALSE(status);
  EXPECT_EQ(visits, 1);
}

}  // namespace
}  // namespace vrun
