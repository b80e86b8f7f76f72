// SPDX-License-Identifier: Apache-2.0
// vctl queue, vctl why, vctl quota: the waiting jobs, the reasons, and the teams' quotas.
#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "cli/array/job_ids.h"
#include "cli/base/exit_status.h"
#include "cli/base/home_connection.h"
#include "cli/base/table.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/job_view.h"
#include "cli/request/gpu_options.h"
#include "cli/request/scheduling.h"

namespace vrun::cli {
namespace {

// Formats thousandths as "2", "0.5".
std::string Milli(int64_t milli) {
  std::string text = std::to_string(milli / 1000);
  if (milli % 1000 == 0) return text;
  std::string fraction = std::to_string(1000 + milli % 1000).substr(1);
  while (fraction.back() == '0') fraction.pop_back();
  return text + "." + fraction;
}

// --- queue

// The jobs that wait, next first. Arrays of which something waits, each followed by those of its elements that run.
v1::JobList InQueue(v1::JobList all) {
  std::map<uint64_t, std::vector<v1::JobInfo>> elements;
  std::vector<v1::JobInfo> waiting;
  for (v1::JobInfo& job : *all.mutable_jobs()) {
    if (job.array() != 0) {
      if (job.state() != v1::PENDING) elements[job.array()].push_back(std::move(job));
    } else if (job.state() == v1::PENDING || job.array_info().waiting() > 0) {
      waiting.push_back(std::move(job));
    }
  }
  std::sort(waiting.begin(), waiting.end(), [](const v1::JobInfo& a, const v1::JobInfo& b) {
    return std::tuple(a.pool(), a.queue_position(), a.job()) < std::tuple(b.pool(), b.queue_position(), b.job());
  });
  v1::JobList out;
  for (v1::JobInfo& job : waiting) {
    const uint64_t id = job.job();
    *out.add_jobs() = std::move(job);
    std::vector<v1::JobInfo>& running = elements[id];
    std::sort(running.begin(), running.end(),
              [](const v1::JobInfo& a, const v1::JobInfo& b) { return a.array_index() < b.array_index(); });
    for (v1::JobInfo& element : running) *out.add_jobs() = std::move(element);
  }
  return out;
}

// "running on n1" for an element that runs.
std::string WhyCell(const v1::JobInfo& job) {
  if (job.array() == 0 || job.node().empty()) return job.reason();
  std::string state(StateName(job.state()));
  std::transform(state.begin(), state.end(), state.begin(), [](unsigned char c) { return std::tolower(c); });
  return state + " on " + job.node();
}

Result<int> RunQueue(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_list_jobs();
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_jobs()) return Error(Code::kInternal, "home: unexpected answer instead of a list of jobs");
  const v1::JobList waiting = InQueue(std::move(*answer.mutable_jobs()));
  if (invocation.format == OutputFormat::kJson || invocation.format == OutputFormat::kName) {
    Print(FormatJobs(waiting, invocation.format, invocation.headers));
    return 0;
  }
  const bool wide = invocation.format == OutputFormat::kWide;
  std::vector<std::string> columns{"POSITION", "JOB", "NAME", "POOL", "TEAM", "CLASS", "GPUS", "WAITED", "REASON"};
  if (wide) columns.insert(columns.end(), {"USER", "ATTEMPT"});
  Table table(std::move(columns));
  for (const v1::JobInfo& job : waiting.jobs()) {
    const v1::Resources& r = job.resources();
    std::vector<std::string> cells{job.queue_position() == 0 ? "" : std::to_string(job.queue_position()),
                                   JobText(job),
                                   job.name(),
                                   job.pool(),
                                   job.scheduling().team(),
                                   JobClassName(job.scheduling().class_()),
                                   GpusText(r),
                                   FormatDuration(std::max<int64_t>(WallMicros() - job.submitted_us(), 0)),
                                   WhyCell(job)};
    if (wide) cells.insert(cells.end(), {job.user(), std::to_string(job.attempt())});
    table.Add(std::move(cells));
  }
  Print(table.Format(invocation.headers));
  return 0;
}

// --- why

std::string WhyAsJson(const v1::WhyAnswer& why) {
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("job").Uint(why.job());
  json.Key("state").String(StateName(why.state())).Key("summary").String(why.summary());
  json.Key("queue_position").Uint(why.queue_position()).Key("queue_length").Uint(why.queue_length());
  json.Key("blockers").BeginArray();
  for (const v1::WhyAnswer::Blocker& b : why.blockers()) {
    json.BeginObject().Key("kind").String(b.kind()).Key("text").String(b.text());
    json.Key("have").Int(b.have()).Key("need").Int(b.need()).Key("other_job");
    b.other_job() != 0 ? json.Uint(b.other_job()) : json.Null();
    json.Key("team").String(b.team()).Key("gpu_type").String(b.gpu_type()).EndObject();
  }
  json.EndArray().Key("starts_now").BeginArray();
  for (const std::string& s : why.starts_now()) json.String(s);
  json.EndArray().Key("expected").Time(why.expected_us()).Key("expected_late").Time(why.late_us());
  json.Key("confidence_percent").Uint(why.confidence_percent()).Key("expected_why").String(why.expected_why());
  json.Key("deadline").String(why.deadline());
  json.Key("decisions").BeginArray();
  for (const v1::SchedulingDecision& d : why.decisions()) {
    auto log2 = [&json](const char* key, int32_t value) {
      json.Key(key).Number(static_cast<double>(value) / 65536, 3);
    };
    json.BeginObject().Key("time").Time(d.at_us()).Key("kind").String(d.kind()).Key("other_job");
    d.other_job() != 0 ? json.Uint(d.other_job()) : json.Null();
    json.Key("gain").Number(static_cast<double>(d.gain_milli()) / 1000, 3);
    json.Key("price").Number(static_cast<double>(d.price_milli()) / 1000, 3);
    json.Key("wait_without_s").Seconds(d.wait_without_us()).Key("remaining_s").Seconds(d.remaining_us());
    json.Key("lost_gpu_s").Int(d.lost_gpu_s()).Key("worth_log2").BeginObject();
    log2("class", d.worth_class());
    log2("remaining", d.worth_remaining());
    log2("deadline", d.worth_deadline());
    log2("fairness", d.worth_fairness());
    log2("waiting", d.worth_waiting());
    json.EndObject().EndObject();
  }
  json.EndArray().Key("attempts");
  WriteAttempts(why.attempts(), &json);
  json.EndObject();
  return json.Take();
}

// "2026-11-22T08:00:00Z evicted for job 12: gain 30.2, price 4.1, ...".
std::string DecisionAsText(const v1::SchedulingDecision& d) {
  std::string out = FormatRfc3339(d.at_us()) + " " + Escape(d.kind());
  const bool leaves = d.kind() == "evicted" || d.kind() == "moved" || d.kind() == "shrunk";
  if (d.other_job() != 0)
    out += (leaves ? " for job " : ", job ") + std::to_string(d.other_job()) + (leaves ? "" : " left");
  if (d.gain_milli() == 0 && d.price_milli() == 0) return out;
  out += ": gain " + Milli(d.gain_milli() / 100 * 100) + ", price " + Milli(d.price_milli() / 100 * 100);
  if (d.wait_without_us() > 0) out += ", wait without it " + FormatDuration(d.wait_without_us());
  if (d.remaining_us() > 0) out += ", still to run " + FormatDuration(d.remaining_us());
  return out + ", GPU-seconds lost " + std::to_string(d.lost_gpu_s());
}

std::string WhyAsText(const std::string& job, const v1::WhyAnswer& why) {
  std::string out = "job " + job + ": " + std::string(StateName(why.state()));
  if (why.queue_position() > 0) {
    out += ", " + std::to_string(why.queue_position()) + " of " + std::to_string(why.queue_length()) + " in its queue";
  }
  out += "\n";
  if (why.blockers().empty() && !why.summary().empty()) out += "  " + Escape(why.summary()) + "\n";
  for (const v1::WhyAnswer::Blocker& b : why.blockers()) out += "  " + b.text() + "\n";
  std::string now;
  for (const std::string& s : why.starts_now()) now += (now.empty() ? "" : ", or ") + s;
  if (!now.empty()) out += "  it would start now " + now + "\n";
  if (!why.expected_why().empty()) {
    out += "  it may start about " + FormatRfc3339(why.expected_us()) + " (in nine of ten cases by " +
           FormatRfc3339(why.late_us()) + "; confidence " + std::to_string(why.confidence_percent()) +
           " %): " + why.expected_why() + "\n";
  }
  if (!why.deadline().empty()) out += "  " + why.deadline() + "\n";
  for (const v1::SchedulingDecision& d : why.decisions()) out += "  " + DecisionAsText(d) + "\n";
  for (const v1::AttemptInfo& a : why.attempts()) {
    if (a.reason().empty()) continue;
    out += "  attempt " + std::to_string(a.attempt()) + " on " + Escape(a.node()) + ": " + Escape(a.reason()) + "\n";
  }
  return out;
}

Result<int> RunWhy(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const v1::JobSelection one, ParseOneJob(invocation.words.operands[0]));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_why()->set_job(one.job());
  if (const auto element = ElementOf(one)) query.mutable_why()->set_element(*element);
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_why()) return Error(Code::kInternal, "home: unexpected answer instead of the reason why a job waits");
  Print(invocation.json() ? WhyAsJson(answer.why()) : WhyAsText(JobsText(one), answer.why()));
  return 0;
}

// --- quota

void WriteTeam(const v1::TeamInfo& team, JsonWriter* json) {
  auto gpus = [json](const char* key, int64_t milli) { json->Key(key).Number(static_cast<double>(milli) / 1000, 3); };
  json->BeginObject().Key("name").String(team.name()).Key("parent").String(team.parent());
  json->Key("configured").Bool(team.configured());
  gpus("weight", team.weight_milli());
  gpus("used_gpus", team.used_milli());
  gpus("waiting_gpus", team.waiting_milli());
  gpus("fair_gpus", team.fair_milli());
  json->Key("quotas").BeginArray();
  for (const v1::TeamQuota& q : team.quotas()) {
    json->BeginObject().Key("gpu_type").String(q.gpu_type());
    gpus("guarantee_gpus", q.guarantee_milli());
    json->Key("limit_gpus");
    q.limit_milli() < 0 ? json->Null() : json->Number(static_cast<double>(q.limit_milli()) / 1000, 3);
    gpus("used_gpus", q.used_milli());
    json->EndObject();
  }
  json->EndArray().EndObject();
}

std::string TeamsAsTable(const v1::TeamList& teams, bool wide, bool headers) {
  std::vector<std::string> columns{"TEAM", "TYPE", "USED", "GUARANTEE", "LIMIT", "WAITING", "FAIR"};
  if (wide) columns.insert(columns.end(), {"PARENT", "WEIGHT"});
  Table table(std::move(columns));
  for (const v1::TeamInfo& team : teams.teams()) {
    auto add = [&](const std::string& type, int64_t used, const std::string& guarantee, const std::string& limit) {
      const bool all = type.empty();
      std::vector<std::string> cells{team.name(),
                                     all ? "all" : type,
                                     Milli(used),
                                     guarantee,
                                     limit,
                                     all ? Milli(team.waiting_milli()) : "",
                                     all ? Milli(team.fair_milli()) : ""};
      if (wide) cells.insert(cells.end(), {team.parent(), Milli(team.weight_milli())});
      table.Add(std::move(cells));
    };
    const bool total = std::any_of(team.quotas().begin(), team.quotas().end(),
                                   [](const v1::TeamQuota& q) { return q.gpu_type().empty(); });
    if (!total) add("", team.used_milli(), "", "");
    for (const v1::TeamQuota& q : team.quotas()) {
      add(q.gpu_type(), q.used_milli(), q.guarantee_milli() > 0 ? Milli(q.guarantee_milli()) : "",
          q.limit_milli() >= 0 ? Milli(q.limit_milli()) : "");
    }
  }
  return table.Format(headers);
}

Result<int> RunQuota(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_list_teams();
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_teams()) return Error(Code::kInternal, "home: unexpected answer instead of a list of teams");
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("teams").BeginArray();
    for (const v1::TeamInfo& team : answer.teams().teams()) WriteTeam(team, &json);
    json.EndArray().EndObject();
    Print(json.Take());
  } else if (invocation.format == OutputFormat::kName) {
    for (const v1::TeamInfo& team : answer.teams().teams()) Print(Escape(team.name()) + "\n");
  } else {
    Print(TeamsAsTable(answer.teams(), invocation.format == OutputFormat::kWide, invocation.headers));
  }
  return 0;
}

}  // namespace

const CtlCommand kCtlQueue{
    "queue",    "",      "the jobs that wait, next first; what runs of arrays that wait", {}, Completes::kNothing,
    NoOperands, RunQueue};
const CtlCommand kCtlWhy{"why", "ID", "everything that a job waits for", {}, Completes::kJobs, OneJob, RunWhy};
const CtlCommand kCtlQuota{"quota",    "",      "what teams may have, have and wait for", {}, Completes::kNothing,
                           NoOperands, RunQuota};

}  // namespace vrun::cli
