// SPDX-License-Identifier: Apache-2.0
#include "cli/ctl/job_view.h"

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/escape.h"
#include "cli/array/job_ids.h"
#include "cli/base/away_text.h"
#include "cli/base/exit_status.h"
#include "cli/base/table.h"
#include "cli/gpus/gpu_view.h"
#include "cli/isolation/secret_options.h"
#include "cli/notify/notify_options.h"
#include "cli/request/gpu_options.h"
#include "cli/request/scheduling.h"
#include "cli/request/wishes.h"
#include "cli/usage/usage_view.h"
#include "jobs/array.h"
#include "jobs/gang.h"
#include "ports/published_port.h"

namespace vrun::cli {
namespace {

std::string TimeCell(int64_t micros) { return micros == 0 ? "" : FormatRfc3339(micros); }

std::string CommandCell(const v1::JobInfo& job) {
  std::string out;
  for (const std::string& word : job.argv()) out += (out.empty() ? "" : " ") + ShellQuote(word);
  return out;
}

std::string CpusCell(uint32_t milli) {
  if (milli % 1000 == 0) return std::to_string(milli / 1000);
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%u.%03u", milli / 1000, milli % 1000);
  std::string text = buffer;
  while (text.back() == '0') text.pop_back();
  return text;
}

// Of a node: whole GPUs, and parts of others.
std::string UsedGpusCell(const v1::Resources& r) { return CpusCell(r.gpus() * 1000 + r.gpu_milli()); }

std::string ExitCell(const v1::JobInfo& job) { return job.has_exit() ? std::to_string(ExitStatus(job)) : ""; }

// Files that both the job and home changed.
std::string ConflictsCell(const v1::ExitRecord& exit) {
  if (exit.conflicts() == 0) return "";
  std::string out = std::to_string(exit.conflicts()) + ", changed at home meanwhile: ";
  for (int i = 0; i < exit.conflict_size(); ++i) out += (i > 0 ? ", " : "") + Escape(exit.conflict(i));
  return out + (exit.conflicts() > static_cast<uint64_t>(exit.conflict_size()) ? ", ..." : "");
}

const char* KeptStateName(const v1::Kept& kept) {
  switch (kept.state()) {
    case v1::KEPT_THERE: return "kept";
    case v1::KEPT_PULLED: return "pulled";
    case v1::KEPT_DROPPED: return "dropped";
    case v1::KEPT_EXPIRED: return "expired";
    default: return "unknown";
  }
}

void WriteKept(const v1::Kept& kept, JsonWriter* json) {
  json->BeginObject().Key("attempt").Uint(kept.attempt()).Key("node").String(kept.node());
  json->Key("state").String(KeptStateName(kept)).Key("files").Uint(kept.files()).Key("bytes").Uint(kept.bytes());
  json->Key("kept").Time(kept.kept_us()).Key("until").Time(kept.until_us()).Key("gone").Time(kept.gone_us());
  json->Key("problem").String(kept.problem()).EndObject();
}

template <typename Texts>
std::string Listed(const Texts& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ",") + text;
  return out;
}

template <typename Texts>
std::string Words(const Texts& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : " ") + ShellQuote(text);
  return out;
}

// "zone-a/block-2/rack-7/island-1": what is known, the largest first.
std::string PlaceCell(const v1::NodeFacts& facts) {
  std::string out;
  for (const std::string* name : {&facts.zone(), &facts.block(), &facts.rack(), &facts.island()}) {
    if (!name->empty()) out += (out.empty() ? "" : "/") + *name;
  }
  return out;
}

std::string TopologyCell(const v1::Scheduling& s) {
  std::string out;
  const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : ", ") + text; };
  if (s.required_level() != 0) add("within one " + LevelName(s.required_level()));
  if (s.preferred_level() != 0) add("within one " + LevelName(s.preferred_level()) + " if possible");
  if (s.segment() > 0) add(std::to_string(s.segment()) + " pods within one " + LevelName(s.segment_level()));
  if (s.spread()) add("over many " + LevelName(s.segment_level()) + "s");
  return out;
}

std::string CheckpointCell(const v1::Scheduling& s) {
  std::string out;
  const auto add = [&out](const char* what, double seconds) {
    out += (out.empty() ? "" : ", ") + std::string(what) + " " + FormatDuration(static_cast<int64_t>(seconds * 1e6));
  };
  if (s.saves()) out = "on signal " + std::to_string(s.signal());
  if (s.has_save_seconds()) add("takes", s.save_seconds());
  if (s.has_restore_seconds()) add("restore", s.restore_seconds());
  if (s.save_period_seconds() > 0) add("by itself every", s.save_period_seconds());
  return out;
}

}  // namespace

std::string FormatKept(const v1::Kept& kept) {
  if (!kept.problem().empty()) return SafeLine(kept.problem());
  if (kept.entries() == 0) return "nothing was written";
  const std::string what =
      std::to_string(kept.files()) + (kept.files() == 1 ? " file, " : " files, ") + FormatBytes(kept.bytes());
  switch (kept.state()) {
    case v1::KEPT_THERE: return "kept on " + Escape(kept.node()) + ": " + what + ", until " + TimeCell(kept.until_us());
    case v1::KEPT_PULLED: return "pulled: " + what + ", " + TimeCell(kept.gone_us());
    case v1::KEPT_DROPPED: return "dropped: " + what + ", " + TimeCell(kept.gone_us());
    default: return "expired on " + Escape(kept.node()) + ": " + what + ", " + TimeCell(kept.gone_us());
  }
}

int64_t RanMicros(const v1::JobInfo& job) {
  if (job.started_us() == 0) return 0;
  int64_t end = job.ended_us() != 0 ? job.ended_us() : IsOver(job.state()) ? job.started_us() : WallMicros();
  return std::max<int64_t>(0, end - job.started_us());
}

void WriteResources(const v1::Resources& r, JsonWriter* json) {
  json->BeginObject().Key("milli_cpus").Uint(r.milli_cpus()).Key("memory_bytes").Uint(r.memory_bytes());
  json->Key("gpus").Uint(r.gpus()).Key("gpu_type").String(r.gpu_type());
  json->Key("gpu_share").Number(r.gpu_milli() / 1000.0, 3).Key("gpu_burst").Number(r.gpu_burst_milli() / 1000.0, 3);
  json->Key("gpu_sharing");
  r.gpu_milli() == 0 ? json->Null() : json->String(r.gpu_sharing() == v1::GPU_TIME_SLICE ? "time" : "mps");
  json->Key("mig_profile");
  r.mig_profile().empty() ? json->Null() : json->String(r.mig_profile());
  json->Key("gpu_memory_bytes").Uint(r.gpu_memory_bytes()).EndObject();
}

namespace {

// The job goes on, or has gone on, without it.
bool HasLeft(const v1::PodInfo& pod) { return pod.exit().kind() == v1::ExitRecord::LEFT_GANG; }

std::string_view StateOfPod(const v1::PodInfo& pod) { return HasLeft(pod) ? "LEFT" : StateName(pod.state()); }

void WritePods(const v1::JobInfo& job, JsonWriter* json) {
  const uint32_t ranks = RanksPerPod(job.gang());
  json->BeginArray();
  for (const v1::PodInfo& pod : job.pods()) {
    json->BeginObject().Key("pod").Uint(pod.pod()).Key("node").String(pod.node());
    json->Key("state").String(StateOfPod(pod)).Key("gpu_mask").Uint(pod.gpu_mask()).Key("ranks").BeginArray();
    if (pod.has_exit()) {
      for (const v1::RankExit& rank : RanksOf(pod.exit(), pod.pod() * ranks)) {
        json->BeginObject().Key("rank").Uint(rank.rank()).Key("exit").Int(RankStatus(rank));
        json->Key("killed").Bool(rank.killed()).EndObject();
      }
    }
    json->EndArray().EndObject();
  }
  json->EndArray();
}

// The node of a job, or the first one of a gang and how many more there are.
std::string NodeCell(const v1::JobInfo& job) {
  const auto there = std::count_if(job.pods().begin(), job.pods().end(), [](const auto& pod) { return !HasLeft(pod); });
  const uint32_t pods = job.pods_size() > 0 ? static_cast<uint32_t>(there) : MostPods(job.gang());
  const std::string& node = job.pods_size() > 0 ? job.pods(0).node() : job.node();
  return pods < 2 || node.empty() ? job.node() : node + " +" + std::to_string(pods - 1);
}

// "2 to 8 nodes, 4 processes on each"; "" for one process.
std::string ShapeCell(const v1::Gang& gang) {
  if (!IsGang(gang)) return "";
  const uint32_t pods = MostPods(gang);
  const uint32_t each = gang.ranks_per_pod();
  std::string out = (IsElastic(gang) ? std::to_string(gang.min_pods()) + " to " : "") + std::to_string(pods) +
                    (pods == 1 ? " node" : " nodes");
  if (each > 1) out += ", " + std::to_string(each) + " processes on each";
  if (gang.launcher()) out += ", started by the command";
  return out;
}

std::string PodCell(const v1::PodInfo& pod, uint32_t ranks) {
  std::string out = std::string(StateOfPod(pod)) + " on " + Escape(pod.node());
  if (!pod.has_exit()) return out;
  std::string failed;
  for (const v1::RankExit& rank : RanksOf(pod.exit(), pod.pod() * ranks)) {
    const std::string text = DescribeFailure(rank);
    if (!text.empty()) failed += (failed.empty() ? ": " : "; ") + text;
  }
  if (failed.empty() && !pod.exit().reason().empty()) failed = ": " + Escape(pod.exit().reason());
  return out + failed;
}

void WriteArray(const v1::JobInfo& job, JsonWriter* json) {
  json->Key("array");
  job.array() != 0 ? json->Uint(job.array()) : json->Null();
  json->Key("array_index");
  job.array() != 0 ? json->Uint(job.array_index()) : json->Null();
  json->Key("variables").BeginObject();
  for (const std::string& variable : job.variables()) {
    const size_t equals = std::min(variable.find('='), variable.size());
    json->Key(variable.substr(0, equals))
        .String(std::string_view(variable).substr(std::min(equals + 1, variable.size())));
  }
  json->EndObject().Key("elements");
  if (!job.has_array_info()) {
    json->Null();
    return;
  }
  const v1::ArrayInfo& info = job.array_info();
  json->BeginObject().Key("indexes").String(RangesText(info.array().ranges()));
  json->Key("count").Uint(ElementCount(info.array())).Key("most_running");
  info.array().most_running() != 0 ? json->Uint(info.array().most_running()) : json->Null();
  json->Key("waiting").Uint(info.waiting()).Key("running").Uint(info.running());
  json->Key("completed").Uint(info.completed()).Key("failed").Uint(info.failed()).EndObject();
}

}  // namespace

void WriteJob(const v1::JobInfo& job, JsonWriter* json) {
  json->BeginObject().Key("job").Uint(job.job()).Key("name").String(job.name());
  json->Key("state").String(StateName(job.state())).Key("reason").String(EndReason(job));
  json->Key("pool").String(job.pool()).Key("user").String(job.user()).Key("node").String(job.node());
  json->Key("attempt").Uint(job.attempt());
  WriteArray(job, json);
  json->Key("submitted").Time(job.submitted_us()).Key("started").Time(job.started_us());
  json->Key("ended").Time(job.ended_us()).Key("ran_s").Seconds(RanMicros(job));
  json->Key("argv").BeginArray();
  for (const std::string& word : job.argv()) json->String(word);
  json->EndArray().Key("directory").String(job.directory());
  json->Key("snapshot").String(job.snapshot());
  json->Key("view").String(job.live_view() ? "live" : "frozen").Key("view_state").String(job.live_state());
  json->Key("network").String(job.network() == v1::NETWORK_PRIVATE ? "private" : "host");
  json->Key("ports").BeginArray();
  for (const v1::PublishedPort& port : job.ports()) {
    json->BeginObject().Key("home").String(HomeAddressText(port)).Key("job").Uint(port.pod_port()).EndObject();
  }
  json->EndArray().Key("secrets").BeginArray();
  for (const v1::SecretUse& use : job.secrets()) {
    json->BeginObject().Key("name").String(use.name()).Key("variable").String(use.variable());
    json->Key("path").String(use.path()).EndObject();
  }
  json->EndArray();
  json->Key("notify");
  if (job.has_notify()) {
    json->BeginObject().Key("events").BeginArray();
    for (const std::string& event : job.notify().events()) json->String(event);
    json->EndArray().Key("mail").String(job.notify().mail()).Key("webhook").String(job.notify().webhook()).EndObject();
  } else {
    json->Null();
  }
  if (job.has_away()) {
    json->Key("away").BeginObject().Key("safe").Bool(job.away().safe());
    json->Key("files_left").Uint(job.away().files_left()).Key("bytes_left").Uint(job.away().bytes_left());
    json->Key("bytes").Uint(job.away().bytes()).Key("problem").String(job.away().problem()).EndObject();
  }
  if (job.keep_writes() || job.has_away()) {
    json->Key("kept").BeginArray();
    for (const v1::Kept& kept : job.kept()) WriteKept(kept, json);
    json->EndArray();
  }
  json->Key("resources");
  WriteResources(job.resources(), json);
  json->Key("gpu_usage");
  WriteUse(job, json);
  json->Key("exit");
  job.has_exit() ? json->Int(ExitStatus(job)) : json->Null();
  json->Key("signal");
  job.has_exit() && job.exit().signal() != 0 ? json->Int(job.exit().signal()) : json->Null();
  json->Key("conflicts").Uint(job.exit().conflicts()).Key("conflict_paths").BeginArray();
  for (const std::string& path : job.exit().conflict()) json->String(path);
  json->EndArray();
  json->Key("cpu_s").Seconds(static_cast<int64_t>(job.exit().cpu_us()));
  json->Key("peak_memory_bytes").Uint(job.exit().peak_memory_bytes()).Key("oom_kills").Uint(job.exit().oom_kills());
  const v1::Scheduling& s = job.scheduling();
  json->Key("team").String(s.team()).Key("class").String(JobClassName(s.class_())).Key("requeue").Bool(s.requeue());
  json->Key("held").Bool(s.hold()).Key("saved").Time(job.saved_us()).Key("lost_s").Seconds(job.lost_us());
  const auto list = [json](const char* key, const auto& texts) {
    json->Key(key).BeginArray();
    for (const std::string& text : texts) json->String(text);
    json->EndArray();
  };
  list("labels", s.labels());
  list("tolerations", s.tolerations());
  list("nodelist", s.nodes());
  list("excluded_nodes", s.excluded_nodes());
  list("gpu_types", s.gpu_types());
  json->Key("project").String(s.project());
  if (job.has_cost()) WriteCost(job.cost(), json);
  json->Key("queue_position");
  job.queue_position() != 0 ? json->Uint(job.queue_position()) : json->Null();
  if (IsGang(job.gang())) {
    if (IsElastic(job.gang())) json->Key("min_nodes").Uint(job.gang().min_pods());
    json->Key("nodes").Uint(MostPods(job.gang())).Key("tasks_per_node").Uint(job.gang().ranks_per_pod());
    json->Key("pods");
    WritePods(job, json);
  }
  if (job.attempts_size() > 0) {
    json->Key("attempts");
    WriteAttempts(job.attempts(), json);
  }
  json->EndObject();
}

void WriteAttempts(const google::protobuf::RepeatedPtrField<v1::AttemptInfo>& attempts, JsonWriter* json) {
  json->BeginArray();
  for (const v1::AttemptInfo& a : attempts) {
    json->BeginObject().Key("attempt").Uint(a.attempt()).Key("node").String(a.node());
    json->Key("state").String(StateName(a.state())).Key("placed").Time(a.placed_us()).Key("ended").Time(a.ended_us());
    json->Key("reason").String(a.reason()).EndObject();
  }
  json->EndArray();
}

void WriteNode(const v1::NodeInfo& node, JsonWriter* json) {
  json->BeginObject().Key("name").String(node.name()).Key("pool").String(node.pool());
  json->Key("state").String(node.state()).Key("jobs").Uint(node.jobs()).Key("total");
  WriteResources(node.total(), json);
  json->Key("used");
  WriteResources(node.used(), json);
  json->Key("addresses").BeginArray();
  for (const std::string& a : node.addresses()) json->String(a);
  json->EndArray().Key("last_seen").Time(node.last_seen_us()).Key("version").String(node.version());
  json->Key("reason").String(node.reason());
  const v1::NodeFacts& facts = node.facts();
  const auto list = [json](const char* key, const auto& texts) {
    json->Key(key).BeginArray();
    for (const std::string& text : texts) json->String(text);
    json->EndArray();
  };
  list("labels", facts.labels());
  list("taints", facts.taints());
  json->Key("island").String(facts.island()).Key("rack").String(facts.rack()).Key("block").String(facts.block());
  json->Key("zone").String(facts.zone()).Key("gpu_groups").BeginArray();
  for (const uint32_t group : facts.gpu_groups()) json->Uint(group);
  json->EndArray().Key("bad_gpus").Uint(facts.bad_gpus()).Key("nics").Uint(facts.nics());
  json->Key("price").Number(facts.price_milli() == 0 ? 1 : facts.price_milli() / 1000.0, 3).EndObject();
}

std::string FormatJobs(const v1::JobList& jobs, OutputFormat format, bool headers) {
  if (format == OutputFormat::kJson) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("jobs").BeginArray();
    for (const v1::JobInfo& job : jobs.jobs()) WriteJob(job, &json);
    json.EndArray().EndObject();
    return json.Take();
  }
  std::string out;
  if (format == OutputFormat::kName) {
    for (const v1::JobInfo& job : jobs.jobs()) out += JobName(job) + "\n";
    return out;
  }
  bool wide = format == OutputFormat::kWide;
  std::vector<std::string> columns{"JOB", "NAME", "POOL", "STATE", "NODE", "SUBMITTED", "RAN", "EXIT", "REASON"};
  if (wide) columns.insert(columns.end(), {"USER", "CPUS", "MEMORY", "GPUS", "DIRECTORY", "COMMAND"});
  Table table(std::move(columns));
  for (const v1::JobInfo& job : jobs.jobs()) {
    std::vector<std::string> cells{JobText(job),
                                   job.name(),
                                   job.pool(),
                                   std::string(StateName(job.state())),
                                   NodeCell(job),
                                   TimeCell(job.submitted_us()),
                                   FormatDuration(RanMicros(job)),
                                   ExitCell(job),
                                   EndReason(job)};
    if (wide) {
      const v1::Resources& r = job.resources();
      cells.insert(cells.end(), {job.user(), CpusCell(r.milli_cpus()), FormatBytes(r.memory_bytes()), GpusText(r),
                                 job.directory(), CommandCell(job)});
    }
    table.Add(std::move(cells));
  }
  return table.Format(headers);
}

std::string FormatJob(const v1::JobInfo& job, OutputFormat format) {
  if (format == OutputFormat::kName) return JobName(job) + "\n";
  if (format == OutputFormat::kJson) {
    // The job's own object, with the schema version added to its fields.
    JsonWriter body;
    WriteJob(job, &body);
    std::string text = body.Take();
    return "{\n  \"schema\": " + std::to_string(kJsonSchema) + "," + text.substr(1);
  }
  const v1::Resources& r = job.resources();
  std::string out;
  auto line = [&](std::string_view name, const std::string& value) {
    if (value.empty()) return;
    std::string left = std::string(name) + ":";
    left.resize(12, ' ');
    out += left + value + "\n";
  };
  line("job", JobText(job));
  if (job.array() != 0 && job.job() != job.array()) line("id", std::to_string(job.job()));
  if (job.has_array_info()) line("elements", CountsText(job.array_info()));
  line("name", Escape(job.name()));
  line("state", std::string(StateName(job.state())));
  line("reason", EndReason(job));
  line("pool", Escape(job.pool()));
  line("user", Escape(job.user()));
  line("variables", Escape(Words(job.variables())));
  line("node", Escape(NodeCell(job)));
  line("shape", ShapeCell(job.gang()));
  for (const v1::PodInfo& pod : job.pods()) {
    if (job.pods_size() > 1) line("pod " + std::to_string(pod.pod()), PodCell(pod, RanksPerPod(job.gang())));
  }
  if (!job.snapshot().starts_with(".")) line("snapshot", Escape(job.snapshot()));
  if (job.has_away()) {
    line("away",
         AwayText(job.away()) + (job.away().problem().empty() ? "" : " (" + SafeLine(job.away().problem()) + ")"));
  }
  line("root", Escape(job.frozen()));
  if (job.live_view()) line("view", job.live_state().empty() ? "live" : "live, " + Escape(job.live_state()));
  for (const v1::SecretUse& use : job.secrets()) line("secret", SecretText(use));
  if (job.network() == v1::NETWORK_PRIVATE) line("network", "private");
  for (const v1::PublishedPort& port : job.ports()) line("port", PublishedPortText(port));
  line("notify", NotifyText(job.notify()));
  if (job.keep_writes() && job.kept().empty()) line("writes", "kept on its node when it has ended");
  for (const v1::Kept& kept : job.kept()) line("writes", FormatKept(kept));
  line("submitted", TimeCell(job.submitted_us()));
  line("started", TimeCell(job.started_us()));
  line("ended", TimeCell(job.ended_us()));
  line("ran", FormatDuration(RanMicros(job)));
  line("exit", ExitCell(job));
  line("conflicts", ConflictsCell(job.exit()));
  line("command", CommandCell(job));
  line("directory", Escape(job.directory()));
  line("cpus", CpusCell(r.milli_cpus()));
  line("memory", r.memory_bytes() == 0 ? "no limit" : FormatBytes(r.memory_bytes()));
  line("gpus", GpusText(r) +
                   (r.gpu_milli() == 0                      ? ""
                    : r.gpu_sharing() == v1::GPU_TIME_SLICE ? " of one, in turns with others"
                                                            : " of one, by MPS") +
                   (r.gpu_memory_bytes() > 0 && KindOf(r) != GpuKind::kByMemory
                        ? ", with " + FormatBytes(r.gpu_memory_bytes()) + " each"
                        : ""));
  line("GPU use", UseText(job));
  const v1::Scheduling& s = job.scheduling();
  line("team", Escape(s.team()));
  line("project", Escape(s.project()));
  line("class", JobClassName(s.class_()) + (s.requeue() ? ", may be preempted" : ""));
  line("constraint", Escape(Listed(s.labels())));
  line("tolerates", Escape(Listed(s.tolerations())));
  line("gpu types", Escape(Listed(s.gpu_types())));
  line("nodelist", Escape(Listed(s.nodes())));
  line("excludes", Escape(Listed(s.excluded_nodes())));
  line("topology", TopologyCell(s));
  line("checkpoint", CheckpointCell(s));
  line("saved", TimeCell(job.saved_us()));
  if (job.lost_us() > 0) line("lost", FormatDuration(job.lost_us()) + " of run time, repeated or to be repeated");
  if (job.has_cost()) {
    line("cost", CostText(job.cost()));
    line("wasted", WasteText(job.cost()));
  }
  if (job.attempts_size() < 2) return out;
  for (const v1::AttemptInfo& a : job.attempts()) {
    line("attempt " + std::to_string(a.attempt()), std::string(StateName(a.state())) + " on " + Escape(a.node()) +
                                                       (a.reason().empty() ? "" : ": " + Escape(a.reason())));
  }
  return out;
}

namespace {

// The average over its GPUs, of those that are idle too; "" if nobody meters them.
std::string GpuUseCell(const v1::NodeInfo& node) {
  uint64_t sum = 0;
  bool known = false;
  for (const v1::GpuUser& user : node.gpu_users()) {
    known = known || user.has_usage();
    sum += user.usage().utilization_percent();
  }
  return !known || node.total().gpus() == 0 ? "" : std::to_string(sum / node.total().gpus()) + " %";
}

std::string NumbersOf(uint32_t mask) {
  std::string text;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0) text += (text.empty() ? "" : ",") + std::to_string(i);
  }
  return text;
}

// "80G each, near 0,1 2,3, MIG 3, out of service 0"; "" if nobody knows more than their number.
std::string GpuFactsCell(const v1::NodeInfo& node) {
  const v1::NodeFacts& facts = node.facts();
  uint32_t mig = 0;
  for (int i = 0; i < std::min(facts.gpus_size(), 32); ++i) mig |= static_cast<uint32_t>(facts.gpus(i).mig()) << i;
  std::string text, groups;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : ", ") + more; };
  if (node.total().gpu_memory_bytes() > 0) add(FormatBytes(node.total().gpu_memory_bytes()) + " each");
  for (const uint32_t group : facts.gpu_groups()) groups += " " + NumbersOf(group);
  if (facts.gpu_groups_size() > 1) add("near" + groups);
  if (mig != 0) add("MIG " + NumbersOf(mig));
  if (facts.bad_gpus() != 0) add("out of service " + NumbersOf(facts.bad_gpus()));
  return text;
}

}  // namespace

std::string FormatNodes(const v1::NodeList& nodes, OutputFormat format, bool headers) {
  if (format == OutputFormat::kJson) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("nodes").BeginArray();
    for (const v1::NodeInfo& node : nodes.nodes()) WriteNode(node, &json);
    json.EndArray().EndObject();
    return json.Take();
  }
  std::string out;
  if (format == OutputFormat::kName) {
    for (const v1::NodeInfo& node : nodes.nodes()) out += Escape(node.name()) + "\n";
    return out;
  }
  bool wide = format == OutputFormat::kWide;
  std::vector<std::string> columns{"NODE", "POOL", "STATE", "JOBS", "CPUS", "MEMORY", "GPUS"};
  if (wide) {
    columns.insert(columns.end(), {"GPU UTIL", "GPU FACTS", "LAST SEEN", "ADDRESSES", "VERSION", "PLACE", "LABELS",
                                   "TAINTS", "REASON"});
  }
  Table table(std::move(columns));
  for (const v1::NodeInfo& node : nodes.nodes()) {
    const v1::Resources &used = node.used(), &total = node.total();
    std::vector<std::string> cells{node.name(),
                                   node.pool(),
                                   node.state(),
                                   std::to_string(node.jobs()),
                                   CpusCell(used.milli_cpus()) + "/" + CpusCell(total.milli_cpus()),
                                   FormatBytes(used.memory_bytes()) + "/" + FormatBytes(total.memory_bytes()),
                                   UsedGpusCell(used) + "/" + GpusText(total)};
    if (wide) {
      std::string addresses;
      for (const std::string& a : node.addresses()) addresses += (addresses.empty() ? "" : ",") + a;
      cells.insert(cells.end(), {GpuUseCell(node), GpuFactsCell(node), TimeCell(node.last_seen_us()), addresses,
                                 node.version(), PlaceCell(node.facts()), Listed(node.facts().labels()),
                                 Listed(node.facts().taints()), node.reason()});
    }
    table.Add(std::move(cells));
  }
  return table.Format(headers);
}

}  // namespace vrun::cli
