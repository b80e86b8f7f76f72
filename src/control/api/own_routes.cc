// SPDX-License-Identifier: Apache-2.0
// What the API answers without a call of gRPC: what the dashboard shows at a glance, logs, one's own tokens, sessions.
#include <sys/random.h>

#include "base/clock.h"
#include "control/api/api.h"
#include "control/dashboard/assets.h"
#include "control/dashboard/now.h"
#include "control/dashboard/sessions.h"
#include "proto/dashboard.pb.h"

namespace vrun::control {
namespace {

constexpr std::string_view kSessionName = "dashboard-";
constexpr int64_t kTokenSeconds = 30 * 86400;

// A name for the token of a session; "": no random numbers.
std::string NewSessionName() {
  unsigned char bytes[4];
  if (::getrandom(bytes, sizeof bytes, 0) != ssize_t{sizeof bytes}) return "";
  std::string name(kSessionName);
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

std::string TextIn(const Json& body, const char* name) {
  const auto found = body.find(name);
  return found != body.end() && found->is_string() ? found->get<std::string>() : "";
}

http::Response Failed(const Error& error) {
  const int status = error.code() == Code::kNotFound    ? 404
                     : error.code() == Code::kExists    ? 409
                     : error.code() == Code::kExhausted ? 429
                                                        : 400;
  return http::Problem(error.code() == Code::kInternal ? 500 : status, error.message());
}

}  // namespace

void Api::AddDashboard() {
  for (const std::string_view path : AssetPaths()) {
    router_.Add({"GET", std::string(path), [path](const http::Call& call, const auto& exchange) {
                   exchange->Answer(Asset(path, call.request));
                 }});
  }
  router_.Add({"POST", "/session",
               [this](const http::Call& call, const auto& exchange) { exchange->Answer(SignIn(call.request)); }});
  router_.Add({"POST", "/session/end",
               [this](const http::Call& call, const auto& exchange) { exchange->Answer(SignOut(call.request)); }});
}

void Api::SampleLater() {
  sample_ = loop_->After(History::kSampleMicros, [this] {
    calls_->Read([this](State* state) {
      if (state != nullptr) history_.Sample(*state);
    });
    SampleLater();
  });
}

void Api::AnswerWith(const ApiRoute& route, std::string bytes, const std::shared_ptr<http::Exchange>& exchange) {
  work_->Post([&route, exchange, bytes = std::move(bytes)] {
    const auto json = Schema::Get().ToJson(route.reply, bytes);
    exchange->Answer(json ? http::Response{200, Text(*json)} : http::Problem(500, json.error().message()));
  });
}

void Api::Own(const ApiRoute& route, const Input& input, const TokenGate::Caller& caller,
              const std::shared_ptr<http::Exchange>& exchange) {
  if (route.path.starts_with("/me/tokens")) return exchange->Answer(Tokens(route, input, caller));
  if (route.path.starts_with("/what-if")) return Replays(route, input, caller, exchange);
  const uint64_t job = input.request.contains("job") ? input.request["job"].get<uint64_t>() : 0;
  if (route.path == "/jobs/{job}/log") return Log(job, caller, exchange);
  calls_->Read([this, &route, job, viewer = caller.peer.name, exchange](State* state) {
    if (state == nullptr) return exchange->Answer(http::Problem(503, "the controller cannot read its database"));
    const Recent& recent = calls_->counters().recent();
    if (route.path == "/cluster") {
      return AnswerWith(route, NowOf(*state, viewer, recent, history_).SerializeAsString(), exchange);
    }
    if (route.path == "/teams/use") {
      return AnswerWith(route, TeamUseOf(*state, viewer, recent).SerializeAsString(), exchange);
    }
    const auto found = state->Find(job);
    if (!found) return exchange->Answer(http::Problem(404, found.error().message()));
    const bool shown = state->Shows(viewer, *found);
    AnswerWith(route, shown ? history_.Of(job).SerializeAsString() : "", exchange);
  });
}

void Api::Log(uint64_t job, const TokenGate::Caller& caller, const std::shared_ptr<http::Exchange>& exchange) {
  calls_->Read([this, job, caller, exchange](State* state) {
    if (state == nullptr) return exchange->Answer(http::Problem(503, "the controller cannot read its database"));
    const auto found = state->Find(job);
    if (!found) return exchange->Answer(http::Problem(404, found.error().message()));
    if (found->user != caller.peer.name) {
      return exchange->Answer(http::Problem(403, "only its owner reads what a job prints"));
    }
    if (!logs_.possible()) {
      return exchange->Answer(http::Problem(
          501, "what it prints is on its owner's machine: `vctl logs -f " + std::to_string(job) + "` shows it there"));
    }
    auto may_go_on = CountStream(caller);
    if (!may_go_on) return exchange->Answer(http::Problem(429, may_go_on.error().message()));
    logs_.Start(job, exchange->StartEvents(), *std::move(may_go_on));
  });
}

http::Response Api::Tokens(const ApiRoute& route, const Input& input, const TokenGate::Caller& caller) {
  const std::string& user = caller.peer.name;
  const auto audit = [&](const char* what, const std::string& name) {
    members_.Audit({"", "home " + user, caller.peer.address, what, "token " + name + " of " + user, "ok"});
  };
  const std::string name = input.request.contains("name") ? input.request["name"].get<std::string>() : "";
  if (route.path.ends_with("/revoke")) {
    if (Status done = tokens_.Revoke(user, name); !done) return Failed(done.error());
    audit("token revoke", name);
  } else if (route.changes()) {
    v1::ApiToken token;
    token.set_name(name);
    token.set_user(user);
    token.set_write(input.request.contains("write") && input.request["write"].get<bool>());
    const int64_t seconds = input.request.contains("seconds") ? input.request["seconds"].get<int64_t>() : kTokenSeconds;
    token.set_created_us(WallMicros());
    token.set_expires_us(token.created_us() + std::max<int64_t>(seconds, 1) * 1'000'000);
    const auto text = tokens_.Create(token);
    if (!text) return Failed(text.error());
    audit("token create", name);
    return {200, Json{{"name", name}, {"write", token.write()}, {"seconds", seconds}, {"token", *text}}.dump()};
  }
  const auto all = tokens_.List();
  if (!all) return Failed(all.error());
  v1::ApiTokenList own;
  for (const v1::ApiToken& token : *all) {
    if (token.user() == user) *own.add_tokens() = token;
  }
  const auto json = Schema::Get().ToJson("ApiTokenList", own.SerializeAsString());
  return json ? http::Response{200, control::Text(*json)} : Failed(json.error());
}

// Its content type cannot be sent by a form or a script of another site without a question that nobody answers.
http::Response Api::SignIn(const http::Request& request) {
  const Json body = http::IsJson(request) ? Json::parse(request.body, nullptr, false) : Json();
  if (!body.is_object()) return http::Problem(400, "send JSON with a code or a token");
  const int64_t now = WallMicros();
  std::string text = TextIn(body, "token");
  if (const std::string code = TextIn(body, "code"); !code.empty()) {
    const auto taken = codes_.Take(code, now);
    if (!taken) return gate_.Refuse("this link was used or is older than a minute: `vctl dashboard` makes a new one");
    v1::ApiToken token = *taken;
    token.set_name(NewSessionName());
    token.set_created_us(now);
    token.set_expires_us(now + token.session_s() * 1'000'000);
    auto made = tokens_.Create(token);
    if (!made) return Failed(made.error());
    text = *std::move(made);
    members_.Audit({"", "home " + token.user(), request.address, "dashboard", "token " + token.name(), "ok"});
  }
  const auto token = tokens_.Check(text, now);
  if (!token) return gate_.Refuse(token.error().message());
  if (Status admitted = members_.Admit("home", token->user()); !admitted) {
    return http::Problem(403, admitted.error().message());
  }
  const auto halves = Split(text);
  if (!halves) return http::Problem(500, "no random numbers");
  http::Response response{200, control::Text({{"proof", halves->proof},
                                              {"user", token->user()},
                                              {"token", token->name()},
                                              {"write", token->write()},
                                              {"expires_us", token->expires_us()}})};
  const int64_t seconds = std::max<int64_t>((token->expires_us() - now) / 1'000'000, 1);
  response.headers.emplace_back("Set-Cookie", SessionCookie(request, halves->cookie, seconds, secure_));
  return response;
}

http::Response Api::SignOut(const http::Request& request) {
  const auto token = tokens_.Check(SessionToken(request), WallMicros());
  if (!token) return gate_.Refuse("there is no session");
  // A token that was pasted in is good for other things too.
  if (token->name().starts_with(kSessionName)) (void)tokens_.Revoke(token->user(), token->name());
  http::Response response{200, "{}"};
  response.headers.emplace_back("Set-Cookie", EndedCookie(request, secure_));
  return response;
}

}  // namespace vrun::control
