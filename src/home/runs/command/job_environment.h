// SPDX-License-Identifier: Apache-2.0
// Variables that a job gets if its user has not set them. All are in the table of job_environment.cc, and in vrun(1),
// ENVIRONMENT. Variables that the node sets for every job (VRUN_JOB_ID and so on) are in node/task/task_spec.cc.
#pragma once

#include <string>

#include "proto/common.pb.h"

namespace vrun::home {

// `cache`: the user's cache directory in the root, writable by jobs; "": there is none.
void AddDefaultVariables(const v1::Resources& resources, const std::string& cache, v1::Command* command);

}  // namespace vrun::home
