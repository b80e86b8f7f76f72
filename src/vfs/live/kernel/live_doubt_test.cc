// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/kernel/live_doubt.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/thread/mutex.h"

namespace vrun::vfs {
namespace {

class LiveDoubtTest : public testing::Test {
 protected:
  // True: it continued at once.
  bool Request() {
    bool waited = false;
    doubt_.After([&] { waited = true; },
                 [this] {
                   MutexLock lock(mutex_);
                   ++answered_;
                   changed_.notify_all();
                 });
    return !waited;
  }
  bool Answered(int n) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return answered_ >= n; });
  }
  int answered() {
    MutexLock lock(mutex_);
    return answered_;
  }

  Mutex mutex_;
  CondVar changed_;
  int answered_ = 0;
  std::atomic<int> asked_{0};
  TimerThread timers_;
  LiveDoubt doubt_{&timers_, [this] { ++asked_; }};
};

TEST_F(LiveDoubtTest, WithoutDoubtNobodyIsAsked) {
  EXPECT_TRUE(Request());
  EXPECT_EQ(asked_, 0);
}

TEST_F(LiveDoubtTest, OneQuestionServesAllAndTheAnswerEndsIt) {
  doubt_.Begin();
  std::thread answer([this] {
    while (asked_ == 0) std::this_thread::yield();
    doubt_.End();
  });
  Request();
  Request();
  answer.join();
  EXPECT_TRUE(Answered(2));
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(Request());
  EXPECT_EQ(asked_, 1);
}

TEST_F(LiveDoubtTest, AHomeThatDoesNotAnswerHoldsUpNobodyForLong) {
  doubt_.Begin();
  Request();
  EXPECT_TRUE(Answered(1));  // continued although nobody answered
  for (int i = 0; i < 100; ++i) Request();
  EXPECT_TRUE(Answered(101));
  // One question for the time that the hundred requests took, however slow the machine is.
  EXPECT_LE(asked_, 2);
}

TEST_F(LiveDoubtTest, AbsentNamesAreNotedOnceAndNotWithoutEnd) {
  using Noted = LiveDoubt::Noted;
  EXPECT_EQ(doubt_.NoteAbsent(1, "a"), Noted::kNew);
  EXPECT_EQ(doubt_.NoteAbsent(1, "a"), Noted::kBefore);
  EXPECT_EQ(doubt_.NoteAbsent(2, "a"), Noted::kNew);
  EXPECT_EQ(doubt_.absent().size(), 2u);
  EXPECT_EQ(doubt_.TakeAbsent().size(), 2u);
  for (size_t i = 0; i < LiveDoubt::kMostAbsent; ++i) EXPECT_EQ(doubt_.NoteAbsent(1, std::to_string(i)), Noted::kNew);
  EXPECT_EQ(doubt_.NoteAbsent(1, "one more"), Noted::kFull);
  EXPECT_EQ(doubt_.NoteAbsent(1, "0"), Noted::kBefore);
  EXPECT_EQ(doubt_.TakeAbsent().size(), LiveDoubt::kMostAbsent);
  EXPECT_EQ(doubt_.NoteAbsent(1, "one more"), Noted::kNew);
}

}  // namespace
}  // namespace vrun::vfs
