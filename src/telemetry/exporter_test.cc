// SPDX-License-Identifier: Apache-2.0
#include "telemetry/exporter.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "proto/otlp.pb.h"

namespace vrun::telemetry {
namespace {

// A collector that answers what it is told to, once it is let.
class FakeSender : public Sender {
 public:
  Status Send(const std::string& body, const std::function<bool()>& stop) override {
    otlp::ExportRequest request;
    VRUN_CHECK(request.ParseFromString(body));
    MutexLock lock(mutex);
    ++calls;
    changed.notify_all();
    while (!open) {
      if (stop()) return Error(Code::kAborted, "stopped");
      changed.wait_for(lock, std::chrono::milliseconds(10));
    }
    if (!answer) return answer;
    for (const auto& span : request.resource_spans(0).scope_spans(0).spans()) names.push_back(span.name());
    batches.push_back(request.resource_spans(0).scope_spans(0).spans_size());
    changed.notify_all();
    return {};
  }
  void Open() {
    MutexLock lock(mutex);
    open = true;
    changed.notify_all();
  }
  void AwaitCalls(int n) {
    MutexLock lock(mutex);
    while (calls < n) changed.wait(lock);
  }
  std::vector<std::string> AwaitNames(size_t n) {
    MutexLock lock(mutex);
    while (names.size() < n) changed.wait(lock);
    return names;
  }

  Mutex mutex;
  CondVar changed;
  bool open = true;
  Status answer;
  int calls = 0;
  std::vector<std::string> names;
  std::vector<int> batches;
};

// Outlives the exporter, which owns its sender.
class Passing : public Sender {
 public:
  explicit Passing(FakeSender* to) : to_(to) {}
  Status Send(const std::string& body, const std::function<bool()>& stop) override { return to_->Send(body, stop); }

 private:
  FakeSender* const to_;
};

Span Named(const std::string& name) {
  Span span;
  span.name = name;
  return span;
}

class ExporterTest : public ::testing::Test {
 protected:
  ExporterTest() {
    settings_.url = "http://c/v1/traces";
    settings_.delay_ms = 10;
  }
  std::unique_ptr<Exporter> Make() {
    return std::make_unique<Exporter>(settings_, Attributes(), std::make_unique<Passing>(&sender_));
  }
  Settings settings_;
  FakeSender sender_;
};

TEST_F(ExporterTest, SendsInOrderAndNoMoreAtOnceThanItMay) {
  settings_.most_at_once = 3;
  auto exporter = Make();
  std::vector<std::string> expected;
  for (int i = 0; i < 20; ++i) {
    expected.push_back(std::to_string(i));
    exporter->Put(Named(expected.back()));
  }
  EXPECT_EQ(sender_.AwaitNames(20), expected);
  for (const int n : sender_.batches) EXPECT_LE(n, 3);
  exporter.reset();
  EXPECT_EQ(sender_.names.size(), 20u);
}

TEST_F(ExporterTest, DropsWhatASlowCollectorLeavesNoRoomForAndNobodyWaits) {
  sender_.open = false;
  settings_.most_at_once = 2;
  settings_.most_queued = 10;
  auto exporter = Make();
  exporter->Put(Named("in the air"));
  sender_.AwaitCalls(1);
  const int64_t began = MonotonicMicros();
  for (int i = 0; i < 1000; ++i) exporter->Put(Named(std::to_string(i)));
  EXPECT_LT(MonotonicMicros() - began, 1'000'000);
  EXPECT_EQ(exporter->dropped(), 990u);
  sender_.Open();
  const auto names = sender_.AwaitNames(11);
  EXPECT_EQ(names[0], "in the air");
  EXPECT_EQ(names[10], "9") << "what was there first";
}

TEST_F(ExporterTest, SendsTheRestWhenTheProgramEnds) {
  settings_.delay_ms = 3'600'000;
  settings_.most_at_once = 100;
  auto exporter = Make();
  for (int i = 0; i < 7; ++i) exporter->Put(Named(std::to_string(i)));
  exporter.reset();
  EXPECT_EQ(sender_.names.size(), 7u);
}

TEST_F(ExporterTest, TheProgramEndsThoughTheCollectorDoesNotAnswer) {
  sender_.open = false;
  settings_.most_at_once = 1;
  auto exporter = Make();
  for (int i = 0; i < 5; ++i) exporter->Put(Named(std::to_string(i)));
  sender_.AwaitCalls(1);
  const int64_t began = MonotonicMicros();
  exporter.reset();
  EXPECT_LT(MonotonicMicros() - began, Exporter::kFlushMicros + 2'000'000);
}

TEST_F(ExporterTest, TheProgramEndsThoughTheCollectorIsAway) {
  sender_.answer = Error(Code::kUnavailable, "nobody is there");
  auto exporter = Make();
  exporter->Put(Named("lost"));
  sender_.AwaitCalls(1);
  exporter.reset();  // it was about to try again in a while
  EXPECT_TRUE(sender_.names.empty());
}

TEST_F(ExporterTest, WhatTheCollectorRefusesIsNotSentAgain) {
  sender_.answer = Error(Code::kInvalid, "it answers with status 400");
  auto exporter = Make();
  exporter->Put(Named("bad"));
  sender_.AwaitCalls(1);
  {
    MutexLock lock(sender_.mutex);
    sender_.answer = Status();
  }
  exporter->Put(Named("good"));
  EXPECT_EQ(sender_.AwaitNames(1), std::vector<std::string>{"good"});
  EXPECT_EQ(exporter->dropped(), 1u);
}

}  // namespace
}  // namespace vrun::telemetry
