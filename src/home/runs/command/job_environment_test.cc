// SPDX-License-Identifier: Apache-2.0
#include "home/runs/command/job_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vrun::home {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> WithDefaults(uint32_t milli_cpus, const std::string& cache, std::vector<std::string> set) {
  v1::Resources resources;
  resources.set_milli_cpus(milli_cpus);
  v1::Command command;
  for (const std::string& e : set) command.add_environment(e);
  AddDefaultVariables(resources, cache, &command);
  return {command.environment().begin(), command.environment().end()};
}

TEST(JobEnvironment, ThreadsAreAsManyAsTheProcessorsThatTheJobSees) {
  for (auto [milli, n] : {std::pair(0, "1"), {500, "1"}, {1000, "1"}, {1500, "2"}, {8000, "8"}}) {
    EXPECT_THAT(WithDefaults(static_cast<uint32_t>(milli), "", {}),
                IsSupersetOf({std::string("OMP_NUM_THREADS=") + n, std::string("PYTHON_CPU_COUNT=") + n}));
  }
}

TEST(JobEnvironment, CachesThatProgramsKeepInTmpAreInTheUsersCacheDirectory) {
  EXPECT_THAT(WithDefaults(1000, "/home/ann/.cache", {}),
              IsSupersetOf({"TORCHINDUCTOR_CACHE_DIR=/home/ann/.cache/torchinductor",
                            "TFHUB_CACHE_DIR=/home/ann/.cache/tfhub_modules",
                            "TIKTOKEN_CACHE_DIR=/home/ann/.cache/data-gym-cache"}));
  EXPECT_THAT(WithDefaults(1000, "", {}), Not(Contains(testing::HasSubstr("CACHE"))));
}

TEST(JobEnvironment, WhatTheUserHasSetStays) {
  const auto all = WithDefaults(
      4000, "/c", {"OMP_NUM_THREADS=2", "TORCHINDUCTOR_CACHE_DIR=", "DATA_GYM_CACHE_DIR=/d", "OMP_NUM_THREADSX=1"});
  EXPECT_THAT(all, Contains("OMP_NUM_THREADS=2"));
  EXPECT_THAT(all, Not(Contains("OMP_NUM_THREADS=4")));
  EXPECT_THAT(all, Not(Contains("TORCHINDUCTOR_CACHE_DIR=/c/torchinductor")));
  EXPECT_THAT(all, Not(Contains(StartsWith("TIKTOKEN_CACHE_DIR="))));
  EXPECT_THAT(all, Contains("TFHUB_CACHE_DIR=/c/tfhub_modules"));
}

}  // namespace
}  // namespace vrun::home
