// SPDX-License-Identifier: Apache-2.0
// Another process takes over a live view: state that the kernel has cached, and changes at home meanwhile. The first
// servers are forks of the test, which has no threads then and keeps the descriptors, as the keeper does.
#include <dirent.h>
#include <linux/filter.h>
#include <linux/fuse.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstddef>
#include <map>

#include "base/io/message_socket.h"
#include "vfs/live/tree/live_tree.h"
#include "vfs/testing/live_testing.h"

namespace vrun::vfs {
namespace {

// Everything that one process needs to serve. Create it after the fork, because it has threads.
struct Serving {
  Serving(const std::string& directory, const std::string& origin) : origin_(origin) {
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
  }
  ~Serving() {
    view.reset();
    backend.reset();
  }
  Digest Scan() {
    auto snapshot = tree::Scan({.root = origin_, .hollow = {}});
    VRUN_CHECK(snapshot);
    source.Add(*snapshot);
    return (*snapshot)->id;
  }
  // Home has everything that was written.
  Status Advance() {
    view->SeeCloses();
    v1::WriteBackAck ack;
    const uint64_t last = view->stream()->last();
    ack.set_sequence(last << LiveStream::kPlaceBits | LiveStream::kLastPlace);
    if (last > 0) view->stream()->Acknowledge(ack);
    return view->Advance(Scan(), last);
  }

  const std::string origin_;
  std::unique_ptr<store::Store> store;
  FakeSource source;
  std::shared_ptr<Backend> backend;
  std::unique_ptr<LiveView> view;
};

class LiveTakeOverTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(); !why.empty()) GTEST_SKIP() << why;
    ::alarm(90);
    for (const std::string& made : {origin_, mount_, top_ + "/written"}) ASSERT_TRUE(MakeDirs(made, 0755));
    options_.directory = mount_;
    options_.written = top_ + "/written";
    options_.journal = top_ + "/journal";
  }
  void TearDown() override {
    Kill();
    here_.reset();
    kept_ = {};
    ::umount2(mount_.c_str(), MNT_DETACH);
    ::alarm(0);
  }

  void Serve() {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    server_ = ::fork();
    if (server_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ServerMain(pair[1]);
      ::_exit(0);
    }
    ::close(pair[1]);
    socket_.Reset(pair[0]);
    auto frame = ReceiveFrame(socket_.get());
    ASSERT_TRUE(frame) << "the server died";
    ASSERT_EQ(frame->bytes, "");
    ASSERT_EQ(frame->fds.size(), 3u);
    kept_ = {std::move(frame->fds[0]), std::move(frame->fds[1]), std::move(frame->fds[2])};
  }
  void ServerMain(int socket) {
    auto* serving = new Serving(top_, origin_);
    auto view = LiveView::Mount(serving->backend, serving->Scan(), options_);
    if (!view) return (void)SendFrame(socket, view.error().message());
    serving->view = *std::move(view);
    const auto handle = serving->view->Handle();
    if (!handle) return (void)SendFrame(socket, handle.error().message());
    (void)SendFrame(socket, "", {handle->device.get(), handle->mount.get(), handle->state.get()});
    while (const auto told = ReceiveFrame(socket)) {
      Status done;
      if (told->bytes == kDieAtName) DieBeforeWriting(3);
      if (told->bytes == kDieAtAnswer) {
        DieBeforeWriting(1);
      } else if (told->bytes == kTreeOnly) {
        done = serving->view->Advance(serving->Scan(), 0);
      } else {
        if (told->bytes == kHold) Hold(serving, socket);
        done = serving->Advance();
      }
      (void)SendFrame(socket, done ? "" : done.error().message());
    }
    for (;;) ::pause();
  }
  // The server says "stuck" once it waits for home.
  static void Hold(Serving* serving, int socket) {
    serving->source.Hold(true);
    std::thread([serving, socket] {
      if (serving->source.WaitHeld(1, 60'000)) (void)SendFrame(socket, "stuck");
    }).detach();
  }
  // Dies before a write to the kernel with at least so many parts: answers have one or two, notices about names three.
  static void DieBeforeWriting(uint32_t parts) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_writev, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, parts, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(filter), filter};
    VRUN_CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    VRUN_CHECK(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
  }
  static constexpr const char* kAdvance = "advance";         // as Serving::Advance
  static constexpr const char* kTreeOnly = "tree only";      // home has heard of nothing
  static constexpr const char* kHold = "advance and hold";   // and then home answers nothing
  static constexpr const char* kDieAtName = "advance, die";  // at the first notice of a name
  static constexpr const char* kDieAtAnswer = "die";         // at the first answer
  void Tell(const char* what, const char* answer = "") {
    ASSERT_TRUE(SendFrame(socket_.get(), what));
    const auto frame = ReceiveFrame(socket_.get());
    ASSERT_TRUE(frame);
    ASSERT_EQ(frame->bytes, answer);
  }
  void Dies() {
    int status = 0;
    ASSERT_EQ(::waitpid(server_, &status, 0), server_);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) << status;
    server_ = -1;
  }
  void Kill() {
    if (server_ <= 0) return;
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
    server_ = -1;
  }
  void TakeOver() {
    Kill();
    const auto copy = [](const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); };
    here_ = std::make_unique<Serving>(top_, origin_);
    (void)here_->Scan();  // asks again for what the previous server had not saved
    auto view =
        LiveView::TakeOver(here_->backend, {copy(kept_.device), copy(kept_.mount), copy(kept_.state)}, options_);
    ASSERT_TRUE(view) << view.error().message();
    here_->view = *std::move(view);
  }
  void Follow() {
    const Status advanced = here_->Advance();
    ASSERT_TRUE(advanced) << advanced.error().message();
  }

  std::string In(const std::string& path) const { return mount_ + path; }
  bool Is(const std::string& path) const { return ::access(In(path).c_str(), F_OK) == 0; }
  std::string Content(const std::string& path) const { return ReadFile(In(path)).value_or("(none)"); }
  uint64_t Lookups() const { return here_->view->stats().requests[FUSE_LOOKUP]; }
  static bool Soon(const std::function<bool()>& holds) {
    for (int i = 0; i < 10'000 && !holds(); ++i) ::usleep(2'000);
    return holds();
  }
  // Writes at home.
  void Write(const std::string& path, const std::string& content) const {
    ASSERT_TRUE(MakeDirs((origin_ + path).substr(0, (origin_ + path).rfind('/')), 0755));
    ASSERT_TRUE(WriteFileAtomic(origin_ + path, content, 0644));
  }
  void Remove(const std::string& path) const { ASSERT_EQ(::unlink((origin_ + path).c_str()), 0); }
  // Reads the next part of a listing.
  static int List(int directory, std::map<std::string, int>* seen) {
    alignas(8) char buffer[2048];
    const long n = ::syscall(SYS_getdents64, directory, buffer, sizeof buffer);
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const dirent64*>(buffer + at);
      ++(*seen)[entry->d_name];
      at += entry->d_reclen;
    }
    return static_cast<int>(n);
  }
  UniqueFd Directory(const std::string& path) const {
    return UniqueFd(::open(In(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }

  TestDirectory directory_;
  const std::string top_ = directory_.path(), origin_ = top_ + "/origin", mount_ = top_ + "/mnt";
  LiveViewOptions options_;
  ViewHandle kept_;
  UniqueFd socket_;
  pid_t server_ = -1;
  std::unique_ptr<Serving> here_;
};

// Otherwise a job that removes a tree would find names that are gone, or miss existing ones.
TEST_F(LiveTakeOverTest, TheKernelHearsWhatTheServerBeforeDidNotSay) {
  Write("/dir/gone", "x");
  Write("/dir/saved", "old");
  Serve();
  EXPECT_EQ(Content("/dir/gone") + Content("/dir/saved"), "xold");
  EXPECT_FALSE(Is("/dir/new"));
  Remove("/dir/gone");
  Write("/dir/saved", "new");
  Write("/dir/new", "y");
  ASSERT_TRUE(SendFrame(socket_.get(), kDieAtName));
  ASSERT_NO_FATAL_FAILURE(Dies());
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  EXPECT_TRUE(Soon([&] { return !Is("/dir/gone") && Is("/dir/new") && Content("/dir/saved") == "new"; }));
  EXPECT_EQ(::unlink(In("/dir/saved").c_str()), 0);
  EXPECT_EQ(::unlink(In("/dir/new").c_str()), 0);
  EXPECT_EQ(::rmdir(In("/dir").c_str()), 0) << std::strerror(errno);
}

TEST_F(LiveTakeOverTest, WhatHomeRemovedMeanwhileIsGone) {
  Write("/dir/gone", "x");
  Write("/dir/kept", "y");
  Write("/dir/below/gone", "z");
  Serve();
  EXPECT_TRUE(Is("/dir/gone") && Is("/dir/kept") && Is("/dir/below/gone"));
  Kill();
  Remove("/dir/gone");
  Remove("/dir/below/gone");
  // Removes the old directory objects from this process's reach: only home has them then.
  ASSERT_TRUE(RemoveTree(top_ + "/store"));
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  ASSERT_NO_FATAL_FAILURE(Follow());
  EXPECT_FALSE(Is("/dir/gone"));
  EXPECT_FALSE(Is("/dir/below/gone"));
  EXPECT_TRUE(Is("/dir/kept"));
}

// The tree was merged, but the object of one of our directories was still to be fetched.
TEST_F(LiveTakeOverTest, ADirectoryThatWasNotComparedIsAfterwards) {
  Write("/parent/file", "x");
  Serve();
  ASSERT_EQ(::mkdir(In("/parent/made").c_str(), 0755), 0);
  Write("/parent/made/theirs", "y");
  ASSERT_NO_FATAL_FAILURE(Tell(kTreeOnly));
  EXPECT_FALSE(Is("/parent/made/theirs"));
  ASSERT_NO_FATAL_FAILURE(Tell(kHold, "stuck"));
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  ASSERT_NO_FATAL_FAILURE(Follow());
  EXPECT_TRUE(Is("/parent/made/theirs"));
}

TEST_F(LiveTakeOverTest, AListingGoesOnWhereItWas) {
  for (int i = 0; i < 150; ++i) Write("/dir/name" + std::to_string(100 + i), "");
  Serve();
  ASSERT_TRUE(Is("/dir/name100"));
  Write("/dir/a", "first, in order of names");
  Write("/dir/b", "");
  ASSERT_NO_FATAL_FAILURE(Tell(kAdvance));  // a name with a place keeps it
  std::map<std::string, int> seen;
  const UniqueFd directory = Directory("/dir");
  for (int i = 0; i < 2; ++i) ASSERT_GT(List(directory.get(), &seen), 0);
  EXPECT_LT(seen.size(), 140u);
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  ASSERT_GT(List(directory.get(), &seen), 0);
  Write("/dir/aa", "");
  ASSERT_NO_FATAL_FAILURE(Follow());
  while (List(directory.get(), &seen) > 0) {
  }
  for (const auto& [name, times] : seen) EXPECT_EQ(times, 1) << name;
  seen.erase("aa");
  EXPECT_EQ(seen.size(), 154u);
}

// Existing and absent names that were cached before the take-over.
TEST_F(LiveTakeOverTest, InDoubtNothingIsBelievedWhoeverToldIt) {
  Write("/dir/there", "x");
  Serve();
  EXPECT_TRUE(Is("/dir/there"));
  EXPECT_FALSE(Is("/dir/absent"));
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  const uint64_t before = Lookups();
  EXPECT_TRUE(Is("/dir/there"));
  EXPECT_FALSE(Is("/dir/absent"));
  EXPECT_EQ(Lookups(), before) << "the kernel has them cached";
  here_->view->Doubt(true);
  EXPECT_FALSE(Is("/dir/absent"));
  EXPECT_GE(Lookups(), before + 2) << "the directory and the name";
  const uint64_t asked = Lookups();
  EXPECT_TRUE(Is("/dir/there"));
  EXPECT_GE(Lookups(), asked + 2);
  here_->view->Doubt(false);
}

// The journal has no room for all names that the kernel was told of, and the server dies.
TEST_F(LiveTakeOverTest, OnAFullDiskNothingIsTakenForSomethingElse) {
  const std::string disk = top_ + "/disk", filler = disk + "/filler";
  ASSERT_TRUE(MakeDirs(disk, 0755));
  ASSERT_EQ(::mount("none", disk.c_str(), "tmpfs", 0, "size=8m"), 0) << std::strerror(errno);
  options_.journal = disk + "/journal";
  options_.written = disk + "/written";
  ASSERT_TRUE(MakeDirs(options_.written, 0755) && MakeDirs(origin_ + "/dir", 0755));
  const auto name = [](int i) { return "/dir/" + std::string(150, 'n') + std::to_string(1'000 + i); };
  constexpr int kNames = 1'500;
  for (int i = 0; i < kNames; ++i) {
    const auto fd = OpenFile(origin_ + name(i), O_WRONLY | O_CREAT, 0644);
    ASSERT_TRUE(fd && WriteAll(fd->get(), std::to_string(i)));
  }
  Serve();
  ASSERT_EQ(::mkdir(In("/before").c_str(), 0755), 0);
  {
    const UniqueFd fd(::open(filler.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const std::string block(4096, 'x');
    while (::write(fd.get(), block.data(), block.size()) > 0) {
    }
  }
  for (int i = 0; i < kNames; ++i) EXPECT_TRUE(Is(name(i)));
  EXPECT_EQ(::mkdir(In("/made").c_str(), 0755) != 0 ? errno : 0, ENOSPC);
  const UniqueFd held(::open(In(name(kNames - 1)).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(held);
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  for (int i = 0; i < kNames; ++i) ASSERT_EQ(Content(name(i)), std::to_string(i)) << i;
  std::array<char, 16> read{};
  if (const ssize_t n = ::pread(held.get(), read.data(), read.size(), 0); n >= 0) {
    EXPECT_EQ(std::string(read.data(), static_cast<size_t>(n)), std::to_string(kNames - 1));
  }
  EXPECT_TRUE(Is("/before"));
  ASSERT_EQ(::unlink(filler.c_str()), 0);
  EXPECT_EQ(::mkdir(In("/made").c_str(), 0755), 0) << std::strerror(errno);
  size_t good = 0;
  const auto state = LiveJournal::Parse(ReadFile(options_.journal).value_or(""), &good);
  ASSERT_TRUE(state) << state.error().message();
  const auto& root = state->names.at(LiveTree::kRootId);
  ASSERT_TRUE(root.contains("before") && root.contains("made"));
  EXPECT_GT(root.at("made").node, root.at("before").node + (1ull << 32)) << "numbers that nobody has given out";
  ::umount2(disk.c_str(), MNT_DETACH);
}

// A server did a request and died before the answer: the kernel sends it again.
struct Doing {
  const char* name;
  std::function<long(const std::string& top)> act;
};
class LiveDoneTest : public LiveTakeOverTest, public testing::WithParamInterface<Doing> {};

TEST_P(LiveDoneTest, IsNotDoneTwice) {
  Write("/file", "x");
  Write("/other", "y");
  ASSERT_TRUE(MakeDirs(origin_ + "/empty", 0755));
  Serve();
  ASSERT_EQ(::setxattr(In("/other").c_str(), "user.there", "1", 1, 0), 0);
  EXPECT_TRUE(Is("/file") && Is("/other") && Is("/empty") && !Is("/new"));
  ASSERT_NO_FATAL_FAILURE(Tell(kDieAtAnswer));
  const pid_t job = ::fork();
  if (job == 0) ::_exit(GetParam().act(mount_) >= 0 ? 0 : errno);
  ASSERT_NO_FATAL_FAILURE(Dies());
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  int status = 0;
  ASSERT_EQ(::waitpid(job, &status, 0), job);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << std::strerror(WEXITSTATUS(status));
}

INSTANTIATE_TEST_SUITE_P(
    , LiveDoneTest,
    testing::Values(
        Doing{"Mkdir", [](const auto& top) { return ::mkdir((top + "/new").c_str(), 0755); }},
        Doing{"Symlink", [](const auto& top) { return ::symlink("x", (top + "/new").c_str()); }},
        Doing{"Mknod", [](const auto& top) { return ::mknod((top + "/new").c_str(), S_IFIFO | 0600, 0); }},
        Doing{"Create",
              [](const auto& top) { return ::open((top + "/new").c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600); }},
        Doing{"Tmpfile", [](const auto& top) { return ::open(top.c_str(), O_RDWR | O_TMPFILE, 0600); }},
        Doing{"Link", [](const auto& top) { return ::link((top + "/file").c_str(), (top + "/new").c_str()); }},
        Doing{"Unlink", [](const auto& top) { return ::unlink((top + "/file").c_str()); }},
        Doing{"Rmdir", [](const auto& top) { return ::rmdir((top + "/empty").c_str()); }},
        Doing{"Rename", [](const auto& top) { return ::rename((top + "/file").c_str(), (top + "/new").c_str()); }},
        Doing{"Exchange",
              [](const auto& top) {
                return ::renameat2(AT_FDCWD, (top + "/file").c_str(), AT_FDCWD, (top + "/other").c_str(),
                                   RENAME_EXCHANGE);
              }},
        Doing{"SetXattr",
              [](const auto& top) { return ::setxattr((top + "/file").c_str(), "user.new", "1", 1, XATTR_CREATE); }},
        Doing{"RemoveXattr", [](const auto& top) { return ::removexattr((top + "/other").c_str(), "user.there"); }}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace vrun::vfs
