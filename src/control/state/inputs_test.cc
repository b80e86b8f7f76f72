// SPDX-License-Identifier: Apache-2.0
// Everything that the scheduler's core can be told is told by the controller, or is listed here with the reason why
// not. A new field of sched/model/model.h or a new event of sched/core.h breaks the build of this file; then send it,
// or list it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "control/journal/journal.h"
#include "control/testing/gang_testing.h"

namespace vrun::control {
namespace {

namespace core = sched::core;
using Fields = std::map<std::string, bool>;  // by name: whether the value differs from the default
using Reasons = std::map<std::string, std::string>;

// --- what is deliberately not sent ---

const Reasons kUnusedOfRequest = {
    {"nics", "a node cannot give a job a network interface of its own"},
};
const Reasons kUnusedOfNode = {
    {"suspect", "State::FeedNode adds it for a node that could not start a pod"},
};
const Reasons kUnusedEvents = {
    {"Tick", "the scheduler is run without an event when only time has passed"},
};

// --- fields ---

#define FIELD(name) \
  { #name, !(sent.name == plain.name) }

// Each binding has as many names as the structure has fields; otherwise it does not compile.
Fields FieldsOf(const core::JobSpec& sent) {
  const core::JobSpec plain;
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa] =
      sent;
  return {FIELD(id),
          FIELD(pool),
          FIELD(team),
          FIELD(user),
          FIELD(name),
          FIELD(klass),
          FIELD(preemptible),
          {"roles", !sent.roles.empty()},
          FIELD(gpu_types),
          FIELD(labels),
          FIELD(tolerations),
          FIELD(nodes),
          FIELD(excluded),
          FIELD(required),
          FIELD(preferred),
          FIELD(submitted),
          FIELD(begin_after),
          FIELD(deadline),
          FIELD(hard_deadline),
          {"deadline_steps", !sent.deadline_steps.empty()},
          FIELD(estimate),
          FIELD(limit),
          FIELD(after),
          FIELD(after_ok),
          {"checkpoint", true},
          FIELD(notice),
          FIELD(may_meet_maintenance)};
}
Fields FieldsOf(const core::Role& sent) {
  const core::Role plain;
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = sent;
  return {FIELD(name),    FIELD(pods),          FIELD(request), FIELD(min_pods),
          FIELD(segment), FIELD(segment_level), FIELD(spread)};
}
Fields FieldsOf(const core::Request& sent) {
  const core::Request plain;
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j] = sent;
  return {FIELD(gpus), FIELD(gpu_milli), FIELD(milli_cpus), FIELD(memory_bytes), FIELD(sharing),
          FIELD(mig),  FIELD(nics),      FIELD(distinct),   FIELD(sharers),      FIELD(gpu_memory)};
}
Fields FieldsOf(const core::Checkpoint& sent) {
  const core::Checkpoint plain;
  [[maybe_unused]] const auto& [a, b, c, d, e] = sent;
  return {FIELD(on_demand), FIELD(save), FIELD(restore), FIELD(period), FIELD(resize)};
}
Fields FieldsOf(const core::DeadlineStep& sent) {
  const core::DeadlineStep plain;
  [[maybe_unused]] const auto& [a, b] = sent;
  return {FIELD(at), FIELD(value)};
}
Fields FieldsOf(const core::NodeSpec& sent) {
  const core::NodeSpec plain;
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u] = sent;
  return {FIELD(mig_gpus), FIELD(no_mps),     FIELD(gpu_memory),   FIELD(name),   FIELD(pool),   FIELD(gpu_type),
          FIELD(gpus),     FIELD(milli_cpus), FIELD(memory_bytes), FIELD(nics),   FIELD(island), FIELD(rack),
          FIELD(block),    FIELD(zone),       FIELD(gpu_groups),   FIELD(labels), FIELD(taints), FIELD(mig_model),
          FIELD(bad_gpus), FIELD(suspect),    FIELD(price_milli)};
}
Fields FieldsOf(const core::TeamSpec& sent) {
  const core::TeamSpec plain;
  [[maybe_unused]] const auto& [a, b, c, d, e] = sent;
  return {FIELD(name), FIELD(parent), FIELD(weight), {"quotas", !sent.quotas.empty()}, {"budget", true}};
}
Fields FieldsOf(const core::Quota& sent) {
  const core::Quota plain;
  [[maybe_unused]] const auto& [a, b, c] = sent;
  return {FIELD(gpu_type), FIELD(guarantee), FIELD(limit)};
}
Fields FieldsOf(const core::Budget& sent) {
  const core::Budget plain;
  [[maybe_unused]] const auto& [a, b, c] = sent;
  return {FIELD(gpu_seconds), FIELD(period), FIELD(burst)};
}
Fields FieldsOf(const core::Maintenance& sent) {
  const core::Maintenance plain;
  [[maybe_unused]] const auto& [a, b, c, d] = sent;
  return {FIELD(name), FIELD(nodes), FIELD(from), FIELD(until)};
}
#undef FIELD

void ExpectSent(const std::string& what, const Fields& fields, const Reasons& unused = {}) {
  for (const auto& [name, sent] : fields) {
    EXPECT_NE(sent, unused.contains(name))
        << what << "." << name << (sent ? ": is sent, but listed as unused" : ": is neither sent nor listed as unused");
  }
  for (const auto& [name, reason] : unused) EXPECT_TRUE(fields.contains(name)) << what << "." << name;
}

JobRow FullJob() {
  JobRow job;
  job.id = 7;
  job.pool = "p";
  job.user = "anna@h";
  job.name = "train";
  job.needs = {2000, 1 << 30, 2, ""};
  job.submitted_us = 5;
  v1::Scheduling& s = job.scheduling;
  s.set_team("lab");
  s.set_class_(v1::PRODUCTION);
  s.set_requeue(false);
  s.set_estimate_s(60);
  s.set_limit_s(120);
  s.set_saves(true);
  s.set_grace_s(45);
  s.set_save_seconds(4);
  s.set_restore_seconds(5);
  s.set_resize_seconds(6);
  s.set_save_period_seconds(600);
  s.set_may_meet_maintenance(true);
  s.set_begin_us(10);
  s.set_deadline_us(1000);
  s.set_hard_deadline(true);
  for (const int at : {2000, 3000}) {
    v1::DeadlineStep* step = s.add_deadline_steps();
    step->set_at_us(at);
    step->set_value_milli(500);
  }
  s.add_after(3);
  s.add_after_ok(4);
  s.add_labels("ssd");
  s.add_tolerations("test");
  s.add_nodes("n1");
  s.add_excluded_nodes("n2");
  s.add_gpu_types("h100");
  s.set_required_level(v1::LEVEL_BLOCK);
  s.set_preferred_level(v1::LEVEL_RACK);
  s.set_segment(1);
  s.set_segment_level(v1::LEVEL_RACK);
  s.set_spread(true);
  job.gang.set_pods(4);
  job.gang.set_min_pods(2);
  return job;
}

TEST(SchedulerInputs, EveryFieldOfAJobIsSent) {
  const core::JobSpec spec = SpecOf(FullJob());
  ExpectSent("JobSpec", FieldsOf(spec));
  ExpectSent("Role", FieldsOf(spec.roles.at(0)));
  // Whole GPUs, a share and an instance exclude each other.
  JobRow shared = FullJob(), cut = FullJob();
  shared.needs.gpus = cut.needs.gpus = 0;
  shared.needs.gpu_milli = 250;
  shared.needs.gpu_sharing = v1::GPU_TIME_SLICE;
  shared.needs.gpu_memory_bytes = 1 << 30;
  shared.needs.sharers = 7;
  cut.needs.mig_profile = "1g.10gb";
  Fields request = FieldsOf(spec.roles.at(0).request);
  for (const JobRow& row : {shared, cut}) {
    for (const auto& [name, sent] : FieldsOf(SpecOf(row).roles.at(0).request)) request[name] = request[name] || sent;
  }
  ExpectSent("Request", request, kUnusedOfRequest);
  ExpectSent("Checkpoint", FieldsOf(spec.checkpoint));
  ExpectSent("DeadlineStep", FieldsOf(spec.deadline_steps.at(0)));
  EXPECT_EQ(spec.required, core::Level::kBlock);
  EXPECT_EQ(spec.preferred, core::Level::kRack);
  EXPECT_EQ(spec.checkpoint.period, 600 * core::kSecond);
}

TEST(SchedulerInputs, EveryFieldOfANodeIsSent) {
  NodeRow row;
  row.name = "n1";
  row.pool = "p";
  v1::Resources total;
  total.set_milli_cpus(4000);
  total.set_memory_bytes(1 << 30);
  total.set_gpus(4);
  total.set_gpu_type("h100");
  row.total = total.SerializeAsString();
  v1::NodeFacts facts;
  facts.set_island("i");
  facts.set_rack("r");
  facts.set_block("b");
  facts.set_zone("z");
  facts.add_labels("ssd");
  facts.add_taints("test");
  facts.add_gpu_groups(3);
  facts.set_price_milli(2500);
  facts.set_nics(2);
  facts.set_mig_model("h100-80gb");
  facts.set_bad_gpus(8);
  for (int i = 0; i < 4; ++i) {
    v1::Gpu* gpu = facts.add_gpus();
    gpu->set_memory_bytes(1 << 30);
    gpu->set_mig(i == 0);
  }
  row.facts = facts.SerializeAsString();
  ExpectSent("NodeSpec", FieldsOf(SpecOf(row)), kUnusedOfNode);
}

TEST(SchedulerInputs, EveryFieldOfATeamIsSent) {
  auto config = ParseSchedulerConfig(
      "[team.lab]\nguarantee = { h100 = 4 }\nlimit = { h100 = 8 }\n[team.vision]\nparent = \"lab\"\nweight = 2\n"
      "limit = { h100 = 8 }\nguarantee = { h100 = 4 }\nbudget = { gpu_hours = 10, days = 30, burst = 20 }\n",
      "f");
  ASSERT_TRUE(config) << config.error().message();
  const core::TeamSpec& team = config->teams.at(1).spec;
  ExpectSent("TeamSpec", FieldsOf(team));
  ExpectSent("Quota", FieldsOf(team.quotas.at(0)));
  ExpectSent("Budget", FieldsOf(team.budget));
  EXPECT_EQ(team.budget.gpu_seconds, 36000);
  EXPECT_EQ(team.budget.period, 720 * core::kHour);
}

// --- events ---

const char* NameOf(const core::NodeUp&) { return "NodeUp"; }
const char* NameOf(const core::NodeLost&) { return "NodeLost"; }
const char* NameOf(const core::NodeDrained&) { return "NodeDrained"; }
const char* NameOf(const core::TeamSet&) { return "TeamSet"; }
const char* NameOf(const core::JobSubmitted&) { return "JobSubmitted"; }
const char* NameOf(const core::JobStarted&) { return "JobStarted"; }
const char* NameOf(const core::JobSaved&) { return "JobSaved"; }
const char* NameOf(const core::JobStopped&) { return "JobStopped"; }
const char* NameOf(const core::JobEnded&) { return "JobEnded"; }
const char* NameOf(const core::Tick&) { return "Tick"; }
const char* NameOf(const core::MaintenanceSet&) { return "MaintenanceSet"; }
const char* NameOf(const core::MaintenanceOver&) { return "MaintenanceOver"; }
const char* NameOf(const core::JobResized&) { return "JobResized"; }
const char* NameOf(const core::PodsGone&) { return "PodsGone"; }

template <size_t... I>
std::set<std::string> AllEvents(std::index_sequence<I...>) {
  return {NameOf(std::variant_alternative_t<I, core::Event>{})...};
}

class EventsTest : public StateTest {
 protected:
  // The events in the scheduler's journal.
  std::set<std::string> Sent() {
    std::set<std::string> names;
    const auto rows = store_->Journal();
    EXPECT_TRUE(rows);
    for (const std::string& row : *rows) {
      v1::JournalSteps steps;
      EXPECT_TRUE(steps.ParseFromString(row));
      for (const v1::JournalStep& step : steps.steps()) {
        const auto events = DecodeEvents(step);
        for (const core::Event& event : *events) {
          names.insert(std::visit([](const auto& e) { return NameOf(e); }, event));
          if (const auto* set = std::get_if<core::MaintenanceSet>(&event)) {
            ExpectSent("Maintenance", FieldsOf(set->window));
          }
        }
      }
    }
    return names;
  }
  std::set<std::string> OfAnElasticJob();
};

// One that gives a pod to another job, and gets one that cannot be started.
std::set<std::string> EventsTest::OfAnElasticJob() {
  Forget();
  for (const char* name : {"n1", "n2"}) Register(SimpleNode(name, 1));
  v1::SubmitRequest request = GangJob("elastic", 3);
  request.mutable_spec()->mutable_gang()->set_min_pods(1);
  request.mutable_spec()->mutable_scheduling()->set_resize_seconds(0);
  request.mutable_spec()->mutable_scheduling()->set_estimate_s(100'000);
  Submit(request);
  std::vector<v1::Placement> pods;
  const auto started = [&] {
    for (auto& [node, m] : std::exchange(sent_, {})) {
      if (m.has_start()) pods.push_back(m.start().placement());
    }
  };
  started();
  for (const v1::Placement& p : pods) {
    v1::AttemptReport ready = ReportOf(p, v1::STARTING);
    ready.set_ready(true);
    Report(p.node(), ready);
  }
  for (const v1::Placement& p : pods) Report(p.node(), ReportOf(p, v1::RUNNING));
  clock_.AdvanceSeconds(600);
  Register(SimpleNode("n3", 1));
  started();
  EXPECT_EQ(pods.size(), 3u);
  Report("n3", ExitOf(pods.back(), v1::FAILED, v1::ExitRecord::START_FAILED, 0));
  Transaction([&] { return state_->Drain("n3", true, "disk").has_value(); });
  clock_.AdvanceSeconds(600);
  Submit(SimpleJob("other"));
  Report(pods[1].node(), ExitOf(pods[1], v1::COMPLETED, v1::ExitRecord::LEFT_GANG, 0));
  return Sent();
}

// A day in the life of a controller.
TEST_F(EventsTest, EveryEventIsSent) {
  Transaction([&] {
    state_->Configure(*ParseSchedulerConfig("[team.lab]\nweight = 2\n", "f"));
    return 0;
  });
  Register(SimpleNode("n1"));
  Register(SimpleNode("n2"));
  v1::SubmitRequest request = SimpleJob("a");
  request.mutable_spec()->mutable_scheduling()->set_requeue(true);
  request.mutable_spec()->mutable_scheduling()->set_saves(true);
  const auto job = Submit(request);
  const std::string node = job.placement().node();
  Report(node, ReportOf(job.placement(), v1::RUNNING));
  v1::JobWord word;
  word.set_job(job.job());
  word.set_attempt(1);
  word.set_saved(true);
  word.set_at_us(clock_.Wall());
  EXPECT_TRUE(Transaction([&] { return state_->Saved(node, word); }));
  EXPECT_TRUE(Transaction([&] { return state_->StopToRequeue(job.job()); }));
  LeavesFor(node, job.placement());
  WritesAreHome(node, job.placement());
  const v1::Placement again = Event(job.job()).placement();
  Report(again.node(), ExitOf(again, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_TRUE(Transaction([&] { return state_->Drain("n1", true, "disk"); }));
  MaintenanceRow window{"firmware", {"n2"}, clock_.Wall() + 1'000'000, clock_.Wall() + 2'000'000};
  EXPECT_TRUE(Transaction([&] { return state_->SetMaintenance(window); }));
  EXPECT_TRUE(Transaction([&] { return state_->EndMaintenance("firmware"); }));
  const auto running = Submit(SimpleJob("b"));
  Report(running.placement().node(), ReportOf(running.placement(), v1::RUNNING));
  PassSeconds(20);
  std::set<std::string> sent = Sent();
  // A scheduler that is rebuilt from the jobs is told what runs.
  EXPECT_TRUE(Transaction([&] { return store_->ClearJournal(); }));
  Restart();
  sent.merge(Sent());
  sent.merge(OfAnElasticJob());
  std::set<std::string> expected = AllEvents(std::make_index_sequence<std::variant_size_v<core::Event>>());
  for (const auto& [name, reason] : kUnusedEvents) EXPECT_EQ(expected.erase(name), 1u) << name;
  EXPECT_EQ(sent, expected);
}

}  // namespace
}  // namespace vrun::control
