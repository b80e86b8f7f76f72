// SPDX-License-Identifier: Apache-2.0
// The controller's HTTP side: the REST API of the table (routes.h), its OpenAPI document, /metrics, /healthz, /readyz,
// and the dashboard at /.
//
// Everything but health, readiness, the document and the files of the dashboard needs a token (people/tokens.h), also
// on the loopback, which the browsers of all users of the machine reach. A call is made as the token's user, with the
// checks of gRPC. Without TLS the API listens on the loopback only; elsewhere it shows the controller's certificate.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "control/access/bounds.h"
#include "control/api/calls.h"
#include "control/api/job_watch.h"
#include "control/api/routes.h"
#include "control/api/token_gate.h"
#include "control/dashboard/history.h"
#include "control/dashboard/log_relay.h"
#include "control/whatif/runs.h"
#include "http/router.h"
#include "http/server.h"
#include "people/members.h"
#include "people/tokens.h"
#include "rpc/credentials.h"

namespace vrun::control {

struct ApiOptions {
  std::string listen;         // HOST:PORT; port 0 picks one
  bool metrics_open = false;  // /metrics needs no token
  std::string home_socket;    // as of ControllerOptions
  std::string what_if;        // directory for results of replays (whatif/runs.h); "": there are none
};

// State thread.
class Api {
 public:
  // `people`: the directory of people::Members. All outlive the API.
  static Result<std::unique_ptr<Api>> Start(EventLoop* loop, Calls* calls, const std::string& people,
                                            const rpc::Credentials& credentials, const ApiOptions& options);
  ~Api();
  int port() const { return server_->port(); }

 private:
  Api(EventLoop* loop, Calls* calls, const std::string& people, const ApiOptions& options);

  void AddRoutes(bool metrics_open);
  void AddOwnRoutes(bool metrics_open);
  void AddDashboard();
  // Server's thread.
  void Handle(const ApiRoute& route, http::Call call, const std::shared_ptr<http::Exchange>& exchange);
  void Watch(const ApiRoute& route, http::Call call, const TokenGate::Caller& caller,
             const std::shared_ptr<http::Exchange>& exchange);
  // `viewer`: "": whoever reaches the address.
  void Metrics(const std::string& viewer, const std::shared_ptr<http::Exchange>& exchange);
  // Counts a stream of events until what it returns is destroyed, which says whether the stream may go on. Any thread.
  Result<std::function<bool()>> CountStream(const TokenGate::Caller& caller);

  // own_routes.cc: rows of the table without a call, and sessions. Server's thread.
  void Own(const ApiRoute& route, const Input& input, const TokenGate::Caller& caller,
           const std::shared_ptr<http::Exchange>& exchange);
  void Log(uint64_t job, const TokenGate::Caller& caller, const std::shared_ptr<http::Exchange>& exchange);
  // what_if_routes.cc: server's thread, then state thread.
  struct Collecting;
  void Replays(const ApiRoute& route, const Input& input, const TokenGate::Caller& caller,
               const std::shared_ptr<http::Exchange>& exchange);
  Result<v1::WhatIf> StartReplay(State& state, const Json& request, const TokenGate::Caller& caller);
  void CollectMore(const std::shared_ptr<Collecting>& next);
  http::Response Tokens(const ApiRoute& route, const Input& input, const TokenGate::Caller& caller);
  http::Response SignIn(const http::Request& request);
  http::Response SignOut(const http::Request& request);
  // Answers with the message as JSON, made aside. Any thread.
  void AnswerWith(const ApiRoute& route, std::string bytes, const std::shared_ptr<http::Exchange>& exchange);
  // State thread.
  void SampleLater();

  EventLoop* const loop_;
  Calls* const calls_;
  TokenGate gate_;
  const people::Members members_;
  const people::Tokens tokens_, codes_;
  const bool secure_;              // speaks TLS
  History history_;                // state thread
  EventLoop::TimerId sample_ = 0;  // the same
  LogRelay logs_;
  CallLimiter streams_;  // of events
  WhatIfRuns replays_;
  const std::shared_ptr<WorkQueue> work_;
  std::shared_ptr<JobWatch> watch_;
  http::Router router_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace vrun::control
