// SPDX-License-Identifier: Apache-2.0
// The ends of the processes of a command that has several, and whether one of them ends the others. No I/O.
#pragma once

#include <cstdint>
#include <string>

#include "node/task/task_ending.h"
#include "proto/control.pb.h"
#include "sandbox/sandbox.h"

namespace vrun::node {

class TaskRanks {
 public:
  explicit TaskRanks(const v1::StartAttempt& order);

  enum class Then { kNothing, kEndOthers, kWaitForOthers };
  // `stopping`: the whole task was told to end. kEndOthers: now; kWaitForOthers: after wait_s, with OthersAreLate.
  Then OnEnd(const sandbox::ProcessEnd& end, bool stopping);
  uint32_t wait_s() const { return wait_s_; }
  // Those that are left have had wait_s, and are told to end. False: there is none, or they were told already.
  bool OthersAreLate();

  const RankFacts& facts() const { return facts_; }
  // Why the others were ended although none has failed, for people; "": they were not.
  const std::string& late() const { return late_; }

 private:
  const bool no_kill_;
  const uint32_t wait_s_;
  RankFacts facts_;
  size_t alive_;
  bool told_ = false;   // the others
  bool clean_ = false;  // one has ended well
  uint32_t first_clean_ = 0;
  std::string late_;
};

}  // namespace vrun::node
