// SPDX-License-Identifier: Apache-2.0
// Arrays for tests of the controller's state.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "control/testing/state_testing.h"

namespace vrun::control {

struct TestRange {
  uint32_t first = 0, last = 0, step = 1;
};

inline ElementRanges Ranges(const std::vector<TestRange>& ranges) {
  ElementRanges out;
  for (const TestRange& range : ranges) {
    v1::Array::Range* added = out.Add();
    added->set_first(range.first);
    added->set_last(range.last);
    added->set_step(range.step);
  }
  return out;
}

inline v1::SubmitRequest ArrayJob(const std::string& request_id, const std::vector<TestRange>& ranges,
                                  uint32_t most_running = 0) {
  v1::SubmitRequest request = SimpleJob(request_id);
  *request.mutable_array()->mutable_ranges() = Ranges(ranges);
  request.mutable_array()->set_most_running(most_running);
  return request;
}

class ArrayStateTest : public StateTest {
 protected:
  std::vector<v1::StartAttempt> Orders(const std::string& node = "n1") {
    std::vector<v1::StartAttempt> starts;
    for (const v1::ControllerMessage& message : Take(v1::ControllerMessage::kStart, node)) {
      starts.push_back(message.start());
    }
    return starts;
  }
  void Runs(const v1::StartAttempt& start, const std::string& node = "n1") {
    Report(node, ReportOf(start.placement(), v1::RUNNING));
  }
  void Ends(const v1::StartAttempt& start, int code, const std::string& node = "n1") {
    v1::AttemptReport report =
        control::ExitOf(start.placement(), code == 0 ? v1::COMPLETED : v1::FAILED, v1::ExitRecord::EXITED, code);
    report.mutable_exit()->set_started_us(clock_.Wall());
    report.mutable_exit()->set_ended_us(clock_.Wall());
    Report(node, report);
  }
  // The error; "": none.
  std::string Cancel(uint64_t job, const std::vector<TestRange>& ranges) {
    v1::CancelRequest request;
    request.set_job(job);
    *request.mutable_elements() = Ranges(ranges);
    auto reply = Transaction([&] { return control::Cancel(*state_, kAnna, request); });
    return reply ? "" : reply.error().message();
  }
  // The problem; "": none.
  std::string Change(uint64_t job, v1::ChangeJobs::What what, const std::vector<TestRange>& ranges) {
    v1::ChangeJobs request;
    request.set_what(what);
    request.add_jobs()->set_job(job);
    *request.mutable_jobs(0)->mutable_elements() = Ranges(ranges);
    auto reply = Transaction([&] { return control::Change(*state_, kAnna, request); });
    EXPECT_TRUE(reply);
    return reply && reply->problems_size() > 0 ? reply->problems(0) : "";
  }
  v1::JobInfo Element(uint64_t array, uint32_t index) {
    v1::GetRequest get;
    get.set_job(array);
    get.set_element(index);
    auto reply = control::Get(*state_, kAnna, get);
    EXPECT_TRUE(reply) << reply.error().message();
    return reply ? reply->info() : v1::JobInfo();
  }
  // The job that the element is; 0: none.
  uint64_t JobOf(uint64_t array, uint32_t index) {
    const v1::JobInfo info = Element(array, index);
    return info.job() == array ? 0 : info.job();
  }
  v1::WhyAnswer WhyOf(uint64_t job, std::optional<uint32_t> index = std::nullopt) {
    v1::WhyRequest request;
    request.set_job(job);
    if (index) request.set_element(*index);
    auto answer = control::Why(*state_, kAnna, request);
    EXPECT_TRUE(answer) << answer.error().message();
    return answer ? *answer : v1::WhyAnswer();
  }
};

}  // namespace vrun::control
