// SPDX-License-Identifier: Apache-2.0
// vctl drain, resume, maintenance: nodes that go out of service.
#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/base/times.h"
#include "cli/base/values.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/job_view.h"

namespace vrun::cli {
namespace {

enum Id { kReason, kFrom, kUntil, kFor, kNodes };

// --- drain, resume

constexpr OptionSpec kDrainOptions[] = {
    {kReason, 'r', "reason", Argument::kRequired, "TEXT", "why, for `vctl nodes -o wide`"}};

Status SomeNodes(const CtlInvocation& invocation) {
  if (!invocation.words.operands.empty()) return {};
  return Error(Code::kInvalid, "no node: name one, or several as in n[1-4]: `vctl nodes` lists them");
}

Result<int> DrainOrResume(const CtlInvocation& invocation, bool resume) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  v1::DrainNodes* drain = query.mutable_drain();
  drain->set_resume(resume);
  if (!resume) drain->set_reason(Escape(invocation.Value(kReason).value_or("")));
  for (const std::string& word : invocation.words.operands) drain->add_nodes(Escape(word));
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_nodes()) return Error(Code::kInternal, "home: unexpected answer instead of a list of nodes");
  Print(FormatNodes(answer.nodes(), invocation.format, invocation.headers));
  return 0;
}

Result<int> RunDrain(const CtlInvocation& invocation) { return DrainOrResume(invocation, false); }
Result<int> RunResume(const CtlInvocation& invocation) { return DrainOrResume(invocation, true); }

// --- maintenance

constexpr OptionSpec kMaintenanceOptions[] = {
    {kNodes, 'n', "nodes", Argument::kRequired, "NODE,...", "add: which, as in n1,gpu[1-4]", Completes::kNodes},
    {kFrom, 0, "from", Argument::kRequired, "TIME", "add: when it begins (now); forms as of vrun --begin"},
    {kUntil, 0, "until", Argument::kRequired, "TIME", "add: when it ends"},
    {kFor, 0, "for", Argument::kRequired, "DURATION",
     "add: how long it lasts, in place of --until; forms as of vrun -t"}};

Result<v1::SetMaintenance> RequestOf(const CtlInvocation& invocation) {
  const std::vector<std::string>& words = invocation.words.operands;
  v1::SetMaintenance request;
  const std::string action = words.empty() ? "list" : words[0];
  const bool add = action == "add", remove = action == "remove";
  if (!add && !remove && action != "list") {
    return Error(Code::kInvalid, Escape(action) + ": no such action: write add NAME, remove NAME or list");
  }
  const bool named = add || remove;
  if (words.size() > (named ? 2 : 1)) {
    return Error(Code::kInvalid, Escape(words.back()) + ": unexpected: nodes are named with --nodes");
  }
  for (const int option : {kNodes, kFrom, kUntil, kFor}) {
    if (!add && invocation.Has(option))
      return Error(Code::kInvalid, action + ": --nodes, --from, --until and --for are for add");
  }
  if (!named) return request;
  if (words.size() < 2 || words[1].empty()) return Error(Code::kInvalid, "no name: write " + action + " NAME");
  request.set_name(Escape(words[1]));
  request.set_over(remove);
  if (remove) return request;
  const int64_t now = WallMicros();
  const auto nodes = invocation.Value(kNodes), until = invocation.Value(kUntil), duration = invocation.Value(kFor);
  if (!nodes) return Error(Code::kInvalid, "no nodes: name them with --nodes");
  if (until.has_value() == duration.has_value()) {
    return Error(Code::kInvalid, "when does it end? write either --until TIME or --for DURATION");
  }
  request.add_nodes(Escape(*nodes));
  VRUN_ASSIGN(const int64_t from, ParseMoment(invocation.Value(kFrom).value_or("now"), now));
  request.set_from_us(from);
  if (until) {
    VRUN_ASSIGN(const int64_t end, ParseMoment(*until, now));
    request.set_until_us(end);
  } else {
    VRUN_ASSIGN(const uint64_t seconds, ParseTimeLimit(*duration));
    if (seconds == 0) return Error(Code::kInvalid, "--for: it needs an end: write a duration above 0");
    request.set_until_us(from + static_cast<int64_t>(seconds) * 1'000'000);
  }
  if (request.until_us() <= from) return Error(Code::kInvalid, "it ends before it begins: correct --from or --until");
  return request;
}

Status CheckMaintenance(const CtlInvocation& invocation) {
  auto request = RequestOf(invocation);
  return request ? Status() : std::move(request).error();
}

Result<int> RunMaintenance(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  VRUN_ASSIGN(*query.mutable_maintenance(), RequestOf(invocation));
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_maintenance())
    return Error(Code::kInternal, "home: unexpected answer instead of a list of maintenance");
  const v1::MaintenanceList& list = answer.maintenance();
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("maintenance").BeginArray();
    for (const v1::SetMaintenance& window : list.windows()) {
      json.BeginObject().Key("name").String(window.name()).Key("from").Time(window.from_us());
      json.Key("until").Time(window.until_us()).Key("nodes").BeginArray();
      for (const std::string& node : window.nodes()) json.String(node);
      json.EndArray().EndObject();
    }
    json.EndArray().EndObject();
    Print(json.Take());
    return 0;
  }
  Table table({"NAME", "FROM", "UNTIL", "NODES"});
  std::string names;
  for (const v1::SetMaintenance& window : list.windows()) {
    std::string nodes;
    for (const std::string& node : window.nodes()) nodes += (nodes.empty() ? "" : ",") + node;
    table.Add({window.name(), FormatRfc3339(window.from_us()), FormatRfc3339(window.until_us()), nodes});
    names += Escape(window.name()) + "\n";
  }
  Print(invocation.format == OutputFormat::kName ? names : table.Format(invocation.headers));
  return 0;
}

}  // namespace

const CtlCommand kCtlDrain{"drain",       "NODE...",         "let nothing start on nodes; what runs there runs on",
                           kDrainOptions, Completes::kNodes, SomeNodes,
                           RunDrain};
const CtlCommand kCtlResume{"resume",  "NODE...", "let jobs start on drained nodes again", {}, Completes::kNodes,
                            SomeNodes, RunResume};
const CtlCommand kCtlMaintenance{
    "maintenance",       "[add NAME|remove NAME|list]", "times in which nodes are out of service",
    kMaintenanceOptions, Completes::kNothing,           CheckMaintenance,
    RunMaintenance};

}  // namespace vrun::cli
