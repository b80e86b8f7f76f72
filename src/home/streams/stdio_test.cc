// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>

#include "base/clock.h"
#include "home/runs/run_files.h"
#include "home/streams/foreground.h"
#include "home/streams/log_spool.h"
#include "home/streams/stdio_pump.h"
#include "home/testing/test_directory.h"
#include "jobs/ending.h"

namespace vrun::home {
namespace {

std::string RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 r(seed);
  std::string s(n, '\0');
  for (char& c : s) c = static_cast<char>(r());
  return s;
}

struct Pipe {
  UniqueFd read, write;
  Pipe() {
    int fds[2];
    VRUN_CHECK(::pipe2(fds, O_CLOEXEC) == 0);
    read.Reset(fds[0]);
    write.Reset(fds[1]);
  }
};

UniqueFd Dup(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3)); }
UniqueFd Null() { return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

class PumpTest : public testing::Test, public StdioPump::Handler {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    memory_ = std::move(*CreateStreamProgress());
  }
  void TearDown() override { pump_.reset(); }
  StreamProgressMap Map() { return std::move(*StreamProgressMap::Map(memory_.get())); }
  void Make(UniqueFd in, UniqueFd out, UniqueFd err) {
    pump_ = std::make_unique<StdioPump>(&loop_, this, std::move(in), std::move(out), std::move(err), Map());
  }
  template <typename F>
  bool RunUntil(F done, int64_t limit_micros = 30'000'000) {
    int64_t end = MonotonicMicros() + limit_micros;
    while (!done()) {
      if (MonotonicMicros() > end) return false;
      loop_.RunOnce(100);
    }
    return true;
  }

  void OnInput(uint64_t offset, std::string_view data, bool eof, bool peeked) override {
    EXPECT_LE(offset, input_.size());
    peeked_ = peeked;
    input_.resize(offset);
    input_ += data;
    input_eof_ |= eof;
    if (ack_input_ && !data.empty()) {
      loop_.Post([this, end = offset + data.size()] {
        if (pump_) pump_->InputAcked(end);
      });
    }
  }
  void OnInputUnused(uint64_t bytes) override { unused_ = bytes; }
  void OnInputTakenTwice() override { taken_twice_ = true; }
  void OnOutputWritten(v1::StreamId stream, uint64_t offset) override { written_[stream == v1::STDERR] = offset; }
  void OnOutputEnded(v1::StreamId stream) override { ended_[stream == v1::STDERR] = true; }
  void OnOutputBroken(v1::StreamId stream, const Error& reason) override {
    broken_[stream == v1::STDERR] = true;
    reason_ = reason.error_number();
  }

  EventLoop loop_;
  UniqueFd memory_;
  std::unique_ptr<StdioPump> pump_;
  std::string input_;
  bool input_eof_ = false;
  bool ack_input_ = true;
  bool peeked_ = false;
  bool taken_twice_ = false;
  uint64_t unused_ = 0;
  uint64_t written_[2] = {0, 0};
  bool ended_[2] = {false, false};
  bool broken_[2] = {false, false};
  int reason_ = 0;
};

TEST_F(PumpTest, AGibibyteThroughPipesIsIdenticalAndNoFlagChanges) {
  Pipe in, out;
  int in_flags = ::fcntl(in.read.get(), F_GETFL), out_flags = ::fcntl(out.write.get(), F_GETFL);
  Make(Dup(in.read.get()), Dup(out.write.get()), Null());
  EXPECT_EQ(::fcntl(in.read.get(), F_GETFL), in_flags);
  EXPECT_EQ(::fcntl(out.write.get(), F_GETFL), out_flags);
  out.write.Reset();
  const bool sanitized = ::getenv("ASAN_OPTIONS") != nullptr || ::getenv("TSAN_OPTIONS") != nullptr;
  const size_t blocks = sanitized ? 64 : 1024;
  std::string block = RandomBytes(1 << 20, 1);
  bool same = true;
  std::thread reader([&] {
    std::string got(block.size(), '\0');
    for (size_t i = 0; i < blocks && same; ++i) {
      auto n = ReadUpTo(out.read.get(), got.data(), got.size());
      same = n && *n == got.size() && got == block;
    }
  });
  uint64_t offset = 0;
  int64_t begin = MonotonicMicros();
  // Never more than a window ahead of what was passed on, like the node.
  while (offset < blocks * block.size()) {
    ASSERT_TRUE(pump_->Write(v1::STDOUT, offset, block, false));
    offset += block.size();
    ASSERT_TRUE(RunUntil([&] { return written_[0] + (4 << 20) > offset; }));
  }
  ASSERT_TRUE(pump_->Write(v1::STDOUT, offset, "", true));
  ASSERT_TRUE(RunUntil([&] { return ended_[0]; }));
  reader.join();
  EXPECT_TRUE(same);
  EXPECT_EQ(written_[0], offset);
  double seconds = static_cast<double>(MonotonicMicros() - begin) / 1e6;
  printf("stdout: %.0f MB/s\n", static_cast<double>(offset) / 1e6 / seconds);
  // And in the other direction.
  std::thread writer([&] {
    for (int i = 0; i < 64; ++i) VRUN_CHECK(WriteAll(in.write.get(), block).has_value());
    in.write.Reset();
  });
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(RunUntil([&] { return input_eof_; }));
  writer.join();
  ASSERT_EQ(input_.size(), 64 * block.size());
  for (size_t i = 0; i < 64; ++i) ASSERT_EQ(std::string_view(input_).substr(i * block.size(), block.size()), block);
  EXPECT_EQ(::fcntl(in.read.get(), F_GETFL), in_flags);
}

TEST_F(PumpTest, NoMoreOfStdinIsReadThanTheWindow) {
  Pipe in;
  ::fcntl(in.write.get(), F_SETFL, O_NONBLOCK);
  ack_input_ = false;
  Make(Dup(in.read.get()), Null(), Null());
  ASSERT_TRUE(pump_->StartInput(0));
  std::string block(65536, 'x');
  size_t sent = 0;
  for (int idle = 0; idle < 20;) {
    ssize_t n = ::write(in.write.get(), block.data(), block.size());
    if (n > 0)
      sent += static_cast<size_t>(n);
    else
      ++idle;
    loop_.RunOnce(1);
  }
  EXPECT_EQ(input_.size(), StreamProgress::kStdinWindow);
  EXPECT_LE(sent, StreamProgress::kStdinWindow + 65536);
  pump_->InputAcked(1000);
  ASSERT_TRUE(RunUntil([&] { return input_.size() == StreamProgress::kStdinWindow + 1000; }));
}

TEST_F(PumpTest, RegularFilesKeepTheirSharedOffset) {
  TestDirectory dir;
  dir.Put("in", std::string(1000, 'a') + std::string(3'000'000, 'b'));
  UniqueFd in(::open((dir / "in").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::lseek(in.get(), 1000, SEEK_SET), 1000);
  UniqueFd out(::open((dir / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_TRUE(WriteAll(out.get(), "before "));
  Make(Dup(in.get()), Dup(out.get()), Dup(out.get()));
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(RunUntil([&] { return input_eof_; }));
  EXPECT_EQ(input_, std::string(3'000'000, 'b'));
  // stdout and stderr are one description: their bytes keep their order.
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "one ", false));
  ASSERT_TRUE(pump_->Write(v1::STDERR, 0, "two ", false));
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 4, "three ", true));
  ASSERT_TRUE(pump_->Write(v1::STDERR, 4, "four ", true));
  ASSERT_TRUE(RunUntil([&] { return ended_[0] && ended_[1]; }));
  ASSERT_TRUE(WriteAll(out.get(), "after"));
  EXPECT_EQ(*ReadFile(dir / "out"), "before one two three four after");
}

TEST_F(PumpTest, WhatTheCommandDidNotTakeOfAFileIsLeftForTheNext) {
  TestDirectory dir;
  dir.Put("in", RandomBytes(500'000, 2));
  UniqueFd in(::open((dir / "in").c_str(), O_RDONLY | O_CLOEXEC));
  ack_input_ = false;
  Make(Dup(in.get()), Null(), Null());
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(RunUntil([&] { return input_.size() >= 200'000; }));
  pump_->InputAcked(100'000);
  pump_->EndInput();
  for (int i = 0; i < 5; ++i) loop_.RunOnce(20);
  EXPECT_EQ(::lseek(in.get(), 0, SEEK_CUR), 100'000);
}

TEST_F(PumpTest, WhatTheCommandDidNotReadOfAFileThatItWasGivenIsLeftForTheNext) {
  TestDirectory dir;
  dir.Put("in", "one\ntwo\nthree\n");
  UniqueFd in(::open((dir / "in").c_str(), O_RDONLY | O_CLOEXEC));
  Make(Dup(in.get()), Null(), Null());
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(RunUntil([&] { return input_eof_; }));
  for (int i = 0; i < 5; ++i) loop_.RunOnce(1);
  pump_->EndInput(4);  // all was acknowledged, but stayed in the command's pipe
  EXPECT_EQ(::lseek(in.get(), 0, SEEK_CUR), 4);
}

// What a run does to a pipe that others also read.
class SharedPipeTest : public PumpTest {
 protected:
  void SetUp() override {
    PumpTest::SetUp();
    ack_input_ = false;
  }
  void Share(UniqueFd in) {
    Make(std::move(in), Null(), Null());
    pump_->SetPipeTurns(&turns_);
    ASSERT_TRUE(pump_->StartInput(0));
  }
  static std::string Left(int fd) {
    std::string left(100, '\0');
    ssize_t n = 0;
    if (pollfd p{fd, POLLIN, 0}; ::poll(&p, 1, 0) == 1) n = ::read(fd, left.data(), left.size());
    left.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return left;
  }
  PipeTurns turns_;
  Pipe pipe_;
};

TEST_F(SharedPipeTest, ACommandThatReadsNothingLeavesItToTheNextReader) {
  ASSERT_TRUE(WriteAll(pipe_.write.get(), "a\nb\n"));
  Share(Dup(pipe_.read.get()));
  ASSERT_TRUE(RunUntil([&] { return input_ == "a\nb\n"; })) << "it is there for a command that reads";
  EXPECT_TRUE(peeked_);
  EXPECT_FALSE(input_eof_);
  pump_->EndInput(0);
  EXPECT_EQ(Left(pipe_.read.get()), "a\nb\n");
  EXPECT_EQ(unused_, 0u);
}

TEST_F(SharedPipeTest, ACommandThatReadsALineLeavesTheNext) {
  ASSERT_TRUE(WriteAll(pipe_.write.get(), "a\nb\n"));
  pipe_.write.Reset();
  Share(Dup(pipe_.read.get()));
  ASSERT_TRUE(RunUntil([&] { return input_eof_; })) << "the end comes along, without another question";
  EXPECT_EQ(input_, "a\nb\n");
  pump_->EndInput(2);
  EXPECT_EQ(Left(pipe_.read.get()), "b\n");
  EXPECT_FALSE(taken_twice_);
}

TEST_F(SharedPipeTest, ACommandThatReadsGetsAllThatComes) {
  ASSERT_TRUE(WriteAll(pipe_.write.get(), "first"));
  Share(Dup(pipe_.read.get()));
  ASSERT_TRUE(RunUntil([&] { return input_ == "first"; }));
  ASSERT_TRUE(WriteAll(pipe_.write.get(), "second"));
  for (int i = 0; i < 5; ++i) loop_.RunOnce(1);
  EXPECT_EQ(input_, "first");
  pump_->InputAcked(5);
  ASSERT_TRUE(RunUntil([&] { return input_ == "firstsecond"; }));
  EXPECT_FALSE(peeked_);
  pipe_.write.Reset();
  ASSERT_TRUE(RunUntil([&] { return input_eof_; }));
  pump_->EndInput(7);
  EXPECT_EQ(unused_, 4u) << "taken from the pipe, and of no use";
}

TEST_F(SharedPipeTest, ASocketIsLookedAtTheSameWay) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]);
  ASSERT_TRUE(WriteAll(theirs.get(), "a\nb\n"));
  theirs.Reset();
  Share(Dup(ours.get()));
  ASSERT_TRUE(RunUntil([&] { return input_eof_; }));
  pump_->EndInput(2);
  EXPECT_EQ(Left(ours.get()), "b\n");
}

TEST_F(SharedPipeTest, TwoRunsNeverGetTheSameBytes) {
  ASSERT_TRUE(WriteAll(pipe_.write.get(), "one"));
  Share(Dup(pipe_.read.get()));
  ASSERT_TRUE(RunUntil([&] { return input_ == "one"; }));
  auto first = std::move(pump_);
  memory_ = std::move(*CreateStreamProgress());
  input_.clear();
  Share(Dup(pipe_.read.get()));
  for (int i = 0; i < 5; ++i) loop_.RunOnce(1);
  EXPECT_EQ(input_, "");
  first->EndInput(0);
  ASSERT_TRUE(RunUntil([&] { return input_ == "one"; }));
}

TEST_F(SharedPipeTest, SomebodyElseWhoReadsMeanwhileIsNoticed) {
  ASSERT_TRUE(WriteAll(pipe_.write.get(), "onetwo"));
  Share(Dup(pipe_.read.get()));
  ASSERT_TRUE(RunUntil([&] { return input_ == "onetwo"; }));
  char three[3];
  ASSERT_EQ(::read(pipe_.read.get(), three, 3), 3);
  pump_->InputAcked(6);
  EXPECT_TRUE(taken_twice_);
}

TEST_F(SharedPipeTest, AnotherHomeKnowsThatNothingWasTaken) {
  ASSERT_TRUE(WriteAll(pipe_.write.get(), "onetwo"));
  Share(Dup(pipe_.read.get()));
  ASSERT_TRUE(RunUntil([&] { return input_ == "onetwo"; }));
  pump_.reset();
  input_ = "one";
  Make(Dup(pipe_.read.get()), Null(), Null());
  pump_->SetPipeTurns(&turns_);
  ASSERT_TRUE(pump_->StartInput(3));
  EXPECT_EQ(input_, "onetwo");
  EXPECT_TRUE(peeked_);
  pump_->EndInput(3);
  EXPECT_EQ(Left(pipe_.read.get()), "two");
}

TEST_F(PumpTest, OutputIsHeldUntilTheTerminalIsReady) {
  Pipe out;
  Make(Null(), Dup(out.write.get()), Null());
  pump_->HoldOutput();
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "x", true));
  for (int i = 0; i < 3; ++i) loop_.RunOnce(1);
  EXPECT_EQ(written_[0], 0u);
  EXPECT_FALSE(pump_->drained());
  pump_->ReleaseOutput();
  ASSERT_TRUE(RunUntil([&] { return ended_[0]; }));
  EXPECT_EQ(written_[0], 1u);
}

TEST_F(PumpTest, BothStreamsOfOneFileAreReportedThoughTheyTakeTurns) {
  Pipe out;
  Make(Null(), Dup(out.write.get()), Dup(out.write.get()));
  pump_->HoldOutput();
  ASSERT_TRUE(pump_->Write(v1::STDERR, 0, "first\n", false));
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "second\n", false));
  pump_->ReleaseOutput();
  // No end comes: another attempt of the job may continue the streams.
  EXPECT_TRUE(RunUntil([&] { return written_[0] == 7 && written_[1] == 6; }, 5'000'000));
}

TEST_F(PumpTest, SocketsAndNullAndAppend) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]);
  TestDirectory dir;
  dir.Put("log", "first\n");
  UniqueFd log(::open((dir / "log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  int flags = ::fcntl(ours.get(), F_GETFL);
  Make(Dup(ours.get()), Dup(ours.get()), Dup(log.get()));
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(WriteAll(theirs.get(), "ping"));
  ASSERT_TRUE(RunUntil([&] { return input_ == "ping"; }));
  std::string big = RandomBytes(2'000'000, 3);
  std::string got(big.size(), '\0');
  std::thread reader([&] { (void)ReadUpTo(theirs.get(), got.data(), got.size()); });
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, big, false));
  ASSERT_TRUE(pump_->Write(v1::STDERR, 0, "second\n", true));
  ASSERT_TRUE(RunUntil([&] { return written_[0] == big.size() && ended_[1]; }));
  reader.join();
  EXPECT_EQ(got, big);
  EXPECT_EQ(::fcntl(ours.get(), F_GETFL), flags);
  EXPECT_EQ(*ReadFile(dir / "log"), "first\nsecond\n");
  ::shutdown(theirs.get(), SHUT_WR);
  ASSERT_TRUE(RunUntil([&] { return input_eof_; }));
}

TEST_F(PumpTest, TerminalsAreReadOnlyWhenItIsOurTurn) {
  UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master && ::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  UniqueFd slave(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(slave);
  SavedTerminal saved(slave.get());
  EXPECT_TRUE(saved.saved());
  int flags = ::fcntl(slave.get(), F_GETFL);
  Make(Dup(slave.get()), Dup(slave.get()), Dup(slave.get()));
  bool turn = false;
  pump_->SetTerminalGate([&] { return turn; });
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(WriteAll(master.get(), "keys\n"));
  for (int i = 0; i < 5; ++i) loop_.RunOnce(20);
  EXPECT_EQ(input_, "");
  turn = true;
  pump_->Foreground();
  ASSERT_TRUE(RunUntil([&] { return input_ == "keys\n"; }));
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "output", true));
  ASSERT_TRUE(RunUntil([&] { return ended_[0]; }));
  EXPECT_EQ(::fcntl(slave.get(), F_GETFL), flags);
  // A client that died in raw mode.
  termios raw;
  ASSERT_EQ(::tcgetattr(slave.get(), &raw), 0);
  tcflag_t before = raw.c_lflag;
  ::cfmakeraw(&raw);
  ASSERT_EQ(::tcsetattr(slave.get(), TCSANOW, &raw), 0);
  saved.Restore(slave.get());
  ASSERT_EQ(::tcgetattr(slave.get(), &raw), 0);
  EXPECT_EQ(raw.c_lflag, before);
}

TEST_F(PumpTest, AReaderThatIsGoneIsTold) {
  Pipe out;
  Make(Null(), Dup(out.write.get()), Null());
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "x", false));
  out.write.Reset();
  out.read.Reset();
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 1, std::string(100'000, 'y'), false));
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 100'001, "", true));
  ASSERT_TRUE(RunUntil([&] { return ended_[0]; }));
  EXPECT_TRUE(broken_[0]);
  EXPECT_EQ(reason_, EPIPE);
  EXPECT_EQ(written_[0], 100'001u) << "the window moves on, or the command could not get SIGPIPE";
}

TEST_F(PumpTest, AReaderThatGoesWhileTheWriterWaits) {
  Pipe out;
  Make(Null(), Dup(out.write.get()), Null());
  out.write.Reset();
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, std::string(1 << 20, 'y'), false));
  loop_.RunOnce(10);
  EXPECT_FALSE(broken_[0]);
  out.read.Reset();
  ASSERT_TRUE(RunUntil([&] { return broken_[0]; }));
}

TEST_F(PumpTest, AFullDiskIsNotSilent) {
  UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full) GTEST_SKIP() << "no /dev/full";
  Make(Null(), Dup(full.get()), Null());
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "x", true));
  ASSERT_TRUE(RunUntil([&] { return ended_[0]; }));
  EXPECT_TRUE(broken_[0]);
  EXPECT_EQ(reason_, ENOSPC);
}

TEST_F(PumpTest, AnotherHomeGoesOnByOffset) {
  Pipe in, out;
  ack_input_ = false;
  Make(Dup(in.read.get()), Dup(out.write.get()), Null());
  ASSERT_TRUE(WriteAll(in.write.get(), "0123456789"));
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(RunUntil([&] { return input_ == "0123456789"; }));
  pump_->InputAcked(4);
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "abcdef", false));
  ASSERT_TRUE(RunUntil([&] { return written_[0] == 6; }));
  pump_.reset();

  input_.clear();
  input_ = "012345";
  Make(Dup(in.read.get()), Dup(out.write.get()), Null());
  // The node has six bytes; four more were read by the dead home and exist only in the shared memory.
  ASSERT_TRUE(pump_->StartInput(6));
  EXPECT_EQ(input_, "0123456789");
  ASSERT_TRUE(WriteAll(in.write.get(), "X"));
  ASSERT_TRUE(RunUntil([&] { return input_ == "0123456789X"; }));
  // Output that is sent again is not written again.
  EXPECT_EQ(pump_->received(v1::STDOUT), 6u);
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 3, "defghi", false));
  ASSERT_TRUE(RunUntil([&] { return written_[0] == 9; }));
  EXPECT_FALSE(pump_->Write(v1::STDOUT, 20, "z", false)) << "a gap";
  char got[16];
  EXPECT_EQ(::read(out.read.get(), got, sizeof got), 9);
  EXPECT_EQ(std::string_view(got, 9), "abcdefghi");
}

TEST_F(PumpTest, TheProgressLineIsErasedBeforeTheFirstByte) {
  Pipe out, err;
  Make(Null(), Dup(out.write.get()), Dup(err.write.get()));
  Map()->line.store(ProgressLine::kDrawn);
  ASSERT_TRUE(pump_->Write(v1::STDOUT, 0, "x", true));
  ASSERT_TRUE(pump_->Write(v1::STDERR, 0, "", true));
  ASSERT_TRUE(RunUntil([&] { return ended_[0] && ended_[1]; }));
  char got[16];
  EXPECT_EQ(std::string(got, static_cast<size_t>(::read(err.read.get(), got, sizeof got))), "\r\x1b[K");
  EXPECT_EQ(Map()->line.load(), ProgressLine::kOutput);
  EXPECT_EQ(Map()->stderr_written.load(), 0u);
}

TEST_F(PumpTest, WhatCannotBeOpenedAgainIsServedByAThread) {
  // An eventfd is neither a pipe nor a file, and cannot be reopened through /proc/self/fd.
  Pipe out;
  ClientFd fd = ClientFd::Adopt(Dup(out.write.get()), ClientFd::Direction::kRead);
  EXPECT_EQ(fd.access, ClientFd::Access::kThread) << "the write end must not be opened for reading";
  EXPECT_EQ(ClientFd::Adopt(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), ClientFd::Direction::kRead).access,
            ClientFd::Access::kThread);
  Make(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), Null(), Null());
  ack_input_ = false;
  ASSERT_TRUE(pump_->StartInput(0));
  ASSERT_TRUE(RunUntil([&] { return input_.size() == StreamProgress::kStdinWindow; }));
  // A thread that waits for a pipe without writers can be stopped.
  BlockingIo io(&loop_, out.read.get(), false);
  io.Read(1, [](Result<std::string>) {});
}

TEST(Foreground, AskedOfTheKernel) {
  EXPECT_TRUE(MayReadTerminal(0));
  EXPECT_TRUE(MayReadTerminal(999999999));
}

TEST(ExitStatus, TheTable) {
  v1::ExitRecord r;
  EXPECT_EQ(ExitStatus(r), 255) << "no kind is no success";
  EXPECT_FALSE(EndReason(r).empty());
  r.set_kind(v1::ExitRecord::EXITED);
  for (int c : {0, 1, 124, 255}) {
    r.set_exit_code(c);
    EXPECT_EQ(ExitStatus(r), c);
    EXPECT_EQ(EndReason(r), "");
    EXPECT_EQ(EndState(r), c == 0 ? v1::COMPLETED : v1::FAILED);
  }
  r.set_exit_code(0);
  struct Case {
    v1::ExitRecord::Kind kind;
    int signal, status;
    v1::JobState state;
  };
  for (const Case& c :
       {Case{v1::ExitRecord::SIGNALED, 9, 137, v1::FAILED}, Case{v1::ExitRecord::SIGNALED, 15, 143, v1::FAILED},
        Case{v1::ExitRecord::SIGNALED, 0, 255, v1::FAILED}, Case{v1::ExitRecord::NOT_FOUND, 0, 127, v1::FAILED},
        Case{v1::ExitRecord::NOT_EXECUTABLE, 0, 126, v1::FAILED},
        Case{v1::ExitRecord::START_FAILED, 0, 125, v1::FAILED}, Case{v1::ExitRecord::TIME_LIMIT, 15, 124, v1::TIMEOUT},
        Case{v1::ExitRecord::OUT_OF_MEMORY_KILL, 9, 137, v1::OUT_OF_MEMORY},
        Case{v1::ExitRecord::CANCELLED_BY_USER, 2, 130, v1::CANCELLED},
        Case{v1::ExitRecord::CANCELLED_BY_USER, 0, 125, v1::CANCELLED}}) {
    r.set_kind(c.kind);
    r.set_signal(c.signal);
    EXPECT_EQ(ExitStatus(r), c.status) << c.kind;
    EXPECT_EQ(EndState(r), c.state) << c.kind;
  }
  r.set_reason("two\nlines");
  EXPECT_EQ(EndReason(r).find('\n'), std::string::npos);
}

TEST(RunFiles, PatternsOfOutputFiles) {
  EXPECT_EQ(ForJob("/o-%j-%4j-%2j-%%-%N-%x-%", 17), "/o-17-0017-17-%-%N-%x-%");
  EXPECT_EQ(ForJob("/%%j", 17), "/%j");
  DetachedFiles files{"/a-%%N-%j", "/b", "/", false, {}};
  EXPECT_FALSE(NamesNode(files));
  files.stderr_path = "/b-%N-%3j";
  EXPECT_TRUE(NamesNode(files));
  SetNode("n/1%j", &files);
  EXPECT_FALSE(NamesNode(files));
  EXPECT_EQ(ForJob(files.stdout_path, 7), "/a-%N-7");
  EXPECT_EQ(ForJob(files.stderr_path, 7), "/b-n_1%j-007");
}

class SpoolTest : public testing::Test {
 protected:
  LogSpool::Appended Append(LogSpool* spool, uint64_t job, v1::StreamId stream, uint64_t offset, std::string data,
                            uint64_t limit = 1 << 20) {
    std::optional<LogSpool::Appended> result;
    spool->Append(job, stream, offset, std::move(data), limit, [&](LogSpool::Appended a) { result = a; });
    while (!result) loop_.RunOnce(100);
    return *result;
  }
  std::string All(LogSpool* spool, uint64_t job) {
    std::optional<Result<LogSpool::Read>> result;
    spool->ReadFrom(job, 0, 1 << 30, [&](Result<LogSpool::Read> r) { result.emplace(std::move(r)); });
    while (!result) loop_.RunOnce(100);
    if (!*result) return "error";
    std::string all;
    for (auto& record : (*result)->records)
      all += (record.note                   ? "N"
              : record.stream == v1::STDERR ? "E"
                                            : "O") +
             std::to_string(record.offset) + record.data;
    return all;
  }
  EventLoop loop_;
  TestDirectory dir_;
};

TEST_F(SpoolTest, KeepsOrderDropsDoublesSurvivesATornEnd) {
  {
    LogSpool spool(&loop_, dir_ / "spool");
    EXPECT_TRUE(Append(&spool, 7, v1::STDOUT, 0, "abc").kept);
    EXPECT_TRUE(Append(&spool, 7, v1::STDERR, 0, "err").kept);
    EXPECT_TRUE(Append(&spool, 7, v1::STDOUT, 1, "bcd").kept);
    EXPECT_EQ(All(&spool, 7), "O0abcE0errO3d");
    EXPECT_EQ(All(&spool, 8), "error");
  }
  std::string content = *ReadFile(dir_ / "spool/7");
  ASSERT_TRUE(WriteFileAtomic(dir_ / "spool/7", content.substr(0, content.size() - 1), 0600));
  LogSpool spool(&loop_, dir_ / "spool");
  EXPECT_EQ(All(&spool, 7), "O0abcE0err");
  EXPECT_TRUE(Append(&spool, 7, v1::STDOUT, 3, "def").kept);
  EXPECT_EQ(All(&spool, 7), "O0abcE0errO3def");
}

TEST_F(SpoolTest, NotesLieBetweenTheStreamsAndAreOfNone) {
  {
    LogSpool spool(&loop_, dir_ / "spool");
    EXPECT_TRUE(Append(&spool, 7, v1::STDERR, 0, "err", 3).kept);
    int woken = 0;
    auto subscription = spool.Subscribe(7, [&] { ++woken; });
    spool.Note(7, "note\n");  // also for a job whose log is full
    while (woken == 0) loop_.RunOnce(100);
    EXPECT_EQ(All(&spool, 7), "E0errN0note\n");
  }
  LogSpool spool(&loop_, dir_ / "spool");
  EXPECT_TRUE(Append(&spool, 7, v1::STDERR, 3, "more").kept);
  EXPECT_EQ(All(&spool, 7), "E0errN0note\nE3more");
}

TEST_F(SpoolTest, IsBoundedForAJobAndInAll) {
  LogSpool spool(&loop_, dir_ / "spool", 100'000);
  EXPECT_TRUE(Append(&spool, 1, v1::STDOUT, 0, std::string(1000, 'x'), 1000).kept);
  EXPECT_FALSE(Append(&spool, 1, v1::STDOUT, 1000, "y", 1000).kept);
  for (uint64_t job = 2; job < 200; ++job) Append(&spool, job, v1::STDOUT, 0, std::string(5000, 'x'));
  EXPECT_EQ(All(&spool, 1), "error");
  EXPECT_NE(All(&spool, 199), "error");
}

TEST_F(SpoolTest, ADiskThatDoesNotTakeItIsToldToTheCaller) {
  LogSpool spool(&loop_, "/proc/nowhere");
  EXPECT_FALSE(Append(&spool, 1, v1::STDOUT, 0, "x").kept);
}

}  // namespace
}  // namespace vrun::home
