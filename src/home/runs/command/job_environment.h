// SPDX-License-Identifier: Apache-2.0
// The variables that a job is given where its user has not set them: all of them are in the table of
// job_environment.cc, and in vrun(1), ENVIRONMENT. What the node sets for every job (VRUN_JOB_ID and so on) is in
// node/task/task_spec.cc.
#pragma once

#include <string>

#include "proto/common.pb.h"

namespace vrun::home {

// `cache`: the user's cache directory in the root, in which jobs may keep something; "": there is none.
void AddDefaultVariables(const v1::Resources& resources, const std::string& cache, v1::Command* command);

}  // namespace vrun::home
