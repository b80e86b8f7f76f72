// SPDX-License-Identifier: Apache-2.0
#include "control/api/api.h"

#include "base/escape.h"
#include "base/io/find_program.h"
#include "base/log.h"
#include "control/api/metrics.h"
#include "control/api/openapi.h"

namespace vrun::control {
namespace {

// Of events, of one user: a part of those that the server has for all (http::Limits).
constexpr uint32_t kMostStreams = 32;

int StatusOf(Code code) {
  switch (code) {
    case Code::kInvalid:
    case Code::kCorrupt: return 400;
    case Code::kDenied: return 403;
    case Code::kNotFound: return 404;
    case Code::kExists:
    case Code::kAborted: return 409;
    case Code::kExhausted: return 429;
    case Code::kUnsupported: return 501;
    case Code::kUnavailable: return 503;
    case Code::kTimeout: return 504;
    default: return 500;
  }
}

http::Response ProblemOf(const Error& error) { return http::Problem(StatusOf(error.code()), error.message()); }

// A filter for an ended state would find nothing among the others.
void ListEndedToo(const ApiRoute& route, Input* input) {
  for (const auto& [pointer, value] : input->filter) {
    v1::JobState state{};
    if (route.call == "List" && pointer == "/state" && v1::JobState_Parse(value.get<std::string>(), &state) &&
        IsEnd(state)) {
      input->request["all"] = true;
    }
  }
}

// In UsageRequest 0 is this month, and now.
void TellZeroFromNothing(const ApiRoute& route, Input* input) {
  if (route.call != "Usage") return;
  for (const char* name : {"from_us", "to_us"}) {
    const auto found = input->request.find(name);
    if (found != input->request.end() && *found == 0) *found = 1;
  }
}

}  // namespace

Api::Api(EventLoop* loop, Calls* calls, const std::string& people, const ApiOptions& options)
    : loop_(loop),
      calls_(calls),
      gate_(people),
      members_(people),
      tokens_(people),
      codes_(people, "codes"),
      secure_(!http::IsLoopback(options.listen)),
      logs_(options.home_socket),
      streams_({.streams = kMostStreams}),
      replays_(options.what_if, options.what_if.empty() ? "" : FindProgram("vrun-sim").value_or("")),
      work_(std::make_shared<WorkQueue>("api", 2)) {}

Api::~Api() {
  server_.reset();  // no request comes after this
  loop_->Cancel(sample_);
  work_->Stop();
  watch_.reset();
}

Result<std::unique_ptr<Api>> Api::Start(EventLoop* loop, Calls* calls, const std::string& people,
                                        const rpc::Credentials& credentials, const ApiOptions& options) {
  std::unique_ptr<Api> api(new Api(loop, calls, people, options));
  api->watch_ = std::make_shared<JobWatch>(loop, calls, api->work_.get());
  api->AddRoutes(options.metrics_open);
  api->SampleLater();
  std::optional<http::Tls> tls;
  if (api->secure_) tls = http::Tls{credentials.certificate, credentials.key};
  VRUN_ASSIGN(api->server_,
              http::Server::Start(options.listen, tls, {}, [api = api.get()](http::Request request, auto exchange) {
                api->router_.Handle(std::move(request), std::move(exchange));
              }));
  return api;
}

void Api::AddRoutes(bool metrics_open) {
  for (const ApiRoute& route : ApiRoutes()) {
    router_.Add({std::string(route.method), std::string(kApiPrefix) + std::string(route.path),
                 [this, &route](http::Call call, const std::shared_ptr<http::Exchange>& exchange) {
                   Handle(route, std::move(call), exchange);
                 }});
  }
  AddOwnRoutes(metrics_open);
  AddDashboard();
}

void Api::AddOwnRoutes(bool metrics_open) {
  const auto get = [this](const char* path, auto handler) { router_.Add({"GET", path, std::move(handler)}); };
  get("/healthz", [](const http::Call&, const auto& exchange) { exchange->Answer({200, R"({"status":"ok"})"}); });
  get("/readyz", [this](const http::Call&, const auto& exchange) {
    calls_->Read([exchange](State* state) {
      exchange->Answer(state != nullptr ? http::Response{200, R"({"status":"ready"})"}
                                        : http::Problem(503, "the controller cannot read its database: see its log"));
    });
  });
  get("/api/v1/openapi.json",
      [document = std::make_shared<const std::string>(OpenApiDocument())](const http::Call&, const auto& exchange) {
        exchange->Answer({200, *document});
      });
  get("/metrics", [this, metrics_open](const http::Call& call, const auto& exchange) {
    std::string viewer;
    if (!metrics_open) {
      auto verdict = gate_.Admit(call.request, false);
      if (!verdict.admitted) return exchange->Answer(std::move(verdict.refusal));
      viewer = verdict.caller.peer.name;
    }
    Metrics(viewer, exchange);
  });
}

void Api::Handle(const ApiRoute& route, http::Call call, const std::shared_ptr<http::Exchange>& exchange) {
  auto verdict = gate_.Admit(call.request, route.changes());
  if (!verdict.admitted) return exchange->Answer(std::move(verdict.refusal));
  if (Status may = calls_->Admit(verdict.caller.peer); !may) return exchange->Answer(ProblemOf(may.error()));
  auto input = ReadInput(route, call);
  if (!input) {
    const bool media = input.error().code() == Code::kUnsupported;
    return exchange->Answer(http::Problem(media ? 415 : 400, input.error().message()));
  }
  if (route.path == "/version") {
    return exchange->Answer({200, Text({{"version", VRUN_VERSION}, {"api", "v1"}})});
  }
  if (route.events() && call.request.method == "HEAD") return exchange->Answer({200, "", "text/event-stream"});
  if (route.path == "/jobs/watch") return Watch(route, std::move(call), verdict.caller, exchange);
  if (route.call.empty()) return Own(route, *input, verdict.caller, exchange);
  ListEndedToo(route, &*input);
  TellZeroFromNothing(route, &*input);
  if (!route.page_key.empty()) {
    input->request["limit"] = input->limit;
    if (input->before != 0) input->request["before"] = input->before;
  }
  auto bytes = Schema::Get().ToBytes(route.request, input->request);
  if (!bytes) return exchange->Answer(ProblemOf(bytes.error()));
  // JSON is made aside: the state thread has other things to do.
  auto reply = [work = std::weak_ptr(work_), &route, exchange, input = std::move(*input)](Result<std::string> answer) {
    if (!answer) return exchange->Answer(ProblemOf(answer.error()));
    const auto open = work.lock();
    if (!open) return;
    open->Post([&route, exchange, input, bytes = *std::move(answer)] {
      auto json = Schema::Get().ToJson(route.reply, bytes);
      if (json) json = AnswerOf(route, input, *std::move(json));
      if (!json) return exchange->Answer(ProblemOf(json.error()));
      exchange->Answer({200, Text(*json)});
    });
  };
  const std::string service = route.call.find('/') == route.call.npos ? "Control/" : "";
  calls_->Call("/vrun.v1." + service + std::string(route.call), verdict.caller.peer, *std::move(bytes),
               std::move(reply));
}

void Api::Watch(const ApiRoute& route, http::Call call, const TokenGate::Caller& caller,
                const std::shared_ptr<http::Exchange>& exchange) {
  auto input = ReadInput(route, call);
  if (!input) return exchange->Answer(ProblemOf(input.error()));
  auto may_go_on = CountStream(caller);
  if (!may_go_on) return exchange->Answer(ProblemOf(may_go_on.error()));
  JobWatch::Client client{caller.peer.name, *std::move(input), exchange->StartEvents(), *std::move(may_go_on)};
  loop_->Post([watch = std::weak_ptr(watch_), client = std::move(client)]() mutable {
    if (const auto open = watch.lock()) open->Add(std::move(client));
  });
}

Result<std::function<bool()>> Api::CountStream(const TokenGate::Caller& caller) {
  auto counted = streams_.OpenStream(Person(caller.peer.name));
  if (!counted) {
    return Error(Code::kExhausted, "user " + Escape(Person(caller.peer.name)) + ": " + std::to_string(kMostStreams) +
                                       " streams of events are open, which is the limit of each user: close some");
  }
  return std::function<bool()>(
      [this, token = caller.token, counted = *std::move(counted)] { return gate_.Check(token).has_value(); });
}

void Api::Metrics(const std::string& viewer, const std::shared_ptr<http::Exchange>& exchange) {
  calls_->Read([this, viewer, exchange](State* state) {
    if (state == nullptr) return exchange->Answer(http::Problem(503, "the controller cannot read its database"));
    exchange->Answer(
        {200, MetricsText(*state, calls_->counters(), viewer), "text/plain; version=0.0.4; charset=utf-8"});
  });
}

}  // namespace vrun::control
