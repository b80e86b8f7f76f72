// SPDX-License-Identifier: Apache-2.0
// A pod of a gang: a real vrund-task that waits for Go, with several processes, and with processes of other pods.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/files.h"
#include "node/task/task_ending.h"
#include "node/testing/task_fixture.h"

namespace vrun::node::testing {
namespace {

constexpr int OutOf(int rank) { return v1::FIRST_OF_RANKS + 3 * rank + 1; }

class TaskGangTest : public TaskTest {
 protected:
  // Pod `pod` of several with `ranks` processes each.
  static void Gang(TaskProcess* task, uint32_t pod, uint32_t pods, uint32_t ranks) {
    task->run().mutable_gang()->set_pods(pods);
    task->run().mutable_gang()->set_ranks_per_pod(ranks);
    task->place().set_pod(pod);
    for (uint32_t i = 0; i < pods; ++i) {
      v1::GangPod* p = task->spec().mutable_order()->add_pods();
      p->set_role("worker");
      p->set_node("n" + std::to_string(i + 1));
      p->set_host("10.0.0." + std::to_string(i + 1));
      p->set_ranks(ranks);
      p->set_first_rank(i * ranks);
    }
  }
  void Ranks(uint32_t ranks) { task_->run().mutable_gang()->set_ranks_per_pod(ranks); }
  // Another pod has failed.
  static void EndGang(TaskProcess* task, const std::string& why, int signal = SIGTERM) {
    v1::TaskUp up;
    up.mutable_signal()->set_signal(signal);
    up.mutable_signal()->set_gang_ended(why);
    task->Send(up);
  }
  static void Preempt(TaskProcess* task) {
    v1::TaskUp up;
    up.mutable_signal()->set_signal(SIGUSR1);
    up.mutable_signal()->set_preempted("job 9");
    task->Send(up);
  }
  static size_t CheckpointLines(const Outcome& o) {
    size_t found = 0;
    for (const std::string& notice : o.notices) found += notice.find("--checkpoint") != notice.npos ? 1 : 0;
    return found;
  }
  static v1::ExecInPod ExecOf(const std::string& script, uint64_t id) {
    v1::ExecInPod exec;
    for (const char* a : {"sh", "-c"}) exec.add_argv(a);
    exec.add_argv(script);
    exec.set_id(id);
    return exec;
  }
};

// --- the gate ---

TEST_F(TaskGangTest, TheCommandStartsWhenAllPodsAreReady) {
  task_->spec().set_wait_for_go(true);
  task_->Shell("echo here; exit 3");
  task_->Start();
  task_->Until([&] { return task_->ready && task_->attached; });
  EXPECT_FALSE(task_->started);
  const int64_t before = WallMicros();
  task_->Go();
  const Outcome& o = task_->Finish();
  EXPECT_TRUE(task_->started);
  EXPECT_EQ("here\n", o.out);
  EXPECT_EQ(3, o.record.exit_code());
  EXPECT_GE(o.record.started_us(), before) << "the time limit would count from the preparation";
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, ALaterAgentHearsThatItIsReady) {
  task_->spec().set_wait_for_go(true);
  task_->Shell("exit 4");
  task_->Start();
  task_->Until([&] { return task_->ready; });
  task_->Disconnect();
  task_->Reconnect();
  task_->Attach();
  task_->Until([&] { return task_->ready; });
  task_->Go();
  EXPECT_EQ(4, task_->Finish().record.exit_code());
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, GoMayComeBeforeItIsReady) {
  task_->spec().set_wait_for_go(true);
  task_->Shell("exit 4");
  task_->Start();
  task_->Go();
  EXPECT_EQ(4, task_->Finish().record.exit_code());
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, OneThatIsStoppedWhileItWaitsNeverRan) {
  for (bool cancel : {true, false}) {
    auto task = Another();
    task->spec().set_wait_for_go(true);
    task->Shell("touch /root/ran");
    task->Start();
    task->Until([&] { return task->ready && task->attached; });
    cancel ? task->Signal(SIGTERM, true) : EndGang(task.get(), "pod 1 could not start");
    const Outcome& o = task->Finish();
    EXPECT_EQ(cancel ? v1::ExitRecord::CANCELLED_BY_USER : v1::ExitRecord::GANG_ENDED, o.record.kind());
    EXPECT_EQ(0, o.record.started_us());
    EXPECT_FALSE(task->started);
    EXPECT_TRUE(o.writes.empty());
    task->Release();
    task->WaitForEnd();
  }
}

TEST_F(TaskGangTest, WhatCannotBePreparedFailsBeforeGo) {
  task_->spec().set_wait_for_go(true);
  task_->Shell("true");
  task_->command().mutable_identity()->set_uid(70001);  // is not mapped
  task_->Start();
  const Outcome& o = task_->Finish();
  EXPECT_FALSE(task_->ready);
  EXPECT_EQ(v1::ExitRecord::START_FAILED, o.record.kind());
  task_->Release();
  task_->WaitForEnd();
}

// --- several processes ---

TEST_F(TaskGangTest, EachRankHasStreamsAndAnEnvironmentOfItsOwn) {
  Gang(task_.get(), 1, 2, 3);
  task_->Shell("echo $RANK $LOCAL_RANK $WORLD_SIZE $SLURM_PROCID $VRUN_RANK; echo e$LOCAL_RANK >&2; cat");
  task_->Start();
  task_->Input("for 3\n", true);
  task_->InputOf(static_cast<v1::StreamId>(v1::FIRST_OF_RANKS + 3), "for 4\n", true);
  task_->InputOf(static_cast<v1::StreamId>(v1::FIRST_OF_RANKS + 6), "", true);
  const Outcome& o = task_->Finish();
  EXPECT_EQ("3 0 6 3 3\nfor 3\n", o.out);
  EXPECT_EQ("e0\n", o.err);
  EXPECT_EQ("4 1 6 4 4\nfor 4\n", task_->more[OutOf(1)]);
  EXPECT_EQ("e1\n", task_->more[OutOf(1) + 1]);
  EXPECT_EQ("5 2 6 5 5\n", task_->more[OutOf(2)]);
  EXPECT_TRUE(task_->more_ended[OutOf(2)] && task_->more_ended[OutOf(2) + 1]);
  ASSERT_EQ(3, o.record.ranks_size());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(3u + static_cast<uint32_t>(i), o.record.ranks(i).rank());
    EXPECT_EQ(0, o.record.ranks(i).exit_code());
    EXPECT_FALSE(o.record.ranks(i).killed());
  }
  EXPECT_EQ(1u, o.record.pod());
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, AFailingRankEndsTheOthers) {
  Ranks(4);
  task_->Shell(
      "if [ $RANK = 2 ]; then while ! test -e /dev/shm/1 -a -e /dev/shm/3; do :; done; exit 7; fi;"
      "trap 'echo told; exit 9' TERM; test $RANK = 0 && exit 0; touch /dev/shm/$RANK; while :; do sleep 1; done");
  Outcome& o = task_->Run();
  EXPECT_EQ(v1::ExitRecord::EXITED, o.record.kind());
  EXPECT_EQ(7, o.record.exit_code());
  EXPECT_EQ("rank 2 on n1: exit 7", o.record.reason());
  ASSERT_EQ(4, o.record.ranks_size());
  EXPECT_EQ(0, o.record.ranks(0).exit_code());
  EXPECT_EQ(9, o.record.ranks(1).exit_code());
  EXPECT_TRUE(o.record.ranks(1).killed() && o.record.ranks(3).killed());
  EXPECT_FALSE(o.record.ranks(0).killed() || o.record.ranks(2).killed());
  EXPECT_EQ("told\n", task_->more[OutOf(3)]);
}

TEST_F(TaskGangTest, ARankThatIgnoresTheSignalIsKilledAfterTheGrace) {
  Ranks(2);
  task_->options = {"--grace", "0.3"};
  task_->Shell(
      "if [ $RANK = 1 ]; then trap '' TERM; touch /dev/shm/ready; while :; do sleep 100; done; fi;"
      "while ! test -e /dev/shm/ready; do :; done; kill -SEGV $$");
  Outcome& o = task_->Run();
  EXPECT_EQ(v1::ExitRecord::SIGNALED, o.record.kind());
  EXPECT_EQ(SIGSEGV, o.record.signal());
  EXPECT_EQ("rank 0 on n1: signal 11 (Segmentation fault)", o.record.reason());
  ASSERT_EQ(2, o.record.ranks_size());
  EXPECT_EQ(SIGKILL, o.record.ranks(1).signal());
  EXPECT_TRUE(o.record.ranks(1).killed());
}

TEST_F(TaskGangTest, WithNoKillTheOthersGoOn) {
  Ranks(3);
  task_->run().mutable_gang()->set_no_kill(true);
  task_->Shell("test $RANK = 1 && { touch /dev/shm/1; exit 5; }; while ! test -e /dev/shm/1; do :; done; exit $RANK");
  Outcome& o = task_->Run();
  EXPECT_EQ(5, o.record.exit_code()) << "the highest";
  ASSERT_EQ(3, o.record.ranks_size());
  EXPECT_EQ(2, o.record.ranks(2).exit_code());
  EXPECT_FALSE(o.record.ranks(2).killed());
}

TEST_F(TaskGangTest, StragglersAreEndedAfterTheWait) {
  Ranks(2);
  task_->run().mutable_gang()->set_wait_s(1);
  task_->Shell("test $RANK = 0 || exec sleep 1000");
  Outcome& o = task_->Run();
  EXPECT_EQ(v1::ExitRecord::EXITED, o.record.kind());
  EXPECT_EQ(0, o.record.exit_code());
  EXPECT_EQ("1 process had not ended 1 s after rank 0: ended (--wait)", o.record.reason());
  EXPECT_EQ(SIGTERM, o.record.ranks(1).signal());
}

TEST_F(TaskGangTest, ManyRanksLoseNothing) {
  Ranks(32);
  task_->Shell("i=0; while [ $i -lt 2000 ]; do echo rank $RANK line $i; i=$((i+1)); done");
  const Outcome& o = task_->Run();
  EXPECT_EQ(0, o.record.exit_code());
  for (int rank = 0; rank < 32; ++rank) {
    std::string expected;
    for (int i = 0; i < 2000; ++i) expected += "rank " + std::to_string(rank) + " line " + std::to_string(i) + "\n";
    EXPECT_TRUE((rank == 0 ? o.out : task_->more[OutOf(rank)]) == expected) << rank;
  }
}

TEST_F(TaskGangTest, SignalsReachAllRanks) {
  Ranks(3);
  task_->run().mutable_gang()->set_no_kill(true);
  task_->Shell("trap 'echo got; exit 6' USR1; echo ready; while :; do sleep 0.1; done");
  task_->Start();
  task_->Until([&] {
    return task_->outcome.out == "ready\n" && task_->more[OutOf(1)] == "ready\n" && task_->more[OutOf(2)] == "ready\n";
  });
  task_->Signal(SIGUSR1);
  const Outcome& o = task_->Finish();
  EXPECT_EQ("ready\ngot\n", o.out);
  EXPECT_EQ("ready\ngot\n", task_->more[OutOf(1)]);
  EXPECT_EQ("ready\ngot\n", task_->more[OutOf(2)]);
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, ACommandThatIsNotThereIsNotFoundByAnyRank) {
  Ranks(3);
  task_->command().add_argv("no-such-command");
  Outcome& o = task_->Run();
  EXPECT_EQ(v1::ExitRecord::NOT_FOUND, o.record.kind());
  EXPECT_EQ(127, o.record.exit_code());
}

TEST_F(TaskGangTest, APodEndsWithItsGangWhateverItsStatus) {
  task_->Shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  EndGang(task_.get(), "rank 3 on n2: exit 1");
  const Outcome& o = task_->Finish();
  EXPECT_EQ(v1::ExitRecord::GANG_ENDED, o.record.kind());
  EXPECT_EQ("rank 3 on n2: exit 1", o.record.reason());
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, PodsKnowEachOtherByName) {
  Gang(task_.get(), 1, 2, 1);
  ASSERT_TRUE(WriteFileAtomic(task_->root() + "/etc/hosts", "127.0.0.1 localhost\n", 0644));
  task_->spec().set_hosts("10.0.0.1\tworker-0 n1\n");
  task_->command().mutable_identity()->set_uid(1000);
  task_->command().mutable_identity()->set_gid(1000);
  Outcome& o = Shell(
      "hostname; echo $MASTER_ADDR $SLURM_NODELIST; tail -n 2 /etc/hosts; cat /run/vrun/members.json "
      "/run/vrun/hostfile");
  EXPECT_EQ(
      "n2\nn1 n1,n2\n10.0.0.1\tworker-0\n10.0.0.1\tn1\n"
      "{\"job\": " +
          std::to_string(task_->place().job()) +
          ", \"attempt\": 1, \"pod\": 1, \"pods\": [{\"pod\": 0, \"name\": \"worker-0\", \"role\": \"worker\", "
          "\"node\": "
          "\"n1\", \"host\": \"10.0.0.1\", \"first_rank\": 0, \"ranks\": 1, \"gpus\": 0}, {\"pod\": 1, \"name\": "
          "\"worker-1\", \"role\": \"worker\", \"node\": \"n2\", \"host\": \"10.0.0.2\", \"first_rank\": 1, \"ranks\": "
          "1, "
          "\"gpus\": 0}]}\nn1 slots=1\nn2 slots=1\n",
      o.out);
}

TEST_F(TaskGangTest, TheMembersChangeWhileItRuns) {
  Gang(task_.get(), 1, 2, 1);
  ASSERT_TRUE(WriteFileAtomic(task_->root() + "/etc/hosts", "127.0.0.1 localhost\n", 0644));
  task_->spec().set_hosts("10.0.0.1\tworker-0 n1\n");
  // The job's root may put whatever it likes into the way.
  task_->Shell(
      "ln -s /etc/passwd /run/vrun/.members.json.new; echo ready; until grep -q worker-5 /run/vrun/members.json; do "
      "sleep "
      "0.05; done; /run/vrun/notify MEMBERS=1; cat /run/vrun/hostfile; tail -n 2 /etc/hosts; ls -A /run/vrun | grep "
      "new; "
      "head -c 5 /etc/passwd");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  v1::Members members;
  for (const uint32_t number : {0u, 1u, 5u}) {
    v1::GangPod* pod = members.add_pods();
    pod->set_role("worker");
    pod->set_node("n" + std::to_string(number + 1));
    pod->set_host("10.0.0." + std::to_string(number + 1));
    pod->set_ranks(1);
    pod->set_first_rank(number);
  }
  v1::TaskUp up;
  up.set_members(members.SerializeAsString());
  task_->Send(up);
  const Outcome& o = task_->Finish();
  EXPECT_NE(std::string::npos, o.out.find("MEMBERS={")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("{\"pod\": 5, \"name\": \"worker-5\"")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("n1 slots=1\nn2 slots=1\nn6 slots=1\n")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("10.0.0.6\tworker-5\n10.0.0.6\tn6\n")) << o.out;
  EXPECT_EQ(std::string::npos, o.out.find(".new")) << o.out;
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, APodThatIsToldToLeaveHasNotFailed) {
  Gang(task_.get(), 1, 2, 1);
  task_->run().mutable_scheduling()->set_signal(SIGUSR1);
  task_->Shell("trap 'echo leaves; exit 3' USR1; echo ready; while :; do sleep 0.1; done");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  v1::TaskUp up;
  up.mutable_signal()->set_signal(SIGUSR1);
  up.mutable_signal()->set_resized("the job was made smaller");
  task_->Send(up);
  const Outcome& o = task_->Finish();
  EXPECT_EQ("ready\nleaves\n", o.out);
  EXPECT_EQ(v1::ExitRecord::LEFT_GANG, o.record.kind());
  EXPECT_EQ("the job was made smaller", o.record.reason());
  task_->Release();
  task_->WaitForEnd();
}

// --- the job's socket ---

TEST_F(TaskGangTest, SavedIsInTheRecordAndTold) {
  task_->command().mutable_identity()->set_uid(1000);
  task_->command().mutable_identity()->set_gid(1000);
  const int64_t before = WallMicros();
  Outcome& o = Shell("/run/vrun/notify SAVED=1");
  EXPECT_EQ("", o.err);
  EXPECT_EQ(0, o.record.exit_code());
  EXPECT_GE(o.record.saved_us(), before);
  ASSERT_EQ(1u, task_->words.size());
  EXPECT_TRUE(task_->words[0].saved());
  EXPECT_EQ(o.record.saved_us(), task_->words[0].at_us());
}

TEST_F(TaskGangTest, AWordOfAJobWithoutCheckpointsGetsOneLine) {
  const Outcome& o = Shell("/run/vrun/notify SAVED=1; /run/vrun/notify SAVED=1");
  EXPECT_EQ(1u, CheckpointLines(o));
}

TEST_F(TaskGangTest, AWordOfAJobWithCheckpointsGetsNone) {
  task_->run().mutable_scheduling()->set_saves(true);
  const Outcome& o = Shell("/run/vrun/notify SAVED=1");
  EXPECT_EQ(0u, CheckpointLines(o));
  EXPECT_GT(o.record.saved_us(), 0);
}

TEST_F(TaskGangTest, AWordIsToldToALaterAgent) {
  task_->Shell("/run/vrun/notify SAVED=1; echo said; read x");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "said\n"; });
  task_->words.clear();
  task_->Disconnect();
  task_->Reconnect();
  task_->Attach(5);
  task_->Until([&] { return !task_->words.empty(); });
  task_->Input("", true);
  task_->Finish();
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, APreemptedProgramThatHasSavedIsNotWaitedFor) {
  task_->run().mutable_scheduling()->set_signal(SIGUSR1);
  task_->Shell("trap '/run/vrun/notify SAVED=1' USR1; echo ready; while :; do sleep 0.1; done");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  const int64_t began = MonotonicMicros();
  Preempt(task_.get());
  const Outcome& o = task_->Finish();
  EXPECT_LT(MonotonicMicros() - began, 15'000'000) << "the grace is 30 s";
  EXPECT_EQ(v1::ExitRecord::PREEMPTED_BY_JOB, o.record.kind());
  EXPECT_GT(o.record.saved_us(), 0);
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, TheSocketAnswersWhoTheMembersAre) {
  Outcome& o = Shell("/run/vrun/notify MEMBERS=1; /run/vrun/notify RUBBISH");
  EXPECT_NE(std::string::npos, o.out.find("MEMBERS={\"job\": " + std::to_string(task_->place().job()))) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("\"node\": \"n1\"")) << o.out;
  EXPECT_NE(std::string::npos, o.out.find("PROBLEM=not understood: RUBBISH")) << o.out;
  EXPECT_EQ(1, o.record.exit_code());
}

// --- processes of other pods ---

TEST_F(TaskGangTest, RshRunsACommandInAnotherPod) {
  Gang(task_.get(), 0, 2, 1);
  task_->Shell("/run/vrun/rsh -x -l ann n2 echo 'there; exit 5'; echo $?; /run/vrun/rsh n9 true; echo $?");
  task_->Start();
  task_->Until([&] { return !task_->execs.empty(); });
  v1::ExecInPod exec = task_->execs[0];
  EXPECT_EQ(1u, exec.pod());
  EXPECT_EQ(0u, exec.from_pod());
  ASSERT_EQ(3, exec.argv_size());
  EXPECT_EQ("echo there; exit 5", exec.argv(2));
  exec.set_ended(true);
  exec.set_wait_status(5 << 8);
  task_->Exec(exec);
  const Outcome& o = task_->Finish();
  EXPECT_EQ("5\n255\n", o.out);
  EXPECT_NE(std::string::npos, o.err.find("the job has no pod n9: its pods are worker-0 to worker-1")) << o.err;
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, RshToTheOwnPodRunsThere) {
  Outcome& o = Shell("/run/vrun/rsh worker-0 'echo as $(id -u); echo problem >&2; kill -9 $$'; echo $?");
  EXPECT_EQ("as 0\n137\n", o.out);
  EXPECT_EQ("problem\n", o.err);
}

TEST_F(TaskGangTest, ALaunchersOtherPodsWaitForWhatItStartsThere) {
  Gang(task_.get(), 1, 2, 1);
  task_->run().mutable_gang()->set_launcher(true);
  task_->spec().set_wait_for_go(true);
  task_->command().mutable_identity()->set_uid(1000);
  task_->command().mutable_identity()->set_gid(1000);
  task_->command().set_directory("/home/ann");
  Environment("GREETING=hello");
  task_->Shell("echo must not run");
  task_->Start();
  task_->Until([&] { return task_->ready; });
  task_->Exec(ExecOf("echo early", 1));  // the first pod may have got its Go before this one
  task_->Go();
  task_->Until([&] { return task_->execs.size() == 1; });
  v1::ExecInPod second = ExecOf("id -u; pwd; echo $GREETING $MORE; cd /; (setsid sleep 1000 &) ; exit 3", 2);
  second.add_environment("MORE=world");
  task_->Exec(second);
  task_->Until([&] { return task_->execs.size() == 2; });
  EXPECT_TRUE(task_->execs[1].ended());
  EXPECT_EQ(2u, task_->execs[1].id());
  EXPECT_EQ(3, WEXITSTATUS(task_->execs[1].wait_status()));
  v1::ExecInPod missing;
  missing.add_argv("no-such-program");
  task_->Exec(missing);
  task_->Until([&] { return task_->execs.size() == 3; });
  EXPECT_NE(std::string::npos, task_->execs[2].problem().find("no-such-program"));
  EXPECT_FALSE(task_->exited);
  EndGang(task_.get(), "the first pod has ended");
  const Outcome& o = task_->Finish();
  EXPECT_EQ("early\n1000\n/home/ann\nhello world\n", o.out);
  EXPECT_EQ(v1::ExitRecord::EXITED, o.record.kind());
  EXPECT_EQ(0, o.record.exit_code());
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, AnAnswerWaitsForTheNextAgent) {
  Gang(task_.get(), 1, 2, 1);
  task_->Shell("echo ready; read x");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  task_->Exec(ExecOf("echo began; while ! test -e /root/go; do sleep 0.05; done; touch /root/ended; exit 4", 7));
  task_->Until([&] { return task_->outcome.out == "ready\nbegan\n"; });
  task_->Exec(ExecOf("sleep 0.5; touch /root/go", 8));
  task_->Disconnect();
  ASSERT_TRUE(Eventually([&] { return PathExists(task_->directory() + "/upper/root/ended"); }));
  task_->Reconnect();
  task_->Until([&] { return task_->execs.size() == 2; });
  task_->Attach(task_->outcome.out.size());
  task_->Input("\n", true);
  task_->Finish();
  task_->Release();
  task_->WaitForEnd();
}

TEST_F(TaskGangTest, ProcessesOfOtherPodsEndWithThePod) {
  Gang(task_.get(), 1, 2, 1);
  task_->Shell("echo ready; read x; exit 2");
  task_->Start();
  task_->Until([&] { return task_->outcome.out == "ready\n"; });
  task_->Exec(ExecOf("echo more; exec sleep 1000", 7));
  task_->Until([&] { return task_->outcome.out == "ready\nmore\n"; });
  task_->Input("\n", true);
  EXPECT_EQ(2, task_->Finish().record.exit_code());
  ASSERT_EQ(1u, task_->execs.size());
  EXPECT_EQ("pod 1 of the job has ended", task_->execs[0].problem());
  task_->Release();
  task_->WaitForEnd();
}

}  // namespace
}  // namespace vrun::node::testing
