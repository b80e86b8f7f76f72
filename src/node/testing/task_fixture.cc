// SPDX-License-Identifier: Apache-2.0
#include "node/testing/task_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/files.h"
#include "node/task/task_spec.h"
#include "sandbox/cgroup.h"

namespace vrun::node::testing {
namespace {
constexpr int kPatienceMs = 60000;
constexpr const char* kApplets[] = {"sh",    "cat",  "true",   "false",  "id",       "ls",       "mount", "ps",
                                    "sleep", "stty", "head",   "tail",   "env",      "pwd",      "echo",  "umask",
                                    "nice",  "kill", "mkdir",  "rm",     "mv",       "ln",       "stat",  "dd",
                                    "wc",    "test", "touch",  "chmod",  "readlink", "hostname", "yes",   "seq",
                                    "tty",   "grep", "usleep", "setsid", "printf",   "timeout",  "tee"};
}  // namespace

std::string WhyNot() {
  if (::geteuid() != 0) return "needs root: mounts and namespaces";
  if (!PathExists("/bin/busybox")) return "needs /bin/busybox (package busybox-static)";
  if (!PathExists("/proc/self/ns/user")) return "needs user namespaces";
  return "";
}

TemporaryDirectory::TemporaryDirectory() {
  const char* base = std::getenv("TMPDIR");
  std::string pattern = std::string(base != nullptr && *base != '\0' ? base : "/var/tmp") + "/vrun-task-XXXXXX";
  path_ = ::mkdtemp(pattern.data());
  ::chmod(path_.c_str(), 0755);
}

TemporaryDirectory::~TemporaryDirectory() { static_cast<void>(RemoveTree(path_)); }

void MakeRoot(const std::string& path) {
  for (const char* d : {"", "/bin", "/etc", "/root", "/home", "/home/ann", "/sub"}) {
    ASSERT_TRUE(MakeDirs(path + d, 0755));
    ASSERT_EQ(0, ::chown((path + d).c_str(), kUidBase, kUidBase));
  }
  ASSERT_EQ(0, ::chown((path + "/home/ann").c_str(), kUidBase + 1000, kUidBase + 1000));
  Result<std::string> busybox = ReadFile("/bin/busybox");
  ASSERT_TRUE(busybox);
  auto put = [&](const std::string& name, const std::string& content, mode_t mode) {
    UniqueFd fd(::open((path + name).c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_TRUE(WriteAll(fd.get(), content));
    ASSERT_EQ(0, ::fchown(fd.get(), kUidBase, kUidBase));
    ASSERT_EQ(0, ::fchmod(fd.get(), mode));
  };
  put("/bin/busybox", *busybox, 0755);
  for (const char* name : kApplets) ASSERT_EQ(0, ::symlink("busybox", (path + "/bin/" + name).c_str()));
  put("/bin/mode644", "#!/bin/sh\n", 0644);
  put("/bin/no-interpreter", "#!/usr/bin/nothing -x\n", 0755);
  put("/bin/no-shebang", "echo from a text with $# arguments, $1\n", 0755);
  put("/bin/foreign", std::string("\177FOO\0\0\1\2", 8), 0755);
  Result<std::string> probe = ReadFile(TASK_PROBE);
  ASSERT_TRUE(probe);
  put("/bin/setuid-probe", *probe, 04755);
  put("/etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n", 0644);
  put("/etc/resolv.conf", "nameserver 192.0.2.1\n", 0644);
}

TaskProcess::TaskProcess(const std::string& base) : root_(base + "/root") {
  static int number = 0;
  place().set_job(static_cast<uint64_t>(::getpid()) * 1000 + static_cast<uint64_t>(++number));
  place().set_attempt(1);
  spec_.set_task_directory(base + "/task" + std::to_string(number));
  spec_.set_uid_base(kUidBase);
  spec_.set_node("n1");
  run().set_pool("local");
  command().add_environment("PATH=/usr/bin:/bin");
  command().set_directory("/");
  command().set_umask(022);
}

TaskProcess::~TaskProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    // The sandbox dies shortly after its supervisor.
    const std::string name = PathExists(directory()) ? GroupName(spec_) : "";
    Eventually(
        [&] { return name.empty() || static_cast<bool>(sandbox::RemoveCgroups(sandbox::DetectCgroups(), name)); });
  }
}

void TaskProcess::Shell(const std::string& script) {
  command().clear_argv();
  for (const std::string& a : {std::string("sh"), std::string("-c"), script}) command().add_argv(a);
}

void TaskProcess::Start(bool attach) {
  int pair[2];
  ASSERT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
  socket_.Reset(pair[0]);
  UniqueFd theirs(pair[1]);
  std::vector<std::string> argv = {VRUND_TASK, "--fd", "10"};
  argv.insert(argv.end(), options.begin(), options.end());
  std::vector<char*> pointers;
  for (std::string& a : argv) pointers.push_back(a.data());
  pointers.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(theirs.get(), 10);
    ::execv(pointers[0], pointers.data());
    ::_exit(99);
  }
  UniqueFd view(::open_tree(AT_FDCWD, root_.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  ASSERT_TRUE(view) << "open_tree " << root_;
  ASSERT_TRUE(SendFrame(socket_.get(), spec_.SerializeAsString(), {view.get()}));
  if (attach) Attach();
}

void TaskProcess::Send(const v1::TaskUp& up) { static_cast<void>(SendFrame(socket_.get(), up.SerializeAsString())); }

void TaskProcess::Attach(uint64_t out, uint64_t err, uint64_t writes) {
  v1::TaskUp up;
  up.mutable_attach()->set_job(place().job());
  up.mutable_attach()->set_attempt(1);
  up.mutable_attach()->set_stdout_offset(out);
  up.mutable_attach()->set_stderr_offset(err);
  up.mutable_attach()->set_write_back_sequence(writes);
  Send(up);
}

void TaskProcess::InputOf(v1::StreamId stream, const std::string& data, bool end) {
  v1::TaskUp up;
  up.mutable_input()->set_stream(stream);
  up.mutable_input()->set_data(data);
  up.mutable_input()->set_eof(end);
  Send(up);
}

void TaskProcess::Input(const std::string& data, bool end, bool peeked) {
  v1::TaskUp up;
  up.mutable_input()->set_peeked(peeked);
  up.mutable_input()->set_offset(input_wanted);
  up.mutable_input()->set_data(data);
  up.mutable_input()->set_eof(end);
  input_wanted += data.size();
  Send(up);
}

void TaskProcess::Signal(int signal, bool cancel) {
  v1::TaskUp up;
  up.mutable_signal()->set_signal(signal);
  up.mutable_signal()->set_by_user_cancel(cancel);
  Send(up);
}

void TaskProcess::Go() {
  v1::TaskUp up;
  up.set_go(true);
  Send(up);
}

void TaskProcess::Exec(const v1::ExecInPod& exec) {
  v1::TaskUp up;
  *up.mutable_exec() = exec;
  Send(up);
}

void TaskProcess::Ack(v1::StreamId stream, uint64_t offset) {
  v1::TaskUp up;
  up.mutable_ack()->set_stream(stream);
  up.mutable_ack()->set_offset(offset);
  Send(up);
}

void TaskProcess::Release() {
  v1::TaskUp up;
  up.mutable_release();
  Send(up);
}

void TaskProcess::Disconnect() { socket_.Reset(); }

void TaskProcess::Reconnect() {
  attached = exited = started = ready = out_eof = err_eof = false;
  ASSERT_TRUE(Eventually([&] {
    Result<UniqueFd> fd = ConnectUnix(directory() + "/sock");
    if (fd) socket_ = *std::move(fd);
    return fd.has_value();
  }));
}

std::optional<v1::TaskDown> TaskProcess::Receive() {
  pollfd p{socket_.get(), POLLIN, 0};
  if (::poll(&p, 1, kPatienceMs) != 1) {
    ADD_FAILURE() << "nothing from the supervisor for a minute; out so far: " << outcome.out.substr(0, 500);
    ::kill(pid_, SIGKILL);
  }
  Result<Frame> frame = ReceiveFrame(socket_.get());
  if (!frame) return std::nullopt;
  v1::TaskDown down;
  EXPECT_TRUE(down.ParseFromString(frame->bytes));
  switch (down.body_case()) {
    case v1::TaskDown::kAttached:
      attached = true;
      input_wanted = down.attached().input_offset();
      break;
    case v1::TaskDown::kStarted: started = true; break;
    case v1::TaskDown::kOutput: {
      const v1::Output& o = down.output();
      if (o.stream() > v1::STDERR) {
        EXPECT_FALSE(exited) << "the exit record overtook output";
        more[o.stream()].replace(o.offset(), std::string::npos, o.data());
        more_ended[o.stream()] |= o.eof();
        if (acknowledge) Ack(o.stream(), o.offset() + o.data().size());
        break;
      }
      std::string& text = o.stream() == v1::STDERR ? outcome.err : outcome.out;
      EXPECT_LE(o.offset(), text.size()) << "a gap";
      size_t known = text.size() - o.offset();
      if (o.data().size() > known) text.append(o.data(), known);
      if (o.eof()) (o.stream() == v1::STDERR ? err_eof : out_eof) = true;
      if (acknowledge) Ack(o.stream(), o.offset() + o.data().size());
      break;
    }
    case v1::TaskDown::kInputAck:
      if (down.input_ack().stream() != v1::STDIN) break;
      input_acknowledged = down.input_ack().offset();
      if (down.input_ack().has_taken()) input_taken = down.input_ack().taken();
      input_closed |= down.input_ack().closed();
      break;
    case v1::TaskDown::kStopped: ++stopped; break;
    case v1::TaskDown::kExited:
      EXPECT_TRUE(!attached || (out_eof && err_eof)) << "the exit record overtook output";
      exited = true;
      outcome.record = down.exited().record();
      break;
    case v1::TaskDown::kWriteBack:
      outcome.writes.push_back(down.write_back());
      // Like home: acknowledges complete, durable operations.
      if (acknowledge && !down.write_back().has_put_file() &&
          !(down.write_back().has_file_data() && !down.write_back().file_data().last())) {
        v1::TaskUp up;
        up.mutable_write_back_ack()->set_sequence(down.write_back().sequence());
        Send(up);
      }
      break;
    case v1::TaskDown::kWriteBackEnd: outcome.write_end = true; break;
    case v1::TaskDown::kError: outcome.errors.push_back(down.error().message()); break;
    case v1::TaskDown::kReady: ready = true; break;
    case v1::TaskDown::kWord: words.push_back(down.word()); break;
    case v1::TaskDown::kExec: execs.push_back(down.exec()); break;
    case v1::TaskDown::kNotice: outcome.notices.push_back(down.notice().text()); break;
    default: ADD_FAILURE() << "unknown message"; break;
  }
  return down;
}

void TaskProcess::Until(const std::function<bool()>& done) {
  while (!done()) {
    if (!Receive()) {
      ADD_FAILURE() << "the supervisor closed the connection";
      return;
    }
  }
}

Outcome& TaskProcess::Finish() {
  Until([&] { return exited && outcome.write_end; });
  return outcome;
}

Outcome& TaskProcess::Run() {
  Start();
  Finish();
  Release();
  WaitForEnd();
  return outcome;
}

void TaskProcess::WaitForEnd() {
  int status = -1;
  bool ended = Eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
  EXPECT_TRUE(ended) << "the supervisor does not go";
  if (!ended) return;
  pid_ = -1;
  EXPECT_EQ(0, status);
}

std::vector<pid_t> ProcessesOfRange(uint32_t uid_base) {
  std::vector<pid_t> out;
  DIR* proc = ::opendir("/proc");
  while (dirent* e = ::readdir(proc)) {
    struct stat st;
    pid_t pid = std::atoi(e->d_name);
    if (pid <= 0) continue;
    Result<std::string> status = ReadFile("/proc/" + std::to_string(pid) + "/status");
    if (!status) continue;
    size_t at = status->find("\nUid:\t");
    if (at == std::string::npos) continue;
    uint64_t uid = std::strtoull(status->c_str() + at + 6, nullptr, 10);
    if (uid >= uid_base && uid < uint64_t{uid_base} + 65536) out.push_back(pid);
    static_cast<void>(st);
  }
  ::closedir(proc);
  return out;
}

bool GroupsLeft(uint64_t job) {
  const sandbox::CgroupHost host = sandbox::DetectCgroups();
  for (const std::string& mount : {host.memory.mount, host.cpu.mount, host.pids.mount, host.unified}) {
    if (mount.empty() || !PathExists(mount + "/vrun")) continue;
    for (const auto& entry : std::filesystem::directory_iterator(mount + "/vrun")) {
      if (entry.path().filename().string().starts_with(std::to_string(job) + ".")) return true;
    }
  }
  return false;
}

bool Eventually(const std::function<bool()>& condition) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::usleep(2000);  // waits for another process's exit or file, for which there is no event in general
  }
  return true;
}

}  // namespace vrun::node::testing
