// SPDX-License-Identifier: Apache-2.0
#include "cli/array/job_ids.h"

#include <algorithm>
#include <utility>

#include "base/escape.h"
#include "cli/array/array_options.h"
#include "cli/base/values.h"
#include "jobs/array.h"

namespace vrun::cli {
namespace {

constexpr size_t kMostIndexText = 40;

bool IsOneIndex(const ElementRanges& ranges) { return ElementCount(ranges) == 1; }

}  // namespace

Result<v1::JobSelection> ParseJobs(std::string_view text) {
  v1::JobSelection out;
  const size_t line = text.find('_');
  VRUN_ASSIGN(const uint64_t job, ParseJobId(text.substr(0, line)));
  out.set_job(job);
  if (line == text.npos) return out;
  std::string_view elements = text.substr(line + 1);
  const bool open = elements.starts_with('['), closed = elements.ends_with(']');
  if (open != closed || elements == "[") {
    return Error(Code::kInvalid, Escape(text) + ": a bracket is missing: write elements as in 7_3 or '7_[3-9,11]'");
  }
  if (open) elements = elements.substr(1, elements.size() - 2);
  auto ranges = ParseIndexes(elements);
  if (!ranges) return std::move(ranges).error().With(Escape(text));
  *out.mutable_elements() = *std::move(ranges);
  return out;
}

Result<v1::JobSelection> ParseOneJob(std::string_view text) {
  VRUN_ASSIGN(v1::JobSelection one, ParseJobs(text));
  if (one.elements().empty() || IsOneIndex(one.elements())) return one;
  return Error(Code::kInvalid, Escape(text) + ": several elements: name one, as in " + std::to_string(one.job()) + "_" +
                                   std::to_string(one.elements(0).first()));
}

std::optional<uint32_t> ElementOf(const v1::JobSelection& one) {
  return one.elements().empty() ? std::nullopt : std::optional<uint32_t>(one.elements(0).first());
}

Status ForEachJob(const v1::JobSelection& jobs, const std::function<Status(const v1::JobSelection& one)>& use) {
  if (jobs.elements().empty()) return use(jobs);
  for (const v1::Array::Range& range : jobs.elements()) {
    for (uint64_t at = range.first(); at <= range.last(); at += std::max(1u, range.step())) {
      v1::JobSelection one;
      one.set_job(jobs.job());
      one.add_elements()->set_first(static_cast<uint32_t>(at));
      one.mutable_elements(0)->set_last(static_cast<uint32_t>(at));
      VRUN_TRY(use(one));
    }
  }
  return {};
}

std::string JobsText(const v1::JobSelection& jobs) {
  std::string out = std::to_string(jobs.job());
  if (jobs.elements().empty()) return out;
  const std::string elements = RangesText(jobs.elements());
  return out + "_" + (IsOneIndex(jobs.elements()) ? elements : "[" + elements + "]");
}

std::string JobName(const v1::JobInfo& job) {
  if (job.array() == 0) return std::to_string(job.job());
  return std::to_string(job.array()) + "_" + std::to_string(job.array_index());
}

std::string JobText(const v1::JobInfo& job) {
  if (!job.has_array_info()) return JobName(job);
  const v1::Array& array = job.array_info().array();
  std::string indexes = RangesText(array.ranges());
  if (indexes.size() > kMostIndexText) indexes = indexes.substr(0, indexes.rfind(',', kMostIndexText)) + ",...";
  std::string out = std::to_string(job.job()) + "_[" + indexes;
  if (array.most_running() > 0) out += "%" + std::to_string(array.most_running());
  return out + "]";
}

std::string CountsText(const v1::ArrayInfo& info) {
  const uint64_t all = ElementCount(info.array());
  std::string out = std::to_string(all);
  auto add = [&out, first = true](uint64_t count, const char* what) mutable {
    if (count > 0) out += (std::exchange(first, false) ? ": " : ", ") + std::to_string(count) + " " + what;
  };
  add(info.waiting(), "waiting");
  add(info.running(), "running");
  add(info.completed(), "completed");
  add(info.failed(), "failed");
  const uint64_t rest = info.waiting() + info.running() + info.completed() + info.failed();
  add(all - std::min(all, rest), "cancelled");
  return out;
}

}  // namespace vrun::cli
