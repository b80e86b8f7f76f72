// SPDX-License-Identifier: Apache-2.0
// Arrays: one row until their elements become jobs.
#include <chrono>

#include "control/testing/array_testing.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

using ArrayTest = ArrayStateTest;

TEST_F(ArrayTest, ElementsRunWithTheirIndexAndTheArrayEndsWithTheLast) {
  Register(SimpleNode("n1", 2));
  const uint64_t array = Submit(ArrayJob("a", {{1, 5, 2}})).job();
  std::vector<v1::StartAttempt> starts = Orders();
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[0].parent_array(), array);
  EXPECT_EQ(starts[0].array_index(), 1u);
  EXPECT_EQ(starts[1].array_index(), 3u);
  EXPECT_EQ(starts[0].array_count(), 3u);
  EXPECT_EQ(starts[0].array_min(), 1u);
  EXPECT_EQ(starts[0].array_max(), 5u);
  EXPECT_EQ(starts[0].home_id(), "home-1");
  EXPECT_EQ(starts[0].spec().command().argv(0), "true");
  EXPECT_EQ(StateOf(array), v1::PENDING);
  Runs(starts[0]);
  EXPECT_EQ(StateOf(array), v1::RUNNING);
  EXPECT_EQ(Event(array).array().running(), 2u);
  EXPECT_EQ(Event(array).array().waiting(), 1u);
  Ends(starts[0], 0);
  Ends(starts[1], 0);
  starts = Orders();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].array_index(), 5u);
  EXPECT_EQ(StateOf(array), v1::RUNNING);
  Ends(starts[0], 0);
  EXPECT_EQ(StateOf(array), v1::COMPLETED);
  const v1::JobInfo info = InfoOf(array);
  EXPECT_EQ(info.array_info().completed(), 3u);
  EXPECT_EQ(info.array_info().waiting() + info.array_info().running(), 0u);
  EXPECT_EQ(info.exit().kind(), v1::ExitRecord::EXITED);
  EXPECT_TRUE(state_->jobs().empty());
}

TEST_F(ArrayTest, AHundredThousandElementsAreOneRow) {
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t array = Submit(ArrayJob("a", {{0, 99'999, 1}})).job();
  const auto took = std::chrono::steady_clock::now() - begin;
  RecordProperty("submission_us",
                 static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
  EXPECT_LT(took, std::chrono::seconds(2)) << "it is a few milliseconds on an idle machine";
  EXPECT_LE(state_->jobs().size(), 1u + kArrayWindow);
  EXPECT_LE(sched::core::Waiting(state_->scheduler()).size(), kArrayWindow);
  EXPECT_EQ(Event(array).array().waiting(), 100'000u);
  // Whatever room there is, no more than the window waits.
  Register(SimpleNode("n1", 200));
  std::vector<v1::StartAttempt> starts = Orders();
  EXPECT_EQ(starts.size(), 200u);
  EXPECT_LE(sched::core::Waiting(state_->scheduler()).size(), kArrayWindow);
  for (const v1::StartAttempt& start : starts) Ends(start, 0);
  EXPECT_LE(sched::core::Waiting(state_->scheduler()).size(), kArrayWindow);
  EXPECT_LE(state_->jobs().size(), 1u + 200 + kArrayWindow);
  EXPECT_EQ(Event(array).array().completed(), 200u);
  Restart();
  EXPECT_LE(sched::core::Waiting(state_->scheduler()).size(), kArrayWindow);
  EXPECT_EQ(Event(array).array().completed(), 200u);
}

TEST_F(ArrayTest, TenThousandElementsRunOneAfterTheOther) {
  constexpr uint32_t kCount = 10'000;
  Register(SimpleNode("n1", 100));
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t array = Submit(ArrayJob("a", {{0, kCount - 1, 1}})).job();
  std::vector<bool> ran(kCount);
  uint32_t count = 0;
  for (std::vector<v1::StartAttempt> starts = Orders(); !starts.empty(); starts = Orders()) {
    Transaction([&] {
      for (const auto& start : starts) {
        EXPECT_FALSE(ran[start.array_index()]);
        ran[start.array_index()] = true;
        ++count;
        EXPECT_TRUE(state_->Apply("n1", control::ExitOf(start.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0)));
      }
      return 0;
    });
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  RecordProperty("took_ms", static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
  EXPECT_EQ(count, kCount);
  EXPECT_EQ(StateOf(array), v1::COMPLETED);
  EXPECT_LT(took, std::chrono::seconds(60));
}

TEST_F(ArrayTest, NoMoreRunThanMay) {
  Register(SimpleNode("n1", 16));
  const uint64_t array = Submit(ArrayJob("a", {{0, 9, 1}}, 3)).job();
  std::vector<v1::StartAttempt> starts = Orders();
  ASSERT_EQ(starts.size(), 3u);
  EXPECT_EQ(state_->jobs().size(), 4u);
  EXPECT_EQ(WhyOf(array, 7).summary(), "at most 3 elements of its array may run at a time; 4 elements come before it");
  Ends(starts[0], 0);
  EXPECT_EQ(Orders().size(), 1u);
}

TEST_F(ArrayTest, WhatWasReleasedStillKeepsToTheLimit) {
  Register(SimpleNode("n1", 1));
  const uint64_t array = Submit(ArrayJob("a", {{0, 9, 1}}, 2)).job();
  const v1::StartAttempt first = Orders().at(0);
  EXPECT_EQ(Change(array, v1::ChangeJobs::HOLD, {{1, 1, 1}}), "");  // it is a job already
  const uint64_t held = JobOf(array, 1);
  ASSERT_NE(held, 0u);
  Register(SimpleNode("n2", 8));
  const v1::StartAttempt next = Orders("n2").at(0);
  EXPECT_EQ(next.array_index(), 2u) << "one that is held takes nobody's place";
  EXPECT_EQ(Change(array, v1::ChangeJobs::RELEASE, {{1, 1, 1}}), "");
  EXPECT_TRUE(Orders("n2").empty()) << "two of them run";
  EXPECT_EQ(Event(held).reason(), "at most 2 elements of array " + std::to_string(array) + " may run at a time");
  Restart();
  EXPECT_EQ(Event(held).reason(), "at most 2 elements of array " + std::to_string(array) + " may run at a time");
  v1::Register back = SimpleNode("n2", 8);
  *back.add_attempts() = ReportOf(next.placement(), v1::RUNNING);
  Register(back);
  Ends(next, 0, "n2");
  const std::vector<v1::StartAttempt> last = Orders("n2");
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].placement().job(), held);
}

TEST_F(ArrayTest, FailuresAreCountedAndTheHighestStatusIsShown) {
  Register(SimpleNode("n1", 4));
  const uint64_t array = Submit(ArrayJob("a", {{0, 3, 1}})).job();
  const std::vector<v1::StartAttempt> starts = Orders();
  Ends(starts[0], 0);
  Ends(starts[1], 7);
  Ends(starts[2], 3);
  Ends(starts[3], 0);
  EXPECT_EQ(StateOf(array), v1::FAILED);
  EXPECT_EQ(Event(array).reason(), "2 of 4 elements failed");
  const v1::JobInfo info = InfoOf(array);
  EXPECT_EQ(info.array_info().failed(), 2u);
  EXPECT_EQ(info.array_info().completed(), 2u);
  EXPECT_EQ(info.exit().exit_code(), 7);
}

TEST_F(ArrayTest, CancellingAnArrayEndsWhatRunsAndDropsTheRest) {
  Register(SimpleNode("n1", 2));
  const uint64_t array = Submit(ArrayJob("a", {{0, 999, 1}})).job();
  const std::vector<v1::StartAttempt> starts = Orders();
  ASSERT_EQ(starts.size(), 2u);
  for (const auto& start : starts) Runs(start);
  EXPECT_EQ(CancelJob(array), v1::RUNNING);
  EXPECT_EQ(Stops().size(), 2u);
  EXPECT_EQ(state_->jobs().size(), 3u);
  EXPECT_EQ(Event(array).array().waiting(), 0u);
  Restart();
  v1::Register back = SimpleNode("n1", 2);
  for (const auto& start : starts) *back.add_attempts() = ReportOf(start.placement(), v1::RUNNING);
  Register(back);
  EXPECT_TRUE(Orders().empty());
  EXPECT_EQ(Stops().size(), 2u);
  for (const auto& start : starts)
    Report("n1", ExitOf(start.placement(), v1::CANCELLED, v1::ExitRecord::CANCELLED_BY_USER, 0));
  EXPECT_EQ(StateOf(array), v1::CANCELLED);
  EXPECT_EQ(Event(array).reason(), "cancelled while it waited");
  EXPECT_TRUE(state_->jobs().empty());
}

TEST_F(ArrayTest, SomeElementsAreCancelled) {
  Register(SimpleNode("n1", 1));
  const uint64_t array = Submit(ArrayJob("a", {{0, 199, 1}})).job();
  const v1::StartAttempt first = Orders().at(0);
  Runs(first);
  const uint64_t other = JobOf(array, 5);
  ASSERT_NE(other, 0u);
  EXPECT_EQ(Cancel(array, {{5, 5, 1}, {150, 160, 1}}), "");
  EXPECT_EQ(StateOf(other), v1::CANCELLED);
  EXPECT_EQ(Element(array, 155).state(), v1::CANCELLED);
  EXPECT_EQ(Element(array, 155).reason(), "cancelled before it became a job");
  EXPECT_EQ(Element(array, 149).state(), v1::PENDING);
  EXPECT_EQ(Element(array, 0).job(), first.placement().job());
  EXPECT_EQ(Cancel(array, {{200, 300, 1}}),
            "array " + std::to_string(array) + ": it has no element 200-300: it has 0-199");
  EXPECT_EQ(Cancel(first.placement().job(), {{0, 0, 1}}),
            "job " + std::to_string(first.placement().job()) + ": it is no array: name the job alone");
  std::set<uint32_t> ran;
  for (std::vector<v1::StartAttempt> starts{first}; !starts.empty(); starts = Orders()) {
    for (const auto& start : starts) {
      EXPECT_TRUE(ran.insert(start.array_index()).second);
      Ends(start, 0);
    }
  }
  EXPECT_EQ(ran.size(), 200u - 12);
  EXPECT_FALSE(ran.contains(5));
  EXPECT_FALSE(ran.contains(150));
  EXPECT_TRUE(ran.contains(161));
  EXPECT_EQ(StateOf(array), v1::CANCELLED);
  EXPECT_EQ(Event(array).reason(), "12 of 200 elements were cancelled");
}

TEST_F(ArrayTest, ElementsAreHeldAndReleased) {
  Register(SimpleNode("n1", 300));
  v1::SubmitRequest request = ArrayJob("a", {{0, 199, 1}});
  request.mutable_spec()->mutable_scheduling()->set_hold(true);
  const uint64_t array = Submit(request).job();
  EXPECT_TRUE(Orders().empty());
  EXPECT_EQ(Event(array).reason(),
            "the elements that wait are held: `vctl release " + std::to_string(array) + "` lets them start");
  EXPECT_TRUE(InfoOf(array).scheduling().hold());
  EXPECT_EQ(WhyOf(array, 3).summary(), "it is held: `vctl release " + std::to_string(array) + "_3` lets it start");
  EXPECT_EQ(Change(array, v1::ChangeJobs::RELEASE, {{100, 109, 1}}), "");
  EXPECT_EQ(Orders().size(), 10u);
  Restart();
  Register(SimpleNode("n1", 300));
  EXPECT_EQ(Orders().size(), 10u) << "the same again";
  EXPECT_EQ(Change(array, v1::ChangeJobs::RELEASE, {{100, 109, 1}}),
            "array " + std::to_string(array) + ": no such element is held");
  EXPECT_EQ(Change(array, v1::ChangeJobs::RELEASE, {}), "");
  EXPECT_EQ(Orders().size(), 190u);
  EXPECT_EQ(Change(array, v1::ChangeJobs::HOLD, {}), "array " + std::to_string(array) + ": no such element waits");
}

TEST_F(ArrayTest, ElementsAreRequeued) {
  Register(SimpleNode("n1", 2));
  v1::SubmitRequest request = ArrayJob("a", {{0, 1, 1}});
  request.mutable_spec()->mutable_scheduling()->set_requeue(true);
  const uint64_t array = Submit(request).job();
  const std::vector<v1::StartAttempt> starts = Orders();
  for (const auto& start : starts) Runs(start);
  EXPECT_EQ(Change(array, v1::ChangeJobs::REQUEUE, {{1, 1, 1}}), "");
  EXPECT_EQ(Stops().size(), 1u);
  LeavesFor("n1", starts[1].placement());
  WritesAreHome("n1", starts[1].placement());
  const std::vector<v1::StartAttempt> again = Orders();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].placement().job(), starts[1].placement().job());
  EXPECT_EQ(again[0].placement().attempt(), 2u);
  EXPECT_EQ(again[0].array_index(), 1u);
  Ends(starts[0], 0);
  Ends(again[0], 0);
  EXPECT_EQ(StateOf(array), v1::COMPLETED);
}

TEST_F(ArrayTest, ASweepFillsInItsValues) {
  Register(SimpleNode("n1", 8));
  v1::SubmitRequest request = ArrayJob("a", {});
  v1::Array::Sweep* sweep = request.mutable_array()->add_sweeps();
  sweep->set_name("lr");
  sweep->add_values("0.1");
  sweep->add_values("0.01");
  request.mutable_spec()->mutable_command()->add_argv("--lr={lr}");
  const uint64_t array = Submit(request).job();
  const std::vector<v1::StartAttempt> starts = Orders();
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[0].spec().command().argv(1), "--lr=0.1");
  EXPECT_EQ(starts[1].spec().command().argv(1), "--lr=0.01");
  const v1::JobInfo info = InfoOf(starts[1].placement().job());
  EXPECT_EQ(info.argv(1), "--lr=0.01");
  EXPECT_EQ(info.array(), array);
  EXPECT_EQ(info.array_index(), 1u);
  ASSERT_EQ(info.variables_size(), 1);
  EXPECT_EQ(info.variables(0), "lr=0.01");
  for (const auto& start : starts) Ends(start, 0);
  EXPECT_EQ(InfoOf(starts[1].placement().job()).variables(0), "lr=0.01") << "also when the array is over";
  request.set_request_id("b");
  request.mutable_spec()->mutable_command()->add_argv("{rl}");
  EXPECT_EQ(SubmitError(request).message(), "array: no sweep is called {rl}: use {lr}, or add --sweep rl=...");
}

TEST_F(ArrayTest, TheListHasTheArrayAndWhatRuns) {
  Register(SimpleNode("n1", 2));
  const uint64_t array = Submit(ArrayJob("a", {{0, 99, 1}})).job();
  for (const auto& start : Orders()) Runs(start);
  v1::ListRequest request;
  v1::ListReply list = *List(*state_, kAnna, request);
  ASSERT_EQ(list.jobs_size(), 3);
  EXPECT_EQ(list.jobs(0).array(), array);
  EXPECT_EQ(list.jobs(0).state(), v1::RUNNING);
  EXPECT_EQ(list.jobs(2).job(), array);
  EXPECT_EQ(list.jobs(2).array_info().waiting(), 98u);
  EXPECT_EQ(list.jobs(2).array_info().running(), 2u);
  EXPECT_EQ(list.jobs(2).array_info().array().ranges(0).last(), 99u);
  request.set_home_id("home-1");
  list = *List(*state_, kAnna, request);
  EXPECT_EQ(list.jobs_size(), static_cast<int>(1 + 2 + kArrayWindow)) << "home goes on with all of them";
  request.set_home_id("another");
  EXPECT_EQ(List(*state_, kAnna, request)->jobs_size(), 0);
}

TEST_F(ArrayTest, AccountsCountElements) {
  Register(SimpleNode("n1", 4));
  const uint64_t array = Submit(ArrayJob("a", {{0, 2, 1}})).job();
  for (const auto& start : Orders()) Ends(start, 0);
  EXPECT_EQ(StateOf(array), v1::COMPLETED);
  const v1::AccountList list = *Accounts(*state_, kAnna, {});
  ASSERT_EQ(list.accounts_size(), 3);
  for (const v1::Account& account : list.accounts()) EXPECT_EQ(account.job().array(), array);
}

TEST_F(ArrayTest, EachElementIsToldOnce) {
  Register(SimpleNode("n1", 2));
  const uint64_t array = Submit(ArrayJob("a", {{0, 9, 1}}, 2)).job();
  EXPECT_EQ(began_[array].size(), 2u);
  EXPECT_EQ(state_->ElementsOf(array).size(), 2u);
  for (int i = 0; i < 10; ++i) {
    for (const auto& start : Orders()) Ends(start, 0);
  }
  EXPECT_EQ(StateOf(array), v1::COMPLETED);
  ASSERT_EQ(began_[array].size(), 10u);
  std::set<uint32_t> indexes;
  for (const v1::ArrayElement& element : began_[array]) indexes.insert(element.index());
  EXPECT_EQ(indexes.size(), 10u);
}

TEST_F(ArrayTest, WhatCannotBeIsRefused) {
  EXPECT_EQ(SubmitError(ArrayJob("a", {})).message(), "array: it has no elements: give indexes, such as 0-9");
  EXPECT_NE(SubmitError(ArrayJob("a", {{0, 2'000'000, 1}})).message().find("1000000 are the limit"), std::string::npos);
  v1::SubmitRequest terminal = ArrayJob("a", {{0, 1, 1}});
  terminal.mutable_spec()->mutable_command()->set_terminal(true);
  EXPECT_NE(SubmitError(terminal).message().find("cannot use a terminal"), std::string::npos);
  EXPECT_EQ(SubmitError(SimpleJob("array element 1_0")).code(), Code::kInvalid)
      << "nobody else makes a request id of an element";
  const uint64_t job = Submit(SimpleJob("b")).job();
  v1::GetRequest get;
  get.set_job(job);
  get.set_element(1);
  EXPECT_EQ(control::Get(*state_, kAnna, get).error().code(), Code::kNotFound);
  EXPECT_EQ(Change(job, v1::ChangeJobs::HOLD, {{0, 1, 1}}),
            "job " + std::to_string(job) + ": it is no array: name the job alone");
  const uint64_t array = Submit(ArrayJob("c", {{0, 1, 1}})).job();
  get.set_job(array);
  get.set_element(2);
  EXPECT_EQ(control::Get(*state_, kAnna, get).error().message(),
            "array " + std::to_string(array) + ": it has no element 2: it has 0-1");
  EXPECT_EQ(Submit(ArrayJob("c", {{0, 1, 1}})).job(), array) << "the same request is the same array";
}

TEST_F(ArrayTest, WhyAnArrayWaits) {
  Register(SimpleNode("n1", 1));
  const v1::Placement blocker = Submit(SimpleJob("b")).placement();
  const uint64_t array = Submit(ArrayJob("a", {{0, 99, 1}})).job();
  EXPECT_EQ(WhyOf(array).summary(), "needs 1 core; the best node of pool local has 0 cores free");
  EXPECT_EQ(WhyOf(array, 99).summary(), "35 elements come before it");
  EXPECT_NE(WhyOf(array, 0).summary().find("needs 1 core"), std::string::npos) << "it is a job";
  Report("n1", control::ExitOf(blocker, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  Runs(Orders().back());
  EXPECT_EQ(WhyOf(array).summary(),
            "1 of 100 elements run, 99 wait: needs 1 core; the best node of pool local has 0 cores free");
}

TEST_F(ArrayTest, ElementsWhoseNodeWasRestartedRunAgain) {
  Register(SimpleNode("n1", 4));
  v1::SubmitRequest request = ArrayJob("a", {{0, 19, 1}}, 4);
  request.mutable_spec()->mutable_scheduling()->set_requeue(true);
  const uint64_t array = Submit(request).job();
  for (const auto& start : Orders()) Runs(start);
  v1::Register rebooted = SimpleNode("n1", 4, 0, 2);
  Register(rebooted);
  std::set<uint32_t> ran;
  for (int i = 0; i < 20; ++i) {
    const auto starts = Orders();
    EXPECT_LE(starts.size(), 4u);
    for (const auto& start : starts) {
      ran.insert(start.array_index());
      Ends(start, 0);
    }
  }
  EXPECT_EQ(ran.size(), 20u);
  EXPECT_EQ(StateOf(array), v1::COMPLETED);
}

}  // namespace
}  // namespace vrun::control
