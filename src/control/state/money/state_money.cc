// SPDX-License-Identifier: Apache-2.0
// The part of State that accounts: who has had which room for how long, what it costs, and what is left of budgets.
//
// A pod has its room from its placement (PodRow::held_since_us) until its command has ended. Then the interval is
// stored, in the transaction that frees the room. The pods that have room now, and the stored intervals, are all there
// is: nothing is added up on the way, so that nothing can be counted twice or be lost with this process.
//
// The clock of the accounting runs with the monotonic clock, so that steps of the wall clock make no interval longer or
// shorter. Within one boot of the host it goes on over restarts of the controller. When the wall clock was set, it
// follows: forward after a while, with what was skipped belonging to nobody; backward only while no pod has room, so
// that no pod is accounted twice for the same time.
#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <unordered_map>

#include "base/escape.h"
#include "base/log.h"
#include "base/time/calendar.h"
#include "control/money/day_sums.h"
#include "control/money/usage_sums.h"
#include "control/state/state.h"
#include "sched/model/mig.h"

namespace vrun::control {
namespace {

// A difference to the wall clock up to this is left alone.
constexpr int64_t kSmallStep = 2'000'000;
// A step must have lasted so long; clocks that are set wrong are often set right at once.
constexpr int64_t kLastingStep = 60'000'000;
// A step of more than a day, which shows that one of the times is wrong, must have lasted so long.
constexpr int64_t kLastingLeap = 600'000'000;
// So often the clock and the budgets are looked at.
constexpr int64_t kLookEvery = 5'000'000;
// The exit record of a node whose clock differs more from ours does not tell the end.
constexpr int64_t kSkew = 1'000'000;
// Time that is lost: all of the interval.
constexpr int64_t kAll = INT64_MAX;
constexpr uint32_t kMostRows = 1000;

int64_t GpuMilliOf(const PodRow& pod, const v1::NodeFacts& facts) {
  if (pod.gpu_milli > 0) return pod.gpu_milli;
  if (!pod.mig_profile.empty()) {
    namespace mig = sched::core::mig;
    const mig::Profile profile = mig::FindProfile(pod.mig_profile);
    const mig::Model model = mig::FindModel(facts.mig_model());
    const int size = model == 0 ? 0 : mig::Size(model, profile);
    return size > 0 ? size * 1000 / mig::Slices(model) : mig::NominalMilli(profile);
  }
  return int64_t{std::popcount(pod.gpu_mask)} * 1000;
}

IntervalEnd EndByState(v1::JobState state) {
  switch (state) {
    case v1::COMPLETED: return IntervalEnd::kCompleted;
    case v1::CANCELLED: return IntervalEnd::kCancelled;
    case v1::TIMEOUT: return IntervalEnd::kTimeLimit;
    case v1::OUT_OF_MEMORY: return IntervalEnd::kOutOfMemory;
    case v1::PREEMPTED: return IntervalEnd::kPreempted;
    case v1::LOST: return IntervalEnd::kNodeLost;
    default: return IntervalEnd::kFailed;
  }
}

// How the pods of the attempt came to their end, if the attempt ended with this state.
IntervalEnd EndOfAttempt(const JobRow& job, v1::JobState state) {
  if (state == v1::COMPLETED || state == v1::PREEMPTED) return EndByState(state);
  if (job.ending == Ending::kPodLost || job.ending == Ending::kPodGone) return IntervalEnd::kNodeLost;
  if (std::any_of(job.pods.begin(), job.pods.end(), [](const PodRow& pod) { return pod.state == v1::LOST; })) {
    return IntervalEnd::kNodeLost;
  }
  if (state == v1::CANCELLED) return IntervalEnd::kCancelled;
  if (job.ending == Ending::kNotStarted) return IntervalEnd::kNotStarted;
  if (job.ending == Ending::kNone && std::none_of(job.pods.begin(), job.pods.end(), HasRun)) {
    return IntervalEnd::kNotStarted;
  }
  return EndByState(state);
}

bool IsWaste(IntervalEnd end) {
  return end == IntervalEnd::kFailed || end == IntervalEnd::kTimeLimit || end == IntervalEnd::kOutOfMemory ||
         end == IntervalEnd::kPreempted || end == IntervalEnd::kNodeLost || end == IntervalEnd::kNotStarted;
}

bool Matches(const std::string& asked, const std::string& value) { return asked.empty() || asked == value; }

bool Asked(const v1::UsageRequest& request, const Holder& holder) {
  const bool user = request.user().empty() || request.user() == holder.user || request.user() == Person(holder.user);
  return user && Matches(request.team(), holder.team) && Matches(request.project(), holder.project) &&
         Matches(request.pool(), holder.pool) && Matches(request.gpu_type(), holder.gpu_type);
}

}  // namespace

// --- the clock ---

int64_t State::AccountingNow() const { return accounting_.at_us + clock_->Monotonic() - accounting_.monotonic; }

int64_t State::OnAccountingClock(int64_t wall) const { return wall - clock_->Wall() + AccountingNow(); }

Status State::LoadAccounting() {
  VRUN_ASSIGN(const std::optional<AccountingClock> stored, store_->GetAccountingClock());
  const int64_t monotonic = clock_->Monotonic(), wall = clock_->Wall();
  accounting_ = {settings_.boot_id, monotonic, wall};
  if (stored) {
    const bool same_boot = stored->boot_id == settings_.boot_id && stored->monotonic <= monotonic;
    accounting_.at_us = same_boot ? stored->at_us + monotonic - stored->monotonic : std::max(wall, stored->at_us);
  }
  stepped_since_ = 0;
  accounted_ = false;
  looked_at_ = monotonic;
  month_from_ = 0;
  VRUN_TRY(JudgeBudgets(false));
  return TellBudgets();
}

Status State::FollowClock() {
  const int64_t now = AccountingNow(), ahead = clock_->Wall() - now;
  if (std::abs(ahead) <= kSmallStep) {
    stepped_since_ = 0;
    return {};
  }
  if (stepped_since_ == 0) stepped_since_ = clock_->Monotonic();
  const bool leap = std::abs(ahead) > kDayMicros;
  if (clock_->Monotonic() - stepped_since_ < (leap ? kLastingLeap : kLastingStep)) return {};
  const bool idle = std::none_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return std::any_of(entry.second.pods.begin(), entry.second.pods.end(),
                       [](const PodRow& pod) { return pod.held_since_us != 0; });
  });
  int64_t then = clock_->Wall();
  if (ahead < 0 && !idle) return {};
  if (ahead < 0 && !leap) {
    VRUN_ASSIGN(const int64_t last, store_->LastInterval());
    then = std::max(then, std::min(last, now));
    if (then >= now - kSmallStep) return {};
  }
  LogWarning("the clock was set: the accounting goes from {} to {}", FormatRfc3339(now), FormatRfc3339(then));
  for (auto& [id, job] : jobs_) {
    bool first = false;
    for (PodRow& pod : job.pods) {
      if (pod.held_since_us == 0) continue;
      VRUN_TRY(CloseInterval(job, pod, IntervalEnd::kContinued, now, 0));
      pod.held_since_us = then;
      VRUN_TRY(store_->PutPod(id, job.attempt, pod));
      first = first || pod.pod == 0;
    }
    if (first) {
      job.waits_since_us = 0;
    } else if (job.waits_since_us != 0 && job.state == v1::PENDING) {
      job.waits_since_us += then - now;
    } else {
      continue;
    }
    VRUN_TRY(store_->UpdateJob(job));
  }
  accounting_ = {settings_.boot_id, clock_->Monotonic(), then};
  stepped_since_ = 0;
  accounted_ = true;
  return {};
}

Status State::Account() {
  if (clock_->Monotonic() - looked_at_ < kLookEvery) return {};
  looked_at_ = clock_->Monotonic();
  VRUN_TRY(FollowClock());
  VRUN_TRY(JudgeBudgets(true));
  VRUN_TRY(TellBudgets());
  return TellLimits();
}

Status State::SaveAccounting() {
  if (!std::exchange(accounted_, false)) return {};
  return store_->PutAccountingClock({settings_.boot_id, clock_->Monotonic(), AccountingNow()});
}

// --- intervals ---

void State::BeginInterval(PodRow* pod) {
  pod->held_since_us = AccountingNow();
  accounted_ = true;
}

Holder State::HolderOf(const JobRow& job, const PodRow& pod) const {
  Holder holder{job.user, job.scheduling.team(), job.scheduling.project(), job.pool, ""};
  if (pod.gpu_mask == 0) return holder;
  holder.gpu_type = job.needs.gpu_type;
  const auto node = nodes_.find(pod.node);
  v1::Resources total;
  if (node != nodes_.end() && total.ParseFromString(node->second.row.total)) holder.gpu_type = total.gpu_type();
  return holder;
}

IntervalRow State::IntervalOf(const JobRow& job, const PodRow& pod, int64_t end) const {
  IntervalRow row;
  row.job = job.id;
  row.attempt = job.attempt;
  row.pod = pod.pod;
  row.start_us = pod.held_since_us;
  row.end_us = std::max(end, row.start_us);
  row.node = pod.node;
  v1::NodeFacts facts;
  const auto node = nodes_.find(pod.node);
  if (!pod.mig_profile.empty() && node != nodes_.end()) (void)facts.ParseFromString(node->second.row.facts);
  row.gpu_milli = GpuMilliOf(pod, facts);
  row.milli_cpus = job.needs.milli_cpus;
  row.memory_bytes = job.needs.memory_bytes;
  v1::GpuUsage usage;
  if (!pod.usage.empty() && usage.ParseFromString(pod.usage)) {
    row.busy_us = static_cast<int64_t>(usage.busy_us());
    row.metered_us = static_cast<int64_t>(usage.metered_us());
  }
  if (pod.pod == 0 && job.waits_since_us != 0) {
    const int64_t begin = job.scheduling.begin_us();
    const int64_t since = std::max(job.waits_since_us, begin == 0 ? 0 : OnAccountingClock(begin));
    row.waited_us = std::max<int64_t>(row.start_us - since, 0);
  }
  return row;
}

// When the command of the pod ended, as its node says; nullopt: nobody knows, or the node's clock is wrong.
std::optional<int64_t> State::EndOnNode(const PodRow& pod) const {
  v1::ExitRecord record;
  if (pod.exit.empty() || !record.ParseFromString(pod.exit) || record.ended_us() == 0) return std::nullopt;
  const int64_t now = AccountingNow(), end = OnAccountingClock(record.ended_us());
  const int64_t start = record.started_us() == 0 ? end : OnAccountingClock(record.started_us());
  if (start < pod.held_since_us - kSkew || end < start || end > now + kSkew) return std::nullopt;
  return std::clamp(end, pod.held_since_us, now);
}

Status State::CloseInterval(JobRow& job, PodRow& pod, IntervalEnd ended, int64_t end, int64_t lost) {
  if (pod.held_since_us == 0) return {};
  IntervalRow row = IntervalOf(job, pod, end);
  row.ended = ended;
  row.lost_us = std::clamp<int64_t>(lost, 0, row.end_us - row.start_us);
  const Holder holder = HolderOf(job, pod);
  VRUN_TRY(store_->AddInterval(holder, row));
  // Also of what it had before the clock was set.
  if (lost > row.end_us - row.start_us) VRUN_TRY(store_->LoseEarlier(row, std::max<int64_t>(row.end_us - lost, 0)));
  if (month_from_ != 0) {
    AddPart(row, settings_.scheduler.prices.StepsOf(holder.pool, holder.gpu_type), month_from_, NextMonth(month_from_),
            &month_[holder.team]);
  }
  pod.held_since_us = 0;
  accounted_ = true;
  return store_->PutPod(job.id, job.attempt, pod);
}

Status State::CloseIntervals(JobRow& job, IntervalEnd ended, int64_t lost) {
  // The room of a gang is free when all of its commands have ended.
  int64_t end = 0;
  bool any = false;
  for (const PodRow& pod : job.pods) {
    if (pod.held_since_us == 0) continue;
    any = true;
    end = std::max(end, EndOnNode(pod).value_or(AccountingNow()));
  }
  if (!any) return {};
  for (PodRow& pod : job.pods) VRUN_TRY(CloseInterval(job, pod, ended, end, lost));
  job.waits_since_us = 0;
  return {};
}

Status State::AccountEnd(JobRow& job, v1::JobState state) {
  const IntervalEnd ended = EndOfAttempt(job, state);
  int64_t lost = IsWaste(ended) ? kAll : 0;
  if (lost > 0 && job.started_us > 0 && job.saved_us >= job.started_us) {
    int64_t end = 0;
    for (const PodRow& pod : job.pods) end = std::max(end, EndOnNode(pod).value_or(AccountingNow()));
    lost = std::max<int64_t>(end - OnAccountingClock(job.saved_us), 0);
  }
  return CloseIntervals(job, ended, lost);
}

Status State::AccountRequeue(JobRow& job, v1::JobState state, int64_t lost) {
  // What has not run has nothing to save.
  VRUN_TRY(CloseIntervals(job, EndOfAttempt(job, state), job.started_us == 0 ? kAll : lost));
  job.waits_since_us = AccountingNow();
  return {};
}

Status State::AccountLeft(JobRow& job, PodRow& pod) {
  const bool dropped = pod.membership == Membership::kDropped;
  return CloseInterval(job, pod, dropped ? IntervalEnd::kNotStarted : IntervalEnd::kResized,
                       EndOnNode(pod).value_or(AccountingNow()), dropped ? kAll : 0);
}

template <typename Each>
void State::EachHeld(Each each) const {
  const int64_t now = AccountingNow();
  for (const auto& [id, job] : jobs_) {
    for (const PodRow& pod : job.pods) {
      if (pod.held_since_us != 0) each(HolderOf(job, pod), IntervalOf(job, pod, now));
    }
  }
}

template <typename Each>
Status State::EachDay(int64_t from, int64_t to, Each each) const {
  Status parsed;
  VRUN_TRY(store_->ReadDays(from, to, [&](const Holder& holder, const DayRow& row) {
    DaySums sums;
    if (parsed) parsed = Merge(row.sums, &sums);
    if (parsed) each(holder, row.day_us, sums);
  }));
  return parsed;
}

// --- sums ---

Status State::SumUsage(const std::string& viewer, const v1::UsageRequest& request, v1::UsageReport* report) {
  VRUN_ASSIGN(const UsageBy by, ParseUsageBy(request.by()));
  const int64_t now = AccountingNow();
  const int64_t from = request.from_us() == 0 ? MonthOf(now) : request.from_us();
  const int64_t to = request.to_us() == 0 ? now : request.to_us();
  if (from < 0 || to <= from) {
    return Error(Code::kInvalid, "usage: " + FormatRfc3339(from) + " to " + FormatRfc3339(to) +
                                     ": the end is not after the beginning: correct --from or --to");
  }
  const Prices& prices = settings_.scheduler.prices;
  UsageSums sums(by, &prices, from, to);
  std::map<Holder, Seen> holders;  // the sums know a holder by its address
  const auto known = [&](const Holder& holder) {
    const auto [it, fresh] = holders.try_emplace(holder, Seen::kNothing);
    if (fresh && Asked(request, holder)) it->second = SeenBy(viewer, holder);
    return &*it;
  };
  if (request.job() != 0) {
    VRUN_ASSIGN(const auto rows, store_->IntervalsOf(request.job()));
    for (const auto& [holder, row] : rows) {
      const auto* one = known(holder);
      sums.Add(one->first, row, one->second);
    }
  } else {
    std::unordered_map<const Holder*, const std::pair<const Holder, Seen>*> read;
    VRUN_TRY(store_->ReadIntervals(from, to, [&](const Holder& holder, const IntervalRow& row) {
      const auto*& one = read[&holder];
      if (one == nullptr) one = known(holder);
      sums.Add(one->first, row, one->second);
    }));
    VRUN_TRY(EachDay(from, to, [&](const Holder& holder, int64_t day, const DaySums& kept) {
      const auto* one = known(holder);
      sums.AddDay(one->first, day, kept, one->second, now);
    }));
  }
  EachHeld([&](const Holder& holder, const IntervalRow& row) {
    if (request.job() != 0 && request.job() != row.job && request.job() != jobs_.at(row.job).array) return;
    const auto* one = known(holder);
    sums.Add(one->first, row, one->second);
  });
  report->set_from_us(from);
  report->set_to_us(to);
  report->set_by(request.by());
  report->set_currency(prices.currency);
  sums.Take(request.limit() == 0 ? kMostRows : std::min(request.limit(), kMostRows), report);
  for (v1::UsageRow& row : *report->mutable_rows()) {
    if (row.job() == 0) continue;
    const auto job = jobs_.find(row.job());
    if (job != jobs_.end()) {
      row.set_job_name(job->second.name);
    } else {
      VRUN_ASSIGN(*row.mutable_job_name(), store_->NameOfJob(row.job()));
    }
  }
  AddBudgets(viewer, report->mutable_budgets());
  VRUN_ASSIGN(const int64_t began, store_->FirstInterval());
  report->set_began_us(began);
  return {};
}

Seen State::SeenBy(const std::string& viewer, const Holder& holder) const {
  if (Shows(viewer, holder.user, holder.team)) return Seen::kWhole;
  return settings_.scheduler.InTeam(viewer, holder.team) ? Seen::kSum : Seen::kNothing;
}

Status State::SumCost(uint64_t id, v1::JobInfo* info) {
  const int64_t now = AccountingNow();
  VRUN_ASSIGN(auto rows, store_->IntervalsOf(id));
  const auto add = [&](const JobRow& job) {
    for (const PodRow& pod : job.pods) {
      if (pod.held_since_us != 0) rows.emplace_back(HolderOf(job, pod), IntervalOf(job, pod, now));
    }
  };
  if (const auto job = jobs_.find(id); job != jobs_.end()) add(job->second);
  if (const Array* array = FindArray(id)) {
    for (const auto& [element, phase] : array->elements) add(jobs_.at(element));
  }
  if (rows.empty()) return {};
  UsageSums sums({}, &settings_.scheduler.prices, 0, INT64_MAX);
  for (const auto& [holder, row] : rows) sums.Add(holder, row, Seen::kWhole);
  v1::UsageReport report;
  sums.Take(1, &report);
  const v1::UsageRow& total = report.total();
  v1::JobCost* cost = info->mutable_cost();
  cost->set_gpu_ms(total.gpu_ms());
  cost->set_metered_gpu_ms(total.metered_gpu_ms());
  cost->set_used_gpu_ms(total.used_gpu_ms());
  cost->set_idle_gpu_ms(total.idle_gpu_ms());
  cost->set_lost_gpu_ms(total.lost_gpu_ms());
  cost->set_cpu_ms(total.cpu_ms());
  cost->set_cost_micros(total.cost_micros());
  cost->set_lost_cost_micros(total.lost_cost_micros());
  cost->set_idle_cost_micros(total.idle_cost_micros());
  cost->set_currency(settings_.scheduler.prices.currency);
  cost->set_waited_us(total.waited_us());
  cost->set_attempts(static_cast<uint32_t>(total.attempts()));
  return {};
}

// --- budgets ---

Status State::JudgeBudgets(bool tell) {
  const SchedulerConfig& config = settings_.scheduler;
  const auto has = [](const TeamConfig& team) { return team.month.any(); };
  const auto stopped_before = budgets_;
  budgets_.clear();
  if (std::none_of(config.teams.begin(), config.teams.end(), has)) {
    month_from_ = 0;
    month_.clear();
  } else {
    const int64_t now = AccountingNow();
    if (month_from_ != MonthOf(now)) {
      month_.clear();
      month_from_ = MonthOf(now);
      VRUN_TRY(store_->ReadIntervals(month_from_, NextMonth(now), [this](const Holder& holder, const IntervalRow& row) {
        AddPart(row, settings_.scheduler.prices.StepsOf(holder.pool, holder.gpu_type), month_from_,
                NextMonth(month_from_), &month_[holder.team]);
      }));
      VRUN_TRY(EachDay(month_from_, NextMonth(now), [this](const Holder& holder, int64_t day, const DaySums& sums) {
        month_[holder.team].Add(PartOfDay(sums, day, settings_.scheduler.prices.StepsOf(holder.pool, holder.gpu_type),
                                          month_from_, NextMonth(month_from_)));
      }));
    }
    std::map<std::string, Amounts> all = month_;
    EachHeld([&](const Holder& holder, const IntervalRow& row) {
      AddPart(row, config.prices.StepsOf(holder.pool, holder.gpu_type), month_from_, NextMonth(month_from_),
              &all[holder.team]);
    });
    std::map<std::string, Amounts> with_below;
    for (const auto& [name, amounts] : all) {
      for (const TeamConfig* t = config.FindTeam(name); t != nullptr; t = config.FindTeam(t->spec.parent)) {
        if (has(*t)) with_below[t->spec.name].Add(amounts);
      }
    }
    for (const TeamConfig& team : config.teams) {
      if (!has(team)) continue;
      const std::string& name = team.spec.name;
      budgets_[name] = Judge(name, team.month, with_below[name], config.prices.currency, now);
    }
  }
  const auto stops = [](const std::map<std::string, v1::Budget>& budgets, const std::string& team) {
    const auto it = budgets.find(team);
    return it != budgets.end() && it->second.state() == "stop";
  };
  std::set<std::string> changed;
  for (const TeamConfig& team : config.teams) {
    const std::string& name = team.spec.name;
    if (stops(stopped_before, name) == stops(budgets_, name)) continue;
    changed.insert(name);
    if (!budgets_.contains(name) || budgets_[name].text().empty()) {
      LogInfo("team {}: its jobs may start again", Escape(name));
    } else {
      LogInfo("{}", budgets_[name].text());
    }
  }
  if (!tell) return {};
  for (const auto& [name, budget] : stopped_before) {
    if (stops(stopped_before, name) && !budgets_.contains(name)) changed.insert(name);
  }
  if (changed.empty()) return {};
  for (const auto& [id, job] : jobs_) {
    if (job.state != v1::PENDING) continue;
    bool concerned = stops(stopped_before, job.scheduling.team()) && !stops(budgets_, job.scheduling.team());
    for (const TeamConfig* t = config.FindTeam(job.scheduling.team()); t != nullptr && !concerned;
         t = config.FindTeam(t->spec.parent)) {
      concerned = changed.contains(t->spec.name);
    }
    if (!concerned) continue;
    outbox_.jobs.insert(id);
    outbox_.pools.insert(job.pool);
    job.elements != 0 ? Touch(id) : FeedAgain(job);
  }
  return {};
}

const v1::Budget* State::StoppedBy(const std::string& team) const {
  if (budgets_.empty()) return nullptr;
  const SchedulerConfig& config = settings_.scheduler;
  for (const TeamConfig* t = config.FindTeam(team); t != nullptr; t = config.FindTeam(t->spec.parent)) {
    const auto it = budgets_.find(t->spec.name);
    if (it != budgets_.end() && it->second.state() == "stop") return &it->second;
  }
  return nullptr;
}

std::string State::BudgetWarning(const std::string& team) const {
  if (budgets_.empty()) return "";
  const SchedulerConfig& config = settings_.scheduler;
  std::string text;
  for (const TeamConfig* t = config.FindTeam(team); t != nullptr; t = config.FindTeam(t->spec.parent)) {
    const auto it = budgets_.find(t->spec.name);
    if (it == budgets_.end() || it->second.text().empty()) continue;
    if (it->second.state() == "stop") return it->second.text();
    if (text.empty()) text = it->second.text();
  }
  return text;
}

void State::AddBudgets(const std::string& viewer, google::protobuf::RepeatedPtrField<v1::Budget>* to) const {
  const SchedulerConfig& config = settings_.scheduler;
  const bool all = config.visibility == Visibility::kAll || RoleOf(viewer) >= Role::kOperator;
  for (const TeamConfig& team : config.teams) {
    const auto it = budgets_.find(team.spec.name);
    if (it != budgets_.end() && (all || config.InTeam(viewer, it->first))) *to->Add() = it->second;
  }
}

}  // namespace vrun::control
