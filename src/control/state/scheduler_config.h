// SPDX-License-Identifier: Apache-2.0
// An operator's settings for the scheduler: teams with their shares, and the weights. One TOML file:
//
//   admins = ["root", "ben@ws2"]  # who may do everything: certificate names, or the part before their @
//   operators = ["ops"]           # who may drain nodes, announce maintenance, hold and requeue jobs of others. With
//                                 # neither list: everybody whose certificate was made by hand, not by a token
//   visibility = "team"           # up to whose jobs people see names, users, nodes, reasons and usage: "own", those of
//                                 # their "team", or "all" (default). Leads see their team, operators all
//   commands = "own"              # the same for commands and directories (default own). Admins see all
//   max_class = "training"        # the highest class of jobs of people without a team, and of teams that do not say
//                                 # theirs. Default: training where teams list people, else inference
//   topology = "topology.conf"    # where nodes are that do not say it themselves (topology_file.h); beside this file
//
//   [weights]                     # fields of sched::core::Policy, as in `vctl sim --policy FILE`
//   theta = 1000
//
//   [price]                       # of a GPU of this type, relative, with which usage is charged (default 1)
//   h100 = 2.5
//
//   [gpus]
//   share_with = "user"           # whose shares of one GPU (MPS, time slices) may lie beside each other: those of one
//                                 # "user" (default) or of one "team". Jobs that were submitted before a change keep it
//   drain_percent = 10            # at most this part of a pool's nodes, or one node, is taken out of service in
//   drain_minutes = 10            # so many minutes because of what nodes report about their GPUs (gpus/health.h)
//
//   [money]
//   currency = "EUR"
//   [[money.price]]               # as often as needed. A new price is a new section with a later date: the past keeps
//   from = 2026-01-01             # its prices. Begins on this day (UTC); absent: from the beginning
//   pool = "big"                  # absent: pools that have no section of their own
//   gpu_hour = { h100 = 2.5, "" = 1.0 }  # of a whole GPU by type; "" is every other type
//   cpu_hour = 0.01               # of a processor
//
//   [team.lab]
//   guarantee = { "" = 8 }        # GPUs that the team can take back from borrowers; "" is all types together
//   limit = { h100 = 4, "" = 12 } # GPUs that the team never exceeds
//
//   [team.vision]
//   parent = "lab"                # usage of vision counts for lab; a parent stands before its children
//   weight = 2.0                  # share among its siblings of GPUs that nobody is guaranteed (default 1)
//   users = ["anna", "ben@ws2"]   # who may submit for it: certificate names, or the part before their @; "*" is
//                                 # everybody. Without the list nobody but its leads, if another team has a list;
//                                 # else everybody
//   leads = ["anna"]              # who may also cancel, hold and requeue its jobs and those of teams below it, and
//                                 # sees them
//   max_class = "production"      # the highest class of its jobs
//   budget = { gpu_hours = 500, days = 30, burst = 1000 }  # of GPUs with price 1; burst: how much may be saved up.
//                                 # Beyond it jobs of the team are scavengers
//   month = { gpu_hours = 500, money = 900, warn_percent = 80, stop_percent = 100 }  # of each calendar month (UTC).
//                                 # From 80 % (the default) on people are warned, from 100 % on nothing of the team and
//                                 # of teams below it starts (default: never). gpu_hours or money, or both
//   mail = ["vision-leads@example.org"]  # who is told that it is near its end; default: its leads ([notify])
//
//   [oidc]                        # people log in by this identity provider (oidc/settings.h)
//   issuer = "https://id.example.org"
//   client_id = "vrun-cluster"    # a public client with the device flow, of this cluster alone
//   scopes = "openid profile groups"   # default: openid profile
//   user_claim = "email"          # default: preferred_username
//   domain = "example.org"        # of the user claim, if that is an address
//   groups_claim = "groups"       # "@GROUP" in lists of users, leads, admins and operators is whoever is in it
//   allow_groups = ["gpu-users"]  # only their members log in; default: everybody whom the provider knows
//   ca = "id.pem"                 # authority of the provider's certificate; beside this file
//   snapshots = "HOST:7421"       # the cluster's snapshot store, for machines that log in
//   login_days = 30               # after so long people have to log in again; 0: never
//
//   [retention]                   # default: all is kept for ever. As in "90d", "26w", "2y"
//   jobs = "90d"                  # jobs that ended before are removed; their usage is kept by day
//   audit = "365d"                # lines of the audit log that are older are removed, by whole months
//
//   [notify]                      # notify/settings.h
//
//   [bounds]                      # of each user; 0: none (access/bounds.h)
//   jobs = 50000                  # that have not ended
//   request_mib = 4096            # of the requests of these jobs
//   streams = 20000               # that watch jobs
//   requests_per_second = 5000
//
// A job that names no team belongs to the first team whose list has its user, else to a team of its user's own. Teams
// that are not in the file have weight 1 and no bounds. If the file has teams, no other team may be named.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "control/access/access.h"
#include "control/access/bounds.h"
#include "control/gpus/health.h"
#include "control/money/budgets.h"
#include "control/money/prices.h"
#include "control/notify/settings.h"
#include "control/places/topology_file.h"
#include "oidc/settings.h"
#include "proto/common.pb.h"
#include "sched/core.h"

namespace vrun::control {

struct TeamConfig {
  sched::core::TeamSpec spec;
  std::vector<std::string> users;  // with "*" everybody
  bool has_users = false;          // there is a list
  std::vector<std::string> leads;
  std::optional<v1::JobClass> max_class;
  MonthlyBudget month;
  std::vector<std::string> mail;  // addresses
};

// How long things are kept, in microseconds; 0: for ever.
struct Retention {
  int64_t jobs = 0;
  int64_t audit = 0;
};

struct SchedulerConfig {
  SchedulerConfig() {
    // Each batch of requests is decided at once, and requests that arrive meanwhile form the next batch. So batches
    // grow with the time of a pass, and no pause between passes is needed.
    weights.pass_interval = 0;
    // Preemption becomes worth it with time alone. A job that waits for that must not wait for the next event.
    weights.urge_interval = weights.price_interval;
  }
  sched::core::Policy weights;
  std::vector<TeamConfig> teams;  // as in the file
  std::optional<std::vector<std::string>> admins, operators;
  Visibility visibility = Visibility::kAll;
  Visibility commands = Visibility::kOwn;
  std::optional<v1::JobClass> max_class;
  Bounds bounds;
  std::map<std::string, uint32_t> price_milli;  // by GPU type
  std::string topology;                         // file; "": none
  NodePlaces places;                            // what it says
  bool teams_share_gpus = false;
  HealthLimits health;
  Prices prices;
  oidc::Settings oidc;
  notify::NotifySettings notify;
  Retention retention;
  // Whether this user (a certificate name) has logged in as a member of this group. Not from the file; kept by
  // State::Configure. Null: nobody has.
  std::function<bool(const std::string& user, const std::string& group)> in_group;

  // Of a user (a certificate name) as the lists say; kLead: of some team. `by_hand`: his certificate was made by hand.
  Role RoleOf(const std::string& user, bool by_hand) const;
  // Whether he leads the team, or one above it.
  bool Leads(const std::string& user, const std::string& team) const;
  // Whether he leads it, is in its list, or it is his own because he has none.
  bool InTeam(const std::string& user, const std::string& team) const;
  // Those for which he may submit, and which he leads.
  std::vector<std::string> TeamsOf(const std::string& user) const;
  std::vector<std::string> LedBy(const std::string& user) const;
  // The highest class of jobs in this team; "" and unknown ones: of people without a team.
  v1::JobClass MaxClass(const std::string& team) const;
  // Fills in what the node does not say itself: its place and its price.
  void Complete(const std::string& node, const std::string& gpu_type, v1::NodeFacts* facts) const;

  // The team of a job of `user` (a certificate name) that names the team `asked` ("": none). kNotFound, kDenied.
  Result<std::string> TeamFor(const std::string& user, const std::string& asked, v1::JobClass klass) const;

  const TeamConfig* FindTeam(const std::string& name) const;  // null: there is none

 private:
  bool ListsPeople() const;  // some team does
  bool Lists(const std::vector<std::string>& list, const std::string& user) const;
  bool MaySubmit(const std::string& user, const TeamConfig& team) const;
};

// The part of a certificate name before the @: who it is on all of his machines.
std::string Person(const std::string& user);

// kInvalid: "NAME:LINE: what: what to do".
Result<SchedulerConfig> ParseSchedulerConfig(std::string_view text, const std::string& name);
// Also reads the topology file that it names. A missing file is an empty configuration.
Result<SchedulerConfig> ReadSchedulerConfig(const std::string& path);

// "production"; kInvalid lists the names.
Result<v1::JobClass> ParseJobClass(std::string_view name);
std::string_view JobClassName(v1::JobClass klass);

}  // namespace vrun::control
