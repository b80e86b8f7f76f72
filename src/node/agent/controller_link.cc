// SPDX-License-Identifier: Apache-2.0
#include "node/agent/controller_link.h"

#include <algorithm>

#include "base/log.h"

namespace vrun::node {
namespace {

constexpr int64_t kAnswerMicros = 10'000'000;

}  // namespace

struct ControllerLink::Impl : std::enable_shared_from_this<ControllerLink::Impl> {
  // One connection. Its callbacks run on gRPC's threads and post to the loop, where a link that has reconnected ignores
  // them.
  struct Connection : rpc::Stream::Handler {
    std::weak_ptr<Impl> owner;
    EventLoop* loop = nullptr;
    uint64_t generation = 0;
    std::unique_ptr<rpc::Stream> stream;

    void OnMessage(std::string bytes) override {
      loop->Post([owner = owner, generation = generation, bytes = std::move(bytes)] {
        auto self = owner.lock();
        if (self && self->generation == generation) self->OnMessage(bytes);
      });
    }
    void OnClosed(Error reason) override {
      loop->Post([owner = owner, generation = generation, reason] {
        auto self = owner.lock();
        if (self && self->generation == generation) self->OnClosed(reason);
      });
    }
  };

  EventLoop* loop;
  Events events;
  std::unique_ptr<rpc::Channel> channel;
  std::unique_ptr<Connection> connection;
  uint64_t generation = 0;
  bool is_registered = false;
  bool complained = false;
  int64_t backoff_micros = 50'000;
  int64_t heartbeat_micros = 2'000'000;
  EventLoop::TimerId timer = 0;

  void Connect() {
    connection = std::make_unique<Connection>();
    connection->owner = weak_from_this();
    connection->loop = loop;
    connection->generation = ++generation;
    connection->stream = channel->OpenStream("/vrun.v1.Control/Agent", connection.get());
    v1::AgentMessage hello;
    *hello.mutable_register_() = events.describe();
    Send(hello);
    // An answer that never comes must not leave a node that the controller counts on and that gets no orders.
    loop->Cancel(timer);
    timer = loop->After(kAnswerMicros, [this] {
      connection->stream->Cancel(Error(Code::kTimeout, "no answer to the registration for 10 s"));
    });
  }

  void Send(const v1::AgentMessage& message) {
    if (!connection) return;
    connection->stream->Send(message.SerializeAsString());
  }

  void OnMessage(const std::string& bytes) {
    v1::ControllerMessage message;
    if (!message.ParseFromString(bytes)) {
      LogError("controller: a message that does not parse");
      return;
    }
    if (message.has_registered()) {
      is_registered = true;
      complained = false;
      backoff_micros = 50'000;
      if (message.registered().heartbeat_ms() > 0) heartbeat_micros = message.registered().heartbeat_ms() * 1000;
      LogInfo("registered with the controller");
      Beat();
      if (events.on_registered) events.on_registered();
    }
    events.on_message(message);
  }

  void Beat() {
    loop->Cancel(timer);
    timer = loop->After(heartbeat_micros, [this] {
      v1::AgentMessage beat;
      beat.mutable_heartbeat();
      Send(beat);
      Beat();
    });
  }

  void OnClosed(const Error& reason) {
    if (!complained) LogWarning("controller: {}: trying again", reason.message());
    complained = true;
    is_registered = false;
    ++generation;
    connection.reset();
    loop->Cancel(timer);
    timer = loop->After(backoff_micros, [this] { Connect(); });
    backoff_micros = std::min<int64_t>(backoff_micros * 2, 2'000'000);
  }
};

Result<std::unique_ptr<ControllerLink>> ControllerLink::Start(EventLoop* loop, const std::string& address,
                                                              const rpc::Credentials& credentials, Events events) {
  auto impl = std::make_shared<Impl>();
  impl->loop = loop;
  impl->events = std::move(events);
  VRUN_ASSIGN(impl->channel, rpc::Channel::Dial(address, credentials, "controller"));
  impl->Connect();
  return std::unique_ptr<ControllerLink>(new ControllerLink(std::move(impl)));
}

ControllerLink::~ControllerLink() {
  impl_->loop->Cancel(impl_->timer);
  impl_->connection.reset();
}

void ControllerLink::Send(const v1::AgentMessage& message) { impl_->Send(message); }
bool ControllerLink::registered() const { return impl_->is_registered; }

}  // namespace vrun::node
