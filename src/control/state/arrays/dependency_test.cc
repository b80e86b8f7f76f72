// SPDX-License-Identifier: Apache-2.0
// Dependencies that the controller itself waits for, and graphs of many jobs.
#include <chrono>
#include <functional>

#include "control/testing/array_testing.h"

namespace vrun::control {
namespace {

class DependencyTest : public ArrayStateTest {
 protected:
  DependencyTest() { Register(SimpleNode("n1", 64)); }

  v1::SubmitRequest Request(const std::string& id, const std::function<void(v1::Scheduling*)>& set) {
    v1::SubmitRequest request = SimpleJob(id);
    set(request.mutable_spec()->mutable_scheduling());
    return request;
  }
  v1::SubmitRequest NotOk(const std::string& id, uint64_t other) {
    return Request(id, [&](auto* s) { s->add_after_not_ok(other); });
  }
  v1::SubmitRequest AfterStart(const std::string& id, uint64_t other) {
    return Request(id, [&](auto* s) { s->add_after_start(other); });
  }
  v1::SubmitRequest Singleton(const std::string& id, const std::string& name) {
    v1::SubmitRequest request = Request(id, [](auto* s) { s->set_singleton(true); });
    request.mutable_spec()->set_name(name);
    return request;
  }
  v1::SubmitRequest Corresponding(const std::string& id, const std::vector<TestRange>& ranges, uint64_t other) {
    v1::SubmitRequest request = ArrayJob(id, ranges);
    request.mutable_spec()->mutable_scheduling()->add_after_corresponding(other);
    return request;
  }
  v1::StartAttempt Start(const std::string& id) {
    Submit(SimpleJob(id));
    return Orders().back();
  }
  std::set<uint32_t> IndexesOf(const std::vector<v1::StartAttempt>& starts) {
    std::set<uint32_t> indexes;
    for (const auto& start : starts) indexes.insert(start.array_index());
    return indexes;
  }
};

TEST_F(DependencyTest, AJobThatWaitsForAFailureStartsAfterOne) {
  const v1::StartAttempt first = Start("first");
  const uint64_t id = first.placement().job();
  const uint64_t second = Submit(NotOk("second", id)).job();
  EXPECT_EQ(Event(second).reason(), "starts only if job " + std::to_string(id) + " fails");
  EXPECT_EQ(WhyOf(second).summary(), "starts only if job " + std::to_string(id) + " fails");
  ASSERT_EQ(WhyOf(second).blockers_size(), 1);
  EXPECT_EQ(WhyOf(second).blockers(0).kind(), "dependency");
  Restart();
  Register(SimpleNode("n1", 64));
  EXPECT_EQ(Orders().size(), 1u) << "the first one is ordered again";
  EXPECT_EQ(StateOf(second), v1::PENDING);
  Ends(first, 1);
  EXPECT_EQ(StateOf(second), v1::STARTING);
  ASSERT_EQ(Orders().size(), 1u);
}

TEST_F(DependencyTest, AJobThatWaitsForAFailureIsCancelledAfterASuccess) {
  const v1::StartAttempt first = Start("first");
  const uint64_t id = first.placement().job();
  const uint64_t second = Submit(NotOk("second", id)).job();
  const uint64_t third = Submit(NotOk("third", second)).job();
  Ends(first, 0);
  EXPECT_EQ(StateOf(second), v1::CANCELLED);
  EXPECT_EQ(Event(second).reason(), "depends on job " + std::to_string(id) + ", which did not fail");
  EXPECT_EQ(StateOf(third), v1::STARTING) << "what was cancelled has not succeeded";
  EXPECT_NE(SubmitError(NotOk("fourth", id)).message().find("did not fail, so this one would never start"),
            std::string::npos);
}

TEST_F(DependencyTest, AfterStartWaitsForTheStart) {
  const v1::StartAttempt first = Start("first");
  const uint64_t id = first.placement().job();
  const uint64_t second = Submit(AfterStart("second", id)).job();
  EXPECT_EQ(Event(second).reason(), "waits for the start of job " + std::to_string(id));
  Runs(first);
  EXPECT_EQ(StateOf(second), v1::STARTING);
  EXPECT_EQ(StateOf(Submit(AfterStart("third", id)).job()), v1::STARTING);
  const uint64_t held = Submit(Request("held", [](auto* s) { s->set_hold(true); })).job();
  const uint64_t fourth = Submit(AfterStart("fourth", held)).job();
  EXPECT_EQ(StateOf(fourth), v1::PENDING);
  CancelJob(held);
  EXPECT_EQ(StateOf(fourth), v1::STARTING) << "or ended";
}

TEST_F(DependencyTest, AStartCountsEvenIfTheJobWaitsAgain) {
  v1::SubmitRequest request = Request("first", [](auto* s) { s->set_requeue(true); });
  Submit(request);
  const v1::StartAttempt first = Orders().at(0);
  v1::SubmitRequest later = AfterStart("second", first.placement().job());
  later.mutable_spec()->mutable_scheduling()->set_hold(true);
  const uint64_t second = Submit(later).job();
  Runs(first);
  Register(SimpleNode("n1", 64, 0, 2));  // the node was restarted
  EXPECT_EQ(StateOf(first.placement().job()), v1::STARTING);
  Restart();
  Register(SimpleNode("n1", 64, 0, 2));
  EXPECT_EQ(Change(second, v1::ChangeJobs::RELEASE, {}), "");
  EXPECT_EQ(StateOf(second), v1::STARTING);
}

TEST_F(DependencyTest, OneAtATimeOfAName) {
  Submit(Singleton("a", "train"));
  const v1::StartAttempt first = Orders().at(0);
  const uint64_t second = Submit(Singleton("b", "train")).job(), third = Submit(Singleton("c", "train")).job();
  EXPECT_EQ(StateOf(Submit(Singleton("d", "other")).job()), v1::STARTING);
  EXPECT_EQ(Submit(Singleton("e", "train"), kBob).placement().node(), "n1") << "another user's";
  EXPECT_EQ(StateOf(second), v1::PENDING);
  EXPECT_EQ(WhyOf(third).summary(), "waits for the end of job " + std::to_string(first.placement().job()) +
                                        ": it has the same name, and only one of them may run at a time");
  Restart();
  v1::Register back = SimpleNode("n1", 64);
  Register(back);
  Ends(first, 1);
  EXPECT_EQ(StateOf(second), v1::STARTING);
  EXPECT_EQ(StateOf(third), v1::PENDING);
  Ends(Orders().back(), 0);
  EXPECT_EQ(StateOf(second), v1::COMPLETED);
  EXPECT_EQ(StateOf(third), v1::STARTING);
}

TEST_F(DependencyTest, JobsWaitForAllOfAnArray) {
  const uint64_t array = Submit(ArrayJob("a", {{0, 2, 1}})).job();
  const auto ok = Request("ok", [&](auto* s) { s->add_after_ok(array); });
  const auto any = Request("any", [&](auto* s) { s->add_after(array); });
  const uint64_t after_ok = Submit(ok).job(), after_any = Submit(any).job();
  const uint64_t not_ok = Submit(NotOk("not", array)).job(), start = Submit(AfterStart("start", array)).job();
  EXPECT_EQ(Event(after_ok).reason(), "waits for the end of array " + std::to_string(array));
  EXPECT_EQ(Event(start).reason(), "waits for the start of all elements of array " + std::to_string(array));
  const auto starts = Orders();
  ASSERT_EQ(starts.size(), 3u);
  Ends(starts[0], 0);
  Runs(starts[1]);
  EXPECT_EQ(StateOf(start), v1::PENDING);
  Runs(starts[2]);
  EXPECT_EQ(StateOf(start), v1::STARTING);
  Ends(starts[1], 1);
  EXPECT_EQ(StateOf(after_any), v1::PENDING);
  EXPECT_EQ(StateOf(not_ok), v1::PENDING);
  Ends(starts[2], 0);
  EXPECT_EQ(StateOf(array), v1::FAILED);
  EXPECT_EQ(StateOf(after_any), v1::STARTING);
  EXPECT_EQ(StateOf(not_ok), v1::STARTING);
  EXPECT_EQ(StateOf(after_ok), v1::CANCELLED);
  EXPECT_EQ(Event(after_ok).reason(),
            "array " + std::to_string(array) + " did not succeed, and this was to start only then");
}

TEST_F(DependencyTest, AnArrayWaitsForJobsAndArrays) {
  const v1::StartAttempt first = Start("first");
  const uint64_t id = first.placement().job();
  v1::SubmitRequest request = ArrayJob("a", {{0, 2, 1}});
  request.mutable_spec()->mutable_scheduling()->add_after_ok(id);
  const uint64_t array = Submit(request).job();
  request.set_request_id("b");
  request.mutable_spec()->mutable_scheduling()->clear_after_ok();
  request.mutable_spec()->mutable_scheduling()->add_after(array);
  const uint64_t next = Submit(request).job();
  EXPECT_EQ(Event(array).reason(), "waits for the end of job " + std::to_string(id));
  EXPECT_EQ(WhyOf(array, 1).summary(), "waits for the end of job " + std::to_string(id));
  Restart();
  Register(SimpleNode("n1", 64));
  EXPECT_EQ(Orders().size(), 1u);
  Ends(first, 0);
  auto starts = Orders();
  EXPECT_EQ(starts.size(), 3u);
  EXPECT_EQ(StateOf(next), v1::PENDING);
  for (const auto& start : starts) Ends(start, 1);
  EXPECT_EQ(Orders().size(), 3u);
}

TEST_F(DependencyTest, AnArrayThatCanNoLongerStartIsCancelled) {
  const v1::StartAttempt first = Start("first");
  v1::SubmitRequest request = ArrayJob("a", {{0, 999, 1}});
  request.mutable_spec()->mutable_scheduling()->add_after_ok(first.placement().job());
  const uint64_t array = Submit(request).job();
  const uint64_t next = Submit(Corresponding("b", {{5, 6, 1}}, array)).job();
  Ends(first, 1);
  EXPECT_EQ(StateOf(array), v1::CANCELLED);
  EXPECT_EQ(StateOf(next), v1::CANCELLED);
  EXPECT_EQ(Event(next).reason(), "2 of 2 elements were cancelled");
  EXPECT_TRUE(state_->jobs().empty());
}

TEST_F(DependencyTest, EachElementStartsAfterTheOneThatCorresponds) {
  const uint64_t first = Submit(ArrayJob("a", {{0, 9, 1}}, 3)).job();
  const uint64_t second = Submit(Corresponding("b", {{0, 8, 2}}, first)).job();
  EXPECT_EQ(WhyOf(second, 4).summary(), "waits for the end of element " + std::to_string(first) + "_4");
  auto starts = Orders();
  ASSERT_EQ(starts.size(), 3u);
  Ends(starts[2], 0);  // index 2
  auto more = Orders();
  EXPECT_EQ(IndexesOf(more), (std::set<uint32_t>{2, 3}));
  Restart();
  Register(SimpleNode("n1", 64));
  Orders();
  Ends(starts[0], 1);  // index 0 fails
  EXPECT_EQ(Element(second, 0).state(), v1::CANCELLED);
  EXPECT_EQ(IndexesOf(Orders()), std::set<uint32_t>{4}) << "of the first array";
  EXPECT_EQ(Cancel(first, {{6, 6, 1}}), "");
  EXPECT_EQ(Element(second, 6).state(), v1::CANCELLED);
  EXPECT_EQ(Element(second, 8).state(), v1::PENDING);
  EXPECT_EQ(Event(second).array().waiting(), 2u);
  EXPECT_EQ(
      SubmitError(Corresponding("c", {{5, 12, 1}}, first)).message(),
      "dependency: array " + std::to_string(first) + " has no element 10: give this array the indexes of that one");
}

TEST_F(DependencyTest, WhatCorrespondsMayHaveEndedBefore) {
  const uint64_t first = Submit(ArrayJob("a", {{0, 3, 1}})).job();
  const auto starts = Orders();
  Ends(starts[0], 0);
  Ends(starts[1], 1);
  const uint64_t second = Submit(Corresponding("b", {{0, 2, 1}}, first)).job();
  EXPECT_EQ(IndexesOf(Orders()), std::set<uint32_t>{0});
  EXPECT_EQ(Event(second).array().waiting(), 1u);
  Ends(starts[2], 0);
  Ends(starts[3], 0);
  EXPECT_EQ(IndexesOf(Orders()), std::set<uint32_t>{2});
  const uint64_t third = Submit(Corresponding("c", {{0, 3, 1}}, first)).job();
  EXPECT_EQ(IndexesOf(Orders()), (std::set<uint32_t>{0, 2, 3}));
  EXPECT_EQ(Event(third).array().waiting(), 0u);
  EXPECT_EQ(SubmitError(Corresponding("d", {{1, 1, 1}}, first)).code(), Code::kInvalid);
  // A single job waits for all of it.
  const uint64_t job = Submit(Request("e", [&](auto* s) { s->add_after_corresponding(second); })).job();
  EXPECT_EQ(Event(job).reason(), "waits for the end of array " + std::to_string(second));
}

TEST_F(DependencyTest, UnknownJobsAreRefusedInOneLine) {
  for (const auto add : {&v1::Scheduling::add_after, &v1::Scheduling::add_after_ok, &v1::Scheduling::add_after_not_ok,
                         &v1::Scheduling::add_after_start, &v1::Scheduling::add_after_corresponding}) {
    // The first job would be number 1, and it would depend on itself.
    EXPECT_EQ(SubmitError(Request("a", [&](auto* s) { (s->*add)(1); })).message(), "dependency: job 1: no such job");
  }
}

class GraphTest : public DependencyTest {
 protected:
  // The time that the jobs take from the submission of the first to the end of the last, in milliseconds.
  int64_t Run(const std::vector<v1::SubmitRequest>& requests) {
    const auto begin = std::chrono::steady_clock::now();
    size_t at = 0;
    while (at < requests.size()) {
      Transaction([&] {
        for (int i = 0; i < 100 && at < requests.size(); ++i) {
          EXPECT_TRUE(control::Submit(*state_, kAnna, requests[at++]));
        }
        return 0;
      });
    }
    const auto submitted = std::chrono::steady_clock::now();
    size_t ended = 0;
    for (std::vector<v1::StartAttempt> starts = Orders(); !starts.empty(); starts = Orders()) {
      Transaction([&] {
        for (const auto& start : starts) {
          EXPECT_TRUE(
              state_->Apply("n1", control::ExitOf(start.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0)));
        }
        return 0;
      });
      ended += starts.size();
    }
    EXPECT_EQ(ended, requests.size());
    EXPECT_TRUE(state_->jobs().empty());
    using std::chrono::milliseconds;
    const auto of = [](auto time) { return std::chrono::duration_cast<milliseconds>(time).count(); };
    RecordProperty("submitted_ms", static_cast<int>(of(submitted - begin)));
    return of(std::chrono::steady_clock::now() - begin);
  }
};

TEST_F(GraphTest, AChainOfTenThousandIsCancelledWithItsFirst) {
  constexpr uint64_t kJobs = 10'000;
  v1::SubmitRequest held = Request("first", [](auto* s) { s->set_hold(true); });
  Transaction([&] {
    EXPECT_TRUE(control::Submit(*state_, kAnna, held));
    for (uint64_t id = 2; id <= kJobs; ++id) {
      // Jobs that the scheduler waits for, and jobs and arrays that the controller waits for.
      v1::SubmitRequest next =
          id % 3 == 0 ? ArrayJob("r" + std::to_string(id), {{0, 9, 1}}) : SimpleJob("r" + std::to_string(id));
      v1::Scheduling* s = next.mutable_spec()->mutable_scheduling();
      s->add_after_ok(id - 1);
      EXPECT_TRUE(control::Submit(*state_, kAnna, next));
    }
    return 0;
  });
  EXPECT_EQ(state_->jobs().size(), kJobs);
  CancelJob(1);
  EXPECT_TRUE(state_->jobs().empty());
  EXPECT_EQ(Event(kJobs).reason(), "array 9999 did not succeed, and this was to start only then");
}

TEST_F(GraphTest, AChainOfArraysIsCancelledWithItsFirst) {
  constexpr uint64_t kArrays = 5'000;
  Transaction([&] {
    for (uint64_t id = 1; id <= kArrays; ++id) {
      v1::SubmitRequest next = ArrayJob("r" + std::to_string(id), {{0, 1, 1}});
      next.mutable_spec()->mutable_scheduling()->set_hold(id == 1);
      if (id > 1) next.mutable_spec()->mutable_scheduling()->add_after_corresponding(id - 1);
      EXPECT_TRUE(control::Submit(*state_, kAnna, next));
    }
    return 0;
  });
  EXPECT_EQ(Cancel(1, {{1, 1, 1}}), "");
  EXPECT_EQ(Event(kArrays).array().waiting(), 1u);
  CancelJob(1);
  EXPECT_TRUE(state_->jobs().empty());
}

TEST_F(GraphTest, TenThousandJobsInLayers) {
  constexpr uint64_t kJobs = 10'000, kWidth = 50;
  std::vector<v1::SubmitRequest> requests;
  for (uint64_t id = 1; id <= kJobs; ++id) {
    requests.push_back(Request("r" + std::to_string(id), [&](auto* s) {
      const uint64_t layer = (id - 1) / kWidth;
      for (uint64_t i = 0; layer > 0 && i < 4; ++i) s->add_after_ok((layer - 1) * kWidth + (id + i * 13) % kWidth + 1);
    }));
  }
  EXPECT_LT(Run(requests), 60'000);
}

TEST_F(GraphTest, TenThousandJobsAfterTheStartOfOneAndOneAfterAll) {
  constexpr uint64_t kJobs = 9'998;
  std::vector<v1::SubmitRequest> requests{SimpleJob("first")};
  v1::SubmitRequest last = SimpleJob("last");
  for (uint64_t id = 2; id <= kJobs + 1; ++id) {
    requests.push_back(AfterStart("r" + std::to_string(id), 1));
    last.mutable_spec()->mutable_scheduling()->add_after_ok(id);
  }
  requests.push_back(last);
  EXPECT_LT(Run(requests), 60'000);
}

}  // namespace
}  // namespace vrun::control
