// SPDX-License-Identifier: Apache-2.0
// Another process takes over a mount: real mounts, and servers that are killed. The servers are forks of the test,
// which starts with one thread and keeps the descriptors, as the keeper does.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "base/files.h"
#include "base/io/message_socket.h"
#include "store/store.h"
#include "tree/scan/scan.h"
#include "vfs/content/backend.h"
#include "vfs/frozen/frozen_view.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {
namespace {

// Everything that one process needs to serve. Create it after the fork, because it has threads.
struct Serving {
  Serving(const std::string& directory, const std::string& origin) {
    store = *store::Store::Open({.directory = directory + "/store", .min_free_bytes = 0});
    source.SetReader([origin](const std::string& path, const tree::FileVersion&, uint64_t offset,
                              uint64_t length) -> Result<std::string> {
      VRUN_ASSIGN(const UniqueFd fd, OpenFile(origin + path, O_RDONLY | O_NOFOLLOW));
      std::string data(length, 0);
      VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), data.data(), length, offset));
      data.resize(n);
      return data;
    });
    backend = Backend::Create({.home_id = "home", .home_deadline_micros = 20'000'000}, &source, store.get());
    tree = Scan(origin);
  }
  ~Serving() {
    view.reset();
    backend.reset();
  }
  Digest Scan(const std::string& origin) {
    auto snapshot = tree::Scan({.root = origin, .hollow = {}});
    VRUN_CHECK(snapshot);
    source.Add(*snapshot);
    return (*snapshot)->id;
  }

  std::unique_ptr<store::Store> store;
  FakeSource source;
  std::shared_ptr<Backend> backend;
  Digest tree;
  std::unique_ptr<FrozenView> view;
};

class TakeOverTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0 || ::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "needs root and /dev/fuse";
    static const bool own = ::unshare(CLONE_NEWNS) == 0 &&
                            ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                            ::mount("none", "/sys/fs/fuse/connections", "fusectl", 0, nullptr) == 0;
    if (!own) GTEST_SKIP() << "needs a mount namespace and fusectl";
    origin_ = directory_.path() + "/origin";
    options_.directory = mount_ = directory_.path() + "/mnt";
    ASSERT_TRUE(MakeDirs(origin_, 0755));
    ASSERT_TRUE(MakeDirs(mount_, 0755));
  }
  void TearDown() override {
    Kill();
    here_.reset();
    kept_ = {};
    ::umount2(mount_.c_str(), MNT_DETACH);
  }

  void Write(const std::string& path, const std::string& content) {
    ASSERT_TRUE(MakeDirs((origin_ + path).substr(0, (origin_ + path).rfind('/')), 0755));
    const auto fd = OpenFile(origin_ + path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_TRUE(fd) << fd.error().message();
    ASSERT_TRUE(WriteAll(fd->get(), content));
  }

  // A process that mounts, or takes over from the last one, and serves until it is killed. `held`: home answers only
  // the root; once so many answers are pending, the process reports that it is Stuck.
  void Serve(size_t held = 0) {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ChildMain(pair[1], held);
      ::_exit(0);
    }
    ::close(pair[1]);
    socket_.Reset(pair[0]);
    auto frame = ReceiveFrame(socket_.get());
    ASSERT_TRUE(frame) << "the server died";
    ASSERT_EQ(frame->bytes, "") << frame->bytes;
    if (!kept_.device && frame->fds.size() == 3) {
      kept_ = {std::move(frame->fds[0]), std::move(frame->fds[1]), std::move(frame->fds[2])};
    }
  }
  void ChildMain(int socket, size_t held) {
    Serving* serving = new Serving(directory_.path(), origin_);
    if (held > 0 && kept_.device) serving->source.Hold(true);
    auto view = kept_.device ? FrozenView::TakeOver(serving->backend, Copy(), options_)
                             : FrozenView::Mount(serving->backend, serving->tree, options_);
    if (!view) {
      (void)SendFrame(socket, view.error().message());
      return;
    }
    if (held > 0 && !kept_.device) {
      // The names below the root are loaded; deeper ones are not.
      (void)::access((mount_ + "/none").c_str(), F_OK);
      serving->source.Hold(true);
    }
    const auto handle = (*view)->Handle();
    std::vector<int> fds;
    if (handle) fds = {handle->device.get(), handle->mount.get(), handle->state.get()};
    if (!SendFrame(socket, "", fds)) return;
    if (held > 0 && serving->source.WaitHeld(held, 60'000)) (void)SendFrame(socket, "stuck");
    for (;;) ::pause();
  }
  void Stuck() {
    const auto frame = ReceiveFrame(socket_.get());
    ASSERT_TRUE(frame && frame->bytes == "stuck");
  }
  void Kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  // Takes over in this process, which has threads afterwards: no Serve after it.
  void TakeOverHere() {
    here_ = std::make_unique<Serving>(directory_.path(), origin_);
    auto view = FrozenView::TakeOver(here_->backend, Copy(), options_);
    ASSERT_TRUE(view) << view.error().message();
    here_->view = *std::move(view);
  }
  ViewHandle Copy() const {
    const auto copy = [](const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); };
    return {copy(kept_.device), copy(kept_.mount), copy(kept_.state)};
  }

  static std::string Read(int fd) {
    std::string out(8 << 20, '\0');
    const auto n = PreadUpTo(fd, out.data(), out.size(), 0);
    if (!n) return "read: " + n.error().message();
    out.resize(*n);
    return out;
  }
  std::string ReadPath(const std::string& path) const {
    const UniqueFd fd(::open((mount_ + path).c_str(), O_RDONLY | O_CLOEXEC));
    return fd ? Read(fd.get()) : "open: " + std::to_string(errno);
  }
  static size_t CountNames(const std::string& directory) {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return 0;
    size_t n = 0;
    while (::readdir(dir) != nullptr) ++n;
    ::closedir(dir);
    return n;
  }

  TestDirectory directory_;
  std::string origin_, mount_;
  ViewOptions options_{.ids = 0};
  ViewHandle kept_;
  pid_t child_ = -1;
  UniqueFd socket_;
  std::unique_ptr<Serving> here_;
};

TEST_F(TakeOverTest, WhoWaitsForAnAnswerGetsItFromTheNext) {
  Write("/file", Noise(300'000, 1));
  for (int i = 0; i < 100; ++i) Write("/names/" + std::to_string(i), "x");
  Write("/other/deep/name", "deep");
  Serve(3);
  std::string file, deep;
  size_t names = 0;
  std::thread read([&] { file = ReadPath("/file"); });
  std::thread list([&] { names = CountNames(mount_ + "/names"); });
  std::thread look([&] { deep = ReadPath("/other/deep/name"); });
  Stuck();
  Kill();
  Serve(1);  // again: resent requests are resent once more
  Stuck();
  Kill();
  Serve();
  read.join();
  list.join();
  look.join();
  EXPECT_TRUE(file == Noise(300'000, 1));
  EXPECT_EQ(names, 102u);
  EXPECT_EQ(deep, "deep");
}

TEST_F(TakeOverTest, WhatIsHeldMeansTheSame) {
  for (int i = 0; i < 3000; ++i) Write("/many/" + std::to_string(i), std::to_string(i));
  Write("/dir/sub/file", "content");
  Write("/one", "two names");
  ASSERT_EQ(::link((origin_ + "/one").c_str(), (origin_ + "/dir/two").c_str()), 0);
  Serve();
  const UniqueFd file(::open((mount_ + "/dir/sub/file").c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd sub(::open((mount_ + "/dir/sub").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd unread(::open((mount_ + "/dir/two").c_str(), O_RDONLY | O_CLOEXEC));
  struct stat before {};
  ASSERT_EQ(::fstat(file.get(), &before), 0);
  DIR* many = ::opendir((mount_ + "/many").c_str());
  ASSERT_NE(many, nullptr);
  size_t seen = 0;
  for (; seen < 50; ++seen) ASSERT_NE(::readdir(many), nullptr);
  Kill();
  Serve();
  Kill();
  TakeOverHere();
  struct stat after {};
  ASSERT_EQ(::fstat(file.get(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(Read(file.get()), "content");
  EXPECT_EQ(Read(unread.get()), "two names");
  EXPECT_EQ(ReadPath("/one"), "two names");
  const UniqueFd again(::openat(sub.get(), "file", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(Read(again.get()), "content");
  EXPECT_EQ(::openat(sub.get(), "../absent", O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, ENOENT);
  while (::readdir(many) != nullptr) ++seen;
  ::closedir(many);
  EXPECT_EQ(seen, 3002u);
  for (int i = 0; i < 3000; i += 97) EXPECT_EQ(ReadPath("/many/" + std::to_string(i)), std::to_string(i));
}

TEST_F(TakeOverTest, WhatTheKernelForgetsIsForgotten) {
  for (int i = 0; i < 500; ++i) Write("/gone/" + std::to_string(i), "x");
  Write("/stays", "stays");
  Serve();
  EXPECT_EQ(CountNames(mount_ + "/gone"), 502u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(ReadPath("/gone/" + std::to_string(i)), "x");
  EXPECT_EQ(ReadPath("/stays"), "stays");
  Kill();
  Serve();
  for (int i = 0; i < 500; ++i) EXPECT_EQ(ReadPath("/gone/" + std::to_string(i)), "x");
  Kill();
  TakeOverHere();
  EXPECT_GT(here_->view->stats().inodes, 500u);
  ASSERT_TRUE(RemoveTree(origin_ + "/gone"));
  Write("/new", "new");
  ASSERT_TRUE(here_->view->Advance(here_->Scan(origin_)));
  EXPECT_EQ(ReadPath("/new"), "new");
  EXPECT_EQ(ReadPath("/stays"), "stays");
  EXPECT_EQ(ReadPath("/gone/1"), "open: " + std::to_string(ENOENT));
  // The kernel sends forgets at some later time.
  for (int i = 0; i < 500 && here_->view->stats().inodes > 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_LE(here_->view->stats().inodes, 10u);
}

TEST_F(TakeOverTest, FilesThatAreOpenMayBeOpenedAgain) {
  const std::string big = Noise(3 << 20, 7), small = Noise(200 << 10, 8);
  Write("/big", big);
  Write("/small", small);
  Serve();
  EXPECT_TRUE(ReadPath("/big") == big);
  UniqueFd through(
      ::open((mount_ + "/big").c_str(), O_RDONLY | O_CLOEXEC));  // with passthrough, because it is complete
  const UniqueFd cached(::open((mount_ + "/small").c_str(), O_RDONLY | O_CLOEXEC));  // without: incomplete
  EXPECT_TRUE(Read(cached.get()) == small);
  for (int round = 0; round < 2; ++round) {
    Kill();
    Serve();
    // One inode, one mode, one backing id. A server that did not know them would make these opens fail with EIO.
    EXPECT_TRUE(ReadPath("/big") == big);
    EXPECT_TRUE(ReadPath("/small") == small);
    EXPECT_TRUE(Read(through.get()) == big);
    EXPECT_TRUE(Read(cached.get()) == small);
  }
  Kill();
  TakeOverHere();
  EXPECT_TRUE(ReadPath("/big") == big);
  // A file is complete some time after its last byte was read. If it was opened before that, the inode is cached until
  // nobody has it open.
  through.Reset();
  for (int i = 0; i < 500 && here_->view->stats().passthrough_offered && here_->view->stats().passthrough_opens == 0;
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(ReadPath("/big") == big);
  }
  const ViewStats stats = here_->view->stats();
  EXPECT_EQ(stats.passthrough_opens > 0, stats.passthrough_offered);
}

TEST_F(TakeOverTest, WithoutResendUsersFailAtOnceAsBefore) {
  Write("/file", "content");
  options_.resend = false;
  Serve(1);
  EXPECT_FALSE(kept_.device);
  std::string file;
  std::thread read([&] { file = ReadPath("/file"); });
  Stuck();
  Kill();
  read.join();
  EXPECT_NE(file, "content");
  EXPECT_EQ(ReadPath("/other"), "open: " + std::to_string(ENOTCONN));
}

TEST_F(TakeOverTest, KilledAgainAndAgainUnderLoad) {
  constexpr int kFiles = 300;
  for (int i = 0; i < kFiles; ++i) {
    Write("/d" + std::to_string(i % 20) + "/f" + std::to_string(i), Noise(1000 + static_cast<size_t>(i) * 700, i));
  }
  Serve();
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, right{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      for (int i = t * 100; !stop || right < kFiles; i = (i + 1) % kFiles) {
        const std::string path = "/d" + std::to_string(i % 20) + "/f" + std::to_string(i);
        const bool good = ReadPath(path) == Noise(1000 + static_cast<size_t>(i) * 700, i) &&
                          CountNames(mount_ + "/d" + std::to_string(i % 20)) == kFiles / 20 + 2;
        ++(good ? right : wrong);
        const UniqueFd fd(::open((mount_ + path).c_str(), O_RDONLY | O_CLOEXEC));
        ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);  // so that the next read asks again
      }
    });
  }
  for (int round = 0; round < 15; ++round) {
    // Waits for progress, then kills at an arbitrary moment.
    const int before = right + wrong;
    while (right + wrong < before + 20) std::this_thread::yield();
    Kill();
    Serve();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(right, kFiles);
}

}  // namespace
}  // namespace vrun::vfs
