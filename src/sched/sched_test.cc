// SPDX-License-Identifier: Apache-2.0
#include "sched/sched.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

namespace vrun::sched {
namespace {

constexpr int64_t kGiB = 1 << 30;

std::vector<Place> Feed(State& state, std::vector<Event> events) {
  std::vector<Place> places;
  for (const Action& a : Step(state, events, 0)) places.push_back(std::get<Place>(a));
  return places;
}

NodeUp SmallNode(const std::string& name, int64_t gpus = 0) { return {name, "local", {4000, 8 * kGiB, gpus, "h100"}}; }
JobSubmitted Job(JobId id, int64_t cores = 1, int64_t gpus = 0) {
  return {id, "local", {cores * 1000, kGiB, gpus, ""}};
}

TEST(Sched, AJobIsPlacedAtOnceWhereThereIsRoom) {
  State state;
  Feed(state, {SmallNode("n1")});
  auto places = Feed(state, {Job(1)});
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].node, "n1");
  EXPECT_EQ(state.Node("n1")->used.milli_cpus, 1000);
}

TEST(Sched, FirstInFirstOutEvenWhenALaterJobWouldFit) {
  State state;
  Feed(state, {SmallNode("n1"), Job(1, 3)});
  EXPECT_TRUE(Feed(state, {Job(2, 2), Job(3, 1)}).empty());
  EXPECT_EQ(Queue(state, "local"), (std::vector<JobId>{2, 3}));
  auto places = Feed(state, {JobEnded{1}});
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].job, 2u);
  EXPECT_EQ(places[1].job, 3u);
}

TEST(Sched, WorkWithoutGpusStaysOffGpuNodesAndTightNodesComeFirst) {
  State state;
  Feed(state, {SmallNode("a-gpu", 8), SmallNode("b-cpu"), SmallNode("c-cpu")});
  EXPECT_EQ(Feed(state, {Job(1)})[0].node, "b-cpu");
  EXPECT_EQ(Feed(state, {Job(2)})[0].node, "b-cpu");
  EXPECT_EQ(Feed(state, {Job(3, 4)})[0].node, "c-cpu");
  EXPECT_EQ(Feed(state, {Job(4, 1, 2)})[0].node, "a-gpu");
}

TEST(Sched, WaitingIsExplained) {
  State state;
  Feed(state, {Job(1)});
  EXPECT_EQ(Explain(state, 1)->reason, "no node has joined pool local yet");
  EXPECT_EQ(Feed(state, {SmallNode("n1", 2)}).size(), 1u);
  Feed(state, {Job(2, 1, 1), Job(3, 1, 2), Job(4)});
  EXPECT_FALSE(Explain(state, 2));
  EXPECT_EQ(Explain(state, 3)->position, 1u);
  EXPECT_EQ(Explain(state, 3)->reason, "needs 2 gpus; the best node of pool local has 1 free");
  EXPECT_EQ(Explain(state, 4)->position, 2u);
  EXPECT_EQ(Explain(state, 4)->reason,
            "job 3 is first in pool local and needs 2 gpus; the best node of pool local has 1 free");
  Feed(state, {NodeLost{"n1"}});
  EXPECT_EQ(Explain(state, 3)->reason, "no node of pool local is up");
}

TEST(Sched, ImpossibleRequestsAreNamed) {
  State state;
  EXPECT_TRUE(Feasible(state, "local", {1000, 0, 64, ""})) << "nobody knows yet what will join";
  Feed(state, {SmallNode("n1", 2)});
  EXPECT_TRUE(Feasible(state, "local", {4000, 8 * kGiB, 2, "h100"}));
  auto refused = Feasible(state, "local", {1000, 0, 3, ""});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalid);
  EXPECT_NE(refused.error().message().find("needs 3 gpus; the largest node of pool local has 2"), std::string::npos);
  EXPECT_FALSE(Feasible(state, "local", {1000, 0, 1, "a100"}));
  EXPECT_FALSE(Feasible(state, "local", {4001, 0, 0, ""}));
  EXPECT_FALSE(Feasible(state, "local", {1000, 9 * kGiB, 0, ""}));
  Feed(state, {NodeLost{"n1"}});
  EXPECT_TRUE(Feasible(state, "local", {1000, 0, 2, ""})) << "the node may come back";
}

TEST(Sched, ALostNodeKeepsWhatRunsOnItAccounted) {
  State state;
  EXPECT_EQ(Feed(state, {SmallNode("n1"), Job(1, 4)}).size(), 1u);
  Feed(state, {NodeLost{"n1"}});
  EXPECT_TRUE(Feed(state, {Job(2, 4), SmallNode("n1")}).empty());
  EXPECT_EQ(Feed(state, {JobEnded{1}}).size(), 1u);
}

TEST(Sched, ARestartRestoresWhatWasDecided) {
  State state;
  EXPECT_TRUE(Feed(state, {JobStarted{7, "n1", {3000, kGiB, 0, ""}}, SmallNode("n1"), Job(8, 2)}).empty());
  EXPECT_EQ(Feed(state, {JobEnded{7}})[0].job, 8u);
}

// --- properties: whatever happens, in whatever order ---

struct Step1 {
  int kind;
  int a, b, c;
};

Event MakeEvent(const Step1& s, JobId* next) {
  std::string node = "n" + std::to_string(s.a % 5);
  std::string pool = s.b % 4 == 0 ? "other" : "local";
  switch (s.kind % 8) {
    case 0: return NodeUp{node, pool, {(s.b % 8) * 1000, (s.c % 8) * kGiB, s.c % 5, s.c % 2 ? "h100" : "a100"}};
    case 1: return NodeLost{node};
    case 2: return JobEnded{static_cast<JobId>(s.a % (*next + 1))};
    case 3: return JobCancelled{static_cast<JobId>(s.a % (*next + 1))};
    case 4: return Tick{};
    default:
      return JobSubmitted{(*next)++, pool, {(s.a % 4) * 500, (s.b % 4) * kGiB, s.c % 3, s.c % 4 == 0 ? "h100" : ""}};
  }
}

}  // namespace
}  // namespace vrun::sched

namespace rc {
template <>
struct Arbitrary<vrun::sched::Step1> {
  static Gen<vrun::sched::Step1> arbitrary() {
    using S = vrun::sched::Step1;
    auto n = gen::inRange(0, 1000);
    return gen::build<S>(gen::set(&S::kind, n), gen::set(&S::a, n), gen::set(&S::b, n), gen::set(&S::c, n));
  }
};
}  // namespace rc

namespace vrun::sched {
namespace {

TEST(SchedProperties, NeverOverAllocatesKeepsOrderAndIsDeterministic) {
  bool fine = rc::check([](const std::vector<Step1>& steps) {
    State one, two;
    JobId next = 1;
    std::map<std::string, NodeUp> up;       // as last told
    std::map<JobId, JobSubmitted> pending;  // by id = by time of submission
    std::map<std::string, std::map<JobId, Resources>> running;
    for (const Step1& s : steps) {
      Event event = MakeEvent(s, &next);
      if (auto* e = std::get_if<NodeUp>(&event)) up[e->name] = *e;
      if (auto* e = std::get_if<NodeLost>(&event)) up.erase(e->name);
      if (auto* e = std::get_if<JobSubmitted>(&event)) pending[e->job] = *e;
      if (auto* e = std::get_if<JobCancelled>(&event)) pending.erase(e->job);
      if (auto* e = std::get_if<JobEnded>(&event)) {
        pending.erase(e->job);
        for (auto& [node, jobs] : running) jobs.erase(e->job);
      }
      auto places = Feed(one, {event});
      auto again = Feed(two, {event});
      RC_ASSERT(places.size() == again.size());
      for (size_t i = 0; i < places.size(); ++i) {
        const Place& p = places[i];
        RC_ASSERT(p.job == again[i].job && p.node == again[i].node);
        RC_ASSERT(up.contains(p.node));
        RC_ASSERT(pending.contains(p.job));
        JobSubmitted job = pending.at(p.job);
        RC_ASSERT(job.needs == p.needs && job.pool == up.at(p.node).pool);
        for (const auto& [id, other] : pending) {
          if (id < p.job) RC_ASSERT(other.pool != job.pool);
        }
        pending.erase(p.job);
        running[p.node][p.job] = p.needs;
        Resources sum;
        for (const auto& [id, r] : running[p.node]) {
          sum.milli_cpus += r.milli_cpus;
          sum.memory_bytes += r.memory_bytes;
          sum.gpus += r.gpus;
        }
        const Resources& total = up.at(p.node).total;
        RC_ASSERT(sum.milli_cpus <= total.milli_cpus && sum.memory_bytes <= total.memory_bytes &&
                  sum.gpus <= total.gpus);
        RC_ASSERT(p.needs.gpus == 0 || p.needs.gpu_type.empty() || p.needs.gpu_type == total.gpu_type);
      }
      // Nothing waits that could start: the head of each queue fits nowhere.
      for (const char* pool : {"local", "other"}) {
        auto queue = Queue(one, pool);
        RC_ASSERT(std::is_sorted(queue.begin(), queue.end()));
        if (!queue.empty()) RC_ASSERT(Explain(one, queue[0])->position == 1);
      }
    }
  });
  EXPECT_TRUE(fine);
}

}  // namespace
}  // namespace vrun::sched
