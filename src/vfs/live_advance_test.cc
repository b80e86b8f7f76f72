// SPDX-License-Identifier: Apache-2.0
// Home changes while a live view is in use.
#include "vfs/live_advance.h"

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
#include "vfs/live_testing.h"

namespace vrun::vfs {
namespace {

class LiveAdvanceTest : public LiveViewFixture {
 protected:
  // What home is now, in a view that has told it of its changes up to `included`.
  void Follow(uint64_t included = 0) {
    const Status advanced = view_->Advance(Scan(), included);
    ASSERT_TRUE(advanced) << advanced.error().message();
  }
  // As home's stream does it: what is new comes before the tree.
  void FollowPushed(uint64_t included = 0) {
    const auto snapshot = tree::Scan({.root = origin_, .hollow = {}});
    ASSERT_TRUE(snapshot) << snapshot.error().message();
    source_.Add(*snapshot);
    std::vector<FetchedDirectory> objects;
    const std::function<void(const tree::DirectoryPtr&)> add = [&](const tree::DirectoryPtr& directory) {
      objects.push_back({directory, {}});
      for (size_t i = 0; i < directory->size(); ++i) {
        if (const tree::DirectoryPtr child = directory->Child(i)) add(child);
      }
    };
    add((*snapshot)->directory);
    backend_->Preload(std::move(objects));
    const Status advanced = view_->Advance((*snapshot)->id, included);
    ASSERT_TRUE(advanced) << advanced.error().message();
  }
  void FollowAll() { Follow(view_->changes()); }
  std::string Origin(const std::string& path) const { return origin_ + path; }
  // As an editor saves: another file takes the name.
  void Save(const std::string& path, const std::string& content) {
    ASSERT_TRUE(WriteFileAtomic(Origin(path), content, 0644));
  }
  static std::string All(int fd) {
    std::string data(1 << 20, 0);
    const ssize_t n = ::pread(fd, data.data(), data.size(), 0);
    return n < 0 ? std::string("error: ") + std::strerror(errno) : data.substr(0, static_cast<size_t>(n));
  }
  static void Put(const std::string& path, const std::string& content, int flags = O_WRONLY | O_CREAT | O_TRUNC) {
    const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
    ASSERT_TRUE(fd) << path << ": " << std::strerror(errno);
    ASSERT_TRUE(WriteAll(fd.get(), content));
  }
  // The kernel tells us of a close after close(2) has returned.
  static bool Soon(const std::function<bool()>& holds) {
    for (int i = 0; i < 1000 && !holds(); ++i) ::usleep(2'000);
    return holds();
  }
  static bool Is(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }
  static struct stat Stat(const std::string& path) {
    struct stat st {};
    EXPECT_EQ(::lstat(path.c_str(), &st), 0) << path << ": " << std::strerror(errno);
    return st;
  }
  static uint64_t NodeOf(const std::string& path) { return Stat(path).st_ino & ~(1ull << 60); }  // made in the view
  tree::FileVersion VersionOf(const std::string& path) const {
    const UniqueFd fd(::open(Origin(path).c_str(), O_PATH | O_CLOEXEC));
    return vfs::VersionOf(fd.get());
  }
  static std::string Link(const std::string& path) {
    std::array<char, 4096> target{};
    const ssize_t n = ::readlink(path.c_str(), target.data(), target.size());
    return {target.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))};
  }
  uint64_t Requests(uint32_t opcode) const { return view_->stats().requests[opcode]; }
};

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
  EXPECT_FALSE(Is(In("/new")));  // which the kernel remembers
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
  // Home has heard of all of it, and was changed again since.
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
  Follow(all);  // home did not want it
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
  EXPECT_EQ(Stat(In("/one")).st_ino, Stat(In("/two")).st_ino);  // looked at and never opened
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
    // Some at both ends and in the middle; new ones before, between and behind.
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

// A line of version stamps, written in place and by renaming; readers must see one version, whole, and never an older
// one than what the view was last told of.
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
  std::mutex mutex;
  const auto read = [&] {
    while (!stop) {
      const int least = told.load();
      const std::string content = Content("/f");
      const int version = std::atoi(content.c_str());
      if (content != stamped(version) || version < least) {
        std::lock_guard lock(mutex);
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

// --- renames ---------------------------------------------------------------------------------------------------------

TEST_F(LiveAdvanceTest, WhoStandsInADirectoryThatHomeRenamesGoesWithIt) {
  Write("/proj/sub/file", "content");
  Write("/proj/sub/later", "not read yet");
  Mount();
  const UniqueFd sub(::open(In("/proj/sub").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(sub);
  const uint64_t inode = Stat(In("/proj/sub")).st_ino;
  ASSERT_EQ(::rename(Origin("/proj").c_str(), Origin("/project").c_str()), 0);
  Follow();
  EXPECT_FALSE(Is(In("/proj")));
  EXPECT_EQ(Stat(In("/project/sub")).st_ino, inode);
  EXPECT_EQ(ReadFile("/proc/self/fd/" + std::to_string(sub.get()) + "/later").value_or("?"), "not read yet");
  const UniqueFd made(::openat(sub.get(), "made", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  ASSERT_TRUE(made) << std::strerror(errno);
  EXPECT_TRUE(Is(In("/project/sub/made")));
  EXPECT_EQ(Link("/proc/self/fd/" + std::to_string(sub.get())), In("/project/sub"));
  // Into a directory that was not there, and of which nobody here knows.
  ASSERT_EQ(::mkdir(Origin("/archive").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(Origin("/archive/2026").c_str(), 0755), 0);
  Write("/project/sub/file", "new content");
  ASSERT_EQ(::rename(Origin("/project/sub").c_str(), Origin("/archive/2026/sub").c_str()), 0);
  FollowPushed();
  EXPECT_EQ(Content("/archive/2026/sub/file"), "new content");
  EXPECT_TRUE(Is(In("/archive/2026/sub/made")));
  EXPECT_FALSE(Is(In("/project/sub")));
  EXPECT_EQ(Stat(In("/archive/2026/sub")).st_ino, inode);
}

TEST_F(LiveAdvanceTest, APathOfWhoStandsThereIsRightAllTheTime) {
  options_.journal = directory_.path() + "/journal";
  Write("/proj/sub/file", "content");
  Mount();
  if (!view_->stats().no_open) GTEST_SKIP() << "this kernel asks for opens";
  const UniqueFd sub(::open(In("/proj/sub").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::rename(Origin("/proj").c_str(), Origin("/project").c_str()), 0);
  Follow();
  const std::string link = "/proc/self/fd/" + std::to_string(sub.get());
  const std::string path = Link(link);
  EXPECT_TRUE(path == In("/proj/sub") || path == In("/project/sub")) << path;
  EXPECT_TRUE(Soon([&] { return Link(link) == In("/project/sub"); })) << Link(link);  // nobody here has asked for it
}

TEST_F(LiveAdvanceTest, RenamesAreFoundHoweverTheyAreDone) {
  for (const char* name : {"/a/in", "/b/in", "/c/in", "/d/e/in"}) Write(name, name);
  Mount();
  const auto inode = [&](const std::string& path) { return Stat(In(path)).st_ino; };
  std::map<std::string, uint64_t> was;
  const auto look = [&](const std::string& path) { was[path] = (Content(path + "/in"), inode(path)); };
  for (const char* path : {"/a", "/b", "/c", "/d", "/d/e"}) look(path);
  // Each other's names.
  ASSERT_EQ(::renameat2(AT_FDCWD, Origin("/a").c_str(), AT_FDCWD, Origin("/b").c_str(), RENAME_EXCHANGE), 0);
  // Into what has its name now.
  ASSERT_EQ(::rename(Origin("/c").c_str(), Origin("/tmp").c_str()), 0);
  ASSERT_EQ(::mkdir(Origin("/c").c_str(), 0755), 0);
  ASSERT_EQ(::rename(Origin("/tmp").c_str(), Origin("/c/old").c_str()), 0);
  // Inside out.
  ASSERT_EQ(::rename(Origin("/d/e").c_str(), Origin("/e").c_str()), 0);
  ASSERT_EQ(::rename(Origin("/d").c_str(), Origin("/e/d").c_str()), 0);
  FollowPushed();
  EXPECT_EQ(inode("/a"), was["/b"]);
  EXPECT_EQ(inode("/b"), was["/a"]);
  EXPECT_EQ(inode("/c/old"), was["/c"]);
  EXPECT_NE(inode("/c"), was["/c"]);
  EXPECT_EQ(inode("/e"), was["/d/e"]);
  EXPECT_EQ(inode("/e/d"), was["/d"]);
  EXPECT_EQ(Describe(mount_), Describe(origin_));
  // Over one that is known, and one that goes while another gets its inode number.
  look("/a");
  ASSERT_TRUE(RemoveTree(Origin("/b")));
  ASSERT_EQ(::rename(Origin("/a").c_str(), Origin("/b").c_str()), 0);
  Follow();
  EXPECT_EQ(inode("/b"), was["/a"]);
  EXPECT_FALSE(Is(In("/a")));
  // An inode number that another directory gets, with content and without.
  for (const bool empty : {false, true}) {
    const std::string gone = empty ? "/empty" : "/b";
    if (empty) {
      ASSERT_EQ(::mkdir(Origin(gone).c_str(), 0755), 0);
    }
    Follow();
    const uint64_t number = Stat(Origin(gone)).st_ino;
    const UniqueFd fd(::open(In(gone).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_TRUE(fd && Stat(In(gone)).st_nlink > 0);
    ASSERT_TRUE(RemoveTree(Origin(gone)));
    std::string name;
    for (int i = 0; i < 200 && name.empty(); ++i) {
      const std::string made = gone + std::to_string(i);
      ASSERT_EQ(::mkdir(Origin(made).c_str(), 0755), 0);
      if (Stat(Origin(made)).st_ino == number) name = made;
    }
    Follow();
    EXPECT_EQ(Describe(mount_), Describe(origin_));
    if (name.empty()) continue;
    EXPECT_EQ(::openat(fd.get(), "x", O_WRONLY | O_CREAT | O_CLOEXEC, 0644), -1) << name << " is another directory";
  }
}

TEST_F(LiveAdvanceTest, WhatIsOursInADirectoryThatHomeRenamesIsThere) {
  Write("/dir/home", "x");
  Mount();
  const uint64_t before = view_->changes();
  Put(In("/dir/ours"), "ours");
  const UniqueFd fd(::open(In("/dir/ours").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  ASSERT_EQ(::rename(Origin("/dir").c_str(), Origin("/moved").c_str()), 0);
  Follow(before);
  ASSERT_TRUE(WriteAll(fd.get(), " and more"));
  EXPECT_EQ(Content("/moved/ours"), "ours and more");
  EXPECT_EQ(Content("/moved/home"), "x");
  EXPECT_FALSE(Is(In("/dir")));
}

TEST_F(LiveAdvanceTest, WhatAJobHasWrittenKeepsItsPlaceWhenHomeRenamesIt) {
  Write("/other", "x");
  Mount();
  for (const char* name : {"/log", "/mode"}) {
    Put(In(name), "ours");
    Put(Origin(name), "ours");  // as home applies it
    const timespec times[2] = {Stat(In(name)).st_atim, Stat(In(name)).st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, Origin(name).c_str(), times, 0), 0);
    view_->Acknowledge(NodeOf(In(name)), VersionOf(name));
  }
  ASSERT_TRUE(Soon([&] { return Requests(FUSE_RELEASE) >= 2; }));
  FollowAll();
  const UniqueFd log(::open(In("/log").c_str(), O_RDONLY | O_CLOEXEC));
  const uint64_t inode = Stat(In("/log")).st_ino, mode = Stat(In("/mode")).st_ino;
  ASSERT_EQ(::rename(Origin("/log").c_str(), Origin("/log.1").c_str()), 0);
  ASSERT_EQ(::chmod(Origin("/mode").c_str(), 0600), 0);
  Follow();
  EXPECT_FALSE(Is(In("/log")));
  EXPECT_EQ(Stat(In("/log.1")).st_ino, inode);
  struct stat st {};
  EXPECT_TRUE(::fstat(log.get(), &st) == 0 && st.st_nlink == 1);
  EXPECT_EQ(Stat(In("/mode")).st_ino, mode);
  EXPECT_EQ(Stat(In("/mode")).st_mode & 0777, 0600u);
  EXPECT_EQ(Describe(mount_), Describe(origin_));
  // Written at home since: another file.
  ASSERT_EQ(::rename(Origin("/log.1").c_str(), Origin("/log.2").c_str()), 0);
  Write("/log.2", "home's");
  Follow();
  EXPECT_EQ(Content("/log.2"), "home's");
  EXPECT_EQ(All(log.get()), "ours");
}

TEST_F(LiveAdvanceTest, AFifoThatHomeRenamesIsTheSame) {
  ASSERT_EQ(::mkfifo(Origin("/fifo").c_str(), 0644), 0);
  Mount();
  const UniqueFd reader(::open(In("/fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_EQ(::rename(Origin("/fifo").c_str(), Origin("/pipe").c_str()), 0);
  Follow();
  const UniqueFd writer(::open(In("/pipe").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(writer && WriteAll(writer.get(), "through"));
  char data[16] = {};
  EXPECT_EQ(::read(reader.get(), data, sizeof data), 7);
}

// --- a model ---------------------------------------------------------------------------------------------------------

// Home and the view change at random. What the view did is done at home later, in order, where it still can be; pushes
// come in between. Whenever home has heard of everything, both are the same. RC_PARAMS has another seed, or more cases.
class LiveAdvanceModelTest : public LiveAdvanceTest {
 protected:
  using Act = std::function<int(const std::string& root)>;
  // Who, what, which path, which other one and how much: any numbers.
  using Move = std::array<uint16_t, 5>;

  // Of 4 names, 1 to 3 deep, in a directory of the case's own.
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
  // Done in the view. Whoever wants what home has not any more waits until home has said what it has.
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
  // What was held is shown with the close; a directory that it was held in, with the next tree.
  // Names and attributes first: who reads what home has not waits for home, which is this thread.
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
    if (cases > 0) RC_ASSERT(RemoveTree(Origin(top_)).has_value());  // what is scanned stays small while it shrinks
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
