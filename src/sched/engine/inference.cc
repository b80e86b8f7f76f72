// SPDX-License-Identifier: Apache-2.0
// Inference beside training. Its pods do not wait for a pass. On every step they get, in this order:
//  - free room (some is left idle for them: headroom.h),
//  - room of elastic gangs beyond their minimum,
//  - the room of the cheapest victims of lower classes, from a prepared shelf.
// When they leave, the room goes first to the jobs that it was taken from.
#include <algorithm>
#include <bit>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {
constexpr size_t kShelf = 64;      // nodes kept for each number of GPUs
constexpr size_t kNodesTried = 4;  // of the shelf's nodes, in addition to one per pod
// A job with more pods is evicted only by a pass, because computing what it leaves would take long.
constexpr size_t kMostRooms = 8;
// Larger gangs wait for a pass.
constexpr int32_t kMostPods = 16;
}  // namespace

// For each number of GPUs, the nodes where that many cost least. Computed with the prices, used on any step.
void Core::FillShelf() {
  for (auto& nodes : shelf_) nodes.clear();
  if (!inference_seen_) return;
  std::vector<std::pair<int64_t, JobIndex>> by_price;
  for (NodeId n = 0; n < on_node_.size(); ++n) {
    const Cluster::Node& node = cluster_.node(n);
    if (on_node_[n].empty() || !node.up || node.closed || node.held > 0) continue;
    by_price.clear();
    for (JobIndex v : on_node_[n]) {
      if (v < victims_.size() && victims_[v].job != kNoJob && ClassOf(jobs_[v]) < Class::kInference) {
        by_price.push_back({PriceFor(kHour, 0, victims_[v]), v});
      }
    }
    std::sort(by_price.begin(), by_price.end());
    int gpus = std::popcount(node.whole & node.spec.usable_for(Sharing::kWhole));
    int64_t price = 0;
    for (const auto& [one, v] : by_price) {
      price += one;
      int more = 0;
      for (const Room& r : jobs_[v].placement.rooms) more += r.node == n ? std::popcount(r.mask()) : 0;
      // From here on there are enough GPUs for these numbers, and before there were not.
      for (int k = gpus + 1; k <= std::min(gpus + more, kMaxGpus); ++k) shelf_[k].push_back({price, n});
      gpus += more;
    }
  }
  for (auto& nodes : shelf_) {
    const size_t keep = std::min(nodes.size(), kShelf);
    std::partial_sort(nodes.begin(), nodes.begin() + static_cast<int64_t>(keep), nodes.end());
    nodes.resize(keep);
  }
}

// Places urgent jobs of this step without waiting for the next pass.
void Core::Fast() {
  for (JobIndex j : fresh_) {
    if (jobs_[j].phase != Phase::kPending || ClassOf(jobs_[j]) != Class::kInference) continue;
    DemandState fresh;
    fresh.demand = demands_[jobs_[j].demand].demand;
    if (TryPlace(j, fresh) || !policy_.preemption) continue;
    if (!TryShrink(j, fresh)) TryShelf(j, fresh.demand);
  }
}

bool Core::TryShelf(JobIndex j, const Demand& demand) {
  const Job& job = jobs_[j];
  const Demand::Part& part = demand.parts[0];
  const int gpus = part.request.slice() ? 1 : part.request.gpus;
  if (demand.parts.size() > 1 || gpus < 1 || part.pods > kMostPods || demand.required != Level::kCluster) return false;
  const uint64_t allowed = AlternativesAllowed(job, demand);
  const Micros delay = std::min(job.estimate.service, WaitWithout(demand));
  for (uint32_t a = 0; a < demand.alternatives.size(); ++a) {
    if ((allowed >> a & 1) == 0) continue;
    Plan plan;
    plan.delay = delay;
    int32_t slots = 0;
    for (const auto& [price, n] : shelf_[gpus]) {
      if (plan.nodes.size() >= static_cast<size_t>(part.pods) + kNodesTried || slots >= part.pods) break;
      if (cluster_.node(n).held > 0) continue;
      std::vector<std::pair<int64_t, JobIndex>> by_price;
      for (JobIndex v : on_node_[n]) {
        if (v < victims_.size() && ClassOf(jobs_[v]) < Class::kInference &&
            jobs_[v].placement.rooms.size() <= kMostRooms && Eligible(job, INT32_MAX, false, victims_[v])) {
          by_price.push_back({PriceFor(job.estimate.service, 0, victims_[v]), v});
        }
      }
      std::sort(by_price.begin(), by_price.end());
      // The cheapest victims, as many as are needed for one pod.
      const ShapeId shape = demand.alternatives[a].shapes[0];
      std::vector<const Room*> freed;
      std::vector<JobIndex> leave;
      int32_t fit = cluster_.FitOn(shape, n);
      for (size_t i = 0; i < by_price.size() && fit == 0; ++i) {
        leave.push_back(by_price[i].second);
        for (const Room& r : jobs_[leave.back()].placement.rooms) {
          if (r.node == n) freed.push_back(&r);
        }
        fit = cluster_.FitWith(shape, n, freed);
      }
      if (fit == 0) continue;
      slots += fit;
      plan.nodes.push_back(n);
      for (JobIndex v : leave) {
        if (std::find(plan.victims.begin(), plan.victims.end(), v) == plan.victims.end()) plan.victims.push_back(v);
      }
    }
    if (slots < part.pods || plan.victims.empty()) continue;
    const size_t mark = cluster_.Mark();
    auto placement = Prune(j, &plan);
    if (!placement) continue;
    const Terms terms = TermsFor(j, plan, WaitWithout(demand));
    if (static_cast<__int128>(terms.gain) * 1000 > static_cast<__int128>(terms.price) * (1000 + policy_.theta)) {
      lost_tokens_ -= plan.lost;
      Claim(j, plan, std::move(*placement), terms);
      return true;
    }
    cluster_.Undo(mark);
  }
  return false;
}

// --- headroom ---

// Whether the job leaves enough room idle for inference. A job that can be killed at once may use that room meanwhile.
bool Core::LeavesHeadroom(const Job& job, int64_t milli) const {
  if (headroom_target_ == 0 || ClassOf(job) == Class::kInference) return true;
  if (ClassOf(job) == Class::kScavenger && job.spec.preemptible) return true;
  // A job too large for the rest of the cluster would wait forever.
  const int64_t idle = cluster_.total_milli() - teams_.used(kRoot);
  return idle - milli >= headroom_target_ || milli + headroom_target_ > cluster_.total_milli();
}

// --- returning room ---

// `job` leaves room that other jobs had to give up for it.
void Core::NoteReturn(Job* job) {
  if (job->taken_from.empty()) return;
  Return back;
  back.to = std::exchange(job->taken_from, {});
  for (const Room& r : job->placement.rooms) back.nodes.push_back(r.node);
  returns_.push_back(std::move(back));
}

void Core::GiveBack() {
  for (const Return& back : std::exchange(returns_, {})) {
    std::vector<NodeId> nodes;
    std::copy_if(back.nodes.begin(), back.nodes.end(), std::back_inserter(nodes),
                 [&](NodeId n) { return n < cluster_.size() && cluster_.node(n).held == 0 && cluster_.node(n).up; });
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    for (JobId id : back.to) {
      const JobIndex j = IndexOf(id);
      if (j == kNoJob) continue;
      if (jobs_[j].phase == Phase::kRunning && ElasticPart(jobs_[j]) != nullptr) GrowOne(j);
      if (jobs_[j].phase != Phase::kPending) continue;
      const Demand& demand = demands_[jobs_[j].demand].demand;
      const uint64_t allowed = AlternativesAllowed(jobs_[j], demand);
      const size_t mark = cluster_.Mark();
      auto placed = allowed == 0 ? std::nullopt : placer_.PlaceOn(demand, nodes, allowed);
      if (!placed) continue;
      if (teams_.Admits(jobs_[j].team, ChargesOf(*placed), jobs_[j].spec.preemptible).ok) {
        Start(j, std::move(*placed));
      } else {
        cluster_.Undo(mark);
      }
    }
  }
}

}  // namespace vrun::sched::core
