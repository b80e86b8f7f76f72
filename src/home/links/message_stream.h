// SPDX-License-Identifier: Apache-2.0
// A gRPC stream of one message type, delivered on the event loop. Messages are parsed on gRPC's thread, so the loop
// only moves them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "rpc/rpc.h"

namespace vrun::home {

// Loop thread only. No callback runs after destruction, which is allowed inside of one.
template <typename Up, typename Down>
class MessageStream {
 public:
  struct Events {
    std::function<void(Down)> on_message;
    std::function<void(Error)> on_closed;    // last; Code::kOk: the other side ended it
    std::function<void()> on_writable = {};  // see rpc::Stream
  };

  static std::unique_ptr<MessageStream> Open(EventLoop* loop, rpc::Channel* channel, const std::string& method,
                                             Events events) {
    auto stream = std::unique_ptr<MessageStream>(new MessageStream);
    stream->core_ = std::make_shared<Core>(loop, std::move(events));
    stream->stream_ = channel->OpenStream(method, stream->core_.get());
    return stream;
  }
  ~MessageStream() {
    core_->dead = true;
    stream_.reset();
    // Posted calls still hold the core and thus what the callbacks have captured.
  }

  void Send(const Up& message) { stream_->Send(message.SerializeAsString()); }
  size_t queued_bytes() const { return stream_->queued_bytes(); }
  // What was sent is still delivered, even if this object is destroyed next.
  void Finish() { stream_->Finish(); }

 private:
  struct Core : rpc::Stream::Handler, std::enable_shared_from_this<Core> {
    Core(EventLoop* l, Events e) : loop(l), events(std::move(e)) {}

    void OnMessage(std::string bytes) override {
      Down message;
      bool parsed = message.ParseFromString(bytes);
      MutexLock lock(mutex);
      // After a message that does not parse, the rest cannot be trusted either.
      if (closed) return;
      if (parsed)
        messages.push_back(std::move(message));
      else
        closed = Error(Code::kCorrupt, "the other side sent a message that does not parse");
      Post();
    }
    void OnWritable() override {
      loop->Post([self = this->shared_from_this()] {
        if (!self->dead && self->events.on_writable) self->events.on_writable();
      });
    }
    void OnClosed(Error reason) override {
      MutexLock lock(mutex);
      if (!closed) closed = std::move(reason);
      Post();
    }
    void Post() VRUN_REQUIRES(mutex) {
      if (std::exchange(posted, true)) return;
      loop->Post([self = this->shared_from_this()] { self->Drain(); });
    }
    void Drain() {
      std::vector<Down> batch;
      std::optional<Error> end;
      {
        MutexLock lock(mutex);
        posted = false;
        batch.swap(messages);
        end = closed;
      }
      for (Down& message : batch) {
        if (dead) return;
        events.on_message(std::move(message));
      }
      if (!end || dead || std::exchange(told, true)) return;
      events.on_closed(std::move(*end));
    }

    EventLoop* const loop;
    Events events;
    bool dead = false;  // loop thread
    bool told = false;
    Mutex mutex;
    std::vector<Down> messages VRUN_GUARDED_BY(mutex);
    std::optional<Error> closed VRUN_GUARDED_BY(mutex);
    bool posted VRUN_GUARDED_BY(mutex) = false;
  };

  MessageStream() = default;
  std::shared_ptr<Core> core_;
  std::unique_ptr<rpc::Stream> stream_;
};

}  // namespace vrun::home
