// SPDX-License-Identifier: Apache-2.0
// What comes ahead of a job's reads in a live view, on a real mount: what a trace names is in the kernel, and what is
// not here makes nobody wait for what is.
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <chrono>
#include <thread>

#include "vfs/file_cache.h"
#include "vfs/live_testing.h"
#include "vfs/trace.h"
#include "vfs/traced_files.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kUnit = store::kUnitBytes;
constexpr uint64_t kPage = FileContent::kPageBytes;

class LivePushTest : public LiveViewFixture {
 protected:
  void SetUp() override {
    LiveViewFixture::SetUp();
    if (IsSkipped()) return;
    options_.journal = directory_.path() + "/journal";
    options_.read_ahead_kb = 16;
    Write("/lib/large", large_);
    ASSERT_EQ(::link((origin_ + "/lib/large").c_str(), (origin_ + "/lib/other").c_str()), 0);
    Write("/lib/libsmall.so.1", small_);
    Mount();
    ASSERT_TRUE(view_->stats().no_open);
  }
  // Of /lib/large: units 3 and 4, then 20.
  void SetTrace() {
    TraceTable table;
    table.id = Sha256("table");
    table.tree = view_->tree();
    table.files = {{"/lib/large", VersionOf(OpenFile(origin_ + "/lib/large", O_RDONLY)->get()), {}}};
    table.frames = {{{0, 3, 2}}, {{0, 20, 1}}};
    source_.SetTrace(table);
  }
  uint64_t Reads() const { return view_->stats().requests[FUSE_READ]; }
  uint64_t Fetched() const { return backend_->counters().units_fetched; }
  static bool Soon(const std::function<bool()>& condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }
  std::string At(const std::string& path, uint64_t offset, size_t n) const {
    const UniqueFd fd(::open(In(path).c_str(), O_RDONLY | O_CLOEXEC));
    std::string data(n, '\0');
    const ssize_t got = ::pread(fd.get(), data.data(), n, static_cast<off_t>(offset));
    data.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return data;
  }
  // As at first, but for what the view itself has.
  void ForgetPages(const std::string& path) const {
    const UniqueFd fd(::open(In(path).c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  const std::string large_ = Noise(3 << 20, 1), small_ = Noise(20 * kUnit + 5, 2);
};

TEST_F(LivePushTest, WhatATraceNamesIsReadWithoutARequest) {
  SetTrace();
  backend_->BeginRun({1, 1, "token"});
  ASSERT_TRUE(Soon([&] { return Fetched() == 3; }));
  EXPECT_EQ(view_->stats().pushed, 0u) << "the kernel does not know the file";
  EXPECT_EQ(::access(In("/lib/large").c_str(), R_OK), 0);
  ASSERT_TRUE(Soon([&] { return view_->stats().pushed == 2 && Reads() >= 2; }));
  const uint64_t reads = Reads();
  EXPECT_EQ(At("/lib/large", 3 * kUnit, 2 * kUnit), large_.substr(3 * kUnit, 2 * kUnit));
  EXPECT_EQ(At("/lib/large", 20 * kUnit + 100, 1000), large_.substr(20 * kUnit + 100, 1000));
  EXPECT_EQ(Reads(), reads);
  EXPECT_EQ(Fetched(), 3u);
  const auto recording = backend_->EndRun(1, 1);
  ASSERT_TRUE(recording && recording->files.size() == 1);
  EXPECT_EQ(recording->files[0].path, "/lib/large");
  EXPECT_EQ(recording->counts[static_cast<size_t>(Origin::kTrace)].used_units, 3u) << "for the next trace";
}

// The kernel is not told what the pages hold, it reads those that it does not have.
TEST_F(LivePushTest, WhatAJobHasWrittenThroughAMappingStays) {
  SetTrace();
  int pipes[2][2];
  for (auto& ends : pipes) ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t job = ::fork();
  if (job == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // where an assertion ends the test first
    const UniqueFd fd(::open(In("/lib/large").c_str(), O_RDWR | O_CLOEXEC));
    char* map = static_cast<char*>(::mmap(nullptr, large_.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    if (map == MAP_FAILED) ::_exit(1);
    map[3 * kUnit + 17] = 'w';  // of a unit that the trace has; the view hears of it later
    char byte = 0;
    if (::write(pipes[0][1], "x", 1) != 1 || ::read(pipes[1][0], &byte, 1) != 1) ::_exit(2);
    ::_exit(map[3 * kUnit + 17] == 'w' && map[3 * kUnit + 18] == large_[3 * kUnit + 18] ? 0 : 3);
  }
  char byte = 0;
  ASSERT_EQ(::read(pipes[0][0], &byte, 1), 1);
  backend_->BeginRun({1, 1, "token"});
  // Pushed when it comes, or once the kernel is told of the file: by its other name. (The write alone may fetch as
  // much.)
  ASSERT_TRUE(Soon([&] { return backend_->traced().active() && Fetched() >= 3; }));
  EXPECT_EQ(::access(In("/lib/other").c_str(), R_OK), 0);
  ASSERT_TRUE(Soon([&] { return view_->stats().pushed >= 2; }));
  ASSERT_EQ(::write(pipes[1][1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(job, &status, 0), job);
  EXPECT_EQ(status, 0);
  std::string want = large_.substr(3 * kUnit, 2 * kUnit);
  want[17] = 'w';
  EXPECT_EQ(At("/lib/large", 3 * kUnit, 2 * kUnit), want);
  for (auto& ends : pipes) ::close(ends[0]), ::close(ends[1]);
}

TEST_F(LivePushTest, APageThatIsHereDoesNotWaitForThoseAroundIt) {
  EXPECT_EQ(At("/lib/large", 0, 10), large_.substr(0, 10));
  ASSERT_EQ(Fetched(), 1u);
  ForgetPages("/lib/large");
  source_.Hold(true);  // whoever needs the next unit waits
  EXPECT_EQ(InChild([&] {
              const UniqueFd fd(::open(In("/lib/large").c_str(), O_RDONLY | O_CLOEXEC));
              const char* map =
                  static_cast<const char*>(::mmap(nullptr, large_.size(), PROT_READ, MAP_SHARED, fd.get(), 0));
              // The last page of it: the kernel asks for the next one as well.
              return map != MAP_FAILED && map[kUnit - kPage] == large_[kUnit - kPage] ? 0 : 1;
            }),
            0);
  source_.Hold(false);
  source_.Release();
  EXPECT_EQ(Fetched(), 1u);
  EXPECT_EQ(At("/lib/large", 0, large_.size()), large_) << "and nothing is missing afterwards";
}

TEST_F(LivePushTest, OfALibraryOnlyThatComesWhichIsRead) {
  EXPECT_EQ(At("/lib/libsmall.so.1", 0, 100), small_.substr(0, 100));
  // And one unit more, so that home holds the file.
  ASSERT_TRUE(Soon([&] { return Fetched() == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(Fetched(), 2u);
  EXPECT_EQ(Content("/lib/libsmall.so.1"), small_);
}

}  // namespace
}  // namespace vrun::vfs
