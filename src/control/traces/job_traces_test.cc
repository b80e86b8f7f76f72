// SPDX-License-Identifier: Apache-2.0
// The spans that the controller makes of its jobs, with a manual clock and no network.
#include "control/traces/job_traces.h"

#include <algorithm>

#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

using telemetry::Span;

constexpr const char* kCaller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

class JobTracesTest : public StateTest {
 protected:
  // As the service does after each commit.
  void Note() { traces_.Note(*state_, std::exchange(told_, {})); }
  void ReportNoted(const std::string& node, const v1::AttemptReport& report) {
    Report(node, report);
    Note();
  }
  v1::SubmitReply SubmitNoted(const v1::SubmitRequest& request) {
    v1::SubmitReply reply = Submit(request);
    Note();
    return reply;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Span& span : spans_) names.push_back(span.name);
    return names;
  }
  const Span& The(const std::string& name, size_t nth = 0) const {
    for (const Span& span : spans_) {
      if (span.name == name && nth-- == 0) return span;
    }
    ADD_FAILURE() << "no span " << name;
    static const Span none;
    return none;
  }
  static std::string Text(const Span& span, const std::string& name) {
    for (const auto& [key, value] : span.attributes) {
      if (key == name && std::holds_alternative<std::string>(value)) return std::get<std::string>(value);
    }
    return "";
  }
  static int64_t Whole(const Span& span, const std::string& name) {
    for (const auto& [key, value] : span.attributes) {
      if (key == name && std::holds_alternative<int64_t>(value)) return std::get<int64_t>(value);
    }
    return -1;
  }

  std::vector<Span> spans_;
  JobTraces traces_{[this](Span span) { spans_.push_back(std::move(span)); }};
};

TEST_F(JobTracesTest, AJobIsOneTraceWithItsStepsBelowIt) {
  Register(SimpleNode("n1"));
  Note();
  const v1::Placement p = SubmitNoted(SimpleJob("a")).placement();
  EXPECT_EQ(Names(), (std::vector<std::string>{"submit", "queue", "place"}));
  clock_.AdvanceSeconds(3);
  ReportNoted("n1", ReportOf(p, v1::RUNNING));
  clock_.AdvanceSeconds(10);
  ReportNoted("n1", ExitOf(p, v1::COMPLETING, v1::ExitRecord::EXITED, 3));
  clock_.AdvanceSeconds(1);
  ReportNoted("n1", ExitOf(p, v1::FAILED, v1::ExitRecord::EXITED, 3));
  EXPECT_EQ(Names(), (std::vector<std::string>{"submit", "queue", "place", "start", "attempt", "job"}));

  const Span& job = The("job");
  const Span& attempt = The("attempt");
  EXPECT_TRUE(job.parent.is_zero());
  for (const Span& span : spans_) {
    EXPECT_EQ(span.trace, job.trace) << span.name;
    EXPECT_LE(job.start_us, span.start_us) << span.name;
    EXPECT_LE(span.start_us, span.end_us) << span.name;
    EXPECT_LE(span.end_us, job.end_us) << span.name;
    EXPECT_EQ(Text(span, "vrun.job.id"), std::to_string(p.job()));
  }
  for (const char* name : {"submit", "queue", "attempt"}) EXPECT_EQ(The(name).parent, job.id) << name;
  for (const char* name : {"place", "start"}) EXPECT_EQ(The(name).parent, attempt.id) << name;
  EXPECT_NEAR(static_cast<double>(The("start").end_us - The("start").start_us), 3e6, 1e5);
  EXPECT_NEAR(static_cast<double>(attempt.end_us - attempt.start_us), 14e6, 2e5);
  EXPECT_TRUE(job.failed);
  EXPECT_TRUE(attempt.failed);
  EXPECT_EQ(Text(job, "vrun.state"), "failed");
  EXPECT_EQ(Text(job, "user.name"), "anna@h");
  EXPECT_EQ(Whole(job, "process.exit.code"), 3);
  // Told again about it.
  told_.insert(p.job());
  Note();
  EXPECT_EQ(spans_.size(), 6u);
}

TEST_F(JobTracesTest, AJobThatMakesRoomHasTwoAttemptsAndSaysForWhom) {
  Register(SimpleNode("n1", 8, 2));
  v1::SubmitRequest victim = SimpleJob("victim", 1, 2);
  victim.mutable_spec()->mutable_scheduling()->set_requeue(true);
  const v1::Placement p = SubmitNoted(victim).placement();
  ReportNoted("n1", ReportOf(p, v1::RUNNING));
  clock_.AdvanceSeconds(60);
  v1::SubmitRequest urgent = SimpleJob("urgent", 1, 2);
  urgent.mutable_spec()->mutable_scheduling()->set_class_(v1::PRODUCTION);
  const uint64_t other = SubmitNoted(urgent).job();
  LeavesFor("n1", p);
  Note();
  WritesAreHome("n1", p);
  Note();
  const auto starts = Starts();
  const v1::Placement of_other = starts.back().start().placement();
  ReportNoted("n1", ReportOf(of_other, v1::RUNNING));
  ReportNoted("n1", ExitOf(of_other, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  const v1::Placement again = Starts().back().start().placement();
  ASSERT_EQ(again.attempt(), 2u);
  ReportNoted("n1", ReportOf(again, v1::RUNNING));
  ReportNoted("n1", ExitOf(again, v1::COMPLETED, v1::ExitRecord::EXITED, 0));

  std::erase_if(spans_, [&](const Span& span) { return Text(span, "vrun.job.id") == std::to_string(other); });
  EXPECT_EQ(std::count_if(spans_.begin(), spans_.end(), [](const Span& s) { return s.name == "attempt"; }), 2);
  const Span& first = The("attempt", 0);
  EXPECT_EQ(Text(first, "vrun.state"), "preempted");
  EXPECT_FALSE(first.failed);
  ASSERT_EQ(first.events.size(), 1u);
  EXPECT_EQ(first.events[0].name, "preempted");
  EXPECT_NE(std::get<std::string>(first.events[0].attributes[0].second).find("job " + std::to_string(other)),
            std::string::npos);
  EXPECT_LE(first.start_us, first.events[0].at_us);
  EXPECT_LE(first.events[0].at_us, first.end_us);
  const Span& queue = The("queue", 1);
  EXPECT_EQ(queue.start_us, first.end_us) << "it waits again";
  EXPECT_FALSE(Text(queue, "vrun.queue.reason").empty());
  EXPECT_EQ(The("attempt", 1).start_us, queue.end_us);
  EXPECT_EQ(The("start", 1).parent, The("attempt", 1).id);
  EXPECT_NE(The("attempt", 1).id, first.id);
  EXPECT_FALSE(The("job").failed);
  EXPECT_EQ(Whole(The("job"), "vrun.preemptions"), 1);
}

TEST_F(JobTracesTest, TheCallersTraceGoesOn) {
  Register(SimpleNode("n1"));
  v1::SubmitRequest request = SimpleJob("a");
  request.mutable_spec()->mutable_command()->add_environment(std::string("TRACEPARENT=") + kCaller);
  const v1::Placement p = SubmitNoted(request).placement();
  ReportNoted("n1", ReportOf(p, v1::RUNNING));
  ReportNoted("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(The("job").trace.Hex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(The("job").parent.Hex(), "b7ad6b7169203331");
  EXPECT_EQ(The("submit").parent, The("job").id);

  spans_.clear();
  request.set_request_id("b");
  request.mutable_spec()->mutable_command()->set_environment(
      0, std::string("TRACEPARENT=") + std::string(kCaller, 53) + "00");
  const v1::Placement silent = SubmitNoted(request).placement();
  ReportNoted("n1", ExitOf(silent, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_TRUE(spans_.empty()) << "the caller's trace is not recorded";
}

TEST_F(JobTracesTest, ARestartedControllerTellsTheRest) {
  Register(SimpleNode("n1"));
  v1::SubmitRequest request = SimpleJob("a");
  request.mutable_spec()->mutable_command()->add_environment(std::string("TRACEPARENT=") + kCaller);
  const v1::Placement p = SubmitNoted(request).placement();
  ReportNoted("n1", ReportOf(p, v1::RUNNING));
  const telemetry::SpanId attempt = The("place").parent;
  spans_.clear();
  clock_.AdvanceSeconds(5);
  Restart();
  told_.clear();
  JobTraces later([this](Span span) { spans_.push_back(std::move(span)); });
  later.Begin(*state_);
  v1::Register again = SimpleNode("n1");
  *again.add_attempts() = ReportOf(p, v1::RUNNING);
  Register(again);
  for (const v1::JobState state : {v1::COMPLETING, v1::COMPLETED}) {
    Report("n1", ExitOf(p, state, v1::ExitRecord::EXITED, 0));
    later.Note(*state_, std::exchange(told_, {}));
  }
  EXPECT_EQ(Names(), (std::vector<std::string>{"attempt", "job"}));
  EXPECT_EQ(The("attempt").id, attempt);
  EXPECT_EQ(The("job").parent.Hex(), "b7ad6b7169203331");
}

TEST_F(JobTracesTest, ACancelledJobHasNotFailed) {
  const uint64_t id = SubmitNoted(SimpleJob("a")).job();
  EXPECT_EQ(Names(), (std::vector<std::string>{"submit"}));
  CancelJob(id);
  Note();
  EXPECT_EQ(Names(), (std::vector<std::string>{"submit", "job"}));
  EXPECT_FALSE(The("job").failed);
  EXPECT_EQ(Text(The("job"), "vrun.state"), "cancelled");
}

TEST_F(JobTracesTest, ElementsOfAnArrayNameIt) {
  Register(SimpleNode("n1", 8));
  v1::SubmitRequest request = SimpleJob("a");
  v1::Array::Range* range = request.mutable_array()->add_ranges();
  range->set_first(3);
  range->set_last(4);
  range->set_step(1);
  const uint64_t array = SubmitNoted(request).job();
  for (const auto& start : Starts()) {
    const v1::Placement& p = start.start().placement();
    ReportNoted("n1", ReportOf(p, v1::RUNNING));
    ReportNoted("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  }
  std::vector<int64_t> indexes;
  for (const Span& span : spans_) {
    if (span.name != "job" || Text(span, "vrun.array.id") != std::to_string(array)) continue;
    indexes.push_back(Whole(span, "vrun.array.index"));
  }
  EXPECT_EQ(indexes, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(std::count_if(spans_.begin(), spans_.end(), [](const Span& s) { return s.name == "submit"; }), 1);
}

}  // namespace
}  // namespace vrun::control
