// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "node/source/content_source.h"
#include "proto/content.pb.h"
#include "rpc/rpc.h"

namespace vrun::node {

// Home's end of a content stream: records the node's requests in order. The node's end may be used from any thread.
class Wire {
 public:
  static constexpr char kHome[] = "u@h";

  class NodeEnd final : public rpc::Stream {
   public:
    explicit NodeEnd(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
    void Send(std::string message) override {
      v1::ContentRequest request;
      VRUN_CHECK(request.ParseFromString(message));
      MutexLock lock(wire_->mutex);
      wire_->asked.push_back(std::move(request));
    }
    void SendUrgent(std::string message) override { Send(std::move(message)); }
    size_t queued_bytes() const override { return 0; }
    void Finish() override {}
    void Cancel(Error reason) override { wire_->cancelled = reason.message(); }

   private:
    std::shared_ptr<Wire> wire_;
  };

  void Say(const v1::ContentReply& reply) { handler->OnMessage(reply.SerializeAsString()); }
  void SayHello(const std::string& token = "secret", const std::string& home = kHome) {
    v1::ContentReply reply;
    reply.mutable_hello()->set_home_id(home);
    reply.mutable_hello()->set_token(token);
    reply.mutable_hello()->set_job(7);
    reply.mutable_hello()->set_attempt(1);
    Say(reply);
  }
  v1::ContentRequest Next() {
    MutexLock lock(mutex);
    if (asked.empty()) return {};
    v1::ContentRequest r = asked.front();
    asked.erase(asked.begin());
    return r;
  }

  Mutex mutex;
  std::vector<v1::ContentRequest> asked;  // guarded by `mutex`
  std::string cancelled;
  rpc::Stream::Handler* handler = nullptr;
};

}  // namespace vrun::node
