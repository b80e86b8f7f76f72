// SPDX-License-Identifier: Apache-2.0
// For tests: a home daemon controlled by the test, and a vrun that talks to it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/io/message_socket.h"
#include "base/io/stream_progress.h"
#include "proto/local.pb.h"

namespace vrun::cli {

inline constexpr int kPatienceMs = 30000;  // limit for things that happen at once unless they are broken

// One accepted connection, from home's side.
class Conversation {
 public:
  explicit Conversation(UniqueFd socket) : socket_(std::move(socket)) {
    timeval patience{kPatienceMs / 1000, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  v1::ClientMessage Receive() {
    pollfd p{socket_.get(), POLLIN, 0};
    v1::ClientMessage message;
    if (::poll(&p, 1, kPatienceMs) != 1) {
      ADD_FAILURE() << "the client says nothing";
      return message;
    }
    auto frame = ReceiveFrame(socket_.get());
    if (!frame) {
      ADD_FAILURE() << frame.error().message();
      return message;
    }
    EXPECT_TRUE(message.ParseFromString(frame->bytes));
    fds = std::move(frame->fds);
    return message;
  }
  void Send(const v1::HomeMessage& message) { EXPECT_TRUE(SendFrame(socket_.get(), message.SerializeAsString())); }
  void Accept(uint64_t job) {
    v1::HomeMessage m;
    m.mutable_accepted()->set_job(job);
    Send(m);
  }
  void Progress(v1::JobState state, const std::string& text) {
    v1::HomeMessage m;
    m.mutable_progress()->set_state(state);
    m.mutable_progress()->set_text(text);
    Send(m);
  }
  void Raw(bool raw) {
    v1::HomeMessage m;
    m.mutable_terminal_mode()->set_raw(raw);
    Send(m);
  }
  void FinishExited(int code) {
    v1::HomeMessage m;
    m.mutable_finished()->set_exit_status(code);
    m.mutable_finished()->set_state(code == 0 ? v1::COMPLETED : v1::FAILED);
    m.mutable_finished()->mutable_record()->set_kind(v1::ExitRecord::EXITED);
    m.mutable_finished()->mutable_record()->set_exit_code(code);
    m.mutable_finished()->set_job(7);
    Send(m);
  }
  void Close() { socket_.Reset(); }

  std::vector<UniqueFd> fds;  // received with the last message

 private:
  UniqueFd socket_;
};

// A running command, ended at the latest with the test.
class Child {
 public:
  struct Streams {
    int in = -1, out = -1, err = -1;    // -1: /dev/null for in, our own pipes for the others; -2: closed
    bool controlling_terminal = false;  // of `in`
  };
  Child(const std::string& program, std::vector<std::string> args, std::vector<std::string> environment,
        Streams streams, std::vector<int> ignored_signals = {}) {
    int out[2], err[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
    std::vector<char*> argv, envp;
    args.insert(args.begin(), program);
    for (std::string& a : args) argv.push_back(a.data());
    for (std::string& e : environment) envp.push_back(e.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setsid();
      int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      ::dup2(streams.in >= 0 ? streams.in : null, 0);
      ::dup2(streams.out >= 0 ? streams.out : out[1], 1);
      ::dup2(streams.err >= 0 ? streams.err : err[1], 2);
      if (streams.in == -2) ::close(0);
      if (streams.controlling_terminal) ::ioctl(0, TIOCSCTTY, 0);
      for (int s : ignored_signals) ::signal(s, SIG_IGN);
      ::execve(program.c_str(), argv.data(), envp.data());
      ::_exit(99);
    }
    out_ = UniqueFd(out[0]);
    err_ = UniqueFd(err[0]);
    ::close(out[1]);
    ::close(err[1]);
    pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Signal(int number) { ASSERT_EQ(::kill(pid_, number), 0); }
  // Exit status, or 1000 + signal.
  int Wait() {
    pollfd p{pidfd_.get(), POLLIN, 0};
    if (::poll(&p, 1, kPatienceMs) != 1) {
      ADD_FAILURE() << "the client does not end";
      return -1;
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  // Blocks until it has stopped.
  bool WaitStopped() {
    int status = 0;
    return ::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }
  std::string Out() { return Drain(out_.get()); }
  std::string Err() { return Drain(err_.get()); }
  int err_fd() const { return err_.get(); }

 private:
  static std::string Drain(int fd) {
    std::string all;
    char buffer[4096];
    for (;;) {
      pollfd p{fd, POLLIN, 0};
      if (::poll(&p, 1, 1000) != 1) return all;
      ssize_t n = ::read(fd, buffer, sizeof buffer);
      if (n <= 0) return all;
      all.append(buffer, static_cast<size_t>(n));
    }
  }
  pid_t pid_ = -1;
  UniqueFd out_, err_, pidfd_;
};

// A directory with a copy of vrun in it, and a socket on which the test listens.
class FakeHomeTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* base = std::getenv("TMPDIR");
    std::string pattern = std::string(base == nullptr ? "/var/tmp" : base) + "/vrun-cli-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    ASSERT_TRUE(MakeDirs(dir_ + "/bin", 0700));
    ASSERT_TRUE(MakeDirs(dir_ + "/v", 0700));
    // A copy, because vrun looks for the daemon beside itself and must find only the test's own.
    std::string copy = dir_ + "/bin/vrun";
    if (::link(VRUN_BINARY, copy.c_str()) != 0) {
      auto program = ReadFile(VRUN_BINARY, size_t{1} << 30);
      ASSERT_TRUE(program);
      UniqueFd out(::open(copy.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0755));
      ASSERT_TRUE(WriteAll(out.get(), *program));
    }
    ASSERT_EQ(::symlink("vrun", (dir_ + "/bin/vctl").c_str()), 0);
    ASSERT_EQ(::symlink("vrun", (dir_ + "/bin/vbatch").c_str()), 0);
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(dir_)); }

  std::string socket_path() const { return dir_ + "/v/home.sock"; }
  void Listen() {
    auto listener = ListenUnix(socket_path());
    ASSERT_TRUE(listener) << listener.error().message();
    listener_ = *std::move(listener);
  }
  Conversation AcceptOne() {
    pollfd p{listener_.get(), POLLIN, 0};
    if (::poll(&p, 1, kPatienceMs) != 1) ADD_FAILURE() << "nobody connects";
    return Conversation(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  std::vector<std::string> Environment() const {
    return {"VRUN_DIR=" + dir_ + "/v", "PATH=/usr/bin:/bin", "HOME=" + dir_, "TERM=xterm",
            "ASAN_OPTIONS=handle_segv=0:detect_leaks=0"};
  }
  std::unique_ptr<Child> Start(std::vector<std::string> args, Child::Streams streams, std::vector<int> ignored = {},
                               const char* program = "vrun") {
    return std::make_unique<Child>(dir_ + "/bin/" + program, std::move(args),
                                   environment_.empty() ? Environment() : environment_, streams, std::move(ignored));
  }
  std::unique_ptr<Child> Start(std::vector<std::string> args) { return Start(std::move(args), Child::Streams{}); }

  std::string dir_;
  UniqueFd listener_;
  std::vector<std::string> environment_;
};

}  // namespace vrun::cli
