// SPDX-License-Identifier: Apache-2.0
// What is likely to come to a node, as a sample: kFutures sequences of pods drawn from the recent arrivals, a kind of
// pod as often as it asks for GPUs. The same kinds give the same sample, everywhere.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "sched/model/cluster.h"

namespace vrun::sched::core {

class Futures {
 public:
  static constexpr int kFutures = 48;
  // A future is so many pods long for each GPU with free room. Beyond that, nothing rare that could still fill a
  // remainder is to be counted on.
  static constexpr int kArrivalsPerGpu = 8;
  // What is idle at the end of a future counts so many times what is idle on average over the first kArrivalsPerGpu
  // pods for each free GPU. Without the latter all nodes that some pod will fill in the end are equal, and those that
  // many kinds could use are not kept for them.
  static constexpr int kEndWeight = 7;
  // An idle thousandth of a GPU for ever.
  static constexpr int64_t kUnit = int64_t{kFutures} * (kEndWeight + 1);

  struct Kind {
    Request request;                     // of some GPU room
    std::vector<std::string> gpu_types;  // empty: any
    int64_t weight = 0;
  };
  void Draw(std::vector<Kind> kinds);

  // The GPU room that is idle on the node while a future comes by and each pod that still fits goes in, a slice on the
  // fullest GPU that takes it, and after that: thousandths of a GPU, kUnit times.
  int64_t Idle(const NodeSpec& spec, mig::Model model, const FreeRoom& free) const;

 private:
  using KindIndex = uint16_t;
  static constexpr uint64_t kAnyType = ~uint64_t{0};
  uint64_t TypeBit(const std::string& type) const;

  std::vector<Kind> kinds_;
  std::vector<uint64_t> types_;                      // by kind, bits of type_index_
  std::unordered_map<std::string, int> type_index_;  // looked up only: its order tells nothing
  std::vector<std::vector<KindIndex>> futures_;
};

}  // namespace vrun::sched::core
