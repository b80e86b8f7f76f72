// SPDX-License-Identifier: Apache-2.0
// The controller over real mTLS, with homes and nodes played by the test. It runs in this process, or in one that is
// killed.
#include "control/service.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/thread/mutex.h"
#include "control/store/sqlite.h"
#include "control/testing/rpc_testing.h"
#include "control/testing/testing.h"
#include "rpc/testing.h"

extern char** environ;

namespace vrun::control {
namespace {

class ServiceTest : public ::testing::Test {
 protected:
  ~ServiceTest() override { Stop(); }

  void Start(Settings settings = {}) {
    auto opened = SqliteStore::Open(directory_.path() + "/vrun.db");
    ASSERT_TRUE(opened) << opened.error().message();
    store_ = std::move(*opened);
    loop_ = std::make_unique<EventLoop>();
    service_ = std::make_unique<Service>(loop_.get(), store_.get(), &clock_, settings);
    auto port = service_->Start("127.0.0.1:" + std::to_string(port_), authority_.Make("controller", "controller"));
    ASSERT_TRUE(port) << port.error().message();
    port_ = *port;
    thread_ = std::thread([this] { loop_->Run(); });
  }
  void Stop() {
    if (!loop_) return;
    loop_->Stop();
    thread_.join();
    service_.reset();
    loop_.reset();
    store_.reset();
  }
  std::unique_ptr<rpc::Channel> Dial(const std::string& role, const std::string& name) {
    auto channel = rpc::Channel::Dial("127.0.0.1:" + std::to_string(port_), authority_.Make(role, name), "controller");
    VRUN_CHECK(channel.has_value());
    return std::move(*channel);
  }
  static std::unique_ptr<rpc::Stream> OpenAgent(rpc::Channel& channel, AgentCollector* messages,
                                                const v1::Register& hello) {
    auto stream = channel.OpenStream("/vrun.v1.Control/Agent", messages);
    v1::AgentMessage first;
    *first.mutable_register_() = hello;
    stream->Send(first.SerializeAsString());
    return stream;
  }
  static void Report(rpc::Stream& stream, const v1::AttemptReport& report) {
    v1::AgentMessage message;
    *message.mutable_report() = report;
    stream.Send(message.SerializeAsString());
  }
  static std::unique_ptr<rpc::Stream> OpenWatch(rpc::Channel& channel, WatchCollector* events, uint64_t job,
                                                uint32_t pod = 0) {
    auto stream = channel.OpenStream("/vrun.v1.Control/Watch", events);
    v1::WatchRequest request;
    request.set_job(job);
    request.set_pod(pod);
    stream->Send(request.SerializeAsString());
    return stream;
  }
  static auto IsState(v1::JobState state) {
    return [state](const v1::JobEvent& e) { return e.state() == state; };
  }
  static bool IsRegistered(const v1::ControllerMessage& m) { return m.has_registered(); }

  rpc::TestAuthority authority_;
  TestDirectory directory_;
  Clock clock_;
  int port_ = 0;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Service> service_;
  std::thread thread_;
};

TEST_F(ServiceTest, AJobFromHomeToNodeAndBack) {
  Start();
  auto home = Dial("home", "anna@h");
  auto submitted = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r1"));
  ASSERT_TRUE(submitted) << submitted.error().message();
  EXPECT_FALSE(submitted->has_placement());
  WatchCollector events;
  auto watch = OpenWatch(*home, &events, submitted->job());
  auto waiting = events.WaitFor(IsState(v1::PENDING));
  ASSERT_TRUE(waiting);
  EXPECT_EQ(waiting->queue_position(), 1u);
  EXPECT_EQ(waiting->reason(), "no node has joined pool local yet");

  auto node = Dial("node", "n1");
  AgentCollector orders;
  auto agent = OpenAgent(*node, &orders, SimpleNode("n1"));
  auto registered = orders.WaitFor(IsRegistered);
  ASSERT_TRUE(registered);
  auto start = orders.WaitFor([](const auto& m) { return m.has_start(); });
  ASSERT_TRUE(start);
  auto starting = events.WaitFor(IsState(v1::STARTING));
  ASSERT_TRUE(starting);
  EXPECT_EQ(starting->placement().token(), start->start().placement().token());

  const v1::Placement p = start->start().placement();
  Report(*agent, ReportOf(p, v1::RUNNING));
  ASSERT_TRUE(events.WaitFor(IsState(v1::RUNNING)));
  Report(*agent, ExitOf(p, v1::COMPLETING, v1::ExitRecord::EXITED, 0));
  ASSERT_TRUE(events.WaitFor(IsState(v1::COMPLETING)));
  Report(*agent, ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  auto end = events.WaitFor(IsState(v1::COMPLETED));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit().kind(), v1::ExitRecord::EXITED);
  EXPECT_EQ(events.WaitClosed()->code(), Code::kOk) << "the end of the job ends the watch";
  EXPECT_TRUE(orders.WaitFor([](const auto& m) { return m.report_ack().state() == v1::COMPLETED; }));

  WatchCollector late;
  auto late_watch = OpenWatch(*home, &late, submitted->job());
  EXPECT_TRUE(late.WaitFor(IsState(v1::COMPLETED)));
  EXPECT_EQ(late.WaitClosed()->code(), Code::kOk);
}

TEST_F(ServiceTest, AWatchOfAnArrayTellsEachElementOnce) {
  Start();
  auto home = Dial("home", "anna@h");
  v1::SubmitRequest request = SimpleJob("r1");
  request.mutable_array()->add_ranges()->set_last(99);
  auto submitted = CallAndWait<v1::SubmitReply>(*home, "Submit", request);
  ASSERT_TRUE(submitted) << submitted.error().message();
  EXPECT_FALSE(submitted->has_placement());
  WatchCollector events, late;
  auto watch = OpenWatch(*home, &events, submitted->job());
  auto node = Dial("node", "n1");
  AgentCollector orders;
  auto agent = OpenAgent(*node, &orders, SimpleNode("n1"));
  std::unique_ptr<rpc::Stream> late_watch;
  std::map<uint32_t, uint64_t> ran;
  std::set<uint32_t> before;  // the second watch
  while (ran.size() < 100) {
    const auto start =
        orders.WaitFor([&](const auto& m) { return m.has_start() && !ran.contains(m.start().array_index()); });
    ASSERT_TRUE(start);
    const v1::Placement& p = start->start().placement();
    ran[start->start().array_index()] = p.job();
    Report(*agent, ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
    if (ran.size() != 50) continue;
    for (const auto& [index, job] : ran) before.insert(index);
    ASSERT_TRUE(orders.WaitFor([&](const auto& m) { return m.report_ack().job() == p.job(); }));
    late_watch = OpenWatch(*home, &late, submitted->job());
    ASSERT_TRUE(late.WaitFor([](const auto&) { return true; }));
  }
  ASSERT_TRUE(events.WaitFor(IsState(v1::COMPLETED)));
  EXPECT_EQ(events.WaitClosed()->code(), Code::kOk);
  std::map<uint32_t, uint64_t> told;
  for (const v1::JobEvent& event : events.messages()) {
    for (const v1::ArrayElement& element : event.started()) {
      EXPECT_TRUE(told.emplace(element.index(), element.job()).second) << element.index() << " was told twice";
    }
  }
  EXPECT_EQ(told, ran);
  ASSERT_TRUE(late.WaitClosed());
  std::set<uint32_t> later;
  for (const v1::JobEvent& event : late.messages()) {
    for (const v1::ArrayElement& element : event.started()) EXPECT_TRUE(later.insert(element.index()).second);
  }
  for (uint32_t index = 0; index < 100; ++index) EXPECT_TRUE(before.contains(index) || later.contains(index)) << index;
  EXPECT_EQ(late.messages().back().array().completed(), 100u);
}

TEST_F(ServiceTest, EachPodOfAGangHasItsWatch) {
  Start();
  auto home = Dial("home", "anna@h");
  auto submitted = CallAndWait<v1::SubmitReply>(*home, "Submit", GangJob("r1", 2, 3));
  ASSERT_TRUE(submitted) << submitted.error().message();
  std::vector<WatchCollector> events(2);
  std::vector<std::unique_ptr<rpc::Stream>> watches;
  for (uint32_t pod = 0; pod < 2; ++pod) watches.push_back(OpenWatch(*home, &events[pod], submitted->job(), pod));
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  std::vector<AgentCollector> orders(2);
  std::vector<std::unique_ptr<rpc::Stream>> agents;
  for (int i = 0; i < 2; ++i) {
    channels.push_back(Dial("node", "n" + std::to_string(i)));
    agents.push_back(OpenAgent(*channels.back(), &orders[i], SimpleNode("n" + std::to_string(i))));
  }
  std::map<uint32_t, int> node_of;
  std::map<uint32_t, v1::Placement> placements;
  for (int i = 0; i < 2; ++i) {
    const auto start = orders[i].WaitFor([](const auto& m) { return m.has_start(); });
    ASSERT_TRUE(start);
    const v1::Placement& p = start->start().placement();
    node_of[p.pod()] = i;
    placements[p.pod()] = p;
  }
  for (uint32_t pod = 0; pod < 2; ++pod) {
    const auto placed = events[pod].WaitFor([](const v1::JobEvent& e) { return e.has_placement(); });
    ASSERT_TRUE(placed);
    EXPECT_EQ(placed->placement().token(), placements[pod].token());
    EXPECT_EQ(placed->pods(), 2u);
    v1::AttemptReport ready = ReportOf(placements[pod], v1::STARTING);
    ready.set_ready(true);
    Report(*agents[node_of[pod]], ready);
  }
  for (auto& o : orders) EXPECT_TRUE(o.WaitFor([](const auto& m) { return m.has_go(); }));
  for (auto& e : events) EXPECT_TRUE(e.WaitFor(IsState(v1::RUNNING)));
  Report(*agents[node_of[1]], ExitOf(placements[1], v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  const auto exited = events[1].WaitFor([](const v1::JobEvent& e) { return e.has_exit(); });
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->state(), v1::RUNNING) << "the job goes on";
  EXPECT_EQ(exited->exit().pod(), 1u);
  Report(*agents[node_of[0]], ExitOf(placements[0], v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  for (auto& e : events) EXPECT_TRUE(e.WaitFor(IsState(v1::COMPLETED)));
  for (auto& e : events) EXPECT_EQ(e.WaitClosed()->code(), Code::kOk);
}

TEST_F(ServiceTest, NoWatchIsForgottenWhenManyComeAtOnce) {
  Start();
  auto home = Dial("home", "anna@h");
  auto busy = Dial("home", "ben@h");
  auto submitted = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r1"));
  ASSERT_TRUE(submitted);
  // Batches are processed all the time, so that a watch meets one at each point of its opening.
  std::atomic<bool> stop = false;
  std::thread others([&] {
    while (!stop) (void)CallAndWait<v1::ListReply>(*busy, "List", v1::ListRequest());
  });
  constexpr int kWatches = 500;
  std::vector<WatchCollector> events(kWatches);
  std::vector<std::unique_ptr<rpc::Stream>> watches;
  for (WatchCollector& e : events) watches.push_back(OpenWatch(*home, &e, submitted->job()));
  int told = 0;
  for (WatchCollector& e : events) told += e.WaitFor(IsState(v1::PENDING)).has_value();
  EXPECT_EQ(told, kWatches);
  stop = true;
  others.join();
}

TEST_F(ServiceTest, RolesAreKeptApart) {
  Start();
  auto home = Dial("home", "anna@h");
  auto node = Dial("node", "n1");
  EXPECT_EQ(CallAndWait<v1::SubmitReply>(*node, "Submit", SimpleJob("r1")).error().code(), Code::kDenied);
  EXPECT_EQ(CallAndWait<v1::ListReply>(*node, "List", v1::ListRequest()).error().code(), Code::kDenied);
  AgentCollector orders;
  auto agent = OpenAgent(*home, &orders, SimpleNode("n1"));
  EXPECT_EQ(orders.WaitClosed()->code(), Code::kDenied);
  AgentCollector other;
  auto wrong_name = OpenAgent(*node, &other, SimpleNode("n2"));
  EXPECT_EQ(other.WaitClosed()->code(), Code::kDenied);
  WatchCollector events;
  auto watch = OpenWatch(*node, &events, 1);
  EXPECT_EQ(events.WaitClosed()->code(), Code::kDenied);
  WatchCollector nothing;
  auto unknown = OpenWatch(*home, &nothing, 12345);
  EXPECT_EQ(nothing.WaitClosed()->code(), Code::kNotFound);
  v1::AgentMessage beat;
  beat.mutable_heartbeat();
  AgentCollector silent;
  auto unregistered = node->OpenStream("/vrun.v1.Control/Agent", &silent);
  unregistered->Send(beat.SerializeAsString());
  EXPECT_EQ(silent.WaitClosed()->code(), Code::kInvalid);
  AgentCollector garbage;
  auto rubbish = node->OpenStream("/vrun.v1.Control/Agent", &garbage);
  rubbish->Send("\xff\xff\xff");
  EXPECT_EQ(garbage.WaitClosed()->code(), Code::kUnsupported);
}

TEST_F(ServiceTest, ANodeHasSoManyStreamsAndNoMore) {
  Start();
  auto node = Dial("node", "n1");
  std::vector<AgentCollector> silent(100);
  std::vector<std::unique_ptr<rpc::Stream>> streams;
  for (AgentCollector& one : silent) streams.push_back(node->OpenStream("/vrun.v1.Control/Agent", &one));
  // They reach the controller in any order, so the one more comes when all of them are there.
  const auto refused_ones = [&] { return std::ranges::count_if(silent, &AgentCollector::closed); };
  for (int i = 0; i < 400 && refused_ones() < 68; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(refused_ones(), 68);
  AgentCollector more, orders;
  auto refused = OpenAgent(*node, &more, SimpleNode("n1"));
  EXPECT_EQ(more.WaitClosed()->code(), Code::kExhausted);
  auto other = Dial("node", "n2");
  auto agent = OpenAgent(*other, &orders, SimpleNode("n2"));
  EXPECT_TRUE(orders.WaitFor(IsRegistered));
}

TEST_F(ServiceTest, ASecondConnectionOfANodeReplacesTheFirst) {
  Start();
  auto one = Dial("node", "n1");
  auto two = Dial("node", "n1");
  AgentCollector first, second;
  auto a = OpenAgent(*one, &first, SimpleNode("n1"));
  ASSERT_TRUE(first.WaitFor(IsRegistered));
  auto b = OpenAgent(*two, &second, SimpleNode("n1"));
  ASSERT_TRUE(second.WaitFor(IsRegistered));
  EXPECT_EQ(first.WaitClosed()->code(), Code::kAborted);
  auto home = Dial("home", "anna@h");
  auto reply = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r1"));
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->has_placement());
  EXPECT_TRUE(second.WaitFor([](const auto& m) { return m.has_start(); }));
}

TEST_F(ServiceTest, AnOrderlyRestartKeepsEverything) {
  Start();
  auto home = Dial("home", "anna@h");
  auto node = Dial("node", "n1");
  AgentCollector before;
  auto agent = OpenAgent(*node, &before, SimpleNode("n1", 1));
  ASSERT_TRUE(before.WaitFor(IsRegistered));
  auto running = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r1"));
  auto waiting = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r2"));
  ASSERT_TRUE(running && waiting);
  ASSERT_TRUE(running->has_placement());
  ASSERT_FALSE(waiting->has_placement());
  Stop();
  EXPECT_TRUE(before.WaitClosed());
  Start();
  AgentCollector after;
  v1::Register hello = SimpleNode("n1", 1);
  *hello.add_attempts() = ExitOf(running->placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0);
  auto reconnected = Dial("node", "n1");
  auto again = OpenAgent(*reconnected, &after, hello);
  auto start = after.WaitFor([](const auto& m) { return m.has_start(); });
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().placement().job(), waiting->job());
}

TEST_F(ServiceTest, ASilentNodeIsLostAndWatchersAreTold) {
  Start({100'000, 500'000, {}});
  auto home = Dial("home", "anna@h");
  auto node = Dial("node", "n1");
  AgentCollector orders;
  auto agent = OpenAgent(*node, &orders, SimpleNode("n1"));
  ASSERT_TRUE(orders.WaitFor(IsRegistered));
  auto reply = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r1"));
  ASSERT_TRUE(reply);
  WatchCollector events;
  auto watch = OpenWatch(*home, &events, reply->job());
  auto lost = events.WaitFor(IsState(v1::LOST));
  ASSERT_TRUE(lost);
  EXPECT_NE(lost->reason().find("node n1 is lost"), std::string::npos);
  AgentCollector again;
  v1::Register hello = SimpleNode("n1");
  *hello.add_attempts() = ReportOf(reply->placement(), v1::RUNNING);
  auto back = OpenAgent(*node, &again, hello);
  EXPECT_TRUE(events.WaitFor(IsState(v1::RUNNING))) << "the watch went on";
}

TEST_F(ServiceTest, WatchersLearnWhereANodeIsThatWasStartedAgain) {
  Start();
  auto home = Dial("home", "anna@h");
  auto node = Dial("node", "n1");
  AgentCollector orders;
  auto agent = OpenAgent(*node, &orders, SimpleNode("n1"));
  ASSERT_TRUE(orders.WaitFor(IsRegistered));
  auto reply = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r1"));
  ASSERT_TRUE(reply);
  WatchCollector events;
  auto watch = OpenWatch(*home, &events, reply->job());
  ASSERT_TRUE(events.WaitFor(IsState(v1::STARTING)));
  AgentCollector again;
  v1::Register hello = SimpleNode("n1");
  hello.set_addresses(0, "10.0.0.1:7001");
  auto back = OpenAgent(*node, &again, hello);
  auto moved = events.WaitFor([](const v1::JobEvent& e) { return e.placement().addresses(0) == "10.0.0.1:7001"; });
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->placement().epoch(), reply->placement().epoch());
}

TEST_F(ServiceTest, AFullDiskIsAnAnswerAndNothingIsAcknowledged) {
  Start();
  auto home = Dial("home", "anna@h");
  auto node = Dial("node", "n1");
  AgentCollector orders;
  auto agent = OpenAgent(*node, &orders, SimpleNode("n1"));
  ASSERT_TRUE(orders.WaitFor(IsRegistered));
  auto before = CallAndWait<v1::SubmitReply>(*home, "Submit", SimpleJob("r1"));
  ASSERT_TRUE(before);
  loop_->Post([this] { store_->LimitPages(1); });
  auto big = SimpleJob("r2");
  big.mutable_spec()->mutable_command()->add_environment(std::string(300'000, 'e'));
  auto refused = CallAndWait<v1::SubmitReply>(*home, "Submit", big);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_NE(refused.error().message().find("make room"), std::string::npos) << refused.error().message();
  EXPECT_TRUE(CallAndWait<v1::ListReply>(*home, "List", v1::ListRequest())) << "reading goes on";
  loop_->Post([this] { store_->LimitPages(0); });
  auto after = CallAndWait<v1::SubmitReply>(*home, "Submit", big);
  ASSERT_TRUE(after) << after.error().message();
  EXPECT_TRUE(after->has_placement());
}

TEST_F(ServiceTest, ManyAtOnceShareTheirCommits) {
  Start();
  auto home = Dial("home", "anna@h");
  Mutex mu;
  CondVar changed;
  std::set<uint64_t> ids;
  int failures = 0;
  const int n = 500;
  for (int i = 0; i < n; ++i) {
    home->Call("/vrun.v1.Control/Submit", SimpleJob("r" + std::to_string(i)).SerializeAsString(), 60'000'000,
               [&](Result<std::string> r) {
                 v1::SubmitReply reply;
                 MutexLock lock(mu);
                 if (!r || !reply.ParseFromString(*r)) ++failures;
                 ids.insert(reply.job());
                 changed.notify_all();
               });
  }
  MutexLock lock(mu);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ids.size() + failures >= n; }));
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(ids.size(), static_cast<size_t>(n));
}

// --- a controller that is killed ---

class Killed {
 public:
  Killed(const std::string& state, const std::string& pki) : state_(state), pki_(pki) {}
  ~Killed() { Kill(); }

  bool Start() {
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    VRUN_CHECK(n > 0);
    std::string program(self, static_cast<size_t>(n));
    program = program.substr(0, program.rfind('/')) + "/control_fixture";
    int ready[2];
    VRUN_CHECK(pipe2(ready, 0) == 0);
    std::string fd = std::to_string(ready[1]);
    const char* argv[] = {program.c_str(), state_.c_str(), pki_.c_str(), fd.c_str(), nullptr};
    VRUN_CHECK(posix_spawn(&pid_, program.c_str(), nullptr, nullptr, const_cast<char**>(argv), environ) == 0);
    close(ready[1]);
    std::string line(64, '\0');
    auto got = ReadUpTo(ready[0], line.data(), line.size());
    close(ready[0]);
    return got && line.starts_with("ok");
  }
  void Stop() { kill(pid_, SIGSTOP); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  std::string Address() const {
    std::string text = ReadFile(state_ + "/address").value_or("");
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

 private:
  const std::string state_;
  const std::string pki_;
  pid_t pid_ = -1;
};

TEST(KilledController, OneThatHangsIsNoticedByItsPeers) {
  rpc::TestAuthority authority;
  TestDirectory directory;
  authority.Make("controller", "controller");
  Killed controller(directory.path() + "/state", authority.directory());
  ASSERT_TRUE(controller.Start());
  auto channel = rpc::Channel::Dial(controller.Address(), authority.Make("node", "n1"), "controller");
  ASSERT_TRUE(channel);
  AgentCollector orders;
  auto agent = (*channel)->OpenStream("/vrun.v1.Control/Agent", &orders);
  v1::AgentMessage hello;
  *hello.mutable_register_() = SimpleNode("n1");
  agent->Send(hello.SerializeAsString());
  ASSERT_TRUE(orders.WaitFor([](const auto& m) { return m.has_registered(); }));
  int64_t begin = MonotonicMicros();
  controller.Stop();
  auto reason = orders.WaitClosed();
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->code(), Code::kUnavailable) << reason->message();
  EXPECT_LT(MonotonicMicros() - begin, 18'000'000);
}

TEST(KilledController, ASecondOneOnTheSameStateIsRefused) {
  rpc::TestAuthority authority;
  TestDirectory directory;
  authority.Make("controller", "controller");
  Killed one(directory.path() + "/state", authority.directory());
  ASSERT_TRUE(one.Start());
  Killed two(directory.path() + "/state", authority.directory());
  EXPECT_FALSE(two.Start());
}

TEST(KilledController, AcknowledgedSubmitsSurviveAtAnyMoment) {
  rpc::TestAuthority authority;
  TestDirectory directory;
  auto credentials = authority.Make("home", "anna@h");
  authority.Make("controller", "controller");
  Killed controller(directory.path() + "/state", authority.directory());
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));

  Mutex mu;
  CondVar changed;
  std::map<std::string, uint64_t> acknowledged;  // request id -> job
  std::string address;
  for (int round = 0; round < 8; ++round) {
    ASSERT_TRUE(controller.Start());
    if (round == 0) {
      address = controller.Address();
    } else {
      EXPECT_EQ(controller.Address(), address) << "the port is kept over restarts";
    }
    auto channel = rpc::Channel::Dial(controller.Address(), credentials, "controller");
    ASSERT_TRUE(channel);
    int open = 0;
    const size_t until = acknowledged.size() + 1 + random() % 60;
    for (int i = 0; i < 200; ++i) {
      std::string id = "r" + std::to_string(round) + "." + std::to_string(i);
      {
        MutexLock lock(mu);
        ++open;
      }
      (*channel)->Call("/vrun.v1.Control/Submit", SimpleJob(id).SerializeAsString(), 20'000'000,
                       [&, id](Result<std::string> r) {
                         v1::SubmitReply reply;
                         MutexLock lock(mu);
                         if (r && reply.ParseFromString(*r)) acknowledged[id] = reply.job();
                         --open;
                         changed.notify_all();
                       });
    }
    MutexLock lock(mu);
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return acknowledged.size() >= until; });
    lock.unlock();
    controller.Kill();
    channel->reset();
  }
  ASSERT_TRUE(controller.Start());
  auto channel = rpc::Channel::Dial(controller.Address(), credentials, "controller");
  ASSERT_TRUE(channel);
  EXPECT_GT(acknowledged.size(), 8u);
  for (const auto& [request_id, job] : acknowledged) {
    auto again = CallAndWait<v1::SubmitReply>(**channel, "Submit", SimpleJob(request_id));
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_EQ(again->job(), job) << request_id;
  }
}

}  // namespace
}  // namespace vrun::control
