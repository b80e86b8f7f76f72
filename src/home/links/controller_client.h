// SPDX-License-Identifier: Apache-2.0
// Home's side of the controller: submit, watch, cancel, ask.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "home/links/message_stream.h"
#include "proto/control.pb.h"
#include "rpc/rpc.h"

namespace vrun::home {

using WatchStream = MessageStream<v1::WatchRequest, v1::JobEvent>;

// Loop thread only, callbacks too; none runs after destruction.
class ControllerClient {
 public:
  ControllerClient(EventLoop* loop, std::string home_id) : loop_(loop), home_id_(std::move(home_id)) {}
  ~ControllerClient() { *alive_ = false; }

  // Sets the controller's address. Unfinished calls to an earlier one, or with another key, fail with kAborted.
  // `why_not`: the error to answer while there is no cluster.
  void Use(const std::string& address, const rpc::Credentials& credentials);
  void UseNone(Error why_not);

  // `method`: of the service Control, or with its service and a / before. kUnavailable while the controller is
  // unreachable. `timeout_micros` is the time for its answer once it is connected.
  template <typename Request, typename Reply>
  void Call(const std::string& method, const Request& request, int64_t timeout_micros,
            std::function<void(Result<Reply>)> done) {
    Send(method, request.SerializeAsString(), timeout_micros,
         [method, done = std::move(done)](Result<std::string> bytes) {
           if (!bytes) return done(std::move(bytes).error());
           Reply reply;
           if (!reply.ParseFromString(*bytes)) {
             return done(Error(Code::kCorrupt, method + ": the controller's answer does not parse: versions differ?"));
           }
           done(std::move(reply));
         });
  }
  void Submit(const v1::SubmitRequest& request, std::function<void(Result<v1::SubmitReply>)> done);
  void Cancel(uint64_t job, int signal, std::function<void(Result<v1::CancelReply>)> done);
  void Get(uint64_t job, std::function<void(Result<v1::GetReply>)> done) { Get(job, std::nullopt, std::move(done)); }
  // `element`: this one of an array. Its number is the array's until it is a job of its own.
  void Get(uint64_t job, std::optional<uint32_t> element, std::function<void(Result<v1::GetReply>)> done);

  // The first event comes at once with the present state. Null while there is no cluster.
  std::unique_ptr<WatchStream> Watch(uint64_t job, uint32_t pod, WatchStream::Events events);

  const std::string& home_id() const { return home_id_; }
  const std::string& address() const { return address_; }
  bool connected() const { return connected_; }  // according to the last call
  const std::string& error() const { return error_; }

 private:
  void Send(const std::string& method, std::string request, int64_t timeout_micros,
            std::function<void(Result<std::string>)> done);

  EventLoop* const loop_;
  const std::string home_id_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<rpc::Channel> channel_;
  std::string address_;
  rpc::Credentials credentials_;
  bool connected_ = false;
  std::string error_ = "not configured";
  Error why_not_{Code::kUnavailable, "no cluster: run `vctl up` or `vctl login`"};
};

}  // namespace vrun::home
