// SPDX-License-Identifier: Apache-2.0
// For tests: a small root (busybox) and a real vrund-task; the test plays its agent and home.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/io/message_socket.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "proto/supervisor.pb.h"
#include "proto/task.pb.h"

namespace vrun::node::testing {

// A uid range for this test process, because other clusters may be running on this host.
inline const uint32_t kUidBase = 0x50000000 + static_cast<uint32_t>(::getpid() % 4096) * 65536;

// The reason why this host cannot run these tests; "" if it can.
std::string WhyNot();

// A directory below $TMPDIR or /var/tmp, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// /bin/busybox with its usual names, /etc, /root, /home/ann (uid 1000), /bin/mode644; no /dev, /proc, /sys, /run, /tmp.
void MakeRoot(const std::string& path);

struct Outcome {
  v1::ExitRecord record;
  std::string out, err;
  std::vector<v1::WriteBack> writes;
  std::vector<std::string> notices, errors;
  bool write_end = false;
};

class TaskProcess {
 public:
  // A single string with a space in `argv` is run by /bin/sh -c. Set the rest in spec().
  explicit TaskProcess(const std::string& base);
  ~TaskProcess();  // kills what still runs

  v1::TaskSpec& spec() { return spec_; }
  v1::Placement& place() { return *spec_.mutable_order()->mutable_placement(); }
  v1::RunSpec& run() { return *spec_.mutable_order()->mutable_spec(); }
  v1::Command& command() { return *run().mutable_command(); }
  void Shell(const std::string& script);
  std::vector<std::string> options;  // options of vrund-task
  std::string directory() const { return spec_.task_directory(); }
  std::string root() const { return root_; }

  void Start(bool attach = true);
  void Send(const v1::TaskUp& up);
  void Attach(uint64_t out = 0, uint64_t err = 0, uint64_t writes = 0);
  void Input(const std::string& data, bool end, bool peeked = false);
  void InputOf(v1::StreamId stream, const std::string& data, bool end);  // the whole input
  void Signal(int signal, bool cancel = false);
  void Go();
  void Exec(const v1::ExecInPod& exec);
  void Ack(v1::StreamId stream, uint64_t offset);
  void Release();
  // Simulates an agent that dies and is replaced.
  void Disconnect();
  void Reconnect();

  // The next message, acknowledged like home does if `acknowledge`; nullopt at the end of the connection. Fails the
  // test after a minute.
  std::optional<v1::TaskDown> Receive();
  bool acknowledge = true;
  // Reads until `done` returns true.
  void Until(const std::function<bool()>& done);
  // Reads until the exit record and the writes have arrived.
  Outcome& Finish();
  // Start, Finish, Release, then waits for the process to exit.
  Outcome& Run();
  void WaitForEnd();

  Outcome outcome;
  bool started = false, ready = false;
  std::vector<v1::JobWord> words;
  std::vector<v1::ExecInPod> execs;
  uint64_t input_acknowledged = 0, input_wanted = 0;
  std::optional<uint64_t> input_taken;
  std::map<int, std::string> more;  // output of descriptors above 2
  std::map<int, bool> more_ended;
  int stopped = 0;  // how often the command was stopped
  bool input_closed = false, out_eof = false, err_eof = false, exited = false, attached = false;
  pid_t pid() const { return pid_; }

 private:
  std::string root_;
  v1::TaskSpec spec_;
  UniqueFd socket_;
  pid_t pid_ = -1;
};

// Live processes on the host within the sandbox's uid range.
std::vector<pid_t> ProcessesOfRange(uint32_t uid_base);
bool GroupsLeft(uint64_t job);
// Polls until true or a minute has passed.
bool Eventually(const std::function<bool()>& condition);

class TaskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why = WhyNot();
    if (!why.empty()) GTEST_SKIP() << why;
    MakeRoot(base_.path() + "/root");
    task_ = std::make_unique<TaskProcess>(base_.path());
  }
  void TearDown() override {
    task_.reset();
    EXPECT_TRUE(Eventually([] { return ProcessesOfRange(kUidBase).empty(); })) << "processes were left behind";
  }
  std::unique_ptr<TaskProcess> Another() { return std::make_unique<TaskProcess>(base_.path()); }
  Outcome& Shell(const std::string& script) {
    task_->Shell(script);
    return task_->Run();
  }
  void Environment(const std::string& e) { task_->command().add_environment(e); }

  TemporaryDirectory base_;
  std::unique_ptr<TaskProcess> task_;
};

}  // namespace vrun::node::testing
