// SPDX-License-Identifier: Apache-2.0
// Jobs of several processes, from outside: a client, a controller, and a connection for each pod.
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "home/testing/home_testing.h"

namespace vrun::home {
namespace {

constexpr v1::StreamId kSecondOut = static_cast<v1::StreamId>(1004);  // stdout of a pod's second rank
constexpr v1::StreamId kSecondErr = static_cast<v1::StreamId>(1005);
constexpr v1::StreamId kSecondIn = static_cast<v1::StreamId>(1003);

class HomeGangTest : public HomeTest {
 protected:
  struct Pod {
    std::shared_ptr<TaskInbox> task;
    v1::Attach attach;
  };
  using Pods = std::map<uint32_t, Pod>;

  static std::function<void(v1::Run*)> Gang(uint32_t pods, uint32_t ranks = 1,
                                            std::function<void(v1::Run*)> more = nullptr) {
    return [=](v1::Run* run) {
      run->mutable_spec()->mutable_gang()->set_pods(pods);
      run->mutable_spec()->mutable_gang()->set_ranks_per_pod(ranks);
      if (more) more(run);
    };
  }
  // The pods' connections, in whichever order they come.
  Pods Connected(size_t n) {
    Pods pods;
    while (pods.size() < n) {
      Pod pod;
      pod.task = tasks_.Next();
      pod.attach = NextAttach(pod.task.get());
      pods[pod.attach.pod()] = pod;
    }
    return pods;
  }
  Pods Begin(size_t n) {
    Pods pods = Connected(n);
    for (auto& [number, pod] : pods) {
      Attached(pod.task.get(), false);
      Started(pod.task.get());
    }
    return pods;
  }
  void Says(const Pod& pod, v1::StreamId stream, uint64_t offset, const std::string& data, bool eof = false) {
    pod.task->Send(OutputOf(stream, offset, data, eof));
  }
  uint64_t Acked(const Pod& pod, v1::StreamId stream) {
    return pod.task->Next([&](const v1::TaskUp& up) { return up.has_ack() && up.ack().stream() == stream; })
        .ack()
        .offset();
  }
  // Output, then the end of a pod.
  void Ends(const Pod& pod, v1::ExitRecord::Kind kind, int code, const std::string& reason = "", uint64_t out = 0,
            uint64_t err = 0, uint32_t ranks = 1) {
    Says(pod, v1::STDOUT, out, "", true);
    Says(pod, v1::STDERR, err, "", true);
    if (ranks > 1) {
      Says(pod, kSecondOut, 0, "", true);
      Says(pod, kSecondErr, 0, "", true);
    }
    v1::TaskDown down;
    v1::ExitRecord* record = down.mutable_exited()->mutable_record();
    record->set_job(pod.attach.job());
    record->set_attempt(pod.attach.attempt());
    record->set_pod(pod.attach.pod());
    record->set_kind(kind);
    record->set_exit_code(code);
    if (kind == v1::ExitRecord::GANG_ENDED || kind == v1::ExitRecord::PREEMPTED_BY_JOB) record->set_signal(SIGTERM);
    record->set_reason(reason);
    record->set_node("n" + std::to_string(pod.attach.pod() + 1));
    record->set_started_us(1);
    record->set_ended_us(2);
    pod.task->Send(down);
    WritesEnd(pod.task.get(), 0);
  }
};

TEST_F(HomeGangTest, TwoPodsLookLikeOneJob) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  EXPECT_EQ(pods[0].attach.job(), client.Accepted());
  EXPECT_EQ(pods[0].attach.tree(), pods[1].attach.tree());
  Says(pods[0], v1::STDOUT, 0, "hel");
  Says(pods[1], v1::STDOUT, 0, "one\ntw");
  EXPECT_EQ(client.ReadOut(4), "one\n");
  Says(pods[0], v1::STDOUT, 3, "lo\n");
  EXPECT_EQ(client.ReadOut(6), "hello\n");
  EXPECT_EQ(Acked(pods[0], v1::STDOUT), 6u);
  EXPECT_EQ(Acked(pods[1], v1::STDOUT), 4u);
  Says(pods[1], v1::STDOUT, 6, "o\n");
  EXPECT_EQ(client.ReadOut(4), "two\n");
  Put(pods[0].task.get(), 1, "/project/of-0", "zero");
  Ends(pods[0], v1::ExitRecord::EXITED, 0, "", 6);
  Released(pods[0].task.get());
  Ends(pods[1], v1::ExitRecord::EXITED, 0, "", 8);
  Released(pods[1].task.get());
  const v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 0);
  EXPECT_EQ(finished.state(), v1::COMPLETED);
  EXPECT_EQ(finished.node(), "n1,n2");
  ASSERT_EQ(finished.ranks_size(), 2);
  EXPECT_EQ(finished.ranks(1).rank(), 1u);
  EXPECT_EQ(finished.ranks(1).node(), "n2");
  EXPECT_EQ(*ReadFile(root_ / "project/of-0"), "zero");
}

TEST_F(HomeGangTest, LabelsAndRanks) {
  Client client = StartRun(Gang(2, 2, [](v1::Run* run) { run->set_label(true); }));
  Pods pods = Begin(2);
  ASSERT_EQ(pods[1].attach.outputs_size(), 2);
  EXPECT_EQ(pods[1].attach.outputs(0).stream(), kSecondOut);
  Says(pods[1], kSecondOut, 0, "last\n", false);
  EXPECT_EQ(client.ReadOut(8), "3: last\n");
  EXPECT_EQ(Acked(pods[1], kSecondOut), 5u);
  Says(pods[0], v1::STDOUT, 0, "no newline", true);
  EXPECT_EQ(client.ReadOut(14), "0: no newline\n");
}

TEST_F(HomeGangTest, TheFirstFailureIsTheReason) {
  Client client = StartRun(Gang(3));
  Pods pods = Begin(3);
  const std::string first = "rank 1 on n2: exit 3";
  Ends(pods[1], v1::ExitRecord::EXITED, 3);
  Ends(pods[0], v1::ExitRecord::GANG_ENDED, 0, first);
  Ends(pods[2], v1::ExitRecord::GANG_ENDED, 0, first);
  const v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 3);
  EXPECT_EQ(finished.state(), v1::FAILED);
  EXPECT_EQ(finished.reason(), first);
  ASSERT_EQ(finished.ranks_size(), 3);
  EXPECT_TRUE(finished.ranks(0).killed());
  EXPECT_FALSE(finished.ranks(1).killed());
}

TEST_F(HomeGangTest, ALostNodeIsNamedByTheController) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  auto watch = watches_.Next();
  const std::string why = "node n2 is lost";
  Ends(pods[0], v1::ExitRecord::GANG_ENDED, 0, why);
  Released(pods[0].task.get());
  v1::JobEvent event;
  event.set_state(v1::FAILED);
  event.set_reason(why);
  pods[1].task->Break();
  // The other pod's run asks for its own pod.
  auto of_pod = watches_.Next();
  EXPECT_EQ(of_pod->Next([](const v1::WatchRequest&) { return true; }).pod(), 1u);
  of_pod->Send(event);
  watch->Send(event);
  const v1::Finished finished = client.Finished();
  EXPECT_NE(finished.exit_status(), 0);
  EXPECT_EQ(finished.state(), v1::FAILED);
  EXPECT_EQ(finished.reason(), why);
}

TEST_F(HomeGangTest, InputGoesToOneRankOrToAll) {
  const auto reads = [](const Pod& pod, v1::StreamId stream) {
    return pod.task->Next([&](const v1::TaskUp& up) { return up.has_input() && up.input().stream() == stream; })
        .input();
  };
  {
    Client client = StartRun(Gang(2, 2, [](v1::Run* run) { run->set_input_rank(3); }));
    Pods pods = Begin(2);
    EXPECT_TRUE(reads(pods[0], v1::STDIN).eof());
    EXPECT_TRUE(reads(pods[0], kSecondIn).eof());
    ASSERT_TRUE(WriteAll(client.in.get(), "input"));
    EXPECT_EQ(reads(pods[1], kSecondIn).data(), "input");
    for (auto& [number, pod] : pods) Ends(pod, v1::ExitRecord::EXITED, 0, "", 0, 0, 2);
    EXPECT_EQ(client.Finished().exit_status(), 0);
  }
  Client client = StartRun(Gang(2, 1, [](v1::Run* run) { run->set_input_rank(-1); }));
  Pods pods = Begin(2);
  ASSERT_TRUE(WriteAll(client.in.get(), "all"));
  EXPECT_EQ(reads(pods[0], v1::STDIN).data(), "all");
  EXPECT_EQ(reads(pods[1], v1::STDIN).data(), "all");
}

TEST_F(HomeGangTest, SignalsGoToAllPods) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  client.Next([](const v1::HomeMessage& m) { return m.has_progress() && m.progress().state() == v1::RUNNING; });
  v1::ClientMessage message;
  message.mutable_signal()->set_signal(SIGUSR1);
  client.Send(message);
  for (auto& [number, pod] : pods) {
    EXPECT_EQ(pod.task->Next([](const v1::TaskUp& up) { return up.has_signal(); }).signal().signal(), SIGUSR1);
  }
}

TEST_F(HomeGangTest, ASlowReaderHoldsAllPodsBack) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  std::string line(1023, 'm');
  line += '\n';
  std::string megabyte;
  for (int i = 0; i < 1024; ++i) megabyte += line;
  for (uint64_t i = 0; i < 3; ++i) {
    for (auto& [number, pod] : pods) Says(pod, v1::STDOUT, i << 20, megabyte);
  }
  // As much as a pipe takes, and nothing of it is released.
  for (auto& [number, pod] : pods) Ends(pod, v1::ExitRecord::EXITED, 0, "", 3 << 20);
  const std::string all = client.ReadOut(6 << 20);
  EXPECT_EQ(all.size(), 6u << 20);
  for (size_t at = 0; at < all.size(); at += line.size()) ASSERT_EQ(all.compare(at, line.size(), line), 0);
  EXPECT_EQ(client.Finished().exit_status(), 0);
  for (auto& [number, pod] : pods) Released(pod.task.get());
}

TEST_F(HomeGangTest, KilledAndResumedWithoutALostOrDoubledLine) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  const uint64_t job = client.Accepted();
  Says(pods[0], v1::STDOUT, 0, "zero\n");
  EXPECT_EQ(client.ReadOut(5), "zero\n");
  Says(pods[1], v1::STDOUT, 0, "one\nhal");
  EXPECT_EQ(client.ReadOut(4), "one\n");
  EXPECT_EQ(Acked(pods[1], v1::STDOUT), 4u);
  StopHome(SIGKILL);
  ASSERT_EQ(StartHome(), "ok\n");
  Pods orphans = Connected(2);
  EXPECT_EQ(orphans[0].attach.stdout_offset(), 5u);
  EXPECT_EQ(orphans[1].attach.stdout_offset(), 4u);
  for (auto& [number, pod] : orphans) Attached(pod.task.get(), true);
  Says(orphans[1], v1::STDOUT, 4, "half\n");
  EXPECT_EQ(Acked(orphans[1], v1::STDOUT), 9u) << "the log has it";
  Client back = Connect();
  v1::ClientMessage message;
  message.mutable_resume()->set_job(job);
  back.Send(message, {client.in_home.get(), client.out_home.get(), client.err_home.get(), client.memory.get()});
  Pods resumed = Connected(2);
  EXPECT_EQ(client.ReadOut(5), "half\n");
  for (auto& [number, pod] : resumed) Attached(pod.task.get(), true);
  Says(resumed[0], v1::STDOUT, 5, "end\n");
  EXPECT_EQ(client.ReadOut(4), "end\n");
  Ends(resumed[0], v1::ExitRecord::EXITED, 0, "", 9);
  Ends(resumed[1], v1::ExitRecord::EXITED, 0, "", 9);
  const v1::Finished finished = back.Finished();
  EXPECT_EQ(finished.exit_status(), 0);
  EXPECT_EQ(finished.ranks_size(), 2);
}

// The client stops reading, is killed with home, and another home takes over: the lines that the pipe did not take come
// again, in the same order.
TEST_F(HomeGangTest, WhatAReaderHadNotConfirmedComesAgainInTheSameOrder) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  const uint64_t job = client.Accepted();
  const auto lines = [](char c, int from, int to) {
    std::string out;
    for (int i = from; i < to; ++i) out += std::string(1, c) + std::to_string(i) + "\n";
    return out;
  };
  constexpr int kLines = 60'000;  // more than a pipe takes
  const std::string a = lines('a', 0, kLines), b = lines('b', 0, kLines);
  for (size_t at = 0; at < a.size(); at += 100'003) {
    Says(pods[0], v1::STDOUT, at, a.substr(at, 100'003));
    Says(pods[1], v1::STDOUT, at, b.substr(at, 100'003));
  }
  std::string read = client.ReadOut(10'000);
  StopHome(SIGKILL);
  ASSERT_EQ(StartHome(), "ok\n");
  Pods orphans = Connected(2);
  Client back = Connect();
  v1::ClientMessage message;
  message.mutable_resume()->set_job(job);
  back.Send(message, {client.in_home.get(), client.out_home.get(), client.err_home.get(), client.memory.get()});
  Pods resumed = Connected(2);
  const uint64_t from_a = resumed[0].attach.stdout_offset(), from_b = resumed[1].attach.stdout_offset();
  for (auto& [number, pod] : resumed) Attached(pod.task.get(), true);
  // In another order than before.
  Says(resumed[1], v1::STDOUT, from_b, b.substr(from_b));
  Says(resumed[0], v1::STDOUT, from_a, a.substr(from_a));
  Ends(resumed[0], v1::ExitRecord::EXITED, 0, "", a.size());
  Ends(resumed[1], v1::ExitRecord::EXITED, 0, "", b.size());
  read += client.ReadOut(a.size() + b.size() - read.size());
  std::string of_a, of_b;
  for (size_t at = 0; at < read.size();) {
    const size_t end = read.find('\n', at) + 1;
    (read[at] == 'a' ? of_a : of_b) += read.substr(at, end - at);
    at = end;
  }
  EXPECT_TRUE(of_a == a);
  EXPECT_TRUE(of_b == b);
  EXPECT_EQ(back.Finished().exit_status(), 0);
}

TEST_F(HomeGangTest, AHomeThatComesBackKnowsThePodsThatAreOver) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  const uint64_t job = client.Accepted();
  Says(pods[0], v1::STDOUT, 0, "done\n");
  EXPECT_EQ(client.ReadOut(5), "done\n");
  Ends(pods[0], v1::ExitRecord::EXITED, 0, "", 5);
  Released(pods[0].task.get());
  EXPECT_TRUE(pods[0].task->WaitClosed());
  StopHome(SIGKILL);
  ASSERT_EQ(StartHome(), "ok\n");
  Pods orphans = Connected(1);
  ASSERT_TRUE(orphans.contains(1)) << "the first one is not asked again";
  Attached(orphans[1].task.get(), true);
  Client back = Connect();
  v1::ClientMessage message;
  message.mutable_resume()->set_job(job);
  back.Send(message, {client.in_home.get(), client.out_home.get(), client.err_home.get(), client.memory.get()});
  Pods resumed = Connected(1);
  ASSERT_TRUE(resumed.contains(1));
  Attached(resumed[1].task.get(), true);
  Ends(resumed[1], v1::ExitRecord::EXITED, 6);
  const v1::Finished finished = back.Finished();
  EXPECT_EQ(finished.exit_status(), 6);
  ASSERT_EQ(finished.ranks_size(), 2);
  EXPECT_EQ(finished.ranks(0).exit_code(), 0);
}

TEST_F(HomeGangTest, APreemptedGangStartsAgainWithAnotherNumberOfPods) {
  Client client = StartRun(Gang(2, 1, [](v1::Run* run) {
    run->mutable_spec()->mutable_scheduling()->set_requeue(true);
    run->mutable_spec()->mutable_gang()->set_pods(3);
    run->mutable_spec()->mutable_gang()->set_min_pods(1);
  }));
  const uint64_t job = client.Accepted();
  Pods pods = Begin(3);
  auto watch = watches_.Next();
  Says(pods[0], v1::STDOUT, 0, "first\n");
  Put(pods[2].task.get(), 1, "/project/state", "saved");
  for (auto& [number, pod] : pods) {
    Ends(pod, v1::ExitRecord::PREEMPTED_BY_JOB, 0, "preempted: job 9 needs its room", number == 0 ? 6 : 0);
  }
  for (auto& [number, pod] : pods) Released(pod.task.get());
  EXPECT_EQ(client.ReadOut(6), "first\n");
  v1::JobEvent event;
  event.set_state(v1::PENDING);
  {
    MutexLock lock(mutex_);
    *event.mutable_placement() = PodPlacement(job, 0);  // the controller does not know of the release yet
  }
  watch->Send(event);
  event.clear_placement();
  watch->Send(event);
  const v1::HomeMessage told = client.Next([](const v1::HomeMessage& m) { return m.has_notice() || m.has_finished(); });
  EXPECT_EQ(told.notice().text(), "preempted: job 9 needs its room: job " + std::to_string(job) +
                                      " waits, and is started again from its beginning");
  {
    MutexLock lock(mutex_);
    attempt_ = 2;
    pods_ = 2;
    event.set_state(v1::STARTING);
    event.set_pods(2);
    *event.mutable_placement() = PodPlacement(job, 0);
  }
  watch->Send(event);
  Pods again = Begin(2);
  EXPECT_EQ(again[0].attach.attempt(), 2u);
  EXPECT_EQ(again[0].attach.stdout_offset(), 0u);
  EXPECT_NE(again[1].attach.tree(), pods[1].attach.tree()) << "what the third pod wrote is there";
  Says(again[1], v1::STDOUT, 0, "second\n");
  EXPECT_EQ(client.ReadOut(7), "second\n");
  Ends(again[0], v1::ExitRecord::EXITED, 0);
  Ends(again[1], v1::ExitRecord::EXITED, 4, "", 7);
  const v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 4);
  EXPECT_EQ(finished.attempt(), 2u);
  EXPECT_EQ(finished.reason(), "rank 1 on n2: exit 4");
}

TEST_F(HomeGangTest, AGangThatCouldNotStartWaitsAgain) {
  Client client = StartRun(Gang(2));
  const uint64_t job = client.Accepted();
  Pods pods = Connected(2);
  auto watch = watches_.Next();
  for (auto& [number, pod] : pods) {
    Attached(pod.task.get(), false);
    v1::TaskDown down;
    v1::ExitRecord* record = down.mutable_exited()->mutable_record();
    record->set_kind(number == 1 ? v1::ExitRecord::START_FAILED : v1::ExitRecord::GANG_ENDED);
    record->set_reason(number == 1 ? "no cgroup" : "pod 1 could not start");
    pod.task->Send(down);
    WritesEnd(pod.task.get(), 0);
    Released(pod.task.get());
  }
  v1::JobEvent event;
  event.set_state(v1::PENDING);
  watch->Send(event);
  {
    MutexLock lock(mutex_);
    attempt_ = 2;
    event.set_state(v1::STARTING);
    *event.mutable_placement() = PodPlacement(job, 0);
  }
  watch->Send(event);
  Pods again = Begin(2);
  for (auto& [number, pod] : again) Ends(pod, v1::ExitRecord::EXITED, 0);
  EXPECT_EQ(client.Finished().exit_status(), 0);
}

TEST_F(HomeGangTest, CancelledWhileWaiting) {
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun(Gang(2));
  client.Accepted();
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::PENDING);
  event.set_reason("no room");
  watch->Send(event);
  client.Next([](const v1::HomeMessage& m) {
    return m.has_progress() && m.progress().text().find("no room") != std::string::npos;
  });
  event.set_state(v1::CANCELLED);
  event.set_reason("cancelled by ann");
  watch->Send(event);
  const v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.state(), v1::CANCELLED);
  EXPECT_EQ(finished.exit_status(), 125);
}

TEST_F(HomeGangTest, EachRankHasItsOwnFiles) {
  Client client = StartRun(Gang(2, 2, [](v1::Run* run) {
    run->set_detached(true);
    run->set_stdout_path("/project/out-%t-%j");
    run->set_stderr_path("/project/err-%N");
  }));
  const uint64_t job = client.Accepted();
  Pods pods = Begin(2);
  Says(pods[0], v1::STDOUT, 0, "zero\n", true);
  Says(pods[0], kSecondOut, 0, "one\n", true);
  Says(pods[1], v1::STDERR, 0, "tw");
  Says(pods[1], kSecondErr, 0, "three\n", true);
  Says(pods[1], v1::STDERR, 2, "o\n", true);
  Says(pods[1], v1::STDOUT, 0, "", true);
  Says(pods[1], kSecondOut, 0, "no end", true);
  Says(pods[0], v1::STDERR, 0, "", true);
  Says(pods[0], kSecondErr, 0, "", true);
  for (auto& [number, pod] : pods) {
    Exited(pod.task.get(), job, 0);
    WritesEnd(pod.task.get(), 0);
    Released(pod.task.get());
  }
  const std::string j = std::to_string(job);
  EXPECT_EQ(*ReadFile(root_ / ("project/out-0-" + j)), "zero\n");
  EXPECT_EQ(*ReadFile(root_ / ("project/out-1-" + j)), "one\n");
  EXPECT_EQ(*ReadFile(root_ / ("project/out-2-" + j)), "");
  EXPECT_EQ(*ReadFile(root_ / ("project/out-3-" + j)), "no end");
  EXPECT_EQ(*ReadFile(root_ / "project/err-n1"), "");
  EXPECT_EQ(*ReadFile(root_ / "project/err-n2"), "three\ntwo\n");
}

TEST_F(HomeGangTest, PodsThatWroteTheSameSayNothing) {
  Client client = StartRun(Gang(2));
  Pods pods = Begin(2);
  Put(pods[0].task.get(), 1, "/project/same", "equal");
  Put(pods[0].task.get(), 3, "/project/mine", "of zero");
  Ends(pods[0], v1::ExitRecord::EXITED, 0);
  Released(pods[0].task.get());
  Put(pods[1].task.get(), 1, "/project/same", "equal");
  Put(pods[1].task.get(), 3, "/project/mine", "of one");
  Ends(pods[1], v1::ExitRecord::EXITED, 0);
  const v1::HomeMessage told = client.Next([](const v1::HomeMessage& m) { return m.has_notice() || m.has_finished(); });
  EXPECT_NE(told.notice().text().find("/project/mine"), std::string::npos) << told.ShortDebugString();
  EXPECT_EQ(client.Finished().exit_status(), 0);
  EXPECT_EQ(*ReadFile(root_ / "project/mine"), "of zero");
  EXPECT_EQ(*ReadFile(root_ / ("project/mine.vrun-" + std::to_string(pods[1].attach.job()) + ".pod1")), "of one");
}

TEST_F(HomeGangTest, AGangHasNoTerminal) {
  Client client =
      StartRun(Gang(2, 1, [](v1::Run* run) { run->mutable_spec()->mutable_command()->set_terminal(true); }));
  const v1::HomeMessage told = client.Next([](const v1::HomeMessage& m) { return m.has_error() || m.has_accepted(); });
  EXPECT_NE(told.error().message().find("no terminal"), std::string::npos);
}

}  // namespace
}  // namespace vrun::home
