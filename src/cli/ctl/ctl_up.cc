// SPDX-License-Identifier: Apache-2.0
// vctl up, vctl down
#include <cstdio>

#include "base/escape.h"
#include "cli/base/json.h"
#include "cli/ctl/ctl.h"
#include "cli/host/local_cluster.h"
#include "cli/request/job_command.h"

namespace vrun::cli {
namespace {

enum Id { kListen, kHttp, kNoNode, kNodeDirectory, kRoot, kAll };

constexpr OptionSpec kUpOptions[] = {
    {kListen, 'l', "listen", Argument::kRequired, "HOST:PORT",
     "where the controller listens (default: 127.0.0.1:7420)"},
    {kHttp, 0, "http", Argument::kRequired, "HOST:PORT",
     "where the controller serves its dashboard and HTTP API (default: as before, at first none); none: nowhere"},
    {kNoNode, 0, "no-node", Argument::kNone, "", "this machine runs no jobs; nodes are other hosts"},
    {kNodeDirectory, 0, "node-state-dir", Argument::kRequired, "DIR",
     "the node's cache and tasks (default: /var/lib/vrun/node)", Completes::kDirectories},
    {kRoot, 0, "root", Argument::kRequired, "DIR", "the directory that the jobs see as / (default: /)",
     Completes::kDirectories},
};
constexpr OptionSpec kDownOptions[] = {{kAll, 'a', "all", Argument::kNone, "", "even while jobs run; they are ended"}};

void Tell(const std::string& line) { std::fprintf(stderr, "vctl: %s\n", line.c_str()); }

Status ValidateUp(const CtlInvocation& invocation) {
  if (auto listen = invocation.Value(kListen)) {
    auto address = ParseHostPort(*listen, true);
    if (!address) return std::move(address).error().With("--listen");
  }
  if (auto http = invocation.Value(kHttp); http && *http != "none") {
    auto address = ParseHostPort(*http, true);
    if (!address) return std::move(address).error().With("--http");
  }
  return NoOperands(invocation);
}

Result<std::string> Directory(const CtlInvocation& invocation, int option) {
  auto value = invocation.Value(option);
  if (!value) return std::string();
  if (value->starts_with('/')) return Absolute(*value, "/");
  VRUN_ASSIGN(std::string here, CurrentDirectory());
  return Absolute(*value, here);
}

Result<int> RunUp(const CtlInvocation& invocation) {
  UpOptions options;
  options.listen = invocation.Value(kListen).value_or("");
  options.http = invocation.Value(kHttp).value_or("");
  options.node = !invocation.Has(kNoNode);
  VRUN_ASSIGN(options.root, Directory(invocation, kRoot));
  VRUN_ASSIGN(options.node_directory, Directory(invocation, kNodeDirectory));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(UpReport report, BringUp(home, options, Tell));
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("controller").String(report.controller);
    json.Key("root").String(report.root).Key("http").String(report.http);
    json.Key("started").Bool(report.anything_started()).Key("daemons").BeginArray();
    for (const UpDaemon& d : report.daemons) {
      json.BeginObject().Key("name").String(d.name).Key("pid").Int(d.pid).Key("where").String(d.where);
      json.Key("started").Bool(d.started).EndObject();
    }
    json.EndArray().EndObject();
    Print(json.Take());
  } else {
    std::string head = report.anything_started() ? "vrun is up" : "vrun is up already";
    Print(head + ": controller " + Escape(report.controller) + ", root " + Escape(report.root) + "\n" +
          (report.http.empty()
               ? ""
               : "  vctl dashboard       its pages, at " + Escape(report.http) + "; `vctl token` for programs\n") +
          "  vrun -- hostname     runs a command on a node\n"
          "  vctl status          what runs here; `vctl nodes`, `vctl jobs`\n"
          "  vctl down            stops all of it\n");
  }
  return 0;
}

Result<int> RunDown(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(DownReport report, BringDown(home, invocation.Has(kAll), Tell));
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("stopped").BeginArray();
    for (const std::string& name : report.stopped) json.String(name);
    json.EndArray().Key("unmounted").BeginArray();
    for (const std::string& mount : report.unmounted) json.String(mount);
    json.EndArray().EndObject();
    Print(json.Take());
  } else {
    Print(report.stopped.empty() ? "vrun is down already\n" : "vrun is down\n");
  }
  return 0;
}

}  // namespace

const CtlCommand kCtlUp{"up",       "",   "a whole cluster on this machine", kUpOptions, Completes::kNothing,
                        ValidateUp, RunUp};
const CtlCommand kCtlDown{"down",     "",     "stop what `vctl up` started", kDownOptions, Completes::kNothing,
                          NoOperands, RunDown};

}  // namespace vrun::cli
