// SPDX-License-Identifier: Apache-2.0
#include "vfs/trace/trace_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "vfs/content/backend.h"
#include "vfs/content/burst.h"
#include "vfs/content/file_cache.h"
#include "vfs/content/prefetch.h"
#include "vfs/testing/vfs_testing.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kUnit = store::kUnitBytes;

tree::FileVersion Version(uint64_t ino, uint64_t size) { return {1, ino, 2, size}; }

std::function<std::string()> Named(std::string name) {
  return [name = std::move(name)] { return name; };
}

TEST(RecorderTest, FirstTouchesInOrderNeighboursMerged) {
  Recorder recorder;
  EXPECT_FALSE(recorder.active());
  recorder.Begin(7, 1);
  recorder.Used(Version(1, 10 * kUnit), 2, 2, Named("/a"));
  recorder.Used(Version(1, 10 * kUnit), 3, 2, Named("/a"));
  recorder.Used(Version(2, 100), 0, 1, Named("/b"));
  recorder.Used(Version(1, 10 * kUnit), 0, 3, Named("/a"));
  recorder.Used(Version(1, 10 * kUnit), 0, 99, Named("/a"));  // beyond the end
  recorder.Used(Version(3, 100), 0, 1, Named(""));            // its name is gone
  const auto recording = recorder.End(7, 1);
  ASSERT_TRUE(recording);
  ASSERT_EQ(recording->files.size(), 2u);
  EXPECT_EQ(recording->files[0].path, "/a");
  EXPECT_EQ(recording->files[1].path, "/b");
  EXPECT_EQ(recording->ranges, (std::vector<TraceRange>{{0, 2, 3}, {1, 0, 1}, {0, 0, 2}, {0, 5, 5}}));
  EXPECT_FALSE(recording->shared);
  EXPECT_FALSE(recorder.End(7, 1));
  EXPECT_FALSE(recorder.active());
}

TEST(RecorderTest, SaysWhereWhatWasReadHadComeFrom) {
  Recorder recorder;
  recorder.Begin(7, 1);
  const auto version = Version(1, 10 * kUnit);
  recorder.Fetched(version, 0, 4, 4 * kUnit, Origin::kTrace);
  recorder.Fetched(version, 4, 1, kUnit, Origin::kDemand);
  EXPECT_TRUE(recorder.Fresh(version));
  EXPECT_FALSE(recorder.Fresh(Version(2, 10)));
  recorder.Used(version, 1, 5, Named("/a"));
  for (int i = 0; i < 20; ++i) recorder.Waited("/a", 5, 100 + i, Origin::kDemand);
  const auto recording = recorder.End(7, 1);
  ASSERT_TRUE(recording);
  const auto& counts = recording->counts;
  EXPECT_EQ(counts[static_cast<size_t>(Origin::kTrace)].fetched_units, 4u);
  EXPECT_EQ(counts[static_cast<size_t>(Origin::kTrace)].used_units, 3u);
  EXPECT_EQ(counts[static_cast<size_t>(Origin::kDemand)].used_units, 1u);
  EXPECT_EQ(counts[static_cast<size_t>(Origin::kCache)].used_units, 1u);
  EXPECT_EQ(recording->waits, 20u);
  EXPECT_EQ(recording->waited_micros, 20 * 100 + 190);
  ASSERT_EQ(recording->slowest.size(), Recorder::kSlowest);
  EXPECT_EQ(recording->slowest.front().micros, 119);
  EXPECT_EQ(recording->slowest.back().micros, 110);
}

TEST(RecorderTest, SaysWhenWhatWasFetchedCame) {
  Recorder recorder;
  recorder.Begin(7, 1);
  const int64_t began = MonotonicMicros();
  for (uint64_t i = 0; i < 20; ++i) {
    recorder.Fetched(Version(i, 30 * kUnit), 0, 1 + i, (1 + i) * kUnit, Origin::kAhead);
    if (i % 2 == 0) recorder.Used(Version(i, 30 * kUnit), 0, 1, Named("/" + std::to_string(i)));
  }
  ::usleep(2000);
  recorder.Fetched(Version(4, 30 * kUnit), 7, 20, 20 * kUnit, Origin::kDemand);
  recorder.Waited("/4", 0, 1500, Origin::kDemand);
  const int64_t took = MonotonicMicros() - began;
  const auto recording = recorder.End(7, 1);
  ASSERT_TRUE(recording);
  const auto& ahead = recording->counts[static_cast<size_t>(Origin::kAhead)].fetched;
  const auto& demand = recording->counts[static_cast<size_t>(Origin::kDemand)].fetched;
  EXPECT_LT(recording->counts[static_cast<size_t>(Origin::kTrace)].fetched.first_micros, 0);
  EXPECT_GE(ahead.first_micros, 0);
  EXPECT_LE(ahead.first_micros, ahead.last_micros);
  EXPECT_GE(demand.first_micros, ahead.last_micros + 2000);
  EXPECT_LE(demand.last_micros, took + 1000);
  EXPECT_LE(recording->slowest.front().at_micros, demand.last_micros + 1000);
  // The largest first; without those of unknown name.
  ASSERT_EQ(recording->largest.size(), 10u);
  EXPECT_EQ(recording->largest[0].path, "/4");
  EXPECT_EQ(recording->largest[0].bytes, 25 * kUnit);
  EXPECT_EQ(recording->largest[0].when.last_micros, demand.last_micros);
  EXPECT_EQ(recording->largest[1].path, "/18");
  EXPECT_EQ(recording->largest[9].path, "/0");
}

TEST(RecorderTest, SaysWhatWasFetchedInVainAndWhyEachFileCame) {
  Recorder recorder;
  recorder.Begin(7, 1);
  recorder.Fetched(Version(1, 3 * kUnit + 100), 0, 4, 3 * kUnit + 100, Origin::kAhead, "/a");
  recorder.Used(Version(1, 3 * kUnit + 100), 1, 1, Named("/a"));
  recorder.Fetched(Version(2, 3 * kUnit), 0, 1, kUnit, Origin::kAhead, "/b");
  recorder.Fetched(Version(2, 3 * kUnit), 1, 2, 2 * kUnit, Origin::kDemand, "/b");
  recorder.Used(Version(2, 3 * kUnit), 1, 2, Named("/b"));
  const auto recording = recorder.End(7, 1);
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->counts[static_cast<size_t>(Origin::kAhead)].unread_bytes, 2 * kUnit + 100 + kUnit);
  EXPECT_EQ(recording->counts[static_cast<size_t>(Origin::kDemand)].unread_bytes, 0u);
  ASSERT_EQ(recording->largest.size(), 2u);
  EXPECT_EQ(recording->largest[0].path, "/a");
  EXPECT_EQ(recording->largest[0].origin, Origin::kAhead);
  EXPECT_EQ(recording->largest[0].unread_bytes, 2 * kUnit + 100);
  EXPECT_EQ(recording->largest[1].path, "/b");
  EXPECT_EQ(recording->largest[1].origin, Origin::kDemand);
  EXPECT_EQ(recording->largest[1].unread_bytes, kUnit);
}

TEST(RecorderTest, AFileThatNobodyReadHasANameToo) {
  Recorder recorder;
  recorder.Begin(7, 1);
  recorder.Fetched(Version(1, 100), 0, 1, 100, Origin::kAhead, "/unused");
  const auto recording = recorder.End(7, 1);
  ASSERT_TRUE(recording && recording->largest.size() == 1);
  EXPECT_EQ(recording->largest[0].path, "/unused");
  EXPECT_EQ(recording->largest[0].unread_bytes, 100u);
  EXPECT_TRUE(recording->files.empty()) << "it is not in the trace";
}

TEST(RecorderTest, ARecordThatMayLackThingsSaysSo) {
  Recorder recorder;
  recorder.Begin(1, 1);
  EXPECT_FALSE(recorder.End(1, 1)->partial);
  recorder.Begin(2, 1, true);
  EXPECT_TRUE(recorder.End(2, 1)->partial);
  // A file that the kernel reads directly.
  recorder.Begin(3, 1);
  recorder.Fetched(Version(1, 2 * kUnit), 0, 2, 2 * kUnit, Origin::kDemand);
  recorder.Used(Version(1, 2 * kUnit), 0, 2, Named("/a"));
  recorder.Unseen(Version(1, 2 * kUnit));
  EXPECT_FALSE(recorder.End(3, 1)->partial) << "all of it was read before";
  recorder.Begin(4, 1);
  recorder.Unseen(Version(1, 2 * kUnit));
  EXPECT_TRUE(recorder.End(4, 1)->partial) << "it was here when the run began";
}

TEST(RecorderTest, WhatWasReadToItsEndIsNotFreshAnyMore) {
  Recorder recorder;
  recorder.Begin(7, 1);
  const auto version = Version(1, 10 * kUnit);
  recorder.Fetched(version, 0, 10, 10 * kUnit, Origin::kAhead);
  recorder.Used(version, 0, 9, Named("/a"));
  recorder.Used(version, 0, 9, Named("/a"));
  EXPECT_TRUE(recorder.Fresh(version));
  recorder.Used(version, 9, 1, Named("/a"));
  EXPECT_FALSE(recorder.Fresh(version));
}

TEST(RecorderTest, RunsAtTheSameTimeSayThatTheyWere) {
  Recorder recorder;
  recorder.Begin(7, 1);
  recorder.Begin(8, 1);
  recorder.Used(Version(1, 100), 0, 1, Named("/a"));
  const auto first = recorder.End(7, 1), second = recorder.End(8, 1);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(first->shared && second->shared);
  EXPECT_EQ(first->ranges, second->ranges);
}

TEST(RecorderTest, IsBounded) {
  Recorder recorder;
  for (uint64_t job = 1; job <= Recorder::kMaxRuns + 1; ++job) recorder.Begin(job, 1);
  EXPECT_FALSE(recorder.End(1, 1));
  EXPECT_TRUE(recorder.End(2, 1));
  for (uint64_t job = 3; job <= Recorder::kMaxRuns + 1; ++job) recorder.End(job, 1);
  EXPECT_FALSE(recorder.active());

  recorder.Begin(1, 1);
  const auto huge = Version(1, (Recorder::kMaxUnits + 1) * store::kLargeUnitBytes);
  recorder.Used(huge, 0, 1, Named("/huge"));
  const auto large = Version(2, Recorder::kMaxUnits * store::kLargeUnitBytes);
  for (uint64_t unit = 0; unit < Recorder::kMaxUnits; unit += 2) recorder.Used(large, unit, 1, Named("/large"));
  const auto recording = recorder.End(1, 1);
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->files.size(), 1u);
  EXPECT_EQ(recording->ranges.size(), Recorder::kMaxRanges);
}

// --- bursts ---

class BurstTest : public testing::Test {
 protected:
  BurstTest() {
    auto opened = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    EXPECT_TRUE(opened) << opened.error().message();
    store_ = *std::move(opened);
    std::string content;
    for (int i = 0; i < 40 * 1000; ++i) content += std::to_string(i * 7919) + ".padded to some bytes.";
    content.resize(40 * kUnit, 'x');
    maker_.File("/lib/big.so", content).File("/small.py", "print(1)\n").File("/other", std::string(3 * kUnit, 'o'));
    tree_ = source_.Add(maker_);
    big_ = maker_.At("/lib/big.so").version();
    small_ = maker_.At("/small.py").version();
    table_.id = Sha256("table");
    table_.tree = tree_;
    table_.files = {{"/lib/big.so", big_, {}}, {"/small.py", small_, {}}};
    // Frame i: unit 3 i of the library; the first one has the small file too.
    for (uint32_t i = 0; i < 12; ++i) table_.frames.push_back({{0, i * 3, 1}});
    table_.frames[0].push_back({1, 0, 1});
  }
  void Begin() {
    if (!backend_) backend_ = Backend::Create({.home_id = "home"}, &source_, store_.get());
    source_.SetTrace(table_);
    backend_->BeginRun({++job_, 1, "token"});
  }
  ~BurstTest() override {
    source_.Hold(false);
    backend_.reset();
  }
  std::shared_ptr<FileContent> Content(const tree::FileVersion& version) {
    return backend_->files().Get(version, std::nullopt);
  }
  Status Read(const tree::FileVersion& version, const std::string& path, uint64_t offset, uint64_t n) {
    Mutex mutex;
    CondVar changed;
    std::optional<Status> done;
    Content(version)->Ensure({tree_, path}, offset, n, [&](const Status& status) {
      MutexLock lock(mutex);
      done = status;
      changed.notify_all();
    });
    MutexLock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), [&] { return done.has_value(); }));
    return done.value_or(Error(Code::kTimeout, "never"));
  }
  std::string Bytes(const tree::FileVersion& version, uint64_t offset, size_t n) {
    std::string buffer(n, 0);
    const auto got = Content(version)->TryRead(offset, buffer.data(), n);
    return got ? buffer.substr(0, *got) : "nothing";
  }
  std::vector<uint64_t> Frames() {
    std::vector<uint64_t> frames;
    for (const auto& asked : source_.asked()) {
      if (asked.what == 'p') frames.push_back(asked.offset);
    }
    return frames;
  }
  void WaitForFrames(size_t n) {
    for (int i = 0; i < 1000 && backend_->counters().units_fetched < n; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_GE(backend_->counters().units_fetched, n);
  }

  TestDirectory directory_;
  FakeSource source_;
  std::unique_ptr<store::Store> store_;
  TreeMaker maker_;
  Digest tree_;
  tree::FileVersion big_, small_;
  TraceTable table_;
  uint64_t job_ = 0;
  std::shared_ptr<Backend> backend_;
};

TEST_F(BurstTest, AllFramesComeInOrderAndNothingIsAskedForAgain) {
  Begin();
  WaitForFrames(13);
  EXPECT_EQ(Frames(), (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  for (uint64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(Bytes(big_, i * 3 * kUnit, kUnit), maker_.content(big_).substr(i * 3 * kUnit, kUnit));
  }
  EXPECT_EQ(Bytes(small_, 0, 100), "print(1)\n");
  EXPECT_TRUE(Read(big_, "/lib/big.so", 3 * kUnit, 10));
  EXPECT_EQ(source_.CountAsked('f'), 0u);
  const auto recording = backend_->EndRun(job_, 1);
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->counts[static_cast<size_t>(Origin::kTrace)].fetched_units, 13u);
  EXPECT_EQ(recording->waits, 0u);
}

TEST_F(BurstTest, OnlyWhatIsMissingIsFetched) {
  Begin();
  WaitForFrames(13);
  backend_->EndRun(job_, 1);
  backend_.reset();  // a new server on the same store
  source_.ClearAsked();
  table_.frames.push_back({{0, 1, 1}});
  Begin();
  for (int i = 0; i < 1000 && Frames().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  WaitForFrames(1);
  EXPECT_EQ(Frames(), (std::vector<uint64_t>{12}));
}

TEST_F(BurstTest, WhatComesSoonIsWaitedForAndWhatComesLaterOvertakes) {
  source_.Hold(true);
  Begin();
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Release(1);                // the table
  ASSERT_TRUE(source_.WaitHeld(2));  // frames under way
  std::atomic<int> done{0};
  const auto ask = [&](uint64_t unit) {
    Content(big_)->Ensure({tree_, "/lib/big.so"}, unit * kUnit, 10, [&](const Status& status) {
      EXPECT_TRUE(status);
      ++done;
    });
  };
  ask(3);       // frame 1: on its way
  ask(11 * 3);  // frame 11: behind the others
  const auto asked = source_.asked();
  ASSERT_EQ(source_.CountAsked('f'), 1u);
  const auto range = std::find_if(asked.begin(), asked.end(), [](const auto& a) { return a.what == 'f'; });
  EXPECT_EQ(range->offset, 11 * 3 * kUnit);
  EXPECT_EQ(range->length, kUnit);
  source_.Release();
  for (int i = 0; i < 1000 && done < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(done, 2);
  const auto recording = backend_->EndRun(job_, 1);
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->waits, 2u);
}

TEST(BurstProgress, AFrameThatIsOvertakenIsStillOnItsWay) {
  BurstProgress progress;
  EXPECT_TRUE(progress.Soon(7));
  EXPECT_FALSE(progress.Soon(8));
  // Frames 0 to 19 except number 3 have arrived from several nodes.
  progress.front = 3;
  progress.newest = 20;
  EXPECT_FALSE(progress.Soon(2));
  EXPECT_TRUE(progress.Soon(3));
  EXPECT_TRUE(progress.Soon(27));
  EXPECT_FALSE(progress.Soon(28));
  progress.over = true;
  EXPECT_FALSE(progress.Soon(3));
}

TEST(BurstProgress, PatienceIsWhatFramesTake) {
  BurstProgress progress;
  EXPECT_EQ(progress.Patience(), 200'000);
  progress.took = 1'500'000;
  EXPECT_EQ(progress.Patience(), 3'000'000) << "a link that is full is not asked twice";
  progress.took = 60'000'000;
  EXPECT_EQ(progress.Patience(), 5'000'000);
}

// Another run may want more of the files, so home is asked for hints as if there were no trace.
TEST_F(BurstTest, APartialTraceLeavesTheGuessToItsFiles) {
  source_.SetResident("/lib/big.so", {});
  for (const bool partial : {false, true}) {
    table_.partial = partial;
    Begin();
    WaitForFrames(13);
    source_.ClearAsked();
    EXPECT_TRUE(Read(big_, "/lib/big.so", 10 * kUnit, 10));
    EXPECT_EQ(source_.CountAsked('e'), partial ? 1u : 0u);
    EXPECT_GE(source_.CountAsked('f') + source_.CountAsked('a'), 1u);
    backend_->EndRun(job_, 1);
    backend_.reset();
    store_.reset();
    auto opened = store::Store::Open({.directory = directory_.path() + "/store2", .min_free_bytes = 0});
    ASSERT_TRUE(opened);
    store_ = *std::move(opened);
  }
}

TEST_F(BurstTest, WhatIsFetchedAheadStopsWithTheLastRun) {
  backend_ = Backend::Create({.home_id = "home"}, &source_, store_.get());
  source_.Hold(true);
  backend_->BeginRun({1, 1, "token"});
  backend_->BeginRun({2, 1, "token"});
  const FileContent::Place place{tree_, "/lib/big.so"};
  for (uint64_t unit = 0; unit < 40; ++unit)
    backend_->prefetcher().Add(Content(big_), place, unit * kUnit, (unit + 1) * kUnit);
  const size_t under_way = source_.CountAsked('a');
  EXPECT_GT(under_way, 0u);
  EXPECT_LT(under_way, 40u);
  backend_->EndRun(1, 1);
  source_.Release(3);  // the traces, and one piece
  for (int i = 0; i < 1000 && source_.CountAsked('a') == under_way; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const size_t goes_on = source_.CountAsked('a');
  EXPECT_GT(goes_on, under_way) << "a run is still there";
  EXPECT_LT(goes_on, 40u);
  backend_->EndRun(2, 1);
  source_.Hold(false);
  WaitForFrames(goes_on);
  EXPECT_EQ(source_.CountAsked('a'), goes_on);
}

TEST_F(BurstTest, ABurstThatStallsIsNotWaitedForLong) {
  source_.Hold(true);
  Begin();
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Release(1);
  ASSERT_TRUE(source_.WaitHeld(2));
  // Frame 0 never arrives; its content is fetched by another request after all.
  Content(big_)->Ensure({tree_, "/lib/big.so"}, 0, 10, [](const Status&) {});
  EXPECT_EQ(source_.CountAsked('f'), 0u);
  for (int i = 0; i < 1000 && source_.CountAsked('f') == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(source_.CountAsked('f'), 1u);
}

TEST_F(BurstTest, FramesThatDoNotComeAreNoError) {
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'p' && asked.offset == 2) return Error(Code::kAborted, "changed");
    return std::nullopt;
  });
  Begin();
  WaitForFrames(12);
  EXPECT_TRUE(Read(big_, "/lib/big.so", 2 * 3 * kUnit, 10));
  EXPECT_EQ(Bytes(big_, 2 * 3 * kUnit, 10), maker_.content(big_).substr(2 * 3 * kUnit, 10));
  // The burst was incomplete: the next run asks for the table again.
  backend_->EndRun(job_, 1);
  Begin();
  const auto asked = source_.asked();
  const auto last = std::find_if(asked.rbegin(), asked.rend(), [](const auto& a) { return a.what == 't'; });
  EXPECT_EQ(last->offset, 0u);
}

TEST_F(BurstTest, ATableThatIsHereIsNotSentAgain) {
  Begin();
  WaitForFrames(13);
  for (int i = 0; i < 1000; ++i) {  // it ends once its last frame has arrived
    backend_->EndRun(job_, 1);
    Begin();
    const auto asked = source_.asked();
    const auto last = std::find_if(asked.rbegin(), asked.rend(), [](const auto& a) { return a.what == 't'; });
    if (last->offset == 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL() << "the table was never said to be here";
}

TEST_F(BurstTest, WhatItHasBroughtGivesWayToWhoeverNeedsTheRoom) {
  source_.Hold(true);
  Begin();
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Release(1);  // the table
  ASSERT_TRUE(source_.WaitHeld(4));
  source_.Release(3);
  WaitForFrames(4);
  // Content that is being written now is in use, and in memory.
  const auto goes = [&](uint64_t unit) {
    for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      const auto left = store_->Prune(0);
      if (left && *left == 0 && Bytes(big_, unit * kUnit, 10) == "nothing") return true;
    }
    return false;
  };
  EXPECT_TRUE(goes(0)) << "while it goes on";
  source_.Hold(false);
  WaitForFrames(13);
  EXPECT_TRUE(Read(big_, "/lib/big.so", 33 * kUnit, 10));
  EXPECT_TRUE(goes(33)) << "when it is over, and its run is not";
  EXPECT_TRUE(Read(big_, "/lib/big.so", 33 * kUnit, 10));
  EXPECT_GT(source_.CountAsked('f'), 0u);
  // The next run does not claim to have everything.
  Begin();
  const auto asked = source_.asked();
  const auto last = std::find_if(asked.rbegin(), asked.rend(), [](const auto& a) { return a.what == 't'; });
  EXPECT_EQ(last->offset, 0u);
}

TEST_F(BurstTest, WhoeverHearsOfTheRunAMomentLaterGivesTheTraceAllTheSame) {
  source_.DenyTrace(3);
  Begin();
  WaitForFrames(13);
  backend_->EndRun(job_, 1);
  // The node does not ask for ever, nor after the run.
  source_.DenyTrace(1 << 30);
  Begin();
  backend_->EndRun(job_, 1);
}

TEST_F(BurstTest, ARunThatEndsStopsItsBurst) {
  source_.Hold(true);
  Begin();
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Release(1);
  ASSERT_TRUE(source_.WaitHeld(2));
  const size_t before = Frames().size();
  EXPECT_LT(before, 12u);
  backend_->EndRun(job_, 1);
  source_.Hold(false);
  WaitForFrames(before);
  EXPECT_EQ(Frames().size(), before);
}

TEST_F(BurstTest, RunsOfOneTraceThatBeginTogetherFetchItOnce) {
  source_.Hold(true);
  for (int i = 0; i < 4; ++i) Begin();
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Hold(false);
  WaitForFrames(13);
  for (uint64_t job = 1; job <= 4; ++job) backend_->EndRun(job, 1);
  EXPECT_EQ(Frames(), (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST_F(BurstTest, WhereTheRunThatFetchesEndsAnotherOneGoesOn) {
  source_.Hold(true);
  for (int i = 0; i < 3; ++i) Begin();
  ASSERT_TRUE(source_.WaitHeld(1));
  backend_->EndRun(1, 1);
  backend_->EndRun(2, 1);
  source_.Hold(false);
  WaitForFrames(13);
  EXPECT_TRUE(Read(big_, "/lib/big.so", 33 * kUnit, 10));
  EXPECT_EQ(source_.CountAsked('f'), 0u);
}

}  // namespace
}  // namespace vrun::vfs
