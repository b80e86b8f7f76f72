// SPDX-License-Identifier: Apache-2.0
// The server of a live view is killed at any moment and another one takes over: real mounts, real processes. Open files
// stay open, and home gets everything. The servers are forks of the test, which keeps the descriptors as the keeper
// does and has no threads. Jobs are forks too.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <random>

#include "base/io/message_socket.h"
#include "live_testing_home.h"
#include "store/store.h"
#include "tree/scan/scan.h"
#include "vfs/live/live_view.h"
#include "vfs/testing/mount_testing.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::test {
namespace {

// With and without requests for opens.
class LiveCrashTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const std::string why = vfs::WhyNot(); !why.empty()) GTEST_SKIP() << why;
    ::alarm(150);
    for (const std::string& made : {origin_, home_, mount_, top_ + "/written"}) ASSERT_TRUE(MakeDirs(made, 0755));
    options_.directory = mount_;
    options_.written = top_ + "/written";
    options_.journal = top_ + "/journal";
    options_.publish_micros = 100'000;
    options_.no_open = GetParam();
  }
  void TearDown() override {
    for (const pid_t pid : {job_, server_}) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    kept_ = {};  // waiting processes get ENOTCONN
    for (const pid_t pid : {job_, server_}) {
      if (pid > 0) ::waitpid(pid, nullptr, 0);
    }
    ::umount2(mount_.c_str(), MNT_DETACH);
    ::alarm(0);
  }

  // Mounts, or takes over. `carrying`: sends the writes home meanwhile.
  void Serve(bool carrying) {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    server_ = ::fork();
    if (server_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ServerMain(pair[1], carrying);
      ::_exit(0);
    }
    ::close(pair[1]);
    socket_.Reset(pair[0]);
    auto frame = ReceiveFrame(socket_.get());
    ASSERT_TRUE(frame) << "the server died";
    ASSERT_EQ(frame->bytes, "");
    if (!kept_.device && frame->fds.size() == 3) {
      kept_ = {std::move(frame->fds[0]), std::move(frame->fds[1]), std::move(frame->fds[2])};
    }
  }
  void ServerMain(int socket, bool carrying) {
    auto store = *store::Store::Open({.directory = top_ + "/store", .min_free_bytes = 0});
    vfs::FakeSource source;
    source.SetReader([this](const std::string& path, const tree::FileVersion&, uint64_t offset,
                            uint64_t length) -> Result<std::string> {
      VRUN_ASSIGN(const UniqueFd fd, OpenFile(origin_ + path, O_RDONLY | O_NOFOLLOW));
      std::string data(length, 0);
      VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), data.data(), length, offset));
      data.resize(n);
      return data;
    });
    auto backend = vfs::Backend::Create({.home_id = "home", .home_deadline_micros = 20'000'000}, &source, store.get());
    auto snapshot = tree::Scan({.root = origin_, .hollow = {}});
    source.Add(*snapshot);
    auto view = kept_.device ? vfs::LiveView::TakeOver(backend, Copy(), options_)
                             : vfs::LiveView::Mount(backend, (*snapshot)->id, options_);
    if (!view) {
      (void)SendFrame(socket, view.error().message());
      return;
    }
    vfs::LiveStream& stream = *(*view)->stream();
    HomeEnd home(home_, top_ + "/apply");
    home.Resume(stream);
    std::unique_ptr<HomeThread> pump;
    if (carrying) pump = std::make_unique<HomeThread>(home, stream);
    const auto handle = (*view)->Handle();
    std::vector<int> fds;
    if (handle) fds = {handle->device.get(), handle->mount.get(), handle->state.get()};
    if (!SendFrame(socket, handle ? "" : handle.error().message(), fds)) return;
    if (!ReceiveFrame(socket)) return;  // the job is over: only the rest must still be sent home
    (*view)->PublishAll();
    pump.reset();
    home.TakeAll(stream);
    (void)SendFrame(socket, "done");
    for (;;) ::pause();
  }
  vfs::ViewHandle Copy() const {
    const auto copy = [](const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); };
    return {copy(kept_.device), copy(kept_.mount), copy(kept_.state)};
  }
  void KillServer() {
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
    server_ = -1;
  }
  void Finish() {
    ASSERT_TRUE(SendFrame(socket_.get(), "finish"));
    const auto frame = ReceiveFrame(socket_.get());
    ASSERT_TRUE(frame && frame->bytes == "done");
  }
  void Job(const std::function<int()>& act) {
    job_ = ::fork();
    if (job_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(act());
  }
  bool JobRuns() {
    int status = 0;
    if (::waitpid(job_, &status, WNOHANG) != job_) return true;
    job_ = -1;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the job failed with " << status;
    return false;
  }

  vfs::TestDirectory directory_;
  const std::string top_ = directory_.path(), origin_ = top_ + "/origin", home_ = top_ + "/home",
                    mount_ = top_ + "/mnt";
  vfs::LiveViewOptions options_;
  vfs::ViewHandle kept_;
  UniqueFd socket_;
  pid_t server_ = -1, job_ = -1;
};

TEST_P(LiveCrashTest, AJobThatWritesNoticesNothing) {
  RandomWork(origin_, 3).BuildTree(25);
  ASSERT_EQ(::system(("cp -a '" + origin_ + "/.' '" + home_ + "'").c_str()), 0);
  ASSERT_NO_FATAL_FAILURE(Serve(true));
  const std::string native = top_ + "/native";
  ASSERT_EQ(::system(("cp -a '" + origin_ + "' '" + native + "'").c_str()), 0);
  Job([&] {
    RandomWork here(mount_, 21), there(native, 21);
    for (int i = 0; i < 400; ++i) {
      here.Step();
      there.Step();
      if (here.log() == there.log()) continue;
      std::fprintf(stderr, "step %d\n in the view: %s\n elsewhere:   %s\n", i, here.log().back().c_str(),
                   there.log().back().c_str());
      return 1;
    }
    return 0;
  });
  std::mt19937 random(4);
  int kills = 0;
  for (; JobRuns(); ++kills) {
    ::usleep(static_cast<useconds_t>(20'000 + random() % 100'000));
    KillServer();
    ASSERT_NO_FATAL_FAILURE(Serve(kills % 3 != 0));
  }
  EXPECT_GT(kills, 3);
  ASSERT_NO_FATAL_FAILURE(Finish());
  const Description want = DescribeWritten(mount_);
  EXPECT_EQ(Differences(want, DescribeWritten(home_), {}), "");
  Description like = DescribeWritten(native), got = want;
  for (auto* all : {&like, &got}) {
    for (auto& [path, described] : *all) described.mtime_ns = 0;  // the two sides have different clocks
  }
  EXPECT_EQ(Differences(like, got, {}), "");
}

TEST_P(LiveCrashTest, WhatIsOpenStaysOpen) {
  ASSERT_NO_FATAL_FAILURE(Serve(false));
  int go[2], done[2];
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(done, O_CLOEXEC), 0);
  Job([&] {
    const std::string log = mount_ + "/log";
    const UniqueFd fd(::open(log.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    const UniqueFd unnamed(::open((mount_ + "/gone").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!fd || !unnamed || ::unlink((mount_ + "/gone").c_str()) != 0) return 1;
    if (::write(fd.get(), "one\n", 4) != 4 || ::write(unnamed.get(), "kept", 4) != 4) return 2;
    char byte = 0;
    if (::write(done[1], "x", 1) != 1 || ::read(go[0], &byte, 1) != 1) return 3;
    if (::write(fd.get(), "two\n", 4) != 4) return 4;
    char buffer[16] = {};
    if (::pread(unnamed.get(), buffer, sizeof buffer, 0) != 4 || std::string(buffer) != "kept") return 5;
    if (::pread(fd.get(), buffer, sizeof buffer, 0) != 8 || std::string(buffer) != "one\ntwo\n") return 6;
    return ::fsync(fd.get()) == 0 ? 0 : 7;
  });
  char byte = 0;
  ASSERT_EQ(::read(done[0], &byte, 1), 1);
  KillServer();
  ASSERT_NO_FATAL_FAILURE(Serve(true));
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  while (JobRuns()) ::usleep(1000);
  EXPECT_EQ(ReadFile(home_ + "/log").value_or("(none)"), "one\ntwo\n");
  EXPECT_FALSE(PathExists(home_ + "/gone"));
}

INSTANTIATE_TEST_SUITE_P(, LiveCrashTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "NoOpen" : "Opens"; });

}  // namespace
}  // namespace vrun::test
