// SPDX-License-Identifier: Apache-2.0
// A job writes to a file of home while the file changes at home.
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "vfs/testing/live_testing.h"

namespace vrun::vfs {
namespace {

constexpr int64_t kSoonMicros = 10'000'000;  // this used to take 30 s

class LiveWriteTest : public LiveViewFixture {
 protected:
  void SetUp() override {
    LiveViewFixture::SetUp();
    options_.journal = directory_.path() + "/journal";
  }
  void MountWithoutOpens() {
    Mount();
    ASSERT_TRUE(view_->stats().no_open);
  }
  void Follow() {
    const Status advanced = view_->Advance(Scan(), 0);
    ASSERT_TRUE(advanced) << advanced.error().message();
  }
  std::string Origin(const std::string& path) const { return origin_ + path; }
  // 0 or an errno.
  static int WriteAt(const UniqueFd& fd, const std::string& data, off_t offset) {
    const ssize_t n = ::pwrite(fd.get(), data.data(), data.size(), offset);
    return n == static_cast<ssize_t>(data.size()) ? 0 : errno;
  }
  // No file content is available here; home is asked for it while it changes.
  int WriteWhile(const UniqueFd& fd, const std::string& data, off_t offset, const std::function<void()>& change) {
    source_.ClearAsked();
    source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
      if (asked.what != 'f') return std::nullopt;
      return Error(Code::kAborted, "the file has changed");
    });
    int error = -1;
    std::thread writer([&] { error = WriteAt(fd, data, offset); });
    for (int i = 0; i < 1000 && source_.CountAsked('f') == 0; ++i) ::usleep(1'000);
    const int64_t began = MonotonicMicros();
    change();
    source_.FailWith(nullptr);
    Follow();
    writer.join();
    EXPECT_LT(MonotonicMicros() - began, kSoonMicros);
    return error;
  }
  UniqueFd Open(const std::string& path) const { return UniqueFd(::open(In(path).c_str(), O_RDWR | O_CLOEXEC)); }
};

TEST_F(LiveWriteTest, WhatHomeHasReplacedIsWrittenAsAFileWithoutAName) {
  Write("/f", "first, of some length");
  MountWithoutOpens();
  const UniqueFd fd = Open("/f");
  EXPECT_EQ(WriteWhile(fd, "X", 3, [&] { ASSERT_TRUE(WriteFileAtomic(Origin("/f"), "second", 0644)); }), 0);
  EXPECT_EQ(Content("/f"), "second");
}

TEST_F(LiveWriteTest, WhatHomeHasWrittenInPlaceOrGivenAnotherModeIsWritten) {
  Write("/f", "first, of some length");
  Write("/g", "the same content");
  MountWithoutOpens();
  const UniqueFd f = Open("/f"), g = Open("/g");
  EXPECT_EQ(WriteWhile(f, "X", 1,
                       [&] {
                         const UniqueFd at_home(::open(Origin("/f").c_str(), O_WRONLY | O_CLOEXEC));
                         ASSERT_EQ(WriteAt(at_home, "other", 0), 0);
                       }),
            0);
  EXPECT_EQ(Content("/f"), "oXher, of some length");
  EXPECT_EQ(WriteWhile(g, "X", 1, [&] { ASSERT_EQ(::chmod(Origin("/g").c_str(), 0751), 0); }), 0);
  EXPECT_EQ(Content("/g"), "tXe same content");
  struct stat st {};
  ASSERT_EQ(::stat(In("/g").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0751u);
}

TEST_F(LiveWriteTest, WhatIsGoneAtHomeIsAnErrorSoon) {
  Write("/f", "first, of some length");
  MountWithoutOpens();
  const UniqueFd fd = Open("/f");
  EXPECT_EQ(WriteWhile(fd, "X", 3, [&] { ASSERT_EQ(::unlink(Origin("/f").c_str()), 0); }), EIO);
}

// A file with parts of one version is not completed from another version.
TEST_F(LiveWriteTest, OfALargeFileThatIsPartlyOursAndReplacedTheRestIsAnErrorSoon) {
  const size_t size = 8 << 20;
  Write("/large", Noise(size, 5));
  MountWithoutOpens();
  const UniqueFd fd = Open("/large");
  ASSERT_EQ(WriteAt(fd, "ours", 1000), 0);
  EXPECT_EQ(
      WriteWhile(fd, "X", 5'000'000, [&] { ASSERT_TRUE(WriteFileAtomic(Origin("/large"), Noise(size, 6), 0644)); }),
      EIO);
  std::string got(4, 0);
  ASSERT_EQ(::pread(fd.get(), got.data(), got.size(), 1000), 4);
  EXPECT_EQ(got, "ours");
}

TEST_F(LiveWriteTest, OfALargeFileThatIsPartlyOursAndRemovedTheRestIsAnErrorSoon) {
  Write("/large", Noise(8 << 20, 5));
  MountWithoutOpens();
  const UniqueFd fd = Open("/large");
  ASSERT_EQ(WriteAt(fd, "ours", 1000), 0);
  EXPECT_EQ(WriteWhile(fd, "X", 5'000'000, [&] { ASSERT_EQ(::unlink(Origin("/large").c_str()), 0); }), EIO);
}

TEST_F(LiveWriteTest, OfALargeFileWithTwoNamesOfWhichHomeHasNoneAnyMoreTheRestIsAnErrorSoon) {
  const size_t size = 8 << 20;
  Write("/a", Noise(size, 5));
  ASSERT_EQ(::link(Origin("/a").c_str(), Origin("/b").c_str()), 0);
  MountWithoutOpens();
  ASSERT_EQ(::access(In("/b").c_str(), F_OK), 0);
  const UniqueFd fd = Open("/a");
  ASSERT_EQ(WriteAt(fd, "ours", 1000), 0);
  EXPECT_EQ(WriteWhile(fd, "X", 5'000'000,
                       [&] {
                         ASSERT_EQ(::unlink(Origin("/b").c_str()), 0);
                         ASSERT_TRUE(WriteFileAtomic(Origin("/a"), Noise(size, 6), 0644));
                       }),
            EIO);
}

TEST_F(LiveWriteTest, TheRestOfALargeFileComesUnderTheNameThatHomeHasLeft) {
  const size_t size = 8 << 20;
  const std::string content = Noise(size, 5);
  for (const bool first : {false, true}) {
    const std::string a = first ? "/1/a" : "/3/a", b = first ? "/2/b" : "/4/b";
    Write(a, content);
    Write(b, "");
    ASSERT_EQ(::unlink(Origin(b).c_str()), 0);
    ASSERT_EQ(::link(Origin(a).c_str(), Origin(b).c_str()), 0);
  }
  MountWithoutOpens();
  for (const bool first : {false, true}) {
    const std::string a = first ? "/1/a" : "/3/a", b = first ? "/2/b" : "/4/b";
    const UniqueFd fd = Open(a);
    ASSERT_EQ(::access(In(b).c_str(), F_OK), 0);
    ASSERT_EQ(WriteAt(fd, "ours", 1000), 0);
    const std::string moved = first ? "/1" : "/4";
    EXPECT_EQ(WriteWhile(fd, "X", 5'000'000,
                         [&] { ASSERT_EQ(::rename(Origin(moved).c_str(), Origin(moved + "moved").c_str()), 0); }),
              0);
    std::string want = content;
    want.replace(1000, 4, "ours").replace(5'000'000, 1, "X");
    EXPECT_TRUE(Content(first ? b : a) == want);
  }
}

TEST_F(LiveWriteTest, OfALargeFileOnlyWhatAWriteLeavesOfItsUnitsIsFetched) {
  const size_t size = 8 << 20;
  const std::string content = Noise(size, 5);
  Write("/large", content);
  MountWithoutOpens();
  {
    const UniqueFd fd = Open("/large");
    ASSERT_EQ(WriteAt(fd, std::string(1'000'000, 'x'), 1'000'000), 0);
  }
  EXPECT_LT(backend_->counters().bytes_fetched, 600'000u);
  std::string want = content;
  want.replace(1'000'000, 1'000'000, 1'000'000, 'x');
  EXPECT_TRUE(Content("/large") == want);
}

}  // namespace
}  // namespace vrun::vfs
