// SPDX-License-Identifier: Apache-2.0
// Measures the time from Submit at a home to StartAttempt at a node, through one real controller process with its
// fsync, on loopback, and the time until an array of 100,000 elements is durable. Then for how long nobody else is
// served while 2,000 jobs end at once, without and with webhooks about their begin and end. The state is below $TMPDIR
// or /var/tmp. Prints one JSON object.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/thread/mutex.h"
#include "control/notify/sender.h"
#include "control/service.h"
#include "control/store/sqlite.h"
#include "control/testing/rpc_testing.h"
#include "control/testing/testing.h"
#include "rpc/testing.h"

namespace vrun::control {
namespace {

struct Samples {
  std::vector<int64_t> micros;
  double At(double p) {
    std::sort(micros.begin(), micros.end());
    return static_cast<double>(micros[static_cast<size_t>(p * static_cast<double>(micros.size() - 1))]) / 1000.0;
  }
};

// The longest time for which the state thread has answered nobody, from now until Stop.
class LongestWait {
 public:
  explicit LongestWait(EventLoop* loop)
      : thread_([this, loop] {
          while (!ended_) {
            const int64_t asked = MonotonicMicros();
            std::atomic<bool> answered = false;
            loop->Post([&answered] { answered = true; });
            while (!answered) std::this_thread::sleep_for(std::chrono::microseconds(200));
            longest_ = std::max(longest_, MonotonicMicros() - asked);
          }
        }) {}
  double StopMillis() {
    ended_ = true;
    thread_.join();
    return static_cast<double>(longest_) / 1000.0;
  }

 private:
  std::atomic<bool> ended_ = false;
  int64_t longest_ = 0;  // of the thread
  std::thread thread_;
};

// 2,000 jobs run, then end with one report after the other, as fast as the node sends them.
int MeasureEnds(bool told) {
  constexpr uint32_t kEnds = 2'000;
  rpc::TestAuthority authority;
  TestDirectory directory;
  Clock clock;
  auto store = SqliteStore::Open(directory.path() + "/vrun.db");
  if (!store) return 1;
  EventLoop loop;
  Settings settings;
  if (told) settings.scheduler = *ParseSchedulerConfig("[[notify.webhook]]\nurl = \"http://127.0.0.1:1/\"\n", "f");
  auto service = std::make_unique<Service>(&loop, store->get(), &clock, settings);
  std::atomic<uint32_t> delivered = 0;
  // Receivers that answer at once: rows leave as fast as they come.
  notify::Sender sender(
      settings.scheduler.notify,
      [&](uint64_t row, bool mail, bool sent) {
        service->Delivered(row, mail, sent);
        ++delivered;
      },
      [](const notify::NotifySettings&, const v1::Notification&, const std::atomic<bool>*) {
        return notify::Outcome{};
      });
  service->UseSender(&sender);
  auto port = service->Start("127.0.0.1:0", authority.Make("controller", "controller"));
  if (!port) return 1;
  std::thread thread([&] { loop.Run(); });
  const std::string address = "127.0.0.1:" + std::to_string(*port);
  auto home = rpc::Channel::Dial(address, authority.Make("home", "anna@h"), "controller");
  auto node = rpc::Channel::Dial(address, authority.Make("node", "n1"), "controller");
  if (!home || !node) return 1;
  Mutex mu;
  CondVar changed;
  std::vector<v1::Placement> placements;
  uint32_t acks = 0;
  AgentCollector orders([&](const v1::ControllerMessage& m) {
    MutexLock lock(mu);
    if (m.has_start()) placements.push_back(m.start().placement());
    if (m.has_registered() || m.has_report_ack()) ++acks;
    changed.notify_all();
  });
  auto agent = (*node)->OpenStream("/vrun.v1.Control/Agent", &orders);
  v1::AgentMessage hello;
  *hello.mutable_register_() = SimpleNode("n1", kEnds);
  hello.mutable_register_()->mutable_total()->set_memory_bytes(uint64_t{kEnds} << 30);
  agent->Send(hello.SerializeAsString());
  MutexLock lock(mu);
  changed.wait(lock, [&] { return acks == 1; });
  lock.unlock();
  for (uint32_t i = 0; i < kEnds; ++i) {
    if (!CallAndWait<v1::SubmitReply>(**home, "Submit", SimpleJob("e" + std::to_string(i)))) return 1;
  }
  lock.lock();
  changed.wait(lock, [&] { return placements.size() == kEnds; });
  lock.unlock();
  const auto report = [&](const char* what, const std::function<v1::AttemptReport(const v1::Placement&)>& make) {
    std::vector<std::string> messages;
    for (const v1::Placement& placement : placements) {
      v1::AgentMessage message;
      *message.mutable_report() = make(placement);
      messages.push_back(message.SerializeAsString());
    }
    const uint32_t sent_before = delivered;
    LongestWait longest(&loop);
    const int64_t begin = MonotonicMicros();
    lock.lock();
    const uint32_t want = acks + kEnds;
    lock.unlock();
    for (std::string& message : messages) agent->Send(std::move(message));
    lock.lock();
    changed.wait(lock, [&] { return acks == want; });
    lock.unlock();
    const double millis = static_cast<double>(MonotonicMicros() - begin) / 1000.0;
    while (told && delivered < sent_before + kEnds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::printf("\"%s_2000%s\":{\"ms\":%.1f,\"longest_wait_ms\":%.1f},", what, told ? "_told" : "", millis,
                longest.StopMillis());
  };
  report("begin", [](const v1::Placement& p) { return ReportOf(p, v1::RUNNING); });
  report("end", [](const v1::Placement& p) { return ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0); });
  agent.reset();
  loop.Stop();
  thread.join();
  service.reset();
  return 0;
}

// What messages alone cost the state thread: 2,000 rows stored, and removed, in a transaction each.
int MeasureRows() {
  TestDirectory directory;
  auto store = SqliteStore::Open(directory.path() + "/vrun.db");
  if (!store) return 1;
  v1::Notification message;
  message.set_id("msg_" + std::string(32, '0'));
  message.set_webhook("https://hooks.example.org/cluster");
  message.set_body(std::string(500, 'x'));
  std::vector<uint64_t> rows;
  Samples add, drop;
  for (int round = 0; round < 20; ++round) {
    int64_t begin = MonotonicMicros();
    if (!(*store)->Begin()) return 1;
    for (int i = 0; i < 2000; ++i) rows.push_back((*store)->AddMessage(message.SerializeAsString()).value_or(0));
    if (!(*store)->Commit()) return 1;
    add.micros.push_back(MonotonicMicros() - begin);
    begin = MonotonicMicros();
    if (!(*store)->Begin()) return 1;
    for (const uint64_t row : rows) (void)(*store)->DropMessage(row);
    if (!(*store)->Commit()) return 1;
    drop.micros.push_back(MonotonicMicros() - begin);
    rows.clear();
  }
  std::printf("\"message_rows_2000_ms\":{\"add\":%.1f,\"drop\":%.1f},", add.At(0.5), drop.At(0.5));
  return 0;
}

int Main() {
  rpc::TestAuthority authority;
  TestDirectory directory;
  Clock clock;
  auto store = SqliteStore::Open(directory.path() + "/vrun.db");
  if (!store) return 1;
  EventLoop loop;
  auto service = std::make_unique<Service>(&loop, store->get(), &clock, Settings{});
  auto port = service->Start("127.0.0.1:0", authority.Make("controller", "controller"));
  if (!port) return 1;
  std::thread thread([&] { loop.Run(); });
  const std::string address = "127.0.0.1:" + std::to_string(*port);
  auto home = rpc::Channel::Dial(address, authority.Make("home", "anna@h"), "controller");
  auto node = rpc::Channel::Dial(address, authority.Make("node", "n1"), "controller");
  if (!home || !node) return 1;

  Mutex mu;
  CondVar changed;
  int64_t started_at = 0;
  v1::Placement placement;
  int acks = 0;
  AgentCollector orders([&](const v1::ControllerMessage& m) {
    MutexLock lock(mu);
    if (m.has_start()) {
      started_at = MonotonicMicros();
      placement = m.start().placement();
    }
    if (m.has_registered() || m.has_report_ack()) ++acks;
    changed.notify_all();
  });
  auto agent = (*node)->OpenStream("/vrun.v1.Control/Agent", &orders);
  v1::AgentMessage hello;
  *hello.mutable_register_() = SimpleNode("n1");
  agent->Send(hello.SerializeAsString());
  MutexLock lock(mu);
  changed.wait(lock, [&] { return acks == 1; });
  lock.unlock();

  Samples to_start, to_reply;
  for (int i = 0; i < 600; ++i) {
    auto request = SimpleJob("r" + std::to_string(i));
    for (int e = 0; e < 40; ++e)
      request.mutable_spec()->mutable_command()->add_environment("SOME_VARIABLE_" + std::to_string(e) + "=some value");
    int64_t begin = MonotonicMicros();
    lock.lock();
    started_at = 0;
    lock.unlock();
    auto reply = CallAndWait<v1::SubmitReply>(**home, "Submit", request);
    int64_t replied = MonotonicMicros();
    if (!reply) return 1;
    lock.lock();
    changed.wait(lock, [&] { return started_at != 0; });
    if (i >= 100) {
      to_start.micros.push_back(started_at - begin);
      to_reply.micros.push_back(replied - begin);
    }
    int want = acks + 1;
    v1::AgentMessage end;
    *end.mutable_report() = ExitOf(placement, v1::COMPLETED, v1::ExitRecord::EXITED, 0);
    lock.unlock();
    agent->Send(end.SerializeAsString());
    lock.lock();
    changed.wait(lock, [&] { return acks == want; });
    lock.unlock();
  }
  Samples arrays;
  for (int i = 0; i < 20; ++i) {
    auto request = SimpleJob("array" + std::to_string(i));
    request.mutable_array()->add_ranges()->set_last(99'999);
    const int64_t begin = MonotonicMicros();
    if (!CallAndWait<v1::SubmitReply>(**home, "Submit", request)) return 1;
    arrays.micros.push_back(MonotonicMicros() - begin);
  }
  std::printf("{");
  if (MeasureRows() != 0) return 1;
  for (const bool told : {false, true}) {
    if (MeasureEnds(told) != 0) return 1;
  }
  std::printf("\"array_of_100000_to_durable_ms\":{\"p50\":%.3f,\"p99\":%.3f},", arrays.At(0.5), arrays.At(0.99));
  std::printf(
      "\"submit_to_start_ms\":{\"p50\":%.3f,\"p99\":%.3f},\"submit_to_reply_ms\":{\"p50\":%.3f,\"p99\":%.3f}}\n",
      to_start.At(0.5), to_start.At(0.99), to_reply.At(0.5), to_reply.At(0.99));
  agent.reset();
  loop.Stop();
  thread.join();
  service.reset();
  return 0;
}

}  // namespace
}  // namespace vrun::control

int main() { return vrun::control::Main(); }
