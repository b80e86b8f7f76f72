// SPDX-License-Identifier: Apache-2.0
// Properties for any events in any order: no room is given twice, gangs are whole, quotas hold at every instant, and
// counters equal a recount (World checks all of this after every step). The same events give the same actions, and
// every job that can run runs in the end.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "sched/engine/explain.h"
#include "sched/testing/test_world.h"

namespace vrun::sched::core {
namespace {

struct Move {
  int kind, a, b, c;
};

void showValue(const Move& m, std::ostream& out) {  // rapidcheck's
  out << '{' << m.kind << ", " << m.a << ", " << m.b << ", " << m.c << '}';
}

}  // namespace
}  // namespace vrun::sched::core

namespace rc {
template <>
struct Arbitrary<vrun::sched::core::Move> {
  static Gen<vrun::sched::core::Move> arbitrary() {
    using M = vrun::sched::core::Move;
    auto n = gen::inRange(0, 10'000);
    return gen::build<M>(gen::set(&M::kind, n), gen::set(&M::a, n), gen::set(&M::b, n), gen::set(&M::c, n));
  }
};
}  // namespace rc

namespace vrun::sched::core {
namespace {

NodeSpec AnyNode(int a, int b) {
  NodeSpec n = GpuNode("n" + std::to_string(a % 8), 1 << (a % 3 + 1), "r" + std::to_string(a % 8 / 3));
  n.block = a % 8 < 6 ? "b1" : "b2";
  n.gpu_type = a % 8 < 5 ? "h100" : "a100";
  n.milli_cpus = 4000 + 4000 * (a % 3);
  n.memory_bytes = 16;
  n.nics = a % 4;
  if (n.gpus == 8) n.gpu_groups = {15, 240};
  if (a % 8 == 7) n.taints = {"debug"};
  if (a % 8 < 4) n.mig_model = "h100-80gb";
  if (a % 8 < 2) n.mig_gpus = 1u << b % n.gpus;  // the others stay whole
  if (b % 3 != 0) n.gpu_memory = (b % 2 == 0 ? 80 : 40) * kGiB - kGiB / 2;
  if (b % 4 == 1) n.no_mps = 1;
  n.price_milli = b % 2 ? 1000 : 2000;
  if (b % 5 == 0) n.bad_gpus = 1u << b % n.gpus;
  n.suspect = b % 7 == 0;
  return n;
}

JobSpec AnyJob(JobId id, const Move& m, const World& w) {
  JobSpec j = Gang(id, m.a % 4 + 1, m.b % 5);
  Request& r = j.roles[0].request;
  if (m.b % 7 == 0) r.gpus = 0, r.gpu_milli = 200 + 100 * (m.c % 6);
  if (m.b % 7 == 1) {
    const char* profiles[] = {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "7g.80gb"};
    r.gpus = 0;
    r.mig = mig::FindProfile(profiles[m.c % 5]);
  }
  if (m.b % 7 == 2) r.gpus = 0, r.gpu_memory = (m.c % 9 + 1) * 10 * kGiB;
  if (m.b % 7 == 3 && m.c % 2 == 0) r.gpu_memory = 60 * kGiB;
  if (r.gpu_milli > 0 || r.open()) r.sharers = static_cast<uint64_t>(m.a % 2);
  if (m.c % 7 == 0) r.nics = 1 + m.a % 2;
  if (m.b % 14 == 7 || m.b % 28 == 2) r.sharing = Sharing::kTimeSlice;
  if (m.c % 5 == 0) j.roles.push_back({"driver", m.a % 2 + 1, {0, 0, 2000, 2}});
  j.team = "t" + std::to_string(m.c % 3);
  j.user = "u" + std::to_string(m.a % 2);
  j.klass = static_cast<Class>(m.b % kClasses);
  j.preemptible = m.b % kClasses < 3 && m.c % 4 != 0;
  if (m.c % 6 == 0) j.gpu_types = {"a100", "h100"};
  if (m.c % 6 == 1) j.gpu_types = {"h100"};
  if (m.a % 5 == 0) j.required = Level::kRack;
  if (m.a % 5 == 1) j.preferred = Level::kNode;
  if (m.a % 9 == 0 && id > 1) j.after = {id - 1};
  Role& worker = j.roles[0];
  if (m.c % 8 == 1) worker.min_pods = m.a % 2 + 1;
  worker.min_pods = std::min(worker.min_pods, worker.pods);
  if (m.c % 8 == 2) worker.pods *= 2, worker.segment = 2;
  if (m.c % 8 == 3) worker.pods *= 2, worker.segment = 2, worker.min_pods = 2;
  worker.segment_level = j.required == Level::kNode || m.b % 2 == 0 ? Level::kNode : Level::kRack;
  worker.spread = m.c % 16 == 2 || m.c % 16 == 11;
  if (m.a % 9 == 1 && id > 1) j.after_ok = {id - 1};
  if (m.b % 6 == 0) j.limit = (m.a % 5 + 1) * kHour;
  if (m.b % 10 == 3) j.deadline = w.now + (m.c % 40) * kHour, j.hard_deadline = m.a % 2 == 0;
  if (m.b % 10 == 4) j.deadline_steps = {{w.now + kHour, 1000}, {w.now + 9 * kHour, 400}};
  if (m.c % 3 == 0) j.tolerations = {"debug"};
  j.checkpoint.on_demand = m.c % 2;
  j.checkpoint.restore = 30 * kSecond;
  return j;
}

// The events of this move in this world, if it applies.
std::vector<Event> EventsOf(const Move& m, const World& w, JobId* next) {
  auto pick = [&](const auto& set, int n) {
    auto it = set.begin();
    std::advance(it, n % static_cast<int>(set.size()));
    return it;
  };
  switch (m.kind % 16) {
    case 0: return {NodeUp{AnyNode(m.a, m.b)}};
    case 1:
      return {m.b % 2 ? Event(NodeLost{"n" + std::to_string(m.a % 8)}) : NodeDrained{"n" + std::to_string(m.a % 8)}};
    case 2:
    case 3:
      if (!w.running.empty()) return {JobEnded{pick(w.running, m.a)->first, m.b % 2 == 0, m.b % 3 != 0}};
      return {Tick{}};
    case 4:
    case 5:
    case 6:
      if (!w.shrinking.empty() && m.b % 2 == 0) return {JobResized{w.shrinking.begin()->first}};
      if (!w.stopping.empty()) return {JobStopped{*pick(w.stopping, m.a), m.b % 100 * kSecond}};
      return {Tick{}};
    case 10: {
      const std::string name = "w" + std::to_string(m.a % 2);
      if (m.b % 4 == 0) return {MaintenanceOver{name}};
      const Micros from = w.now + (m.c % 12) * kHour + kHour;
      return {MaintenanceSet{{name, {"n" + std::to_string(m.b % 8), "n1"}, from, from + 2 * kHour}}};
    }
    case 7:
      if (!w.jobs.empty() && m.b % 4 == 0) return {JobEnded{pick(w.jobs, m.a)->first, false}};  // cancelled
      return {Tick{}};
    case 8:
      if (!w.running.empty()) return {JobSaved{pick(w.running, m.a)->first, w.now, m.b % 50 * kSecond}};
      return {Tick{}};
    case 9:
      if (!w.running.empty() && m.b % 4 == 0) return {JobStopped{pick(w.running, m.a)->first, 0}};  // a failure
      for (const auto& [id, pods] : w.running) {  // a pod that was added could not start
        const Role& role = w.jobs.at(id).roles[0];
        const auto workers = std::count_if(pods.begin(), pods.end(), [](const PodPlace& p) { return p.role == 0; });
        if (role.segment > 1 || workers <= role.least() || w.shrinking.contains(id) || w.stopping.contains(id))
          continue;
        const auto last = std::find_if(pods.rbegin(), pods.rend(), [](const PodPlace& p) { return p.role == 0; });
        return {PodsGone{id, {*last}}};
      }
      return {Tick{}};
    default: {
      JobId id = (*next)++;
      return {JobSubmitted{AnyJob(id, m, w)}};
    }
  }
}

std::vector<Event> Beginning() {
  std::vector<Event> events;
  for (int i = 0; i < 6; ++i) events.push_back(NodeUp{AnyNode(i, i)});
  TeamSpec t0{"t0", "", 2000, {{"", 4000, 12'000}}};
  TeamSpec t1{"t1", "", 1000, {{"", 8000, INT64_MAX}, {"h100", 0, 6000}}};
  TeamSpec t2{"t2", "t0", 1000, {{"", 0, 6000}}};
  for (const TeamSpec& t : {t0, t1, t2}) events.push_back(TeamSet{t});
  return events;
}

void CheckWorld(const std::vector<Move>& moves, Policy policy) {
  World one(policy), two(policy);
  one.Feed(Beginning());
  two.Feed(Beginning());
  JobId next = 1;
  for (const Move& m : moves) {
    std::vector<Event> events = EventsOf(m, one, &next);
    Micros by = m.c % 4 == 0 ? 0 : m.c % 4 == 1 ? kSecond : m.c % 4 == 2 ? 600 * kSecond : 4 * kHour;
    auto actions = one.Feed(events, by);
    auto again = two.Feed(events, by);
    RC_ASSERT(actions.size() == again.size());
    for (size_t i = 0; i < actions.size(); ++i) RC_ASSERT(Text(actions[i]) == Text(again[i]));
    if (::testing::Test::HasFailure()) RC_FAIL("see above");
  }
  // All running jobs end, victims obey, all nodes are up: then every job that can run must have run.
  std::vector<Event> nodes;
  for (int i = 0; i < 8; ++i) nodes.push_back(NodeUp{AnyNode(i, i)});
  one.Feed({MaintenanceOver{"w0"}, MaintenanceOver{"w1"}}, kSecond);
  one.Feed(nodes, kSecond);
  for (int round = 0; round < 400 && !one.jobs.empty(); ++round) {
    std::vector<Event> events;
    for (JobId id : one.stopping) events.push_back(JobStopped{id, 0});
    for (const auto& [id, pods] : one.shrinking) {
      if (!one.stopping.contains(id)) events.push_back(JobResized{id});
    }
    if (events.empty() && !one.running.empty()) events.push_back(JobEnded{one.running.begin()->first});
    events.push_back(Tick{});
    one.Feed(events, 10 * 60 * kSecond);
    one.Run(kSecond);
    if (::testing::Test::HasFailure()) RC_FAIL("see above");
    if (!one.running.empty()) continue;
    one.Run(kHour);  // a hold ends, and the job that starts then may have to leave for another
    if (one.running.empty()) break;
  }
  for (const auto& [id, job] : one.jobs) {
    if (one.running.contains(id)) continue;
    auto why = Explain(one.state, id);
    RC_ASSERT(why.has_value());
    bool excused = false;
    for (const Blocker& b : *why) {
      excused = excused || b.kind == Blocker::Kind::kNeverFits || b.kind == Blocker::Kind::kTopology ||
                b.kind == Blocker::Kind::kLimit || b.kind == Blocker::Kind::kGuarantee ||
                b.kind == Blocker::Kind::kDependency || b.kind == Blocker::Kind::kDoomed ||
                (b.kind == Blocker::Kind::kPatience && b.time > one.now);  // by its own preference, and not forever
    }
    // Several roles may fit separately but not together.
    if (excused || job.roles.size() > 1) continue;
    std::ostringstream text;
    text << "job " << id << " waits: " << job.roles[0].pods << " pods, at least " << job.roles[0].least() << ", of "
         << job.roles[0].request.gpus << " GPUs, level " << static_cast<int>(job.required) << ", blocks of "
         << job.roles[0].segment << " at " << static_cast<int>(job.roles[0].segment_level) << ":";
    for (const Blocker& b : *why) text << ' ' << static_cast<int>(b.kind) << '(' << b.have << '/' << b.need << ')';
    const Job* waits = one.state.core().Find(id);
    text << " hold";
    for (NodeId n : waits->hold) text << ' ' << one.state.core().cluster().node(n).spec.name;
    text << " in " << (waits->hold_start - one.now) / kSecond;
    RC_FAIL(text.str());
  }
}

TEST(CoreProperties, WhateverHappens) {
  EXPECT_TRUE(rc::check([](const std::vector<Move>& moves) { CheckWorld(moves, {}); }));
}

TEST(CoreProperties, WithPreemptionStorms) {
  Policy policy;
  policy.quantum_factor = 0;
  policy.theta = 0;
  policy.lost_budget = 1000;
  policy.starvation_bound = kHour;
  policy.default_save = policy.default_restore = 0;
  EXPECT_TRUE(rc::check([&](const std::vector<Move>& moves) { CheckWorld(moves, policy); }));
}

TEST(CoreProperties, AllJobsRunWithinTheBoundWhateverTheirSize) {
  // A stream of small jobs would keep a large gang waiting forever.
  World w;
  std::vector<Event> nodes;
  for (int i = 0; i < 4; ++i) nodes.push_back(NodeUp{GpuNode("n" + std::to_string(i))});
  w.Feed(nodes);
  JobId next = 2;
  JobSpec large = Gang(1, 4, 8);
  std::map<JobId, Micros> ends;
  Micros started = 0;
  for (int minute = 0; minute < 24 * 60 && started == 0; ++minute) {
    std::vector<Event> events;
    if (minute == 10) events.push_back(JobSubmitted{large});
    for (int k = 0; k < 2; ++k) {
      JobSpec small = Gang(next++, 1, 2);
      small.preemptible = false;
      events.push_back(JobSubmitted{small});
    }
    for (const auto& [id, pods] : w.running) {
      if (!ends.contains(id)) ends[id] = w.now + static_cast<Micros>(id % 20 + 1) * 60 * kSecond;
      if (ends[id] <= w.now && id != 1) events.push_back(JobEnded{id});
    }
    w.Feed(events, 60 * kSecond);
    if (w.Runs(1)) started = w.now;
  }
  EXPECT_GT(w.holds, 0);
  ASSERT_GT(started, 0);
  // Its run time is unknown, so it counts as the lowest level. Then it gets a hold, which is served within the hour.
  const Policy p;
  EXPECT_LT(started, p.starvation_bound + p.level_base * p.starvation_stretch / 1000 + kHour);
}

// Short work never stops coming, always more than there is room for. The gang would run for days: nobody is told, and
// by what is learned of the short jobs alone it would be evicted again and again.
TEST(CoreProperties, AGangWaitsInProportionToWhatItHasRun) {
  constexpr Micros kStep = 600 * kSecond;
  EXPECT_TRUE(rc::check([](const Move& m) {
    const Policy policy;
    World w(policy);
    const int nodes = m.a % 5 + 2, pods = m.b % (nodes - 1) + 2;
    std::vector<Event> events;
    for (int i = 0; i < nodes; ++i) events.push_back(NodeUp{GpuNode("n" + std::to_string(i))});
    JobSpec gang = Gang(1, pods, 8);
    gang.checkpoint = {true, 30 * kSecond, 60 * kSecond, 0};
    events.push_back(JobSubmitted{gang});
    JobId next = 2;
    std::map<JobId, Micros> work, done;  // of the short jobs
    Micros ran = 0, longest = 0;
    const double size = pods * 8, all = nodes * 8;
    const double patience = policy.turn_gang / size * policy.turn_gang / size;
    // With more than one such gang, or one that takes most of the cluster, the budget decides.
    const double charge = std::min(all / std::max(all - size, 1.0), 16.0);
    const double budget = size / all * charge * 1000 / static_cast<double>(policy.turn_share);
    for (Micros end = 60 * kHour; w.now < end;) {
      while (w.jobs.size() + events.size() < static_cast<size_t>(4 * nodes + 8)) {
        JobSpec brief = Gang(next, 1, 1 << (next * 7 + static_cast<JobId>(m.c)) % 4);
        brief.checkpoint = gang.checkpoint;
        brief.user = "sweep";
        work[next++] = static_cast<Micros>(m.kind % 50 + 10) * 60 * kSecond;
        events.push_back(JobSubmitted{std::move(brief)});
        if (events.size() > 40) break;
      }
      for (JobId id : w.stopping) events.push_back(JobStopped{id, 0});
      for (const auto& [id, places] : w.running) {
        if (id == 1 || w.stopping.contains(id)) continue;
        if (done[id] >= work[id]) events.push_back(JobEnded{id});
      }
      const Micros before = w.now;
      w.Feed(std::exchange(events, {}), kStep);
      w.Run(kSecond);
      for (const auto& [id, places] : w.running) {
        if (!w.stopping.contains(id)) done[id] += w.now - before;
      }
      ran = done[1];
      const Micros waited = w.now - ran;
      const auto allowed = static_cast<Micros>(std::max(patience, budget) * static_cast<double>(ran));
      longest = std::max(longest, waited - allowed);
      if (::testing::Test::HasFailure()) RC_FAIL("see above");
    }
    // A turn is budgeted as a whole; until all room is free and saved takes a while.
    const auto turn = static_cast<Micros>(budget * static_cast<double>(policy.starvation_turn));
    RC_ASSERT(longest <= policy.starvation_bound + turn + 2 * kHour);
  }));
}

}  // namespace
}  // namespace vrun::sched::core
