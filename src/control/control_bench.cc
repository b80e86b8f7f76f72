// SPDX-License-Identifier: Apache-2.0
// Measures the time from Submit at a home to StartAttempt at a node, through one real controller process with its
// fsync, on loopback, and the time until an array of 100,000 elements is durable. The state is below $TMPDIR or
// /var/tmp. Prints one JSON object.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/thread/mutex.h"
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
  std::printf("{\"array_of_100000_to_durable_ms\":{\"p50\":%.3f,\"p99\":%.3f},", arrays.At(0.5), arrays.At(0.99));
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
