// SPDX-License-Identifier: Apache-2.0
// Programs in the background, and what is kept of replays.
#include "control/whatif/runs.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "control/testing/testing.h"
#include "control/whatif/child.h"

namespace vrun::control {
namespace {

constexpr int64_t kMinute = 60'000'000;

ChildSpec Shell(const std::string& script, int stop_fd = -1, int64_t limit_us = kMinute) {
  return {{"/bin/sh", "-c", script}, limit_us, stop_fd};
}

TEST(ChildTest, ItsOutputAndItsLinesComeApart) {
  std::vector<std::string> lines;
  const auto out = RunChild(Shell("echo one >&2; echo out; printf two >&2; echo >&2"),
                            [&](std::string_view line) { lines.emplace_back(line); });
  ASSERT_TRUE(out) << out.error().message();
  EXPECT_EQ(*out, "out\n");
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two"}));
}

TEST(ChildTest, ItIsTheLastOneToGetAProcessorAndTheFirstOneToGoWithoutMemory) {
  const auto out = RunChild(Shell("cut -d' ' -f19 /proc/self/stat; cat /proc/self/oom_score_adj"), [](auto) {});
  ASSERT_TRUE(out) << out.error().message();
  EXPECT_EQ(*out, "19\n1000\n");
}

TEST(ChildTest, ItsErrorIsItsLastLine) {
  const auto out = RunChild(Shell("echo first >&2; echo why >&2; exit 3"), [](auto) {});
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().message(), "why");
  EXPECT_NE(RunChild(Shell("kill -9 $$"), [](auto) {}).error().message().find("signal 9"), std::string::npos);
  EXPECT_FALSE(RunChild({{"/no/such/program"}, kMinute, -1}, [](auto) {}));
}

TEST(ChildTest, ItIsKilledWhenItIsStoppedOrTakesTooLong) {
  const UniqueFd stop(::eventfd(1, EFD_CLOEXEC));
  const int64_t began = MonotonicMicros();
  EXPECT_EQ(RunChild(Shell("exec sleep 600", stop.get()), [](auto) {}).error().code(), Code::kAborted);
  EXPECT_EQ(RunChild(Shell("exec sleep 600", -1, 200'000), [](auto) {}).error().code(), Code::kTimeout);
  EXPECT_LT(MonotonicMicros() - began, kMinute);
}

TEST(OutcomesTest, AreThoseOfTheSimulator) {
  v1::WhatIf run;
  const Status read = AddOutcomes(
      R"({"schema":1,"measured":{"policy":"measured","jobs":3,"left_out":1,"p50_wait_s":5,"utilization":0.5,"usage":[]},
          "present":{"policy":"present","jobs":4,"p90_wait_s":7.5},
          "policies":[{"policy":"easy","jobs":4,"gpu_hours":2.25,"usage":[
            {"team":"b","jobs":3,"gpu_hours":2,"p50_wait_s":1,"p90_wait_s":2},{"team":"none","jobs":0}]}]})",
      &run);
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(run.outcomes_size(), 3);
  EXPECT_EQ(run.outcomes(0).name(), "measured");
  EXPECT_EQ(run.outcomes(0).left_out(), 1u);
  EXPECT_DOUBLE_EQ(run.outcomes(1).p90_wait_s(), 7.5);
  EXPECT_EQ(run.outcomes(2).name(), "easy");
  ASSERT_EQ(run.outcomes(2).teams_size(), 1) << "teams without jobs are of no interest";
  EXPECT_DOUBLE_EQ(run.outcomes(2).teams(0).p90_wait_s(), 2);
  for (const char* wrong : {"", "[]", "{}", "{\"policies\":1}", "text"})
    EXPECT_FALSE(AddOutcomes(wrong, &run)) << wrong;
}

class RunsTest : public ::testing::Test {
 protected:
  // Its end comes from another thread.
  static v1::WhatIf Ended(WhatIfRuns* runs, uint64_t id) {
    for (int64_t until = MonotonicMicros() + kMinute; MonotonicMicros() < until;) {
      const auto run = runs->Get(id);
      if (!run || run->state() == "done" || run->state() == "failed") return run.value_or(v1::WhatIf());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "it does not end";
    return {};
  }
  std::string Directory() const { return directory_.path() + "/what-if"; }
  TestDirectory directory_;
};

TEST_F(RunsTest, OneAtATimeAndTheLastOnesAreKeptOverARestart) {
  uint64_t last = 0;
  {
    WhatIfRuns runs(Directory(), "/bin/false");
    for (size_t i = 0; i < WhatIfRuns::kMostKept + 3; ++i) {
      const auto run = runs.Begin({});
      ASSERT_TRUE(run) << run.error().message();
      EXPECT_EQ(run->state(), "collecting");
      EXPECT_EQ(runs.Begin({}).error().code(), Code::kExists);
      runs.Run(*run, {});
      EXPECT_EQ(Ended(&runs, run->id()).state(), "failed");
      last = run->id();
    }
    EXPECT_EQ(runs.List().runs_size(), static_cast<int>(WhatIfRuns::kMostKept));
    const auto never = runs.Begin({});
    EXPECT_FALSE(runs.IsOver(never->id())) << "the controller is killed meanwhile";
    ASSERT_TRUE(WriteFileAtomic(Directory() + "/junk", "x", 0600));
  }
  WhatIfRuns runs(Directory(), "");
  EXPECT_EQ(runs.List().runs_size(), static_cast<int>(WhatIfRuns::kMostKept));
  EXPECT_EQ(runs.List().runs(0).id(), last);
  EXPECT_FALSE(PathExists(Directory() + "/junk"));
  EXPECT_NE(runs.List().problem(), "");
  EXPECT_EQ(runs.Begin({}).error().code(), Code::kUnsupported) << "vrun-sim is not installed";
  EXPECT_TRUE(runs.Remove(last));
  EXPECT_EQ(runs.Remove(last).error().code(), Code::kNotFound);
  EXPECT_EQ(runs.Get(last).error().code(), Code::kNotFound);
}

TEST_F(RunsTest, OneThatIsEndedMakesRoom) {
  ASSERT_TRUE(MakeDirs(directory_.path(), 0700));
  const std::string program = directory_.path() + "/program";
  ASSERT_TRUE(WriteFileAtomic(program, "#!/bin/sh\necho '{\"done\":0.5}' >&2\nexec sleep 600\n", 0700));
  WhatIfRuns runs(Directory(), program);
  const auto run = runs.Begin({});
  ASSERT_TRUE(run);
  runs.Run(*run, {"trace", "cluster", "teams", "cluster", "teams"});
  for (int i = 0; i < 2000 && runs.Get(run->id())->done_permille() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(runs.Get(run->id())->done_permille(), 500u);
  EXPECT_EQ(runs.Get(run->id())->state(), "running");
  EXPECT_TRUE(PathExists(Directory() + "/1/trace.csv"));
  ASSERT_TRUE(runs.Remove(run->id()));
  const auto next = runs.Begin({});
  ASSERT_TRUE(next);
  EXPECT_NE(next->id(), run->id());
  runs.Run(*next, {});  // and when the object goes, so does its child
}

}  // namespace
}  // namespace vrun::control
