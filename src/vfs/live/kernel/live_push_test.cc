// SPDX-License-Identifier: Apache-2.0
// Content pushed ahead of a job's reads in a live view, on a real mount: traced content is in the kernel, and a reader
// of content that is here does not wait for missing content.
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "vfs/content/file_cache.h"
#include "vfs/push/warmer.h"
#include "vfs/testing/live_testing.h"
#include "vfs/trace/trace_table.h"
#include "vfs/trace/traced_files.h"

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
  // A trace of /lib/large under `path`: units 3 and 4, then 20.
  void SetTrace(const std::string& path = "/lib/large") {
    TraceTable table;
    table.id = Sha256("table");
    table.tree = view_->tree();
    table.files = {{path, VersionOf(OpenFile(origin_ + "/lib/large", O_RDONLY)->get()), {}}};
    table.frames = {{{0, 3, 2}}, {{0, 20, 1}}};
    source_.SetTrace(table);
  }
  uint64_t Lookups() const { return view_->stats().requests[FUSE_LOOKUP]; }
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
  static std::vector<std::string> Descendants(pid_t of) {
    std::vector<std::string> all;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(of) + "/task")) {
      std::istringstream children(*ReadFile(task.path().string() + "/children"));
      for (std::string pid; children >> pid;) {
        for (std::string& below : Descendants(std::stoi(pid))) all.push_back(std::move(below));
        all.push_back(pid);
      }
    }
    return all;
  }
  // Drops the kernel's pages, so that only the view's caches remain.
  void ForgetPages(const std::string& path) const {
    const UniqueFd fd(::open(In(path).c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  const std::string large_ = Noise(3 << 20, 1), small_ = Noise(20 * kUnit + 5, 2);
};

TEST_F(LivePushTest, WhatATraceNamesIsReadWithoutARequest) {
  SetTrace();
  backend_->BeginRun({1, 1, "token"});
  ASSERT_TRUE(Soon([&] { return Fetched() == 3 && view_->stats().pushed >= 2 && Reads() >= 2; }));
  const uint64_t reads = Reads(), lookups = Lookups();
  // The kernel requests the file's name once more: opening by handle makes it revalidate the name.
  EXPECT_EQ(::access(In("/lib").c_str(), R_OK), 0);
  EXPECT_EQ(Lookups(), lookups) << "nobody but us has asked for the name before";
  EXPECT_EQ(At("/lib/large", 3 * kUnit, 2 * kUnit), large_.substr(3 * kUnit, 2 * kUnit));
  EXPECT_EQ(At("/lib/large", 20 * kUnit + 100, 1000), large_.substr(20 * kUnit + 100, 1000));
  EXPECT_EQ(Reads(), reads);
  EXPECT_EQ(Fetched(), 3u);
  const auto recording = backend_->EndRun(1, 1);
  ASSERT_TRUE(recording && recording->files.size() == 1);
  EXPECT_EQ(recording->files[0].path, "/lib/large");
  EXPECT_EQ(recording->counts[static_cast<size_t>(Origin::kTrace)].used_units, 3u) << "for the next trace";
}

TEST_F(LivePushTest, AViewBeginsWithWhatTracesOfRunsName) {
  SetTrace();
  view_.reset();
  backend_->BeginRun({1, 1, "token"});
  ASSERT_TRUE(Soon([&] { return Fetched() == 3; }));
  Mount();
  EXPECT_TRUE(Soon([&] { return view_->stats().pushed >= 2 && Reads() >= 2; }));
}

TEST_F(LivePushTest, NothingIsReadBehindASymlink) {
  ASSERT_EQ(::symlink("lib", (origin_ + "/link").c_str()), 0);
  Mount();
  SetTrace("/link/large");
  const uint64_t lookups = Lookups();
  backend_->BeginRun({1, 1, "token"});
  ASSERT_TRUE(Soon([&] { return Fetched() == 3 && Lookups() > lookups; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(Lookups(), lookups + 1) << "the symlink";
  EXPECT_EQ(Reads(), 0u);
  EXPECT_EQ(At("/lib/large", 3 * kUnit, 2 * kUnit), large_.substr(3 * kUnit, 2 * kUnit));
}

TEST_F(LivePushTest, WithoutTheProcessThatAsksTheViewWorks) {
  for (const std::string& pid : Descendants(::getpid())) ::kill(std::stoi(pid), SIGKILL);
  SetTrace();
  backend_->BeginRun({1, 1, "token"});
  ASSERT_TRUE(Soon([&] { return Fetched() == 3; }));
  EXPECT_EQ(At("/lib/large", 3 * kUnit, 2 * kUnit), large_.substr(3 * kUnit, 2 * kUnit));
  ASSERT_TRUE(Soon([&] { return view_->stats().pushed >= 2; }));
  Mount();
  EXPECT_EQ(Content("/lib/large"), large_);
}

TEST(NamesToLookUpTest, WhatIsAskedForWithAFileComesBeforeIt) {
  const auto names = [](std::vector<std::string> paths) { return NamesToLookUp(paths); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"/lib/libz.so.1.2.13", "/lib/ld.so"}), (Names{"lib/libz.so.1", "lib/libz.so.1.2.13", "lib/ld.so"}));
  EXPECT_EQ(names({"/lib/libz.so.1"}), (Names{"lib/libz.so.1"})) << "it is its soname";
  EXPECT_EQ(names({"/a.so.1/x"}), (Names{"a.so.1/x"})) << "a directory is no library";
  EXPECT_EQ(names({"/p/__pycache__/m.cpython-311.pyc"}), (Names{"p/m.py", "p/__pycache__/m.cpython-311.pyc"}));
  EXPECT_EQ(names({"/p/__pycache__/m.cpython-311.opt-1.pyc", "/__pycache__/n.pyc"}),
            (Names{"p/m.py", "p/__pycache__/m.cpython-311.opt-1.pyc", "n.py", "__pycache__/n.pyc"}));
  EXPECT_EQ(names({"/p/m.pyc", "/x__pycache__", "/p/__pycache__/m"}),
            (Names{"p/m.pyc", "x__pycache__", "p/__pycache__/m"}));
  EXPECT_EQ(names({"", "/", "//a//b", std::string("/a\0b", 4)}), (Names{"a//b"}));
}

// Pages are never overwritten in the kernel; it reads those that it lacks.
TEST_F(LivePushTest, WhatAJobHasWrittenThroughAMappingStays) {
  SetTrace();
  int pipes[2][2];
  for (auto& ends : pipes) ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t job = ::fork();
  if (job == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // in case an assertion ends the test first
    const UniqueFd fd(::open(In("/lib/large").c_str(), O_RDWR | O_CLOEXEC));
    char* map = static_cast<char*>(::mmap(nullptr, large_.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    if (map == MAP_FAILED) ::_exit(1);
    map[3 * kUnit + 17] = 'w';  // in a traced unit; the view hears of the write later
    char byte = 0;
    if (::write(pipes[0][1], "x", 1) != 1 || ::read(pipes[1][0], &byte, 1) != 1) ::_exit(2);
    ::_exit(map[3 * kUnit + 17] == 'w' && map[3 * kUnit + 18] == large_[3 * kUnit + 18] ? 0 : 3);
  }
  char byte = 0;
  ASSERT_EQ(::read(pipes[0][0], &byte, 1), 1);
  backend_->BeginRun({1, 1, "token"});
  // Pushed on arrival, or once the kernel is told of the file under its other name. (The write alone may fetch as
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
  source_.Hold(true);  // a reader of the next unit waits
  EXPECT_EQ(InChild([&] {
              const UniqueFd fd(::open(In("/lib/large").c_str(), O_RDONLY | O_CLOEXEC));
              const char* map =
                  static_cast<const char*>(::mmap(nullptr, large_.size(), PROT_READ, MAP_SHARED, fd.get(), 0));
              // Its last page: the kernel requests the next page as well.
              return map != MAP_FAILED && map[kUnit - kPage] == large_[kUnit - kPage] ? 0 : 1;
            }),
            0);
  source_.Hold(false);
  source_.Release();
  EXPECT_EQ(Fetched(), 1u);
  EXPECT_EQ(At("/lib/large", 0, large_.size()), large_) << "and nothing is missing afterwards";
}

TEST_F(LivePushTest, APageThatATraceBringsDoesNotWaitForThoseAroundIt) {
  EXPECT_EQ(::access(In("/lib/large").c_str(), R_OK), 0);
  SetTrace();
  source_.Hold(true);
  backend_->BeginRun({1, 1, "token"});
  ASSERT_TRUE(source_.WaitHeld(1));  // the trace
  source_.Release(1);
  ASSERT_TRUE(Soon([&] { return source_.CountAsked('p') > 0; }));
  std::thread job([&] {
    EXPECT_EQ(InChild([&] {
                const UniqueFd fd(::open(In("/lib/large").c_str(), O_RDONLY | O_CLOEXEC));
                const char* map =
                    static_cast<const char*>(::mmap(nullptr, large_.size(), PROT_READ, MAP_SHARED, fd.get(), 0));
                // The last page that is here: the kernel requests the next page as well.
                return map != MAP_FAILED && map[5 * kUnit - kPage] == large_[5 * kUnit - kPage] ? 0 : 1;
              }),
              0);
  });
  EXPECT_TRUE(Soon([&] { return Reads() >= 2; })) << "with those around it, and alone";
  EXPECT_EQ(source_.CountAsked('f'), 0u);
  source_.Hold(false);
  source_.Release();
  job.join();
  EXPECT_EQ(At("/lib/large", 0, large_.size()), large_);
}

TEST_F(LivePushTest, OfALibraryOnlyThatComesWhichIsRead) {
  EXPECT_EQ(At("/lib/libsmall.so.1", 0, 100), small_.substr(0, 100));
  ASSERT_TRUE(Soon([&] { return source_.CountAsked('b') == 1; })) << "home holds the rest of it";
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(Fetched(), 1u);
  EXPECT_EQ(Content("/lib/libsmall.so.1"), small_);
}

TEST_F(LivePushTest, HomeHoldsALargeFileThatSomebodyHasBegunToRead) {
  EXPECT_EQ(At("/lib/large", 1 << 20, 100), large_.substr(1 << 20, 100));
  ASSERT_TRUE(Soon([&] { return source_.CountAsked('b') == 1; }));
  EXPECT_EQ(At("/lib/large", 0, large_.size()), large_);
  EXPECT_EQ(source_.CountAsked('b'), 1u);
}

}  // namespace
}  // namespace vrun::vfs
