// SPDX-License-Identifier: Apache-2.0
// vctl cache stat, verify, prune
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "base/escape.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/base/terminal.h"
#include "cli/base/values.h"
#include "cli/ctl/ctl.h"

namespace vrun::cli {
namespace {

enum Id { kNode, kTo };
constexpr OptionSpec kOptions[] = {
    {kNode, 0, "node", Argument::kRequired, "NODE", "only this node (default: all)", Completes::kNodes},
    {kTo, 0, "to", Argument::kRequired, "SIZE", "prune down to this, as in 16G (default: all that is not in use)",
     Completes::kMemory},
};

Status Validate(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  if (words.empty()) return Error(Code::kInvalid, "no action: write stat, verify or prune");
  if (words[0] != "stat" && words[0] != "verify" && words[0] != "prune") {
    return Error(Code::kInvalid, Escape(words[0]) + ": not one of stat, verify and prune");
  }
  if (words.size() > 1) return Error(Code::kInvalid, Escape(words[1]) + ": unexpected: name a node with --node");
  // An unset shell variable must not empty all caches.
  if (const auto node = invocation.Value(kNode); node && node->empty()) {
    return Error(Code::kInvalid, "--node: an empty name: leave it out for all nodes");
  }
  if (auto to = invocation.Value(kTo)) {
    if (words[0] != "prune") return Error(Code::kInvalid, "--to: only prune takes it");
    auto bytes = ParseMemory(*to);
    if (!bytes) return std::move(bytes).error().With("--to");
  }
  return {};
}

// Collects the nodes' answers; shows one line on the terminal while the nodes work.
class Answers {
 public:
  Answers() : terminal_(::isatty(2) == 1) {}
  ~Answers() { Erase(); }

  void Take(const v1::CacheAnswer& answer) {
    if (!answer.event().has_progress()) {
      progress_.erase(answer.node());
      last_.push_back(answer);
    } else {
      progress_[answer.node()] = answer.event().progress();
    }
    Draw();
  }
  // The last answer of every node, by name.
  std::vector<v1::CacheAnswer> Last() {
    Erase();
    std::sort(last_.begin(), last_.end(), [](const auto& a, const auto& b) { return a.node() < b.node(); });
    return last_;
  }

 private:
  void Draw() {
    if (!terminal_) return;
    Erase();
    std::string line;
    for (const auto& [node, p] : progress_) {
      line += (line.empty() ? "" : ", ") + Escape(node) + " " + std::to_string(p.objects()) + " of " +
              std::to_string(p.total_objects()) + ", " + FormatBytes(p.bytes());
    }
    if (line.empty()) return;
    line = "verifying: " + line;
    line.resize(std::min(line.size(), TerminalColumns(2) - 1));
    std::fprintf(stderr, "%s", line.c_str());
    drawn_ = true;
  }
  void Erase() {
    if (std::exchange(drawn_, false)) std::fprintf(stderr, "\r\x1b[K");
  }

  const bool terminal_;
  bool drawn_ = false;
  std::map<std::string, v1::CacheProgress> progress_;
  std::vector<v1::CacheAnswer> last_;
};

void WriteStat(const v1::CacheStat& s, JsonWriter* json) {
  json->Key("bytes").Uint(s.bytes()).Key("limit_bytes").Uint(s.limit_bytes()).Key("objects").Uint(s.objects());
  json->Key("hits").Uint(s.hits()).Key("misses").Uint(s.misses()).Key("corrupt_units").Uint(s.corrupt_units());
  json->Key("evictions").Uint(s.evictions()).Key("failed_writes").Uint(s.failed_writes());
  json->Key("fetched_bytes").Uint(s.fetched_bytes()).Key("disk_free_bytes").Uint(s.disk_free_bytes());
  json->Key("min_free_bytes").Uint(s.min_free_bytes()).Key("node_bytes").Uint(s.node_bytes());
  json->Key("node_limit_bytes").Uint(s.node_limit_bytes()).Key("peers").Uint(s.peers());
  json->Key("peer_fetched_bytes").Uint(s.peer_fetched_bytes()).Key("peer_served_bytes").Uint(s.peer_served_bytes());
  json->Key("peer_lies").Uint(s.peer_lies()).Key("peer_fallbacks").Uint(s.peer_fallbacks());
  if (!s.has_s3()) return;
  const v1::S3Stat& s3 = s.s3();
  json->Key("s3").BeginObject().Key("hit_units").Uint(s3.hit_units()).Key("miss_units").Uint(s3.miss_units());
  json->Key("read_bytes").Uint(s3.read_bytes()).Key("written_bytes").Uint(s3.written_bytes());
  json->Key("written_objects").Uint(s3.written_objects()).Key("corrupt_objects").Uint(s3.corrupt_objects());
  json->Key("dropped_objects").Uint(s3.dropped_objects()).Key("errors").Uint(s3.errors());
  json->Key("waiting_objects").Uint(s3.waiting_objects());
  json->Key("problem").String(s3.problem()).EndObject();
}

std::string AsJson(const std::vector<v1::CacheAnswer>& answers, const std::string& action) {
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("nodes").BeginArray();
  for (const v1::CacheAnswer& a : answers) {
    json.BeginObject().Key("node").String(a.node()).Key("pool").String(a.pool());
    if (a.event().has_error()) {
      const Error error = FromWire(a.event().error());
      json.Key("error").BeginObject().Key("code").String(CodeName(error.code()));
      json.Key("message").String(error.message()).EndObject().EndObject();
      continue;
    }
    const v1::CacheReport& report = a.event().report();
    WriteStat(report.stat(), &json);
    if (action == "verify") {
      const v1::CacheProgress& v = report.verified();
      json.Key("verified").BeginObject().Key("objects").Uint(v.objects()).Key("units").Uint(v.units());
      json.Key("bytes").Uint(v.bytes()).Key("corrupt_units").Uint(v.corrupt_units()).EndObject();
    }
    if (action == "prune") json.Key("freed_bytes").Uint(report.freed_bytes());
    json.EndObject();
  }
  json.EndArray().EndObject();
  return json.Take();
}

std::vector<std::string> Columns(const std::string& action, bool wide) {
  if (action == "verify") return {"NODE", "OBJECTS", "UNITS", "READ", "DAMAGED"};
  if (action == "prune") return {"NODE", "FREED", "SIZE", "OBJECTS"};
  std::vector<std::string> columns{"NODE",   "SIZE",    "LIMIT",   "OBJECTS",  "HITS",
                                   "MISSES", "DAMAGED", "EVICTED", "DISK FREE"};
  if (wide)
    columns.insert(columns.end(), {"KEEPS FREE", "UNWRITTEN", "FETCHED", "ALL HOMES", "OF", "PEERS", "FROM PEERS",
                                   "TO PEERS", "PEER LIES", "S3 HITS", "S3 MISSES", "S3 READ", "S3 WRITTEN"});
  return columns;
}

std::vector<std::string> Cells(const v1::CacheAnswer& answer, const std::string& action, bool wide) {
  const v1::CacheReport& report = answer.event().report();
  const v1::CacheStat& s = report.stat();
  auto count = [](uint64_t n) { return std::to_string(n); };
  if (action == "verify") {
    const v1::CacheProgress& v = report.verified();
    return {answer.node(), count(v.objects()), count(v.units()), FormatBytes(v.bytes()), count(v.corrupt_units())};
  }
  if (action == "prune") {
    return {answer.node(), FormatBytes(report.freed_bytes()), FormatBytes(s.bytes()), count(s.objects())};
  }
  std::vector<std::string> cells{answer.node(),
                                 FormatBytes(s.bytes()),
                                 FormatBytes(s.limit_bytes()),
                                 count(s.objects()),
                                 count(s.hits()),
                                 count(s.misses()),
                                 count(s.corrupt_units()),
                                 count(s.evictions()),
                                 FormatBytes(s.disk_free_bytes())};
  if (wide) {
    cells.insert(cells.end(),
                 {FormatBytes(s.min_free_bytes()), count(s.failed_writes()), FormatBytes(s.fetched_bytes()),
                  FormatBytes(s.node_bytes()), FormatBytes(s.node_limit_bytes()), count(s.peers()),
                  FormatBytes(s.peer_fetched_bytes()), FormatBytes(s.peer_served_bytes()), count(s.peer_lies())});
    if (s.has_s3()) {
      cells.insert(cells.end(), {count(s.s3().hit_units()), count(s.s3().miss_units()),
                                 FormatBytes(s.s3().read_bytes()), FormatBytes(s.s3().written_bytes())});
    } else {
      cells.insert(cells.end(), {"-", "-", "-", "-"});
    }
  }
  return cells;
}

Status Collect(const CtlInvocation& invocation, Answers* answers) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::ClientMessage message;
  auto* query = message.mutable_query()->mutable_cache();
  query->set_node(invocation.Value(kNode).value_or(""));
  const std::string& action = invocation.words.operands[0];
  if (action == "stat") query->mutable_request()->mutable_stat();
  if (action == "verify") query->mutable_request()->mutable_verify();
  if (action == "prune") {
    uint64_t to = 0;
    if (auto text = invocation.Value(kTo)) {
      VRUN_ASSIGN(to, ParseMemory(*text));
    }
    query->mutable_request()->mutable_prune()->set_to_bytes(to);
  }
  VRUN_ASSIGN(UniqueFd socket, home.ConnectOrStart());
  VRUN_TRY(SendMessage(socket.get(), message));
  for (;;) {
    VRUN_ASSIGN(v1::HomeMessage answer, ReceiveMessage(socket.get(), action != "stat"));
    if (answer.has_error()) return FromWire(answer.error());
    if (answer.has_done()) return {};
    if (!answer.has_cache()) return Error(Code::kInternal, "home: unexpected answer instead of cache statistics");
    answers->Take(answer.cache());
  }
}

Result<int> Run(const CtlInvocation& invocation) {
  Answers answers;
  VRUN_TRY(Collect(invocation, &answers));
  const std::vector<v1::CacheAnswer> last = answers.Last();
  const std::string& action = invocation.words.operands[0];
  const v1::CacheAnswer* failed = nullptr;
  for (const v1::CacheAnswer& a : last) {
    if (a.event().has_error()) failed = &a;
  }
  // For a single node only the error remains to be printed.
  if (failed && last.size() == 1 && invocation.Has(kNode)) return FromWire(failed->event().error());
  if (invocation.json()) {
    Print(AsJson(last, action));
    return failed ? 1 : 0;
  }
  const bool wide = invocation.format == OutputFormat::kWide;
  Table table(Columns(action, wide));
  std::string names;
  for (const v1::CacheAnswer& a : last) {
    if (a.event().has_error()) continue;
    table.Add(Cells(a, action, wide));
    names += Escape(a.node()) + "\n";
  }
  Print(invocation.format == OutputFormat::kName ? names : table.Format(invocation.headers));
  for (const v1::CacheAnswer& a : last) {
    if (a.event().has_error()) std::fprintf(stderr, "vctl: %s\n", FromWire(a.event().error()).message().c_str());
    const std::string& problem = a.event().report().stat().s3().problem();
    if (!problem.empty())
      std::fprintf(stderr, "vctl: node %s: %s\n", Escape(a.node()).c_str(), Escape(problem).c_str());
  }
  return failed ? 1 : 0;
}

}  // namespace

const CtlCommand kCtlCache{"cache",  "stat|verify|prune",      "what the nodes keep of this home's files",
                           kOptions, Completes::kCacheActions, Validate,
                           Run};

}  // namespace vrun::cli
