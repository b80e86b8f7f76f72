// SPDX-License-Identifier: Apache-2.0
#include "control/whatif/runs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#define JSON_USE_IMPLICIT_CONVERSIONS 0
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "control/whatif/child.h"

namespace vrun::control {
namespace {

constexpr int64_t kLimitMicros = int64_t{30} * 60 * 1'000'000;
constexpr char kSuffix[] = ".result";
constexpr int kMostShownTeams = 200;

double FieldNumber(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::string FieldText(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void AddOutcome(const nlohmann::json& from, v1::WhatIf* run) {
  v1::WhatIfOutcome* to = run->add_outcomes();
  to->set_name(FieldText(from, "policy"));
  to->set_jobs(static_cast<uint64_t>(FieldNumber(from, "jobs")));
  to->set_left_out(static_cast<uint64_t>(FieldNumber(from, "left_out")));
  to->set_avg_wait_s(FieldNumber(from, "avg_wait_s"));
  to->set_p50_wait_s(FieldNumber(from, "p50_wait_s"));
  to->set_p90_wait_s(FieldNumber(from, "p90_wait_s"));
  to->set_utilization(FieldNumber(from, "utilization"));
  to->set_gpu_hours(FieldNumber(from, "gpu_hours"));
  to->set_makespan_s(FieldNumber(from, "makespan_s"));
  to->set_preemptions(FieldNumber(from, "preemptions"));
  to->set_lost_work_percent(FieldNumber(from, "lost_work_percent"));
  const auto usage = from.find("usage");
  if (usage == from.end() || !usage->is_array()) return;
  for (const nlohmann::json& one : *usage) {
    if (!one.is_object() || FieldNumber(one, "jobs") == 0) continue;
    if (to->teams_size() == kMostShownTeams) return;
    v1::WhatIfTeam* team = to->add_teams();
    team->set_team(FieldText(one, "team"));
    team->set_jobs(static_cast<uint64_t>(FieldNumber(one, "jobs")));
    team->set_gpu_hours(FieldNumber(one, "gpu_hours"));
    team->set_p50_wait_s(FieldNumber(one, "p50_wait_s"));
    team->set_p90_wait_s(FieldNumber(one, "p90_wait_s"));
  }
}

// "12.result": 12. 0: another file.
uint64_t ResultIdOf(const std::string& file) {
  const size_t digits = file.find_first_not_of("0123456789");
  if (digits == 0 || digits == file.npos || digits > 15 || file.substr(digits) != kSuffix) return 0;
  return std::strtoull(file.c_str(), nullptr, 10);
}

}  // namespace

Status AddOutcomes(const std::string& text, v1::WhatIf* run) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("policies") || !json["policies"].is_array()) {
    return Error(Code::kInternal, "vrun-sim printed no result: is it of this version?");
  }
  for (const char* name : {"measured", "present"}) {
    if (json.contains(name) && json[name].is_object()) AddOutcome(json[name], run);
  }
  for (const nlohmann::json& policy : json["policies"]) {
    if (policy.is_object()) AddOutcome(policy, run);
  }
  return {};
}

WhatIfRuns::WhatIfRuns(std::string directory, std::string program)
    : directory_(std::move(directory)), program_(std::move(program)), work_("what-if") {
  Load();
}

WhatIfRuns::~WhatIfRuns() {
  {
    MutexLock lock(mutex_);
    if (stop_) (void)::eventfd_write(stop_.get(), 1);
  }
  work_.Stop();
}

std::string WhatIfRuns::PathOf(uint64_t id) const { return directory_ + "/" + std::to_string(id); }

// Files of a replay that a killed controller has left are removed.
void WhatIfRuns::Load() {
  if (directory_.empty()) return;
  if (Status made = MakeDirs(directory_, 0700); !made) {
    return LogWarning("{}: results of replays are not kept: {}", Escape(directory_), made.error().message());
  }
  DIR* open = ::opendir(directory_.c_str());
  if (open == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(open)) names.emplace_back(entry->d_name);
  ::closedir(open);
  MutexLock lock(mutex_);
  for (const std::string& name : names) {
    if (name == "." || name == "..") continue;
    const std::string path = directory_ + "/" + name;
    const uint64_t id = ResultIdOf(name);
    v1::WhatIf run;
    const auto bytes = id == 0 ? Result<std::string>("") : ReadFile(path);
    if (id != 0 && bytes && run.ParseFromString(*bytes) && run.id() == id) {
      last_ = std::max(last_, id);
      runs_[id] = std::move(run);
    } else {
      (void)RemoveTree(path);
    }
  }
}

Result<v1::WhatIf> WhatIfRuns::Begin(v1::WhatIf run) {
  if (program_.empty()) {
    return Error(Code::kUnsupported, "vrun-sim is neither beside the controller's program nor in its PATH: install it");
  }
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop) return ErrnoError("eventfd");
  MutexLock lock(mutex_);
  if (active_ != 0) {
    return Error(Code::kExists, "replay " + std::to_string(active_) + " is running: wait for its end, or end it");
  }
  run.set_id(++last_);
  run.set_state("collecting");
  run.set_at_us(WallMicros());
  active_ = run.id();
  stop_ = std::move(stop);
  runs_[active_] = run;
  return run;
}

bool WhatIfRuns::IsOver(uint64_t id) {
  MutexLock lock(mutex_);
  return active_ != id;
}

void WhatIfRuns::Run(const v1::WhatIf& run, WhatIfInput input) {
  {
    MutexLock lock(mutex_);
    if (active_ != run.id()) return;
    v1::WhatIf& mine = runs_[run.id()];
    mine = run;
    mine.set_state("running");
  }
  work_.Post([this, id = run.id(), input = std::move(input)] { Execute(id, input); });
}

void WhatIfRuns::Fail(uint64_t id, const std::string& why) {
  MutexLock lock(mutex_);
  if (active_ == id) End(&runs_[id], why);
}

void WhatIfRuns::End(v1::WhatIf* run, const std::string& problem) {
  run->set_state(problem.empty() ? "done" : "failed");
  run->set_problem(problem);
  run->set_ended_us(WallMicros());
  run->set_done_permille(problem.empty() ? 1000 : run->done_permille());
  active_ = 0;
  stop_.Reset();
  Keep(*run);
}

void WhatIfRuns::Keep(const v1::WhatIf& run) {
  const Status kept = WriteFileAtomic(PathOf(run.id()) + kSuffix, run.SerializeAsString(), 0600);
  if (!kept) LogWarning("the result of replay {} is not kept: {}", run.id(), kept.error().message());
  while (runs_.size() > kMostKept) {
    const uint64_t oldest = runs_.begin()->first;
    ::unlink((PathOf(oldest) + kSuffix).c_str());
    runs_.erase(oldest);
  }
}

Result<std::string> WhatIfRuns::Replay(uint64_t id, const WhatIfInput& input, int stop_fd) {
  const std::string files = PathOf(id);
  VRUN_TRY(MakeDirs(files, 0700));
  ChildSpec spec{{program_, "--progress", "--label=the cluster's own history", "-o", "json"}, kLimitMicros, stop_fd};
  std::string policy;
  {
    MutexLock lock(mutex_);
    policy = runs_[id].request().policy();
  }
  if (!policy.empty()) spec.words.push_back("--policy=" + policy);
  for (const auto& [option, text] :
       {std::pair("cluster", &input.cluster), std::pair("teams", &input.teams),
        std::pair("present-cluster", &input.present_cluster), std::pair("present-teams", &input.present_teams)}) {
    const std::string path = files + "/" + option + ".csv";
    VRUN_TRY(WriteFileAtomic(path, *text, 0600));
    spec.words.push_back(std::string("--") + option + "=" + path);
  }
  VRUN_TRY(WriteFileAtomic(files + "/trace.csv", input.trace, 0600));
  spec.words.push_back(files + "/trace.csv");
  return RunChild(spec, [&](std::string_view line) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) return;
    MutexLock lock(mutex_);
    const auto run = runs_.find(id);
    if (run != runs_.end()) run->second.set_done_permille(static_cast<uint32_t>(FieldNumber(json, "done") * 1000));
  });
}

void WhatIfRuns::Execute(uint64_t id, const WhatIfInput& input) {
  UniqueFd stop;
  {
    MutexLock lock(mutex_);
    if (active_ != id) return;
    stop = UniqueFd(::fcntl(stop_.get(), F_DUPFD_CLOEXEC, 3));
  }
  const Result<std::string> answer = Replay(id, input, stop.get());
  (void)RemoveTree(PathOf(id));
  MutexLock lock(mutex_);
  const auto run = runs_.find(id);
  if (active_ != id || run == runs_.end()) return;
  Status read = answer ? AddOutcomes(*answer, &run->second) : Status(answer.error());
  End(&run->second, read ? "" : read.error().message());
}

Result<v1::WhatIf> WhatIfRuns::Get(uint64_t id) {
  MutexLock lock(mutex_);
  const auto run = runs_.find(id);
  if (run == runs_.end()) return Error(Code::kNotFound, "there is no replay " + std::to_string(id) + " any more");
  return run->second;
}

v1::WhatIfList WhatIfRuns::List() {
  v1::WhatIfList list;
  MutexLock lock(mutex_);
  for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
    v1::WhatIf* out = list.add_runs();
    *out = run->second;
    for (v1::WhatIfOutcome& outcome : *out->mutable_outcomes()) outcome.clear_teams();
  }
  if (program_.empty()) list.set_problem("vrun-sim is not installed beside the controller");
  return list;
}

Status WhatIfRuns::Remove(uint64_t id) {
  MutexLock lock(mutex_);
  const auto run = runs_.find(id);
  if (run == runs_.end()) return Error(Code::kNotFound, "there is no replay " + std::to_string(id) + " any more");
  if (active_ == id) {
    (void)::eventfd_write(stop_.get(), 1);
    active_ = 0;
    stop_.Reset();
  }
  runs_.erase(run);
  ::unlink((PathOf(id) + kSuffix).c_str());
  return {};
}

}  // namespace vrun::control
