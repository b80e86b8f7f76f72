// SPDX-License-Identifier: Apache-2.0
// A closed file in a live view is published, with and without requests for opens. Content that home has may be dropped.
#include <linux/fuse.h>
#include <sys/mman.h>

#include <thread>

#include "live_stream_testing.h"

namespace vrun::test {
namespace {

class LiveClosesTest : public LiveStreamTest {};

TEST_P(LiveClosesTest, OpensAndClosesAreRequestsOnlyWhereTheKernelHasToAsk) {
  Write("/home", "of home's");
  Begin();
  const auto before = view_->stats().requests;
  for (int i = 0; i < 20; ++i) {
    Put("/f" + std::to_string(i), "x");
    EXPECT_EQ(Content("/home"), "of home's");
    EXPECT_EQ(Content("/f" + std::to_string(i)), "x");
  }
  const auto after = view_->stats().requests;
  for (const uint32_t opcode : {FUSE_OPEN, FUSE_FLUSH}) {
    EXPECT_EQ(after[opcode] > before[opcode], !GetParam()) << opcode;
  }
  EXPECT_EQ(after[FUSE_READ] - before[FUSE_READ], 21u);
}

TEST_P(LiveClosesTest, WhatIsClosedGoesHomeByItself) {
  Begin();
  const HomeThread pump(*at_home_, *view_->stream());
  for (const int flags : {O_TRUNC, O_APPEND, O_TRUNC}) {
    const std::string before = ReadFile(In("/f")).value_or("");
    Put("/f", "more", flags);
    const std::string want = flags == O_APPEND ? before + "more" : "more";
    while (AtHome("/f") != want) std::this_thread::yield();
  }
}

TEST_P(LiveClosesTest, WhatWasClosedIsAtHomeBeforeWhatFollowed) {
  Begin();
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    Put("/f" + n, "content");
    ASSERT_EQ(::mkdir(In("/d" + n).c_str(), 0755), 0);
  }
  for (int i = 0; i < 20; ++i) {
    while (InodeAtHome("/d" + std::to_string(i)) == 0) ASSERT_NE(at_home_->Take(stream()), 0u);
    EXPECT_EQ(AtHome("/f" + std::to_string(i)), "content");
  }
}

// Even if the descriptor was closed long before, and even if only the end of the process ends the mapping.
TEST_P(LiveClosesTest, AMappingIsPublishedWhenItEnds) {
  Begin();
  Put("/f", std::string(8192, 'a'));
  Put("/g", std::string(8192, 'a'));
  at_home_->TakeAll(stream());
  ASSERT_EQ(vfs::InChild([&] {
              for (const char* name : {"/f", "/g"}) {
                const int fd = ::open(In(name).c_str(), O_RDWR | O_CLOEXEC);
                auto* map = static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
                if (map == MAP_FAILED || ::close(fd) != 0) return 1;
                map[5000] = 'b';
                if (name[1] == 'f' && ::munmap(map, 8192) != 0) return 2;
              }
              return 0;
            }),
            0);
  // Without no-open the kernel sends the release itself, a moment later.
  const auto arrived = [&](const std::string& path) {
    at_home_->TakeAll(stream());
    return AtHome(path).size() == 8192 && AtHome(path)[5000] == 'b';
  };
  for (const char* name : {"/f", "/g"}) {
    while (!arrived(name)) std::this_thread::yield();
  }
}

TEST_P(LiveClosesTest, WhatIsTruncatedByItsNameGoesHome) {
  options_.publish_micros = 20'000;
  Begin();
  Put("/f", "content");
  Put("/g", "content");
  const HomeThread pump(*at_home_, *view_->stream());
  ASSERT_EQ(::truncate(In("/f").c_str(), 0), 0);
  ASSERT_EQ(::truncate(In("/g").c_str(), 3), 0);
  while (AtHome("/f") != "" || AtHome("/g") != "con") std::this_thread::yield();
}

// To handle a close, the server may have to make the kernel write pages that another process has mapped, and for that
// the kernel asks the server.
TEST_P(LiveClosesTest, AFileThatIsMappedElsewhereMayBeClosed) {
  Begin();
  Put("/f", std::string(1 << 20, 'a'));
  EXPECT_EQ(vfs::InChild([&] {
              const int fd = ::open(In("/f").c_str(), O_RDWR | O_CLOEXEC);
              auto* map = static_cast<char*>(::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
              if (map == MAP_FAILED) return 1;
              std::thread names([&] {
                for (int i = 0; i < 300; ++i) {
                  (void)::mkdir(In("/d" + std::to_string(i)).c_str(), 0755);
                  (void)::mkdir(In("/e" + std::to_string(i)).c_str(), 0755);
                }
              });
              for (int i = 0; i < 300; ++i) {
                for (int page = 0; page < 256; ++page) map[page * 4096] = static_cast<char>('b' + i % 20);
                ::close(::open(In("/f").c_str(), O_WRONLY | O_CLOEXEC));
              }
              names.join();
              return ::access(In("/e299").c_str(), F_OK) == 0 ? 0 : 2;
            }),
            0);
  EXPECT_EQ(Content("/f")[4096], 'b' + 299 % 20);
}

// The close does not wait for the rest of the file, which is still at home. The end of the job does.
TEST_P(LiveClosesTest, OneByteOfALargeFileIsPublishedWithTheRest) {
  const std::string large = vfs::Noise(6 << 20, 3);
  Write("/large", large);
  Begin();
  {
    const UniqueFd fd(::open(In("/large").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), "X", 1, 3'000'000), 1);
  }
  view_->PublishAll();
  at_home_->TakeAll(stream());
  std::string want = large;
  want[3'000'000] = 'X';
  EXPECT_TRUE(AtHome("/large") == want);
  EXPECT_TRUE(Content("/large") == want);
}

// A resting view does this with content that home has.
TEST_P(LiveClosesTest, WhatHomeHasLeavesTheDiskAndIsReadFromThere) {
  Mount();
  ASSERT_TRUE(view_);
  at_home_ = std::make_unique<HomeEnd>(origin_, directory_.path() + "/apply");
  const std::string one = vfs::Noise(300'000, 1), two = vfs::Noise(200'000, 2);
  Put("/one", one);
  Put("/two", two);
  at_home_->TakeAll(stream());
  EXPECT_EQ(view_->DropWritten(0), 0u);  // no tree from home has them yet
  ASSERT_TRUE(view_->Advance(Scan(), stream().acknowledged()));
  Put("/ours", "not at home");
  struct stat before {};
  ASSERT_EQ(::stat(In("/one").c_str(), &before), 0);
  // Without no-open the kernel releases a file at some time after the close.
  uint64_t dropped = 0;
  while (dropped < 500'000) {
    dropped += view_->DropWritten(0);
    std::this_thread::yield();
  }
  EXPECT_EQ(view_->DropWritten(0), 0u);
  const auto uncached = [this](const std::string& path) {
    const UniqueFd fd(::open(In(path).c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    return Content(path);
  };
  EXPECT_TRUE(uncached("/one") == one);
  EXPECT_EQ(uncached("/ours"), "not at home");
  struct stat after {};
  ASSERT_EQ(::stat(In("/one").c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  // The file can still be written.
  Put("/two", "more", O_APPEND);
  at_home_->TakeAll(stream());
  EXPECT_TRUE(ReadFile(origin_ + "/two").value_or("") == two + "more");
  EXPECT_TRUE(Content("/two") == two + "more");
}

// Reads an open file to its end without asking for its size.
std::string ReadToTheEnd(int fd) {
  std::string all(1 << 20, 0);
  size_t got = 0;
  for (;;) {
    const ssize_t n = ::read(fd, all.data() + got, all.size() - got);
    if (n < 0) return std::string("error: ") + std::strerror(errno);
    if (n == 0) return all.substr(0, got);
    got += static_cast<size_t>(n);
  }
}

// The file is opened and the kernel knows its size, but home replaces it before it is read: the read gives one of the
// two, whole. In the second round the view learns of it during the read.
TEST_P(LiveClosesTest, WhatHomeReplacesBeforeItIsReadIsNeverAMixture) {
  const std::vector<std::pair<size_t, size_t>> sizes = {
      {100, 50},   {50, 100},         {9000, 5000},      {5000, 9000}, {9000, 100},
      {100, 9000}, {300'000, 20'000}, {20'000, 300'000}, {700'000, 3}, {20'000, 20'000}};
  const auto path = [](size_t i, bool waits) { return "/f" + std::to_string(i) + (waits ? "w" : ""); };
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (const bool waits : {false, true}) Write(path(i, waits), vfs::Noise(sizes[i].first, 1));
  }
  Mount();
  ASSERT_TRUE(view_);
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (const bool waits : {false, true}) {
      SCOPED_TRACE(path(i, waits) + ": " + std::to_string(sizes[i].first) + " to " + std::to_string(sizes[i].second));
      const std::string before = vfs::Noise(sizes[i].first, 1), after = vfs::Noise(sizes[i].second, 2);
      const UniqueFd fd(::open(In(path(i, waits)).c_str(), O_RDONLY | O_CLOEXEC));
      struct stat st {};
      ASSERT_EQ(::fstat(fd.get(), &st), 0);
      std::string read;
      std::thread reader;
      if (waits) {
        const size_t asked = source_.CountAsked('f');
        source_.FailWith([](const vfs::FakeSource::Asked& a) -> std::optional<Error> {
          if (a.what != 'f') return std::nullopt;
          return Error(Code::kAborted, "the file has changed");
        });
        reader = std::thread([&] { read = ReadToTheEnd(fd.get()); });
        for (int tries = 0; tries < 100 && source_.CountAsked('f') == asked; ++tries) ::usleep(1'000);
      }
      Write(path(i, waits), after);
      source_.FailWith(nullptr);
      const Status advanced = view_->Advance(Scan(), 0);
      ASSERT_TRUE(advanced) << advanced.error().message();
      if (waits) {
        reader.join();
      } else {
        read = ReadToTheEnd(fd.get());
      }
      EXPECT_TRUE(read == before || read == after) << read.size() << " bytes, " << read.substr(0, 40);
      EXPECT_TRUE(Content(path(i, waits)) == after);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, LiveClosesTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "NoOpen" : "Opens"; });

}  // namespace
}  // namespace vrun::test
