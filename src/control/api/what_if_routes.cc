// SPDX-License-Identifier: Apache-2.0
// Replays of the cluster's history under other conditions: started, watched and ended by the API.
#include <algorithm>

#include "base/clock.h"
#include "control/access/access.h"
#include "control/api/api.h"
#include "control/whatif/collect.h"

namespace vrun::control {
namespace {

constexpr char kSeeCall[] = "/vrun.v1.Control/Accounts#replay";
constexpr char kStartCall[] = "/vrun.v1.Control/Accounts#replay-start";
constexpr uint64_t kDays = 14;
constexpr int64_t kDayOfMicros = int64_t{86400} * 1'000'000;

// A name with a point or a slash would be a file of the controller's machine.
bool IsPolicy(const std::string& name) {
  return name.size() <= 40 && name != "list" && !name.starts_with('-') &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

http::Response NotReadable() { return http::Problem(503, "the controller cannot read its database"); }

http::Response RefusedBy(const Error& error) {
  const Code code = error.code();
  const int status = code == Code::kInvalid                            ? 400
                     : code == Code::kNotFound                         ? 404
                     : code == Code::kExists || code == Code::kAborted ? 409
                     : code == Code::kUnsupported                      ? 501
                                                                       : 500;
  return http::Problem(status, error.message());
}

}  // namespace

// A replay whose history is being collected.
struct Api::Collecting {
  Collecting(const rpc::Peer& peer, const history::Span& span) : collect(peer, span) {}
  Collect collect;
  v1::WhatIf run;
  std::vector<history::Part> parts;       // what if
  std::vector<history::TeamQuota> teams;  // the same
};

void Api::Replays(const ApiRoute& route, const Input& input, const TokenGate::Caller& caller,
                  const std::shared_ptr<http::Exchange>& exchange) {
  calls_->Read([this, &route, request = input.request, caller, exchange](State* state) {
    if (state == nullptr) return exchange->Answer(NotReadable());
    const Role role = state->RoleOf(caller.peer.name);
    const bool may_start = MayCall(kStartCall, role).has_value();
    if (!MayCall(kSeeCall, role)) {
      return exchange->Answer(http::Problem(403, "replays are for leads of teams, operators and admins"));
    }
    if (route.changes() && !may_start) {
      return exchange->Answer(http::Problem(403, "only operators and admins start and end replays"));
    }
    const uint64_t id = request.contains("id") ? request["id"].get<uint64_t>() : 0;
    const auto audit = [&](const char* what, const std::string& of) {
      members_.Audit({"", "home " + caller.peer.name, caller.peer.address, what, of, "ok"});
    };
    if (route.method == "POST") {
      const Result<v1::WhatIf> run = StartReplay(*state, request, caller);
      if (!run) return exchange->Answer(RefusedBy(run.error()));
      audit("what-if", "replay " + std::to_string(run->id()));
      return AnswerWith(route, run->SerializeAsString(), exchange);
    }
    if (route.method == "DELETE") {
      if (Status removed = replays_.Remove(id); !removed) return exchange->Answer(RefusedBy(removed.error()));
      audit("what-if remove", "replay " + std::to_string(id));
    } else if (route.path.ends_with("}")) {
      const Result<v1::WhatIf> run = replays_.Get(id);
      if (!run) return exchange->Answer(RefusedBy(run.error()));
      return AnswerWith(route, run->SerializeAsString(), exchange);
    }
    v1::WhatIfList list = replays_.List();
    list.set_may_start(may_start);
    AnswerWith(route, list.SerializeAsString(), exchange);
  });
}

Result<v1::WhatIf> Api::StartReplay(State& state, const Json& json, const TokenGate::Caller& caller) {
  VRUN_ASSIGN(const std::string bytes, Schema::Get().ToBytes("WhatIfRequest", json));
  v1::WhatIfRequest request;
  if (!request.ParseFromString(bytes)) return Error(Code::kInternal, "the request cannot be read");
  if (request.days() == 0) request.set_days(kDays);
  if (!IsPolicy(request.policy())) {
    return Error(Code::kInvalid, "policy: write one of those that `vctl sim --policy list` names");
  }
  const int64_t now = state.clock().Wall();
  const auto next = std::make_shared<Collecting>(
      caller.peer, history::Span{now - static_cast<int64_t>(request.days()) * kDayOfMicros, now});
  VRUN_TRY(next->collect.Begin(state));
  next->parts = next->collect.parts();
  next->teams = next->collect.teams();
  VRUN_TRY(history::ChangeParts(request.nodes(), &next->parts));
  VRUN_TRY(history::ChangeTeams(request.teams(), &next->teams));
  *next->run.mutable_request() = request;
  next->run.set_by(caller.peer.name);
  const auto gpus = [](const std::vector<history::Part>& parts) {
    int64_t sum = 0;
    for (const history::Part& part : parts) sum += part.nodes * part.gpus;
    return static_cast<uint64_t>(sum);
  };
  next->run.set_gpus(gpus(next->collect.parts()));
  next->run.set_changed_gpus(gpus(next->parts));
  VRUN_ASSIGN(next->run, replays_.Begin(next->run));
  CollectMore(next);
  return next->run;
}

// One step for each turn of the state thread.
void Api::CollectMore(const std::shared_ptr<Collecting>& next) {
  calls_->Read([this, next](State* state) {
    const uint64_t id = next->run.id();
    if (replays_.IsOver(id)) return;
    if (state == nullptr) return replays_.Fail(id, "the controller could not read its database");
    const Result<bool> more = next->collect.Step(*state);
    if (!more) return replays_.Fail(id, more.error().message());
    if (*more) return CollectMore(next);
    const history::Counts& counts = next->collect.trace().counts();
    const std::string note = history::Describe(counts);
    if (counts.jobs == 0) {
      return replays_.Fail(
          id, "no job of that time used whole GPUs" + (note.empty() ? "" : " (" + note + ")") + ": take more days");
    }
    next->run.set_jobs(counts.jobs);
    next->run.set_note(note);
    replays_.Run(next->run, {next->collect.trace().Text(), history::TableOf(next->parts), history::TableOf(next->teams),
                             history::TableOf(next->collect.parts()), history::TableOf(next->collect.teams())});
  });
}

}  // namespace vrun::control
