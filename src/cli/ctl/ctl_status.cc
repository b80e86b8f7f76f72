// SPDX-License-Identifier: Apache-2.0
// vctl status
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/ctl/ctl.h"
#include "cli/host/local_cluster.h"

namespace vrun::cli {
namespace {

struct Daemons {
  std::optional<ProcessId> controller, snapshots, node;
  std::string http;  // of this controller; "": none
};

std::string AsJson(const Places& places, const Daemons& daemons, const v1::StatusAnswer* home) {
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("home_running").Bool(home != nullptr);
  v1::StatusAnswer none;
  const v1::StatusAnswer& s = home == nullptr ? none : *home;
  json.Key("version").String(s.version()).Key("pid").Int(s.pid()).Key("root").String(s.root());
  json.Key("entries").Uint(s.entries()).Key("bytes").Uint(s.bytes()).Key("scanned").Bool(s.scanned());
  json.Key("watch").String(s.watch()).Key("controller").String(s.controller());
  json.Key("controller_connected").Bool(s.controller_connected());
  json.Key("controller_error").String(s.controller_error()).Key("running_jobs").Uint(s.running_jobs());
  json.Key("served_bytes").Uint(s.served_bytes());
  json.Key("metadata_requests").Uint(s.metadata_requests());
  const v1::FrozenState& frozen = s.frozen();
  json.Key("frozen").BeginObject().Key("jobs").Uint(frozen.jobs()).Key("held_files").Uint(frozen.held_files());
  json.Key("kept_files").Uint(frozen.old_files()).Key("kept_bytes").Uint(frozen.kept_bytes());
  json.Key("lost_files").Uint(frozen.lost_files()).Key("last_lost").String(frozen.last_lost()).EndObject();
  json.Key("last_scan_s").Seconds(static_cast<int64_t>(s.last_scan_s() * 1e6));
  auto pid = [&](const char* name, const std::optional<ProcessId>& process) {
    json.Key(name);
    process ? json.Int(process->pid) : json.Null();
  };
  pid("local_controller_pid", daemons.controller);
  json.Key("http").String(daemons.http);
  pid("local_snapshots_pid", daemons.snapshots);
  pid("local_node_pid", daemons.node);
  json.Key("config").String(places.config_file).Key("logs").String(places.log_dir).EndObject();
  return json.Take();
}

std::string FrozenText(const v1::FrozenState& frozen) {
  std::string text = "the roots of " + std::to_string(frozen.jobs()) + " jobs: " + std::to_string(frozen.held_files()) +
                     " files held, " + FormatBytes(frozen.kept_bytes()) + " in " + std::to_string(frozen.old_files()) +
                     " copies";
  if (frozen.lost_files() == 0) return text;
  return text + ", " + std::to_string(frozen.lost_files()) + " lost: " + Escape(frozen.last_lost());
}

std::string AsText(const Places& places, const Daemons& daemons, const v1::StatusAnswer* home) {
  std::string out;
  auto line = [&](std::string_view name, const std::string& value) {
    std::string left = std::string(name) + ":";
    left.resize(13, ' ');
    out += left + value + "\n";
  };
  if (home == nullptr) {
    line("home", "not running (any vrun starts it)");
  } else {
    line("home", "running, pid " + std::to_string(home->pid()) + ", " + std::to_string(home->running_jobs()) +
                     " attached jobs, " + FormatBytes(home->served_bytes()) + " served");
    line("root", Escape(home->root()) + ", " +
                     (home->scanned() ? std::to_string(home->entries()) + " entries, " + FormatBytes(home->bytes())
                                      : std::string("being scanned")) +
                     ", watched by " + Escape(home->watch()));
    if (home->has_frozen()) line("frozen", FrozenText(home->frozen()));
    line("controller",
         Escape(home->controller()) + ", " +
             (home->controller_connected() ? std::string("connected")
                                           : "not connected" + (home->controller_error().empty()
                                                                    ? std::string()
                                                                    : " (" + Escape(home->controller_error()) + ")")));
  }
  auto daemon = [](const std::optional<ProcessId>& p) {
    return p ? "running, pid " + std::to_string(p->pid) : std::string("not started by `vctl up`");
  };
  line("here", "controller " + daemon(daemons.controller) + "; snapshots " + daemon(daemons.snapshots) + "; node " +
                   daemon(daemons.node));
  if (!daemons.http.empty()) line("http", Escape(daemons.http) + "; `vctl token create NAME` lets you in");
  line("config", Escape(places.config_file));
  line("logs", Escape(places.log_dir));
  return out;
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  ClusterFiles files(home.places());
  Daemons daemons{files.Running("controller"), files.Running("snapshots"), files.Running("node"), ""};
  if (daemons.controller) {
    daemons.http = ReadFile(files.http_file(), 4096).value_or("");
    daemons.http = daemons.http.substr(0, daemons.http.find('\n'));
  }
  v1::Query query;
  query.mutable_status();
  auto answer = Ask(home, query, false);  // a status query must not start anything
  const v1::StatusAnswer* status = answer && answer->has_status() ? &answer->status() : nullptr;
  Print(invocation.json() ? AsJson(home.places(), daemons, status) : AsText(home.places(), daemons, status));
  return status != nullptr && status->controller_connected() ? 0 : 1;
}

}  // namespace

const CtlCommand kCtlStatus{"status",   "", "what runs here and how it is connected", {}, Completes::kNothing,
                            NoOperands, Run};

}  // namespace vrun::cli
