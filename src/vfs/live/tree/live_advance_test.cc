// SPDX-License-Identifier: Apache-2.0
// Home changes while a live view is in use.
#include "vfs/live/tree/live_advance.h"

#include <linux/fs.h>
#include <linux/fuse.h>
#include <rapidcheck.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <array>
#include <deque>
#include <future>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "vfs/testing/live_advance_testing.h"

namespace vrun::vfs {
namespace {

TEST_F(LiveAdvanceTest, AnEditIsSeenAndWhatIsOpenKeepsItsBytes) {
  Write("/saved", "old");
  Write("/written", "old in place");
  Mount();
  const UniqueFd saved(::open(In("/saved").c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd written(::open(In("/written").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(saved && written);
  Save("/saved", "new, and longer");
  Write("/written", "new in its place");
  Follow();
  EXPECT_EQ(Content("/saved"), "new, and longer");
  EXPECT_EQ(Content("/written"), "new in its place");
  EXPECT_EQ(Stat(In("/saved")).st_size, 15);
  EXPECT_EQ(All(saved.get()), "old");
  EXPECT_EQ(All(written.get()), "old in place");
}

TEST_F(LiveAdvanceTest, WhatWasMadeInADirectoryThatWasMovedStaysUntilHomeHasMovedIt) {
  Write("/dir/theirs", "x");
  Mount();
  Put(In("/dir/ours"), "made here");
  const uint64_t made = view_->changes();
  ASSERT_EQ(::rename(In("/dir").c_str(), In("/moved").c_str()), 0);
  Write("/dir/ours", "made here");
  ASSERT_TRUE(Soon([&] { return view_->stats().requests[FUSE_RELEASE] > 0; }));
  Follow(made);
  EXPECT_EQ(Content("/moved/ours"), "made here");
  ASSERT_EQ(::rename(Origin("/dir").c_str(), Origin("/moved").c_str()), 0);
  FollowAll();
  EXPECT_EQ(Content("/moved/ours"), "made here");
  EXPECT_FALSE(Is(In("/dir")));
}

TEST_F(LiveAdvanceTest, AListingUnderWayGivesANameOnceWhoeverHasItNow) {
  Write("/dir/theirs", "");
  Mount();
  for (int i = 0; i < 150; ++i) Put(In("/dir/name" + std::to_string(i)), "ours");
  ASSERT_TRUE(Soon([&] { return Requests(FUSE_RELEASE) >= 150; }));
  const UniqueFd directory(::open(In("/dir").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::map<std::string, int> seen;
  const auto list = [&] {
    alignas(8) char buffer[2048];
    const long n = ::syscall(SYS_getdents64, directory.get(), buffer, sizeof buffer);
    for (long at = 0; at < n; at += reinterpret_cast<const dirent64*>(buffer + at)->d_reclen) {
      ++seen[reinterpret_cast<const dirent64*>(buffer + at)->d_name];
    }
    return n;
  };
  ASSERT_GT(list(), 0);
  ASSERT_LT(seen.size(), 100u);
  for (int i = 0; i < 150; ++i) Write("/dir/name" + std::to_string(i), "other files");
  FollowAll();
  while (list() > 0) {
  }
  for (const auto& [name, times] : seen) EXPECT_EQ(times, 1) << name;
  EXPECT_EQ(seen.size(), 153u);
  EXPECT_EQ(Content("/dir/name7"), "other files");
}

TEST_F(LiveAdvanceTest, TimesThatAJobHasMadeStayWhenHomeHasTheSame) {
  Write("/d/f", "x");
  ASSERT_EQ(::symlink("f", Origin("/link").c_str()), 0);
  Mount();
  const timespec times[2] = {{1'000, 1}, {2'000, 2}};
  const auto change = [&](const std::string& directory, const std::string& link) {
    ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
    ASSERT_EQ(::utimensat(AT_FDCWD, directory.c_str(), times, 0), 0);
    ASSERT_EQ(::utimensat(AT_FDCWD, link.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  };
  change(In("/d"), In("/link"));
  std::map<std::string, struct stat> before;
  for (const std::string name : {"/d", "/link"}) before[name] = Stat(In(name));
  ::usleep(20'000);
  change(Origin("/d"), Origin("/link"));
  FollowAll();
  for (const auto& [name, was] : before) {
    const struct stat is = Stat(In(name));
    EXPECT_EQ(is.st_atim.tv_sec, 1'000) << name;
    EXPECT_EQ(is.st_mtim.tv_nsec, 2) << name;
    EXPECT_EQ(is.st_ctim.tv_sec, was.st_ctim.tv_sec) << name;
    EXPECT_EQ(is.st_ctim.tv_nsec, was.st_ctim.tv_nsec) << name;
  }
  // Later changes at home are visible.
  ASSERT_EQ(::chmod(Origin("/d").c_str(), 0755), 0);
  FollowAll();
  EXPECT_EQ(Stat(In("/d")).st_mode & 07777, 0755u);
  EXPECT_GE(Stat(In("/d")).st_ctim.tv_sec, before["/d"].st_ctim.tv_sec) << "never back";
}

TEST_F(LiveAdvanceTest, WhatIsMappedKeepsItsBytes) {
  Write("/lib.so", std::string(8192, 'a'));
  Mount();
  std::thread home([&] {
    for (int i = 0; i < 1000 && !Is(In("/second")); ++i) ::usleep(5'000);
    Write("/lib.so", std::string(8192, 'b'));
    Write("/go", "");
    Follow();
  });
  EXPECT_EQ(InChild([&] {
              const UniqueFd fd(::open(In("/lib.so").c_str(), O_RDONLY | O_CLOEXEC));
              const auto* map = static_cast<const char*>(::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, fd.get(), 0));
              if (map == MAP_FAILED || map[0] != 'a') return 1;
              if (::mkdir(In("/second").c_str(), 0755) != 0) return 2;
              for (int i = 0; i < 1000 && !Is(In("/go")); ++i) ::usleep(5'000);
              return map[0] == 'a' && map[4096] == 'a' ? 0 : 3;
            }),
            0);
  home.join();
  EXPECT_EQ(Content("/lib.so"), std::string(8192, 'b'));
}

TEST_F(LiveAdvanceTest, NamesComeGoAndMove) {
  Write("/gone", "x");
  Write("/dir/deep/file", "content");
  Write("/kind", "a file");
  Mount();
  EXPECT_FALSE(Is(In("/new")));  // the kernel caches its absence
  EXPECT_FALSE(Is(In("/dir/deep/new")));
  EXPECT_EQ(Content("/dir/deep/file"), "content");
  EXPECT_TRUE(Is(In("/gone")) && Is(In("/kind")));
  Write("/new", "n");
  Write("/dir/deep/new", "n");
  ASSERT_EQ(::unlink(Origin("/gone").c_str()), 0);
  ASSERT_EQ(::unlink(Origin("/kind").c_str()), 0);
  ASSERT_EQ(::mkdir(Origin("/kind").c_str(), 0755), 0);
  Follow();
  EXPECT_TRUE(Is(In("/new")) && Is(In("/dir/deep/new")));
  EXPECT_FALSE(Is(In("/gone")));
  EXPECT_EQ(Describe(mount_), Describe(origin_));
  ASSERT_EQ(::rename(Origin("/dir").c_str(), Origin("/moved").c_str()), 0);
  ASSERT_EQ(::rename(Origin("/moved/deep/file").c_str(), Origin("/moved/file").c_str()), 0);
  Follow();
  EXPECT_FALSE(Is(In("/dir")));
  EXPECT_EQ(Content("/moved/file"), "content");
  EXPECT_EQ(Describe(mount_), Describe(origin_));
  ASSERT_TRUE(RemoveTree(Origin("/moved")));
  Follow();
  EXPECT_EQ(Describe(mount_), Describe(origin_));
}

TEST_F(LiveAdvanceTest, AttributesAlone) {
  Write("/script", "#!/bin/sh\n");
  Write("/dir/file", "x");
  Mount();
  EXPECT_EQ(Stat(In("/script")).st_mode & 0777, 0644u);
  Stat(In("/dir"));
  ASSERT_EQ(::chmod(Origin("/script").c_str(), 0755), 0);
  ASSERT_EQ(::chmod(Origin("/dir").c_str(), 0700), 0);
  const timespec times[2] = {{1'000'000'000, 1}, {1'100'000'000, 2}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Origin("/dir/file").c_str(), times, 0), 0);
  Follow();
  EXPECT_EQ(Stat(In("/script")).st_mode & 0777, 0755u);
  EXPECT_EQ(Stat(In("/dir")).st_mode & 0777, 0700u);
  EXPECT_EQ(Stat(In("/dir/file")).st_mtim.tv_sec, 1'100'000'000);
  EXPECT_EQ(Stat(In("/dir/file")).st_mtim.tv_nsec, 2);
  EXPECT_EQ(Content("/script"), "#!/bin/sh\n");
}

TEST_F(LiveAdvanceTest, WhatIsOursStaysUntilHomeHasIt) {
  Write("/both", "home's");
  Write("/removed", "home's");
  Write("/dir/file", "home's");
  Mount();
  Put(In("/both"), "ours");
  Put(In("/new"), "ours");
  ASSERT_EQ(::unlink(In("/removed").c_str()), 0);
  ASSERT_EQ(::rename(In("/dir").c_str(), In("/moved").c_str()), 0);
  const uint64_t all = view_->changes();
  Save("/both", "home's second");
  Save("/removed", "home's second");
  Write("/new", "home's");
  Write("/dir/file", "home's second");
  Follow();
  EXPECT_EQ(Content("/both"), "ours");
  EXPECT_EQ(Content("/new"), "ours");
  EXPECT_FALSE(Is(In("/removed")) || Is(In("/dir")));
  // Home has all of it, and was changed again since.
  ASSERT_EQ(::rename(Origin("/dir").c_str(), Origin("/moved").c_str()), 0);
  Write("/moved/file", "home's third");
  Follow(all);
  EXPECT_EQ(Content("/both"), "home's second");
  EXPECT_EQ(Content("/new"), "home's");
  EXPECT_EQ(Content("/moved/file"), "home's third");
  EXPECT_EQ(Describe(mount_), Describe(origin_));
}

TEST_F(LiveAdvanceTest, WhatComesBackFromHomeIsKnownAgain) {
  Write("/lib/there", "x");
  Mount();
  Put(In("/lib/made"), "ours");
  ASSERT_EQ(::mkdir(In("/dir").c_str(), 0755), 0);
  Put(In("/dir/in"), "ours");
  const UniqueFd fd(::open(In("/dir/in").c_str(), O_RDONLY | O_CLOEXEC));
  // As home applies it.
  Write("/lib/made", "ours");
  Write("/dir/in", "ours");
  view_->Acknowledge(NodeOf(In("/lib/made")), VersionOf("/lib/made"));
  view_->Acknowledge(NodeOf(In("/dir/in")), VersionOf("/dir/in"));
  const uint64_t made = Stat(In("/lib/made")).st_ino, in = Stat(In("/dir/in")).st_ino;
  const uint64_t lookups = Requests(FUSE_LOOKUP), reads = Requests(FUSE_READ);
  FollowAll();
  EXPECT_EQ(Stat(In("/lib/made")).st_ino, made);
  EXPECT_EQ(Stat(In("/dir/in")).st_ino, in);
  EXPECT_EQ(Content("/lib/made"), "ours");
  EXPECT_EQ(Requests(FUSE_LOOKUP), lookups);
  EXPECT_LE(Requests(FUSE_READ), reads + 1);
  EXPECT_EQ(source_.CountAsked('f'), 0u);
  // From now on home is right.
  Save("/dir/in", "home's");
  Follow();
  EXPECT_EQ(Content("/dir/in"), "home's");
  EXPECT_EQ(All(fd.get()), "ours");
  ASSERT_EQ(::unlink(Origin("/lib/made").c_str()), 0);
  Follow();
  EXPECT_FALSE(Is(In("/lib/made")));
}

TEST_F(LiveAdvanceTest, AWriterKeepsTheNameUntilItCloses) {
  Write("/log", "home\n");
  Mount();
  {
    const UniqueFd fd(::open(In("/log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    ASSERT_TRUE(WriteAll(fd.get(), "ours\n"));
    Save("/log", "home's second\n");
    FollowAll();
    EXPECT_EQ(Content("/log"), "home\nours\n");
    ASSERT_TRUE(WriteAll(fd.get(), "ours\n"));
  }
  Follow();
  EXPECT_EQ(Content("/log"), "home\nours\nours\n");  // the last close wins, once home has it
  FollowAll();
  EXPECT_TRUE(Soon([&] { return Content("/log") == "home's second\n"; }));  // home had it and was changed again
}

TEST_F(LiveAdvanceTest, WhoOpensForWritingAndWritesNothingLetsGo) {
  Write("/f", "home");
  Mount();
  {
    const UniqueFd fd(::open(In("/f").c_str(), O_RDWR | O_CLOEXEC));
    Save("/f", "second");
    Follow();
    EXPECT_EQ(Content("/f"), "home");
  }
  EXPECT_TRUE(Soon([&] { return Content("/f") == "second"; }));
}

TEST_F(LiveAdvanceTest, ADirectoryThatIsGoneAtHomeStaysForWhatIsOursInIt) {
  Write("/dir/home", "x");
  Write("/dir/sub/home", "x");
  Mount();
  EXPECT_EQ(Content("/dir/sub/home"), "x");
  Put(In("/dir/sub/ours"), "ours");
  const uint64_t all = view_->changes();
  ASSERT_TRUE(RemoveTree(Origin("/dir")));
  Follow();
  EXPECT_EQ(Content("/dir/sub/ours"), "ours");
  EXPECT_FALSE(Is(In("/dir/home")) || Is(In("/dir/sub/home")));
  Follow(all);  // home rejected the changes
  EXPECT_TRUE(Soon([&] { return !Is(In("/dir/sub")); }));
  Follow(all);
  EXPECT_EQ(Describe(mount_), Describe(origin_));
}

TEST_F(LiveAdvanceTest, HardLinks) {
  Write("/one", "same");
  ASSERT_EQ(::mkdir(Origin("/d").c_str(), 0755), 0);
  ASSERT_EQ(::link(Origin("/one").c_str(), Origin("/d/two").c_str()), 0);
  Mount();
  EXPECT_EQ(Stat(In("/one")).st_nlink, 2u);
  ASSERT_EQ(::link(Origin("/one").c_str(), Origin("/three").c_str()), 0);
  Write("/one", "changed through one");
  Follow();
  EXPECT_EQ(Content("/d/two"), "changed through one");
  EXPECT_EQ(Content("/three"), "changed through one");
  EXPECT_EQ(Stat(In("/d/two")).st_nlink, 3u);
  EXPECT_EQ(Stat(In("/d/two")).st_ino, Stat(In("/three")).st_ino);
  ASSERT_EQ(::unlink(Origin("/d/two").c_str()), 0);
  Follow();
  EXPECT_EQ(Describe(mount_), Describe(origin_));
}

TEST_F(LiveAdvanceTest, HardLinksThatHomeHasMadeFilesOfTheirOwn) {
  Write("/one", "same");
  ASSERT_EQ(::link(Origin("/one").c_str(), Origin("/two").c_str()), 0);
  Mount();
  EXPECT_EQ(Stat(In("/one")).st_ino, Stat(In("/two")).st_ino);  // looked up and never opened
  Save("/two", "another");
  Follow();
  EXPECT_NE(Stat(In("/one")).st_ino, Stat(In("/two")).st_ino);
  EXPECT_EQ(Stat(In("/one")).st_nlink, 1u);
  EXPECT_EQ(Describe(mount_), Describe(origin_));
}

TEST_F(LiveAdvanceTest, HardLinksMadeHereAndChangedOnBothSides) {
  Mount();
  const auto on_both_sides = [&](const auto& act) {
    for (const std::string& root : {mount_, origin_}) ASSERT_EQ(act(root), 0);
  };
  on_both_sides([](const std::string& root) {
    Put(root + "/one", "ours");
    return ::link((root + "/one").c_str(), (root + "/two").c_str());
  });
  FollowAll();
  EXPECT_EQ(Describe(mount_), Describe(origin_));
  on_both_sides([](const std::string& root) { return (Put(root + "/one", "again"), 0); });
  ASSERT_EQ(::chmod(Origin("/one").c_str(), 0700), 0);
  FollowAll();
  EXPECT_TRUE(Soon([&] { return Describe(mount_) == Describe(origin_); })) << Describe(mount_);
  EXPECT_EQ(Stat(In("/one")).st_ino, Stat(In("/two")).st_ino);
}

TEST_F(LiveAdvanceTest, AListingThatIsUnderWayGivesEachNameOnce) {
  for (int i = 0; i < 3000; ++i) Write("/dir/" + std::to_string(i), "");
  Mount();
  DIR* directory = ::opendir(In("/dir").c_str());
  std::multiset<std::string> seen;
  for (int n = 0; const dirent* entry = ::readdir(directory); ++n) {
    seen.insert(entry->d_name);
    if (n % 300 != 17) continue;
    // Removes some at both ends and in the middle; adds some before, between and behind.
    for (const int i : {n, 1000 + n, 2999 - n}) ::unlink(Origin("/dir/" + std::to_string(i) + "x").c_str());
    for (const char* where : {"!", "15", "zz"}) Write("/dir/" + (where + std::to_string(n)) + "x", "");
    Follow();
  }
  ::closedir(directory);
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(seen.count(std::to_string(i)), 1u) << i;
  for (const std::string& name : seen) EXPECT_EQ(seen.count(name), 1u) << name;
  EXPECT_EQ(Describe(mount_ + "/dir"), Describe(origin_ + "/dir"));
}

TEST_F(LiveAdvanceTest, AnOpenOfWhatHomeHasNotAnyMoreGetsWhatItHas) {
  Write("/f", "first");
  Mount();
  Stat(In("/f"));
  source_.FailWith([&](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what != 'f') return std::nullopt;
    return Error(Code::kAborted, "the file has changed");
  });
  std::string content;
  std::thread reader([&] { content = Content("/f"); });
  for (int i = 0; i < 1000 && source_.CountAsked('f') == 0; ++i) ::usleep(1'000);
  Save("/f", "second, which is longer");
  source_.FailWith(nullptr);
  Follow();
  reader.join();
  EXPECT_EQ(content, "second, which is longer");
}

// A file of version stamps, written in place and by renaming. Readers must see one whole version, never older than the
// one that the view was last told of.
TEST_F(LiveAdvanceTest, ReadersBesideAWriterSeeVersionsWholeAndInOrder) {
  const auto stamped = [](int version) {
    std::string content;
    const size_t lines = 200 + static_cast<size_t>(version % 7) * 100;
    for (size_t i = 0; i < lines; ++i) content += std::to_string(version) + "\n";
    return content;
  };
  Save("/f", stamped(0));
  Mount();
  std::atomic<int> told{0};
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::string wrong;
  Mutex mutex;
  const auto read = [&] {
    while (!stop) {
      const int least = told.load();
      const std::string content = Content("/f");
      const int version = std::atoi(content.c_str());
      if (content != stamped(version) || version < least) {
        MutexLock lock(mutex);
        wrong = "told of " + std::to_string(least) + ", read " + std::to_string(content.size()) + ": " +
                content.substr(0, 40);
        return;
      }
      ++reads;
    }
  };
  std::thread first(read), second(read);
  for (int version = 1; version <= 400; ++version) {
    Save("/f", stamped(version));
    Follow();
    told = version;
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_EQ(wrong, "");
  EXPECT_GT(reads, 100);
}

// --- a model ---------------------------------------------------------------------------------------------------------

// Random changes at home and in the view. Home applies the view's changes later, in order, where still possible; pushes
// come in between. Whenever home has everything, both are the same. RC_PARAMS sets another seed or more cases.
class LiveAdvanceModelTest : public LiveAdvanceTest {
 protected:
  using Act = std::function<int(const std::string& root)>;
  // Side, operation, path, second path and amount: any numbers.
  using Move = std::array<uint16_t, 5>;

  // One of 4 names, 1 to 3 levels deep, in a directory of this case.
  std::string Path(uint16_t number) const {
    static const char* const kNames[] = {"a", "b", "c", "dir"};
    std::string path = top_;
    for (int depth = 1 + number % 3, n = number / 3; depth > 0; --depth, n /= 4)
      path += "/" + std::string(kNames[n % 4]);
    return path;
  }
  Act ActOf(const Move& move) const {
    const std::string path = Path(move[2]), other = Path(move[3]);
    const std::string content = std::to_string(move[4]) + std::string(move[4] % 3000, 'x');
    switch (move[1] % 12) {
      case 0:
      case 1: return [=](const std::string& root) { return ::mkdir((root + path).c_str(), 0755); };
      case 2: return [=](const std::string& root) { return ::unlink((root + path).c_str()); };
      case 3: return [=](const std::string& root) { return ::rmdir((root + path).c_str()); };
      case 4: return [=](const std::string& root) { return ::link((root + path).c_str(), (root + other).c_str()); };
      case 5: return [=](const std::string& root) { return ::symlink(other.c_str(), (root + path).c_str()); };
      case 6:
        return
            [=](const std::string& root) { return ::chmod((root + path).c_str(), content.size() % 2 ? 0700 : 0755); };
      case 7:
      case 8: return [=](const std::string& root) { return ::rename((root + path).c_str(), (root + other).c_str()); };
      default:
        return [=, flags = move[3] % 2 == 0 ? O_TRUNC : O_APPEND](const std::string& root) {
          const UniqueFd fd(::open((root + path).c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | flags, 0644));
          return fd && WriteAll(fd.get(), content) ? 0 : -1;
        };
    }
  }
  // Runs `act` in the view. A request for content that home no longer has waits until home has announced its new state.
  int Wait(const Act& act, uint64_t included) {
    auto done = std::async(std::launch::async, [&] { return act(mount_); });
    while (done.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
      RC_ASSERT(view_->Advance(Scan(), included).has_value());
    }
    return done.get();
  }
  void Run(const std::vector<Move>& moves);
  void Agree();

  std::string top_;
  struct Done {
    Act act;
    uint64_t change;
  };
  std::deque<Done> queue_;
};

void LiveAdvanceModelTest::Agree() {
  for (const Done& done : queue_) done.act(origin_);
  queue_.clear();
  // A held change is shown at the close; a directory in which it was held, with the next tree. Compare names and
  // attributes first: a read of content that home no longer has waits for home, which is this thread.
  for (const bool contents : {false, true}) {
    const auto same = [&] { return Describe(In(top_), contents) == Describe(Origin(top_), contents); };
    (void)Soon([&] { return view_->Advance(Scan(), view_->changes()) && same(); });
    RC_ASSERT(Describe(In(top_), contents) == Describe(Origin(top_), contents));
  }
}

void LiveAdvanceModelTest::Run(const std::vector<Move>& moves) {
  uint64_t included = view_->changes();
  for (const Move& move : moves) {
    switch (move[0] % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: ActOf(move)(origin_); break;
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        if (Act act = ActOf(move); Wait(act, included) == 0) queue_.push_back({std::move(act), view_->changes()});
        break;
      case 11:
      case 12:
        if (queue_.empty()) break;
        queue_.front().act(origin_);
        included = queue_.front().change;
        queue_.pop_front();
        break;
      case 13: RC_ASSERT(view_->Advance(Scan(), included).has_value()); break;
      case 14: FollowPushed(included); break;
      default:
        if (move[1] % 4 != 0) break;
        Agree();
        included = view_->changes();
    }
  }
  Agree();
}

TEST_F(LiveAdvanceModelTest, BothSidesChangeAndAgreeInTheEnd) {
  Mount();
  int cases = 0;
  EXPECT_TRUE(rc::check([&](const std::vector<Move>& moves) {
    if (cases > 0) RC_ASSERT(RemoveTree(Origin(top_)).has_value());  // keeps scans small while a case shrinks
    top_ = "/case" + std::to_string(++cases);
    Write(top_ + "/a/b", "deep");
    Write(top_ + "/dir/dir/c", "deeper");
    Write(top_ + "/c", "flat");
    RC_ASSERT(view_->Advance(Scan(), view_->changes()).has_value());
    queue_.clear();
    Run(moves);
  }));
  EXPECT_EQ(view_->stats().malformed, 0u);
}

}  // namespace
}  // namespace vrun::vfs
