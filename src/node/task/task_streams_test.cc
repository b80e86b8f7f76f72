// SPDX-License-Identifier: Apache-2.0
// The streams and the terminal of a real vrund-task, with agents and homes that disconnect and reconnect.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/files.h"
#include "node/task/task_ending.h"
#include "node/testing/task_fixture.h"

namespace vrun::node::testing {
namespace {

// --- streams ---

std::string Noise(size_t n) {
  std::string s(n, '\0');
  uint64_t x = 88172645463325252ull;
  for (size_t i = 0; i < n; i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(s.data() + i, &x, std::min<size_t>(8, n - i));
  }
  return s;
}

TEST_F(TaskTest, BinaryEchoIsIdentical) {
  task_->command().add_argv("cat");
  task_->Start();
  std::string data = Noise(64u << 20);
  size_t sent = 0;
  bool ended = false;
  task_->Until([&] {
    // Like home: at most one window in flight.
    while (task_->attached && sent < data.size() && sent - task_->input_acknowledged < (3u << 20)) {
      size_t n = std::min<size_t>(256 << 10, data.size() - sent);
      task_->Input(data.substr(sent, n), false);
      sent += n;
    }
    if (sent == data.size() && !ended) {
      ended = true;
      task_->Input("", true);
    }
    return task_->exited;
  });
  EXPECT_TRUE(task_->outcome.out == data);
  EXPECT_EQ(0, task_->outcome.record.exit_code());
}

TEST_F(TaskTest, StreamsAreSeparateAndLossless) {
  Outcome& o = Shell("i=0; while [ $i -lt 20000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done");
  std::string out, err;
  for (int i = 0; i < 20000; ++i) {
    out += "out " + std::to_string(i) + "\n";
    err += "err " + std::to_string(i) + "\n";
  }
  EXPECT_EQ(out, o.out);
  EXPECT_EQ(err, o.err);
}

TEST_F(TaskTest, AFullWindowStopsTheCommand) {
  task_->acknowledge = false;
  task_->Shell("yes | head -c 20000000; echo done >&2");
  task_->Start();
  task_->Until([&] { return task_->outcome.out.size() >= (4u << 20); });
  EXPECT_EQ(4u << 20, task_->outcome.out.size());
  EXPECT_EQ("", task_->outcome.err);
  task_->acknowledge = true;
  task_->Ack(v1::STDOUT, task_->outcome.out.size());
  task_->Finish();
  EXPECT_EQ(20000000u, task_->outcome.out.size());
  EXPECT_EQ("done\n", task_->outcome.err);
}

TEST_F(TaskTest, EndOfInput) {
  task_->Shell("cat; echo end");
  task_->Start();
  task_->Input("last line", true);
  EXPECT_EQ("last lineend\n", task_->Finish().out);
}

TEST_F(TaskTest, DetachedHasNoInput) {
  task_->Shell("cat; echo end");
  task_->Start(false);
  v1::TaskUp up;
  up.mutable_attach()->set_detached(true);
  task_->Send(up);
  EXPECT_EQ("end\n", task_->Finish().out);
}

TEST_F(TaskTest, CommandThatClosesItsInput) {
  task_->Shell("exec <&-; echo closed; sleep 2");
  task_->Start();
  task_->Until([&] { return task_->input_closed; });
  task_->Input("nobody reads this", true);
  EXPECT_EQ(0, task_->Finish().record.exit_code());
}

TEST_F(TaskTest, ClosedOutputIsABrokenPipe) {
  task_->command().add_argv("yes");
  task_->Start();
  task_->Until([&] { return task_->outcome.out.size() > 100000; });
  v1::TaskUp up;
  up.mutable_close_output()->set_stream(v1::STDOUT);
  task_->Send(up);
  Outcome& o = task_->Finish();
  EXPECT_EQ(SIGPIPE, o.record.signal());
}

// --- what the command has read ---

TEST_F(TaskTest, HowFarTheCommandHasReadItsInput) {
  struct Case {
    const char* script;
    bool peeked;
    uint64_t taken;
  };
  for (const Case& c : {Case{"echo x", true, 0},
                        {"echo x", false, 0},
                        {"read a", true, 4},
                        {"read a; read b", false, 8},
                        {"cat", true, 12},
                        {"cat", false, 12},
                        {"exec <&-; sleep 0.1", true, 0}}) {
    auto task = Another();
    task->Shell(c.script);
    task->Start();
    task->Input("one\ntwo\nsix\n", true, c.peeked);
    task->Finish();
    EXPECT_EQ(task->input_taken, c.taken) << c.script << (c.peeked ? ", looked at" : "");
    task->Release();
    task->WaitForEnd();
  }
}

TEST_F(TaskTest, WhatHomeHasOnlyLookedAtIsAcknowledgedWhenTheCommandReads) {
  task_->Shell("trap 'cat; exit 0' USR1; echo ready; while :; do sleep 0.02; done");
  task_->Start();
  task_->Until([&] { return task_->attached; });
  const std::string data = Noise(20'000);
  task_->Input(data, false, true);
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  EXPECT_EQ(task_->input_acknowledged, 0u);
  task_->Signal(SIGUSR1);
  task_->Until([&] { return task_->input_acknowledged == data.size(); });
  // It continues normally.
  const std::string more = Noise(1 << 20);
  task_->Input(more, true);
  EXPECT_TRUE(task_->Finish().out == "ready\n" + data + more);
  EXPECT_EQ(task_->input_taken, data.size() + more.size());
}

TEST_F(TaskTest, FurtherDescriptorsOfTheCommand) {
  for (int number : {63, 62, 10}) {
    v1::Descriptor* d = task_->command().add_descriptors();
    d->set_number(static_cast<uint32_t>(number));
    d->set_output(number == 10);
  }
  task_->Shell("cat /dev/fd/63 - /dev/fd/62; tee /dev/fd/10 < /etc/passwd >/dev/null; ls /proc/self/fd | grep -c .");
  task_->Start();
  const std::string large = Noise(1 << 20);
  task_->InputOf(static_cast<v1::StreamId>(62), "last\n", true);
  task_->InputOf(static_cast<v1::StreamId>(63), large, true);
  task_->Input("middle\n", true);
  Outcome& o = task_->Finish();
  // ls lists 0, 1, 2, its directory, and the three.
  EXPECT_TRUE(o.out == large + "middle\nlast\n7\n") << o.out.size() << o.err;
  EXPECT_EQ(task_->more[10], *ReadFile(task_->root() + "/etc/passwd"));
  EXPECT_TRUE(task_->more_ended[10]);
}

TEST_F(TaskTest, ATerminalAndADescriptorBesideIt) {
  task_->command().set_terminal(true);
  task_->command().add_descriptors()->set_number(63);
  task_->Shell("test -t 0 && cat /dev/fd/63");
  task_->Start();
  task_->InputOf(static_cast<v1::StreamId>(63), "beside\n", true);
  EXPECT_EQ(task_->Finish().out, "beside\r\n");
}

TEST_F(TaskTest, ADescriptorThatNobodyReadsIsABrokenPipe) {
  v1::Descriptor* d = task_->command().add_descriptors();
  d->set_number(9);
  d->set_output(true);
  task_->Shell("yes >&9");
  task_->Start();
  task_->Until([&] { return task_->more[9].size() > 100000; });
  v1::TaskUp up;
  up.mutable_close_output()->set_stream(static_cast<v1::StreamId>(9));
  task_->Send(up);
  EXPECT_EQ(SIGPIPE, task_->Finish().record.signal());
}

// --- the terminal ---

TEST_F(TaskTest, ControlZStopsTheCommandUntilItIsContinued) {
  task_->command().set_terminal(true);
  task_->Shell(
      "trap 'echo redrawn' WINCH; echo ready; i=0; while [ $i -lt 10000 ]; do read -t 0.1 x && break; done; echo got "
      "$x");
  task_->Start();
  task_->Until([&] { return task_->outcome.out.find("ready") != std::string::npos; });
  task_->Input("\x1a", false);
  task_->Until([&] { return task_->stopped == 1; });
  // Repeated to a home that connects meanwhile.
  task_->Disconnect();
  task_->Reconnect();
  task_->Attach(task_->outcome.out.size());
  task_->Until([&] { return task_->stopped == 2; });
  task_->Signal(SIGCONT);
  task_->Until([&] { return task_->outcome.out.find("redrawn") != std::string::npos; });
  task_->Input("on\r", false);
  EXPECT_NE(task_->Finish().out.find("got on"), std::string::npos);
}

TEST_F(TaskTest, ControlZInAShellIsTheShells) {
  task_->command().set_terminal(true);
  for (const char* word : {"sh", "-i"}) task_->command().add_argv(word);
  task_->Start();
  task_->Until([&] { return task_->attached; });
  task_->Input("sh -c \"echo rea''dy; sleep 100\"\r", false);
  task_->Until([&] { return task_->outcome.out.find("ready\r") != std::string::npos; });
  task_->Input("\x1a", false);
  task_->Until([&] { return task_->outcome.out.find("Stopped") != std::string::npos; });
  task_->Input("exit 7\rexit 7\r", false);
  EXPECT_EQ(7, task_->Finish().record.exit_code());
  EXPECT_EQ(0, task_->stopped);
}

TEST_F(TaskTest, Terminal) {
  task_->command().set_terminal(true);
  task_->command().mutable_terminal_size()->set_rows(24);
  task_->command().mutable_terminal_size()->set_columns(80);
  task_->command().mutable_identity()->set_uid(1000);
  task_->command().mutable_identity()->set_gid(1000);
  task_->Shell(
      "trap 'echo winch' WINCH; tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo tty; stat -c '%u %g %a' "
      "/dev/pts/0;"
      // SIGWINCH may interrupt a read
      "echo hello > /dev/tty; until read x; do :; done; stty size; echo got $x; kill -TERM $$");
  task_->Start();
  task_->Until([&] { return task_->outcome.out.find("hello") != std::string::npos; });
  EXPECT_EQ("/dev/pts/0\r\n24 80\r\ntty\r\n1000 5 620\r\nhello\r\n", task_->outcome.out);
  v1::TaskUp up;
  up.mutable_resize()->set_rows(50);
  up.mutable_resize()->set_columns(132);
  task_->Send(up);
  task_->Input("abc\r", false);
  Outcome& o = task_->Finish();
  EXPECT_NE(std::string::npos, o.out.find("50 132\r\n")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("got abc")) << o.out;
  EXPECT_EQ(SIGTERM, o.record.signal());
}

TEST_F(TaskTest, ControlCThroughTheTerminal) {
  task_->command().set_terminal(true);
  task_->Shell("echo ready; sleep 100");
  task_->Start();
  task_->Until([&] { return task_->outcome.out.find("ready") != std::string::npos; });
  task_->Input("\x03", false);
  EXPECT_EQ(SIGINT, task_->Finish().record.signal());
}

TEST_F(TaskTest, TerminalOutputIsNotCutAtTheEnd) {
  task_->command().set_terminal(true);
  Outcome& o = Shell("seq 1 20000");
  std::string want;
  for (int i = 1; i <= 20000; ++i) want += std::to_string(i) + "\r\n";
  EXPECT_TRUE(o.out == want) << o.out.size() << " of " << want.size();
}

// --- agents and homes that come and go ---

TEST_F(TaskTest, AnotherAgentGoesOnByOffset) {
  task_->acknowledge = false;
  task_->Shell("echo one; read x; echo two $x; read x; echo three $x; exit 5");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "one\n"; });
  task_->Disconnect();
  task_->Reconnect();
  task_->Attach(2);  // as if the last two bytes had not been acknowledged
  task_->Until([&] { return task_->attached; });
  task_->outcome.out.resize(2);
  task_->Input("a\n", false);
  task_->Until([&] { return task_->outcome.out == "one\ntwo a\n"; });
  EXPECT_TRUE(task_->started);
  task_->Reconnect();  // the newest wins, although the old one was not closed
  task_->Attach(task_->outcome.out.size());
  task_->Until([&] { return task_->attached; });
  task_->Input("b\n", false);
  Outcome& o = task_->Finish();
  EXPECT_EQ("one\ntwo a\nthree b\n", o.out);
  EXPECT_EQ(5, o.record.exit_code());
}

TEST_F(TaskTest, UnacknowledgedOutputComesAgain) {
  task_->acknowledge = false;
  task_->Shell("seq 1 100000; echo oops >&2");
  task_->Start();
  task_->Finish();
  std::string all = task_->outcome.out;
  task_->Disconnect();
  task_->Reconnect();
  task_->outcome = {};
  task_->Attach(0);
  task_->Finish();
  EXPECT_EQ(all, task_->outcome.out);
  EXPECT_EQ("oops\n", task_->outcome.err);
  EXPECT_EQ(0, task_->outcome.record.exit_code());
}

TEST_F(TaskTest, AnAgentWithoutHomeLearnsTheEnd) {
  task_->Shell("echo x; exit 4");
  task_->Start(false);
  task_->Until([&] { return task_->exited; });
  EXPECT_EQ(4, task_->outcome.record.exit_code());
  EXPECT_EQ("", task_->outcome.out);
  task_->Attach();
  task_->exited = false;
  EXPECT_EQ("x\n", task_->Finish().out);
}

TEST_F(TaskTest, OrphansAreKilledAndKeepTheirRecord) {
  task_->options = {"--orphan-limit", "0.2"};
  task_->Shell("echo x > /root/kept; echo ready; sleep 1000");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  task_->Disconnect();
  task_->WaitForEnd();
  Result<v1::ExitRecord> record = ReadJournal(task_->directory());
  ASSERT_TRUE(record) << record.error().message();
  EXPECT_EQ(v1::ExitRecord::SIGNALED, record->kind());
  EXPECT_NE("", record->reason());
  EXPECT_TRUE(PathExists(task_->directory() + "/upper/root/kept"));
  EXPECT_FALSE(GroupsLeft(task_->place().job()));
}

TEST_F(TaskTest, TheNodeStops) {
  task_->Shell("echo ready; sleep 1000");
  task_->Start();
  task_->Until([&] { return task_->started; });
  ::kill(task_->pid(), SIGTERM);
  task_->WaitForEnd();
  Result<v1::ExitRecord> record = ReadJournal(task_->directory());
  ASSERT_TRUE(record) << record.error().message();
  EXPECT_EQ(137, record->exit_code());
  EXPECT_NE(std::string::npos, record->reason().find("node stopped"));
}

TEST_F(TaskTest, ASpareSupervisorGoesWithItsAgent) {
  task_->Shell("true");
  int pair[2];
  ASSERT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
  pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pair[1], 10);
    ::execl(VRUND_TASK, VRUND_TASK, "--fd", "10", nullptr);
    ::_exit(99);
  }
  ::close(pair[1]);
  ::close(pair[0]);
  int status = -1;
  EXPECT_TRUE(Eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }));
  EXPECT_EQ(0, status);
}

TEST_F(TaskTest, KilledSupervisorTakesItsSandboxAlong) {
  task_->Shell("setsid sleep 1000 & (sleep 1000 &); echo ready; sleep 1000");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  EXPECT_GE(ProcessesOfRange(kUidBase).size(), 4u);
  ::kill(task_->pid(), SIGKILL);
  EXPECT_TRUE(Eventually([] { return ProcessesOfRange(kUidBase).empty(); }));
}

}  // namespace
}  // namespace vrun::node::testing
