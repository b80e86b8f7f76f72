// SPDX-License-Identifier: Apache-2.0
// vctl cancel, hold, release, requeue
#include <strings.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "base/escape.h"
#include "cli/array/job_ids.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/ctl/ctl.h"
#include "cli/request/scheduling.h"

namespace vrun::cli {
namespace {

enum Id { kSignal };
constexpr OptionSpec kOptions[] = {
    {kSignal, 's', "signal", Argument::kRequired, "SIGNAL", "send only this signal, by name or number"}};

Status Validate(const CtlInvocation& invocation) {
  auto signal = invocation.Value(kSignal);
  if (signal && ParseSignal(*signal) == 0) {
    return Error(Code::kInvalid, Escape(*signal) + ": not a signal: write a name as in USR1, or a number");
  }
  return SomeJobs(invocation);
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  for (const std::string& word : invocation.words.operands) {
    VRUN_ASSIGN(v1::JobSelection jobs, ParseJobs(word));
    if (jobs.elements().empty()) {
      query.mutable_cancel_jobs()->add_jobs(jobs.job());
    } else {
      *query.mutable_cancel_jobs()->add_selections() = std::move(jobs);
    }
  }
  if (auto signal = invocation.Value(kSignal)) query.mutable_cancel_jobs()->set_signal(ParseSignal(*signal));
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (invocation.json()) Print("{\n  \"schema\": 1,\n  \"ok\": true\n}\n");
  return 0;
}

// --- hold, release, requeue

// Every job is tried. Exits 1 if one was not changed.
Result<int> ChangeAll(const CtlInvocation& invocation, v1::ChangeJobs::What what) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::ClientMessage message;
  v1::ChangeJobs* change = message.mutable_query()->mutable_change();
  change->set_what(what);
  for (const std::string& word : invocation.words.operands) {
    VRUN_ASSIGN(*change->add_jobs(), ParseJobs(word));
  }
  VRUN_ASSIGN(FirstAnswer first, SendAndReceive(home, message, {}, true, false));
  std::vector<std::string> problems;
  for (v1::HomeMessage answer = std::move(first.message); !answer.has_done();) {
    if (answer.has_error()) return FromWire(answer.error());
    if (answer.has_notice()) problems.push_back(answer.notice().text());
    VRUN_ASSIGN(answer, ReceiveMessage(first.socket.get(), false));
  }
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("ok").Bool(problems.empty()).Key("problems").BeginArray();
    for (const std::string& problem : problems) json.String(problem);
    json.EndArray().EndObject();
    Print(json.Take());
  } else {
    for (const std::string& problem : problems) std::fprintf(stderr, "vctl: %s\n", SafeLine(problem).c_str());
  }
  return problems.empty() ? 0 : 1;
}

template <v1::ChangeJobs::What what>
Result<int> RunChange(const CtlInvocation& invocation) {
  return ChangeAll(invocation, what);
}

}  // namespace

const CtlCommand kCtlHold{"hold",           "ID...",  "keep waiting jobs from starting", {},
                          Completes::kJobs, SomeJobs, RunChange<v1::ChangeJobs::HOLD>};
const CtlCommand kCtlRelease{
    "release", "ID...", "let held jobs start", {}, Completes::kJobs, SomeJobs, RunChange<v1::ChangeJobs::RELEASE>};
const CtlCommand kCtlRequeue{"requeue",        "ID...",  "stop running jobs, which then wait again", {},
                             Completes::kJobs, SomeJobs, RunChange<v1::ChangeJobs::REQUEUE>};

const CtlCommand kCtlCancel{"cancel", "ID...", "end jobs, or send them a signal", kOptions, Completes::kJobs,
                            Validate, Run};

}  // namespace vrun::cli
