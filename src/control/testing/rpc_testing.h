// SPDX-License-Identifier: Apache-2.0
// Homes and nodes played by a test over real gRPC.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/control.pb.h"
#include "rpc/rpc.h"

namespace vrun::control {

// Collects the messages of a stream.
template <typename Message>
class Collector : public rpc::Stream::Handler {
 public:
  using Reaction = std::function<void(const Message&)>;
  explicit Collector(Reaction reaction = nullptr) : reaction_(std::move(reaction)) {}

  void OnMessage(std::string bytes) override {
    Message message;
    VRUN_CHECK(message.ParseFromString(bytes));
    if (reaction_) reaction_(message);
    MutexLock lock(mu_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
  void OnClosed(Error reason) override {
    MutexLock lock(mu_);
    closed_ = std::move(reason);
    changed_.notify_all();
  }
  // The first matching message, within 20 s.
  std::optional<Message> WaitFor(const std::function<bool(const Message&)>& fits) {
    MutexLock lock(mu_);
    std::optional<Message> found;
    changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (const Message& m : messages_) {
        if (fits(m)) found = m;
        if (found) return true;
      }
      return false;
    });
    return found;
  }
  std::optional<Error> WaitClosed() {
    MutexLock lock(mu_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return closed_.has_value(); });
    return closed_;
  }
  bool closed() {
    MutexLock lock(mu_);
    return closed_.has_value();
  }
  std::vector<Message> messages() {
    MutexLock lock(mu_);
    return messages_;
  }

 private:
  const Reaction reaction_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Message> messages_;
  std::optional<Error> closed_;
};

using WatchCollector = Collector<v1::JobEvent>;
using AgentCollector = Collector<v1::ControllerMessage>;

template <typename Reply, typename Request>
Result<Reply> CallAndWait(rpc::Channel& channel, const std::string& method, const Request& request,
                          int64_t timeout_micros = 20'000'000) {
  Mutex mu;
  CondVar changed;
  std::optional<Result<std::string>> answer;
  channel.Call("/vrun.v1.Control/" + method, request.SerializeAsString(), timeout_micros, [&](Result<std::string> r) {
    MutexLock lock(mu);
    answer = std::move(r);
    changed.notify_all();
  });
  MutexLock lock(mu);
  changed.wait(lock, [&] { return answer.has_value(); });
  if (!*answer) return answer->error();
  Reply reply;
  if (!reply.ParseFromString(**answer)) return Error(Code::kCorrupt, "the answer does not parse");
  return reply;
}

}  // namespace vrun::control
