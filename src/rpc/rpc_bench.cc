// SPDX-License-Identifier: Apache-2.0
// The cost of this layer on loopback, with both ends in one process and mTLS. Prints one JSON object.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/heap.h"
#include "base/thread/mutex.h"
#include "rpc/rpc.h"
#include "rpc/testing.h"

namespace vrun::rpc {
namespace {

class EchoSession : public Stream::Handler {
 public:
  explicit EchoSession(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
  void OnMessage(std::string message) override {
    if (message.size() < 4096) stream_->Send(std::move(message));
  }
  void OnClosed(Error) override { delete this; }

 private:
  std::unique_ptr<Stream> stream_;
};

class Waiter : public Stream::Handler {
 public:
  void OnMessage(std::string) override { Signal(); }
  void OnWritable() override { Signal(); }
  void OnClosed(Error) override { Signal(); }
  void Signal() {
    MutexLock lock(mu_);
    ++seen_;
    changed_.notify_all();
  }
  void Wait(int n) {
    MutexLock lock(mu_);
    changed_.wait(lock, [&] { return seen_ >= n; });
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int seen_ = 0;
};

double Percentile(std::vector<int64_t> samples, double p) {
  std::sort(samples.begin(), samples.end());
  return static_cast<double>(samples[static_cast<size_t>(p * static_cast<double>(samples.size() - 1))]) / 1000.0;
}

int Main() {
  KeepFreedMemory();
  TestAuthority authority;
  auto server = Server::Create(authority.Make("controller", "controller"));
  server->Unary("/b/Echo", [](const Peer&, std::string request, auto reply) { reply(std::move(request)); });
  server->Streaming("/b/Stream", [](const Peer&, std::unique_ptr<Stream> stream) -> Result<Stream::Handler*> {
    return new EchoSession(std::move(stream));
  });
  auto port = server->Start("127.0.0.1:0");
  if (!port) return 1;
  auto channel = Channel::Dial("127.0.0.1:" + std::to_string(*port), authority.Make("home", "a@b"), "controller");
  if (!channel) return 1;

  std::vector<int64_t> unary, pingpong;
  for (int i = 0; i < 3000; ++i) {
    Waiter done;
    int64_t begin = MonotonicMicros();
    (*channel)->Call("/b/Echo", std::string(200, 'x'), 0, [&](Result<std::string>) { done.Signal(); });
    done.Wait(1);
    if (i >= 500) unary.push_back(MonotonicMicros() - begin);
  }
  {
    Waiter waiter;
    auto stream = (*channel)->OpenStream("/b/Stream", &waiter);
    for (int i = 0; i < 3000; ++i) {
      int64_t begin = MonotonicMicros();
      stream->Send(std::string(200, 'x'));
      waiter.Wait(i + 1);
      if (i >= 500) pingpong.push_back(MonotonicMicros() - begin);
    }
  }
  double bulk = 0;
  {
    Waiter waiter;
    auto stream = (*channel)->OpenStream("/b/Stream", &waiter);
    const std::string chunk(1 << 20, 'y');
    const int total = 2048;
    int writable = 0;
    int64_t begin = MonotonicMicros();
    for (int i = 0; i < total; ++i) {
      stream->Send(chunk);
      if (stream->queued_bytes() > Stream::kHighWater) waiter.Wait(++writable);
    }
    stream->Send("end");
    waiter.Wait(writable + 1);
    bulk = double{total} * (1 << 20) / static_cast<double>(MonotonicMicros() - begin);
  }
  std::printf(
      "{\"unary_ms\":{\"p50\":%.3f,\"p99\":%.3f},\"stream_ping_pong_ms\":{\"p50\":%.3f,\"p99\":%.3f},"
      "\"bulk_mb_per_s\":%.0f}\n",
      Percentile(unary, 0.5), Percentile(unary, 0.99), Percentile(pingpong, 0.5), Percentile(pingpong, 0.99), bulk);
  return 0;
}

}  // namespace
}  // namespace vrun::rpc

int main() { return vrun::rpc::Main(); }
