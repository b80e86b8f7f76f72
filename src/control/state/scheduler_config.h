// SPDX-License-Identifier: Apache-2.0
// An operator's settings for the scheduler: teams with their shares, and the weights. One TOML file:
//
//   admins = ["root", "ben@ws2"]  # who may drain nodes, announce maintenance and hold jobs of others;
//                                 # without the list everybody
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
//   [team.lab]
//   guarantee = { "" = 8 }        # GPUs that the team can take back from borrowers; "" is all types together
//   limit = { h100 = 4, "" = 12 } # GPUs that the team never exceeds
//
//   [team.vision]
//   parent = "lab"                # usage of vision counts for lab; a parent stands before its children
//   weight = 2.0                  # share among its siblings of GPUs that nobody is guaranteed (default 1)
//   users = ["anna", "ben@ws2"]   # who may submit for it: certificate names, or the part before their @;
//                                 # without the list everybody
//   max_class = "production"      # the highest class of its jobs (default inference)
//   budget = { gpu_hours = 500, days = 30, burst = 1000 }  # of GPUs with price 1; burst: how much may be saved up
//
// A job that names no team belongs to the first team whose list has its user, else to a team of its user's own. Teams
// that are not in the file have weight 1 and no bounds. If the file has teams, no other team may be named.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "control/gpus/health.h"
#include "control/places/topology_file.h"
#include "proto/common.pb.h"
#include "sched/core.h"

namespace vrun::control {

struct TeamConfig {
  sched::core::TeamSpec spec;
  std::vector<std::string> users;
  bool everybody = true;
  v1::JobClass max_class = v1::INFERENCE;
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
  std::optional<std::vector<std::string>> admins;
  std::map<std::string, uint32_t> price_milli;  // by GPU type
  std::string topology;                         // file; "": none
  NodePlaces places;                            // what it says
  bool teams_share_gpus = false;
  HealthLimits health;

  // Whether the user (a certificate name) may change nodes and the jobs of others.
  bool MayAdminister(const std::string& user) const;
  // Fills in what the node does not say itself: its place and its price.
  void Complete(const std::string& node, const std::string& gpu_type, v1::NodeFacts* facts) const;

  // The team of a job of `user` (a certificate name) that names the team `asked` ("": none). kNotFound, kDenied.
  Result<std::string> TeamFor(const std::string& user, const std::string& asked, v1::JobClass klass) const;
};

// kInvalid: "NAME:LINE: what: what to do".
Result<SchedulerConfig> ParseSchedulerConfig(std::string_view text, const std::string& name);
// Also reads the topology file that it names. A missing file is an empty configuration.
Result<SchedulerConfig> ReadSchedulerConfig(const std::string& path);

// "production"; kInvalid lists the names.
Result<v1::JobClass> ParseJobClass(std::string_view name);
std::string_view JobClassName(v1::JobClass klass);

}  // namespace vrun::control
