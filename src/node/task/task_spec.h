// SPDX-License-Identifier: Apache-2.0
// From the wire's TaskSpec to what the sandbox is asked to be.
#pragma once

#include <string>

#include "base/id_map.h"
#include "base/result.h"
#include "proto/supervisor.pb.h"
#include "proto/task.pb.h"
#include "sandbox/spec.h"

namespace vrun::node {

// Processes and threads of a task whose spec names no number.
inline constexpr uint64_t kDefaultPids = 32768;

// From home's ids to the node's.
IdMap IdsOf(const v1::TaskSpec& spec);

// Of the task's control groups. Nodes that share a host's (test clusters, two users' clusters) have jobs of the same
// number: the task's directory, which must exist, tells them apart.
std::string GroupName(const v1::TaskSpec& spec);

// Checks what came over the wire (kInvalid) and adds the VRUN_ variables to the environment. Without the name, which
// needs the directory.
Result<sandbox::Spec> SandboxSpec(const v1::TaskSpec& spec, int64_t grace_micros);

}  // namespace vrun::node
