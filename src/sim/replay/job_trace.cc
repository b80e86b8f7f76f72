// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/job_trace.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

#include "base/escape.h"

namespace vrun::sim {
namespace {

constexpr int64_t kMostGpus = 1'000'000;
constexpr int64_t kMostMinutes = int64_t{100} * 366 * 1440;
constexpr int64_t kMinute = 60 * kMicrosPerSecond;

// Days since 1970-01-01 of a date of the Gregorian calendar; Hinnant's days_from_civil.
int64_t DaysFromCivil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

// The digits of text[at, at + n) as a number in [least, most]; -1 if they are not one.
int64_t Digits(std::string_view text, size_t at, size_t n, int64_t least, int64_t most) {
  int64_t value = 0;
  for (char c : text.substr(at, n)) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  return value >= least && value <= most ? value : -1;
}

// Numbers the names in the order of their first mention.
class Names {
 public:
  explicit Names(std::vector<std::string>* names) : names_(names) {}
  int32_t IndexOf(std::string_view name) {
    auto [it, added] = known_.emplace(std::string(name), static_cast<int32_t>(names_->size()));
    if (added) names_->push_back(it->first);
    return it->second;
  }

 private:
  std::vector<std::string>* names_;
  std::map<std::string, int32_t> known_;
};

struct Columns {
  size_t submit = 0, duration = 0, gpus = 0;
};

Result<Columns> FindColumns(const Csv& csv, std::string_view submit, std::string_view gpus) {
  Columns c;
  VRUN_ASSIGN(c.submit, csv.Column(submit));
  VRUN_ASSIGN(c.duration, csv.Column("duration"));
  VRUN_ASSIGN(c.gpus, csv.Column(gpus));
  return c;
}

Result<JobTrace> ReadItp(const Csv& csv) {
  VRUN_ASSIGN(Columns column, FindColumns(csv, "submission_time", "num_gpu"));
  const std::optional<size_t> deadline = csv.Find("deadline");
  JobTrace trace;
  for (size_t row = 0; row < csv.rows(); ++row) {
    TraceJob job;
    VRUN_ASSIGN(job.submit_us, csv.Seconds(row, column.submit));
    VRUN_ASSIGN(job.duration_us, csv.Seconds(row, column.duration));
    VRUN_ASSIGN(int64_t gpus, csv.Integer(row, column.gpus, 1, kMostGpus));
    job.gpus = static_cast<int32_t>(gpus);
    if (deadline) {
      VRUN_ASSIGN(int64_t until, csv.Seconds(row, *deadline));
      job.deadlines.push_back({std::max<int64_t>(0, until - job.submit_us), 1});
    }
    trace.jobs.push_back(std::move(job));
  }
  return trace;
}

// The columns that only some tables of this format have.
struct HistoryColumns {
  explicit HistoryColumns(const Csv& csv)
      : pods(csv.Find("pods")),
        pool(csv.Find("pool")),
        klass(csv.Find("class")),
        kind(csv.Find("kind")),
        deadline(csv.Find("deadline_s")),
        limit(csv.Find("limit_s")),
        fixed(csv.Find("fixed")),
        wait(csv.Find("wait_s")),
        held(csv.Find("held_s")),
        preemptions(csv.Find("preemptions")) {}
  std::optional<size_t> pods, pool, klass, kind, deadline, limit, fixed, wait, held, preemptions;
};

constexpr std::string_view kClassNames[] = {"scavenger", "experiment", "training", "production", "inference"};

// An empty field says nothing.
Status ReadHistory(const Csv& csv, size_t row, const HistoryColumns& columns, Names* pools, TraceJob* job) {
  const auto said = [&](const std::optional<size_t>& column) { return column && !csv.Field(row, *column).empty(); };
  if (said(columns.pods)) {
    VRUN_ASSIGN(const int64_t pods, csv.Integer(row, *columns.pods, 1, kMostGpus));
    if (job->gpus % pods != 0) return csv.At(row, "num_gpus is no multiple of pods");
    job->pods = static_cast<int32_t>(pods);
  }
  if (said(columns.pool)) job->pool = pools->IndexOf(csv.Field(row, *columns.pool));
  if (said(columns.klass)) {
    const auto name = std::find(std::begin(kClassNames), std::end(kClassNames), csv.Field(row, *columns.klass));
    if (name != std::end(kClassNames)) job->klass = static_cast<int32_t>(name - std::begin(kClassNames));
  }
  if (said(columns.kind)) {
    VRUN_ASSIGN(const int64_t kind, csv.Integer(row, *columns.kind, 0, INT32_MAX));
    job->kind = static_cast<int32_t>(kind);
  }
  if (said(columns.deadline)) {
    VRUN_ASSIGN(const int64_t after, csv.Seconds(row, *columns.deadline));
    job->deadlines.push_back({after, 1});
  }
  if (said(columns.limit)) {
    VRUN_ASSIGN(job->limit_us, csv.Seconds(row, *columns.limit));
  }
  if (said(columns.fixed)) {
    VRUN_ASSIGN(const int64_t fixed, csv.Integer(row, *columns.fixed, 0, 1));
    job->preemptible = fixed == 0;
  }
  if (!said(columns.wait)) return {};
  VRUN_ASSIGN(job->happened.waited_us, csv.Seconds(row, *columns.wait));
  job->happened.held_us = job->duration_us;
  if (said(columns.held)) {
    VRUN_ASSIGN(job->happened.held_us, csv.Seconds(row, *columns.held));
  }
  if (said(columns.preemptions)) {
    VRUN_ASSIGN(const int64_t times, csv.Integer(row, *columns.preemptions, 0, kMostGpus));
    job->happened.preemptions = static_cast<int32_t>(times);
  }
  return {};
}

Result<JobTrace> ReadPhilly(const Csv& csv) {
  VRUN_ASSIGN(Columns column, FindColumns(csv, "timestamp", "num_gpus"));
  VRUN_ASSIGN(size_t team, csv.Column("cluster"));
  const std::optional<size_t> gpu_type = csv.Find("gpu_type");
  const HistoryColumns history(csv);
  JobTrace trace;
  Names teams(&trace.teams), types(&trace.gpu_types), pools(&trace.pools);
  trace.origin_us = 1;  // marks that the format has dates; set to the first submission below
  for (size_t row = 0; row < csv.rows(); ++row) {
    TraceJob job;
    auto date = ParseDate(csv.Field(row, column.submit));
    if (!date) return csv.At(row, "timestamp " + date.error().message());
    job.submit_us = *date;
    VRUN_ASSIGN(job.duration_us, csv.Seconds(row, column.duration));
    VRUN_ASSIGN(int64_t gpus, csv.Integer(row, column.gpus, 0, kMostGpus));
    if (gpus == 0) {
      ++trace.without_gpus;
      continue;
    }
    job.gpus = static_cast<int32_t>(gpus);
    job.team = teams.IndexOf(csv.Field(row, team));
    if (gpu_type && !csv.Field(row, *gpu_type).empty()) job.gpu_type = types.IndexOf(csv.Field(row, *gpu_type));
    VRUN_TRY(ReadHistory(csv, row, history, &pools, &job));
    trace.jobs.push_back(std::move(job));
  }
  return trace;
}

// "10-8-5-2": numbers, one '-' between two.
Result<std::vector<int64_t>> ReadList(const Csv& csv, size_t row, size_t column) {
  std::vector<int64_t> out;
  std::string_view rest = csv.Field(row, column);
  for (bool more = !rest.empty(); more;) {
    const size_t dash = std::min(rest.find('-'), rest.size());
    int64_t value = 0;
    auto [end, error] = std::from_chars(rest.data(), rest.data() + dash, value);
    if (error != std::errc{} || end != rest.data() + dash || value > kMostMinutes) {
      return csv.At(row, "'" + Escape(csv.Field(row, column).substr(0, 40)) + "': expected numbers with '-' between");
    }
    out.push_back(value);
    more = dash < rest.size();
    rest.remove_prefix(std::min(dash + 1, rest.size()));
  }
  return out;
}

Result<JobTrace> ReadChronus(const Csv& csv) {
  VRUN_ASSIGN(Columns column, FindColumns(csv, "submit_time", "num_gpu"));
  VRUN_ASSIGN(size_t team, csv.Column("user"));
  VRUN_ASSIGN(size_t times, csv.Column("expect_time_list"));
  VRUN_ASSIGN(size_t values, csv.Column("expect_value_list"));
  VRUN_ASSIGN(size_t best_effort, csv.Column("best_effort"));
  JobTrace trace;
  Names teams(&trace.teams);
  for (size_t row = 0; row < csv.rows(); ++row) {
    TraceJob job;
    VRUN_ASSIGN(int64_t submit, csv.Integer(row, column.submit, 0, kMostMinutes));
    VRUN_ASSIGN(int64_t duration, csv.Integer(row, column.duration, 0, kMostMinutes));
    VRUN_ASSIGN(int64_t gpus, csv.Integer(row, column.gpus, 0, kMostGpus));
    VRUN_ASSIGN(int64_t no_deadline, csv.Integer(row, best_effort, 0, 1));
    if (gpus == 0) {
      ++trace.without_gpus;
      continue;
    }
    job.submit_us = submit * kMinute;
    job.duration_us = duration * kMinute;
    job.gpus = static_cast<int32_t>(gpus);
    job.team = teams.IndexOf(csv.Field(row, team));
    if (no_deadline == 0) {
      VRUN_ASSIGN(std::vector<int64_t> after, ReadList(csv, row, times));
      VRUN_ASSIGN(std::vector<int64_t> worth, ReadList(csv, row, values));
      if (after.size() != worth.size()) return csv.At(row, "as many expected times as values are needed");
      for (size_t i = 0; i < after.size(); ++i) job.deadlines.push_back({after[i] * kMinute, worth[i]});
      std::sort(job.deadlines.begin(), job.deadlines.end(),
                [](const Deadline& a, const Deadline& b) { return a.after_us < b.after_us; });
    }
    trace.jobs.push_back(std::move(job));
  }
  return trace;
}

// Times and GPU time are 64-bit numbers. Values far above that are probably in the wrong unit.
Status CheckTotal(const Csv& csv, const JobTrace& trace) {
  constexpr double kMost = 3e18;  // GPU-microseconds
  double asked = 0;
  for (const TraceJob& job : trace.jobs) asked += static_cast<double>(job.duration_us) * job.gpus;
  if (asked <= kMost) return {};
  return Error(Code::kInvalid,
               Escape(csv.name()) + ":1: more than 95000 GPU-years of work: are the durations seconds?");
}

void SortBySubmission(JobTrace* trace) {
  std::stable_sort(trace->jobs.begin(), trace->jobs.end(),
                   [](const TraceJob& a, const TraceJob& b) { return a.submit_us < b.submit_us; });
}

Result<JobTrace> ReadAny(const Csv& csv) {
  if (csv.HasAll({"submission_time", "duration", "num_gpu"})) return ReadItp(csv);
  if (csv.HasAll({"timestamp", "duration", "num_gpus"})) return ReadPhilly(csv);
  if (csv.HasAll({"submit_time", "duration", "num_gpu", "expect_time_list"})) return ReadChronus(csv);
  return Error(Code::kInvalid,
               Escape(csv.name()) + ":1: not a trace of jobs: expected the columns of ITP, Philly or Chronus");
}

}  // namespace

Result<int64_t> ParseDate(std::string_view text) {
  const bool shape =
      (text.size() == 10 || (text.size() == 19 && text[10] == ' ' && text[13] == ':' && text[16] == ':')) &&
      text[4] == '-' && text[7] == '-';
  if (shape) {
    const bool has_time = text.size() == 19;
    const int64_t year = Digits(text, 0, 4, 1970, 9999), month = Digits(text, 5, 2, 1, 12),
                  day = Digits(text, 8, 2, 1, 31);
    const int64_t hour = has_time ? Digits(text, 11, 2, 0, 23) : 0, minute = has_time ? Digits(text, 14, 2, 0, 59) : 0,
                  second = has_time ? Digits(text, 17, 2, 0, 60) : 0;
    if (std::min({year, month, day, hour, minute, second}) >= 0) {
      return (((DaysFromCivil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * kMicrosPerSecond;
    }
  }
  return Error(Code::kInvalid, "'" + Escape(text.substr(0, 40)) + "': expected YYYY-MM-DD hh:mm:ss");
}

Result<JobTrace> ReadJobTrace(const Csv& csv) {
  VRUN_ASSIGN(JobTrace trace, ReadAny(csv));
  if (trace.jobs.empty()) return Error(Code::kInvalid, Escape(csv.name()) + ":1: a trace without jobs");
  VRUN_TRY(CheckTotal(csv, trace));
  SortBySubmission(&trace);
  const int64_t first = trace.jobs.front().submit_us;
  if (trace.origin_us != 0) trace.origin_us = first;
  for (TraceJob& job : trace.jobs) {
    job.submit_us -= first;
    // A job with a duration of 0 still came and went, but its end event must be after its start.
    job.duration_us = std::max<int64_t>(1, job.duration_us);
  }
  return trace;
}

JobTrace Window(const JobTrace& trace, int64_t from_us, int64_t until_us) {
  JobTrace out;
  out.teams = trace.teams;
  out.gpu_types = trace.gpu_types;
  out.pools = trace.pools;
  out.without_gpus = trace.without_gpus;
  out.origin_us = trace.origin_us == 0 ? 0 : trace.origin_us + from_us;
  for (const TraceJob& job : trace.jobs) {
    if (job.submit_us < from_us || job.submit_us >= until_us) continue;
    out.jobs.push_back(job);
    out.jobs.back().submit_us -= from_us;
  }
  return out;
}

JobTrace ShiftArrivals(const JobTrace& trace, int64_t offset_us) {
  JobTrace out = trace;
  if (trace.jobs.empty()) return out;
  const int64_t span = trace.jobs.back().submit_us + 1;
  const int64_t offset = offset_us % span;
  for (TraceJob& job : out.jobs) {
    job.submit_us -= offset;
    if (job.submit_us < 0) job.submit_us += span;
  }
  SortBySubmission(&out);
  return out;
}

}  // namespace vrun::sim
