// SPDX-License-Identifier: Apache-2.0
#include "history/trace.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/escape.h"
#include "jobs/ending.h"
#include "jobs/gang.h"

namespace vrun::history {
namespace {

constexpr char kHeader[] =
    "timestamp,duration,num_gpus,cluster,gpu_type,pods,pool,class,kind,deadline_s,limit_s,fixed,wait_s,held_s,"
    "preemptions\n";

// UTC, to the second: what job_trace.h reads.
std::string DateTime(int64_t wall_us) {
  const time_t seconds = static_cast<time_t>(wall_us / 1'000'000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string SecondsText(int64_t us) {
  char text[48];
  std::snprintf(text, sizeof text, "%lld.%06lld", static_cast<long long>(us / 1'000'000),
                static_cast<long long>(us % 1'000'000));
  return text;
}

const char* ClassText(v1::JobClass klass) {
  switch (klass) {
    case v1::SCAVENGER: return "scavenger";
    case v1::EXPERIMENT: return "experiment";
    case v1::PRODUCTION: return "production";
    case v1::INFERENCE: return "inference";
    default: return "training";
  }
}

uint32_t PodsOf(const v1::JobInfo& job) { return std::max<uint32_t>(job.has_gang() ? MostPods(job.gang()) : 1, 1); }

// A job that was to begin later waited only since then.
int64_t ArrivalOf(const v1::JobInfo& job) { return std::max(job.submitted_us(), job.scheduling().begin_us()); }

}  // namespace

std::string Cell(const std::string& name) {
  std::string out;
  for (const char c : Escape(name)) out.push_back(c == ',' || c == '"' ? '_' : c);
  return out;
}

bool Trace::Wants(const v1::JobInfo& job) {
  if (job.submitted_us() < span_.since_us || job.submitted_us() >= span_.until_us) return false;
  const v1::Resources& r = job.resources();
  uint64_t* left_out = nullptr;
  if (job.user().empty()) {  // of a job that the caller does not see
    left_out = &counts_.hidden;
  } else if (r.gpu_milli() > 0 || !r.mig_profile().empty()) {
    left_out = &counts_.parts;
  } else if (r.gpus() == 0) {
    left_out = &counts_.without_gpus;
  }
  if (left_out != nullptr) ++*left_out;
  return left_out == nullptr;
}

void Trace::AddEnded(const v1::Account& account) {
  const v1::JobInfo& job = account.job();
  if (!Wants(job)) return;
  if (account.held_us() == 0) {
    ++counts_.never_ran;
    return;
  }
  const int64_t pods = PodsOf(job);
  Times times;
  times.work_us = account.work_us() / pods;
  times.held_us = std::max(account.held_us() / pods, times.work_us);
  times.wait_us = std::max<int64_t>(job.ended_us() - ArrivalOf(job) - times.work_us, 0);
  times.preemptions = account.preemptions();
  Add(job, times);
}

void Trace::AddUnfinished(const v1::JobInfo& job, int64_t now_us) {
  if (job.has_array_info()) {
    if (job.submitted_us() >= span_.since_us && job.submitted_us() < span_.until_us) {
      counts_.waiting += job.array_info().waiting();
    }
    return;
  }
  if (IsEnd(job.state()) || !Wants(job)) return;
  if (job.state() == v1::PENDING || job.started_us() == 0) {
    ++counts_.waiting;
    return;
  }
  Times times;
  times.work_us = std::max<int64_t>(now_us - job.started_us(), 1);
  times.held_us = times.work_us;
  ++counts_.running;
  Add(job, times);
}

std::string Trace::TeamOf(const v1::JobInfo& job) {
  const std::string& team = job.scheduling().team();
  const std::string person = job.user().substr(0, job.user().find('@'));
  if (teams_.contains(team) || (team != person && team != person + "@")) return team;
  return "alone-" + std::to_string(alone_.try_emplace(job.user(), alone_.size() + 1).first->second);
}

void Trace::Add(const v1::JobInfo& job, const Times& times) {
  ++counts_.jobs;
  const v1::Scheduling& scheduling = job.scheduling();
  const uint64_t gpus = uint64_t{job.resources().gpus()} * PodsOf(job);
  const size_t kind = kinds_.try_emplace({job.user(), job.name()}, kinds_.size()).first->second;
  std::string row = DateTime(ArrivalOf(job));
  for (const std::string& cell :
       {SecondsText(times.work_us), std::to_string(gpus), Cell(TeamOf(job)), Cell(job.resources().gpu_type()),
        std::to_string(PodsOf(job)), Cell(job.pool()), std::string(ClassText(scheduling.class_())),
        std::to_string(kind),
        scheduling.deadline_us() > ArrivalOf(job) ? SecondsText(scheduling.deadline_us() - ArrivalOf(job)) : "",
        scheduling.limit_s() > 0 ? std::to_string(scheduling.limit_s()) : "",
        std::string(scheduling.requeue() ? "0" : "1"), times.wait_us < 0 ? "" : SecondsText(times.wait_us),
        SecondsText(times.held_us), std::to_string(times.preemptions)}) {
    row += "," + cell;
  }
  rows_.emplace(std::pair(ArrivalOf(job), job.job()), row + "\n");
}

std::string Trace::Text() const {
  std::string text = kHeader;
  for (const auto& [key, row] : rows_) text += row;
  return text;
}

std::string Describe(const Counts& counts) {
  std::string text;
  const auto add = [&](uint64_t n, const char* what) {
    if (n > 0) text += (text.empty() ? "left out: " : ", ") + std::to_string(n) + " " + what;
  };
  add(counts.waiting, "that wait");
  add(counts.never_ran, "that never ran");
  add(counts.parts, "with parts of GPUs");
  add(counts.without_gpus, "without GPUs");
  if (counts.running > 0) {
    text += (text.empty() ? "" : "; ") + std::to_string(counts.running) +
            " still running, replayed with the time that they have run so far";
  }
  return text;
}

}  // namespace vrun::history
