// SPDX-License-Identifier: Apache-2.0
// Real mounts, in a mount namespace of their own. A test that hangs ends itself: a watchdog aborts the FUSE connections
// that this process made (and no others), then the process. (Not under valgrind: its one thread at a time would wait
// for itself inside the kernel.)
#include "vfs/view.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include "base/files.h"
#include "store/store.h"
#include "tree/scan.h"
#include "vfs/fuse_abi.h"
#include "vfs/mount_testing.h"
#include "vfs/vfs_testing.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kBase = 200000;

class ViewTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(); !why.empty()) GTEST_SKIP() << why;
    origin_ = directory_.path() + "/origin";
    mount_ = directory_.path() + "/mnt";
    ASSERT_TRUE(MakeDirs(origin_, 0755));
    ASSERT_TRUE(MakeDirs(mount_, 0755));
    auto store = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    ASSERT_TRUE(store) << store.error().message();
    store_ = *std::move(store);
    source_.SetReader([this](const std::string& path, uint64_t offset, uint64_t length) -> Result<std::string> {
      VRUN_ASSIGN(const UniqueFd fd, OpenFile(origin_ + path, O_RDONLY | O_NOFOLLOW));
      std::string data(length, 0);
      VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), data.data(), length, offset));
      data.resize(n);
      return data;
    });
    backend_ = Backend::Create({.home_id = "home", .home_deadline_micros = 20'000'000}, &source_, store_.get());
  }
  void TearDown() override {
    view_.reset();
    backend_.reset();
  }

  Digest Scan() {
    auto snapshot = tree::Scan({.root = origin_, .hollow = {}});
    EXPECT_TRUE(snapshot) << snapshot.error().message();
    source_.Add(*snapshot);
    return (*snapshot)->id;
  }
  void Mount(const Digest& tree) {
    view_.reset();
    options_.directory = mount_;
    options_.on_content_lost = [this](const std::string& path, const std::string&) {
      std::lock_guard lock(lost_mutex_);
      lost_.push_back(path);
    };
    auto view = View::Mount(backend_, tree, options_);
    ASSERT_TRUE(view) << view.error().message();
    view_ = *std::move(view);
    watchdog_.Watch(mount_);
  }
  void Write(const std::string& path, const std::string& content, mode_t mode = 0644) {
    ASSERT_TRUE(MakeDirs((origin_ + path).substr(0, (origin_ + path).rfind('/')), 0755));
    const auto fd = OpenFile(origin_ + path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    ASSERT_TRUE(fd) << fd.error().message();
    ASSERT_TRUE(WriteAll(fd->get(), content));
    ::fchmod(fd->get(), mode);
  }
  std::array<uint64_t, 64> Requests() { return view_->stats().requests; }
  // Lookups, attributes, reads, listings since `before`; opens and xattrs are not cached by the kernel.
  uint64_t Asked(const std::array<uint64_t, 64>& before) {
    const auto now = Requests();
    uint64_t sum = 0;
    for (const int op :
         {FUSE_LOOKUP, FUSE_GETATTR, FUSE_READ, FUSE_READLINK, FUSE_READDIR, FUSE_READDIRPLUS, FUSE_OPENDIR}) {
      sum += now[op] - before[op];
    }
    return sum;
  }

  // The kernel may drop pages when memory is short: then the next pass asks for those, and only then.
  void ExpectNothingAsked(const std::function<void()>& pass) {
    uint64_t asked = 1;
    for (int i = 0; i < 5 && asked != 0; ++i) {
      const auto before = Requests();
      pass();
      asked = Asked(before);
    }
    EXPECT_EQ(asked, 0u);
  }

  Watchdog watchdog_{std::getenv("VRUN_TEST_LARGE") != nullptr ? 600 : 90};
  TestDirectory directory_;
  std::string origin_;
  std::string mount_;
  std::unique_ptr<store::Store> store_;
  FakeSource source_;
  std::shared_ptr<Backend> backend_;
  ViewOptions options_{.uid_base = kBase};
  std::unique_ptr<View> view_;
  std::mutex lost_mutex_;
  std::vector<std::string> lost_;
};

std::vector<std::string> List(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return {"opendir: " + std::string(std::strerror(errno))};
  while (const dirent* entry = ::readdir(dir)) names.emplace_back(entry->d_name);
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

std::string ReadLinkOf(const std::string& path) {
  char buffer[4096];
  const ssize_t n = ::readlink(path.c_str(), buffer, sizeof buffer);
  return n < 0 ? "error" : std::string(buffer, static_cast<size_t>(n));
}

std::map<std::string, std::string> XattrsOf(const std::string& path) {
  std::map<std::string, std::string> all;
  char names[4096];
  const ssize_t n = ::llistxattr(path.c_str(), names, sizeof names);
  for (ssize_t at = 0; at < n; at += static_cast<ssize_t>(std::strlen(names + at)) + 1) {
    char value[4096];
    const ssize_t size = ::lgetxattr(path.c_str(), names + at, value, sizeof value);
    all[names + at] = size < 0 ? std::strerror(errno) : std::string(value, static_cast<size_t>(size));
  }
  return all;
}

// Everything that a program can see of two trees, owners moved. An overlay numbers its directories itself.
void Compare(const std::string& home, const std::string& view, uint32_t base, bool overlay = false) {
  const auto names = List(home);
  EXPECT_EQ(List(view), names) << home;
  for (const std::string& name : names) {
    if (name == ".." || name == ".") continue;
    const std::string a = home + "/" + name;
    const std::string b = view + "/" + name;
    struct stat at {};
    struct stat bt {};
    ASSERT_EQ(::lstat(a.c_str(), &at), 0);
    ASSERT_EQ(::lstat(b.c_str(), &bt), 0) << b << ": " << std::strerror(errno);
    EXPECT_EQ(bt.st_mode, at.st_mode) << a;
    EXPECT_EQ(bt.st_uid, base + (at.st_uid <= 65535 ? at.st_uid : 65534)) << a;
    EXPECT_EQ(bt.st_gid, base + (at.st_gid <= 65535 ? at.st_gid : 65534)) << a;
    if (!overlay || !S_ISDIR(at.st_mode)) {
      EXPECT_EQ(bt.st_ino, at.st_ino) << a;
    }
    EXPECT_EQ(bt.st_mtim.tv_sec, at.st_mtim.tv_sec) << a;
    EXPECT_EQ(bt.st_mtim.tv_nsec, at.st_mtim.tv_nsec) << a;
    if (S_ISDIR(at.st_mode)) {
      Compare(a, b, base, overlay);
      continue;
    }
    EXPECT_EQ(bt.st_nlink, at.st_nlink) << a;
    EXPECT_EQ(bt.st_size, at.st_size) << a;
    EXPECT_EQ(bt.st_ctim.tv_nsec, at.st_ctim.tv_nsec) << a;
    EXPECT_EQ(bt.st_rdev, at.st_rdev) << a;
    if (S_ISLNK(at.st_mode)) {
      EXPECT_EQ(ReadLinkOf(b), ReadLinkOf(a));
    }
    if (S_ISREG(at.st_mode)) {
      EXPECT_EQ(bt.st_blocks, at.st_blocks) << a;
      const auto x = ReadFile(a);
      const auto y = ReadFile(b);
      ASSERT_TRUE(x);
      ASSERT_TRUE(y) << y.error().message();
      EXPECT_TRUE(*x == *y) << a;
    }
    EXPECT_EQ(XattrsOf(b), XattrsOf(a)) << a;
  }
}

// What a kernel may lack; each forced off here.
struct Features {
  bool passthrough;
  bool push;
};

// A tree with everything that a root may hold.
class RichTree : public ViewTest, public testing::WithParamInterface<Features> {
 protected:
  void SetUp() override {
    ViewTest::SetUp();
    if (IsSkipped()) return;
    options_.passthrough = GetParam().passthrough;
    options_.push = GetParam().push;
    Write("/etc/hosts", "127.0.0.1 localhost\n");
    Write("/etc/shadow", "secret", 0600);
    Write("/bin/tool", "#!/bin/sh\necho ran\n", 04755);
    Write("/lib/big", Noise(3 << 20, 1));
    Write("/lib/medium", Noise(200 << 10, 2));
    Write("/empty", "");
    Write("/" + std::string(255, 'n'), "long name");
    Write("/line\nbreak", "newline");
    Write("/\xff\xfe\x80 not utf-8", "bytes");
    Write("/deep/a/b/c/d/e/f", "deep");
    ASSERT_EQ(::link((origin_ + "/etc/hosts").c_str(), (origin_ + "/hosts-again").c_str()), 0);
    ASSERT_EQ(::symlink("etc/hosts", (origin_ + "/link").c_str()), 0);
    ASSERT_EQ(::symlink("loop", (origin_ + "/loop").c_str()), 0);
    ASSERT_EQ(::symlink(std::string(4000, 'x').c_str(), (origin_ + "/long-link").c_str()), 0);
    ASSERT_EQ(::mkfifo((origin_ + "/fifo").c_str(), 0644), 0);
    ASSERT_EQ(::mknod((origin_ + "/null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = origin_ + "/sock";
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::copy(path.begin(), path.end(), address.sun_path);
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    // Sparse: a hole between two islands.
    const auto sparse = OpenFile(origin_ + "/sparse", O_WRONLY | O_CREAT, 0644);
    ASSERT_TRUE(sparse);
    ASSERT_TRUE(PwriteAll(sparse->get(), "start", 0));
    ASSERT_TRUE(PwriteAll(sparse->get(), "end", 5 << 20));
    ASSERT_EQ(::lchown((origin_ + "/etc/hosts").c_str(), 1000, 3'000'000), 0);
    ASSERT_EQ(::lchown((origin_ + "/link").c_str(), 65535, 65536), 0);
    ASSERT_EQ(::chmod((origin_ + "/bin/tool").c_str(), 06755), 0);
    ASSERT_EQ(::mkdir((origin_ + "/sticky").c_str(), 0755), 0);
    ASSERT_EQ(::chmod((origin_ + "/sticky").c_str(), 01777), 0);
    ASSERT_EQ(::setxattr((origin_ + "/etc/hosts").c_str(), "user.note", "some\0value", 10, 0), 0)
        << std::strerror(errno);
    const timespec times[2] = {{-5, 0}, {-100, 123456789}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (origin_ + "/etc/shadow").c_str(), times, 0), 0);
    Mount(Scan());
  }
};

TEST_P(RichTree, LooksLikeHomeInEveryDetail) {
  Compare(origin_, mount_, kBase);
  struct stat root {};
  ASSERT_EQ(::stat(mount_.c_str(), &root), 0);
  EXPECT_EQ(root.st_uid, kBase);
  // And once more from what is cached now, and with passthrough where it works.
  Compare(origin_, mount_, kBase);
  EXPECT_EQ(view_->stats().malformed, 0u);
  if (GetParam().passthrough && view_->stats().passthrough_offered) {
    EXPECT_GT(view_->stats().passthrough_opens, 0u);
  } else {
    EXPECT_EQ(view_->stats().passthrough_opens, 0u);
    EXPECT_LE(Requests()[FUSE_OPEN], 2u);  // no-open
  }
  EXPECT_LE(Requests()[FUSE_OPENDIR], 2u);
}

TEST_P(RichTree, TheSecondPassAsksNothing) {
  Compare(origin_, mount_, kBase);
  if (GetParam().passthrough)
    Compare(origin_, mount_, kBase);  // large files are passed through from their second open on
  EXPECT_NE(::access((mount_ + "/not there").c_str(), F_OK), 0);
  ExpectNothingAsked([&] {
    Compare(origin_, mount_, kBase);
    EXPECT_NE(::access((mount_ + "/not there").c_str(), F_OK), 0);
  });
}

TEST_P(RichTree, NothingCanBeWritten) {
  EXPECT_EQ(::open((mount_ + "/etc/hosts").c_str(), O_WRONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::mkdir((mount_ + "/new").c_str(), 0755), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::open((mount_ + "/null").c_str(), O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, EACCES);  // nodev
}

TEST_P(RichTree, LinksLoopsSparseFilesAndFifosWork) {
  EXPECT_EQ(*ReadFile(mount_ + "/link"), "127.0.0.1 localhost\n");
  EXPECT_EQ(::open((mount_ + "/loop").c_str(), O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, ELOOP);
  const auto sparse = OpenFile(mount_ + "/sparse", O_RDONLY);
  ASSERT_TRUE(sparse);
  EXPECT_EQ(::lseek(sparse->get(), 0, SEEK_DATA), 0);
  EXPECT_EQ(::lseek(sparse->get(), 0, SEEK_HOLE), (5 << 20) + 3);
  // Both ends of a FIFO meet in the kernel.
  const UniqueFd reader(::open((mount_ + "/fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const UniqueFd writer(::open((mount_ + "/fifo").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader);
  ASSERT_TRUE(writer) << std::strerror(errno);
  char byte = 'x';
  EXPECT_EQ(::write(writer.get(), &byte, 1), 1);
  EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
}

TEST_P(RichTree, MapsAndRuns) {
  for (int i = 0; i < 3; ++i) {
    const auto fd = OpenFile(mount_ + "/lib/big", O_RDONLY);
    ASSERT_TRUE(fd);
    void* map = ::mmap(nullptr, 3 << 20, PROT_READ, MAP_PRIVATE, fd->get(), 0);
    ASSERT_NE(map, MAP_FAILED);
    EXPECT_EQ(std::string_view(static_cast<char*>(map), 3 << 20), Noise(3 << 20, 1));
    ::munmap(map, 3 << 20);
  }
  const std::string command = mount_ + "/bin/tool > " + directory_.path() + "/out";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(*ReadFile(directory_.path() + "/out"), "ran\n");
}

TEST_P(RichTree, AnOverlayOnTopTakesChanges) {
  for (const char* name : {"/upper", "/work", "/merged"}) ASSERT_TRUE(MakeDirs(directory_.path() + name, 0755));
  const std::string merged = directory_.path() + "/merged";
  const auto overlay = [&] {
    const std::string options = "lowerdir=" + mount_ + ",upperdir=" + directory_.path() +
                                "/upper,workdir=" + directory_.path() + "/work,redirect_dir=on,metacopy=on";
    return ::mount("overlay", merged.c_str(), "overlay", 0, options.c_str());
  };
  ASSERT_EQ(overlay(), 0) << std::strerror(errno);
  Compare(origin_, merged, kBase, true);
  // A second job: a new overlay on the same, warm view.
  ASSERT_EQ(::umount2(merged.c_str(), 0), 0);
  ASSERT_EQ(overlay(), 0) << std::strerror(errno);
  if (GetParam().passthrough) Compare(origin_, merged, kBase, true);
  ExpectNothingAsked([&] { Compare(origin_, merged, kBase, true); });

  EXPECT_EQ(::chmod((merged + "/lib/big").c_str(), 0600), 0);  // copies up the metadata only
  struct stat st {};
  EXPECT_EQ(::stat((merged + "/lib/big").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_EQ(*ReadFile(merged + "/lib/big"), Noise(3 << 20, 1));
  EXPECT_EQ(::rename((merged + "/deep/a").c_str(), (merged + "/moved").c_str()), 0) << std::strerror(errno);
  EXPECT_EQ(*ReadFile(merged + "/moved/b/c/d/e/f"), "deep");
  EXPECT_EQ(::unlink((merged + "/etc/shadow").c_str()), 0);
  EXPECT_NE(::access((merged + "/etc/shadow").c_str(), F_OK), 0);
  {
    const auto fd = OpenFile(merged + "/etc/hosts", O_WRONLY | O_APPEND);
    ASSERT_TRUE(fd);
    ASSERT_TRUE(WriteAll(fd->get(), "more\n"));
  }
  EXPECT_EQ(*ReadFile(merged + "/etc/hosts"), "127.0.0.1 localhost\nmore\n");
  EXPECT_EQ(std::system((merged + "/bin/tool > " + merged + "/out").c_str()), 0);
  EXPECT_EQ(*ReadFile(merged + "/out"), "ran\n");
  EXPECT_EQ(::symlink("x", (merged + "/new-link").c_str()), 0);
  EXPECT_EQ(*ReadFile(mount_ + "/etc/hosts"), "127.0.0.1 localhost\n");
  ASSERT_EQ(::umount2(merged.c_str(), 0), 0);
}

TEST_P(RichTree, ClonesLiveBesideTheMount) {
  const auto clone = view_->CloneMount();
  ASSERT_TRUE(clone) << clone.error().message();
  const std::string other = directory_.path() + "/other";
  ASSERT_TRUE(MakeDirs(other, 0755));
  ASSERT_EQ(::move_mount(clone->get(), "", AT_FDCWD, other.c_str(), MOVE_MOUNT_F_EMPTY_PATH), 0)
      << std::strerror(errno);
  Compare(origin_, other, kBase);
  // The server goes first: users of the clone get an error, not a hang.
  view_.reset();
  EXPECT_EQ(::open((other + "/etc/not asked for yet").c_str(), O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, ENOTCONN);
  ASSERT_EQ(::umount2(other.c_str(), MNT_DETACH), 0);
}

TEST_P(RichTree, AdvanceShowsEditsAndKeepsTheRest) {
  Compare(origin_, mount_, kBase);
  Compare(origin_, mount_, kBase);
  EXPECT_NE(::access((mount_ + "/etc/new").c_str(), F_OK), 0);
  const UniqueFd old(::open((mount_ + "/lib/medium").c_str(), O_RDONLY | O_CLOEXEC));

  Write("/etc/new", "appeared");
  Write("/lib/big", Noise(2 << 20, 9));  // rewritten in place
  ASSERT_EQ(::unlink((origin_ + "/etc/shadow").c_str()), 0);
  ASSERT_EQ(::chmod((origin_ + "/deep").c_str(), 0700), 0);
  ASSERT_EQ(::rename((origin_ + "/bin/tool").c_str(), (origin_ + "/bin/renamed").c_str()), 0);
  ASSERT_EQ(::unlink((origin_ + "/empty").c_str()), 0);
  ASSERT_EQ(::mkdir((origin_ + "/empty").c_str(), 0755), 0);
  const auto advanced = view_->Advance(Scan());
  ASSERT_TRUE(advanced) << advanced.error().message();
  Compare(origin_, mount_, kBase);
  Compare(origin_, mount_, kBase);

  ExpectNothingAsked([&] { Compare(origin_, mount_, kBase); });
}

std::string NameOf(const testing::TestParamInfo<Features>& info) {
  const auto [passthrough, push] = info.param;
  return std::string(passthrough ? "passthrough" : "cached") + (push ? "AndPush" : "");
}

INSTANTIATE_TEST_SUITE_P(With, RichTree,
                         testing::Values(Features{true, true}, Features{true, false}, Features{false, true},
                                         Features{false, false}),
                         NameOf);

// 0, 1, a page, one more, the most that is pushed, one more.
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
  Mount(tree);                      // and the kernel nothing
  EXPECT_EQ(List(mount_ + "/d").size(), kFiles + 2u);
  const auto read = [&](int i) {
    const auto content = ReadFile(mount_ + name(i));
    ASSERT_TRUE(content) << content.error().message();
    EXPECT_TRUE(*content == SmallContent(i, 0)) << i;
  };
  // The files from the fifth on, for three reads (one is of an empty file).
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
  EXPECT_LE(after[FUSE_READ] - before[FUSE_READ], 3u);  // pages that the kernel has dropped meanwhile
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
    // The push that the last reads began may still be going on when the files change.
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
    EXPECT_LE(Asked(before), 12u);  // not the 50 files of /keep
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
  std::lock_guard lock(lost_mutex_);
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
  // 400 of ours are open; the server's part is bounded by the store's own cache.
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
  const auto snapshot = tree::MakeSnapshot(root, top);
  source_.Add(snapshot);
  Mount(snapshot->id);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(List(mount_ + "/big").size(), count + 2);
  const auto middle = std::chrono::steady_clock::now();
  struct stat st {};
  for (size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(::stat((mount_ + "/big/entry-" + std::to_string(i * (count / 1000))).c_str(), &st), 0);
  }
  // The kernel may drop pages of a cached listing when memory is short: then the next one asks again, and only then.
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
  const auto absent = View::Mount(backend_, tree, options_);
  ASSERT_FALSE(absent);
  EXPECT_NE(absent.error().message().find("absent"), std::string::npos) << absent.error().message();
  options_.directory = mount_;
  options_.fuse_device = directory_.path() + "/no-fuse";
  const auto none = View::Mount(backend_, tree, options_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kUnsupported);
  EXPECT_NE(none.error().message().find("modprobe fuse"), std::string::npos);
}

}  // namespace
}  // namespace vrun::vfs
