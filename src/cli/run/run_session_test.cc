// SPDX-License-Identifier: Apache-2.0
// The real vrun with a home controlled by the test: statuses, signals, terminals, and a home that dies.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/testing/fake_home_test_util.h"

namespace vrun::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

class RunSessionTest : public FakeHomeTest {
 protected:
  void SetUp() override {
    FakeHomeTest::SetUp();
    Listen();
  }
  // A run whose command is running.
  Conversation Started(bool terminal = false) {
    Conversation home = AcceptOne();
    run_ = home.Receive().run();
    home.Accept(7);
    home.Progress(v1::RUNNING, "running on n1");
    if (!terminal) return home;
    home.Raw(true);
    EXPECT_TRUE(home.Receive().has_terminal_ready()) << "home writes no output before";
    return home;
  }
  int ReceiveSignal(Conversation& home) { return home.Receive().signal().signal(); }
  v1::Run run_;
};

TEST_F(RunSessionTest, TheRequestIsWhatWasTypedAndTheDescriptorsAreOurs) {
  int in[2];
  ASSERT_EQ(::pipe2(in, O_CLOEXEC), 0);
  auto vrun =
      Start({"-P", "gpu", "-c", "2", "--mem", "1G", "-t", "1:00", "-D", "/tmp", "--", "cmd", "a b", ""}, {.in = in[0]});
  Conversation home = AcceptOne();
  v1::ClientMessage message = home.Receive();
  ASSERT_TRUE(message.has_run());
  const v1::Run& run = message.run();
  EXPECT_EQ(Words(run.spec().command().argv().begin(), run.spec().command().argv().end()), (Words{"cmd", "a b", ""}));
  EXPECT_EQ(run.spec().pool(), "gpu");
  EXPECT_EQ(run.spec().resources().milli_cpus(), 2000u);
  EXPECT_EQ(run.spec().resources().memory_bytes(), 1u << 30);
  EXPECT_EQ(run.spec().scheduling().limit_s(), 60u);
  EXPECT_EQ(run.spec().command().directory(), "/tmp");
  EXPECT_FALSE(run.spec().command().terminal());
  EXPECT_EQ(run.spec().command().identity().uid(), ::getuid());
  EXPECT_GT(run.spec().command().limits_size(), 5);
  EXPECT_EQ(run.request_id().size(), 32u);
  for (const std::string& e : run.spec().command().environment()) EXPECT_FALSE(e.starts_with("VRUN_")) << e;
  ASSERT_EQ(home.fds.size(), 4u);
  ASSERT_EQ(::write(in[1], "x", 1), 1);
  char c = 0;
  EXPECT_EQ(::read(home.fds[0].get(), &c, 1), 1);
  ASSERT_TRUE(WriteAll(home.fds[1].get(), "to stdout"));
  ASSERT_TRUE(WriteAll(home.fds[2].get(), "to stderr"));
  EXPECT_TRUE(StreamProgressMap::Map(home.fds[3].get()));
  home.fds.clear();
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  EXPECT_EQ(vrun->Out(), "to stdout");
  EXPECT_EQ(vrun->Err(), "to stderr");
  ::close(in[0]);
  ::close(in[1]);
}

TEST_F(RunSessionTest, DescriptorsThatTheCommandNamesAreHandedOn) {
  int in[2], out[2], both[2];
  ASSERT_EQ(::pipe2(in, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
  ASSERT_EQ(::dup2(in[0], 63), 63);  // like a shell's <(...) and >(...)
  ASSERT_EQ(::dup2(out[1], 62), 62);
  ASSERT_EQ(::dup2(both[0], 61), 61);
  auto vrun = Start({"x", "/dev/fd/63", "--to=/proc/self/fd/62", "/dev/fd/60", "echo /dev/fd/61", "a/dev/fd/61"});
  Conversation home = AcceptOne();
  const v1::Command command = home.Receive().run().spec().command();
  ASSERT_EQ(command.descriptors_size(), 2);
  EXPECT_EQ(command.descriptors(0).number(), 63u);
  EXPECT_FALSE(command.descriptors(0).output());
  EXPECT_EQ(command.descriptors(1).number(), 62u);
  EXPECT_TRUE(command.descriptors(1).output());
  ASSERT_EQ(home.fds.size(), 8u);
  ASSERT_EQ(::write(in[1], "x", 1), 1);
  char c = 0;
  EXPECT_EQ(::read(home.fds[4].get(), &c, 1), 1);
  EXPECT_TRUE(WriteAll(home.fds[6].get(), "y"));
  EXPECT_TRUE(StreamProgressMap::Map(home.fds[5].get()));
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);

  auto refused = Start({"x", "/dev/fd/61"});
  EXPECT_EQ(refused->Wait(), 125);
  EXPECT_THAT(refused->Err(), HasSubstr("/dev/fd/61: cannot be passed to the command: it is a socket"));
  auto batch = Start({"x", "/dev/fd/63"}, {}, {}, "vbatch");
  EXPECT_EQ(batch->Wait(), 2);
  EXPECT_THAT(batch->Err(), HasSubstr("/dev/fd/63: is open only as long as this command runs"));
  for (int fd : {in[0], in[1], out[0], out[1], both[0], both[1], 61, 62, 63}) ::close(fd);
}

TEST_F(RunSessionTest, WithoutStdinItIsEmpty) {
  int in[2];
  ASSERT_EQ(::pipe2(in, O_CLOEXEC), 0);
  ASSERT_EQ(::write(in[1], "x", 1), 1);
  auto vrun = Start({"-n", "cmd"}, {.in = in[0]});
  Conversation home = AcceptOne();
  EXPECT_EQ(home.Receive().run().spec().command().argv(0), "cmd");
  char c = 0;
  EXPECT_EQ(::read(home.fds[0].get(), &c, 1), 0);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  ::close(in[0]);
  ::close(in[1]);
}

TEST_F(RunSessionTest, ExitCodesPassThrough) {
  for (int code : {0, 1, 2, 125, 255}) {
    auto vrun = Start({"x"});
    Conversation home = Started();
    home.FinishExited(code);
    EXPECT_EQ(vrun->Wait(), code);
    home.fds.clear();
    EXPECT_EQ(vrun->Err(), "");
  }
}

TEST_F(RunSessionTest, ItIsNeverZeroWithoutAnExitRecord) {
  struct Case {
    bool record;
    v1::ExitRecord::Kind kind;
    int code, expected;
  };
  for (const Case& c :
       {Case{false, v1::ExitRecord::EXITED, 0, 255}, Case{true, v1::ExitRecord::KIND_UNSPECIFIED, 0, 255},
        Case{true, v1::ExitRecord::SIGNALED, 0, 255}, Case{true, v1::ExitRecord::NOT_FOUND, 0, 127},
        Case{true, v1::ExitRecord::EXITED, 3, 3}}) {
    auto vrun = Start({"x"});
    Conversation home = Started();
    v1::HomeMessage m;
    m.mutable_finished()->set_exit_status(0);
    if (c.record) {
      m.mutable_finished()->mutable_record()->set_kind(c.kind);
      m.mutable_finished()->mutable_record()->set_exit_code(c.code);
    }
    home.Send(m);
    EXPECT_EQ(vrun->Wait(), c.expected);
    home.fds.clear();
    std::string err = vrun->Err();
    EXPECT_TRUE(c.record || err.find("job 7") != std::string::npos) << err;
  }
}

TEST_F(RunSessionTest, WhatCouldNotStartIs125AndOneLine) {
  auto vrun = Start({"-P", "nonsense", "x"});
  Conversation home = AcceptOne();
  home.Receive();
  home.fds.clear();
  v1::HomeMessage m;
  m.mutable_error()->set_code(1);
  m.mutable_error()->set_message("pool nonsense: there is none: known are local");
  home.Send(m);
  EXPECT_EQ(vrun->Wait(), 125);
  EXPECT_EQ(vrun->Err(), "vrun: pool nonsense: there is none: known are local\n");
}

TEST_F(RunSessionTest, AClosedStdinIsNothingToRead) {
  auto vrun = Start({"x"}, {.in = -2});
  Conversation home = Started();
  char c;
  EXPECT_EQ(::read(home.fds[0].get(), &c, 1), 0);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

TEST_F(RunSessionTest, TheReasonIsToldInOneLine) {
  auto vrun = Start({"no-such"});
  Conversation home = AcceptOne();
  home.Receive();
  home.fds.clear();
  home.Accept(7);
  v1::HomeMessage m;
  m.mutable_finished()->set_exit_status(127);
  m.mutable_finished()->set_reason("no-such: not found in PATH");
  m.mutable_finished()->mutable_record()->set_kind(v1::ExitRecord::NOT_FOUND);
  home.Send(m);
  EXPECT_EQ(vrun->Wait(), 127);
  EXPECT_EQ(vrun->Err(), "vrun: no-such: not found in PATH\n");
}

// --- signals

TEST_F(RunSessionTest, SignalsAreForwardedAsTheyAre) {
  auto vrun = Start({"x"});
  Conversation home = Started();
  for (int s : {SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    vrun->Signal(s);
    EXPECT_EQ(ReceiveSignal(home), s);
  }
  home.FinishExited(9);
  EXPECT_EQ(vrun->Wait(), 9);
}

TEST_F(RunSessionTest, WithoutATerminalAlsoSignalsThatOurStarterIgnoresAreMeantForUs) {
  // Like a child of a daemon that starts its children with `nohup ... &`.
  auto vrun = Start({"x"}, {}, {SIGHUP, SIGINT, SIGQUIT});
  Conversation home = Started();
  for (int s : {SIGHUP, SIGQUIT, SIGINT}) {
    vrun->Signal(s);
    EXPECT_EQ(ReceiveSignal(home), s);
  }
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

TEST_F(RunSessionTest, AHangUpIsADisconnectionForWhoSaidWhatThatMeans) {
  for (const char* wish : {"keep", "cancel"}) {
    auto vrun = Start({std::string("--on-disconnect=") + wish, "x"});
    Conversation home = Started();
    EXPECT_EQ(run_.spec().scheduling().on_disconnect(),
              wish == std::string("keep") ? v1::ON_DISCONNECT_KEEP : v1::ON_DISCONNECT_CANCEL);
    vrun->Signal(SIGHUP);
    EXPECT_EQ(vrun->Wait(), 129) << "without a word to home, as if it had been killed";
  }
}

TEST_F(RunSessionTest, ThreeInterruptsAreIntTermAndLeave) {
  auto vrun = Start({"x"});
  Conversation home = Started();
  home.fds.clear();
  vrun->Signal(SIGINT);
  EXPECT_EQ(ReceiveSignal(home), SIGINT);
  vrun->Signal(SIGINT);
  EXPECT_EQ(ReceiveSignal(home), SIGTERM);
  vrun->Signal(SIGINT);
  EXPECT_TRUE(home.Receive().has_detach());
  EXPECT_EQ(vrun->Wait(), 255);
  EXPECT_THAT(vrun->Err(), HasSubstr("job 7"));
}

// Home's disk may be full for days.
TEST_F(RunSessionTest, WhatIsOnItsWayHomeIsWaitedForUntilASecondInterrupt) {
  for (const int last : {SIGINT, SIGTERM}) {
    auto vrun = Start({"x"});
    Conversation home = Started();
    home.fds.clear();
    vrun->Signal(SIGINT);
    EXPECT_EQ(ReceiveSignal(home), SIGINT);
    std::string said;
    const auto says = [&](const char* what) {
      while (said.find(what) == std::string::npos) {
        pollfd p{vrun->err_fd(), POLLIN, 0};
        ASSERT_EQ(::poll(&p, 1, kPatienceMs), 1) << said;
        char part[512];
        said.append(part, static_cast<size_t>(std::max<ssize_t>(::read(vrun->err_fd(), part, sizeof part), 0)));
      }
    };
    home.Progress(v1::COMPLETING, "writing home");
    v1::HomeMessage notice;
    notice.mutable_notice()->set_text("so far");
    home.Send(notice);
    says("so far");  // so vrun has received everything sent before
    if (last == SIGINT) {
      vrun->Signal(SIGINT);
      says("once more");
    }
    vrun->Signal(last);
    EXPECT_TRUE(home.Receive().has_detach());
    EXPECT_EQ(vrun->Wait(), 255);
    EXPECT_THAT(vrun->Err(), HasSubstr("what it wrote comes home without you: `vctl job 7`"));
  }
}

TEST_F(RunSessionTest, AnInterruptWhileWaitingCancelsAndIs130) {
  auto vrun = Start({"x"});
  Conversation home = AcceptOne();
  home.Receive();
  home.fds.clear();
  home.Accept(7);
  home.Progress(v1::PENDING, "queued");
  vrun->Signal(SIGINT);
  EXPECT_EQ(ReceiveSignal(home), SIGINT);
  v1::HomeMessage m;
  m.mutable_finished()->set_exit_status(125);
  m.mutable_finished()->set_state(v1::CANCELLED);
  home.Send(m);
  EXPECT_EQ(vrun->Wait(), 130);
  EXPECT_THAT(vrun->Err(), HasSubstr("job 7: cancelled"));
}

TEST_F(RunSessionTest, ASecondInterruptWhileWaitingDoesNotWaitForHome) {
  auto vrun = Start({"x"});
  Conversation home = AcceptOne();
  home.Receive();
  home.fds.clear();
  home.Accept(7);
  vrun->Signal(SIGINT);
  EXPECT_EQ(ReceiveSignal(home), SIGINT);
  vrun->Signal(SIGINT);
  EXPECT_EQ(vrun->Wait(), 130);
}

TEST_F(RunSessionTest, StopStopsBothSidesAndContinueContinuesThem) {
  auto vrun = Start({"x"});
  Conversation home = Started();
  vrun->Signal(SIGTSTP);
  EXPECT_EQ(ReceiveSignal(home), SIGTSTP);
  EXPECT_TRUE(vrun->WaitStopped());
  vrun->Signal(SIGCONT);
  EXPECT_EQ(ReceiveSignal(home), SIGCONT);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

// --- home dies

TEST_F(RunSessionTest, ANewHomeGetsTheSameStreamsAndOffsets) {
  auto vrun = Start({"x"});
  Conversation first = Started();
  auto map = StreamProgressMap::Map(first.fds[3].get());
  ASSERT_TRUE(map);
  (*map)->stdout_written = 4711;
  first.fds.clear();
  listener_.Reset();
  ::unlink(socket_path().c_str());
  Listen();
  first.Close();
  Conversation second = AcceptOne();
  v1::ClientMessage message = second.Receive();
  ASSERT_TRUE(message.has_resume());
  EXPECT_EQ(message.resume().job(), 7u);
  ASSERT_EQ(second.fds.size(), 4u);
  auto again = StreamProgressMap::Map(second.fds[3].get());
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)->stdout_written, 4711u);
  vrun->Signal(SIGUSR1);
  EXPECT_EQ(ReceiveSignal(second), SIGUSR1);
  second.FinishExited(6);
  EXPECT_EQ(vrun->Wait(), 6);
}

TEST_F(RunSessionTest, ARunThatWasNotAnsweredIsAskedAgainUnderTheSameName) {
  auto vrun = Start({"x"});
  Conversation first = AcceptOne();
  std::string id = first.Receive().run().request_id();
  first.fds.clear();
  first.Close();
  Conversation second = AcceptOne();
  EXPECT_EQ(second.Receive().run().request_id(), id);
  second.Accept(7);
  second.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

TEST_F(RunSessionTest, ASubmissionThatWasNotAnsweredIsMadeAgainUnderTheSameName) {
  auto vbatch = Start({"--parsable", "true"}, {}, {}, "vbatch");
  Conversation first = AcceptOne();
  std::string id = first.Receive().run().request_id();
  first.fds.clear();
  first.Close();
  Conversation second = AcceptOne();
  EXPECT_EQ(second.Receive().run().request_id(), id);
  second.Accept(7);
  EXPECT_EQ(vbatch->Wait(), 0);
  EXPECT_EQ(vbatch->Out(), "7\n");
}

TEST_F(RunSessionTest, AQuestionThatWasNotAnsweredIsAskedOnceMore) {
  for (const bool answered : {true, false}) {
    auto vctl = Start({"jobs"}, {}, {}, "vctl");
    AcceptOne().Receive();
    Conversation second = AcceptOne();
    EXPECT_TRUE(second.Receive().query().has_list_jobs());
    if (answered) {
      v1::HomeMessage none;
      none.mutable_jobs();
      second.Send(none);
    } else {
      second.Close();
    }
    EXPECT_EQ(vctl->Wait(), answered ? 0 : 1);
    EXPECT_EQ(vctl->Err().empty(), answered);
  }
}

TEST_F(RunSessionTest, AHomeThatNeverComesBackIs255AndTheId) {
  environment_ = Environment();
  environment_.push_back("VRUN_RESUME_SECONDS=1");
  auto vrun = Start({"x"});
  Conversation home = Started();
  home.fds.clear();
  listener_.Reset();
  home.Close();
  EXPECT_EQ(vrun->Wait(), 255);
  std::string err = vrun->Err();
  EXPECT_THAT(err, HasSubstr("job 7"));
  EXPECT_THAT(err, HasSubstr("vctl job 7"));
}

TEST_F(RunSessionTest, AHomeThatDiesOfTheRequestIsNotTriedForEver) {
  auto vrun = Start({"x"});
  for (int i = 0; i < 4; ++i) {
    Conversation home = AcceptOne();
    home.Receive();
  }
  EXPECT_EQ(vrun->Wait(), 255);
}

TEST_F(RunSessionTest, GarbageFromHomeEndsTheRunAndNeverWithZero) {
  auto vrun = Start({"x"});
  Conversation home = AcceptOne();
  home.Receive();
  home.fds.clear();
  v1::HomeMessage empty;
  home.Send(empty);
  EXPECT_EQ(vrun->Wait(), 125);
  EXPECT_THAT(vrun->Err(), HasSubstr("does not understand"));
}

// --- terminals

class TerminalTest : public RunSessionTest {
 protected:
  void SetUp() override {
    RunSessionTest::SetUp();
    int master, slave;
    winsize size{33, 101, 0, 0};
    ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
    master_ = UniqueFd(master);
    slave_ = UniqueFd(slave);
    ::fcntl(master, F_SETFD, FD_CLOEXEC);
    ::fcntl(slave, F_SETFD, FD_CLOEXEC);
    before_ = Modes();
  }
  std::unique_ptr<Child> StartOnTerminal(Words args = {"x"}) {
    return Start(std::move(args),
                 {.in = slave_.get(), .out = slave_.get(), .err = slave_.get(), .controlling_terminal = true});
  }
  termios Modes() {
    termios t{};
    EXPECT_EQ(::tcgetattr(slave_.get(), &t), 0);
    return t;
  }
  static bool Same(const termios& a, const termios& b) {
    return a.c_iflag == b.c_iflag && a.c_oflag == b.c_oflag && a.c_lflag == b.c_lflag && a.c_cflag == b.c_cflag;
  }
  // The client answers signals in order, so it has handled everything sent before.
  void Settle(Child& vrun, Conversation& home) {
    vrun.Signal(SIGUSR2);
    while (home.Receive().signal().signal() != SIGUSR2 && !HasFailure()) {
    }
  }
  UniqueFd master_, slave_;
  termios before_;
};

TEST_F(TerminalTest, IsRawWhileTheCommandRunsAndRestoredAtTheEnd) {
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  EXPECT_TRUE(run_.spec().command().terminal());
  EXPECT_EQ(run_.spec().command().terminal_size().rows(), 33u);
  EXPECT_EQ(run_.spec().command().terminal_size().columns(), 101u);
  Settle(*vrun, home);
  EXPECT_EQ(Modes().c_lflag & (ICANON | ECHO | ISIG), 0u);
  home.FinishExited(5);
  EXPECT_EQ(vrun->Wait(), 5);
  EXPECT_TRUE(Same(Modes(), before_));
}

TEST_F(TerminalTest, IsOursOnceTheCommandIsOverAndTheCommandsWhenItBeginsAgain) {
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  home.Progress(v1::COMPLETING, "writing home");
  Settle(*vrun, home);
  EXPECT_EQ(Modes().c_lflag, before_.c_lflag) << "keys are ours";
  EXPECT_EQ(Modes().c_iflag, before_.c_iflag);
  EXPECT_EQ(Modes().c_oflag & OPOST, 0u) << "output of the command may be on its way, which has its \\r already";
  home.Progress(v1::RUNNING, "running on n2");
  for (int i = 0; i < kPatienceMs && (Modes().c_lflag & ICANON) != 0; ++i) ::usleep(1'000);
  EXPECT_EQ(Modes().c_lflag & (ICANON | ECHO | ISIG), 0u);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  EXPECT_TRUE(Same(Modes(), before_));
}

TEST_F(TerminalTest, IsRestoredWhenTheClientCrashes) {
  for (int s : {SIGSEGV, SIGABRT, SIGALRM, SIGXCPU}) {
    auto vrun = StartOnTerminal();
    Conversation home = Started(true);
    Settle(*vrun, home);
    EXPECT_FALSE(Same(Modes(), before_));
    vrun->Signal(s);
    int status = vrun->Wait();
    EXPECT_EQ(status, 1000 + s);
    EXPECT_TRUE(Same(Modes(), before_)) << s;
  }
}

TEST_F(TerminalTest, IsRestoredWhenHomeIsLostForGood) {
  environment_ = Environment();
  environment_.push_back("VRUN_RESUME_SECONDS=0");
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  Settle(*vrun, home);
  home.fds.clear();
  listener_.Reset();
  home.Close();
  EXPECT_EQ(vrun->Wait(), 255);
  EXPECT_TRUE(Same(Modes(), before_));
}

TEST_F(TerminalTest, StopGivesItBackAndContinueTakesItAgain) {
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  Settle(*vrun, home);
  vrun->Signal(SIGTSTP);
  EXPECT_EQ(ReceiveSignal(home), SIGTSTP);
  ASSERT_TRUE(vrun->WaitStopped());
  EXPECT_TRUE(Same(Modes(), before_));
  vrun->Signal(SIGCONT);
  v1::ClientMessage message = home.Receive();
  EXPECT_EQ(message.signal().signal(), SIGCONT);
  EXPECT_FALSE(message.signal().background());
  EXPECT_TRUE(home.Receive().has_resize());
  EXPECT_FALSE(Same(Modes(), before_));
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  EXPECT_TRUE(Same(Modes(), before_));
}

TEST_F(TerminalTest, HomeHearsWhenTheTerminalIsReady) {
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  EXPECT_TRUE(run_.terminal_ready());
  EXPECT_EQ(Modes().c_oflag & OPOST, 0u);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

// No shell could continue it. Like any program in that situation, it does not stop.
TEST_F(TerminalTest, AStoppedCommandGoesOnWhereThereIsNoShell) {
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  v1::HomeMessage message;
  message.mutable_stopped();
  home.Send(message);
  EXPECT_EQ(ReceiveSignal(home), SIGCONT);
  EXPECT_TRUE(home.Receive().has_resize());
  EXPECT_EQ(Modes().c_lflag & (ICANON | ECHO | ISIG), 0u);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

TEST_F(TerminalTest, ContinueWithoutStopDoesNotLoseTheOldModes) {
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  Settle(*vrun, home);
  vrun->Signal(SIGCONT);
  EXPECT_EQ(ReceiveSignal(home), SIGCONT);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  EXPECT_TRUE(Same(Modes(), before_));
}

TEST_F(TerminalTest, ResizesArrive) {
  auto vrun = StartOnTerminal();
  Conversation home = Started(true);
  winsize size{50, 132, 0, 0};
  ASSERT_EQ(::ioctl(slave_.get(), TIOCSWINSZ, &size), 0);  // sends SIGWINCH to the terminal's foreground group
  v1::ClientMessage message = home.Receive();
  ASSERT_TRUE(message.has_resize());
  EXPECT_EQ(message.resize().rows(), 50u);
  EXPECT_EQ(message.resize().columns(), 132u);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

TEST_F(TerminalTest, KeysReachTheDescriptorThatHomeReads) {
  auto vrun = StartOnTerminal();
  Conversation home = AcceptOne();
  home.Receive();
  home.Accept(7);
  home.Raw(true);
  UniqueFd keyboard = std::move(home.fds[0]);
  Settle(*vrun, home);
  ASSERT_EQ(::write(master_.get(), "\x03", 1), 1);
  char c = 0;
  EXPECT_EQ(::read(keyboard.get(), &c, 1), 1);
  EXPECT_EQ(c, 3);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

TEST_F(TerminalTest, WhatOurStarterIgnoresStaysIgnored) {
  auto vrun = Start({"--no-tty", "x"}, {.in = slave_.get(), .controlling_terminal = true}, {SIGHUP, SIGINT});
  Conversation home = Started();
  vrun->Signal(SIGHUP);
  vrun->Signal(SIGINT);
  vrun->Signal(SIGUSR1);
  EXPECT_EQ(ReceiveSignal(home), SIGUSR1);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

TEST_F(TerminalTest, OnlyBothEndsMakeATerminalUnlessAsked) {
  auto vrun = Start({"x"}, {.in = slave_.get(), .controlling_terminal = true});
  Conversation home = Started();
  EXPECT_FALSE(run_.spec().command().terminal());
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  vrun = Start({"-T", "x"});
  Conversation forced = Started();
  EXPECT_TRUE(run_.spec().command().terminal());
  forced.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  vrun = StartOnTerminal({"--no-tty", "x"});
  Conversation never = Started();
  EXPECT_FALSE(run_.spec().command().terminal());
  never.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
}

// --- what is written

TEST_F(RunSessionTest, StatusJsonGoesToAFileOrADescriptor) {
  auto vrun = Start({"--status-json", dir_ + "/status", "x"});
  Conversation home = Started();
  home.FinishExited(7);
  EXPECT_EQ(vrun->Wait(), 7);
  auto text = ReadFile(dir_ + "/status");
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("\"exit\": 7"));
  EXPECT_THAT(*text, HasSubstr("\"state\": \"FAILED\""));
  EXPECT_THAT(*text, HasSubstr("\"job\": 7"));

  vrun = Start({"--status-json", "fd:1", "x"});
  Conversation second = Started();
  second.fds.clear();
  second.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  EXPECT_THAT(vrun->Out(), HasSubstr("\"state\": \"COMPLETED\""));
}

TEST_F(RunSessionTest, UsageErrorsAre2AndNeedNobody) {
  for (const Words& w :
       {Words{"--no-such-option", "x"}, Words{}, Words{"-c", "none", "x"}, Words{"--status-json", "fd:77", "x"}}) {
    auto vrun = Start(w);
    EXPECT_EQ(vrun->Wait(), 2);
    std::string err = vrun->Err();
    EXPECT_TRUE(err.starts_with("vrun: ")) << err;
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  }
}

TEST_F(RunSessionTest, SilenceIsExplainedAfterTwoSeconds) {
  auto vrun = Start({"x"});
  Conversation home = AcceptOne();
  home.Receive();
  home.fds.clear();
  home.Accept(7);
  home.Progress(v1::PENDING, "queued, 3rd in pool local");
  pollfd p{vrun->err_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, kPatienceMs), 1);
  home.FinishExited(0);
  EXPECT_EQ(vrun->Wait(), 0);
  EXPECT_EQ(vrun->Err(), "vrun: queued, 3rd in pool local\n");
}

}  // namespace
}  // namespace vrun::cli
