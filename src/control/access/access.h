// SPDX-License-Identifier: Apache-2.0
// Who may call what: one table with a row for each call of the controller. A call without a row is not served.
//
// A call is checked twice. Service asks MayCall with the caller's certificate and role, before the call gets anything
// of the state. A call that is about a job then asks MayTouch, with whose job it is. What a caller sees of others' jobs
// in the answers of calls that read is the administrator's policy (Visibility).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::control {

// Of a person. Each may do what those before it may.
enum class Role : uint8_t { kUser, kLead, kOperator, kAdmin };
// Whose job it is, for the caller: his own, of a team that he is in, or another's.
enum class Whose : uint8_t { kOwn, kTeam, kOther };
// Up to whose jobs people see names, reasons, nodes and usage, or commands.
enum class Visibility : uint8_t { kOwn, kTeam, kAll };

// Roles of certificates that may make a call.
enum Certificate : uint8_t { kStranger = 1, kHome = 2, kNode = 4, kSnapshots = 8 };

struct CallRule {
  // "/vrun.v1.Control/Cancel". After a # a part of a call that needs more than the rest of it.
  std::string_view call;
  uint8_t certificates;  // of Certificate; people have homes, and only they have roles
  // The least role for a job of one's own, of a team that one is in, and of others. Of calls about no job: `own`.
  Role own = Role::kUser;
  Role team = Role::kUser;
  Role other = Role::kUser;
  bool shown = false;  // also refused for a job that the caller does not see by the policy of visibility
};
std::span<const CallRule> CallRules();
const CallRule* FindCallRule(std::string_view call);

// kDenied, or kUnsupported for a call without a row. `certificate`: the role in the certificate; "": none.
Status MayCall(std::string_view call, std::string_view certificate);
// kDenied. `role`: of the person.
Status MayCall(std::string_view call, Role role);
// The same for a job. A kLead leads the job's own team. `job`: for people, as in "job 7".
Status MayTouch(std::string_view call, Role role, Whose whose, const std::string& job);

std::string_view RoleName(Role role);              // "operator"
std::string_view VisibilityName(Visibility what);  // "team"
std::optional<Visibility> ParseVisibility(std::string_view name);

}  // namespace vrun::control
