// SPDX-License-Identifier: Apache-2.0
// Concurrent fetches of one file: a reader and a fetch ahead, and many readers on a slow link.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/thread/mutex.h"
#include "store/store.h"
#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"
#include "vfs/testing/vfs_testing.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kUnit = store::kUnitBytes;

// Answers in the order that the test chooses.
class PatientSource final : public Source {
 public:
  struct Asked {
    uint64_t offset = 0, length = 0;
    Urgency urgency = Urgency::kDemand;
    std::function<void(Result<FetchedRange>)> done;
  };
  void FetchRoot(const Digest&, std::function<void(Result<tree::Entry>)> done) override { done(No()); }
  void FetchDirectory(const Digest&, const std::string&, const Digest&,
                      std::function<void(Result<FetchedDirectory>)> done) override {
    done(No());
  }
  void Borrow(const Digest&, const std::string&, const tree::FileVersion&, std::function<void()>) override {}
  void FetchRange(const Digest&, const std::string&, const tree::FileVersion&, uint64_t offset, uint64_t length,
                  Urgency urgency, std::function<void(Result<FetchedRange>)> done) override {
    MutexLock lock(mutex_);
    asked_.push_back({offset, length, urgency, std::move(done)});
    changed_.notify_all();
  }

  bool WaitAsked(size_t n) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return asked_.size() >= n; });
  }
  Asked At(size_t i) {
    MutexLock lock(mutex_);
    return asked_.at(i);
  }
  size_t asked() {
    MutexLock lock(mutex_);
    return asked_.size();
  }
  void Answer(size_t i, const std::string& content) {
    const Asked asked = At(i);
    FetchedRange range{.offset = asked.offset, .units = {}, .object_id = std::nullopt};
    for (uint64_t at = asked.offset; at < asked.offset + asked.length; at += kUnit) {
      std::string data = content.substr(at, std::min(kUnit, asked.offset + asked.length - at));
      const Digest digest = store::UnitDigest(data);
      range.units.push_back({digest, std::move(data)});
    }
    asked.done(std::move(range));
  }
  void Refuse(size_t i) { At(i).done(No()); }

 private:
  static Error No() { return Error(Code::kDenied, "no"); }
  Mutex mutex_;
  CondVar changed_;
  std::vector<Asked> asked_;
};

class FetchTest : public testing::Test {
 protected:
  void Start(int64_t patience = 60'000'000) {
    auto opened = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    ASSERT_TRUE(opened) << opened.error().message();
    store_ = *std::move(opened);
    backend_ = Backend::Create({.home_id = "home", .home_deadline_micros = patience}, &source_, store_.get());
    file_ = backend_->files().Get({1, 2, 3, content_.size()}, std::nullopt);
  }
  ~FetchTest() override {
    file_.reset();
    backend_.reset();
  }
  struct Reader {
    Mutex mutex;
    CondVar changed;
    int times = 0;
    Status status;
    bool Wait() {
      MutexLock lock(mutex);
      return changed.wait_for(lock, std::chrono::seconds(10), [&] { return times > 0; });
    }
  };
  std::shared_ptr<Reader> Read(uint64_t unit) {
    auto reader = std::make_shared<Reader>();
    file_->Ensure(place_, unit * kUnit, 100, [reader](const Status& status) {
      MutexLock lock(reader->mutex);
      ++reader->times;
      reader->status = status;
      reader->changed.notify_all();
    });
    return reader;
  }
  bool Here(uint64_t unit) {
    std::string buffer(kUnit, 0);
    const auto n = file_->TryRead(unit * kUnit, buffer.data(), kUnit);
    return n == kUnit && buffer == content_.substr(unit * kUnit, kUnit);
  }

  const std::string content_ = Noise(200 * kUnit, 1);  // large, so it is fetched in ranges
  const FileContent::Place place_{Sha256("tree"), "/f"};
  TestDirectory directory_;
  std::unique_ptr<store::Store> store_;
  PatientSource source_;  // its pending answers hold objects of the store
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<FileContent> file_;
};

TEST_F(FetchTest, AReaderOvertakesWhatWasAskedForAhead) {
  Start();
  bool ahead = false;
  file_->Prefetch(place_, 0, 8 * kUnit, [&](bool fetched) { ahead = fetched; });
  ASSERT_TRUE(source_.WaitAsked(1));
  const auto reader = Read(3), another = Read(3);
  ASSERT_TRUE(source_.WaitAsked(2));
  const auto again = source_.At(1);
  EXPECT_EQ(again.urgency, Urgency::kDemand);
  EXPECT_EQ(again.offset, 3 * kUnit);
  EXPECT_EQ(again.length, kUnit);
  source_.Answer(1, content_);
  ASSERT_TRUE(reader->Wait() && another->Wait());
  EXPECT_TRUE(reader->status && another->status);
  EXPECT_TRUE(Here(3));
  EXPECT_FALSE(Here(4));
  EXPECT_EQ(source_.asked(), 2u) << "one question for both";
  // A second arrival of the same content changes nothing.
  source_.Answer(0, content_);
  EXPECT_TRUE(ahead);
  EXPECT_TRUE(Here(0) && Here(3) && Here(7));
  EXPECT_EQ(backend_->counters().units_fetched, 8u);
}

TEST_F(FetchTest, WhatComesAheadInTimeIsNotAskedForAgain) {
  Start();
  file_->Prefetch(place_, 0, 8 * kUnit, [](bool) {});
  ASSERT_TRUE(source_.WaitAsked(1));
  const auto reader = Read(3);
  source_.Answer(0, content_);
  ASSERT_TRUE(reader->Wait());
  EXPECT_TRUE(reader->status);
  if (source_.asked() > 1) source_.Answer(1, content_);  // this machine was slow
  EXPECT_EQ(reader->times, 1);
  EXPECT_EQ(backend_->counters().units_fetched, 8u);
}

TEST_F(FetchTest, WhatFailsAheadIsNoErrorOfAReader) {
  Start();
  file_->Prefetch(place_, 0, 8 * kUnit, [](bool) {});
  ASSERT_TRUE(source_.WaitAsked(1));
  const auto reader = Read(3);
  source_.Refuse(0);
  ASSERT_TRUE(source_.WaitAsked(2));
  source_.Answer(1, content_);
  ASSERT_TRUE(reader->Wait());
  EXPECT_TRUE(reader->status);
}

// Many readers on a slow link wait longer for their turn than anybody would wait for a silent home.
TEST_F(FetchTest, AReaderWaitsForAsLongAsSomethingComes) {
  Start(500'000);
  const auto last = Read(150);
  ASSERT_TRUE(source_.WaitAsked(1));
  for (uint64_t unit = 0; unit < 12; ++unit) {
    const size_t before = source_.asked();
    const auto other = Read(unit * 10);
    ASSERT_TRUE(source_.WaitAsked(before + 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    for (size_t i = before; i < source_.asked(); ++i) source_.Answer(i, content_);
    ASSERT_TRUE(other->Wait());
    EXPECT_TRUE(other->status) << unit;
  }
  {
    MutexLock lock(last->mutex);
    EXPECT_EQ(last->times, 0) << "720 ms of a patience of 500";
  }
  // Now nothing arrives any more.
  ASSERT_TRUE(last->Wait());
  EXPECT_EQ(last->status.error().code(), Code::kTimeout);
}

}  // namespace
}  // namespace vrun::vfs
