// SPDX-License-Identifier: Apache-2.0
// The part of State that knows arrays: which elements are jobs, and what becomes of the array.
#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "control/state/state.h"
#include "jobs/ending.h"

namespace vrun::control {
namespace {

using Phase = Array::Element::Phase;

Phase PhaseOf(const JobRow& job) {
  if (job.state == v1::PENDING) return job.scheduling.hold() || job.parked ? Phase::kIdle : Phase::kQueued;
  return HoldsResources(job) ? Phase::kRuns : Phase::kEnds;
}

void CountElement(const Array::Element& element, int by, Array* array) {
  const auto change = static_cast<uint32_t>(by);
  if (element.phase == Phase::kQueued) array->queued += change;
  if (element.phase == Phase::kIdle) array->idle += change;
  if (element.phase == Phase::kRuns) array->running += change;
  if (element.started) array->started += change;
}

std::string Elements(uint64_t count) { return std::to_string(count) + (count == 1 ? " element" : " elements"); }
std::string Named(uint64_t id) { return "array " + std::to_string(id); }
std::string Named(uint64_t id, uint32_t index) { return std::to_string(id) + "_" + std::to_string(index); }

std::string Of(uint64_t part, uint64_t all, const std::string& what) {
  return std::to_string(part) + " of " + std::to_string(all) + " elements " + what;
}

// The dependencies of an array are settled before its first element becomes a job.
v1::Scheduling SchedulingOfElement(const v1::Scheduling& whole) {
  v1::Scheduling s = whole;
  s.clear_after();
  s.clear_after_ok();
  s.clear_after_not_ok();
  s.clear_after_start();
  s.clear_after_corresponding();
  s.clear_singleton();
  s.clear_hold();
  return s;
}

}  // namespace

v1::ArrayInfo CountsOf(const Array& array) {
  v1::ArrayInfo info;
  const uint64_t wait = array.queued + array.idle;
  info.set_waiting(array.row.left.size() + wait);
  info.set_running(array.elements.size() - wait);
  info.set_completed(array.row.completed);
  info.set_failed(array.row.failed);
  return info;
}

Status State::LoadArrays() {
  arrays_.clear();
  touched_.clear();
  unsaved_.clear();
  VRUN_ASSIGN(std::vector<ArrayRow> rows, store_->UnfinishedArrays());
  for (ArrayRow& row : rows) {
    Array& array = arrays_[row.job];
    array.row = std::move(row);
    array.ready = array.row.left;
    array.ready.Remove(array.row.held);
    array.ready.Remove(array.row.gated);
    Touch(array.row.job);
  }
  return {};
}

Result<uint64_t> State::AddArray(JobRow job, const v1::Array& elements) {
  Array array;
  array.row.array = elements;
  array.row.left.Add(0, ElementCount(elements));
  VRUN_TRY(GateElements(job, &array));
  if (job.scheduling.hold()) array.row.held = array.row.left;
  array.ready = array.row.left;
  array.ready.Remove(array.row.held);
  array.ready.Remove(array.row.gated);
  job.elements = static_cast<uint32_t>(ElementCount(elements));
  VRUN_ASSIGN(job.id, store_->InsertJob(job));
  const uint64_t id = array.row.job = job.id;
  VRUN_TRY(store_->InsertArray(array.row));
  arrays_[id] = std::move(array);
  VRUN_TRY(Know(std::move(job)));
  fresh_.push_back(id);
  Touch(id);
  return id;
}

const Array* State::FindArray(uint64_t id) const {
  const auto it = arrays_.find(id);
  return it == arrays_.end() ? nullptr : &it->second;
}

Status State::NoteElement(const JobRow& job) {
  const auto it = arrays_.find(job.array);
  if (it == arrays_.end()) return {};
  Array& array = it->second;
  const auto known = array.elements.find(job.id);
  const Array::Element before = known == array.elements.end() ? Array::Element() : known->second;
  if (known != array.elements.end()) CountElement(before, -1, &array);
  array.parked.erase(job.id);
  const bool ended = IsEnd(job.state);
  const Array::Element now{PhaseOf(job), job.started_us != 0};
  if (ended) {
    if (known != array.elements.end()) array.elements.erase(known);
  } else {
    array.elements[job.id] = now;
    CountElement(now, 1, &array);
    if (job.parked) array.parked.insert(job.id);
  }
  if (!ended && known != array.elements.end() && before.phase == now.phase && before.started == now.started) return {};
  outbox_.jobs.insert(job.array);
  Touch(job.array);
  if (dependents_.contains(job.array)) started_.push_back(job.array);
  if (!now.started) return {};
  JobRow& whole = jobs_.at(job.array);
  if (whole.state != v1::PENDING) return {};
  whole.state = v1::RUNNING;
  whole.started_us = job.started_us;
  return Save(whole);
}

Status State::ElementEnded(const JobRow& job) {
  const auto it = arrays_.find(job.array);
  if (it == arrays_.end()) return {};
  Array& array = it->second;
  const bool completed = job.state == v1::COMPLETED;
  ++(completed ? array.row.completed : job.state == v1::CANCELLED ? array.row.cancelled : array.row.failed);
  v1::ExitRecord record, worst;
  if (const std::string exit = ExitOf(job); !exit.empty() && record.ParseFromString(exit)) {
    const bool first = array.row.exit.empty() || !worst.ParseFromString(array.row.exit);
    if (first || ExitStatus(record) > ExitStatus(worst)) array.row.exit = exit;
  }
  unsaved_.insert(job.array);
  Positions which;
  if (const auto position = PositionOf(array.row.array, job.array_index)) which.Add(*position);
  VRUN_TRY(TellCorresponding(job.array, which, completed));
  return EndIfOver(job.array);
}

Status State::EndIfOver(uint64_t id) {
  const Array* array = FindArray(id);
  if (array == nullptr || !array->row.left.empty() || !array->elements.empty()) return {};
  const JobRow& job = jobs_.at(id);
  const ArrayRow& row = array->row;
  if (row.completed == job.elements) return End(id, v1::COMPLETED, "");
  if (job.cancelled) {
    const bool began = row.completed + row.failed > 0;
    return End(
        id, v1::CANCELLED,
        began ? "cancelled when " + Of(row.completed, job.elements, "had completed") : "cancelled while it waited");
  }
  if (row.failed > 0) return End(id, v1::FAILED, Of(row.failed, job.elements, "failed"));
  return End(id, v1::CANCELLED, Of(row.cancelled, job.elements, "were cancelled"));
}

Status State::FillWindows() {
  while (!touched_.empty()) {
    const uint64_t id = *touched_.begin();
    touched_.erase(touched_.begin());
    const auto it = arrays_.find(id);
    if (it == arrays_.end()) continue;
    Array& array = it->second;
    const JobRow& whole = jobs_.at(id);
    if (whole.cancelled || Blocked(whole)) continue;
    while (array.queued < kArrayWindow && !array.full()) {
      if (!array.parked.empty()) {
        JobRow& job = jobs_.at(*array.parked.begin());
        job.parked = false;
        VRUN_TRY(Save(job));
        FeedAgain(job);
      } else if (!array.ready.empty()) {
        VRUN_TRY(MakeJob(array, whole, array.ready.first()));
      } else {
        break;
      }
    }
  }
  return {};
}

Status State::MakeJob(Array& array, const JobRow& whole, uint64_t position) {
  JobRow job;
  job.array = whole.id;
  job.array_index = IndexAt(array.row.array, position);
  job.user = whole.user;
  job.request_id = std::string(kElementRequests) + Named(whole.id, job.array_index);
  job.home_id = whole.home_id;
  job.pool = whole.pool;
  job.name = whole.name;
  job.needs = whole.needs;
  job.gang = whole.gang;
  job.submitted_us = whole.submitted_us;
  job.scheduling = SchedulingOfElement(whole.scheduling);
  const auto& told = whole.notify.who().events();
  if (std::find(told.begin(), told.end(), "array_tasks") != told.end()) job.notify = whole.notify;
  const bool in_order = array.row.left.first() == position;
  array.row.left.Remove(position);
  array.ready.Remove(position);
  if (in_order) {
    array.row.next = position + 1;
  } else {
    array.sets_changed = true;
  }
  unsaved_.insert(whole.id);
  const uint32_t index = job.array_index;
  VRUN_ASSIGN(const uint64_t id, Add(std::move(job)));
  v1::ArrayElement& element = outbox_.elements[whole.id].emplace_back();
  element.set_job(id);
  element.set_index(index);
  return {};
}

Status State::DropElements(uint64_t id, const Positions& which) {
  Array& array = arrays_.at(id);
  const Positions gone = array.row.left.And(which);
  if (gone.empty()) return {};
  array.row.left.Remove(gone);
  array.row.held.Remove(gone);
  array.row.gated.Remove(gone);
  array.ready.Remove(gone);
  array.row.cancelled += gone.size();
  array.sets_changed = true;
  unsaved_.insert(id);
  outbox_.jobs.insert(id);
  if (dependents_.contains(id)) started_.push_back(id);
  return TellCorresponding(id, gone, false);
}

Status State::SaveArrays() {
  for (const uint64_t id : std::exchange(unsaved_, {})) {
    const auto it = arrays_.find(id);
    if (it == arrays_.end()) continue;
    VRUN_TRY(store_->UpdateArray(it->second.row, std::exchange(it->second.sets_changed, false)));
  }
  return {};
}

// --- what people ask for ---

Result<Positions> State::SelectElements(uint64_t id, const ElementRanges& ranges) const {
  const ArrayRow& row = arrays_.at(id).row;
  Positions which;
  if (ranges.empty()) {
    which.Add(0, ElementCount(row.array));
    return which;
  }
  VRUN_TRY(CheckRanges(ranges, Named(id)));
  which = Select(row.array, ranges);
  if (which.empty()) {
    return Error(Code::kNotFound, Named(id) + ": it has no element " + RangesText(ranges) + ": it has " +
                                      RangesText(row.array.ranges()));
  }
  return which;
}

Status State::CancelArray(JobRow& job, int32_t signal) {
  if (!job.cancelled || job.cancel_signal != signal) {
    job.cancelled = true;
    job.cancel_signal = signal;
    VRUN_TRY(Save(job));
  }
  Positions all;
  all.Add(0, job.elements);
  return CancelElements(job.id, all, signal);
}

Status State::CancelElements(uint64_t id, const Positions& which, int32_t signal) {
  VRUN_TRY(DropElements(id, which));
  const std::vector<uint64_t> jobs = JobsOf(id, which);
  for (const uint64_t job : jobs) {
    // The end of one may have ended others.
    if (jobs_.contains(job)) VRUN_TRY(Cancel(job, signal));
  }
  return EndIfOver(id);
}

std::vector<uint64_t> State::JobsOf(uint64_t id, const Positions& which) const {
  std::vector<uint64_t> jobs;
  const Array& array = arrays_.at(id);
  for (const auto& [job, element] : array.elements) {
    const auto position = PositionOf(array.row.array, jobs_.at(job).array_index);
    if (position && which.Contains(*position)) jobs.push_back(job);
  }
  return jobs;
}

Status State::HoldElements(uint64_t id, const Positions& which, bool hold) {
  Array& array = arrays_.at(id);
  Positions changed = (hold ? array.row.left : array.row.held).And(which);
  bool any = !changed.empty();
  if (hold) {
    changed.Remove(array.row.held);
    array.row.held.Add(changed);
    array.ready.Remove(changed);
  } else {
    array.row.held.Remove(changed);
    changed.Remove(array.row.gated);
    array.ready.Add(changed);
  }
  for (const uint64_t job : JobsOf(id, which)) {
    if (jobs_.at(job).state != v1::PENDING || (!hold && !jobs_.at(job).scheduling.hold())) continue;
    any = true;
    VRUN_TRY(SetHold(job, hold));
  }
  if (!any)
    return Error(Code::kInvalid, Named(id) + ": " + (hold ? "no such element waits" : "no such element is held"));
  array.sets_changed = true;
  unsaved_.insert(id);
  Touch(id);
  JobRow& whole = jobs_.at(id);
  whole.scheduling.set_hold(!array.row.left.empty() && array.row.held == array.row.left);
  return Save(whole);
}

Status State::RequeueElements(uint64_t id, const Positions& which) {
  std::optional<Error> problem;
  bool any = false;
  for (const uint64_t job : JobsOf(id, which)) {
    if (arrays_.at(id).elements.at(job).phase != Phase::kRuns) continue;
    Status stopped = StopToRequeue(job);
    if (store_->failure()) return *store_->failure();
    any = any || stopped.has_value();
    if (!stopped && !problem) problem = stopped.error();
  }
  if (any) return {};
  return problem ? *problem : Error(Code::kInvalid, Named(id) + ": no such element runs");
}

// --- what others may see ---

std::vector<v1::ArrayElement> State::ElementsOf(uint64_t id) const {
  std::vector<v1::ArrayElement> elements;
  const Array* array = FindArray(id);
  if (array == nullptr) return elements;
  for (const auto& [job, element] : array->elements) {
    v1::ArrayElement& out = elements.emplace_back();
    out.set_job(job);
    out.set_index(jobs_.at(job).array_index);
  }
  return elements;
}

bool State::AllStarted(uint64_t id) const {
  const Array* array = FindArray(id);
  return array == nullptr || (array->row.left.empty() && array->started == array->elements.size());
}

Result<v1::SubmitRequest> State::RequestOf(const JobRow& job) {
  const uint64_t owner = job.array != 0 ? job.array : job.id;
  if (job.array != 0 && request_.job == job.array) {
    v1::SubmitRequest request = request_.request;
    if (!request_.array.sweeps().empty()) {
      *request.mutable_spec() = ElementSpec(request_.request.spec(), request_.array, job.array_index);
    }
    return request;
  }
  std::string spec = job.spec;
  if (job.array != 0 || spec.empty()) {
    VRUN_ASSIGN(std::optional<JobRow> row, store_->GetJob(owner));
    if (row) spec = std::move(row->spec);
  }
  v1::SubmitRequest request;
  if (spec.empty() || !request.ParseFromString(spec)) {
    return Error(Code::kCorrupt, "job " + std::to_string(owner) + ": its record does not parse");
  }
  if (job.array == 0) return request;
  request_.job = job.array;
  request_.array = std::move(*request.mutable_array());
  request.clear_array();
  request_.request = std::move(request);
  return RequestOf(job);
}

Result<v1::ArrayInfo> State::InfoOfArray(const JobRow& job, bool whole) {
  v1::ArrayInfo info;
  std::optional<ArrayRow> ended;
  const Array* array = FindArray(job.id);
  if (array == nullptr) {
    VRUN_ASSIGN(ended, store_->GetArray(job.id));
    if (!ended) return Error(Code::kCorrupt, Named(job.id) + ": it has no record of its elements");
    info.set_completed(ended->completed);
    info.set_failed(ended->failed);
  } else {
    info = CountsOf(*array);
  }
  const ArrayRow& row = array != nullptr ? array->row : *ended;
  if (whole) {
    *info.mutable_array() = row.array;
  } else {
    *info.mutable_array()->mutable_ranges() = row.array.ranges();
    info.mutable_array()->set_most_running(row.array.most_running());
  }
  return info;
}

void State::AddElements(const JobRow& job, bool whole, v1::JobInfo* info) {
  if (job.elements != 0) {
    if (Result<v1::ArrayInfo> counts = InfoOfArray(job, whole)) *info->mutable_array_info() = *std::move(counts);
    if (!IsEnd(job.state)) return;
    const Result<std::optional<ArrayRow>> row = store_->GetArray(job.id);
    v1::ExitRecord worst;
    if (!row || !*row || (*row)->exit.empty() || !worst.ParseFromString((*row)->exit)) return;
    if (job.state == v1::COMPLETED || ExitStatus(worst) != 0) *info->mutable_exit() = std::move(worst);
    return;
  }
  if (job.array == 0) return;
  info->set_array(job.array);
  info->set_array_index(job.array_index);
  if (const Array* array = FindArray(job.array)) {
    for (std::string& text : ElementVariables(array->row.array, job.array_index)) info->add_variables(std::move(text));
  } else if (whole) {
    const Result<std::optional<ArrayRow>> row = store_->GetArray(job.array);
    if (!row || !*row) return;
    for (std::string& text : ElementVariables((*row)->array, job.array_index)) info->add_variables(std::move(text));
  }
}

Result<JobRow> State::FindElement(uint64_t id, uint32_t index) {
  VRUN_ASSIGN(JobRow job, Find(id));
  if (job.elements == 0) {
    return Error(Code::kNotFound, "job " + std::to_string(id) + ": it is no array: name the job alone");
  }
  VRUN_ASSIGN(const std::optional<uint64_t> element, store_->FindElement(id, index));
  if (element) return Find(*element);
  VRUN_ASSIGN(const v1::ArrayInfo info, InfoOfArray(job, false));
  if (Contains(info.array(), index)) return job;
  return Error(Code::kNotFound, Named(id) + ": it has no element " + std::to_string(index) + ": it has " +
                                    RangesText(info.array().ranges()));
}

v1::JobInfo State::InfoOfElement(const JobRow& whole, uint32_t index, const std::string& viewer) {
  JobRow job = whole;
  job.array = whole.id;
  job.array_index = index;
  job.elements = 0;
  job.scheduling = SchedulingOfElement(whole.scheduling);
  const Array* array = FindArray(whole.id);
  const auto position = array != nullptr ? PositionOf(array->row.array, index) : std::nullopt;
  const bool waits = position && array->row.left.Contains(*position);
  job.state = v1::CANCELLED;
  job.started_us = job.ended_us = 0;
  job.scheduling.set_hold(waits && array->row.held.Contains(*position));
  v1::JobInfo info = InfoOf(job, viewer, SIZE_MAX);
  info.set_state(waits ? v1::PENDING : v1::CANCELLED);
  if (!Shows(viewer, whole)) return info;
  info.set_reason(waits ? WhyElementWaits(whole, *position) : "cancelled before it became a job");
  return info;
}

std::string State::WhyElementWaits(const JobRow& job, uint64_t position) {
  const Array& array = arrays_.at(job.id);
  const uint32_t index = IndexAt(array.row.array, position);
  if (const auto own = BlockersOf(job); !own.empty()) return own[0].text();
  if (array.row.held.Contains(position)) {
    return "it is held: `vctl release " + Named(job.id, index) + "` lets it start";
  }
  if (array.row.gated.Contains(position)) {
    for (const uint64_t other : job.scheduling.after_corresponding()) {
      const Result<std::optional<bool>> completed = Completed(other, index);
      if (completed && !*completed) return "waits for the end of element " + Named(other, index);
    }
  }
  uint64_t before = 0;
  for (const auto& [begin, end] : array.ready.intervals()) {
    if (begin < position) before += std::min(end, position) - begin;
  }
  const std::string first = before == 0 ? "it is the next of its array"
                                        : Elements(before) + (before == 1 ? " comes before it" : " come before it");
  if (!array.full()) return first;
  return "at most " + Elements(array.row.array.most_running()) + " of its array may run at a time; " + first;
}

std::string State::WhyArrayWaits(const JobRow& job) {
  const Array* array = FindArray(job.id);
  if (array == nullptr) return "";
  if (const auto own = BlockersOf(job); !own.empty()) return own[0].text();
  for (const auto& [id, element] : array->elements) {
    if (element.phase == Phase::kQueued) return Waiting(jobs_.at(id));
  }
  if (array->full()) {
    return "at most " + Elements(array->row.array.most_running()) + " may run at a time";
  }
  if (!array->ready.empty()) return "the scheduler has not considered it yet";
  if (!array->row.gated.empty()) return WhyElementWaits(job, array->row.gated.first());
  return "the elements that wait are held: `vctl release " + std::to_string(job.id) + "` lets them start";
}

v1::WhyAnswer State::ExplainArray(const JobRow& job) {
  v1::WhyAnswer answer;
  const Array* array = FindArray(job.id);
  if (array != nullptr) {
    const auto queued = std::find_if(array->elements.begin(), array->elements.end(),
                                     [](const auto& e) { return e.second.phase == Phase::kQueued; });
    if (queued != array->elements.end()) answer = Explain(jobs_.at(queued->first));
    for (v1::WhyAnswer::Blocker& blocker : BlockersOf(job)) *answer.add_blockers() = std::move(blocker);
  }
  answer.set_job(job.id);
  answer.set_state(job.state);
  answer.set_summary(job.reason);
  if (array == nullptr) return answer;
  const uint64_t waiting = array->row.left.size() + array->queued + array->idle;
  if (job.state == v1::PENDING) {
    answer.set_summary(WhyArrayWaits(job));
  } else if (waiting == 0) {
    answer.set_summary("its last " + std::to_string(array->elements.size()) + " elements run");
  } else {
    answer.set_summary(Of(array->elements.size() - array->queued - array->idle, job.elements, "run") + ", " +
                       std::to_string(waiting) + " wait: " + WhyArrayWaits(job));
  }
  if (job.cancelled) answer.set_summary("it is being cancelled");
  return answer;
}

v1::WhyAnswer State::ExplainElement(const JobRow& whole, uint32_t index) {
  v1::WhyAnswer answer;
  const v1::JobInfo info = InfoOfElement(whole, index, "");
  answer.set_job(whole.id);
  answer.set_state(info.state());
  answer.set_summary(info.reason());
  if (info.state() != v1::PENDING) return answer;
  for (v1::WhyAnswer::Blocker& blocker : BlockersOf(whole)) *answer.add_blockers() = std::move(blocker);
  if (!answer.blockers().empty()) return answer;
  v1::WhyAnswer::Blocker* out = answer.add_blockers();
  out->set_kind(info.scheduling().hold() ? "hold" : "array");
  out->set_text(info.reason());
  out->set_other_job(whole.id);
  return answer;
}

}  // namespace vrun::control
