// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/slurm_policy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <map>
#include <optional>

#include "base/escape.h"
#include "sim/policies/ranked_queue.h"

namespace vrun::sim {
namespace {

using Next = RankedQueue::Next;

constexpr int64_t kSecond = kMicrosPerSecond;
constexpr int64_t kMinute = 60 * kSecond;
constexpr int64_t kFirstWindow = 30 * kSecond;  // window in which the ends of running jobs are considered together

// One bit per node. A pass considers jobs x moments x nodes, so these are machine words.
class NodeSet {
 public:
  NodeSet(int32_t nodes, bool all) : nodes_(nodes), words_((static_cast<size_t>(nodes) + 63) / 64, all ? ~0ULL : 0) {
    if (all && nodes % 64 != 0) words_.back() >>= 64 - nodes % 64;
  }
  int32_t nodes() const { return nodes_; }
  bool Has(int32_t node) const { return (words_[Word(node)] >> (node % 64) & 1) != 0; }
  void Add(int32_t node) { words_[Word(node)] |= 1ULL << (node % 64); }
  void Remove(int32_t node) { words_[Word(node)] &= ~(1ULL << (node % 64)); }
  // Returns false when none is left.
  bool KeepOnly(const NodeSet& other) {
    uint64_t any = 0;
    for (size_t w = 0; w < words_.size(); ++w) any |= words_[w] &= other.words_[w];
    return any != 0;
  }
  int64_t CountIn(const NodeSet& other) const {
    int64_t count = 0;
    for (size_t w = 0; w < words_.size(); ++w) count += std::popcount(words_[w] & other.words_[w]);
    return count;
  }

 private:
  static size_t Word(int32_t node) { return static_cast<size_t>(node) / 64; }
  int32_t nodes_;
  std::vector<uint64_t> words_;
};

// Like select/cons_tres without a topology: the shortest sufficient run of neighbouring nodes. If no run is long
// enough, the longest one, and the missing nodes from the others. REQUIRES that there are enough.
void SelectNodes(const NodeSet& usable, int32_t gpus_each, int64_t count, Placement* out) {
  struct Run {
    int32_t first = 0;
    int32_t length = 0;
  };
  std::vector<Run> runs;
  for (int32_t node = 0; node < usable.nodes(); ++node) {
    if (!usable.Has(node)) continue;
    if (runs.empty() || runs.back().first + runs.back().length != node) runs.push_back({node, 0});
    ++runs.back().length;
  }
  while (count > 0) {
    const auto better = [&](const Run& a, const Run& b) {
      const bool a_does = a.length >= count, b_does = b.length >= count;
      if (a_does != b_does) return a_does;
      return a_does ? a.length < b.length : a.length > b.length;
    };
    Run& run = *std::min_element(runs.begin(), runs.end(), better);
    for (; run.length > 0 && count > 0; --run.length, --count) out->push_back({run.first++, gpus_each});
  }
}

// The plan of one backfill pass: which nodes have no reservation, by time.
class Timeline {
 public:
  Timeline(int64_t begin, int32_t nodes) : slots_{{begin, std::numeric_limits<int64_t>::max(), NodeSet(nodes, true)}} {}

  // The nodes without reservations in all of [begin, end]. *next is the end of the first slot considered, when another
  // try may find other nodes; 0: never.
  NodeSet Unreserved(int64_t begin, int64_t end, int64_t* next) const {
    NodeSet out(slots_[0].nodes.nodes(), true);
    *next = 0;
    auto slot = std::partition_point(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.end <= begin; });
    if (slot + 1 < slots_.end()) *next = slot->end;
    for (; slot != slots_.end() && slot->begin <= end && out.KeepOnly(slot->nodes); ++slot) {
    }
    return out;
  }
  // Begin of the slot that contains this moment; where two slots meet, of the first.
  int64_t BeginOfSlot(int64_t at) const {
    return std::partition_point(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.end < at; })->begin;
  }
  bool Overlaps(const Placement& placement, int64_t begin, int64_t end) const {
    int64_t ignored = 0;
    const NodeSet free = Unreserved(begin, end - 1, &ignored);
    return std::any_of(placement.begin(), placement.end(), [&](const NodeShare& s) { return !free.Has(s.node); });
  }
  void Reserve(const Placement& placement, int64_t begin, int64_t end) {
    SplitAt(begin);
    SplitAt(end);
    for (Slot& slot : slots_) {
      if (slot.begin < begin || slot.begin >= end) continue;
      for (const NodeShare& share : placement) slot.nodes.Remove(share.node);
    }
  }

 private:
  struct Slot {
    int64_t begin, end;
    NodeSet nodes;
  };
  void SplitAt(int64_t at) {
    auto slot = std::partition_point(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.end <= at; });
    if (slot == slots_.end() || at <= slot->begin) return;
    Slot later{at, slot->end, slot->nodes};
    slot->end = at;
    slots_.insert(slot + 1, std::move(later));
  }
  std::vector<Slot> slots_;  // by time, without gaps
};

class SlurmPolicy : public Policy {
 public:
  explicit SlurmPolicy(const SlurmParameters& parameters) : parameters_(parameters) {}

  void Submitted(Engine&, JobIndex i) override { queue_.Add({0, i}); }

  void Schedule(Engine& engine) override {
    RunMain(engine);
    if (queue_.empty()) return;
    const int64_t interval = parameters_.interval_s * kSecond;
    if (engine.now() >= next_backfill_) {
      RunBackfill(engine);
      next_backfill_ = engine.now() / interval * interval + interval;
    }
    engine.WakeAt(next_backfill_);
  }

 private:
  // What is available at one moment: now, or when the jobs that end in some window are gone.
  struct Rung {
    std::vector<NodeSet> usable;  // index n - 1: nodes with at least n free GPUs
    size_t ended = 0;             // how many of ends_ are over
  };
  struct Start {
    int64_t at = 0;
    int64_t at_least = 0;  // lower bound, also for fewer nodes: the first end of that window
    size_t rung = 0;
  };

  // The wall time that users request: their jobs' durations, rounded up to minutes.
  static int64_t Limit(const TraceJob& job) { return (job.duration_us + kMinute - 1) / kMinute * kMinute + kMinute; }

  static Rung RungOf(const GangNodes& nodes, size_t ended) {
    Rung out{{}, ended};
    for (int32_t gpus = 1; gpus <= nodes.gpus_per_node(); ++gpus) {
      out.usable.emplace_back(nodes.nodes(), false);
      for (int32_t n = 0; n < nodes.nodes(); ++n) {
        if (nodes.FreeOn(n) >= gpus) out.usable.back().Add(n);
      }
    }
    return out;
  }

  static bool Fits(const Rung& rung, int32_t gpus, const NodeSet& allowed) {
    const auto per_node = static_cast<int32_t>(rung.usable.size());
    const int64_t whole = gpus / per_node;
    const int32_t rest = gpus % per_node;
    if (whole > 0 && allowed.CountIn(rung.usable.back()) < whole) return false;
    return rest == 0 || allowed.CountIn(rung.usable[rest - 1]) >= whole + 1;
  }

  // Whole nodes, and one more for the remainder. REQUIRES Fits.
  static Placement Select(const Rung& rung, int32_t gpus, const NodeSet& allowed) {
    const auto per_node = static_cast<int32_t>(rung.usable.size());
    const int64_t whole = gpus / per_node;
    const int32_t rest = gpus % per_node;
    Placement out;
    NodeSet left = allowed;
    if (whole > 0) {
      NodeSet empty = rung.usable.back();
      empty.KeepOnly(allowed);
      SelectNodes(empty, per_node, whole, &out);
      for (const NodeShare& share : out) left.Remove(share.node);
    }
    if (rest > 0) {
      left.KeepOnly(rung.usable[rest - 1]);
      SelectNodes(left, rest, 1, &out);
    }
    return out;
  }

  void RunMain(Engine& engine) {
    const NodeSet all(engine.config().nodes, true);
    int64_t depth = parameters_.queue_depth;
    queue_.Sweep([&](const Ranked& entry) {
      if (depth-- == 0 || !engine.Fits(entry.job)) return Next::kStop;
      engine.StartAt(entry.job, Select(RungOf(engine.nodes(), 0), engine.job(entry.job).gpus, all));
      return Next::kTake;
    });
  }

  void RunBackfill(Engine& engine) {
    Foresee(engine);
    Timeline timeline(engine.now(), engine.config().nodes);
    int64_t tests = parameters_.jobs_tested;
    queue_.Sweep([&](const Ranked& entry) {
      if (tests-- == 0) return Next::kStop;
      return Backfill(engine, entry.job, &timeline) ? Next::kTake : Next::kKeep;
    });
  }

  // Running jobs leave when their wall time is over, and are considered in windows that double.
  void Foresee(const Engine& engine) {
    ends_.clear();
    in_vain_.clear();  // with other windows an end may be seen sooner
    for (JobIndex i : engine.running()) {
      ends_.push_back({std::max(engine.record(i).started_us + Limit(engine.job(i)), engine.now() + kSecond), i});
    }
    std::sort(ends_.begin(), ends_.end());
    GangNodes nodes = engine.nodes();
    rungs_.assign(1, RungOf(nodes, 0));
    if (ends_.empty()) return;
    int64_t window = kFirstWindow;
    const int64_t base = (ends_[0].rank / window + 1) * window;
    for (size_t e = 0; e < ends_.size();) {
      while (ends_[e].rank > base + window) window *= 2;
      for (; e < ends_.size() && ends_[e].rank <= base + window; ++e) nodes.Give(engine.record(ends_[e].job).placement);
      rungs_.push_back(RungOf(nodes, e));
    }
  }

  // Starts the job or reserves room for it. Returns true when it has started.
  bool Backfill(Engine& engine, JobIndex i, Timeline* timeline) {
    const int64_t limit = Limit(engine.job(i));
    const int64_t resolution = parameters_.resolution_s * kSecond;
    const int64_t last = engine.now() + parameters_.window_min * kMinute;
    // Slurm tries one moment after another from now on. Moments that cannot succeed are skipped: those before all nodes
    // together would suffice, and those that failed for a job of the same size and no longer wall time.
    std::optional<Start> soonest = EarliestStart(engine, i, NodeSet(engine.config().nodes, true));
    if (!soonest) return false;
    std::map<int64_t, int64_t>& in_vain = in_vain_[engine.job(i).gpus];
    int64_t from = std::max({engine.now(), timeline->BeginOfSlot(soonest->at_least), InVainUntil(in_vain, limit)});
    bool only_in_vain = true;
    while (from <= last) {
      int64_t next = 0;
      const NodeSet nodes = timeline->Unreserved(from, from + limit, &next);
      std::optional<Start> start = EarliestStart(engine, i, nodes);
      if (!start && next == 0) return false;
      const int64_t at = start ? std::max(start->at, from) : 0;
      if (start && at <= engine.now()) {
        engine.StartAt(i, Select(rungs_[start->rung], engine.job(i).gpus, nodes));
        Foresee(engine);
        return true;
      }
      // Nodes that are reserved until then might give an earlier start.
      if (!start || (next != 0 && at > next)) {
        only_in_vain = only_in_vain && (!start || start->at_least > next);
        from = next;
        if (only_in_vain) in_vain[limit] = from;
        continue;
      }
      only_in_vain = false;
      if (at > last) return false;
      const int64_t begin = at / resolution * resolution;
      const int64_t end = (at + limit + resolution - 1) / resolution * resolution;
      const Placement placement = Select(rungs_[start->rung], engine.job(i).gpus, nodes);
      if (timeline->Overlaps(placement, begin, end)) {
        from = std::max(at, from + resolution);
        continue;
      }
      timeline->Reserve(placement, begin, end);
      return false;
    }
    return false;
  }

  static int64_t InVainUntil(const std::map<int64_t, int64_t>& by_limit, int64_t limit) {
    int64_t until = 0;
    for (auto it = by_limit.begin(); it != by_limit.end() && it->first <= limit; ++it)
      until = std::max(until, it->second);
    return until;
  }

  // When the job could start on these nodes if nothing else started.
  std::optional<Start> EarliestStart(const Engine& engine, JobIndex i, const NodeSet& nodes) {
    if (!Fits(rungs_.back(), engine.job(i).gpus, nodes)) return std::nullopt;  // nor earlier
    for (size_t r = 0; r < rungs_.size(); ++r) {
      if (!Fits(rungs_[r], engine.job(i).gpus, nodes)) continue;
      if (r == 0) return Start{engine.now(), engine.now(), r};
      size_t e = rungs_[r].ended - 1;
      const auto is_there = [&](const NodeShare& s) { return nodes.Has(s.node); };
      while (e > 0 && std::none_of(engine.record(ends_[e].job).placement.begin(),
                                   engine.record(ends_[e].job).placement.end(), is_there)) {
        --e;
      }
      return Start{ends_[e].rank, ends_[rungs_[r - 1].ended].rank, r};
    }
    return std::nullopt;
  }

  const SlurmParameters parameters_;
  RankedQueue queue_;
  int64_t next_backfill_ = 0;
  // Of one pass:
  std::vector<Ranked> ends_;  // of running jobs, by their limits
  std::vector<Rung> rungs_;
  std::map<int32_t, std::map<int64_t, int64_t>> in_vain_;  // by GPUs and wall time: nothing is available until then
};

}  // namespace

Result<SlurmParameters> ParseSlurmParameters(std::string_view text) {
  struct Known {
    std::string_view name;
    int64_t SlurmParameters::*value;
  };
  static constexpr Known kKnown[] = {
      {"bf_interval", &SlurmParameters::interval_s},
      {"bf_resolution", &SlurmParameters::resolution_s},
      {"bf_window", &SlurmParameters::window_min},
      {"bf_max_job_test", &SlurmParameters::jobs_tested},
      {"default_queue_depth", &SlurmParameters::queue_depth},
  };
  constexpr int64_t kMost = 10'000'000;
  SlurmParameters out;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view word = text.substr(at, comma - at);
    const size_t equals = std::min(word.find('='), word.size());
    const auto known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                    [&](const Known& k) { return k.name == word.substr(0, equals); });
    if (known == std::end(kKnown)) {
      return Error(Code::kInvalid, "'" + Escape(word.substr(0, 40)) +
                                       "': not a parameter of the model of Slurm: it has bf_interval, bf_resolution, "
                                       "bf_window, bf_max_job_test and default_queue_depth");
    }
    int64_t value = 0;
    const std::string_view number = word.substr(std::min(equals + 1, word.size()));
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc{} || end != number.data() + number.size() || value < 1 || value > kMost) {
      return Error(Code::kInvalid, "'" + Escape(word.substr(0, 40)) + "': write a whole number from 1 to 10000000");
    }
    out.*known->value = value;
    at = comma + 1;
  }
  return out;
}

std::unique_ptr<Policy> MakeSlurmPolicy(const SlurmParameters& parameters) {
  return std::make_unique<SlurmPolicy>(parameters);
}

}  // namespace vrun::sim
