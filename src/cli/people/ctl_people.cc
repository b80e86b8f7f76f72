// SPDX-License-Identifier: Apache-2.0
// vctl user, node, login: who belongs to the cluster.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/login.h"
#include "cli/base/table.h"
#include "cli/base/values.h"
#include "cli/ctl/ctl.h"
#include "cli/people/backup_command.h"
#include "cli/people/membership.h"
#include "cli/request/job_command.h"
#include "people/address.h"

namespace vrun::cli {
namespace {

enum Id { kFor, kController, kName, kPool, kGpus };
constexpr uint64_t kDefaultSeconds = 3600;

constexpr OptionSpec kForOption = {
    kFor, 0, "for", Argument::kRequired, "DURATION", "how long the token may be used (1h); forms as of vrun -t"};
constexpr OptionSpec kControllerOption = {kController,  0,
                                          "controller", Argument::kRequired,
                                          "HOST:PORT",  "where others reach the controller, if not as it listens"};
constexpr OptionSpec kUserOptions[] = {kForOption, kControllerOption};
constexpr OptionSpec kNodeOptions[] = {
    {kName, 'n', "name", Argument::kRequired, "NAME", "token: of this node only, also if it has joined before"},
    {kPool, 'p', "pool", Argument::kRequired, "POOL", "token: of nodes of this pool only", Completes::kPools},
    {kGpus, 'G', "gpus", Argument::kRequired, "N", "token: the most that the node may offer"},
    kForOption,
    kControllerOption};
constexpr OptionSpec kLoginOptions[] = {
    {kName, 'n', "name", Argument::kRequired, "NAME", "of this machine (default: its host name)"}};

Result<v1::Invitation> InvitationOf(const CtlInvocation& invocation, const char* role) {
  v1::Invitation invitation;
  invitation.set_role(role);
  invitation.set_most_gpus(-1);
  uint64_t seconds = kDefaultSeconds;
  if (auto text = invocation.Value(kFor)) {
    VRUN_ASSIGN(seconds, ParseTimeLimit(*text));
    if (seconds == 0) return Error(Code::kInvalid, "--for: a token needs an end: write a duration above 0");
  }
  invitation.set_expires_us(WallMicros() + static_cast<int64_t>(seconds) * 1'000'000);
  return invitation;
}

// {action, name}; `actions` with a name, and without one.
Result<std::pair<std::string, std::string>> ActionOf(const CtlInvocation& invocation, std::string_view named,
                                                     std::initializer_list<std::string_view> unnamed,
                                                     const std::string& usage) {
  const std::vector<std::string>& words = invocation.words.operands;
  if (words.empty()) return Error(Code::kInvalid, "what to do? write " + usage);
  const bool with_name = words[0] == named || words[0] == "revoke";
  if (!with_name && std::find(unnamed.begin(), unnamed.end(), words[0]) == unnamed.end()) {
    return Error(Code::kInvalid, Escape(words[0]) + ": no such action: write " + usage);
  }
  if (with_name && words.size() < 2) return Error(Code::kInvalid, "no name: write " + words[0] + " NAME");
  if (words.size() > (with_name ? 2u : 1u)) return Error(Code::kInvalid, Escape(words.back()) + ": unexpected");
  return std::pair(words[0], with_name ? words[1] : std::string());
}

Status CheckController(const CtlInvocation& invocation) {
  if (auto address = invocation.Value(kController)) {
    if (auto parsed = ParseHostPort(*address); !parsed) return std::move(parsed).error().With("--controller");
  }
  return {};
}

void PrintToken(const CtlInvocation& invocation, const Invited& invited, const v1::Invitation& invitation,
                const std::string& command) {
  const std::string token = invited.token.Text();
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("token").String(token);
    json.Key("command").String(command + token).Key("expires").Time(invitation.expires_us()).EndObject();
    return Print(json.Take());
  }
  if (invited.here_only) {
    std::fprintf(stderr,
                 "vctl: the controller listens on this machine only: for others, `vctl down`, then "
                 "`vctl up --listen 0.0.0.0:PORT`\n");
  }
  std::fprintf(stderr, "vctl: to be run once, until %s, by whoever shall join:\n",
               FormatRfc3339(invitation.expires_us()).c_str());
  Print(command + token + "\n");
}

// --- vctl user

constexpr char kUserUsage[] = "add NAME, address, list, or revoke NAME[@HOST]";

Status CheckUser(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const auto action, ActionOf(invocation, "add", {"address", "list"}, kUserUsage));
  if (action.first == "add" && action.second.find('@') != std::string::npos) {
    return Error(Code::kInvalid, Escape(action.second) + ": a user's name has no @: each machine is added to it");
  }
  VRUN_TRY(CheckController(invocation));
  auto invitation = InvitationOf(invocation, "home");
  return invitation ? Status() : std::move(invitation).error();
}

Result<int> ListUsers(const CtlInvocation& invocation, const people::Members& members) {
  VRUN_ASSIGN(const std::vector<v1::Member> all, members.List());
  Table table({"USER", "MACHINE", "JOINED", "STATE"});
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("users").BeginArray();
  std::string names;
  for (const v1::Member& member : all) {
    if (member.role() != "home") continue;
    const size_t at = member.name().find('@');
    const std::string user = member.name().substr(0, at), machine = member.name().substr(at + 1);
    const bool revoked = members.IsRevoked("home", member.name());
    table.Add({user, machine, FormatRfc3339(member.joined_us()), revoked ? "revoked" : "member"});
    names += member.name() + "\n";
    json.BeginObject().Key("user").String(user).Key("machine").String(machine);
    json.Key("joined").Time(member.joined_us()).Key("revoked").Bool(revoked).EndObject();
  }
  json.EndArray().EndObject();
  if (invocation.json()) {
    Print(json.Take());
  } else {
    Print(invocation.format == OutputFormat::kName ? names : table.Format(invocation.headers));
  }
  return 0;
}

void Audit(const people::Members& members, const std::string& what, const std::string& of) {
  members.Audit({"", "uid " + std::to_string(::getuid()), "here", what, of, "ok"});
}

// `name`: of a node, of a user, or USER@MACHINE.
Result<bool> HasJoined(const people::Members& members, const std::string& role, const std::string& name) {
  VRUN_ASSIGN(const std::vector<v1::Member> all, members.List());
  return std::any_of(all.begin(), all.end(), [&](const v1::Member& member) {
    return member.role() == role &&
           (member.name() == name || (role == "home" && member.name().starts_with(name + "@")));
  });
}

Result<int> Revoke(const people::Members& members, const std::string& role, const std::string& name) {
  VRUN_TRY(members.Revoke(role, name));
  Audit(members, "revoke", role + " " + name);
  std::fprintf(stderr, "vctl: %s is shut out: its calls are refused, its open streams%s end within a minute\n",
               Escape(name).c_str(), role == "home" ? " and its jobs" : "");
  // It may have a certificate that was made by hand, so this is no error.
  VRUN_ASSIGN(const bool joined, HasJoined(members, role, name));
  if (!joined) {
    std::fprintf(
        stderr,
        "vctl: nobody of the name %s has joined by a token or a login: is it written right? `vctl %s` lists all\n",
        Escape(name).c_str(), role == "home" ? "user list" : "nodes");
  }
  return 0;
}

Result<int> RunUser(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const auto action, ActionOf(invocation, "add", {"address", "list"}, kUserUsage));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(const ControllerHere here, FindController(home.places()));
  const people::Members members = here.members();
  const auto& [what, name] = action;
  if (what == "list") return ListUsers(invocation, members);
  if (what == "revoke") return Revoke(members, "home", name);
  if (what == "address") {
    VRUN_ASSIGN(const std::string address, AddressOf(home.places(), invocation.Value(kController).value_or("")));
    Print(address + "\n");
    return 0;
  }
  if (members.IsRevoked("home", name)) {
    return Error(Code::kDenied, Escape(name) +
                                    ": revoked for good, because certificates of one name cannot be told "
                                    "apart: choose another name");
  }
  VRUN_ASSIGN(v1::Invitation invitation, InvitationOf(invocation, "home"));
  invitation.set_name(name);
  VRUN_ASSIGN(const Invited invited, Invite(home.places(), invitation, invocation.Value(kController).value_or("")));
  Audit(members, "invite", "home " + name);
  PrintToken(invocation, invited, invitation, "vctl login ");
  return 0;
}

// --- vctl node

constexpr char kNodeUsage[] = "token, or revoke NAME";

Result<v1::Invitation> NodeInvitation(const CtlInvocation& invocation) {
  VRUN_ASSIGN(v1::Invitation invitation, InvitationOf(invocation, "node"));
  invitation.set_name(invocation.Value(kName).value_or(""));
  invitation.set_pool(invocation.Value(kPool).value_or(""));
  if (auto gpus = invocation.Value(kGpus)) {
    if (gpus->empty() || gpus->size() > 4 || gpus->find_first_not_of("0123456789") != std::string::npos) {
      return Error(Code::kInvalid, "--gpus " + Escape(*gpus) + ": write a number from 0 to 9999");
    }
    invitation.set_most_gpus(std::stol(*gpus));
  }
  return invitation;
}

Status CheckNode(const CtlInvocation& invocation) {
  VRUN_TRY(ActionOf(invocation, "revoke", {"token"}, kNodeUsage));
  VRUN_TRY(CheckController(invocation));
  auto invitation = NodeInvitation(invocation);
  return invitation ? Status() : std::move(invitation).error();
}

Result<int> RunNode(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const auto action, ActionOf(invocation, "revoke", {"token"}, kNodeUsage));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(const ControllerHere here, FindController(home.places()));
  const people::Members members = here.members();
  if (action.first == "revoke") return Revoke(members, "node", action.second);
  VRUN_ASSIGN(const v1::Invitation invitation, NodeInvitation(invocation));
  if (!invitation.name().empty() && members.IsRevoked("node", invitation.name())) {
    return Error(Code::kDenied, Escape(invitation.name()) + ": revoked for good: choose another name");
  }
  VRUN_ASSIGN(const Invited invited, Invite(home.places(), invitation, invocation.Value(kController).value_or("")));
  Audit(members, "invite", "node " + invitation.name());
  std::string command = "vrund node --state-dir /var/lib/vrun/node";
  if (!invitation.name().empty()) command += " --name " + invitation.name();
  PrintToken(invocation, invited, invitation, command + " --join ");
  return 0;
}

// --- vctl admin

Status CheckAdmin(const CtlInvocation& invocation) {
  const std::vector<std::string>& words = invocation.words.operands;
  if (!words.empty() && IsBackupAction(words[0])) return CheckBackup(invocation);
  if (words.size() != 1 || words[0] != "audit") {
    return Error(Code::kInvalid, "what to do? write audit, backup FILE or restore FILE");
  }
  for (const OptionSpec& option : kBackupOptions) {
    if (!invocation.Has(option.id)) continue;
    return Error(Code::kInvalid, "--" + std::string(option.long_name) + " is for backup and restore");
  }
  return {};
}

Result<int> RunAdmin(const CtlInvocation& invocation) {
  if (IsBackupAction(invocation.words.operands[0])) return RunBackup(invocation);
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(const ControllerHere here, FindController(home.places()));
  auto entries = people::ReadAudit(here.members().audit_file());
  if (!entries && entries.error().code() != Code::kNotFound) return std::move(entries).error();
  Table table({"TIME", "WHO", "FROM", "WHAT", "OF", "RESULT"});
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("audit").BeginArray();
  for (const people::AuditEntry& e : entries ? *entries : std::vector<people::AuditEntry>()) {
    table.Add({e.time, e.who, e.from, e.what, e.of, e.result});
    json.BeginObject().Key("time").String(e.time).Key("who").String(e.who).Key("from").String(e.from);
    json.Key("what").String(e.what).Key("of").String(e.of).Key("result").String(e.result).EndObject();
  }
  json.EndArray().EndObject();
  Print(invocation.json() ? json.Take() : table.Format(invocation.headers));
  return 0;
}

// --- vctl login

Status CheckLogin(const CtlInvocation& invocation) {
  if (invocation.words.operands.size() <= 1) return {};
  return Error(Code::kInvalid,
               "write one token, as `vctl user add` prints it, - to read it from stdin, or an address, "
               "as `vctl user address` prints it");
}

Result<std::string> TokenOf(const std::string& word) {
  if (word != "-") return word;
  char text[4096];
  std::string token;
  for (ssize_t n = 0; token.size() < sizeof text && (n = ::read(STDIN_FILENO, text, sizeof text)) > 0;) {
    token.append(text, static_cast<size_t>(n));
  }
  return token.substr(0, token.find_first_of(" \t\r\n"));
}

// By the token, or without one through the door of this machine's cluster.
Result<LoggedIn> LogInBy(const CtlInvocation& invocation, const Places& places) {
  if (!invocation.words.operands.empty()) {
    VRUN_ASSIGN(const std::string token, TokenOf(invocation.words.operands[0]));
    if (people::ParseClusterAddress(token)) {
      return LogInByProvider(places, token, invocation.Value(kName).value_or(""));
    }
    return LogIn(places, token, invocation.Value(kName).value_or(""));
  }
  VRUN_ASSIGN(const std::optional<LoggedIn> here, LogInHere(places));
  if (here) return *here;
  return Error(Code::kNotFound,
               "this machine has no cluster that takes its users: write a token, as `vctl user add` "
               "prints it");
}

Result<int> RunLogin(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  if (FindController(home.places())) {
    return Error(Code::kExists, "this user has a cluster of his own here: set VRUN_DIR to another directory");
  }
  VRUN_ASSIGN(const LoggedIn logged_in, LogInBy(invocation, home.places()));
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("controller").String(logged_in.controller);
    json.Key("name").String(logged_in.name).EndObject();
    Print(json.Take());
  } else {
    Print("you are " + logged_in.name + " at " + logged_in.controller +
          "\n  vrun -- hostname     runs a command there\n");
  }
  return 0;
}

}  // namespace

const CtlCommand kCtlUser{"user",
                          "add NAME|address|list|revoke NAME",
                          "who may use the cluster of this machine's controller",
                          kUserOptions,
                          Completes::kNothing,
                          CheckUser,
                          RunUser};
const CtlCommand kCtlNode{"node",       "token|revoke NAME", "let nodes join the cluster, or shut one out",
                          kNodeOptions, Completes::kNothing, CheckNode,
                          RunNode};
const CtlCommand kCtlAdmin{"admin",
                           "audit|backup FILE|restore FILE",
                           "of this machine's controller: who changed what, and its whole state in a file",
                           kBackupOptions,
                           Completes::kFiles,
                           CheckAdmin,
                           RunAdmin};
const CtlCommand kCtlLogin{
    "login",       "[TOKEN|ADDRESS]",   "use the cluster of a token or an address, or that of this machine",
    kLoginOptions, Completes::kNothing, CheckLogin,
    RunLogin};

}  // namespace vrun::cli
