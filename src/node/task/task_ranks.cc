// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_ranks.h"

#include "node/gang/gang.h"

namespace vrun::node {

TaskRanks::TaskRanks(const v1::StartAttempt& order)
    : no_kill_(order.spec().gang().no_kill()), wait_s_(order.spec().gang().wait_s()) {
  const size_t count = Gang::ProcessesHere(order);
  facts_.first = Gang(order, "").here().first_rank;
  facts_.killed.assign(count, true);  // until it has ended by itself
  alive_ = count;
}

TaskRanks::Then TaskRanks::OnEnd(const sandbox::ProcessEnd& end, bool stopping) {
  const auto number = static_cast<size_t>(end.number);
  if (number >= facts_.killed.size()) return Then::kNothing;
  --alive_;
  if (told_ || stopping) return Then::kNothing;
  facts_.killed[number] = false;
  if (end.wait_status != 0) {
    if (!facts_.first_failed) facts_.first_failed = number;
    told_ = !no_kill_ && alive_ > 0;
    return told_ ? Then::kEndOthers : Then::kNothing;
  }
  if (clean_ || wait_s_ == 0 || alive_ == 0) return Then::kNothing;
  clean_ = true;
  first_clean_ = facts_.first + static_cast<uint32_t>(number);
  return Then::kWaitForOthers;
}

bool TaskRanks::OthersAreLate() {
  if (told_ || alive_ == 0) return false;
  told_ = true;
  late_ = std::to_string(alive_) + (alive_ == 1 ? " process had" : " processes had") + " not ended " +
          std::to_string(wait_s_) + " s after rank " + std::to_string(first_clean_) + ": ended (--wait)";
  return true;
}

}  // namespace vrun::node
