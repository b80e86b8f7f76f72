// SPDX-License-Identifier: Apache-2.0
// Measures the time of the scheduler core: a full cluster with a long queue, 1,000 events per second for a while, a
// pass every 10 ms of its time. Prints one JSON object.
//
//   sched_bench [--nodes 10000] [--pending 100000] [--steps 2000] [--scale]
//
// --scale measures several sizes instead and fits the exponent of pass time over size.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/core.h"

namespace vrun::sched::core {
namespace {

// Gives the same numbers everywhere: uses no distribution of the library.
struct Random {
  uint64_t state;
  uint64_t Next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
};

NodeSpec MakeNode(int i) {
  NodeSpec n;
  n.name = "n" + std::to_string(i);
  n.pool = "p";
  n.gpu_type = "h100";
  n.gpus = 8;
  n.milli_cpus = 128'000;
  n.memory_bytes = int64_t{2} << 40;
  n.rack = "r" + std::to_string(100'000 + i / 18);
  n.block = "b" + std::to_string(1'000 + i / 288);
  n.zone = "z" + std::to_string(i / 4'608);
  n.gpu_groups = {15, 240};
  return n;
}

// Sizes as in production traces: most jobs are small, most GPU time is in large ones.
JobSpec MakeJob(JobId id, Random& random) {
  JobSpec j;
  j.id = id;
  j.pool = "p";
  int64_t user = random.Below(500);
  j.user = "u" + std::to_string(user);
  j.team = "t" + std::to_string(user % 50);
  j.name = "j" + std::to_string(random.Below(20));
  int64_t size = random.Below(1000);
  int gpus = size < 450 ? 1 : size < 550 ? 2 : size < 650 ? 4 : 8;
  int pods = size < 850 ? 1 : size < 920 ? 2 : size < 960 ? 4 : size < 985 ? 8 : size < 995 ? 16 : 64;
  j.roles = {{"w", pods, {gpus, 0, 8'000 * gpus, int64_t{100} << 30}}};
  int64_t klass = random.Below(100);
  j.klass = klass < 10   ? Class::kScavenger
            : klass < 40 ? Class::kExperiment
            : klass < 90 ? Class::kTraining
            : klass < 97 ? Class::kProduction
                         : Class::kInference;
  j.preemptible = j.klass <= Class::kTraining;
  if (pods > 1 && random.Below(3) == 0) j.required = Level::kBlock;
  if (pods > 1 && random.Below(2) == 0) j.preferred = Level::kRack;
  j.checkpoint.on_demand = random.Below(2) == 0;
  j.checkpoint.period = random.Below(2) * 1800 * kSecond;
  return j;
}

struct Numbers {
  std::vector<double> pass_us, fast_us;  // wall time
  std::vector<double> cpu_us;            // of passes: their cost on a machine that is not shared
  std::vector<double> fast_cpu_us;
  int64_t placed = 0, preempted = 0, holds = 0, pending = 0, running = 0;
  double fill_s = 0;
};

double Percentile(std::vector<double> v, double p) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(p * static_cast<double>(v.size())))];
}

double CpuMicros() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

Numbers Measure(int nodes, int pending, int steps, uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  Random random{seed};
  State state;
  Numbers out;
  Micros now = 0;
  JobId next = 1;
  std::vector<JobId> running;
  std::unordered_map<JobId, size_t> slot;
  std::deque<std::pair<Micros, JobId>> stops;
  std::unordered_map<JobId, bool> stopping;
  auto drop = [&](JobId id) {
    size_t i = slot.at(id);
    slot[running.back()] = i;
    running[i] = running.back();
    running.pop_back();
    slot.erase(id);
  };
  auto execute = [&](const std::vector<Action>& actions) {
    for (const Action& a : actions) {
      if (const auto* p = std::get_if<Place>(&a)) {
        slot[p->job] = running.size();
        running.push_back(p->job);
        ++out.placed;
      } else if (const auto* v = std::get_if<Preempt>(&a)) {
        drop(v->job);
        stops.push_back({now + 2 * kSecond, v->job});
        ++out.preempted;
      } else {
        ++out.holds;
      }
    }
  };
  std::vector<Event> events;
  for (int t = 0; t < 50; ++t) {
    events.push_back(TeamSet{{"t" + std::to_string(t),
                              "",
                              1000 + t * 10,
                              {{"", nodes * int64_t{8'000} / 100, nodes * int64_t{8'000} / 10}}}});
  }
  for (int i = 0; i < nodes; ++i) events.push_back(NodeUp{MakeNode(i)});
  execute(Step(state, events, now));
  // Fill the cluster, with some history, then let the queue grow.
  auto began = Clock::now();
  int target = pending;
  for (int waiting = 0; waiting < target;) {
    events.clear();
    for (int k = 0; k < 2000; ++k) events.push_back(JobSubmitted{MakeJob(next++, random)});
    now += kSecond;
    execute(Step(state, events, now));
    waiting = static_cast<int>(next - 1) - static_cast<int>(running.size());
  }
  out.fill_s = std::chrono::duration<double>(Clock::now() - began).count();
  now += 1800 * kSecond;  // all are past their quanta
  out.placed = out.preempted = out.holds = 0;
  for (int s = 0; s < steps; ++s) {
    events.clear();
    now += 10'000;
    while (!stops.empty() && stops.front().first <= now) {
      events.push_back(JobStopped{stops.front().second, 60 * kSecond});
      stops.pop_front();
    }
    // 1,000 events per second: as many jobs come as go.
    for (int k = 0; k < 5; ++k) {
      events.push_back(JobSubmitted{MakeJob(next++, random)});
      if (running.empty()) continue;
      JobId end = running[static_cast<size_t>(random.Below(static_cast<int64_t>(running.size())))];
      drop(end);
      events.push_back(JobEnded{end});
    }
    auto t0 = Clock::now();
    double c0 = CpuMicros();
    std::vector<Action> actions = Step(state, events, now);
    out.cpu_us.push_back(CpuMicros() - c0);
    out.pass_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - t0).count());
    execute(actions);
    // Between passes: one urgent job arrives.
    JobSpec urgent = MakeJob(next++, random);
    urgent.klass = Class::kInference;
    urgent.roles[0].pods = 1;
    urgent.required = urgent.preferred = Level::kCluster;
    Event event = JobSubmitted{urgent};
    now += 1000;
    t0 = Clock::now();
    c0 = CpuMicros();
    actions = Step(state, {&event, 1}, now);
    out.fast_cpu_us.push_back(CpuMicros() - c0);
    out.fast_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - t0).count());
    execute(actions);
  }
  out.running = static_cast<int64_t>(running.size());
  out.pending = static_cast<int64_t>(next) - 1 - out.placed - out.running;
  return out;
}

void Print(const char* name, int nodes, int pending, const Numbers& n) {
  std::printf("\"%s\": {\"nodes\": %d, \"gpus\": %d, \"pending\": %d, \"running\": %lld", name, nodes, nodes * 8,
              pending, static_cast<long long>(n.running));
  auto times = [](const char* what, const std::vector<double>& us) {
    for (auto [label, p] : {std::pair("p50", 0.5), std::pair("p99", 0.99), std::pair("max", 1.0)}) {
      std::printf(", \"%s_%s_ms\": %.3f", what, label, Percentile(us, p) / 1000);
    }
  };
  times("pass", n.pass_us);
  times("pass_cpu", n.cpu_us);
  times("fast", n.fast_us);
  times("fast_cpu", n.fast_cpu_us);
  std::printf(", \"passes\": %zu, \"placed\": %lld, \"preempted\": %lld, \"holds\": %lld, \"fill_s\": %.2f}",
              n.pass_us.size(), static_cast<long long>(n.placed), static_cast<long long>(n.preempted),
              static_cast<long long>(n.holds), n.fill_s);
}

}  // namespace
}  // namespace vrun::sched::core

int main(int argc, char** argv) {
  using namespace vrun::sched::core;
  int nodes = 10'000, pending = 100'000, steps = 2'000;
  bool scale = false;
  for (int i = 1; i < argc; ++i) {
    auto number = [&](const char* flag, int* value) {
      if (std::strcmp(argv[i], flag) == 0 && i + 1 < argc) *value = std::atoi(argv[++i]);
    };
    number("--nodes", &nodes);
    number("--pending", &pending);
    number("--steps", &steps);
    if (std::strcmp(argv[i], "--scale") == 0) scale = true;
  }
  std::printf("{");
  if (scale) {
    // Least squares of log time over log size.
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (int size : {100, 300, 1'000, 3'000, 10'000, 30'000}) {
      Numbers numbers = Measure(size, size * 10, std::min(steps, 500), 1);
      Print(("n" + std::to_string(size)).c_str(), size, size * 10, numbers);
      std::printf(",\n ");
      double lx = std::log(size), ly = std::log(Percentile(numbers.cpu_us, 0.5));
      n += 1, x += lx, y += ly, xx += lx * lx, xy += lx * ly;
    }
    std::printf("\"exponent\": %.3f", (n * xy - x * y) / (n * xx - x * x));
  } else {
    Print("pass", nodes, pending, Measure(nodes, pending, steps, 1));
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(",\n \"max_rss_mb\": %.1f}\n", static_cast<double>(usage.ru_maxrss) / 1024);
  return 0;
}
