// SPDX-License-Identifier: Apache-2.0
#include "control/notify/sender.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"

namespace vrun::control::notify {
namespace {

v1::Notification MessageTo(const std::string& url) {
  v1::Notification message;
  message.set_webhook(url);
  message.set_made_us(WallMicros());
  return message;
}

class SenderTest : public ::testing::Test {
 protected:
  // Waits until this many messages need no more tries.
  std::map<uint64_t, bool> Await(size_t count) {
    MutexLock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return done_.size() >= count; });
    return done_;
  }
  Sender::Done Note() {
    return [this](uint64_t row, bool, bool sent) {
      MutexLock lock(mutex_);
      done_[row] = sent;
      changed_.notify_all();
    };
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, bool> done_;
  std::map<uint64_t, int> tries_;
};

TEST_F(SenderTest, WhoDoesNotAnswerIsTriedAgainAndHoldsNobodyUp) {
  std::atomic<int> failures = 1;
  Sender sender({}, Note(), [&](const NotifySettings&, const v1::Notification& m, const std::atomic<bool>*) {
    if (m.webhook() == "https://gone/") return Outcome{Outcome::Kind::kNever, "gone"};
    if (m.webhook() == "https://slow/" && failures-- > 0) return Outcome{Outcome::Kind::kAgain, "no answer"};
    return Outcome{};
  });
  sender.Offer({{1, MessageTo("https://slow/")}, {2, MessageTo("https://fine/")}, {3, MessageTo("https://gone/")}});
  EXPECT_EQ(Await(2), (std::map<uint64_t, bool>{{2, true}, {3, false}}));
  EXPECT_EQ(Await(3), (std::map<uint64_t, bool>{{1, true}, {2, true}, {3, false}}));
}

TEST_F(SenderTest, WhatAServerDoesNotTakeHoldsNobodyElseUpThere) {
  std::atomic<int> tries = 0;
  Sender sender({}, Note(), [&](const NotifySettings&, const v1::Notification& m, const std::atomic<bool>*) {
    ++tries;
    if (m.webhook() == "https://h/bad") return Outcome{Outcome::Kind::kAgain, "it answers 500", true};
    return m.webhook().starts_with("https://away/") ? Outcome{Outcome::Kind::kAgain, "no answer"} : Outcome{};
  });
  std::vector<StoredMessage> messages;
  for (uint64_t row = 1; row <= 20; ++row) messages.emplace_back(row, MessageTo("https://h/bad"));
  messages.emplace_back(21, MessageTo("https://h/fine"));
  for (uint64_t row = 22; row <= 40; ++row)
    messages.emplace_back(row, MessageTo("https://away/" + std::to_string(row)));
  const int64_t began = MonotonicMicros();
  sender.Offer(std::move(messages));
  EXPECT_EQ(Await(1), (std::map<uint64_t, bool>{{21, true}}));
  EXPECT_LT(MonotonicMicros() - began, 1'500'000) << "before the first pause is over";
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(tries, 3) << "one try for each pause, of the URL and of the silent server";
}

TEST_F(SenderTest, ServersThatHangCostTheOthersOneTryEach) {
  Sender sender({}, Note(), [&](const NotifySettings&, const v1::Notification& m, const std::atomic<bool>* ended) {
    if (m.webhook() == "https://fine/") return Outcome{};
    for (int i = 0; i < 100 && !*ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return Outcome{Outcome::Kind::kAgain, "no answer"};
  });
  std::vector<StoredMessage> messages;
  for (uint64_t row = 1; row <= 5; ++row) messages.emplace_back(row, MessageTo("https://fine/"));
  for (uint64_t row = 6; row <= 20; ++row) {
    messages.emplace_back(row, MessageTo("https://away" + std::to_string(row % 3) + "/"));
  }
  const int64_t began = MonotonicMicros();
  sender.Offer(std::move(messages));
  EXPECT_EQ(Await(5).size(), 5u);
  EXPECT_LT(MonotonicMicros() - began, 4'500'000);
}

TEST_F(SenderTest, AnOldMessageIsGivenUpAndNoneIsSentTwice) {
  std::atomic<int> tries = 0;
  Sender sender({}, Note(), [&](const NotifySettings&, const v1::Notification& m, const std::atomic<bool>*) {
    ++tries;
    return m.webhook() == "https://fine/" ? Outcome{} : Outcome{Outcome::Kind::kAgain, "no answer"};
  });
  v1::Notification old = MessageTo("https://never/");
  old.set_made_us(WallMicros() - int64_t{7} * 3600 * 1'000'000);
  sender.Offer({{1, old}});
  EXPECT_EQ(Await(1), (std::map<uint64_t, bool>{{1, false}}));
  sender.Offer({{2, MessageTo("https://fine/")}, {2, MessageTo("https://fine/")}});
  EXPECT_EQ(Await(2).size(), 2u);
  EXPECT_EQ(tries, 2);
}

}  // namespace
}  // namespace vrun::control::notify
