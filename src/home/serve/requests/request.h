// SPDX-License-Identifier: Apache-2.0
// One request of a node, and the stream for its answers. Each kind or family of requests has a file in this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "home/root/deny_list.h"
#include "proto/content.pb.h"

namespace vrun::home {

class Request;

// In the order in which they are answered.
enum Urgency { kDirectories, kRanges, kTrees, kAhead, kUrgencies };

// The stream of one node, as requests use it. Any thread.
class NodeStream : public std::enable_shared_from_this<NodeStream> {
 public:
  virtual ~NodeStream() = default;
  // Sends an answer or a part of one. All parts of an answer have the same urgency. `slices`: the node accepts a
  // message in slices.
  virtual void Send(const v1::ContentReply& reply, Urgency urgency = kDirectories, bool slices = false) = 0;
  // Queues work that home itself begins. Dropped when the stream is closed.
  virtual void Queue(std::unique_ptr<Request> request) = 0;
  // A private file was asked for.
  virtual void Withheld(const std::string& /*path*/) {}
  virtual bool closed() const = 0;
  // Closed, or has much queued.
  virtual bool full() const = 0;
};

// Answered in steps, one at a time, each on any thread. Destroyed when answered or cancelled, without any lock of the
// stream held.
class Request {
 public:
  Request(NodeStream* stream, v1::ContentRequest request, Urgency urgency)
      : request_(std::move(request)), urgency_(urgency), stream_(stream) {}
  virtual ~Request() = default;
  // Sends at most 1 MiB. True: complete.
  virtual bool Step() = 0;

  uint64_t id() const { return request_.id(); }
  const v1::ContentRequest& asked() const { return request_; }
  Urgency urgency() const { return urgency_; }

 protected:
  bool Send(v1::ContentReply* reply, bool last) {
    reply->set_id(id());
    reply->set_last(last);
    stream_->Send(*reply, urgency_, request_.slices());
    return last;
  }
  bool Fail(const Error& error) {
    if (request_.has_get_range() && IsPrivateFile(error)) stream_->Withheld(request_.get_range().path());
    v1::ContentReply reply;
    reply.set_id(id());
    reply.set_last(true);
    reply.mutable_error()->set_code(static_cast<int>(error.code()));
    reply.mutable_error()->set_message(error.message());
    stream_->Send(reply);
    return true;
  }

  const v1::ContentRequest request_;

 private:
  const Urgency urgency_;
  NodeStream* const stream_;
};

// Answered with one message.
class OneReply : public Request {
 public:
  using Answer = std::function<Result<v1::ContentReply>(const v1::ContentRequest& request)>;
  OneReply(NodeStream* stream, v1::ContentRequest request, Urgency urgency, Answer answer)
      : Request(stream, std::move(request), urgency), answer_(std::move(answer)) {}
  bool Step() override {
    auto reply = answer_(request_);
    return reply ? Send(&*reply, true) : Fail(reply.error());
  }

 private:
  const Answer answer_;
};

// Begins or ends something. Only a failure is answered.
class Order : public Request {
 public:
  using Carry = std::function<Status(const v1::ContentRequest& request)>;
  Order(NodeStream* stream, v1::ContentRequest request, Carry carry)
      : Request(stream, std::move(request), kDirectories), carry_(std::move(carry)) {}
  bool Step() override {
    const Status carried = carry_(request_);
    return carried ? true : Fail(carried.error());
  }

 private:
  const Carry carry_;
};

}  // namespace vrun::home
