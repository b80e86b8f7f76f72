// SPDX-License-Identifier: Apache-2.0
// Ids of jobs and of elements of arrays, as people write and see them: 7, 7_3, 7_[3-9,11].
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "proto/local.pb.h"

namespace vrun::cli {

// Also 7_3-9,11, which no shell takes for a pattern. kInvalid: neither a job nor elements of one.
Result<v1::JobSelection> ParseJobs(std::string_view text);
// A job, or one element.
Result<v1::JobSelection> ParseOneJob(std::string_view text);
// The element of what ParseOneJob returns; nullopt: the job itself.
std::optional<uint32_t> ElementOf(const v1::JobSelection& one);
// Calls `use` for the job, or for each of the elements, until it fails.
Status ForEachJob(const v1::JobSelection& jobs, const std::function<Status(const v1::JobSelection& one)>& use);

// "7", "7_3", "7_[3-9,11]".
std::string JobsText(const v1::JobSelection& jobs);
// The same for a job that is shown: an array is "7_[0-99%4]".
std::string JobText(const v1::JobInfo& job);
// What commands take: an array is "7".
std::string JobName(const v1::JobInfo& job);

// "20: 4 waiting, 4 running, 10 completed, 1 failed, 1 cancelled".
std::string CountsText(const v1::ArrayInfo& info);

}  // namespace vrun::cli
