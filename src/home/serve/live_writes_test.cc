// SPDX-License-Identifier: Apache-2.0
// Writes of live views: streams that come and go, failures, and waiters.
#include "home/serve/live_writes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/thread/mutex.h"
#include "home/apply/apply_flush.h"
#include "home/root/deny_list.h"

namespace vrun::home {
namespace {

constexpr uint64_t kView = 3ull << 32 | 9;
constexpr uint64_t kLast = (1u << 24) - 1;  // vfs/live/data/live_stream.h

uint64_t Sequence(uint64_t operation) { return operation << 24 | kLast; }

class LiveWritesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(top_.data()), nullptr);
    ASSERT_EQ(::mkdir((top_ + "/root").c_str(), 0755), 0);
    Look();
    Start();
  }
  void TearDown() override {
    writes_.reset();
    EXPECT_TRUE(RemoveTree(top_).has_value());
  }
  // The present deny rules.
  void Look() {
    rules_ = DenyList({.root = top_ + "/root", .homes = {"/ann"}, .home_parents = {}, .own = {top_ + "/root/secret"}})
                 .Current();
  }
  // Also simulates a crash of the previous process.
  void Start() {
    writes_.reset();
    writes_ =
        std::make_unique<LiveWrites>(LiveWrites::Options{top_ + "/root", top_ + "/apply", [this] { return rules_; },
                                                         [this](ApplyFlush* flush) { return Flush(flush); }});
  }
  uint64_t Join() {
    {
      MutexLock lock(mutex_);
      begin_ = 0;
    }
    const uint64_t joined = writes_->Join(kView, [this](const v1::LiveAck& ack) {
      MutexLock lock(mutex_);
      if (ack.begin() != 0) begin_ = ack.begin();
      if (ack.begin() != 0) window_ = ack.window();
      taken_ = ack.begin() != 0 ? 0 : std::max(taken_, ack.taken());
      acknowledged_ = ack.ack().sequence();
      takes_claims_ |= ack.claims();
      refused_.insert(ack.ack().refused().begin(), ack.ack().refused().end());
      changed_.notify_all();
    });
    EXPECT_TRUE(Until([this] { return begin_ != 0; }));
    return joined;
  }
  void Put(uint64_t operation, const std::string& path, const std::string& content, uint64_t begin = 0) {
    v1::WriteBack message;
    message.set_sequence(operation << 24);
    message.set_path(path);
    auto* put = message.mutable_put_file();
    put->set_size(content.size());
    put->mutable_meta()->set_mode(S_IFREG | 0644);
    put->mutable_meta()->set_uid(::geteuid());
    put->mutable_meta()->set_gid(::getegid());
    writes_->Write(kView, begin == 0 ? begin_ : begin, message);
    v1::WriteBack data;
    data.set_sequence(Sequence(operation));
    data.set_path(path);
    data.mutable_file_data()->set_data(content);
    data.mutable_file_data()->set_last(true);
    writes_->Write(kView, begin == 0 ? begin_ : begin, data);
  }
  template <typename F>
  bool Until(F is) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), is);
  }
  bool Acknowledged(uint64_t operation) {
    return Until([&] { return acknowledged_ >= Sequence(operation); });
  }
  // Flushes wait while disk_busy_. With fails_ a flush fails and changes nothing.
  Status Flush(ApplyFlush* flush) {
    MutexLock lock(mutex_);
    ++flushes_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !disk_busy_; });
    if (std::exchange(fails_, false)) return Error(Code::kInternal, "the disk is on fire");
    lock.unlock();
    return flush->Flush();
  }
  void SetDiskBusy(bool busy) {
    MutexLock lock(mutex_);
    disk_busy_ = busy;
    changed_.notify_all();
  }
  bool Flushes(int flushes) {
    return Until([&] { return flushes_ >= flushes; });
  }
  bool IsApplied(uint64_t operation) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (writes_->Applied()[kView] < Sequence(operation)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  std::string Read(const std::string& path) { return ReadFile(top_ + "/root" + path).value_or("(none)"); }

  std::string top_ = "/var/tmp/vrun-live-writes-XXXXXX";
  Mutex mutex_;
  CondVar changed_;
  uint64_t begin_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t window_ = 0;
  uint64_t taken_ = 0;
  bool takes_claims_ = false;
  std::set<uint64_t> refused_;
  int flushes_ = 0;
  bool disk_busy_ = false;
  bool fails_ = false;
  std::shared_ptr<const DenyRules> rules_;
  std::unique_ptr<LiveWrites> writes_;
};

TEST_F(LiveWritesTest, AViewThatRestsWaitsForTheNextJob) {
  Join();
  Put(1, "/f", "one");
  ASSERT_TRUE(Acknowledged(1));
  writes_->Rest(kView, true);
  Put(2, "/f", "two");
  // Nothing else is held up by it.
  bool told = false;
  writes_->WhenDurable(kView, Sequence(1), [&] { told = true; });
  EXPECT_TRUE(told);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(Read("/f"), "one");
  writes_->Rest(kView, false);
  ASSERT_TRUE(Acknowledged(2));
  EXPECT_EQ(Read("/f"), "two");
  writes_->Rest(kView, true);
  Put(3, "/f", "three");
  writes_->End(kView);  // does not wait
  EXPECT_EQ(Read("/f"), "two");
}

TEST_F(LiveWritesTest, AViewBelongsToOneNode) {
  EXPECT_TRUE(writes_->Bind(kView, "n1"));
  EXPECT_TRUE(writes_->Bind(kView, "n1"));
  EXPECT_EQ(writes_->Bind(kView, "n2").error().code(), Code::kDenied);
  EXPECT_TRUE(writes_->Bind(kView, ""));
  EXPECT_TRUE(writes_->Bind(kView + 1, "n2"));
}

TEST_F(LiveWritesTest, WhatComesIsAppliedAndAcknowledged) {
  Join();
  Put(1, "/a", "one");
  Put(2, "/b", "two");
  ASSERT_TRUE(Acknowledged(2));
  EXPECT_EQ(Read("/a") + Read("/b"), "onetwo");
  EXPECT_EQ(writes_->Applied().at(kView), Sequence(2));
}

// Taken before durable: a node that has sent a window's worth of one file waits only for this.
TEST_F(LiveWritesTest, ANodeHearsHowMuchOfAFileIsTaken) {
  constexpr uint64_t kMessage = 1 << 20;
  Join();
  ASSERT_GE(window_, 64 * kMessage);
  v1::WriteBack put;
  put.set_sequence(1 << 24);
  put.set_path("/large");
  put.mutable_put_file()->set_size(2 * window_);
  put.mutable_put_file()->mutable_meta()->set_mode(S_IFREG | 0644);
  writes_->Write(kView, begin_, put);
  const std::string content(kMessage, 'x');
  for (uint64_t at = 0; at < 2 * window_; at += kMessage) {
    ASSERT_TRUE(Until([&] { return at - taken_ < window_; })) << at;
    v1::WriteBack data;
    const bool last = at + kMessage == 2 * window_;
    data.set_sequence(last ? Sequence(1) : (1 << 24) + at / kMessage + 1);
    data.set_path("/large");
    data.mutable_file_data()->set_offset(at);
    data.mutable_file_data()->set_data(content);
    data.mutable_file_data()->set_last(last);
    writes_->Write(kView, begin_, data);
  }
  ASSERT_TRUE(Acknowledged(1));
  EXPECT_EQ(std::filesystem::file_size(top_ + "/root/large"), 2 * window_);
}

TEST_F(LiveWritesTest, TheNextStreamBeginsWhereHomeIsAndTheLastOneIsNotHeard) {
  Join();
  Put(1, "/a", "one");
  ASSERT_TRUE(Acknowledged(1));
  const uint64_t before = begin_;
  Join();
  EXPECT_EQ(acknowledged_, Sequence(1));
  Put(2, "/b", "from the stream before", before);
  Put(2, "/c", "of this one");
  ASSERT_TRUE(Acknowledged(2));
  EXPECT_EQ(Read("/b") + Read("/c"), "(none)of this one");
}

// At once, however long the last flush took, because a program waits for it.
TEST_F(LiveWritesTest, ANameThatIsTakenIsRefusedAndANewHomeSaysSoToo) {
  const auto claim = [&](uint64_t operation) {
    v1::WriteBack message;
    message.set_sequence(Sequence(operation));
    message.set_path("/lock");
    message.set_exclusive(true);
    message.mutable_make_directory()->mutable_meta()->set_mode(S_IFDIR | 0700);
    writes_->Write(kView, begin_, message);
  };
  Join();
  EXPECT_TRUE(takes_claims_);
  claim(1);
  claim(2);
  ASSERT_TRUE(Acknowledged(2));
  EXPECT_EQ(refused_, std::set{Sequence(2)});
  EXPECT_TRUE(std::filesystem::is_directory(top_ + "/root/lock"));
  refused_.clear();
  Start();
  Join();
  EXPECT_EQ(refused_, std::set{Sequence(2)});
}

// The change itself may have been seen a moment before, when home did not know yet whose it is. Nothing else may
// change.
TEST_F(LiveWritesTest, WhoWaitsForANameIsShownItAtOnce) {
  std::atomic<uint64_t> shown{0};
  writes_->OnLook([&] { shown = writes_->Applied()[kView]; });
  Join();
  v1::WriteBack message;
  message.set_sequence(Sequence(1));
  message.set_path("/lock");
  message.set_exclusive(true);
  message.mutable_make_directory()->mutable_meta()->set_mode(S_IFDIR | 0700);
  writes_->Write(kView, begin_, message);
  ASSERT_TRUE(Acknowledged(1));
  EXPECT_EQ(shown, Sequence(1));
  writes_->OnLook(nullptr);
}

TEST_F(LiveWritesTest, ANewHomeKnowsWhatTheOneBeforeHad) {
  Join();
  Put(1, "/a", "one");
  ASSERT_TRUE(Acknowledged(1));
  Start();
  bool durable = false;
  writes_->WhenDurable(kView, Sequence(1), [&] {
    MutexLock lock(mutex_);
    durable = true;
    changed_.notify_all();
  });
  EXPECT_TRUE(Until([&] { return durable; }));
  const uint64_t before = begin_;
  Join();
  EXPECT_NE(begin_, before);
  EXPECT_EQ(acknowledged_, Sequence(1));
}

TEST_F(LiveWritesTest, WhatCannotBeAppliedIsToldAndTheRestGoesOn) {
  std::string told;
  writes_->Listen(kView, 21, 0, [&](const std::string& text) {
    MutexLock lock(mutex_);
    told += text;
    changed_.notify_all();
  });
  Join();
  Put(1, "/secret/key", "no");
  Put(2, "/a", "one");
  Put(3, "/secret/last", "no");
  ASSERT_TRUE(Acknowledged(3));
  EXPECT_EQ(Read("/a"), "one");
  EXPECT_NE(told.find("/secret"), std::string::npos);
  EXPECT_EQ(writes_->Failed(kView), 2u);
}

TEST_F(LiveWritesTest, ThatTheRootIsNotAsTheViewShowsItIsSaidBeforeWhoWaitsGoesOn) {
  std::atomic<int> refused{0}, when_durable{-1};
  writes_->OnLook([&] { ++refused; });
  Join();
  Put(1, "/a", "one");
  ASSERT_TRUE(Acknowledged(1));
  EXPECT_EQ(refused, 0);
  writes_->WhenDurable(kView, Sequence(2), [&] { when_durable = refused.load(); });
  Put(2, "/secret/key", "no");
  ASSERT_TRUE(Acknowledged(2));
  while (when_durable < 0) std::this_thread::yield();
  EXPECT_EQ(when_durable, 1);
  writes_->OnLook(nullptr);
  Put(3, "/secret/key", "no");
  ASSERT_TRUE(Acknowledged(3));
  EXPECT_EQ(refused, 1);
}

TEST_F(LiveWritesTest, ANoticeNamesAJobThatTheUserKnows) {
  std::string told;
  const auto hear = [&](const std::string& text) {
    MutexLock lock(mutex_);
    told += text + "\n";
  };
  writes_->Expect(20);
  Join();
  const uint64_t listener = writes_->Listen(kView, 20, 0, hear);
  ASSERT_TRUE(WriteFileAtomic(top_ + "/root/d", "no directory", 0644));
  Put(1, "/d/one", "x");
  ASSERT_TRUE(Acknowledged(1));
  EXPECT_EQ(told, "/d changed at home while job 20 ran: what the job wrote below is in /d.vrun-20\n");
  writes_->Unlisten(kView, listener);
  // Another job was just started there.
  writes_->Expect(21);
  ASSERT_TRUE(WriteFileAtomic(top_ + "/root/e", "no directory", 0644));
  Put(2, "/e/one", "x");
  ASSERT_TRUE(Acknowledged(2));
  told.clear();
  writes_->Listen(kView, 21, 0, hear);
  EXPECT_NE(told.find("/e changed at home while job 21 ran"), std::string::npos) << told;
}

// A job's first write may fail before home knows that the job runs, and in which view.
TEST_F(LiveWritesTest, WhoBeginsToListenHearsWhatCameAfterHisMark) {
  Join();
  Put(1, "/secret/early", "no");
  ASSERT_TRUE(Acknowledged(1));
  const LiveWrites::Mark mark = writes_->Marks().at(kView);
  Put(2, "/secret/late", "no");
  ASSERT_TRUE(Acknowledged(2));
  std::string told;
  writes_->Listen(kView, 21, mark.told, [&](const std::string& text) { told += text; });
  EXPECT_NE(told.find("/secret/late"), std::string::npos);
  EXPECT_EQ(told.find("/secret/early"), std::string::npos);
  EXPECT_EQ(writes_->Failed(kView) - mark.failed, 1u);
}

TEST_F(LiveWritesTest, WhatWasMadeAfterTheViewBeganIsKeptFromItToo) {
  Join();
  Put(1, "/a", "one");
  ASSERT_TRUE(Acknowledged(1));
  std::filesystem::create_directories(top_ + "/root/ann/.ssh");
  ASSERT_TRUE(WriteFileAtomic(top_ + "/root/ann/.ssh/id_rsa", "key", 0600));
  Put(2, "/ann/.ssh/id_rsa", "evil");
  Put(3, "/ann/.ssh/id_rsa.pub", "fine");
  ASSERT_TRUE(Acknowledged(3));
  EXPECT_EQ(Read("/ann/.ssh/id_rsa") + Read("/ann/.ssh/id_rsa.pub"), "keyfine");
  EXPECT_EQ(writes_->Failed(kView), 1u);
  Look();
  v1::WriteBack move;
  move.set_sequence(Sequence(4));
  move.set_path("/moved");
  move.mutable_rename()->set_from("/ann/.ssh");
  writes_->Write(kView, begin_, move);
  ASSERT_TRUE(Acknowledged(4));
  EXPECT_EQ(writes_->Failed(kView), 2u);
  EXPECT_TRUE(PathExists(top_ + "/root/ann/.ssh/id_rsa") && !PathExists(top_ + "/root/moved"));
}

TEST_F(LiveWritesTest, WhatWasRefusedIsDoneWithForTheNextHomeToo) {
  for (const char* last : {"/secret/file", ""}) {
    Join();
    const uint64_t first = *last == 0 ? 3 : 1;
    Put(first, "/a", "one");
    if (*last != 0) {
      Put(2, last, "no");
    } else {
      v1::WriteBack gone;
      gone.set_sequence(Sequence(4));
      gone.set_path("/secret");
      gone.mutable_remove();
      writes_->Write(kView, begin_, gone);
    }
    ASSERT_TRUE(Acknowledged(first + 1));
    Start();
    bool durable = false;
    writes_->WhenDurable(kView, Sequence(first + 1), [&] {
      MutexLock lock(mutex_);
      durable = true;
      changed_.notify_all();
    });
    EXPECT_TRUE(Until([&] { return durable; })) << first;
  }
}

TEST_F(LiveWritesTest, WhoWaitsHearsWhenAllOfItIsThere) {
  Join();
  bool durable = false;
  writes_->WhenDurable(kView, Sequence(2), [&] {
    MutexLock lock(mutex_);
    durable = true;
    changed_.notify_all();
  });
  Put(1, "/a", "one");
  ASSERT_TRUE(Acknowledged(1));
  EXPECT_FALSE(durable);
  Put(2, "/b", "two");
  EXPECT_TRUE(Until([&] { return durable; }));
}

TEST_F(LiveWritesTest, OnABusyDiskOnlyAcknowledgementsWait) {
  Join();
  SetDiskBusy(true);
  Put(1, "/a", "one");
  ASSERT_TRUE(Flushes(1));
  Put(2, "/b", "two");
  Put(3, "/secret/key", "no");
  Put(4, "/a", "three");
  ASSERT_TRUE(IsApplied(4));
  EXPECT_EQ(Read("/a") + Read("/b"), "threetwo");
  bool first = false, last = false;
  const auto is_durable = [this](bool* durable) {
    return [this, durable] {
      MutexLock lock(mutex_);
      *durable = true;
      changed_.notify_all();
    };
  };
  writes_->WhenDurable(kView, Sequence(1), is_durable(&first));
  writes_->WhenDurable(kView, Sequence(4), is_durable(&last));
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(acknowledged_, 0u);
    EXPECT_FALSE(first || last);
    EXPECT_EQ(flushes_, 1);  // one at a time
    disk_busy_ = false;
    changed_.notify_all();
  }
  ASSERT_TRUE(Acknowledged(4));
  EXPECT_TRUE(Until([&] { return first && last; }));
  EXPECT_EQ(flushes_, 2);  // one flush for everything that came meanwhile
}

// The running flush covers only what came before it.
TEST_F(LiveWritesTest, WhatCameDuringAFlushIsNotAcknowledgedWithIt) {
  Join();
  SetDiskBusy(true);
  Put(1, "/a", "one");
  ASSERT_TRUE(Flushes(1));
  Put(2, "/b", "two");
  ASSERT_TRUE(IsApplied(2));
  std::vector<uint64_t> acknowledged;
  writes_->WhenDurable(kView, Sequence(1), [&] {
    MutexLock lock(mutex_);
    acknowledged.push_back(acknowledged_);
    disk_busy_ = true;
    changed_.notify_all();
  });
  SetDiskBusy(false);
  ASSERT_TRUE(Flushes(2));
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(acknowledged, std::vector<uint64_t>{Sequence(1)});
    EXPECT_EQ(acknowledged_, Sequence(1));
  }
  SetDiskBusy(false);
  EXPECT_TRUE(Acknowledged(2));
}

TEST_F(LiveWritesTest, AStreamThatComesDuringAFlushHearsOfItsEnd) {
  Join();
  SetDiskBusy(true);
  Put(1, "/a", "one");
  ASSERT_TRUE(Flushes(1));
  Join();
  EXPECT_EQ(acknowledged_, 0u);
  Put(1, "/a", "one");  // this was not acknowledged
  Put(2, "/b", "two");
  ASSERT_TRUE(IsApplied(2));
  SetDiskBusy(false);
  ASSERT_TRUE(Acknowledged(2));
  EXPECT_EQ(Read("/a") + Read("/b"), "onetwo");
}

TEST_F(LiveWritesTest, AViewThatEndsWaitsForItsFlush) {
  Join();
  SetDiskBusy(true);
  Put(1, "/a", "one");
  ASSERT_TRUE(Flushes(1));
  Put(2, "/b", "two");
  std::thread end([this] { writes_->End(kView); });
  while (!writes_->Applied().empty()) std::this_thread::yield();
  SetDiskBusy(false);
  end.join();
  EXPECT_EQ(Read("/a") + Read("/b"), "onetwo");
  EXPECT_TRUE(std::filesystem::is_empty(top_ + "/apply"));
}

TEST_F(LiveWritesTest, AFlushThatFailsIsToldAndDoneAgain) {
  std::string told;
  writes_->Listen(kView, 21, 0, [&](const std::string& text) {
    MutexLock lock(mutex_);
    told += text;
    changed_.notify_all();
  });
  Join();
  fails_ = true;
  Put(1, "/a", "one");
  ASSERT_TRUE(Until([&] { return told.find("the disk is on fire") != std::string::npos; }));
  EXPECT_EQ(acknowledged_, 0u);
  EXPECT_EQ(Read("/a"), "one");
  ASSERT_TRUE(Acknowledged(1));
  EXPECT_EQ(flushes_, 2);
}

TEST_F(LiveWritesTest, AViewThatIsNoMoreLeavesNothingBehind) {
  Join();
  Put(1, "/a", "one");
  ASSERT_TRUE(Acknowledged(1));
  EXPECT_FALSE(std::filesystem::is_empty(top_ + "/apply"));
  writes_->End(kView);
  EXPECT_TRUE(std::filesystem::is_empty(top_ + "/apply"));
  EXPECT_TRUE(writes_->Applied().empty());
}

}  // namespace
}  // namespace vrun::home
