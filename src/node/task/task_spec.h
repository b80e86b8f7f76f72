// SPDX-License-Identifier: Apache-2.0
// Converts the wire's TaskSpec to the sandbox's Spec.
#pragma once

#include <string>
#include <vector>

#include "base/id_map.h"
#include "base/result.h"
#include "node/gang/gang.h"
#include "proto/supervisor.pb.h"
#include "proto/task.pb.h"
#include "sandbox/spec.h"

namespace vrun::node {

// The limit of processes and threads: what was asked for, or a default, but never what would leave none to the node.
// `machine`: what the kernel has for all.
uint64_t PidsLimit(uint64_t asked, uint64_t machine);

// Maps home's ids to the node's.
IdMap IdsOf(const v1::TaskSpec& spec);

// Where the programs of a job keep their checkpoints (VRUN_CKPT_DIR), the same for all attempts.
std::string CheckpointDirectory(const std::string& working_directory, uint64_t job);

// The name of the task's control groups. Nodes on one host (test clusters, clusters of two users) may have jobs with
// the same number, so the name depends on the task's directory, which must exist.
std::string GroupName(const v1::TaskSpec& spec);

// What a pod of a gang finds in /run/vrun about the others.
std::vector<sandbox::RunFile> GangFiles(const v1::StartAttempt& order, const Gang& gang);

// Validates the wire's spec (kInvalid) and adds the VRUN_ variables to the environment, and those of a distributed job
// to that of each process. Leaves out the group name,
// which needs the directory.
Result<sandbox::Spec> SandboxSpec(const v1::TaskSpec& spec, int64_t grace_micros);

}  // namespace vrun::node
