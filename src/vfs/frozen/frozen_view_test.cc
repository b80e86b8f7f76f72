// SPDX-License-Identifier: Apache-2.0
// Views with real mounts. (What a tree looks like: rich_tree_test.cc.)
#include "vfs/frozen/frozen_view.h"

#include <dirent.h>
#include <grp.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "base/thread/mutex.h"
#include "vfs/testing/view_fixture.h"

namespace vrun::vfs {
namespace {

std::string SmallContent(int i, int round) {
  constexpr std::array<size_t, 7> kSizes = {300, 0, 1, 4096, 4097, 65536, 65537};
  return Noise(kSizes[static_cast<size_t>(i) % kSizes.size()], static_cast<uint64_t>(round * 1000 + i));
}

TEST_F(ViewTest, PushedFilesAreNotAskedFor) {
  constexpr int kFiles = 120;
  const auto name = [](int i) { return "/d/f" + std::to_string(1000 + i); };
  for (int i = 0; i < kFiles; ++i) Write(name(i), SmallContent(i, 0));
  options_.passthrough = false;
  options_.xattrs = false;
  const Digest tree = Scan();
  Mount(tree);
  Compare(origin_, mount_, kBase);  // now the store has all of it
  Mount(tree);                      // and the kernel has nothing
  EXPECT_EQ(List(mount_ + "/d").size(), kFiles + 2u);
  const auto read = [&](int i) {
    const auto content = ReadFile(mount_ + name(i));
    ASSERT_TRUE(content) << content.error().message();
    EXPECT_TRUE(*content == SmallContent(i, 0)) << i;
  };
  // The files from the fifth on, after three reads (one is of an empty file).
  for (const auto& [i, pushed] : {std::pair(0, 4u), std::pair(1, 4u), std::pair(2, 12u), std::pair(3, 28u)}) {
    read(i);
    while (view_->stats().pushed_files < pushed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto before = Requests();
  int pushed = 0;
  for (int i = 4; pushed < 28; ++i) {
    const size_t size = SmallContent(i, 0).size();
    if (size == 0 || size > 65536) continue;
    read(i);
    ++pushed;
  }
  const auto after = Requests();
  EXPECT_EQ(after[FUSE_LOOKUP], before[FUSE_LOOKUP]);
  EXPECT_EQ(after[FUSE_OPEN], before[FUSE_OPEN]);
  EXPECT_LE(after[FUSE_READ] - before[FUSE_READ], 3u);  // pages that the kernel dropped meanwhile
  Compare(origin_, mount_, kBase);
}

TEST_F(ViewTest, PushingNeverShowsOldContent) {
  constexpr int kFiles = 60;
  const auto name = [](int i) { return "/d/f" + std::to_string(1000 + i); };
  std::array<int, kFiles> written{};
  for (int i = 0; i < kFiles; ++i) Write(name(i), SmallContent(i, 0));
  options_.passthrough = false;
  Mount(Scan());
  for (int round = 1; round <= 15; ++round) {
    // The push started by the last reads may still run when the files change.
    for (int i = round % 3; i < kFiles; i += 3)
      Write(name(i), SmallContent(i, written[static_cast<size_t>(i)] = round));
    ASSERT_TRUE(view_->Advance(Scan()));
    List(mount_ + "/d");
    for (int k = 0; k < kFiles; ++k) {
      const int i = (k * 7 + round) % kFiles;
      const auto content = ReadFile(mount_ + name(i));
      ASSERT_TRUE(content) << content.error().message();
      ASSERT_TRUE(*content == SmallContent(i, written[static_cast<size_t>(i)])) << i << " in round " << round;
    }
  }
}

TEST_F(ViewTest, AdvanceTouchesOnlyWhatChanged) {
  for (int i = 0; i < 50; ++i) Write("/keep/f" + std::to_string(i), std::to_string(i));
  Write("/src/main.c", "v1");
  options_.passthrough = false;
  Mount(Scan());
  Compare(origin_, mount_, kBase);
  for (int round = 0; round < 20; ++round) {
    Write("/src/main.c", "version " + std::to_string(round));
    ASSERT_TRUE(view_->Advance(Scan()));
    const auto before = Requests();
    Compare(origin_, mount_, kBase);
    EXPECT_LE(Asked(before), 12u);  // excludes the 50 files of /keep
  }
}

TEST_F(ViewTest, PermissionsAreTheTenants) {
  Write("/open", "all", 0644);
  Write("/mine", "mine", 0600);
  ASSERT_EQ(::chown((origin_ + "/mine").c_str(), 1000, 1000), 0);
  Mount(Scan());
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kBase + 1000, kBase + 1000, kBase + 1000) != 0 ||
        ::setresuid(kBase + 1000, kBase + 1000, kBase + 1000) != 0) {
      ::_exit(10);
    }
    if (::open((mount_ + "/open").c_str(), O_RDONLY | O_CLOEXEC) < 0) ::_exit(11);
    if (::open((mount_ + "/mine").c_str(), O_RDONLY | O_CLOEXEC) < 0) ::_exit(12);
    if (::setresuid(kBase + 1000, kBase + 1000, kBase + 1000) != 0) ::_exit(13);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresuid(kBase + 1001, kBase + 1001, kBase + 1001) != 0) ::_exit(10);
    ::_exit(::open((mount_ + "/mine").c_str(), O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES ? 0 : 11);
  }
  ::waitpid(other, &status, 0);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

TEST_F(ViewTest, AFileThatChangedAtHomeIsAnError) {
  Write("/f", Noise(300000, 1));
  Mount(Scan());
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f') return Error(Code::kAborted, "changed");
    return std::nullopt;
  });
  const auto fd = OpenFile(mount_ + "/f", O_RDONLY);
  ASSERT_TRUE(fd);
  char byte;
  EXPECT_EQ(::read(fd->get(), &byte, 1), -1);
  EXPECT_EQ(errno, EIO);
  MutexLock lock(lost_mutex_);
  EXPECT_EQ(lost_, std::vector<std::string>{"/f"});
}

TEST_F(ViewTest, AKilledReaderLeavesWhileHomeIsAway) {
  Write("/f", Noise(300000, 1));
  Mount(Scan());
  source_.Hold(true);
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::open((mount_ + "/f").c_str(), O_RDONLY | O_CLOEXEC);
    char byte;
    ::_exit(::read(fd, &byte, 1) == 1 ? 0 : 1);
  }
  ASSERT_TRUE(source_.WaitHeld(1));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  source_.Hold(false);
  EXPECT_EQ(*ReadFile(mount_ + "/f"), Noise(300000, 1));
}

TEST_F(ViewTest, GoingAwayWhileReadersWaitDoesNotHang) {
  Write("/f", Noise(300000, 1));
  Mount(Scan());
  source_.Hold(true);
  std::atomic<int> error{0};
  std::thread reader([&] {
    const UniqueFd fd(::open((mount_ + "/f").c_str(), O_RDONLY | O_CLOEXEC));
    char byte;
    if (::read(fd.get(), &byte, 1) < 0) error = errno;
  });
  ASSERT_TRUE(source_.WaitHeld(1));
  view_.reset();
  reader.join();
  EXPECT_NE(error, 0);
  source_.Hold(false);
}

TEST_F(ViewTest, NoDescriptorIsKeptForAnyFile) {
  for (int i = 0; i < 400; ++i) Write("/d/f" + std::to_string(i), Noise(130 << 10, static_cast<uint64_t>(i)));
  Mount(Scan());
  const auto fds = [] { return List("/proc/self/fd").size(); };
  const size_t before = fds();
  std::vector<UniqueFd> open;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 400; ++i) {
      UniqueFd fd(::open((mount_ + "/d/f" + std::to_string(i)).c_str(), O_RDONLY | O_CLOEXEC));
      char byte;
      ASSERT_EQ(::read(fd.get(), &byte, 1), 1);
      if (pass == 1) open.push_back(std::move(fd));
    }
  }
  // We have 400 open descriptors; the store's own cache bounds the server's.
  EXPECT_LE(fds(), before + 400 + 300);
  if (view_->stats().passthrough_offered) {
    EXPECT_GE(view_->stats().passthrough_opens, 1u);
  }
}

TEST_F(ViewTest, HundredsOfThousandsOfNamesInOneDirectory) {
  size_t count = 200'000;
  if (const char* large = std::getenv("VRUN_TEST_LARGE")) count = std::strtoul(large, nullptr, 10);
  std::vector<tree::Entry> entries(count);
  for (size_t i = 0; i < count; ++i) {
    entries[i].name = "entry-" + std::to_string(i);
    entries[i].mode = S_IFREG | 0644;
    entries[i].dev = 1;
    entries[i].ino = i + 10;
    entries[i].ctime_ns = 1;
  }
  const auto none = [](std::string_view) { return tree::DirectoryPtr(); };
  const auto big = tree::Directory::Make(std::move(entries), none);
  tree::Entry dir;
  dir.name = "big";
  dir.mode = S_IFDIR | 0755;
  dir.child = big->digest();
  dir.nlink = 0;
  const auto top = tree::Directory::Make({dir}, [&](std::string_view) { return big; });
  tree::Entry root;
  root.mode = S_IFDIR | 0755;
  root.nlink = 0;
  root.child = top->digest();
  const auto snapshot = tree::AssembleTree(root, top);
  source_.Add(snapshot);
  Mount(snapshot->id);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(List(mount_ + "/big").size(), count + 2);
  const auto middle = std::chrono::steady_clock::now();
  struct stat st {};
  for (size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(::stat((mount_ + "/big/entry-" + std::to_string(i * (count / 1000))).c_str(), &st), 0);
  }
  // The kernel may drop pages of a cached listing when memory is short: only then does the next listing ask again.
  uint64_t asked = 1;
  for (int i = 0; i < 5 && asked != 0; ++i) {
    const auto before = Requests();
    EXPECT_EQ(List(mount_ + "/big").size(), count + 2);
    asked = Asked(before);
  }
  EXPECT_EQ(asked, 0u);
  const auto end = std::chrono::steady_clock::now();
  const auto ms = [](auto d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); };
  RecordProperty("first_listing_ms", static_cast<int>(ms(middle - start)));
  RecordProperty("second_listing_ms", static_cast<int>(ms(end - middle)));
}

TEST_F(ViewTest, ErrorsSayWhatToDo) {
  const Digest tree = Scan();
  options_.directory = directory_.path() + "/absent";
  const auto absent = FrozenView::Mount(backend_, tree, options_);
  ASSERT_FALSE(absent);
  EXPECT_NE(absent.error().message().find("absent"), std::string::npos) << absent.error().message();
  options_.directory = mount_;
  options_.fuse_device = directory_.path() + "/no-fuse";
  const auto none = FrozenView::Mount(backend_, tree, options_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kUnsupported);
  EXPECT_NE(none.error().message().find("modprobe fuse"), std::string::npos);
}

}  // namespace
}  // namespace vrun::vfs
