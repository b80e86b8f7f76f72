// SPDX-License-Identifier: Apache-2.0
// Random histories of a cluster: starts, ends, preemptions, requeues, lost nodes, restarts of the controller, steps of
// the clock and ends of months. Whatever happens, each job is accounted for the time in which it had its room, no
// second twice; and the sums of any cut by time and by group agree with the intervals.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>

#include "base/time/calendar.h"
#include "control/state/gang.h"
#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr char kConfig[] =
    "[money]\ncurrency = \"EUR\"\n[[money.price]]\ngpu_hour = { h100 = 2.5, \"\" = 1 }\ncpu_hour = 0.01\n"
    "[[money.price]]\nfrom = 2023-11-20\ngpu_hour = { h100 = 3 }\n"
    "[team.lab]\nmonth = { gpu_hours = 1000000 }\n[team.vision]\nparent = \"lab\"\n[team.speech]\nparent = \"lab\"\n";

class MoneyPropertyTest : public StateTest {
 protected:
  void Begin(uint32_t seed) {
    random_.seed(seed);
    settings_.scheduler = *ParseSchedulerConfig(kConfig, "f");
    Forget();
    held_.clear();
    requests_ = 0;
    for (const char* node : {"n1", "n2", "n3"}) Register(SimpleNode(node, 16, 4));
  }
  int Roll(int sides) { return static_cast<int>(random_() % static_cast<uint32_t>(sides)); }

  // Thousandths of GPUs and of processors that each job has now, by its state alone.
  std::map<uint64_t, std::pair<int64_t, int64_t>> Now() {
    std::map<uint64_t, std::pair<int64_t, int64_t>> now;
    for (const auto& [id, job] : state_->jobs()) {
      if (!HoldsResources(job)) continue;
      for (const PodRow& pod : job.pods) {
        if (!HoldsRoom(pod)) continue;
        now[id].first += std::popcount(pod.gpu_mask) * 1000;
        now[id].second += job.needs.milli_cpus;
      }
    }
    return now;
  }
  // All time that `act` takes passes before it changes anything.
  template <typename F>
  void Step(F act) {
    const auto had = Now();
    const int64_t before = clock_.Monotonic();
    act();
    const int64_t passed = clock_.Monotonic() - before;
    for (const auto& [id, amounts] : had) {
      held_[id].first += amounts.first * passed;
      held_[id].second += amounts.second * passed;
    }
  }

  // A pod of a job that is placed; nothing: there is none.
  std::optional<std::pair<uint64_t, uint32_t>> AnyPod() {
    std::vector<std::pair<uint64_t, uint32_t>> pods;
    for (const auto& [id, job] : state_->jobs()) {
      for (const PodRow& pod : job.pods) {
        if (!IsOver(pod.state)) pods.emplace_back(id, pod.pod);
      }
    }
    if (pods.empty()) return std::nullopt;
    return pods[static_cast<size_t>(Roll(static_cast<int>(pods.size())))];
  }
  v1::AttemptReport ReportOf(const std::pair<uint64_t, uint32_t>& which, v1::JobState state) {
    const JobRow& job = state_->jobs().at(which.first);
    v1::AttemptReport report;
    report.set_job(job.id);
    report.set_attempt(job.attempt);
    report.set_epoch(job.epoch);
    report.set_pod(which.second);
    report.set_state(state);
    return report;
  }
  std::string NodeOf(const std::pair<uint64_t, uint32_t>& which) {
    return state_->jobs().at(which.first).pods[which.second].node;
  }

  void OneAct() {
    const int what = Roll(100);
    if (what < 22) {
      v1::SubmitRequest request = Roll(5) == 0 ? GangJob("r" + std::to_string(++requests_), 2, 1, 1)
                                               : SimpleJob("r" + std::to_string(++requests_), 1, Roll(3));
      v1::Scheduling* s = request.mutable_spec()->mutable_scheduling();
      s->set_team(Roll(2) == 0 ? "vision" : "speech");
      s->set_requeue(Roll(2) == 0);
      s->set_saves(Roll(3) == 0);
      s->set_project(Roll(2) == 0 ? "p" : "");
      Step([&] { Submit(request, Roll(2) == 0 ? kAnna : kBob); });
    } else if (what < 45) {
      Step([&] { clock_.AdvanceMicros(int64_t{1 + Roll(40'000)} * kSecond + Roll(1'000'000)); });
    } else if (what < 47) {
      Step([&] { clock_.AdvanceMicros(int64_t{1 + Roll(20)} * kDayMicros); });
    } else if (what < 52) {
      Step([&] { Restart(); });
      for (const char* node : {"n1", "n2", "n3"}) {
        if (!state_->nodes().at(node).row.lost) Back(node, 1 + lost_[node]);
      }
    } else if (what < 56) {
      constexpr int64_t kSteps[] = {3600 * kSecond, -3600 * kSecond, 40 * kDayMicros, -40 * kDayMicros, 5 * kSecond};
      clock_.StepWall(kSteps[Roll(5)]);
      if (Roll(3) == 0) return;
      // Somebody sees it, and sees that it lasts.
      for (const int seconds : {6, 601}) {
        Step([&] { clock_.AdvanceSeconds(seconds); });
        Step([&] { EXPECT_TRUE(Transaction([] { return Status(); })); });
      }
    } else if (what < 59) {
      const std::string node = "n" + std::to_string(1 + Roll(3));
      if (state_->nodes().at(node).row.lost) return;
      Step([&] { Lose(node); });
      Step([&] { clock_.AdvanceSeconds(Roll(5000)); });
      Back(node, 1 + ++lost_[node]);
    } else if (const auto which = AnyPod()) {
      Act(*which, what);
    }
  }
  // The node was restarted if its boot id is another one.
  void Back(const std::string& node, uint64_t boot_id) {
    v1::Register request = SimpleNode(node, 16, 4, boot_id);
    for (const auto& [id, pod] : state_->PodsOn(node)) {
      if (boot_id == 1 + lost_[node] && state_->nodes().at(node).row.boot_id == boot_id) {
        const JobRow& job = state_->jobs().at(id);
        *request.add_attempts() = ReportOf({id, pod}, std::max(job.pods[pod].state, v1::STARTING));
        request.mutable_attempts(request.attempts_size() - 1)->set_ready(job.pods[pod].ready);
      }
    }
    Step([&] { Register(request); });
  }
  void Act(const std::pair<uint64_t, uint32_t>& which, int what) {
    const std::string node = NodeOf(which);
    const JobRow& job = state_->jobs().at(which.first);
    if (what < 75) {
      v1::AttemptReport report =
          ReportOf(which, job.pods.size() > 1 && !job.pods[which.second].ready ? v1::STARTING : v1::RUNNING);
      report.set_ready(report.state() == v1::STARTING);
      if (job.pods.size() > 1 && report.state() == v1::RUNNING && job.state != v1::RUNNING) return;
      return Step([&] { Report(node, report); });
    }
    if (what < 78) {
      Step([&] { EXPECT_TRUE(Transaction([&] { return state_->Cancel(which.first, 0); })); });
      return;
    }
    if (what < 82) {
      Step([&] { (void)Transaction([&] { return state_->StopToRequeue(which.first); }); });
      return;
    }
    if (what < 85) {
      v1::GpuUsages usages;
      v1::GpuUsage* use = usages.add_usages();
      use->set_job(which.first);
      use->set_attempt(job.attempt);
      use->set_pod(which.second);
      use->set_metered_us(static_cast<uint64_t>(Roll(1'000'000)) * kSecond);
      use->set_busy_us(use->metered_us() * static_cast<uint64_t>(Roll(100)) / 100);
      Step([&] { EXPECT_TRUE(Transaction([&] { return state_->Use(node, usages); })); });
      return;
    }
    const bool leaves = !job.stopping.empty();
    v1::AttemptReport report = ReportOf(which, v1::COMPLETING);
    const v1::ExitRecord::Kind kinds[] = {v1::ExitRecord::EXITED, v1::ExitRecord::EXITED, v1::ExitRecord::SIGNALED,
                                          v1::ExitRecord::TIME_LIMIT, v1::ExitRecord::START_FAILED};
    report.mutable_exit()->set_kind(leaves ? v1::ExitRecord::PREEMPTED_BY_JOB : kinds[Roll(5)]);
    report.mutable_exit()->set_exit_code(Roll(2));
    report.mutable_exit()->set_signal(report.exit().kind() == v1::ExitRecord::SIGNALED ? 9 : 0);
    if (!CommandEnded(job.pods[which.second])) Step([&] { Report(node, report); });
    if (Roll(3) == 0) return;
    report.set_state(v1::COMPLETED);
    Step([&] { Report(node, report); });
  }

  std::vector<std::pair<Holder, IntervalRow>> All() {
    std::vector<std::pair<Holder, IntervalRow>> all;
    EXPECT_TRUE(
        store_->ReadIntervals(0, INT64_MAX, [&](const Holder& h, const IntervalRow& r) { all.emplace_back(h, r); }));
    return all;
  }
  v1::UsageReport Sums(int64_t from, int64_t to, const std::string& by) {
    v1::UsageRequest request;
    request.set_from_us(from);
    request.set_to_us(to);
    request.set_by(by);
    auto report = Usage(*state_, kAnna, request);
    EXPECT_TRUE(report) << report.error().message();
    return report.value_or(v1::UsageReport());
  }

  // Each job is accounted for the time in which it had its room.
  void CheckTime() {
    for (const auto& [id, expected] : held_) {
      int64_t gpu = 0, cpu = 0;
      const auto add = [&](const IntervalRow& r) {
        gpu += (r.end_us - r.start_us) * r.gpu_milli;
        cpu += (r.end_us - r.start_us) * r.milli_cpus;
      };
      for (const auto& [holder, row] : *store_->IntervalsOf(id)) add(row);
      const auto job = state_->jobs().find(id);
      if (job != state_->jobs().end()) {
        v1::JobInfo info;
        EXPECT_TRUE(state_->SumCost(id, &info));
        if (info.has_cost()) {
          EXPECT_NEAR(static_cast<double>(info.cost().gpu_ms()), static_cast<double>(expected.first) / 1e6, 1) << id;
          EXPECT_NEAR(static_cast<double>(info.cost().cpu_ms()), static_cast<double>(expected.second) / 1e6, 1) << id;
        }
        continue;
      }
      EXPECT_EQ(gpu, expected.first) << "job " << id;
      EXPECT_EQ(cpu, expected.second) << "job " << id;
    }
  }
  // No pod has two intervals at the same time.
  void CheckOrder() {
    std::map<std::tuple<uint64_t, uint32_t, uint32_t>, std::vector<std::pair<int64_t, int64_t>>> by_pod;
    for (const auto& [holder, row] : All()) {
      EXPECT_LE(row.start_us, row.end_us);
      EXPECT_LE(row.lost_us, row.end_us - row.start_us);
      by_pod[{row.job, row.attempt, row.pod}].emplace_back(row.start_us, row.end_us);
    }
    for (auto& [pod, times] : by_pod) {
      std::sort(times.begin(), times.end());
      for (size_t i = 1; i < times.size(); ++i) EXPECT_LE(times[i - 1].second, times[i].first) << std::get<0>(pod);
    }
  }
  // All rows of each part add up to its total, and the parts to the whole.
  void CheckCuts() {
    const auto all = All();
    if (all.empty()) return;
    int64_t begin = INT64_MAX, end = state_->clock().Wall();
    for (const auto& [holder, row] : all) {
      begin = std::min(begin, row.start_us);
      end = std::max(end, row.end_us);
    }
    const int64_t from = begin - 1, to = std::max(end, begin) + 100 * kDayMicros;
    std::set<int64_t> cuts{from, to};
    for (int i = 0; i < 3; ++i) {
      cuts.insert(from + static_cast<int64_t>(random_() % static_cast<uint64_t>(end - from)));
      cuts.insert(all[static_cast<size_t>(Roll(static_cast<int>(all.size())))].second.start_us);
    }
    for (int64_t month = NextMonth(from); month < end; month = NextMonth(month)) cuts.insert(month);
    constexpr const char* kBy[] = {"", "team", "user,project", "pool,gpu-type", "job", "team,user", "day", "day,job"};
    const std::string by = kBy[Roll(8)];
    const v1::UsageReport whole = Sums(from, to, by);
    Row sum;
    const int64_t parts = static_cast<int64_t>(cuts.size());
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
      const v1::UsageReport part = Sums(*cut, *std::next(cut), by);
      Row rows;
      for (const v1::UsageRow& row : part.rows()) rows.Add(row);
      rows.ExpectNear(part.total(), part.rows_size(), "rows of " + by);
      sum.Add(part.total());
    }
    sum.ExpectNear(whole.total(), parts, "parts");
  }
  // Sums of rows. Each row is rounded to a millisecond.
  struct Row {
    int64_t values[14] = {};
    static std::vector<int64_t> Of(const v1::UsageRow& r) {
      return {r.gpu_ms(),           r.metered_gpu_ms(),
              r.used_gpu_ms(),      r.idle_gpu_ms(),
              r.lost_gpu_ms(),      r.failed_gpu_ms(),
              r.preempted_gpu_ms(), r.node_lost_gpu_ms(),
              r.cpu_ms(),           r.waited_us(),
              r.cost_micros(),      r.lost_cost_micros(),
              r.idle_cost_micros(), static_cast<int64_t>(r.attempts())};
    }
    void Add(const v1::UsageRow& r) {
      const auto more = Of(r);
      for (size_t i = 0; i < more.size(); ++i) values[i] += more[i];
    }
    void ExpectNear(const v1::UsageRow& r, int64_t rounded, const std::string& what) const {
      const auto total = Of(r);
      for (size_t i = 0; i < total.size(); ++i)
        EXPECT_LE(std::abs(values[i] - total[i]), rounded + 1) << what << ", " << i;
    }
  };

  std::mt19937 random_;
  std::map<uint64_t, std::pair<int64_t, int64_t>> held_;
  std::map<std::string, uint64_t> lost_;  // how often a node was restarted
  int requests_ = 0;
};

TEST_F(MoneyPropertyTest, EachSecondIsAccountedOnceAndAllSumsAgree) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    lost_.clear();
    Begin(seed);
    for (int i = 0; i < 250 && !HasFailure(); ++i) {
      OneAct();
      if (i % 50 == 49) CheckCuts();
    }
    CheckTime();
    CheckOrder();
    CheckCuts();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace vrun::control
