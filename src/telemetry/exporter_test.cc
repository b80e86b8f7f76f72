// SPDX-License-Identifier: Apache-2.0
#include "telemetry/exporter.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "proto/otlp.pb.h"

namespace vrun::telemetry {
namespace {

// A collector that answers what it is told to, once it is let.
class FakeSender : public Sender {
 public:
  Answer Send(const std::string& body, int64_t timeout_ms, const std::function<bool()>& stop) override {
    otlp::ExportRequest request;
    VRUN_CHECK(request.ParseFromString(body));
    const int64_t until = MonotonicMicros() + timeout_ms * 1000;
    MutexLock lock(mutex);
    ++calls;
    began_us.push_back(MonotonicMicros());
    timeouts_ms.push_back(timeout_ms);
    tried.push_back(request.resource_spans(0).scope_spans(0).spans(0).name());
    changed.notify_all();
    while (!open) {
      if (stop()) return {.status = Error(Code::kAborted, "stopped")};
      if (MonotonicMicros() >= until) return {.status = Error(Code::kUnavailable, "no answer")};
      changed.wait_for(lock, std::chrono::milliseconds(10));
    }
    if (!answer.status) return answer;
    for (const auto& span : request.resource_spans(0).scope_spans(0).spans()) names.push_back(span.name());
    batches.push_back(request.resource_spans(0).scope_spans(0).spans_size());
    changed.notify_all();
    return answer;
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
  Answer answer;
  int calls = 0;
  // Of the calls.
  std::vector<int64_t> began_us, timeouts_ms;
  std::vector<std::string> tried;  // the first span
  std::vector<std::string> names;
  std::vector<int> batches;
};

// Outlives the exporter, which owns its sender.
class Passing : public Sender {
 public:
  explicit Passing(FakeSender* to) : to_(to) {}
  Answer Send(const std::string& body, int64_t timeout_ms, const std::function<bool()>& stop) override {
    return to_->Send(body, timeout_ms, stop);
  }

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

Span Large(const std::string& name, size_t bytes) {
  Span span = Named(name);
  span.attributes.emplace_back("vrun.reason", std::string(bytes, 'x'));
  return span;
}

TEST_F(ExporterTest, KnowsHowMuchASpanTakes) {
  const size_t bare = BytesOf(Span());
  EXPECT_GE(bare, sizeof(Span));
  EXPECT_EQ(BytesOf(Named("four")), bare + 4);
  EXPECT_GE(BytesOf(Large("", 5000)), bare + 5000 + std::string("vrun.reason").size());
  Span full = Named("full");
  full.failure = std::string(1000, 'f');
  full.attributes = {{"list", std::vector<std::string>(100, std::string(10, 'l'))}, {"whole", int64_t{1}}};
  full.events = {{0, std::string(1000, 'e'), {{"text", std::string(1000, 't')}}}};
  full.links.resize(10);
  EXPECT_GE(BytesOf(full), bare + 1000 + 100 * (sizeof(std::string) + 10) + 1000 + 1000 + 240);
  EXPECT_LE(BytesOf(full), bare + 8000) << "and not much more";
}

TEST_F(ExporterTest, ManyLargeSpansDoNotTakeAllMemory) {
  sender_.open = false;
  settings_.most_at_once = 1;
  settings_.most_queued_bytes = 10 * BytesOf(Large("0", 5000));
  auto exporter = Make();
  exporter->Put(Named("in the air"));
  sender_.AwaitCalls(1);
  for (int i = 0; i < 10; ++i) exporter->Put(Large(std::to_string(i), 5000));
  EXPECT_EQ(exporter->dropped(), 0u);
  exporter->Put(Named("one too many"));
  EXPECT_EQ(exporter->dropped(), 1u);
  exporter->Put(Large("larger than all room", settings_.most_queued_bytes));
  EXPECT_EQ(exporter->dropped(), 2u);
  sender_.Open();
  sender_.AwaitNames(11);
  // There is room again.
  for (int i = 0; i < 10; ++i) exporter->Put(Large(std::to_string(i), 5000));
  sender_.AwaitNames(21);
  EXPECT_EQ(exporter->dropped(), 2u);
}

TEST_F(ExporterTest, SendsNoMoreBytesAtOnceThanItMay) {
  settings_.delay_ms = 3'600'000;
  settings_.most_at_once_bytes = 3 * BytesOf(Large("0", 5000));
  auto exporter = Make();
  for (int i = 0; i < 3; ++i) exporter->Put(Large(std::to_string(i), 5000));
  sender_.AwaitNames(3);  // it waits for no others
  exporter->Put(Large("alone", 50'000));
  sender_.AwaitNames(4);
  for (int i = 0; i < 7; ++i) exporter->Put(Large(std::to_string(i), 5000));
  exporter.reset();
  EXPECT_EQ(sender_.names.size(), 11u);
  for (const int n : sender_.batches) EXPECT_LE(n, 3);
}

TEST_F(ExporterTest, ACollectorThatHangsCostsABatchItsTimeAndNoMore) {
  sender_.open = false;
  settings_.timeout_ms = 200;
  settings_.batch_ms = 500;
  settings_.pause_ms = 20;
  settings_.most_at_once = 1;
  auto exporter = Make();
  exporter->Put(Named("lost"));
  exporter->Put(Named("next"));
  MutexLock lock(sender_.mutex);
  const auto first = [this](const std::string& name) {
    return std::find(sender_.tried.begin(), sender_.tried.end(), name) - sender_.tried.begin();
  };
  while (first("next") == std::ssize(sender_.tried)) sender_.changed.wait(lock);
  EXPECT_EQ(exporter->dropped(), 1u);
  const auto tries = static_cast<size_t>(first("next"));
  EXPECT_GE(tries, 2u);
  int64_t waited_ms = 0;
  for (size_t i = 0; i < tries; ++i) {
    EXPECT_LE(sender_.timeouts_ms[i], 200);
    waited_ms += sender_.timeouts_ms[i];
  }
  EXPECT_LE(waited_ms, 501);
  EXPECT_LT(sender_.began_us[tries] - sender_.began_us[0], 500'000 + 2'000'000);
}

TEST_F(ExporterTest, TriesAgainWhileThereIsTime) {
  sender_.answer.status = Error(Code::kUnavailable, "nobody is there");
  settings_.pause_ms = 10;
  settings_.most_at_once = 1;
  auto exporter = Make();
  exporter->Put(Named("lost"));
  sender_.AwaitCalls(4);
  EXPECT_EQ(exporter->dropped(), 0u);
  {
    MutexLock lock(sender_.mutex);
    sender_.answer = {};
  }
  exporter->Put(Named("next"));
  EXPECT_EQ(sender_.AwaitNames(2), (std::vector<std::string>{"lost", "next"}));
  exporter.reset();
}

TEST_F(ExporterTest, LeavesACollectorAloneThatAsksForIt) {
  sender_.answer = {.status = Error(Code::kUnavailable, "it answers with status 429"), .wait_us = 300'000};
  settings_.pause_ms = 1;
  settings_.most_at_once = 1;
  {
    auto exporter = Make();
    exporter->Put(Named("a"));
    sender_.AwaitCalls(3);
  }
  for (int i = 1; i < 3; ++i) EXPECT_GE(sender_.began_us[i] - sender_.began_us[i - 1], 300'000);
  // Longer than a batch waits: that one is lost, but the next one does not come earlier.
  settings_.batch_ms = 100;
  const size_t before = sender_.began_us.size();
  auto exporter = Make();
  exporter->Put(Named("b"));
  exporter->Put(Named("c"));
  sender_.AwaitCalls(static_cast<int>(before) + 2);
  EXPECT_GE(exporter->dropped(), 1u);
  EXPECT_GE(sender_.began_us[before + 1] - sender_.began_us[before], 300'000);
}

TEST_F(ExporterTest, CountsWhatACollectorTookInPart) {
  sender_.answer = {.status = {}, .refused = 2, .why = "it says: no room"};
  settings_.most_at_once = 5;
  settings_.delay_ms = 3'600'000;
  auto exporter = Make();
  for (int i = 0; i < 5; ++i) exporter->Put(Named(std::to_string(i)));
  sender_.AwaitNames(5);
  {
    MutexLock lock(sender_.mutex);
    sender_.answer.refused = 1'000'000;  // more than it was sent
  }
  for (int i = 0; i < 5; ++i) exporter->Put(Named(std::to_string(i)));
  sender_.AwaitCalls(2);
  {
    MutexLock lock(sender_.mutex);
    sender_.answer = {};
  }
  for (int i = 0; i < 5; ++i) exporter->Put(Named(std::to_string(i)));
  sender_.AwaitCalls(3);  // so the second is counted
  EXPECT_EQ(exporter->dropped(), 7u);
  EXPECT_TRUE(exporter->sent() == 3 || exporter->sent() == 8) << exporter->sent();
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
  sender_.answer.status = Error(Code::kUnavailable, "nobody is there");
  auto exporter = Make();
  exporter->Put(Named("lost"));
  sender_.AwaitCalls(1);
  exporter.reset();  // it was about to try again in a while
  EXPECT_TRUE(sender_.names.empty());
}

TEST_F(ExporterTest, WhatTheCollectorRefusesIsNotSentAgain) {
  sender_.answer.status = Error(Code::kInvalid, "it answers with status 400");
  auto exporter = Make();
  exporter->Put(Named("bad"));
  sender_.AwaitCalls(1);
  {
    MutexLock lock(sender_.mutex);
    sender_.answer = {};
  }
  exporter->Put(Named("good"));
  EXPECT_EQ(sender_.AwaitNames(1), std::vector<std::string>{"good"});
  EXPECT_EQ(exporter->dropped(), 1u);
}

}  // namespace
}  // namespace vrun::telemetry
