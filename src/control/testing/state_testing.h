// SPDX-License-Identifier: Apache-2.0
// The controller's state for tests: a real database, a manual clock, no network.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include "control/duties/node_timeouts.h"
#include "control/ops/ops.h"
#include "control/store/sqlite.h"
#include "control/testing/testing.h"

namespace vrun::control {

inline const rpc::Peer kAnna{"home", "anna@h", ""};
inline const rpc::Peer kBob{"home", "bob@h", ""};

class StateTest : public ::testing::Test {
 protected:
  StateTest() { Restart(); }

  template <typename F>
  auto Transaction(F f) {
    clock_.AdvanceMicros(20'000);  // so that a pass of the scheduler is due
    VRUN_CHECK(store_->Begin().has_value());
    auto result = f();
    VRUN_CHECK(state_->Decide().has_value());
    VRUN_CHECK(store_->Commit().has_value());
    Outbox outbox = std::exchange(state_->outbox(), {});
    for (auto& m : outbox.to_nodes) sent_.push_back(std::move(m));
    told_.insert(outbox.jobs.begin(), outbox.jobs.end());
    for (const auto& [array, elements] : outbox.elements) {
      began_[array].insert(began_[array].end(), elements.begin(), elements.end());
    }
    return result;
  }
  // Simulates a crash: only the database survives.
  void Restart() {
    state_.reset();
    store_.reset();
    auto opened = SqliteStore::Open(directory_.path() + "/vrun.db");
    VRUN_CHECK(opened.has_value());
    store_ = std::move(*opened);
    state_.emplace(store_.get(), &clock_, settings_);
    leases_.emplace(settings_);
    VRUN_CHECK(Transaction([&] { return state_->Load(); }).has_value());
  }

  // Starts again from nothing.
  void Forget() {
    for (const char* file : {"/vrun.db", "/vrun.db-wal"}) (void)RemoveTree(directory_.path() + file);
    Restart();
    sent_.clear();
  }
  // The node is called lost, as after its lease.
  void Lose(const std::string& node) {
    EXPECT_TRUE(Transaction([&] { return state_->LoseNode(node, "node " + node + " is lost"); }));
  }

  v1::SubmitReply Submit(const v1::SubmitRequest& request, const rpc::Peer& peer = kAnna) {
    auto reply = Transaction([&] { return control::Submit(*state_, peer, request); });
    EXPECT_TRUE(reply) << reply.error().message();
    if (!reply) return {};
    AddPlacement(*state_, &*reply);
    return *reply;
  }
  Error SubmitError(const v1::SubmitRequest& request) {
    auto reply = Transaction([&] { return control::Submit(*state_, kAnna, request); });
    EXPECT_FALSE(reply);
    return reply ? Error(Code::kOk, "") : reply.error();
  }
  void Register(const v1::Register& request) {
    auto done = Transaction([&] { return RegisterNode(*state_, request.node(), request); });
    EXPECT_TRUE(done) << done.error().message();
  }
  void Report(const std::string& node, const v1::AttemptReport& report) {
    EXPECT_TRUE(Transaction([&] { return state_->Apply(node, report); }));
  }
  v1::JobState CancelJob(uint64_t id, const rpc::Peer& peer = kAnna) {
    v1::CancelRequest request;
    request.set_job(id);
    auto reply = Transaction([&] { return control::Cancel(*state_, peer, request); });
    EXPECT_TRUE(reply);
    return reply ? reply->state() : v1::JOB_STATE_UNSPECIFIED;
  }
  void Sweep() {
    EXPECT_TRUE(Transaction([&] { return leases_->Run(*state_); }));
  }
  // Sweeps as often as the daemon does.
  void PassSeconds(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock_.AdvanceSeconds(1);
      Sweep();
    }
  }
  v1::JobEvent Event(uint64_t id, const std::string& viewer = "anna@h") { return *state_->EventOf(id, viewer); }
  v1::JobState StateOf(uint64_t id) { return Event(id).state(); }

  // Plays a node that obeys an order to leave: the command ends, its writes go home.
  void LeavesFor(const std::string& node, const v1::Placement& p, int signal = SIGTERM) {
    v1::AttemptReport report = ReportOf(p, v1::COMPLETING);
    report.mutable_exit()->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
    report.mutable_exit()->set_signal(signal);
    report.mutable_exit()->set_started_us(clock_.Wall() - 1'000'000);
    report.mutable_exit()->set_ended_us(clock_.Wall());
    report.mutable_exit()->set_reason("preempted: for the test");
    Report(node, report);
  }
  void WritesAreHome(const std::string& node, const v1::Placement& p) {
    v1::AttemptReport report = ReportOf(p, v1::PREEMPTED);
    report.mutable_exit()->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
    Report(node, report);
  }
  v1::NodeInfo NodeOf(const std::string& name) {
    const v1::NodesReply nodes = *Nodes(*state_, kAnna, {});
    for (const v1::NodeInfo& node : nodes.nodes()) {
      if (node.name() == name) return node;
    }
    return {};
  }
  v1::JobInfo InfoOf(uint64_t id) {
    v1::GetRequest get;
    get.set_job(id);
    return Get(*state_, kAnna, get)->info();
  }

  // Messages to nodes of one kind since the last call.
  std::vector<v1::ControllerMessage> Take(v1::ControllerMessage::BodyCase kind, const std::string& node = "n1") {
    std::vector<v1::ControllerMessage> found;
    std::erase_if(sent_, [&](auto& m) {
      if (m.first != node || m.second.body_case() != kind) return false;
      found.push_back(m.second);
      return true;
    });
    return found;
  }
  std::vector<v1::ControllerMessage> Starts() { return Take(v1::ControllerMessage::kStart); }
  std::vector<v1::ControllerMessage> Stops() { return Take(v1::ControllerMessage::kStop); }

  TestDirectory directory_;
  FakeClock clock_;
  Settings settings_{2'000'000, 15'000'000, {}};
  std::unique_ptr<SqliteStore> store_;
  std::optional<State> state_;
  std::optional<NodeTimeoutDuty> leases_;
  std::vector<std::pair<std::string, v1::ControllerMessage>> sent_;
  std::set<uint64_t> told_;                                  // jobs whose watchers were sent an event
  std::map<uint64_t, std::vector<v1::ArrayElement>> began_;  // by array: elements that have become jobs
};

}  // namespace vrun::control
