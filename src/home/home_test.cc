// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <csignal>
#include <functional>
#include <map>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "home/testing/home_testing.h"

namespace vrun::home {
namespace {

TEST_F(HomeTest, ARunFromSubmissionToRelease) {
  Client client = StartRun();
  auto task = tasks_.Next();
  v1::Attach attach = NextAttach(task.get());
  uint64_t job = client.Accepted();
  EXPECT_EQ(attach.job(), job);
  EXPECT_EQ(attach.token(), "token");
  EXPECT_EQ(attach.tree().size(), 32u);
  EXPECT_EQ(attach.home_id().size(), 32u);
  Attached(task.get(), false);
  auto content = contents_.Next();
  auto hello = content->Next([](const v1::ContentReply& r) { return r.has_hello(); });
  EXPECT_EQ(hello.hello().home_id(), attach.home_id());
  EXPECT_EQ(hello.hello().token(), "token");
  auto directory = RootDirectory(content.get(), attach.tree(), 1);
  EXPECT_LT(directory->Find("project"), directory->size());

  Started(task.get());
  ASSERT_TRUE(WriteAll(client.in.get(), "input"));
  auto input = task->Next([](const v1::TaskUp& up) { return up.has_input(); });
  EXPECT_EQ(input.input().data(), "input");
  v1::TaskDown ack;
  ack.mutable_input_ack()->set_offset(5);
  task->Send(ack);
  client.in.Reset();
  client.in_home.Reset();
  EXPECT_TRUE(task->Next([](const v1::TaskUp& up) { return up.has_input() && up.input().eof(); }).has_input());

  task->Send(OutputOf(v1::STDOUT, 0, "output", false));
  EXPECT_EQ(client.ReadOut(6), "output");
  auto written = task->Next([](const v1::TaskUp& up) { return up.has_ack(); });
  EXPECT_EQ(written.ack().offset(), 6u);
  task->Send(OutputOf(v1::STDOUT, 6, "", true));
  task->Send(OutputOf(v1::STDERR, 0, "", true));
  Exited(task.get(), job, 3);
  Put(task.get(), 1, "/project/model", "weights");
  WritesEnd(task.get(), 2);
  Released(task.get());
  LetGo(&client);
  v1::Finished finished = client.Finished();
  EXPECT_TRUE(client.OutAtEnd()) << "home must have let go of the pipe before it says so";
  EXPECT_EQ(finished.exit_status(), 3);
  EXPECT_EQ(finished.state(), v1::FAILED);
  EXPECT_EQ(finished.node(), "n1");
  EXPECT_GT(finished.first_output_us(), 0);
  EXPECT_GE(finished.root_entries(), 3u) << "it may begin before the first scan has ended";
  EXPECT_EQ(*ReadFile(root_ / "project/model"), "weights");
  EXPECT_TRUE(task->WaitClosed());

  // A recent write is in the next tree, over the same content stream.
  root_.Put("just-now", "x");
  Client next = StartRun();
  auto second = tasks_.Next();
  v1::Attach again = NextAttach(second.get());
  EXPECT_NE(again.tree(), attach.tree());
  directory = RootDirectory(content.get(), again.tree(), 10);
  EXPECT_LT(directory->Find("just-now"), directory->size());
  EXPECT_EQ(contents_.size(), 1u);
  second->Break();
}

TEST_F(HomeTest, ExitsWithoutAStart) {
  struct Case {
    v1::ExitRecord::Kind kind;
    int signal, status;
  };
  for (const Case& c : {Case{v1::ExitRecord::NOT_FOUND, 0, 127}, Case{v1::ExitRecord::NOT_EXECUTABLE, 0, 126},
                        Case{v1::ExitRecord::START_FAILED, 0, 125}}) {
    Client client = StartRun();
    auto task = tasks_.Next();
    NextAttach(task.get());
    Attached(task.get(), false);
    v1::TaskDown down;
    down.mutable_exited()->mutable_record()->set_kind(c.kind);
    down.mutable_exited()->mutable_record()->set_reason("because");
    task->Send(down);
    WritesEnd(task.get(), 0);
    v1::Finished finished = client.Finished();
    EXPECT_EQ(finished.exit_status(), c.status);
    EXPECT_EQ(finished.reason(), "because");
    Released(task.get());
  }
}

TEST_F(HomeTest, ALostConnectionGoesOnByOffset) {
  Client client = StartRun();
  auto task = tasks_.Next();
  NextAttach(task.get());
  Attached(task.get(), false);
  Started(task.get());
  task->Send(OutputOf(v1::STDOUT, 0, "hello", false));
  EXPECT_EQ(client.ReadOut(5), "hello");
  ASSERT_TRUE(WriteAll(client.in.get(), "abc"));
  task->Next([](const v1::TaskUp& up) { return up.has_input(); });
  task->Break();

  auto again = tasks_.Next();
  v1::Attach attach = NextAttach(again.get());
  EXPECT_EQ(attach.stdout_offset(), 5u);
  Attached(again.get(), true, 1);
  auto input = again->Next([](const v1::TaskUp& up) { return up.has_input(); });
  EXPECT_EQ(input.input().offset(), 1u);
  EXPECT_EQ(input.input().data(), "bc");
  again->Send(OutputOf(v1::STDOUT, 3, "lo world", true));
  again->Send(OutputOf(v1::STDERR, 0, "", true));
  EXPECT_EQ(client.ReadOut(6), " world");
  Exited(again.get(), attach.job(), 0);
  WritesEnd(again.get(), 0);
  EXPECT_EQ(client.Finished().exit_status(), 0);
  Released(again.get());
}

TEST_F(HomeTest, KilledAndResumedWithoutALostOrDoubledByte) {
  Client client = StartRun();
  auto task = tasks_.Next();
  NextAttach(task.get());
  uint64_t job = client.Accepted();
  Attached(task.get(), false);
  Started(task.get());
  task->Send(OutputOf(v1::STDOUT, 0, "hello ", false));
  EXPECT_EQ(client.ReadOut(6), "hello ");
  task->Next([](const v1::TaskUp& up) { return up.has_ack(); });
  ASSERT_TRUE(WriteAll(client.in.get(), "abc"));
  task->Next([](const v1::TaskUp& up) { return up.has_input(); });
  StopHome(SIGKILL);
  EXPECT_TRUE(task->WaitClosed());

  // The socket file is stale now; a new home resumes the job before its client reconnects.
  ASSERT_EQ(StartHome(), "ok\n");
  auto orphan = tasks_.Next();
  NextAttach(orphan.get());
  Attached(orphan.get(), true, 2);
  orphan->Send(OutputOf(v1::STDOUT, 6, "brave new ", false));
  EXPECT_EQ(orphan->Next([](const v1::TaskUp& up) { return up.has_ack(); }).ack().offset(), 16u);

  Client back = Connect();
  v1::ClientMessage message;
  message.mutable_resume()->set_job(job);
  back.Send(message, {client.in_home.get(), client.out_home.get(), client.err_home.get(), client.memory.get()});
  auto resumed = tasks_.Next();
  v1::Attach attach = NextAttach(resumed.get());
  EXPECT_EQ(attach.stdout_offset(), 16u);
  EXPECT_FALSE(attach.detached());
  EXPECT_EQ(client.ReadOut(10), "brave new ") << "what only the log had";
  Attached(resumed.get(), true, 2);
  auto input = resumed->Next([](const v1::TaskUp& up) { return up.has_input(); });
  EXPECT_EQ(input.input().offset(), 2u);
  EXPECT_EQ(input.input().data(), "c") << "read by the dead home";
  resumed->Send(OutputOf(v1::STDOUT, 16, "world", true));
  resumed->Send(OutputOf(v1::STDERR, 0, "", true));
  EXPECT_EQ(client.ReadOut(5), "world");
  Exited(resumed.get(), job, 0);
  WritesEnd(resumed.get(), 0);
  EXPECT_EQ(back.Finished().exit_status(), 0);
}

TEST_F(HomeTest, KilledAndTheJobEndsBeforeTheClientIsBack) {
  Client client = StartRun();
  auto task = tasks_.Next();
  NextAttach(task.get());
  uint64_t job = client.Accepted();
  Attached(task.get(), false);
  Started(task.get());
  StopHome(SIGKILL);
  ASSERT_EQ(StartHome(), "ok\n");
  auto orphan = tasks_.Next();
  NextAttach(orphan.get());
  Attached(orphan.get(), true);
  orphan->Send(OutputOf(v1::STDOUT, 0, "result", true));
  orphan->Send(OutputOf(v1::STDERR, 0, "", true));
  v1::ExitRecord record = Exited(orphan.get(), job, 7);
  Put(orphan.get(), 1, "/project/model", "weights");
  WritesEnd(orphan.get(), 2);
  Released(orphan.get());
  Ended(job, record);

  Client back = Connect();
  v1::ClientMessage message;
  message.mutable_resume()->set_job(job);
  back.Send(message, {client.in_home.get(), client.out_home.get(), client.err_home.get(), client.memory.get()});
  EXPECT_EQ(client.ReadOut(6), "result");
  EXPECT_EQ(back.Finished().exit_status(), 7);
  EXPECT_EQ(*ReadFile(root_ / "project/model"), "weights");

  Client log = Connect();
  message.mutable_query()->mutable_read_log()->set_job(job);
  log.Send(message);
  EXPECT_EQ(log.Next([](const v1::HomeMessage& m) { return m.has_log(); }).log().data(), "result");
  EXPECT_TRUE(log.Next([](const v1::HomeMessage& m) { return m.has_done(); }).has_done());
}

TEST_F(HomeTest, CtrlCWhileWaitingCancels) {
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun();
  uint64_t job = client.Accepted();
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::PENDING);
  event.set_queue_position(3);
  watch->Send(event);
  auto progress = client.Next([](const v1::HomeMessage& m) {
    return m.has_progress() && m.progress().text().find("3rd") != std::string::npos;
  });
  EXPECT_EQ(progress.progress().state(), v1::PENDING);
  v1::ClientMessage message;
  message.mutable_signal()->set_signal(SIGINT);
  client.Send(message);
  v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 130);
  EXPECT_EQ(finished.state(), v1::CANCELLED);
  EXPECT_EQ(CancelSignal(job), SIGINT);
}

// --- the client is killed ---

TEST_F(HomeTest, AWaitingJobGoesOnWhenItsClientIsKilled) {
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun();
  const uint64_t job = client.Accepted();
  auto watch = watches_.Next();
  client.socket.Reset();
  v1::JobEvent event;
  event.set_state(v1::STARTING);
  *event.mutable_placement() = PlacementOf(job);
  watch->Send(event);
  auto task = tasks_.Next();
  NextAttach(task.get());
  Attached(task.get(), false);
  Started(task.get());
  task->Send(OutputOf(v1::STDOUT, 0, "hello", true));
  EXPECT_EQ(client.ReadOut(5), "hello") << "home still has the pipe";
  task->Send(OutputOf(v1::STDERR, 0, "", true));
  Exited(task.get(), job, 0);
  WritesEnd(task.get(), 0);
  Released(task.get());
}

TEST_F(HomeTest, AJobIsCancelledWithItsClientIfThatIsAskedForWhetherItWaitsOrRuns) {
  const auto cancel = [](v1::Run* run) {
    run->mutable_spec()->mutable_scheduling()->set_on_disconnect(v1::ON_DISCONNECT_CANCEL);
  };
  {
    Client client = StartRun(cancel);
    const uint64_t job = client.Accepted();
    auto task = tasks_.Next();
    NextAttach(task.get());
    Attached(task.get(), false);
    Started(task.get());
    client.Next([](const v1::HomeMessage& m) { return m.has_progress() && m.progress().state() == v1::RUNNING; });
    client.socket.Reset();
    EXPECT_EQ(CancelSignal(job), SIGHUP);
    task->Send(OutputOf(v1::STDOUT, 0, "", true));
    task->Send(OutputOf(v1::STDERR, 0, "", true));
    Exited(task.get(), job, 129);
    Put(task.get(), 1, "/project/left", "behind");
    WritesEnd(task.get(), 2);
    Released(task.get());
    EXPECT_EQ(*ReadFile(root_ / "project/left"), "behind") << "what it wrote comes home all the same";
  }
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun(cancel);
  const uint64_t job = client.Accepted();
  auto watch = watches_.Next();
  client.socket.Reset();
  EXPECT_EQ(CancelSignal(job), SIGHUP);
}

TEST_F(HomeTest, AJobWhoseReaderWentWithItsClientGoesOnIntoTheLog) {
  Client client = StartRun();
  client.Accepted();
  auto task = tasks_.Next();
  NextAttach(task.get());
  Attached(task.get(), false);
  Started(task.get());
  client.Next([](const v1::HomeMessage& m) { return m.has_progress() && m.progress().state() == v1::RUNNING; });
  LetGo(&client);
  client.out.Reset();
  client.err.Reset();
  client.socket.Reset();
  task->Send(OutputOf(v1::STDOUT, 0, "to nobody", false));
  // The output stays open for the command, which would get SIGPIPE otherwise: another sink attaches.
  auto orphan = tasks_.Next();
  NextAttach(orphan.get());
}

TEST_F(HomeTest, APlacementThatComesLater) {
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun();
  uint64_t job = client.Accepted();
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::STARTING);
  *event.mutable_placement() = PlacementOf(job);
  watch->Send(event);
  RunSilently(job, 0);
  EXPECT_EQ(client.Finished().exit_status(), 0);
}

TEST_F(HomeTest, AnAttemptThatGaveItsRoomAwayIsFollowedByTheNextInTheSameStreams) {
  Client client = StartRun([](v1::Run* run) { run->mutable_spec()->mutable_scheduling()->set_requeue(true); });
  const uint64_t job = client.Accepted();
  auto reads = [](TaskInbox* task, const std::string& data) {
    return task->Next([&](const v1::TaskUp& up) { return up.input().data() == data; }).input().offset();
  };
  auto begin = [&](TaskInbox* task) {
    const v1::Attach attach = NextAttach(task);
    Attached(task, false);
    Started(task);
    return attach;
  };
  auto first = tasks_.Next();
  const v1::Attach attach = begin(first.get());
  ASSERT_EQ(::write(client.in.get(), "one", 3), 3);
  EXPECT_EQ(reads(first.get(), "one"), 0u);
  v1::TaskDown down;
  down.mutable_input_ack()->set_offset(3);
  first->Send(down);
  first->Send(OutputOf(v1::STDOUT, 0, "first ", true));
  first->Send(OutputOf(v1::STDERR, 0, "", true));
  v1::ExitRecord* record = down.mutable_exited()->mutable_record();
  record->set_job(job);
  record->set_attempt(1);
  record->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
  record->set_reason("preempted: job 9 needs its room");
  record->set_started_us(1);
  first->Send(down);
  Put(first.get(), 1, "/project/state", "saved");
  WritesEnd(first.get(), 2);
  Released(first.get());
  EXPECT_EQ(client.ReadOut(6), "first ");
  EXPECT_FALSE(client.OutAtEnd()) << "another attempt will say more";
  const v1::HomeMessage told = client.Next([](const v1::HomeMessage& m) { return m.has_notice() || m.has_finished(); });
  EXPECT_EQ(told.notice().text(), "preempted: job 9 needs its room: job " + std::to_string(job) +
                                      " waits, and is started again from its beginning");

  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::PENDING);
  *event.mutable_placement() = PlacementOf(job);  // the controller does not know of the release yet
  watch->Send(event);
  event.set_state(v1::STARTING);
  event.mutable_placement()->set_attempt(2);
  event.mutable_placement()->set_epoch(2);
  watch->Send(event);
  ASSERT_EQ(::write(client.in.get(), "two", 3), 3);
  auto second = tasks_.Next();
  const v1::Attach again = begin(second.get());
  EXPECT_EQ(again.attempt(), 2u);
  EXPECT_EQ(again.stdout_offset(), 0u);
  EXPECT_EQ(again.write_back_sequence(), 0u);
  EXPECT_NE(again.tree(), attach.tree()) << "what the first attempt wrote is there";
  EXPECT_EQ(reads(second.get(), "two"), 0u);
  second->Send(OutputOf(v1::STDOUT, 0, "second", true));
  second->Send(OutputOf(v1::STDERR, 0, "", true));
  Exited(second.get(), job, 3);
  WritesEnd(second.get(), 0);
  Released(second.get());
  EXPECT_EQ(client.ReadOut(6), "second");
  const v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 3);
  EXPECT_EQ(finished.attempt(), 2u);
}

TEST_F(HomeTest, AnAttemptThatVanishedWithItsNodeIsFollowedByTheNext) {
  Client client = StartRun([](v1::Run* run) { run->mutable_spec()->mutable_scheduling()->set_requeue(true); });
  const uint64_t job = client.Accepted();
  auto first = tasks_.Next();
  NextAttach(first.get());
  Attached(first.get(), false);
  Started(first.get());
  first->Send(OutputOf(v1::STDOUT, 0, "half", false));
  EXPECT_EQ(client.ReadOut(4), "half");
  first->Break();
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::PENDING);
  watch->Send(event);
  auto next_watch = watches_.Next();
  event.set_state(v1::STARTING);
  *event.mutable_placement() = PlacementOf(job);
  event.mutable_placement()->set_attempt(2);
  event.mutable_placement()->set_epoch(2);
  next_watch->Send(event);
  auto second = tasks_.Next();
  v1::Attach attach = NextAttach(second.get());
  while (attach.attempt() == 1) {  // it tries the first attempt until it is told
    second->Break();
    second = tasks_.Next();
    attach = NextAttach(second.get());
  }
  EXPECT_EQ(attach.stdout_offset(), 0u);
  Attached(second.get(), false);
  Started(second.get());
  second->Send(OutputOf(v1::STDOUT, 0, "whole", true));
  second->Send(OutputOf(v1::STDERR, 0, "", true));
  Exited(second.get(), job, 0);
  WritesEnd(second.get(), 0);
  Released(second.get());
  EXPECT_EQ(client.ReadOut(5), "whole");
  EXPECT_EQ(client.Finished().exit_status(), 0);
}

TEST_F(HomeTest, ANodeThatWasStartedAgainIsFoundElsewhere) {
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun();
  uint64_t job = client.Accepted();
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::STARTING);
  *event.mutable_placement() = PlacementOf(job);
  event.mutable_placement()->set_addresses(0, "127.0.0.1:1");
  watch->Send(event);
  // The same attempt: the controller only reports the node's new address.
  event.mutable_placement()->set_addresses(0, node_address_);
  watch->Send(event);
  RunSilently(job, 0);
  EXPECT_EQ(client.Finished().exit_status(), 0);
}

TEST_F(HomeTest, ANodeThatDoesNotAnswerIsAskedForAtTheController) {
  // Accepts connections and stays silent, like a dead host.
  const UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(silent.get(), 16), 0);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string node = std::exchange(node_address_, "127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  Client client = StartRun();
  const uint64_t job = client.Accepted();
  auto watch = watches_.Next();
  node_address_ = node;
  v1::JobEvent event;
  event.set_state(v1::STARTING);
  *event.mutable_placement() = PlacementOf(job);
  watch->Send(event);
  RunSilently(job, 0);
  EXPECT_EQ(client.Finished().exit_status(), 0);
}

TEST_F(HomeTest, CancelledWhileWaitingIsNoSuccess) {
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun();
  client.Accepted();
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::CANCELLED);
  watch->Send(event);
  EXPECT_EQ(client.Finished().exit_status(), 125);
}

TEST_F(HomeTest, ALostNodeIsAnUnknownOutcome) {
  Client client = StartRun();
  auto task = tasks_.Next();
  NextAttach(task.get());
  Attached(task.get(), false);
  Started(task.get());
  client.Next([](const v1::HomeMessage& m) { return m.has_progress() && m.progress().state() == v1::RUNNING; });
  task->Break();
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::LOST);
  watch->Send(event);
  v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 255);
  EXPECT_FALSE(finished.has_record());
}

TEST_F(HomeTest, AReaderThatIsGoneClosesTheCommandsOutput) {
  Client client = StartRun();
  auto task = tasks_.Next();
  v1::Attach attach = NextAttach(task.get());
  Attached(task.get(), false);
  Started(task.get());
  client.out.Reset();
  client.out_home.Reset();
  task->Send(OutputOf(v1::STDOUT, 0, std::string(100'000, 'y'), false));
  auto closed = task->Next([](const v1::TaskUp& up) { return up.has_close_output(); });
  EXPECT_EQ(closed.close_output().stream(), v1::STDOUT);
  task->Send(OutputOf(v1::STDOUT, 100'000, "", true));
  task->Send(OutputOf(v1::STDERR, 0, "", true));
  v1::TaskDown down;
  down.mutable_exited()->mutable_record()->set_kind(v1::ExitRecord::SIGNALED);
  down.mutable_exited()->mutable_record()->set_signal(SIGPIPE);
  down.mutable_exited()->mutable_record()->set_started_us(1);
  task->Send(down);
  WritesEnd(task.get(), 0);
  EXPECT_EQ(client.Finished().exit_status(), 128 + SIGPIPE);
}

TEST_F(HomeTest, WritesThatCannotBeAppliedAreNeverSilent) {
  Client client = StartRun();
  auto task = tasks_.Next();
  v1::Attach attach = NextAttach(task.get());
  uint64_t job = client.Accepted();
  Attached(task.get(), false);
  Started(task.get());
  task->Send(OutputOf(v1::STDOUT, 0, "", true));
  task->Send(OutputOf(v1::STDERR, 0, "", true));
  Exited(task.get(), job, 0);
  Put(task.get(), 1, "/root/.aws/credentials", "x");  // denied to jobs
  Put(task.get(), 3, "/project/fine", "y");
  WritesEnd(task.get(), 4);
  v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 125);
  EXPECT_THAT(finished.reason(), testing::HasSubstr("vctl cancel"));
  EXPECT_EQ(*ReadFile(root_ / "project/fine"), "y");
  EXPECT_TRUE(task->WaitClosed());

  // The node keeps them until somebody gives them up.
  Client cancel = Connect();
  v1::ClientMessage message;
  message.mutable_query()->mutable_cancel_jobs()->add_jobs(job);
  cancel.Send(message);
  auto release = tasks_.Next();
  NextAttach(release.get());
  Attached(release.get(), true);
  Exited(release.get(), job, 0);
  Released(release.get());
}

// The node may still be sending to the connection before when the next one comes, in the middle of a file.
TEST_F(HomeTest, WritesBeforeTheNodeHasAttachedAreNotTaken) {
  Client client = StartRun();
  auto task = tasks_.Next();
  NextAttach(task.get());
  const uint64_t job = client.Accepted();
  Attached(task.get(), false);
  Started(task.get());
  client.Next([](const v1::HomeMessage& m) { return m.has_progress() && m.progress().state() == v1::RUNNING; });
  task->Break();
  auto again = tasks_.Next();
  NextAttach(again.get());
  v1::TaskDown rest;
  rest.mutable_write_back()->set_sequence(3);
  rest.mutable_write_back()->set_path("/project/large");
  rest.mutable_write_back()->mutable_file_data()->set_data("the rest");
  again->Send(rest);
  Attached(again.get(), true);
  again->Send(OutputOf(v1::STDOUT, 0, "", true));
  again->Send(OutputOf(v1::STDERR, 0, "", true));
  Exited(again.get(), job, 0);
  Put(again.get(), 1, "/project/large", "all of it");
  WritesEnd(again.get(), 2);
  EXPECT_EQ(client.Finished().exit_status(), 0);
  EXPECT_EQ(*ReadFile(root_ / "project/large"), "all of it");
  Released(again.get());
}

TEST_F(HomeTest, SignalsGoToTheCommand) {
  Client client = StartRun();
  auto task = tasks_.Next();
  NextAttach(task.get());
  Attached(task.get(), false);
  Started(task.get());
  client.Next([](const v1::HomeMessage& m) { return m.has_progress() && m.progress().state() == v1::RUNNING; });
  v1::ClientMessage message;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    message.mutable_signal()->set_signal(signal);
    client.Send(message);
    EXPECT_EQ(task->Next([](const v1::TaskUp& up) { return up.has_signal(); }).signal().signal(), signal);
  }
  message.mutable_detach();
  client.Send(message);
  v1::Finished finished = client.Finished();
  EXPECT_EQ(finished.exit_status(), 0);
  EXPECT_FALSE(finished.has_record());
  // The job continues: its output goes to the log.
  auto orphan = tasks_.Next();
  v1::Attach attach = NextAttach(orphan.get());
  Attached(orphan.get(), true);
  orphan->Send(OutputOf(v1::STDOUT, 0, "more", false));
  EXPECT_EQ(orphan->Next([](const v1::TaskUp& up) { return up.has_ack(); }).ack().offset(), 4u);
}

TEST_F(HomeTest, DetachedRunsWriteFiles) {
  Client client = StartRun([&](v1::Run* run) { run->set_detached(true); });
  uint64_t job = client.Accepted();
  EXPECT_GT(job, 0u);
  auto task = tasks_.Next();
  EXPECT_TRUE(NextAttach(task.get()).detached());
  Attached(task.get(), false);
  Started(task.get());
  task->Send(OutputOf(v1::STDOUT, 0, "one ", false));
  EXPECT_EQ(task->Next([](const v1::TaskUp& up) { return up.has_ack(); }).ack().offset(), 4u);
  StopHome(SIGKILL);
  ASSERT_EQ(StartHome(), "ok\n");
  auto again = tasks_.Next();
  EXPECT_EQ(NextAttach(again.get()).stdout_offset(), 4u);
  Attached(again.get(), true);
  again->Send(OutputOf(v1::STDOUT, 4, "two", true));
  again->Send(OutputOf(v1::STDERR, 0, " three", true));
  Exited(again.get(), job, 0);
  WritesEnd(again.get(), 0);
  Released(again.get());
  EXPECT_EQ(*ReadFile(root_ / ("project/vrun-" + std::to_string(job) + ".out")), "one two three");
}

// What vrun prints on stderr, a batch job has in its output, and followers see it.
TEST_F(HomeTest, ABatchJobThatIsPreemptedAndThenLostSaysBothInItsOutputAndToWhoFollows) {
  Client client = StartRun([&](v1::Run* run) {
    run->set_detached(true);
    run->set_stdout_path("/project/out-%N-%4j");
    run->mutable_spec()->mutable_scheduling()->set_requeue(true);
  });
  const uint64_t job = client.Accepted();
  Client follower = Connect();
  v1::ClientMessage follow;
  follow.mutable_query()->mutable_read_log()->set_job(job);
  follow.mutable_query()->mutable_read_log()->set_follow(true);
  follower.Send(follow);
  auto first = tasks_.Next();
  const v1::Placement placement = PlacementOf(job);
  NextAttach(first.get());
  Attached(first.get(), false);
  Started(first.get());
  first->Send(OutputOf(v1::STDOUT, 0, "first\n", true));
  first->Send(OutputOf(v1::STDERR, 0, "", true));
  v1::TaskDown down;
  v1::ExitRecord* record = down.mutable_exited()->mutable_record();
  record->set_job(job);
  record->set_attempt(1);
  record->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
  record->set_reason("preempted: job 9 needs its room");
  record->set_started_us(1);
  first->Send(down);
  WritesEnd(first.get(), 0);
  Released(first.get());
  auto watch = watches_.Next();
  v1::JobEvent event;
  event.set_state(v1::STARTING);
  *event.mutable_placement() = placement;
  event.mutable_placement()->set_attempt(2);
  event.mutable_placement()->set_epoch(2);
  watch->Send(event);
  auto second = tasks_.Next();
  NextAttach(second.get());
  Attached(second.get(), false);
  Started(second.get());
  second->Send(OutputOf(v1::STDOUT, 0, "second\n", false));
  second->Next([](const v1::TaskUp& up) { return up.has_ack(); });
  second->Break();
  event.set_state(v1::LOST);
  watch->Send(event);

  const std::string again = "vrun: preempted: job 9 needs its room: job " + std::to_string(job) +
                            " waits, and is started again from its beginning\n";
  const std::string lost =
      "vrun: node " + placement.node() + " is lost: the outcome is unknown (job " + std::to_string(job) + ")\n";
  std::string heard;
  v1::HomeMessage last;
  do {
    last = follower.Next([](const v1::HomeMessage& m) { return m.has_log() || m.has_finished() || m.has_error(); });
    heard += last.log().data();
  } while (last.has_log());
  EXPECT_EQ(heard, "first\n" + again + "second\n" + lost);
  EXPECT_EQ(last.finished().exit_status(), 255);
  EXPECT_FALSE(last.finished().has_record());
  const std::string number = std::to_string(job);
  const std::string path =
      "project/out-" + placement.node() + "-" + std::string(4 - std::min<size_t>(4, number.size()), '0');
  EXPECT_EQ(*ReadFile(root_ / (path + number)), heard);
}

TEST_F(HomeTest, ABatchJobThatEndedWhileThereWasNoHomeSaysSoInItsOutput) {
  {
    MutexLock lock(mutex_);
    place_ = false;
  }
  Client client = StartRun([](v1::Run* run) { run->set_detached(true); });
  const uint64_t job = client.Accepted();
  auto before = watches_.Next();
  StopHome(SIGKILL);
  {
    MutexLock lock(mutex_);
    states_[job] = v1::CANCELLED;
  }
  ASSERT_EQ(StartHome(), "ok\n");
  auto watch = watches_.Next();
  Client follower = Connect();
  v1::ClientMessage follow;
  follow.mutable_query()->mutable_read_log()->set_job(job);
  follow.mutable_query()->mutable_read_log()->set_follow(true);
  follower.Send(follow);
  v1::JobEvent event;
  event.set_state(v1::CANCELLED);
  event.set_reason("cancelled while it waited");
  watch->Send(event);
  const v1::HomeMessage heard =
      follower.Next([](const v1::HomeMessage& m) { return m.has_log() || m.has_finished() || m.has_error(); });
  EXPECT_EQ(heard.log().data(), "vrun: cancelled while it waited\n");
  EXPECT_EQ(*ReadFile(root_ / ("project/vrun-" + std::to_string(job) + ".out")), heard.log().data());
}

TEST_F(HomeTest, ErrorsOfTheSubmissionEndTheConversation) {
  Client client = StartRun([](v1::Run* run) { run->mutable_spec()->set_pool("nowhere"); });
  auto error = client.Next([](const v1::HomeMessage& m) { return m.has_error(); });
  EXPECT_EQ(error.error().code(), static_cast<int>(Code::kNotFound));
  Client empty = StartRun([](v1::Run* run) { run->mutable_spec()->mutable_command()->clear_argv(); });
  EXPECT_TRUE(empty.Next([](const v1::HomeMessage& m) { return m.has_error(); }).has_error());
}

TEST_F(HomeTest, AControllerThatIsAwayIsSaidWithinSeconds) {
  controller_.reset();
  int64_t begin = MonotonicMicros();
  Client client = StartRun();
  auto progress = client.Next([](const v1::HomeMessage& m) {
    return m.has_error() ||
           (m.has_progress() && m.progress().text().find("waiting for the controller") != std::string::npos);
  });
  EXPECT_TRUE(progress.has_progress());
  auto error = client.Next([](const v1::HomeMessage& m) { return m.has_error(); });
  EXPECT_THAT(error.error().message(), testing::HasSubstr("controller"));
  EXPECT_LT(MonotonicMicros() - begin, 30'000'000);
}

TEST_F(HomeTest, AControllerThatComesBackInTimeIsEnough) {
  controller_.reset();
  Client client = StartRun();
  client.Next([](const v1::HomeMessage& m) {
    return m.has_progress() && m.progress().text().find("waiting for the controller") != std::string::npos;
  });
  StartController();
  RunSilently(101, 0);
  EXPECT_EQ(client.Finished().exit_status(), 0);
}

TEST_F(HomeTest, QueriesAndASecondHome) {
  pid_t first = home_;
  EXPECT_THAT(StartHome(), testing::StartsWith("error: another home daemon runs already"));
  int status = 0;
  ASSERT_EQ(::waitpid(home_, &status, 0), home_);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  home_ = first;

  v1::ClientMessage message;
  message.mutable_query()->mutable_status();
  Client client = Connect();
  client.Send(message);
  auto answer = client.Next([](const v1::HomeMessage& m) { return m.has_status(); });
  EXPECT_EQ(answer.status().pid(), home_);
  EXPECT_TRUE(answer.status().controller_connected());
  EXPECT_EQ(answer.status().root(), root_.path());

  message.mutable_query()->mutable_get_job()->set_job(5);
  Client unknown = Connect();
  unknown.Send(message);
  EXPECT_TRUE(unknown.Next([](const v1::HomeMessage& m) { return m.has_error(); }).has_error());

  message.mutable_query()->mutable_shutdown();
  Client last = Connect();
  last.Send(message);
  last.Next([](const v1::HomeMessage& m) { return m.has_done(); });
  ASSERT_EQ(::waitpid(home_, &status, 0), home_);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(PathExists(vrun_ / "home.sock"));
  home_ = 0;
}

TEST_F(HomeTest, ASlowReaderHoldsTheOutputBack) {
  Client client = StartRun();
  auto task = tasks_.Next();
  v1::Attach attach = NextAttach(task.get());
  Attached(task.get(), false);
  Started(task.get());
  std::string megabyte(1 << 20, 'm');
  for (uint64_t i = 0; i < 4; ++i) task->Send(OutputOf(v1::STDOUT, i << 20, megabyte, i == 3));
  task->Send(OutputOf(v1::STDERR, 0, "", true));
  Exited(task.get(), attach.job(), 0);
  WritesEnd(task.get(), 0);
  // Nothing is released or finished before all of it is in the pipe.
  EXPECT_EQ(client.ReadOut(4 << 20).size(), 4u << 20);
  EXPECT_EQ(client.Finished().exit_status(), 0);
  Released(task.get());
}

}  // namespace
}  // namespace vrun::home
