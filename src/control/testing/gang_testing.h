// SPDX-License-Identifier: Apache-2.0
// Plays the nodes of gangs.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/testing/state_testing.h"
#include "sched/engine/inspect.h"

namespace vrun::control {

class GangTest : public StateTest {
 protected:
  using Pods = std::vector<v1::Placement>;

  // Nodes of 4 cores and 2 GPUs.
  void Cluster(int nodes) {
    for (int i = 1; i <= nodes; ++i) Back("n" + std::to_string(i), {});
  }
  void Back(const std::string& name, const std::vector<v1::AttemptReport>& journal, uint64_t boot = 1) {
    v1::Register node = SimpleNode(name, 4, 2, boot);
    node.set_addresses(0, "10.0.0." + name.substr(1) + ":7000");
    for (const v1::AttemptReport& report : journal) *node.add_attempts() = report;
    Register(node);
  }
  static v1::SubmitRequest Requeued(v1::SubmitRequest request) {
    request.mutable_spec()->mutable_scheduling()->set_requeue(true);
    return request;
  }

  // All messages of one kind, in order, with their nodes.
  std::vector<std::pair<std::string, v1::ControllerMessage>> TakeAll(v1::ControllerMessage::BodyCase kind) {
    std::vector<std::pair<std::string, v1::ControllerMessage>> found;
    std::erase_if(sent_, [&](auto& m) {
      if (m.second.body_case() != kind) return false;
      found.push_back(m);
      return true;
    });
    return found;
  }
  // The starts ordered since the last call, in order of pods.
  Pods Started() {
    Pods pods;
    for (auto& [node, m] : TakeAll(v1::ControllerMessage::kStart)) {
      EXPECT_EQ(m.start().placement().node(), node);
      pods.push_back(m.start().placement());
    }
    return pods;
  }
  // Pods told to go since the last call.
  std::set<uint32_t> Went() {
    std::set<uint32_t> pods;
    for (auto& [node, m] : TakeAll(v1::ControllerMessage::kGo)) pods.insert(m.go().pod());
    return pods;
  }
  // The reasons of the orders to stop since the last call, by pod.
  std::map<uint32_t, std::string> Stopped() {
    std::map<uint32_t, std::string> pods;
    for (auto& [node, m] : TakeAll(v1::ControllerMessage::kStop)) {
      const v1::StopAttempt& stop = m.stop();
      pods[stop.pod()] = stop.gang_ended() + stop.preempted() + stop.resized();
    }
    return pods;
  }
  static v1::AttemptReport ReadyOf(const v1::Placement& p) {
    v1::AttemptReport report = ReportOf(p, v1::STARTING);
    report.set_ready(true);
    return report;
  }
  void Ready(const v1::Placement& p) { Report(p.node(), ReadyOf(p)); }
  v1::AttemptReport ExitReport(const v1::Placement& p, v1::JobState state, v1::ExitRecord::Kind kind, int code) {
    v1::AttemptReport report = ExitOf(p, state, kind, code);
    report.mutable_exit()->set_node(p.node());
    if (kind != v1::ExitRecord::START_FAILED) report.mutable_exit()->set_started_us(clock_.Wall() - 1000);
    report.mutable_exit()->set_ended_us(clock_.Wall());
    return report;
  }
  void CommandEnds(const v1::Placement& p, int code, v1::ExitRecord::Kind kind = v1::ExitRecord::EXITED) {
    Report(p.node(), ExitReport(p, v1::COMPLETING, kind, code));
  }
  void Ends(const v1::Placement& p, int code, v1::ExitRecord::Kind kind = v1::ExitRecord::EXITED) {
    Report(p.node(), ExitReport(p, code == 0 ? v1::COMPLETED : v1::FAILED, kind, code));
  }
  void Fails(const v1::Placement& p, const std::string& why) {
    v1::AttemptReport report = ExitReport(p, v1::FAILED, v1::ExitRecord::START_FAILED, 0);
    report.mutable_exit()->set_reason(why);
    Report(p.node(), report);
  }
  // Its node has obeyed an order to stop.
  void Obeys(const v1::Placement& p, v1::ExitRecord::Kind kind) {
    const v1::JobState state = kind == v1::ExitRecord::CANCELLED_BY_USER  ? v1::CANCELLED
                               : kind == v1::ExitRecord::PREEMPTED_BY_JOB ? v1::PREEMPTED
                                                                          : v1::FAILED;
    v1::AttemptReport report = ExitReport(p, state, kind, 0);
    report.mutable_exit()->set_signal(SIGTERM);
    Report(p.node(), report);
  }
  Pods Running(const v1::SubmitRequest& request) {
    Submit(request);
    const Pods pods = Started();
    for (const v1::Placement& p : pods) Ready(p);
    EXPECT_EQ(Went().size(), pods.size());
    for (const v1::Placement& p : pods) Report(p.node(), ReportOf(p, v1::RUNNING));
    return pods;
  }
  std::string ReasonOf(uint64_t id) { return Event(id).reason(); }
  void ExpectAllIsFree() {
    for (const auto& [name, node] : state_->nodes()) {
      EXPECT_EQ(NodeOf(name).used().milli_cpus(), 0u) << name;
      EXPECT_TRUE(sched::core::RunningOn(state_->scheduler(), name).empty()) << name;
    }
  }
  v1::JobEvent PodEvent(uint64_t id, uint32_t pod) { return *state_->EventOf(id, "anna@h", pod); }
};

}  // namespace vrun::control
