// SPDX-License-Identifier: Apache-2.0
#include "control/access/access.h"

#include <algorithm>
#include <iterator>

#include "base/escape.h"

namespace vrun::control {
namespace {

constexpr Role kUser = Role::kUser, kLead = Role::kLead, kOperator = Role::kOperator, kAdmin = Role::kAdmin;

// clang-format off
constexpr CallRule kRules[] = {
    //                                    certificates        own        team's     others'    only if shown
    {"/vrun.v1.People/Join",              kStranger},
    {"/vrun.v1.People/Renew",             kStranger},
    {"/vrun.v1.SignIn/Describe",          kStranger},
    {"/vrun.v1.SignIn/LogIn",             kStranger},
    {"/vrun.v1.People/WhoAmI",            kHome},
    {"/vrun.v1.People/ShutOutList",       kHome | kSnapshots},
    {"/vrun.v1.Control/Submit",           kHome},
    {"/vrun.v1.Control/Cancel",           kHome,              kUser,     kLead,     kAdmin},
    {"/vrun.v1.Control/Change",           kHome,              kUser,     kLead,     kOperator},
    {"/vrun.v1.Control/Get",              kHome | kSnapshots},
    {"/vrun.v1.Control/List",             kHome | kSnapshots},
    {"/vrun.v1.Control/Watch",            kHome,              kUser,     kUser,     kUser,     true},
    {"/vrun.v1.Control/Why",              kHome,              kUser,     kUser,     kUser,     true},
    {"/vrun.v1.Control/Nodes",            kHome},
    {"/vrun.v1.Control/Teams",            kHome},
    {"/vrun.v1.Control/Accounts",         kHome},
    // Replays of the history of all jobs (api/what_if_routes.cc). Their results tell of teams, but of no people and jobs:
    // leads plan with them. They take a processor of the controller's machine, so operators start and end them.
    {"/vrun.v1.Control/Accounts#replay",  kHome,              kLead,     kLead,     kOperator},
    {"/vrun.v1.Control/Accounts#replay-start", kHome,         kOperator, kOperator, kOperator},
    {"/vrun.v1.Control/Usage",            kHome},
    {"/vrun.v1.Control/Prices",           kHome},
    {"/vrun.v1.Control/Budgets",          kHome},
    {"/vrun.v1.Control/Drain",            kHome,              kOperator, kOperator, kOperator},
    {"/vrun.v1.Control/Maintain",         kHome},
    {"/vrun.v1.Control/Maintain#change",  kHome,              kOperator, kOperator, kOperator},
    {"/vrun.v1.Control/PresignVault",     kSnapshots},
    {"/vrun.v1.Control/Agent",            kNode},
};
// clang-format on

constexpr std::string_view kRoles[] = {"user", "lead", "operator", "admin"};
constexpr std::string_view kVisibilities[] = {"own", "team", "all"};

uint8_t CertificateOf(std::string_view role) {
  if (role == "home") return kHome;
  if (role == "node") return kNode;
  if (role == "snapshots") return kSnapshots;
  return role.empty() ? kStranger : 0;
}

std::string Names(uint8_t certificates) {
  std::string names;
  const auto add = [&](uint8_t one, const char* name) {
    if ((certificates & one) != 0) names += (names.empty() ? "" : " and ") + std::string(name);
  };
  add(kHome, "homes");
  add(kNode, "nodes");
  add(kSnapshots, "the snapshot store");
  return names.empty() ? "who has no certificate" : names;
}

// "Cancel"
std::string Short(std::string_view call) { return std::string(call.substr(call.rfind('/') + 1)); }

std::string Those(Role role) {
  if (role == Role::kLead) return "a lead of its team, an operator or an admin";
  return role == Role::kAdmin ? "an admin" : "an operator or an admin";
}

}  // namespace

std::span<const CallRule> CallRules() { return kRules; }

const CallRule* FindCallRule(std::string_view call) {
  const auto found =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const CallRule& r) { return r.call == call; });
  return found == std::end(kRules) ? nullptr : found;
}

Status MayCall(std::string_view call, std::string_view certificate) {
  const CallRule* rule = FindCallRule(call);
  if (rule == nullptr) return Error(Code::kUnsupported, Escape(call) + ": nobody may call this");
  if ((rule->certificates & CertificateOf(certificate)) != 0) return {};
  return Error(Code::kDenied, Short(call) + ": only " + Names(rule->certificates) + " may call this");
}

Status MayCall(std::string_view call, Role role) {
  const CallRule* rule = FindCallRule(call);
  if (rule == nullptr) return Error(Code::kUnsupported, Escape(call) + ": nobody may call this");
  if (role >= rule->own) return {};
  return Error(Code::kDenied, Short(call.substr(0, call.find('#'))) + ": you may not do this: only " +
                                  Those(rule->own) + " may (`vctl whoami` says what you are)");
}

Status MayTouch(std::string_view call, Role role, Whose whose, const std::string& job) {
  const CallRule* rule = FindCallRule(call);
  if (rule == nullptr) return Error(Code::kUnsupported, Escape(call) + ": nobody may call this");
  const Role least = whose == Whose::kOwn ? rule->own : whose == Whose::kTeam ? rule->team : rule->other;
  if (role >= least) return {};
  return Error(Code::kDenied, job + ": it is not yours: only its owner, " + Those(least) + " may do this");
}

std::string_view RoleName(Role role) { return kRoles[static_cast<size_t>(role)]; }

std::string_view VisibilityName(Visibility what) { return kVisibilities[static_cast<size_t>(what)]; }

std::optional<Visibility> ParseVisibility(std::string_view name) {
  const auto found = std::find(std::begin(kVisibilities), std::end(kVisibilities), name);
  if (found == std::end(kVisibilities)) return std::nullopt;
  return static_cast<Visibility>(found - std::begin(kVisibilities));
}

}  // namespace vrun::control
