// SPDX-License-Identifier: Apache-2.0
// Jobs with a begin time or dependencies, and deadlines.
#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

constexpr int64_t kHour = 3'600'000'000;

class WaitingTest : public StateTest {
 protected:
  v1::SubmitRequest After(const std::string& id, std::vector<uint64_t> ok, std::vector<uint64_t> any = {}) {
    v1::SubmitRequest request = SimpleJob(id);
    request.mutable_spec()->mutable_scheduling()->mutable_after_ok()->Assign(ok.begin(), ok.end());
    request.mutable_spec()->mutable_scheduling()->mutable_after()->Assign(any.begin(), any.end());
    return request;
  }
  v1::Placement Running(const std::string& id) {
    const v1::Placement p = Submit(SimpleJob(id)).placement();
    Report("n1", ReportOf(p, v1::RUNNING));
    Starts();
    return p;
  }
  void CommandEnds(const v1::Placement& p, int code) {
    Report("n1", ExitOf(p, v1::COMPLETING, v1::ExitRecord::EXITED, code));
  }
  void Ends(const v1::Placement& p, int code) {
    Report("n1", ExitOf(p, code == 0 ? v1::COMPLETED : v1::FAILED, v1::ExitRecord::EXITED, code));
  }
};

TEST_F(WaitingTest, AJobThatComesAfterAnotherSeesWhatThatWrote) {
  Register(SimpleNode("n1", 8));
  const v1::Placement first = Running("first");
  const uint64_t second = Submit(After("second", {first.job()})).job();
  EXPECT_EQ(Event(second).reason(), "waits for the end of job " + std::to_string(first.job()));
  CommandEnds(first, 0);
  EXPECT_TRUE(Starts().empty()) << "its writes are still on the way";
  EXPECT_FALSE(Event(second).has_placement());
  EXPECT_EQ(Event(second).reason(),
            "the writes of job " + std::to_string(first.job()) + " are still on their way home");
  Restart();
  v1::Register back = SimpleNode("n1", 8);
  *back.add_attempts() = ExitOf(first, v1::COMPLETING, v1::ExitRecord::EXITED, 0);
  Register(back);
  EXPECT_TRUE(Starts().empty());
  told_.clear();
  Ends(first, 0);
  EXPECT_TRUE(told_.contains(second)) << "its home hears that it may go there";
  ASSERT_EQ(Starts().size(), 1u);
  EXPECT_TRUE(Event(second).has_placement());
}

TEST_F(WaitingTest, AfterOkEndsWithWhatItWaitedForAndAfterAnyDoesNotMind) {
  Register(SimpleNode("n1", 8));
  const v1::Placement first = Running("first");
  const uint64_t ok = Submit(After("ok", {first.job()})).job();
  const uint64_t next = Submit(After("next", {ok})).job();
  const uint64_t any = Submit(After("any", {}, {first.job()})).job();
  Ends(first, 3);
  EXPECT_EQ(StateOf(ok), v1::CANCELLED);
  EXPECT_EQ(Event(ok).reason(),
            "job " + std::to_string(first.job()) + " did not succeed, and this was to start only then");
  EXPECT_EQ(StateOf(next), v1::CANCELLED);
  EXPECT_EQ(StateOf(any), v1::STARTING);
}

TEST_F(WaitingTest, WhatDidNotComeHomeDidNotSucceed) {
  Register(SimpleNode("n1", 8));
  const v1::Placement first = Running("first");
  const uint64_t second = Submit(After("second", {first.job()})).job();
  CommandEnds(first, 0);
  EXPECT_EQ(StateOf(second), v1::STARTING) << "held back";
  Ends(first, 1);  // the node could not write the job's results home
  EXPECT_EQ(StateOf(second), v1::CANCELLED);
  EXPECT_TRUE(Starts().empty());
}

TEST_F(WaitingTest, JobsThatHaveEndedAreSettledAtOnce) {
  Register(SimpleNode("n1", 8));
  const v1::Placement good = Running("good"), bad = Running("bad");
  Ends(good, 0);
  Ends(bad, 1);
  EXPECT_TRUE(Submit(After("a", {good.job()}, {bad.job()})).has_placement());
  const std::string refused = SubmitError(After("b", {bad.job()})).message();
  EXPECT_NE(refused.find("job " + std::to_string(bad.job()) + " did not succeed"), std::string::npos) << refused;
  EXPECT_EQ(SubmitError(After("c", {4711})).code(), Code::kNotFound);
}

TEST_F(WaitingTest, ACancelledJobReleasesThoseAfterIt) {
  Register(SimpleNode("n1", 8));
  const v1::Placement first = Running("first");
  const uint64_t waits = Submit(After("waits", {}, {first.job()})).job();
  const uint64_t after = Submit(After("after", {}, {waits})).job();
  EXPECT_EQ(CancelJob(waits), v1::CANCELLED);
  EXPECT_EQ(StateOf(after), v1::STARTING);
}

TEST_F(WaitingTest, ItBeginsAtItsTime) {
  Register(SimpleNode("n1", 8));
  v1::SubmitRequest request = SimpleJob("later");
  request.mutable_spec()->mutable_scheduling()->set_begin_us(clock_.Wall() + kHour);
  const uint64_t job = Submit(request).job();
  EXPECT_EQ(Event(job).reason(), "begins at " + FormatRfc3339(request.spec().scheduling().begin_us()));
  const auto wake = state_->NextWake();
  ASSERT_TRUE(wake);
  EXPECT_NEAR(static_cast<double>(*wake), static_cast<double>(kHour), 1e6);
  clock_.AdvanceMicros(kHour - 1'000'000);
  Register(SimpleNode("n1", 8));
  EXPECT_EQ(StateOf(job), v1::PENDING);
  clock_.AdvanceMicros(1'000'000);
  Register(SimpleNode("n1", 8));
  EXPECT_EQ(StateOf(job), v1::STARTING);
}

TEST_F(WaitingTest, WhetherAHardDeadlineCanBeMetIsSaidWhenItIsSubmitted) {
  Register(SimpleNode("n1", 1, 1));
  const auto timed = [&](const std::string& id, int64_t hours) {
    v1::SubmitRequest request = SimpleJob(id, 1, 1);
    request.mutable_spec()->mutable_scheduling()->set_limit_s(3600);
    request.mutable_spec()->mutable_scheduling()->set_hard_deadline(true);
    request.mutable_spec()->mutable_scheduling()->set_deadline_us(clock_.Wall() + hours * kHour);
    return request;
  };
  const v1::SubmitReply first = Submit(timed("first", 4));
  EXPECT_TRUE(first.has_placement());
  EXPECT_NE(first.deadline().find("will be met"), std::string::npos) << first.deadline();
  v1::SubmitRequest none = timed("none", 1);
  none.mutable_spec()->mutable_scheduling()->set_deadline_us(clock_.Wall() + kHour / 2);
  const v1::SubmitReply second = Submit(none);
  EXPECT_NE(second.deadline().find("cannot be promised"), std::string::npos) << second.deadline();
  v1::WhyRequest why;
  why.set_job(second.job());
  EXPECT_EQ(Why(*state_, kAnna, why)->deadline(), second.deadline());
  // Its run time is unknown.
  v1::SubmitRequest unknown = timed("unknown", 4);
  unknown.mutable_spec()->mutable_scheduling()->set_limit_s(0);
  const std::string said = Submit(unknown).deadline();
  EXPECT_NE(said.find("cannot be promised"), std::string::npos) << said;
  EXPECT_NE(said.find("-t"), std::string::npos) << said;
  none.set_request_id("past");
  none.mutable_spec()->mutable_scheduling()->set_deadline_us(clock_.Wall() - 1);
  EXPECT_EQ(SubmitError(none).code(), Code::kInvalid);
  // The first one has not ended, so the promise is revoked.
  clock_.AdvanceMicros(5 * kHour);
  Register(SimpleNode("n1", 1, 1));
  why.set_job(first.job());
  const std::string later = Why(*state_, kAnna, why)->deadline();
  EXPECT_NE(later.find("was promised"), std::string::npos) << later;
  EXPECT_EQ(later.find("will be met"), std::string::npos) << later;
}

}  // namespace
}  // namespace vrun::control
