// SPDX-License-Identifier: Apache-2.0
// A real vrund-task in real namespaces, on a plain directory instead of a view: what is executed, as whom and with
// what, how it ends. Its streams: task_streams_test.cc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/cpu_list.h"
#include "base/files.h"
#include "node/task/task_ending.h"
#include "node/testing/task_fixture.h"

namespace vrun::node::testing {
namespace {

// --- the end ---

TEST_F(TaskTest, ExitCodesPass) {
  for (int code : {0, 1, 2, 42, 125, 126, 127, 128, 137, 254, 255}) {
    auto task = Another();
    task->Shell("exit " + std::to_string(code));
    Outcome& o = task->Run();
    EXPECT_EQ(v1::ExitRecord::EXITED, o.record.kind());
    EXPECT_EQ(code, o.record.exit_code());
    EXPECT_EQ("", o.record.reason());
    EXPECT_GT(o.record.started_us(), 0);
    EXPECT_GE(o.record.ended_us(), o.record.started_us());
    EXPECT_EQ("n1", o.record.node());
    EXPECT_GT(o.record.peak_memory_bytes(), 0u);
    EXPECT_GT(o.record.cpu_us(), 0u);
  }
}

TEST_F(TaskTest, DeathBySignalIsReported) {
  for (int signal : {SIGHUP, SIGINT, SIGKILL, SIGUSR1, SIGSEGV, SIGTERM, SIGPIPE}) {
    auto task = Another();
    task->Shell("kill -" + std::to_string(signal) + " $$; sleep 5");
    Outcome& o = task->Run();
    EXPECT_EQ(v1::ExitRecord::SIGNALED, o.record.kind()) << signal;
    EXPECT_EQ(signal, o.record.signal());
    EXPECT_EQ(128 + signal, o.record.exit_code());
  }
}

TEST_F(TaskTest, LeavesNothingBehind) {
  Outcome& o = Shell("echo x > /root/new; sleep 1000 & sleep 1000 & setsid sleep 1000 & exit 3");
  EXPECT_EQ(3, o.record.exit_code());
  EXPECT_FALSE(PathExists(task_->directory()));
  EXPECT_FALSE(GroupsLeft(task_->place().job()));
  Result<std::string> mounts = ReadFile("/proc/self/mountinfo");
  EXPECT_EQ(std::string::npos, mounts->find(base_.path()));
  EXPECT_TRUE(ProcessesOfRange(kUidBase).empty());
}

TEST_F(TaskTest, AnotherNodesJobOfTheSameNumberIsLeftAlone) {
  // Two nodes of two clusters on one host: their jobs have the same numbers, and their control groups the same parent.
  auto other = Another();
  other->place().set_job(task_->place().job());
  other->Shell("echo ready; read line; exit 4");
  other->Start();
  other->Until([&] { return other->outcome.out == "ready\n"; });
  EXPECT_EQ(3, Shell("sleep 1000 & exit 3").record.exit_code());
  other->Input("go\n", true);
  const Outcome& o = other->Finish();
  EXPECT_EQ(v1::ExitRecord::EXITED, o.record.kind()) << "it was killed with the other one";
  EXPECT_EQ(4, o.record.exit_code());
}

TEST_F(TaskTest, RecordIsOnDiskBeforeItIsTold) {
  task_->Shell("exit 7");
  task_->Start();
  task_->Until([&] { return task_->exited; });
  Result<v1::ExitRecord> record = ReadJournal(task_->directory());
  ASSERT_TRUE(record) << record.error().message();
  EXPECT_EQ(7, record->exit_code());
  EXPECT_EQ(task_->place().job(), record->job());
}

TEST_F(TaskTest, BackgroundProcessesDoNotHoldTheOutput) {
  Outcome& o = Shell("(while true; do sleep 1000; done) & echo done");
  EXPECT_EQ("done\n", o.out);
  EXPECT_EQ(0, o.record.exit_code());
}

// --- what is executed ---

struct NotRun {
  const char* command;
  v1::ExitRecord::Kind kind;
  int code;
  const char* reason;
};

TEST_F(TaskTest, WhatCannotBeExecuted) {
  const NotRun kCases[] = {
      {"no-such-command", v1::ExitRecord::NOT_FOUND, 127, "command not found in PATH"},
      {"/bin/nothing", v1::ExitRecord::NOT_FOUND, 127, "not in the mirrored root"},
      {"./nothing", v1::ExitRecord::NOT_FOUND, 127, "not in the mirrored root"},
      {"/bin/busybox/x", v1::ExitRecord::NOT_FOUND, 127, "not in the mirrored root"},
      {"no-interpreter", v1::ExitRecord::NOT_FOUND, 127, "/usr/bin/nothing"},
      {"mode644", v1::ExitRecord::NOT_EXECUTABLE, 126, "Permission denied"},
      {"/bin/mode644", v1::ExitRecord::NOT_EXECUTABLE, 126, "Permission denied"},
      {"/etc", v1::ExitRecord::NOT_EXECUTABLE, 126, "Permission denied"},
      {"foreign", v1::ExitRecord::NOT_EXECUTABLE, 126, "Exec format error"},
      {"", v1::ExitRecord::NOT_FOUND, 127, "no command"},
  };
  for (const NotRun& c : kCases) {
    auto task = Another();
    task->command().add_argv(c.command);
    Outcome& o = task->Run();
    EXPECT_EQ(c.kind, o.record.kind()) << c.command;
    EXPECT_EQ(c.code, o.record.exit_code()) << c.command;
    EXPECT_NE(std::string::npos, o.record.reason().find(c.reason)) << c.command << ": " << o.record.reason();
    EXPECT_EQ(0, o.record.started_us());
  }
}

TEST_F(TaskTest, TextWithoutShebangIsTheShells) {
  task_->command().add_argv("no-shebang");
  task_->command().add_argv("one");
  Outcome& o = task_->Run();
  EXPECT_EQ("from a text with 1 arguments, one\n", o.out);
  EXPECT_EQ(0, o.record.exit_code());
}

TEST_F(TaskTest, DefaultPathAndArgv0) {
  task_->command().clear_environment();
  for (const char* a : {"sh", "-c", "echo $0 $1", "zero", "one two"}) task_->command().add_argv(a);
  EXPECT_EQ("zero one two\n", task_->Run().out);
}

TEST_F(TaskTest, WorkingDirectory) {
  task_->command().set_directory("/home/ann");
  EXPECT_EQ("/home/ann\n", Shell("pwd").out);

  auto missing = Another();
  missing->command().set_directory("/home/bob");
  missing->Shell("pwd");
  Outcome& o = missing->Run();
  EXPECT_EQ(v1::ExitRecord::START_FAILED, o.record.kind());
  EXPECT_EQ(125, o.record.exit_code());
  EXPECT_NE(std::string::npos, o.record.reason().find("working directory /home/bob is not in the mirrored root"))
      << o.record.reason();

  auto own = Another();
  own->command().set_directory("/tmp/x");
  own->Shell("pwd");
  EXPECT_NE(std::string::npos, own->Run().record.reason().find("the job's own"));
}

// --- who and with what ---

TEST_F(TaskTest, IdentityOfAnOrdinaryUser) {
  task_->command().mutable_identity()->set_uid(1000);
  task_->command().mutable_identity()->set_gid(1000);
  for (uint32_t g : {1000u, 27u, 70000u}) task_->command().mutable_identity()->add_groups(g);
  task_->spec().add_high_ids(70000);
  Outcome& o = Shell(
      "id; cat /proc/self/uid_map | wc -l; cat /proc/self/gid_map | wc -l; touch /home/ann/f && stat -c '%u %g' "
      "/home/ann/f;"
      "touch /etc/f 2>/dev/null || echo no; stat -c '%u %a' /run/user/1000; echo hello > /dev/stderr; echo there > "
      "/dev/stdout;"
      "grep Cap.ff /proc/self/status; cat /proc/1/environ 2>/dev/null || echo hidden");
  EXPECT_NE(std::string::npos, o.out.find("uid=1000(ann) gid=1000 groups=27,1000,70000")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("\n2\n2\n1000 1000\nno\n1000 700\nthere\n")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("hidden\n")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("CapEff:\t0000000000000000")) << o.out;
  EXPECT_EQ("hello\n", o.err);
}

TEST_F(TaskTest, RootInsideIsNobodyOutside) {
  task_->Shell("id -u; touch /etc/x && echo wrote; cat /proc/1/environ >/dev/null 2>&1 || echo hidden; read x");
  task_->Start();
  task_->Until([&] { return task_->outcome.out.find("hidden\n") != std::string::npos; });
  EXPECT_EQ("0\nwrote\nhidden\n", task_->outcome.out);
  EXPECT_FALSE(ProcessesOfRange(kUidBase).empty());
  struct stat st;
  ASSERT_EQ(0, ::lstat((task_->directory() + "/upper/etc/x").c_str(), &st));
  EXPECT_EQ(kUidBase, st.st_uid);
  task_->Input("", true);
  EXPECT_EQ(1, task_->Finish().record.exit_code());
}

TEST_F(TaskTest, SetuidWorksInsideOnlyWhereItIsAllowed) {
  for (const bool allowed : {false, true}) {
    auto task = Another();
    task->spec().mutable_isolation()->set_allow_setuid(allowed);
    task->command().mutable_identity()->set_uid(1000);
    task->command().mutable_identity()->set_gid(1000);
    task->command().add_argv("setuid-probe");
    EXPECT_EQ(allowed ? "uid 1000 euid 0\n" : "uid 1000 euid 1000\n", task->Run().out);
  }
}

TEST_F(TaskTest, EnvironmentIsExact) {
  Environment("A=1");
  Environment("B=x=y z");
  Environment("EMPTY=");
  Environment("BYTES=\xff\n\x01");
  Environment("VRUN_JOB_ID=outer");
  task_->place().set_attempt(3);
  task_->command().add_argv("env");
  Outcome& o = task_->Run();
  std::string id = std::to_string(task_->place().job());
  EXPECT_EQ("PATH=/usr/bin:/bin\nA=1\nB=x=y z\nEMPTY=\nBYTES=\xff\n\x01\nVRUN_JOB_ID=" + id +
                "\nVRUN_TASK=0\nVRUN_POOL=local\nVRUN_NODELIST=n1\nVRUN_RESTART_COUNT=2\nVRUN_GRACE_S=30\nVRUN_JOB_"
                "SOCKET=/run/vrun/job.sock\nVRUN_CKPT_DIR=/.vrun/ckpt/" +
                id + "\n",
            o.out);
}

TEST_F(TaskTest, UmaskNiceAndLimits) {
  task_->command().set_umask(027);
  task_->command().set_nice(5);
  auto limit = [&](int resource, uint64_t soft) {
    v1::ResourceLimit* l = task_->command().add_limits();
    l->set_resource(resource);
    l->set_soft(soft);
  };
  limit(RLIMIT_NOFILE, 123);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_STACK, UINT64_MAX);
  limit(999, 1);
  Outcome& o = Shell(
      "umask; read a < /proc/self/stat; set -- $a; echo ${19}; ulimit -n; ulimit -c; grep -E 'Sig(Ign|Blk|Cgt)' "
      "/proc/self/status; ls /proc/self/fd | wc -l");
  // The niceness of the test process itself cannot be lowered.
  std::string nice = std::to_string(std::max(5, ::getpriority(PRIO_PROCESS, 0)));
  EXPECT_EQ("0027\n" + nice +
                "\n123\n0\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n4\n",
            o.out);
}

TEST_F(TaskTest, HostnameAndPlaces) {
  task_->command().set_hostname("box");
  Outcome& o = Shell(
      "hostname; echo x > /tmp/x && echo y > /dev/shm/y && echo z > /run/z && stat -c %a /tmp /dev/shm /run /dev;"
      "for d in null zero full random urandom tty; do test -c /dev/$d || echo $d; done; readlink /dev/fd; readlink "
      "/dev/ptmx;"
      "head -c 3 /dev/zero | wc -c; echo > /dev/null; cat /etc/resolv.conf; echo 1 > /proc/sys/kernel/sysrq "
      "2>/dev/null || echo ro;"
      "touch /sys/x 2>/dev/null || echo ro; test -e /proc/1 && set -- /proc/[0-9]*; echo $#; ls /");
  Result<std::string> resolv = ReadFile("/etc/resolv.conf");
  EXPECT_EQ("box\n1777\n1777\n755\n755\n/proc/self/fd\npts/ptmx\n3\n" + (resolv ? *resolv : "nameserver 192.0.2.1\n") +
                "ro\nro\n2\nbin\ndev\netc\nhome\nproc\nroot\nrun\nsub\nsys\ntmp\n",
            o.out);
  for (const v1::WriteBack& w : o.writes) ADD_FAILURE() << "carried home: " << w.path();
}

TEST_F(TaskTest, TheNamesOfTheNodeAreBehindThoseOfTheRoot) {
  ASSERT_TRUE(WriteFileAtomic(task_->root() + "/etc/hosts", "127.0.0.1 localhost\n", 0644));
  task_->spec().set_hosts("10.0.0.7\tn1\n");
  Outcome& o = Shell("cat /etc/hosts; stat -c '%u %a' /etc/hosts; echo x >> /etc/hosts || echo no");
  EXPECT_EQ("127.0.0.1 localhost\n10.0.0.7\tn1\n0 644\nno\n", o.out);
  EXPECT_TRUE(o.writes.empty());
}

TEST_F(TaskTest, ACommandHasTheProcessorsThatItWasGivenAndNoOthers) {
  const CpuList all = AllowedCpus();
  task_->spec().add_cpus(all.back());
  Outcome& o = Shell("grep Cpus_allowed_list /proc/self/status");
  EXPECT_EQ("Cpus_allowed_list:\t" + std::to_string(all.back()) + "\n", o.out);
  EXPECT_TRUE(o.notices.empty());
}

TEST_F(TaskTest, WhatIsMadeInTmpCanBeMovedIntoAFrozenRootAndNothingElseOfItGoesHome) {
  Outcome& o = Shell(
      "mkdir /tmp/d && echo x > /tmp/d/f && ln /tmp/d/f /root/linked && mv /tmp/d /root/d && echo t > /tmp/t && "
      "mkdir /root/gone && mv /root/gone /tmp/gone && ls /tmp");
  EXPECT_EQ("gone\nt\n", o.out);
  std::vector<std::string> paths;
  for (const v1::WriteBack& w : o.writes) {
    if (!w.has_set_meta() && !w.has_file_data()) paths.push_back(w.path());
  }
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ((std::vector<std::string>{"/root/d", "/root/d/f", "/root/linked"}), paths);
}

TEST_F(TaskTest, ResolvConfOfSystemdResolved) {
  ASSERT_EQ(0, ::unlink((task_->root() + "/etc/resolv.conf").c_str()));
  ASSERT_EQ(0, ::symlink("../run/systemd/resolve/stub-resolv.conf", (task_->root() + "/etc/resolv.conf").c_str()));
  Result<std::string> resolv = ReadFile("/etc/resolv.conf");
  if (!resolv) GTEST_SKIP() << "this host has no resolv.conf";
  EXPECT_EQ(*resolv, Shell("cat /etc/resolv.conf").out);
}

TEST_F(TaskTest, PlacesThatAreLinksStayInTheRoot) {
  ASSERT_EQ(0, ::symlink("/../../var/tmp", (task_->root() + "/tmp").c_str()));
  ASSERT_TRUE(MakeDirs(task_->root() + "/var/tmp", 01777));
  EXPECT_EQ("1777\nyes\n", Shell("stat -c %a /var/tmp/; echo yes > /tmp/f; cat /var/tmp/f").out);

  auto broken = Another();
  ASSERT_EQ(0, ::symlink("nowhere", (task_->root() + "/run").c_str()));
  broken->Shell("true");
  Outcome& o = broken->Run();
  EXPECT_EQ(v1::ExitRecord::START_FAILED, o.record.kind());
  EXPECT_NE(std::string::npos, o.record.reason().find("/run")) << o.record.reason();
}

// --- pid 1 ---

TEST_F(TaskTest, InitReapsOrphans) {
  Outcome& o = Shell(
      "(sleep 0 & ) ; (sh -c 'sleep 0 & exit 0'); i=0; while [ $i -lt 40 ]; do (true &); i=$((i+1)); done; sleep 1;"
      "echo $$; ls /proc | grep '^[0-9]' | wc -l");
  // init, the shell, ls, grep, wc at most.
  int processes = std::atoi(o.out.substr(o.out.find('\n') + 1).c_str());
  EXPECT_EQ("3", o.out.substr(0, o.out.find('\n')));  // 2 wrote the maps of the inner user namespace
  EXPECT_LE(processes, 5);
}

TEST_F(TaskTest, SignalsReachTheProcessGroup) {
  task_->Shell(
      "trap 'echo got usr1' USR1; trap 'echo got term; exit 9' TERM; echo ready; while true; do sleep 0.05; done");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  task_->Signal(SIGUSR1);
  task_->Until([&] { return task_->outcome.out.find("usr1") != std::string::npos; });
  task_->Signal(SIGTERM);
  EXPECT_EQ(9, task_->Finish().record.exit_code());
  EXPECT_EQ(v1::ExitRecord::EXITED, task_->outcome.record.kind());
}

TEST_F(TaskTest, SignalBeforeTheStartIsNotLost) {
  task_->Shell("sleep 100");
  task_->Start();
  task_->Signal(SIGINT);
  EXPECT_EQ(128 + SIGINT, task_->Finish().record.exit_code());
}

TEST_F(TaskTest, StopAndContinue) {
  task_->Shell("echo $$; while true; do echo .; usleep 20000; done");
  task_->Start();
  task_->Until([&] { return task_->outcome.out.size() > 6; });
  task_->Signal(SIGTSTP);
  auto stopped = [] {
    auto all = ProcessesOfRange(kUidBase);
    return std::any_of(all.begin(), all.end(), [](pid_t p) {
      Result<std::string> s = ReadFile("/proc/" + std::to_string(p) + "/status");
      return s && s->find("State:\tT") != std::string::npos;
    });
  };
  EXPECT_TRUE(Eventually(stopped));
  task_->Signal(SIGCONT);
  size_t seen = task_->outcome.out.size();
  task_->Until([&] { return task_->outcome.out.size() > seen + 10; });
  task_->Signal(SIGKILL);
  EXPECT_EQ(137, task_->Finish().record.exit_code());
}

TEST_F(TaskTest, CancelThenKillAfterTheGrace) {
  task_->options = {"--grace", "0.3"};
  task_->Shell("trap '' TERM INT; echo ready; while true; do sleep 1; done");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  task_->Signal(SIGTERM, true);
  Outcome& o = task_->Finish();
  EXPECT_EQ(v1::ExitRecord::CANCELLED_BY_USER, o.record.kind());
  EXPECT_EQ(SIGKILL, o.record.signal());
}

TEST_F(TaskTest, TimeLimit) {
  task_->run().mutable_scheduling()->set_limit_s(1);
  task_->Shell("trap 'echo asked; exit 0' TERM; while true; do sleep 0.1; done");
  Outcome& o = task_->Run();
  EXPECT_EQ(v1::ExitRecord::TIME_LIMIT, o.record.kind());
  EXPECT_EQ(124, o.record.exit_code());
  EXPECT_EQ("asked\n", o.out);
  EXPECT_NE(std::string::npos, o.record.reason().find("1 s"));
}

TEST_F(TaskTest, TheTimeLimitHoldsAlsoForACommandThatDoesNotHeedIt) {
  task_->run().mutable_scheduling()->set_limit_s(1);
  task_->Shell("trap '' TERM; echo ready; while true; do sleep 0.1; done");
  Outcome& o = task_->Run();
  EXPECT_EQ(v1::ExitRecord::TIME_LIMIT, o.record.kind());
  EXPECT_EQ(124, o.record.exit_code());
  EXPECT_GE(o.record.ended_us() - o.record.started_us(), 950'000);
  EXPECT_LT(o.record.ended_us() - o.record.started_us(), 10'000'000) << "not the grace of a cancellation, 30 s";
}

TEST_F(TaskTest, ACommandIsToldOfItsTimeLimitByTheSignalThatItAskedFor) {
  task_->run().mutable_scheduling()->set_limit_s(2);
  task_->run().mutable_scheduling()->set_grace_s(1);
  task_->run().mutable_scheduling()->set_signal(SIGUSR1);
  task_->Shell("trap 'echo saved' USR1; trap 'echo over; exit 3' TERM; while true; do sleep 0.05; done");
  Outcome& o = task_->Run();
  EXPECT_EQ("saved\nover\n", o.out);
  EXPECT_EQ(v1::ExitRecord::TIME_LIMIT, o.record.kind());
}

TEST_F(TaskTest, ACommandThatEndsOnItsSignalHasNotMetItsTimeLimit) {
  task_->run().mutable_scheduling()->set_limit_s(60);
  task_->run().mutable_scheduling()->set_grace_s(59);
  task_->run().mutable_scheduling()->set_signal(SIGUSR1);
  task_->Shell("trap 'echo saved; exit 85' USR1; while true; do sleep 0.05; done");
  Outcome& o = task_->Run();
  EXPECT_EQ("saved\n", o.out);
  EXPECT_EQ(v1::ExitRecord::EXITED, o.record.kind());
  EXPECT_EQ(85, o.record.exit_code());
}

TEST_F(TaskTest, ACommandThatDoesNotHandleItsSignalIsEndedByItAndThatIsSaid) {
  task_->run().mutable_scheduling()->set_limit_s(60);
  task_->run().mutable_scheduling()->set_grace_s(59);
  task_->run().mutable_scheduling()->set_signal(SIGUSR1);
  task_->Shell("sleep 50; true");
  Outcome& o = task_->Run();
  EXPECT_EQ(128 + SIGUSR1, o.record.exit_code());
  EXPECT_NE(std::string::npos, o.record.reason().find("--signal"));
}

// Like sbatch without B:, so that a script need not handle a signal that is meant for its programs.
TEST_F(TaskTest, TheSignalSparesTheShellOfABatchScript) {
  task_->run().mutable_scheduling()->set_limit_s(60);
  task_->run().mutable_scheduling()->set_grace_s(59);
  task_->run().mutable_scheduling()->set_signal(SIGUSR1);
  task_->command().set_batch_script(true);
  task_->Shell("sh -c 'trap \"echo program; exit 5\" USR1; while true; do sleep 0.05; done'; echo script $?");
  Outcome& o = task_->Run();
  EXPECT_EQ("program\nscript 5\n", o.out);
  EXPECT_EQ(0, o.record.exit_code());
}

TEST_F(TaskTest, WithBTheSignalIsForTheShellAlone) {
  task_->run().mutable_scheduling()->set_limit_s(60);
  task_->run().mutable_scheduling()->set_grace_s(59);
  task_->run().mutable_scheduling()->set_signal(SIGUSR1);
  task_->run().mutable_scheduling()->set_signal_shell_only(true);
  task_->command().set_batch_script(true);
  task_->Shell(
      "trap 'echo shell' USR1; sh -c 'trap \"echo program\" USR1; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done' & "
      "wait; wait; echo end");
  Outcome& o = task_->Run();
  EXPECT_EQ("shell\nend\n", o.out);
}

// --- limits ---

TEST_F(TaskTest, OutOfMemory) {
  task_->run().mutable_resources()->set_memory_bytes(32 << 20);
  // A line of 200 MB: grep and the shell hold it in memory.
  task_->command().add_argv("grep");
  task_->command().add_argv("x");
  task_->command().add_argv("/dev/zero");
  Outcome& o = task_->Run();
  if (!o.notices.empty()) GTEST_SKIP() << o.notices[0];
  EXPECT_EQ(v1::ExitRecord::OUT_OF_MEMORY_KILL, o.record.kind());
  EXPECT_EQ(137, o.record.exit_code());
  EXPECT_NE(std::string::npos, o.record.reason().find("32 MiB")) << o.record.reason();
  EXPECT_GT(o.record.peak_memory_bytes(), 16u << 20);
}

TEST_F(TaskTest, ProcessLimit) {
  task_->run().mutable_resources()->set_pids(10);
  Outcome& o = Shell("i=0; while [ $i -lt 50 ]; do sleep 100 & i=$((i+1)); done 2>&1; echo made $i");
  if (!o.notices.empty()) GTEST_SKIP() << o.notices[0];
  EXPECT_NE(0, o.record.exit_code());
  EXPECT_EQ(std::string::npos, o.out.find("made 50")) << o.out;
}

// --- writes ---

TEST_F(TaskTest, WritesGoHomeAndMayBeAskedForAgain) {
  task_->acknowledge = false;
  task_->Shell("mkdir -p /root/a/b; echo hello > /root/a/b/c; rm /etc/passwd; echo t > /tmp/t");
  task_->Start();
  Outcome first = task_->Finish();
  EXPECT_GE(first.writes.size(), 4u);
  task_->Reconnect();
  task_->outcome = {};
  task_->Attach(0, 0, first.writes[0].sequence());
  task_->Finish();
  ASSERT_EQ(first.writes.size() - 1, task_->outcome.writes.size());
  for (size_t i = 0; i + 1 < first.writes.size(); ++i) {
    EXPECT_EQ(first.writes[i + 1].SerializeAsString(), task_->outcome.writes[i].SerializeAsString());
  }
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskTest, LargeFilesAndManyFilesAreNotHeldUp) {
  Outcome& o = Shell(
      "dd if=/dev/urandom of=/root/big bs=1M count=80 2>/dev/null; cd /sub; i=0;"
      "while [ $i -lt 2500 ]; do echo $i > f$i; i=$((i+1)); done");
  uint64_t bytes = 0, files = 0;
  for (const v1::WriteBack& w : o.writes) {
    files += w.has_put_file();
    if (w.path() == "/root/big") bytes += w.file_data().data().size();
  }
  EXPECT_EQ(80u << 20, bytes);
  EXPECT_EQ(2501u, files);
}

TEST_F(TaskTest, DiscardedWritesStay) {
  task_->run().set_discard_writes(true);
  Outcome& o = Shell("echo hello > /root/x");
  EXPECT_TRUE(o.writes.empty());
  EXPECT_TRUE(o.write_end);
}

TEST_F(TaskTest, NonsenseIsAnsweredNotObeyed) {
  task_->Shell("read x; echo $x");
  task_->Start();
  task_->Until([&] { return task_->started; });
  v1::TaskUp up;
  task_->Send(up);
  up.mutable_ack()->set_stream(v1::STDOUT);
  up.mutable_ack()->set_offset(1u << 30);
  task_->Send(up);
  up.mutable_input()->set_offset(77);
  up.mutable_input()->set_data("gap");
  task_->Send(up);
  up.mutable_release();
  task_->Send(up);
  task_->Until([&] { return task_->outcome.errors.size() == 4; });
  task_->Input("fine\n", false);
  EXPECT_EQ("fine\n", task_->Finish().out);
}

TEST_F(TaskTest, BadSpecsAreStartFailures) {
  task_->spec().set_uid_base(UINT32_MAX - 10);
  Outcome& o = Shell("true");
  EXPECT_EQ(v1::ExitRecord::START_FAILED, o.record.kind());
  EXPECT_EQ(125, o.record.exit_code());
  auto relative = Another();
  relative->command().set_directory("here");
  relative->Shell("true");
  EXPECT_EQ(v1::ExitRecord::START_FAILED, relative->Run().record.kind());
}

}  // namespace
}  // namespace vrun::node::testing
