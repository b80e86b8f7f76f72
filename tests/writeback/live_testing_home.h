// SPDX-License-Identifier: Apache-2.0
// The other end of a live view's stream, for tests: a home that applies what it receives.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread/mutex.h"
#include "home/apply/apply.h"
#include "home/root/deny_list.h"
#include "tree_model.h"
#include "vfs/live/data/live_stream.h"

namespace vrun::test {

// For one thread.
class HomeEnd {
 public:
  HomeEnd(std::string root, std::string journal, uint64_t job = 7)
      : root_(std::move(root)), journal_(std::move(journal)), job_(job) {
    Open();
  }

  // Simulates a death of home's process, or with `stream` also a lost connection.
  void Open() {
    applier_.reset();
    home::ApplyOptions options;
    options.root = root_;
    options.job = job_;
    options.attempt = 1;
    options.live = true;
    options.journal = journal_;
    options.notice = [this](const std::string& text) { notices.push_back(text); };
    options.rules = [rules = home::DenyList({.root = root_, .writes = home::JobWrites::kAny}).Current()] {
      return rules;
    };
    auto applier = home::Applier::Open(std::move(options));
    EXPECT_TRUE(applier.has_value()) << applier.error().message();
    applier_ = *std::move(applier);
  }
  void Resume(vfs::LiveStream& stream) { stream.Resume(applier_->sequence()); }

  // Applies one message. Returns 0 if there was none.
  uint64_t Take(vfs::LiveStream& stream) {
    auto message = stream.Next();
    EXPECT_TRUE(message.has_value()) << message.error().message();
    if (!message || !*message) return 0;
    const Status applied = applier_->Apply(**message);
    const bool lost = !applied && applied.error().code() == Code::kAborted;  // the view cannot provide it
    given_up += lost;
    EXPECT_TRUE(applied.has_value() || lost) << applied.error().message();
    if ((*message)->has_put_file()) puts.push_back(std::string((*message)->path()));
    return (*message)->sequence();
  }
  uint64_t sequence() const { return applier_->sequence(); }
  void Acknowledge(vfs::LiveStream& stream) {
    v1::WriteBackAck ack;
    const auto synced = applier_->Sync();
    ASSERT_TRUE(synced.has_value()) << synced.error().message();
    ack.set_sequence(*synced);
    for (const v1::Applied& applied : applier_->TakeApplied()) *ack.add_applied() = applied;
    if (const uint64_t want = applier_->TakeWantWhole()) {
      ++wanted_whole;
      ack.set_want_whole(want);
    }
    stream.Acknowledge(ack);
  }
  // Until nothing more arrives.
  void TakeAll(vfs::LiveStream& stream) {
    do {
      while (Take(stream) != 0) {
      }
      Acknowledge(stream);
    } while (stream.stats().operations > 0);
  }

  std::vector<std::string> notices;
  std::vector<std::string> puts;
  int wanted_whole = 0;
  int given_up = 0;

 private:
  const std::string root_, journal_;
  const uint64_t job_;
  std::unique_ptr<home::Applier> applier_;
};

// A HomeEnd on its own thread, until destroyed. `applied` is called on that thread with the last applied operation,
// each time before or after it is acknowledged.
class HomeThread {
 public:
  HomeThread(HomeEnd& home, vfs::LiveStream& stream, std::function<void(uint64_t number)> applied = nullptr)
      : home_(home), stream_(stream), applied_(std::move(applied)) {
    stream.SetReady([this] { Wake(); });
    thread_ = std::thread([this] { Run(); });
  }
  ~HomeThread() {
    stop_ = true;
    Wake();
    thread_.join();
    stream_.SetReady(nullptr);
  }

 private:
  void Wake() {
    MutexLock lock(mutex_);
    woken_ = true;
    wake_.notify_all();
  }
  void Run() {
    while (!stop_) {
      {
        MutexLock lock(mutex_);
        wake_.wait(lock, [this] { return woken_; });
        woken_ = false;
      }
      int taken = 0;
      while (!stop_ && home_.Take(stream_) != 0) {
        if (++taken % 64 == 0) home_.Acknowledge(stream_);
      }
      if (taken == 0) continue;
      const bool first = ++batches_ % 2 == 0;
      if (first) Tell();
      home_.Acknowledge(stream_);
      if (!first) Tell();
    }
  }
  void Tell() {
    const bool whole = (home_.sequence() & vfs::LiveStream::kLastPlace) == vfs::LiveStream::kLastPlace;
    if (applied_ && whole) applied_(home_.sequence() >> vfs::LiveStream::kPlaceBits);
  }
  HomeEnd& home_;
  vfs::LiveStream& stream_;
  const std::function<void(uint64_t)> applied_;
  unsigned batches_ = 0;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  CondVar wake_;
  bool woken_ = true;
  std::thread thread_;
};

// Like Describe, without what home does not receive: times of directories.
inline Description DescribeWritten(const std::string& top) {
  Description all = Describe(top);
  for (auto& [path, described] : all) {
    if (S_ISDIR(described.mode)) described.mtime_ns = 0;
  }
  return all;
}

}  // namespace vrun::test
