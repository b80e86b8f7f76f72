// SPDX-License-Identifier: Apache-2.0
#include "sched/sched.h"

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/escape.h"

namespace vrun::sched {

namespace {

struct NodeState {
  std::string pool;
  Resources total;
  int64_t used_milli_cpus = 0;
  int64_t used_memory_bytes = 0;
  int64_t used_gpus = 0;
  uint32_t jobs = 0;
  bool known = false;  // NodeUp was seen; otherwise only its allocations are
  bool up = false;

  // Negative when it was overcommitted by its owner's word.
  int64_t free_milli_cpus() const { return total.milli_cpus - used_milli_cpus; }
  int64_t free_memory_bytes() const { return total.memory_bytes - used_memory_bytes; }
  int64_t free_gpus() const { return total.gpus - used_gpus; }
  bool has_type(const Resources& needs) const {
    return needs.gpus == 0 || needs.gpu_type.empty() || needs.gpu_type == total.gpu_type;
  }
  bool FitsNow(const Resources& needs) const {
    return up && has_type(needs) && needs.milli_cpus <= free_milli_cpus() &&
           needs.memory_bytes <= free_memory_bytes() && needs.gpus <= free_gpus();
  }
  bool FitsEmpty(const Resources& needs) const {
    return has_type(needs) && needs.milli_cpus <= total.milli_cpus && needs.memory_bytes <= total.memory_bytes &&
           needs.gpus <= total.gpus;
  }
  void Account(const Resources& needs, int sign) {
    used_milli_cpus += sign * needs.milli_cpus;
    used_memory_bytes += sign * needs.memory_bytes;
    used_gpus += sign * needs.gpus;
    jobs += static_cast<uint32_t>(sign);
  }
};

struct PoolState {
  std::set<std::string> nodes;
  std::deque<JobId> queue;  // pending, next first
};

struct JobState {
  std::string pool;
  std::string node;  // "" while pending
  Resources needs;
};

std::string CountOf(int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string Bytes(int64_t n) {
  constexpr int64_t kMiB = 1 << 20;
  if (n < kMiB) return CountOf(std::max<int64_t>(n, 0), "byte");
  if (n < 10 * 1024 * kMiB) return std::to_string(n / kMiB) + " MiB";
  return std::to_string(n / (1024 * kMiB)) + " GiB";
}

std::string Cores(int64_t milli) {
  milli = std::max<int64_t>(milli, 0);
  if (milli % 1000 == 0) return CountOf(milli / 1000, "core");
  std::string tenths = std::to_string(milli % 1000 / 100);
  return std::to_string(milli / 1000) + "." + tenths + " cores";
}

}  // namespace

struct State::Impl {
  std::map<std::string, NodeState> nodes;
  std::map<std::string, PoolState> pools;
  std::unordered_map<JobId, JobState> jobs;

  bool IsPending(JobId id) const {
    auto it = jobs.find(id);
    return it != jobs.end() && it->second.node.empty();
  }

  // --- events; each says which pool may have got room or work ---

  std::string On(const NodeUp& e) {
    NodeState& node = nodes[e.name];
    if (node.known && node.pool != e.pool) pools[node.pool].nodes.erase(e.name);
    node.pool = e.pool;
    node.total = e.total;
    node.known = true;
    node.up = true;
    pools[e.pool].nodes.insert(e.name);
    return e.pool;
  }
  std::string On(const NodeLost& e) { return Down(e.name); }
  std::string On(const NodeDrained& e) { return Down(e.name); }
  std::string Down(const std::string& name) {
    if (auto it = nodes.find(name); it != nodes.end()) it->second.up = false;
    return "";
  }
  std::string On(const JobSubmitted& e) {
    if (!jobs.try_emplace(e.job, JobState{e.pool, "", e.needs}).second) return "";
    PoolState& pool = pools[e.pool];
    pool.queue.push_back(e.job);
    return e.pool;
  }
  std::string On(const JobCancelled& e) {
    auto it = jobs.find(e.job);
    if (it == jobs.end() || !it->second.node.empty()) return "";
    std::string pool = it->second.pool;
    std::erase(pools[pool].queue, e.job);
    jobs.erase(it);
    return pool;
  }
  std::string On(const JobStarted& e) {
    if (jobs.contains(e.job)) return "";
    NodeState& node = nodes[e.node];
    node.Account(e.needs, 1);
    jobs[e.job] = JobState{node.pool, e.node, e.needs};
    return "";
  }
  std::string On(const JobEnded& e) {
    auto it = jobs.find(e.job);
    if (it == jobs.end()) return "";
    if (it->second.node.empty()) return On(JobCancelled{e.job});
    NodeState& node = nodes[it->second.node];
    node.Account(it->second.needs, -1);
    jobs.erase(it);
    return node.pool;
  }
  std::string On(const Tick&) { return ""; }

  // --- placement ---

  const std::string* BestFit(const PoolState& pool, const Resources& needs) const {
    const std::string* best = nullptr;
    std::tuple<int64_t, int64_t, int64_t> best_left;
    for (const std::string& name : pool.nodes) {  // in order of names: the first of equals wins
      const NodeState& node = nodes.at(name);
      if (!node.FitsNow(needs)) continue;
      std::tuple left(node.free_gpus() - needs.gpus, node.free_milli_cpus() - needs.milli_cpus,
                      node.free_memory_bytes() - needs.memory_bytes);
      if (best == nullptr || left < best_left) {
        best = &name;
        best_left = left;
      }
    }
    return best;
  }

  void Drain(PoolState& pool, std::vector<Action>* actions) {
    while (!pool.queue.empty()) {
      JobId id = pool.queue.front();
      JobState& job = jobs.at(id);
      const std::string* name = BestFit(pool, job.needs);
      if (name == nullptr) return;
      job.node = *name;
      nodes.at(*name).Account(job.needs, 1);
      pool.queue.pop_front();
      actions->push_back(Place{id, *name, job.needs});
    }
  }

  // Why the head of a queue does not fit: what it lacks on the node that comes nearest.
  std::string Lack(const std::string& pool_name, const PoolState& pool, const Resources& needs) const {
    const std::string where = "pool " + Escape(pool_name);
    if (pool.nodes.empty()) return "no node has joined " + where + " yet";
    std::vector<const NodeState*> up;
    for (const std::string& name : pool.nodes) {
      if (nodes.at(name).up) up.push_back(&nodes.at(name));
    }
    if (up.empty()) return "no node of " + where + " is up";
    if (needs.gpus > 0) {
      std::string what =
          CountOf(needs.gpus, needs.gpu_type.empty() ? "gpu" : (Escape(needs.gpu_type) + " gpu").c_str());
      int64_t best = -1;
      for (const NodeState* n : up) {
        if (n->has_type(needs)) best = std::max(best, n->free_gpus());
      }
      if (best < 0) return "needs " + what + "; no node of " + where + " that is up has that type";
      if (best < needs.gpus)
        return "needs " + what + "; the best node of " + where + " has " + std::to_string(best) + " free";
    }
    int64_t best_cpus = 0;
    int64_t best_memory = 0;
    for (const NodeState* n : up) {
      best_cpus = std::max(best_cpus, n->free_milli_cpus());
      best_memory = std::max(best_memory, n->free_memory_bytes());
    }
    if (best_cpus < needs.milli_cpus) {
      return "needs " + Cores(needs.milli_cpus) + "; the best node of " + where + " has " + Cores(best_cpus) + " free";
    }
    if (best_memory < needs.memory_bytes) {
      return "needs " + Bytes(needs.memory_bytes) + " of memory; the best node of " + where + " has " +
             Bytes(best_memory) + " free";
    }
    return "no single node of " + where + " has all that it needs free";
  }
};

State::State() : impl_(std::make_unique<Impl>()) {}
State::~State() = default;
State::State(State&&) noexcept = default;
State& State::operator=(State&&) noexcept = default;

std::optional<State::NodeUse> State::Node(const std::string& name) const {
  auto it = impl_->nodes.find(name);
  if (it == impl_->nodes.end()) return std::nullopt;
  const NodeState& n = it->second;
  return NodeUse{n.total, {n.used_milli_cpus, n.used_memory_bytes, n.used_gpus, n.total.gpu_type}, n.jobs, n.up};
}

std::vector<Action> Step(State& state, std::span<const Event> events, int64_t /*now*/) {
  State::Impl& s = state.impl();
  std::set<std::string> touched;
  for (const Event& event : events) {
    std::string pool = std::visit([&s](const auto& e) { return s.On(e); }, event);
    if (!pool.empty()) touched.insert(std::move(pool));
  }
  std::vector<Action> actions;
  for (const std::string& pool : touched) s.Drain(s.pools[pool], &actions);
  return actions;
}

Status Feasible(const State& state, const std::string& pool, const Resources& needs) {
  const State::Impl& s = state.impl();
  auto it = s.pools.find(pool);
  if (it == s.pools.end() || it->second.nodes.empty()) return {};
  Resources most;
  for (const std::string& name : it->second.nodes) {
    const NodeState& node = s.nodes.at(name);
    if (node.FitsEmpty(needs)) return {};
    most.milli_cpus = std::max(most.milli_cpus, node.total.milli_cpus);
    most.memory_bytes = std::max(most.memory_bytes, node.total.memory_bytes);
    if (node.has_type(needs)) most.gpus = std::max(most.gpus, node.total.gpus);
  }
  const std::string where = "pool " + Escape(pool);
  const std::string gpu = needs.gpu_type.empty() ? "gpu" : Escape(needs.gpu_type) + " gpu";
  std::string why;
  if (needs.gpus > most.gpus) {
    why = "needs " + CountOf(needs.gpus, gpu.c_str()) + "; the largest node of " + where + " has " +
          std::to_string(most.gpus);
  } else if (needs.milli_cpus > most.milli_cpus) {
    why = "needs " + Cores(needs.milli_cpus) + "; the largest node of " + where + " has " + Cores(most.milli_cpus);
  } else if (needs.memory_bytes > most.memory_bytes) {
    why = "needs " + Bytes(needs.memory_bytes) + " of memory; the largest node of " + where + " has " +
          Bytes(most.memory_bytes);
  } else {
    why = "no single node of " + where + " has all of it";
  }
  return Error(Code::kInvalid, "the request can never be met: " + why + ": ask for less or choose another pool");
}

std::optional<Waiting> Explain(const State& state, JobId job) {
  const State::Impl& s = state.impl();
  if (!s.IsPending(job)) return std::nullopt;
  const JobState& j = s.jobs.at(job);
  const PoolState& pool = s.pools.at(j.pool);
  auto it = std::find(pool.queue.begin(), pool.queue.end(), job);
  Waiting waiting;
  waiting.position = static_cast<uint32_t>(it - pool.queue.begin()) + 1;
  if (waiting.position == 1) {
    waiting.reason = s.Lack(j.pool, pool, j.needs);
  } else {
    JobId head = pool.queue.front();
    waiting.reason = "job " + std::to_string(head) + " is first in pool " + Escape(j.pool) + " and " +
                     s.Lack(j.pool, pool, s.jobs.at(head).needs);
  }
  return waiting;
}

std::vector<JobId> Queue(const State& state, const std::string& pool) {
  auto it = state.impl().pools.find(pool);
  if (it == state.impl().pools.end()) return {};
  return {it->second.queue.begin(), it->second.queue.end()};
}

}  // namespace vrun::sched
