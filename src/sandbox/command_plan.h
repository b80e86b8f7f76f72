// SPDX-License-Identifier: Apache-2.0
// Turns the command of a Spec into the arrays that inside.cc needs after the clone, where nothing can be allocated.
#pragma once

#include <string>
#include <vector>

#include "sandbox/inside.h"
#include "sandbox/sandbox.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Owns the memory that Fill points an InsidePlan to; must stay where it is and outlive the clone.
class CommandPlan {
 public:
  explicit CommandPlan(const Spec& spec);
  CommandPlan(const CommandPlan&) = delete;
  CommandPlan& operator=(const CommandPlan&) = delete;
  void Fill(InsidePlan* plan) const;

 private:
  Spec spec_;
  std::vector<std::string> candidates_;
  std::vector<char*> argv_, environment_;
  mutable std::vector<char*> shell_argv_;
  std::vector<const char*> candidate_pointers_;
  std::vector<gid_t> groups_;
  std::vector<InsidePlan::Limit> limits_;
  std::vector<unsigned long> cpus_;
};

// What the message of a failed start means to people.
StartFailure ExplainStart(const StartMessage& message, const Spec& spec);

}  // namespace vrun::sandbox
