// SPDX-License-Identifier: Apache-2.0
// Output of jobs and nodes, for people and as JSON.
#pragma once

#include <string>

#include "cli/base/json.h"
#include "cli/ctl/ctl.h"
#include "proto/local.pb.h"

namespace vrun::cli {

// Writes the job as an element; docs/man/vctl.1 lists the fields.
void WriteJob(const v1::JobInfo& job, JsonWriter* json);
void WriteAttempts(const google::protobuf::RepeatedPtrField<v1::AttemptInfo>& attempts, JsonWriter* json);
void WriteNode(const v1::NodeInfo& node, JsonWriter* json);
void WriteResources(const v1::Resources& resources, JsonWriter* json);

std::string FormatJobs(const v1::JobList& jobs, OutputFormat format, bool headers);
std::string FormatJob(const v1::JobInfo& job, OutputFormat format);
std::string FormatNodes(const v1::NodeList& nodes, OutputFormat format, bool headers);

// One line for people: the state of the kept writes (--writes=keep) of one attempt.
std::string FormatKept(const v1::Kept& kept);

// How long its command has run; 0 when it has not started.
int64_t RanMicros(const v1::JobInfo& job);

}  // namespace vrun::cli
