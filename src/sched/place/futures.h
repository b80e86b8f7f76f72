// SPDX-License-Identifier: Apache-2.0
// A sample of the pods likely to come to a node: kFutures sequences of pods drawn from the recent arrivals, each kind
// weighted by the GPUs it asks for. The same kinds give the same sample on every machine.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "sched/model/cluster.h"

namespace vrun::sched::core {

class Futures {
 public:
  static constexpr int kFutures = 48;
  // Pods in a future, per GPU with free room. A rare pod that would come even later to fill a remainder is not counted
  // on.
  static constexpr int kArrivalsPerGpu = 8;
  // The weight of what is idle at the end of a future, relative to the average idle room over the first kArrivalsPerGpu
  // pods per free GPU. Without that average, all nodes that some pod fills in the end would be equal, and nodes that
  // many kinds could use would not be kept for them.
  static constexpr int kEndWeight = 7;
  // Value of a thousandth of a GPU that stays idle forever.
  static constexpr int64_t kUnit = int64_t{kFutures} * (kEndWeight + 1);

  struct Kind {
    Request request;                     // needs some GPU room
    std::vector<std::string> gpu_types;  // empty: any
    int64_t weight = 0;
  };
  void Draw(std::vector<Kind> kinds);

  // The GPU room that stays idle on the node during and after a future: each arriving pod that still fits is placed, a
  // slice on the fullest GPU that takes it. Thousandths of a GPU, times kUnit.
  int64_t Idle(const NodeSpec& spec, mig::Model model, const FreeRoom& free) const;

 private:
  using KindIndex = uint16_t;
  static constexpr uint64_t kAnyType = ~uint64_t{0};
  uint64_t TypeBit(const std::string& type) const;

  std::vector<Kind> kinds_;
  std::vector<uint64_t> types_;                      // by kind, bits of type_index_
  std::unordered_map<std::string, int> type_index_;  // for lookup only: its order is never used
  std::vector<std::vector<KindIndex>> futures_;
};

}  // namespace vrun::sched::core
