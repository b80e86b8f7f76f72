// SPDX-License-Identifier: Apache-2.0
// Writes in a live view reach home: a real mount, the real stream, the real Applier. The connection is cut and home
// dies at the worst moments.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/stat.h>

#include <chrono>
#include <random>

#include "live_stream_testing.h"
#include "vfs/live/tree/live_tree.h"

namespace vrun::test {
namespace {

constexpr uint64_t kLast = vfs::LiveStream::kLastPlace;

// The two sides have different clocks.
Description WithoutTimes(Description all) {
  for (auto& [path, described] : all) described.mtime_ns = 0;
  return all;
}

TEST_P(LiveStreamTest, HomeIsAlwaysAsTheJobOnceHadIt) {
  const char* first = std::getenv("VRUN_LIVE_SEED");
  const unsigned base = first != nullptr ? static_cast<unsigned>(std::atoi(first)) : 1;
  RandomWork(origin_, 77).BuildTree(25);
  for (unsigned seed = base; seed < base + 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_TRUE(RemoveTree(home_) && RemoveTree(directory_.path() + "/apply"));
    ASSERT_NO_FATAL_FAILURE(Begin());
    RandomWork work(mount_, seed);
    std::mt19937 random(seed);
    std::map<uint64_t, Description> was;  // by the last operation that led to it
    uint64_t dropped = 0;
    int compared = 0;
    for (int step = 0; step < 250; ++step) {
      SCOPED_TRACE("step " + std::to_string(step) + ": " + (work.log().empty() ? "" : work.log().back()));
      work.Step();
      if (stream().stats().dropped != dropped) was.clear();  // those included operations that home will never get
      dropped = stream().stats().dropped;
      was[stream().stats().last] = DescribeWritten(mount_);
      for (unsigned n = random() % 8; n > 0; --n) {
        const uint64_t sequence = at_home_->Take(stream());
        if (random() % 3 == 0) at_home_->Acknowledge(stream());
        const bool done = sequence != 0 && (sequence & kLast) == kLast && at_home_->sequence() == sequence;
        if (done && was.contains(sequence >> 24) && random() % 3 == 0) {
          ++compared;
          const std::string differs = Differences(was[sequence >> 24], DescribeWritten(home_), {});
          ASSERT_EQ(differs, "") << "after operation " << (sequence >> 24);
        }
        const auto accident = random() % 40;
        if (accident == 0) at_home_->Open();
        if (accident <= 1) at_home_->Resume(stream());
      }
    }
    at_home_->TakeAll(stream());
    EXPECT_EQ(Differences(DescribeWritten(mount_), DescribeWritten(home_), {}), "");
    EXPECT_GT(compared, 20);
    for (const std::string& notice : at_home_->notices) ADD_FAILURE() << notice;
  }
}

TEST_P(LiveStreamTest, WhatHomeAcknowledgesAfterItsTreeIsKnownAgain) {
  Mount();
  ASSERT_TRUE(view_);
  at_home_ = std::make_unique<HomeEnd>(origin_, directory_.path() + "/apply");
  Put("/f", "ours");
  const auto inode = [this] {
    struct stat st {};
    return ::lstat(In("/f").c_str(), &st) == 0 ? st.st_ino : 0;
  };
  const ino_t before = inode();
  while (at_home_->Take(stream()) != 0) {
  }
  ASSERT_TRUE(view_->Advance(Scan(), stream().stats().last));
  EXPECT_EQ(inode(), before);
  at_home_->Acknowledge(stream());
  ASSERT_TRUE(view_->Advance(Scan(), stream().acknowledged()));
  EXPECT_EQ(inode(), before);
  EXPECT_EQ(Content("/f"), "ours");
}

// Meanwhile home's trees are merged into the view. They contain some of the job's own writes but not others.
TEST_P(LiveStreamTest, OwnChangesThatComeBackChangeNothing) {
  const char* first = std::getenv("VRUN_LIVE_SEED");
  const unsigned base = first != nullptr ? static_cast<unsigned>(std::atoi(first)) : 1;
  const std::string native = directory_.path() + "/native";
  RandomWork(origin_, 77).BuildTree(25);
  for (unsigned seed = base; seed < base + 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    at_home_.reset();  // with its unfinished operations
    ASSERT_TRUE(RemoveTree(native) && RemoveTree(directory_.path() + "/apply"));
    ASSERT_EQ(::system(("cp -a '" + origin_ + "' '" + native + "'").c_str()), 0);
    Mount();
    ASSERT_TRUE(view_);
    at_home_ = std::make_unique<HomeEnd>(origin_, directory_.path() + "/apply");
    int trees = 0;
    const auto advance = [&](uint64_t included) {
      const Status advanced = view_->Advance(Scan(), included);
      EXPECT_TRUE(advanced) << advanced.error().message();
      ++trees;
    };
    {
      const HomeThread pump(*at_home_, stream(), advance);
      RandomWork here(mount_, seed), there(native, seed);
      for (int step = 0; step < 250; ++step) {
        here.Step();
        there.Step();
        ASSERT_EQ(here.log().empty() ? "" : here.log().back(), there.log().empty() ? "" : there.log().back())
            << step << "; now:\n"
            << Differences(WithoutTimes(Describe(native)), WithoutTimes(Describe(mount_)), {});
      }
    }
    EXPECT_GT(trees, 0);
    at_home_->TakeAll(stream());
    advance(stream().acknowledged());
    const Description want = DescribeWritten(mount_);
    EXPECT_EQ(Differences(want, DescribeWritten(origin_), {}), "");
    EXPECT_EQ(Differences(WithoutTimes(DescribeWritten(native)), WithoutTimes(want), {}), "");
  }
}

// The same steps one after the other, so that a failure shows where it happens, and every time.
TEST_P(LiveStreamTest, EachTreeWithOwnChangesChangesNothing) {
  const char* first = std::getenv("VRUN_LIVE_SEED");
  const unsigned base = first != nullptr ? static_cast<unsigned>(std::atoi(first)) : 1;
  const char* many = std::getenv("VRUN_LIVE_SEEDS");
  const unsigned seeds = many != nullptr ? static_cast<unsigned>(std::atoi(many)) : 3;
  const std::string native = directory_.path() + "/native";
  RandomWork(origin_, 77).BuildTree(25);
  for (unsigned seed = base; seed < base + seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    at_home_.reset();  // with its unfinished operations
    ASSERT_TRUE(RemoveTree(native) && RemoveTree(directory_.path() + "/apply"));
    ASSERT_EQ(::system(("cp -a '" + origin_ + "' '" + native + "'").c_str()), 0);
    Mount();
    ASSERT_TRUE(view_);
    at_home_ = std::make_unique<HomeEnd>(origin_, directory_.path() + "/apply");
    RandomWork here(mount_, seed), there(native, seed);
    std::mt19937 random(seed);
    const auto advance = [&] {
      const Status advanced = view_->Advance(Scan(), at_home_->sequence() >> vfs::LiveStream::kPlaceBits);
      ASSERT_TRUE(advanced) << advanced.error().message();
    };
    bool whole = true;  // no operation is half done at home
    ASSERT_EQ(Differences(WithoutTimes(Describe(native)), WithoutTimes(Describe(mount_)), {}), "");
    for (int step = 0; step < 250; ++step) {
      here.Step();
      there.Step();
      ASSERT_EQ(here.log().empty() ? "" : here.log().back(), there.log().empty() ? "" : there.log().back()) << step;
      for (auto n = random() % 6; n > 0; --n) {
        if (const uint64_t taken = at_home_->Take(stream())) whole = (taken & kLast) == kLast;
        if (random() % 4 == 0) at_home_->Acknowledge(stream());
        if (whole && random() % 2 == 0) {
          ASSERT_NO_FATAL_FAILURE(advance());
        }
      }
      // Opening a file of home that the job has changed waits for both.
      at_home_->Acknowledge(stream());
      ASSERT_NO_FATAL_FAILURE(advance());
      if (!whole) continue;  // a temporary name of the operation in progress is visible
      const std::string differs = Differences(WithoutTimes(Describe(native)), WithoutTimes(Describe(mount_)), {});
      if (differs.empty()) continue;
      std::string log;
      for (size_t i = here.log().size() - std::min<size_t>(here.log().size(), 25); i < here.log().size(); ++i) {
        log += here.log()[i] + "\n";
      }
      FAIL() << "after step " << step << ", acknowledged " << stream().acknowledged() << " of " << stream().stats().last
             << ":\n"
             << differs << "work:\n"
             << log;
    }
  }
}

TEST_P(LiveStreamTest, AnAppendSendsWhatWasAppendedIntoTheSameFile) {
  Begin();
  Put("/log", std::string(3 << 20, 'x'));
  at_home_->TakeAll(stream());
  const ino_t inode = InodeAtHome("/log");
  const uint64_t before = stream().stats().sent_bytes;
  for (int i = 0; i < 100; ++i) {
    Put("/log", "line " + std::to_string(i) + "\n", O_APPEND);
    if (i % 7 == 0) at_home_->TakeAll(stream());
  }
  at_home_->TakeAll(stream());
  EXPECT_LT(stream().stats().sent_bytes - before, 1000u);
  EXPECT_EQ(InodeAtHome("/log"), inode);
  EXPECT_TRUE(AtHome("/log") == Content("/log"));
  EXPECT_EQ(at_home_->wanted_whole, 0);
}

TEST_P(LiveStreamTest, AnAppendThatWasCutGoesOnIntoTheSameFile) {
  Begin();
  Put("/log", "first\n");
  at_home_->TakeAll(stream());
  const ino_t inode = InodeAtHome("/log");
  Put("/log", std::string(5 << 20, 'y'), O_APPEND);
  for (int i = 0; i < 3; ++i) at_home_->Take(stream());
  at_home_->Resume(stream());
  at_home_->TakeAll(stream());
  EXPECT_EQ(InodeAtHome("/log"), inode);
  EXPECT_TRUE(AtHome("/log") == Content("/log"));
  EXPECT_EQ(at_home_->wanted_whole, 0);
}

TEST_P(LiveStreamTest, AFewBytesOfALargeFileAreAFewBytesOnTheWay) {
  Begin();
  Put("/data", vfs::Noise(8 << 20, 1));
  at_home_->TakeAll(stream());
  const uint64_t before = stream().stats().sent_bytes;
  for (int i = 0; i < 5; ++i) {
    const UniqueFd fd(::open(In("/data").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), "change", 6, (i + 1) * 1'000'000), 6);
  }
  at_home_->TakeAll(stream());
  EXPECT_LT(stream().stats().sent_bytes - before, 5 * 8192u);
  EXPECT_TRUE(AtHome("/data") == Content("/data"));
}

TEST_P(LiveStreamTest, WhatBothAppendIsThere) {
  Begin();
  Put("/log", "one\n");
  at_home_->TakeAll(stream());
  ASSERT_EQ(::system(("echo from elsewhere >> '" + home_ + "/log'").c_str()), 0);
  Put("/log", "two\n", O_APPEND);
  Put("/log", "three\n", O_APPEND);
  at_home_->TakeAll(stream());
  EXPECT_EQ(at_home_->wanted_whole, 0);
  EXPECT_EQ(AtHome("/log"), "one\nfrom elsewhere\ntwo\nthree\n");
}

TEST_P(LiveStreamTest, AHoleAtTheEndIsThereAlsoWhereHomeHasAnotherVersion) {
  Write("/f", "home's");
  Write("/g", "home's");
  Mount();
  at_home_ = std::make_unique<HomeEnd>(origin_, directory_.path() + "/apply");
  for (const std::string name : {"/f", "/g"}) {
    ASSERT_EQ(Content(name), "home's");
    ASSERT_EQ(::chmod((origin_ + name).c_str(), 0600), 0);
  }
  {
    const UniqueFd fd(::open(In("/f").c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), "x", 1, 2'000'000), 1);
  }
  {
    const UniqueFd fd(::open(In("/g").c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::ftruncate(fd.get(), 100'000), 0);
  }
  at_home_->TakeAll(stream());
  EXPECT_EQ(at_home_->wanted_whole, 0);
  for (const std::string name : {"/f", "/g"}) {
    EXPECT_TRUE(ReadFile(origin_ + name).value_or("(none)") == Content(name)) << name;
  }
}

TEST_P(LiveStreamTest, WhatSomebodyElsePutInItsPlaceIsReplacedWhole) {
  Begin();
  Put("/log", "one\n");
  at_home_->TakeAll(stream());
  ASSERT_TRUE(WriteFileAtomic(home_ + "/log", "from elsewhere", 0644));
  Put("/log", "two\n", O_APPEND);
  Put("/after", "x");
  at_home_->TakeAll(stream());
  EXPECT_EQ(at_home_->wanted_whole, 1);
  EXPECT_EQ(AtHome("/log"), "one\ntwo\n");  // the last close wins
  EXPECT_EQ(AtHome("/after"), "x");
}

// A change to a file that is different at home by now, from a view that never had the rest of the file.
TEST(LiveStreamGivesUpTest, WhatBothChangedAndNobodyHasWholeIsHomesAndTheRestGoesOn) {
  const vfs::TestDirectory directory;
  const std::string home = directory.path() + "/home", path = home + "/data";
  ASSERT_TRUE(MakeDirs(home, 0755));
  ASSERT_TRUE(WriteFileAtomic(path, "home's", 0640));
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  vfs::LiveStream stream({});
  HomeEnd at_home(home, directory.path() + "/apply");
  vfs::LiveOperation patch;
  patch.kind = vfs::LiveOperation::Kind::kPut;
  patch.path = "/data";
  patch.attributes.mode = S_IFREG | 0600;
  patch.base = {1, 1, 1, 100};
  patch.content.over = v1::PATCH;
  patch.content.size = 104;
  stream.Add(patch);
  vfs::LiveOperation made;
  made.kind = vfs::LiveOperation::Kind::kDirectory;
  made.path = "/after";
  made.attributes.mode = S_IFDIR | 0755;
  stream.Add(made);
  stream.Release(2);
  for (int i = 0; i < 10 && stream.stats().operations > 0; ++i) {
    while (at_home.Take(stream) != 0) {
    }
    at_home.Acknowledge(stream);
  }
  EXPECT_EQ(stream.stats().operations, 0u);
  EXPECT_EQ(at_home.wanted_whole, 1);
  EXPECT_EQ(at_home.given_up, 1) << "which counts as a write that is lost";
  EXPECT_EQ(ReadFile(path).value_or(""), "home's");
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(after.st_mode, before.st_mode);
  EXPECT_EQ(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  EXPECT_TRUE(PathExists(home + "/after"));
}

// The view waits half a minute for the rest of the file.
TEST_P(LiveStreamTest, AFileWhoseRestIsGoneIsNotKeptFromHomesForEver) {
  if (!GetParam()) return;
  Write("/data", vfs::Noise(8 << 20, 3));
  Begin();
  {
    const UniqueFd fd(::open(In("/data").c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), std::string(4096, 'o').data(), 4096, 65536), 4096) << std::strerror(errno);
    source_.FailWith([](const vfs::FakeSource::Asked& asked) -> std::optional<Error> {
      if (asked.what == 'd') return std::nullopt;
      return Error(Code::kAborted, "the file has changed");
    });
  }
  for (const std::string& root : {home_, origin_}) ASSERT_TRUE(WriteFileAtomic(root + "/data", "home's", 0640));
  Put("/after", "x");
  for (int i = 0; i < 450 && at_home_->wanted_whole == 0; ++i) {
    at_home_->TakeAll(stream());
    ::usleep(100'000);
  }
  EXPECT_EQ(at_home_->wanted_whole, 1);
  at_home_->TakeAll(stream());
  EXPECT_EQ(at_home_->given_up, 1);
  source_.FailWith(nullptr);
  EXPECT_EQ(AtHome("/data"), "home's");
  EXPECT_EQ(AtHome("/after"), "x");
  ASSERT_TRUE(view_->Advance(Scan(), view_->changes()));
  EXPECT_EQ(Content("/data"), "home's");
}

// Home's part of the file is still on its way, so the file is not published yet. The kernel has forgotten it, so only
// the view holds it.
TEST_P(LiveStreamTest, WhatWasAppendedStaysWhateverHomeDoesWithTheName) {
  if (!GetParam()) return;
  const std::string content = vfs::Noise(8 << 20, 3);
  Write("/data", content);
  Mount();
  at_home_ = std::make_unique<HomeEnd>(origin_, directory_.path() + "/apply");
  {
    const UniqueFd fd(::open(In("/data").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    ASSERT_TRUE(fd && WriteAll(fd.get(), "appended"));
    source_.FailWith([](const vfs::FakeSource::Asked& asked) -> std::optional<Error> {
      if (asked.what != 'f') return std::nullopt;
      return Error(Code::kUnavailable, "home is away");
    });
  }
  ASSERT_EQ(::mkdir(In("/after").c_str(), 0755), 0);
  at_home_->TakeAll(*view_->stream());
  for (const auto& [from, to] : {std::pair("/data", "/moved"), std::pair("/moved", "/data")}) {
    ASSERT_EQ(::rename((origin_ + from).c_str(), (origin_ + to).c_str()), 0);
    const uint64_t forgotten = view_->stats().requests[FUSE_FORGET] + view_->stats().requests[FUSE_BATCH_FORGET];
    ASSERT_TRUE(view_->Advance(Scan(), at_home_->sequence() >> vfs::LiveStream::kPlaceBits));
    for (int i = 0; i < 100; ++i) {
      if (view_->stats().requests[FUSE_FORGET] + view_->stats().requests[FUSE_BATCH_FORGET] > forgotten) break;
      ::usleep(2'000);
    }
  }
  source_.FailWith(nullptr);
  at_home_->TakeAll(stream());
  EXPECT_TRUE(ReadFile(origin_ + "/data").value_or("(none)") == content + "appended");
  EXPECT_TRUE(Content("/data") == content + "appended");
}

TEST_P(LiveStreamTest, ATemporaryFileIsNeverSent) {
  Begin();
  for (int i = 0; i < 10; ++i) {
    Put("/tmp" + std::to_string(i), std::string(100'000, 't'));
    ASSERT_EQ(::unlink(In("/tmp" + std::to_string(i)).c_str()), 0);
  }
  Put("/kept", "k");
  at_home_->TakeAll(stream());
  EXPECT_EQ(at_home_->puts, std::vector<std::string>{"/kept"});
  EXPECT_EQ(stream().stats().sent_bytes, 1u);
}

// The end of a run waits for the last sequence number.
TEST_P(LiveStreamTest, WhatWasTakenBackAtLastCountsAsDoneAtHome) {
  Begin();
  Put("/kept", "k");
  Put("/tmp", "t");
  ASSERT_EQ(::unlink(In("/tmp").c_str()), 0);
  const uint64_t last = view_->PublishAll();
  ASSERT_GT(stream().stats().dropped, 0u);
  EXPECT_NE(at_home_->Take(stream()), 0u);
  at_home_->Open();
  at_home_->Resume(stream());
  at_home_->TakeAll(stream());
  EXPECT_EQ(at_home_->sequence(), last << 24 | kLast);
  EXPECT_EQ(stream().acknowledged(), last);
  EXPECT_EQ(at_home_->Take(stream()), 0u);  // and it is sent only once
  EXPECT_EQ(AtHome("/kept"), "k");
}

// At home the name was taken by another file before home received the last operation.
TEST_P(LiveStreamTest, WhereATemporaryFileWasHomesIsSeenSoon) {
  Begin();
  Put("/name", "temporary");
  ASSERT_EQ(::unlink(In("/name").c_str()), 0);
  ASSERT_GT(stream().stats().dropped, 0u);
  SeeADirectoryOfHomes("/name");
}

TEST_P(LiveStreamTest, WhereAFileWasThatHomeNeverHeardOfHomesIsSeen) {
  Begin();
  {
    const UniqueFd fd(::open(In("/name").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    ASSERT_EQ(::write(fd.get(), "x", 1), 1);
    ASSERT_EQ(::unlink(In("/name").c_str()), 0);
    ASSERT_EQ(stream().stats().last, 0u);
  }
  SeeADirectoryOfHomes("/name");
}

TEST_P(LiveStreamTest, HardLinksOfAFifoAreOneFile) {
  ASSERT_EQ(::mkfifo((origin_ + "/a").c_str(), 0600), 0);
  ASSERT_EQ(::link((origin_ + "/a").c_str(), (origin_ + "/b").c_str()), 0);
  Begin();
  ASSERT_EQ(::rename(In("/a").c_str(), In("/b").c_str()), 0);  // two names of one file: does nothing
  struct stat a {
  }, b{};
  ASSERT_EQ(::lstat(In("/a").c_str(), &a), 0) << std::strerror(errno);
  ASSERT_EQ(::lstat(In("/b").c_str(), &b), 0) << std::strerror(errno);
  EXPECT_EQ(a.st_ino, b.st_ino);
}

TEST_P(LiveStreamTest, WhatWasExchangedIsRemovedWhereItWent) {
  Write("/there", "of home's");
  Begin();
  ASSERT_EQ(::symlink("somewhere", In("/link").c_str()), 0);
  ASSERT_EQ(::renameat2(AT_FDCWD, In("/there").c_str(), AT_FDCWD, In("/link").c_str(), RENAME_EXCHANGE), 0);
  ASSERT_EQ(::unlink(In("/there").c_str()), 0);
  at_home_->TakeAll(stream());
  EXPECT_EQ(AtHome("/link"), "of home's");
  EXPECT_EQ(InodeAtHome("/there"), 0u);
}

TEST_P(LiveStreamTest, WhatIsPublishedStaysAsItWasUntilItIsSent) {
  Begin();
  const std::string one = vfs::Noise(300'000, 1), two = vfs::Noise(200'000, 2);
  Put("/f", one);
  ASSERT_EQ(::link(In("/f").c_str(), In("/g").c_str()), 0);  // a point in the history
  Put("/mark", "");
  Put("/f", two);
  Put("/f", "and more", O_APPEND);
  std::string seen;
  while (AtHome("/mark") == "(none)") ASSERT_NE(at_home_->Take(stream()), 0u);
  EXPECT_TRUE(AtHome("/f") == one);
  at_home_->TakeAll(stream());
  EXPECT_TRUE(AtHome("/f") == two + "and more");
}

TEST_P(LiveStreamTest, ContentThatCannotBeReadIsNeverHalfSent) {
  Begin();
  Put("/f", std::string(3 << 20, 'f'));
  while (stream().stats().operations == 0) std::this_thread::yield();  // fanotify reports the close a moment later
  ASSERT_TRUE(RemoveTree(options_.written));
  const auto both = [&] {
    const auto begun = stream().Next();
    EXPECT_TRUE(begun && *begun && (*begun)->has_put_file());
    return stream().Next().has_value();
  };
  while (both()) stream().Resume(0);  // until RELEASE, which is asynchronous, has released the file
  EXPECT_FALSE(both());
}

TEST_P(LiveStreamTest, FsyncReturnsWhenHomeHasIt) {
  Begin();
  std::atomic<bool> returned{false};
  std::thread job([&] {
    const UniqueFd fd(::open(In("/f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    (void)!::write(fd.get(), "durable", 7);
    EXPECT_EQ(::fsync(fd.get()), 0) << std::strerror(errno);
    EXPECT_EQ(AtHome("/f"), "durable");
    returned = true;
  });
  while (stream().stats().operations == 0) std::this_thread::yield();
  EXPECT_FALSE(returned);
  {
    const HomeThread pump(*at_home_, stream());
    job.join();
  }
  EXPECT_TRUE(returned);
}

TEST_P(LiveStreamTest, WhileHomeIsAwayAWriterGoesOnUpToALimit) {
  options_.stream.most_bytes = 4 << 20;
  Begin();
  std::atomic<int> written{0};
  std::thread job([&] {
    for (int i = 0; i < 10; ++i) {
      Put("/f" + std::to_string(i), std::string(1 << 20, static_cast<char>('a' + i)));
      ++written;
    }
  });
  while (stream().stats().waiting == 0) std::this_thread::yield();
  EXPECT_EQ(written, 4);
  {
    const HomeThread pump(*at_home_, stream());
    job.join();
  }
  at_home_->TakeAll(stream());
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(AtHome("/f" + std::to_string(i)) == std::string(1 << 20, static_cast<char>('a' + i)));
  }
}

TEST_P(LiveStreamTest, WhoeverKeepsALogOpenIsPublishedAllTheSame) {
  options_.publish_micros = 20'000;
  Begin();
  const HomeThread pump(*at_home_, stream());
  const UniqueFd fd(::open(In("/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  for (const char* line : {"one\n", "two\n", "three\n"}) {
    ASSERT_TRUE(WriteAll(fd.get(), line));
    while (!AtHome("/log").ends_with(line)) std::this_thread::yield();
  }
  EXPECT_EQ(AtHome("/log"), "one\ntwo\nthree\n");
}

TEST_P(LiveStreamTest, OfTwoNodesThatWriteOneFileTheLastToCloseWins) {
  Write("/shared", "before");
  Begin();
  vfs::LiveViewOptions options = options_;
  options.directory = directory_.path() + "/mnt2";
  options.written = directory_.path() + "/written2";
  options.journal = directory_.path() + "/journal2";
  ASSERT_TRUE(MakeDirs(options.directory, 0755) && MakeDirs(options.written, 0755));
  auto other = vfs::LiveView::Mount(backend_, Scan(), options);
  ASSERT_TRUE(other) << other.error().message();
  watchdog_.Watch(options.directory);
  HomeEnd second(home_, directory_.path() + "/apply2", 8);
  std::mt19937 random(5);
  const std::string a(300'000, 'a'), b(200'000, 'b');
  for (int round = 0; round < 10; ++round) {
    const bool b_last = random() % 2 == 0;
    UniqueFd fd(::open((options.directory + "/shared").c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
    ASSERT_TRUE(WriteAll(fd.get(), b));
    Put("/shared", a);
    ASSERT_EQ(::fchmod(fd.get(), 0644), 0);
    const auto close_other = [&] {  // closing publishes
      fd.Reset();
      (*other)->SeeCloses();
      second.TakeAll(*(*other)->stream());
    };
    if (!b_last) close_other();
    at_home_->TakeAll(stream());
    if (b_last) close_other();
    EXPECT_TRUE(AtHome("/shared") == (b_last ? b : a)) << round;
  }
}

TEST_P(LiveStreamTest, TheJournalHasEveryNameThatTheKernelWasTold) {
  RandomWork(origin_, 3).BuildTree(25);
  Begin();
  RandomWork work(mount_, 21);
  for (int i = 0; i < 300; ++i) {
    work.Step();
    if (i % 10 != 0) continue;
    const Description now = Describe(mount_);
    size_t good = 0;
    const auto state = vfs::LiveJournal::Parse(ReadFile(options_.journal).value_or(""), &good);
    ASSERT_TRUE(state) << state.error().message();
    std::map<ino_t, uint64_t> node_of;
    std::map<std::string, uint64_t> nodes{{"", vfs::LiveTree::kRootId}};
    for (const auto& [path, described] : now) {  // parents come first
      if (path.empty()) continue;
      const size_t slash = path.rfind('/');
      const auto names = state->names.find(nodes.at(path.substr(0, slash)));
      ASSERT_NE(names, state->names.end()) << i << " " << path;
      const auto name = names->second.find(path.substr(slash + 1));
      ASSERT_NE(name, names->second.end()) << i << " " << path;
      const uint64_t node = nodes[path] = name->second.node;
      ASSERT_TRUE(state->nodes.contains(node)) << i << " " << path;
      EXPECT_EQ(state->nodes.at(node)->attributes.mode, described.mode) << path;
      if (!S_ISREG(described.mode)) continue;  // names of other kinds have separate nodes
      EXPECT_EQ(node_of.try_emplace(described.ino, node).first->second, node) << i << " " << path;
    }
  }
}

TEST_P(LiveStreamTest, APieceOfAJournalIsTheJournalUpToThere) {
  Begin();
  RandomWork work(mount_, 9);
  for (int i = 0; i < 60; ++i) work.Step();
  const std::string all = ReadFile(options_.journal).value_or("");
  size_t good = 0;
  const auto whole = vfs::LiveJournal::Parse(all, &good);
  ASSERT_TRUE(whole) << whole.error().message();
  EXPECT_EQ(good, all.size());
  EXPECT_EQ(whole->operations.size(), stream().stats().operations);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const size_t cut = random() % (all.size() + 1);
    const auto part = vfs::LiveJournal::Parse(std::string_view(all).substr(0, cut), &good);
    ASSERT_TRUE(part) << cut << ": " << part.error().message();
    EXPECT_LE(good, cut);
    for (const auto& [number, operation] : part->operations) EXPECT_LT(number, part->next_operation);
    std::string damaged = all;
    damaged[random() % (all.size() / 2)] ^= 0x10;
    const auto refused = vfs::LiveJournal::Parse(damaged, &good);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kCorrupt);
  }
}

INSTANTIATE_TEST_SUITE_P(, LiveStreamTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "NoOpen" : "Opens"; });

}  // namespace
}  // namespace vrun::test
