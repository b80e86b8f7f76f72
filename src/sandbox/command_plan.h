// SPDX-License-Identifier: Apache-2.0
// Converts a Spec's command to the arrays that inside.cc needs after the clone, where allocation is impossible.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/filter/seccomp.h"
#include "sandbox/inside.h"
#include "sandbox/sandbox.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Owns the memory to which Fill points an InsidePlan. Must not move and must outlive the clone.
class CommandPlan {
 public:
  explicit CommandPlan(const Spec& spec);
  CommandPlan(const CommandPlan&) = delete;
  CommandPlan& operator=(const CommandPlan&) = delete;
  void Fill(InsidePlan* plan) const;
  // Of the process number `rank`, from 1.
  char* const* EnvironmentOf(size_t rank) const { return rank_environments_[rank - 1].data(); }

 private:
  Spec spec_;
  std::vector<std::string> candidates_;
  std::vector<char*> argv_, environment_;
  std::vector<std::vector<char*>> rank_environments_;
  mutable std::vector<char*> shell_argv_;
  std::vector<const char*> candidate_pointers_;
  std::vector<gid_t> groups_;
  std::vector<InsidePlan::Limit> limits_;
  std::vector<unsigned long> cpus_;
  std::vector<sock_filter> filter_;
  sock_fprog filter_program_;
  std::string inner_ids_;
};

// Writes a command for ControlType::kExec to a memory file. `directory` "": the sandbox's.
Result<UniqueFd> WriteExecBlock(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                                const std::string& directory);

// Translates a failed start into a message for people.
StartFailure ExplainStart(const StartMessage& message, const Spec& spec);

}  // namespace vrun::sandbox
