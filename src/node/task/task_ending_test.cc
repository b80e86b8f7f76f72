// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_ending.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "base/files.h"
#include "node/task/task_spec.h"

namespace vrun::node {
namespace {

constexpr int Exited(int code) { return code << 8; }

v1::TaskSpec Spec() {
  v1::TaskSpec spec;
  spec.set_task_directory("/tasks/7.1");
  spec.mutable_order()->mutable_placement()->set_job(7);
  spec.mutable_order()->mutable_placement()->set_attempt(1);
  spec.mutable_order()->mutable_spec()->mutable_command()->add_argv("true");
  spec.mutable_order()->mutable_spec()->mutable_command()->set_directory("/");
  return spec;
}

v1::ExitRecord Judge(Stopped stopped, int status, uint64_t oom_kills = 0, int cancel = 0) {
  v1::TaskSpec spec = Spec();
  spec.mutable_order()->mutable_spec()->mutable_scheduling()->set_limit_s(60);
  return JudgeEnding(spec, {stopped, cancel, {.command_ended = true, .wait_status = status, .oom_kills = oom_kills}});
}

TEST(JudgeEnding, ExitAndSignal) {
  for (int code = 0; code < 256; ++code) {
    v1::ExitRecord r = Judge(Stopped::kNot, Exited(code));
    EXPECT_EQ(v1::ExitRecord::EXITED, r.kind());
    EXPECT_EQ(code, r.exit_code());
    EXPECT_EQ("", r.reason());
  }
  v1::ExitRecord r = Judge(Stopped::kNot, SIGSEGV | 0x80);  // with a core
  EXPECT_EQ(v1::ExitRecord::SIGNALED, r.kind());
  EXPECT_EQ(SIGSEGV, r.signal());
  EXPECT_EQ(139, r.exit_code());
}

TEST(JudgeEnding, APodThatWasToldToLeaveItsJobHasNotFailedHoweverItEnds) {
  for (const int status : {Exited(0), Exited(7), int{SIGTERM}, int{SIGKILL}}) {
    EXPECT_EQ(v1::ExitRecord::LEFT_GANG, Judge(Stopped::kResized, status).kind()) << status;
  }
}

TEST(JudgeEnding, MemoryNeedsAVictim) {
  EXPECT_EQ(v1::ExitRecord::OUT_OF_MEMORY_KILL, Judge(Stopped::kNot, SIGKILL, 1).kind());
  EXPECT_EQ(v1::ExitRecord::OUT_OF_MEMORY_KILL, Judge(Stopped::kNot, Exited(137), 1).kind());
  EXPECT_EQ(137, Judge(Stopped::kNot, SIGKILL, 1).exit_code());
  EXPECT_EQ(v1::ExitRecord::SIGNALED, Judge(Stopped::kNot, SIGKILL, 0).kind());
  EXPECT_EQ(v1::ExitRecord::EXITED, Judge(Stopped::kNot, Exited(1), 3).kind());  // it survived that
}

TEST(JudgeEnding, AWorkerThatWasKilledForMemoryIsSaidWhateverItsParentSays) {
  const v1::ExitRecord one = Judge(Stopped::kNot, Exited(0), 1);
  EXPECT_EQ(v1::ExitRecord::EXITED, one.kind());
  EXPECT_EQ(0, one.exit_code());
  EXPECT_EQ(1u, one.oom_kills());
  EXPECT_EQ(one.reason(),
            "a process of the command was killed: out of memory: the node has no more: ask for memory with --mem");
  v1::TaskSpec spec = Spec();
  spec.mutable_order()->mutable_spec()->mutable_resources()->set_memory_bytes(64 << 20);
  const v1::ExitRecord two =
      JudgeEnding(spec, {Stopped::kNot, 0, {.command_ended = true, .wait_status = Exited(1), .oom_kills = 2}});
  EXPECT_EQ(
      two.reason(),
      "2 processes of the command were killed: out of memory: the job's limit is 64 MiB: ask for more with --mem");
  EXPECT_EQ(Judge(Stopped::kTimeLimit, SIGTERM, 1).reason().substr(0, 57),
            "time limit of 60 s reached; a process of the command was ");
  EXPECT_EQ(2u, Judge(Stopped::kNot, SIGKILL, 2).oom_kills());
  EXPECT_EQ("", Judge(Stopped::kNot, Exited(0)).reason());
}

TEST(JudgeEnding, StoppedByUs) {
  v1::ExitRecord limit = Judge(Stopped::kTimeLimit, Exited(0));
  EXPECT_EQ(v1::ExitRecord::TIME_LIMIT, limit.kind());
  EXPECT_EQ(124, limit.exit_code());
  // Any exit status, even 0: its work is not done.
  for (int status : {Exited(0), Exited(7), SIGTERM, SIGKILL}) {
    EXPECT_EQ(v1::ExitRecord::PREEMPTED_BY_JOB, Judge(Stopped::kPreempted, status).kind());
  }
  // Any exit status: it has not seen the root that it should have seen.
  for (int status : {Exited(0), Exited(7), SIGTERM, SIGKILL}) {
    v1::ExitRecord lost = Judge(Stopped::kContentLost, status);
    EXPECT_EQ(v1::ExitRecord::START_FAILED, lost.kind());
    EXPECT_EQ(125, lost.exit_code());
  }
  v1::ExitRecord cancel = Judge(Stopped::kCancelled, Exited(0), 0, SIGTERM);
  EXPECT_EQ(v1::ExitRecord::CANCELLED_BY_USER, cancel.kind());
  EXPECT_EQ(SIGTERM, cancel.signal());
  EXPECT_EQ(143, cancel.exit_code());
  EXPECT_EQ(SIGKILL, Judge(Stopped::kCancelled, SIGKILL, 0, SIGTERM).signal());
  EXPECT_NE("", Judge(Stopped::kOrphaned, SIGKILL).reason());
}

TEST(Journal, RoundTripAndDamage) {
  char directory[] = "/var/tmp/vrun-journal-XXXXXX";
  ASSERT_NE(nullptr, ::mkdtemp(directory));
  EXPECT_EQ(Code::kNotFound, ReadJournal(directory).error().code());
  ASSERT_TRUE(WriteJournal(directory, Judge(Stopped::kNot, Exited(3))));
  Result<v1::ExitRecord> read = ReadJournal(directory);
  ASSERT_TRUE(read);
  EXPECT_EQ(3, read->exit_code());
  for (const char* damage : {"", "\xff\xff\xff", "x"}) {
    ASSERT_TRUE(WriteFileAtomic(std::string(directory) + "/journal", damage, 0600));
    EXPECT_EQ(Code::kCorrupt, ReadJournal(directory).error().code());
  }
  ASSERT_TRUE(RemoveTree(directory));
}

TEST(SandboxSpec, RefusesWhatTheKernelWouldCut) {
  EXPECT_TRUE(SandboxSpec(Spec(), 0));
  auto refused = [](auto change) {
    v1::TaskSpec spec = Spec();
    change(&spec);
    Result<sandbox::Spec> out = SandboxSpec(spec, 0);
    return !out && out.error().code() == Code::kInvalid;
  };
  std::string nul("a\0b", 3);
  EXPECT_TRUE(refused([&](v1::TaskSpec* s) { s->mutable_order()->mutable_spec()->mutable_command()->add_argv(nul); }));
  EXPECT_TRUE(
      refused([&](v1::TaskSpec* s) { s->mutable_order()->mutable_spec()->mutable_command()->add_environment(nul); }));
  EXPECT_TRUE(refused(
      [&](v1::TaskSpec* s) { s->mutable_order()->mutable_spec()->mutable_command()->set_directory("/" + nul); }));
  EXPECT_TRUE(
      refused([&](v1::TaskSpec* s) { s->mutable_order()->mutable_spec()->mutable_command()->set_directory("here"); }));
  EXPECT_TRUE(refused([&](v1::TaskSpec* s) { s->set_task_directory(""); }));
  EXPECT_TRUE(refused([&](v1::TaskSpec* s) {
    s->mutable_order()->mutable_spec()->mutable_command()->set_hostname(std::string(65, 'h'));
  }));
}

TEST(SandboxSpec, Limits) {
  v1::TaskSpec in = Spec();
  EXPECT_GT(SandboxSpec(in, 0)->limits.pids, 100u);
  in.mutable_order()->mutable_spec()->mutable_resources()->set_pids(UINT64_MAX);
  EXPECT_LT(SandboxSpec(in, 0)->limits.pids, uint64_t{1} << 22);
  in.mutable_order()->mutable_spec()->mutable_resources()->set_pids(5);
  in.mutable_order()->mutable_spec()->mutable_resources()->set_memory_bytes(1 << 20);
  in.mutable_order()->mutable_spec()->mutable_command()->mutable_terminal_size()->set_rows(100000);
  Result<sandbox::Spec> out = SandboxSpec(in, 0);
  EXPECT_EQ(5u, out->limits.pids);
  EXPECT_EQ(1u << 20, out->limits.memory_bytes);
  EXPECT_EQ(65535, out->window.rows);
}

}  // namespace
}  // namespace vrun::node
