// SPDX-License-Identifier: Apache-2.0
// The environment of the processes of a distributed job and of the elements of an array: what PyTorch, Slurm's tools
// and the programs that look for them, MPI, JAX and TensorFlow expect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "node/gang/gang.h"
#include "proto/supervisor.pb.h"

namespace vrun::node {

// Where the files and programs that the variables name are, inside.
inline constexpr const char kMembersPath[] = "/run/vrun/members.json";
inline constexpr const char kHostfilePath[] = "/run/vrun/hostfile";
inline constexpr const char kHydraHostsPath[] = "/run/vrun/hydra_hosts";
inline constexpr const char kRshPath[] = "/run/vrun/rsh";

// Replaces NAME in a list of NAME=VALUE.
void SetVariable(std::vector<std::string>* environment, const std::string& name, const std::string& value);

// The environments of the pod's processes, in order, from the command's. A pod without processes of its own has one
// nevertheless, for those that other pods start in it. Variables that say who a process is replace those of the
// command's environment, which belong to another job; those that only tell a tool how to work do not.
std::vector<std::vector<std::string>> GangEnvironments(const v1::TaskSpec& spec, const Gang& gang,
                                                       const std::vector<std::string>& environment);

// For a job of one process that is an element of an array.
void SetArrayEnvironment(const v1::TaskSpec& spec, const Gang& gang, std::vector<std::string>* environment);

// Slots for an MPI launcher in each pod: in Open MPI's format (`HOST slots=N`) and in Hydra's (`HOST:N`).
std::string Hostfile(const v1::StartAttempt& order, const Gang& gang);
std::string HydraHosts(const v1::StartAttempt& order, const Gang& gang);

// The port at which rank 0 meets the others. Jobs share the network of their nodes, so it depends on the job's number.
// Below the ports that Linux gives to outgoing connections, and above those that Lightning derives from the number.
uint32_t MasterPort(uint64_t job);

}  // namespace vrun::node
