// SPDX-License-Identifier: Apache-2.0
// Groups intervals by team, user, day and so on, and sums them up in one pass.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "control/money/amounts.h"
#include "control/money/day_sums.h"
#include "control/money/prices.h"
#include "control/store/store.h"
#include "proto/usage.pb.h"

namespace vrun::control {

// By what the rows are told apart.
struct UsageBy {
  bool team = false, user = false, project = false, pool = false, gpu_type = false, job = false, day = false;
};
// "team,user". kInvalid lists the words.
Result<UsageBy> ParseUsageBy(std::string_view text);

// What the caller sees of a holder.
enum class Seen : uint8_t {
  kNothing,
  kSum,  // but not whose it is, nor the job or the project
  kWhole
};

class UsageSums {
 public:
  // `prices` outlives it. The sums are those of [from, to).
  UsageSums(const UsageBy& by, const Prices* prices, int64_t from, int64_t to)
      : by_(by), prices_(prices), from_(from), to_(to) {}

  // `holder` stays where it is until Take. `seen` is the same in all calls with this holder.
  void Add(const Holder& holder, const IntervalRow& interval, Seen seen);
  // What is left of removed jobs, which are all one row by job: that of the job 0. All of them have ended before `now`,
  // so a day that is cut there is whole.
  void AddDay(const Holder& holder, int64_t day, const DaySums& sums, Seen seen, int64_t now);
  // The rows and the total. At most `limit` rows, the largest ones; the others are one more row.
  void Take(size_t limit, v1::UsageReport* report);

 private:
  struct Key {
    uint32_t group = 0;  // index of labels_
    uint64_t job = 0;
    int64_t day = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct HolderView {
    uint32_t group = 0;
    bool hidden = false;
    std::vector<PriceStep> prices;
  };

  // What a row needs besides its amounts.
  struct Details {
    std::vector<uint64_t> jobs;  // with repetitions
    std::vector<int64_t> waits;  // microseconds, one for each attempt that began
  };

  const HolderView& ViewOf(const Holder& holder, Seen seen);
  uint32_t IndexOf(const Key& key);  // into sums_; makes it
  void AddTo(const Key& key, const HolderView& view, const IntervalRow& interval, int64_t from, int64_t to);
  static void Put(const Amounts& amounts, Details* details, v1::UsageRow* row);

  const UsageBy by_;
  const Prices* const prices_;
  const int64_t from_, to_;
  std::vector<v1::UsageRow> labels_;  // team, user, ... of the groups
  std::map<std::string, uint32_t> groups_;
  std::unordered_map<const Holder*, HolderView> views_;
  std::unordered_map<Key, uint32_t, KeyHash> index_;  // into sums_
  std::vector<std::pair<Key, Amounts>> sums_;
  std::vector<std::pair<uint32_t, uint64_t>> jobs_;  // index into sums_, job
  std::vector<std::pair<uint32_t, int64_t>> waits_;  // index into sums_, wait
};

}  // namespace vrun::control
