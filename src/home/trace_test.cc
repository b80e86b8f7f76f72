// SPDX-License-Identifier: Apache-2.0
#include "home/trace.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>

#include "home/digest_cache.h"
#include "home/root_files.h"
#include "home/snapshot_table.h"
#include "home/test_directory.h"
#include "home/trace_frames.h"
#include "home/trace_store.h"
#include "home/trace_testing.h"
#include "home/traces.h"
#include "proto/common.pb.h"
#include "proto/content.pb.h"
#include "store/object_id.h"
#include "tree/scan.h"

namespace vrun::home {
namespace {

constexpr uint64_t kUnit = store::kUnitBytes;

Trace Make(std::vector<Trace::File> files, std::vector<Trace::Range> ranges) {
  return {std::move(files), std::move(ranges)};
}

TEST(ReadTraceTest, OnlyWhatHoldsTogether) {
  const Trace good = Make({{"/a", 10 * kUnit}, {"/b", 1}}, {{0, 3, 2}, {1, 0, 1}, {0, 0, 1}});
  const auto read = ReadTrace(WriteTrace(good));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ranges, good.ranges);
  EXPECT_EQ(read->files[1].path, "/b");
  const std::vector<Trace> bad = {Make({{"a", 10}}, {}),
                                  Make({{std::string("/a\0", 3), 10}}, {}),
                                  Make({{"/a", 10}}, {{1, 0, 1}}),
                                  Make({{"/a", 10}}, {{0, 0, 2}}),
                                  Make({{"/a", 10}}, {{0, 0, 0}}),
                                  Make({{"/a", 0}}, {{0, 0, 1}}),
                                  Make({{"/a", 10}}, {{0, 1, UINT64_MAX}}),
                                  Make({{"/a", UINT64_MAX}}, {})};
  for (const Trace& trace : bad) EXPECT_FALSE(ReadTrace(WriteTrace(trace)));
  auto torn = WriteTrace(good);
  torn.add_range(1);
  EXPECT_FALSE(ReadTrace(torn));
  auto unnamed = WriteTrace(good);
  unnamed.add_size(1);
  EXPECT_FALSE(ReadTrace(unnamed));
}

TEST(ReadTraceTest, APathThatNobodyCanNameIsLeftOut) {
  const auto read = ReadTrace(WriteTrace(Make({{"/a", kUnit}, {"/" + std::string(5000, 'x'), kUnit}, {"/b", 2 * kUnit}},
                                              {{1, 0, 1}, {2, 0, 2}, {0, 0, 1}})));
  ASSERT_TRUE(read);
  ASSERT_EQ(read->files.size(), 2u);
  EXPECT_EQ(read->files[1].path, "/b");
  EXPECT_EQ(read->ranges, (std::vector<Trace::Range>{{1, 0, 2}, {0, 0, 1}}));
}

TEST(ReadTraceTest, IsBounded) {
  const auto read = ReadTrace(WriteTrace(Make({{"/a", Trace::kMaxFileBytes}}, {{0, 0, 1u << 20}, {0, 1u << 20, 5}})));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->units(), Trace::kMaxUnits);
  EXPECT_EQ(MergeTraces(*read, Make({{"/b", kUnit}}, {{0, 0, 1}})).units(), Trace::kMaxUnits);
}

// What is over the limits is left out, and what is left can be kept.
TEST(ReadTraceTest, TooManyFilesAreATraceOfTheFirst) {
  const auto many = [](const std::string& prefix, size_t count) {
    Trace trace;
    for (size_t i = 0; i < count; ++i) {
      trace.files.push_back({prefix + std::to_string(i), kUnit});
      trace.ranges.push_back({static_cast<uint32_t>(i), 0, 1});
    }
    return trace;
  };
  const auto read = ReadTrace(WriteTrace(many("/a", Trace::kMaxFiles + 1000)));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->files.size(), Trace::kMaxFiles);
  EXPECT_EQ(read->units(), Trace::kMaxFiles);
  const Trace merged = MergeTraces(many("/a", 40000), many("/b", 40000));
  EXPECT_EQ(merged.files.size(), Trace::kMaxFiles);
  EXPECT_EQ(merged.units(), Trace::kMaxFiles);
  EXPECT_EQ(merged.files.back().path, "/b" + std::to_string(Trace::kMaxFiles - 40001));

  const Trace deep = MergeTraces(many("/" + std::string(4000, 'a'), 4000), many("/" + std::string(4000, 'b'), 4000));
  TestDirectory directory;
  TraceStore store(directory / "traces");
  store.Save(Sha256("key"), deep);
  const auto kept = store.Load(Sha256("key"));
  ASSERT_TRUE(kept);
  EXPECT_GT(kept->files.size(), 4000u);
  EXPECT_EQ(kept->ranges, deep.ranges);
}

// Path and unit of each, in order.
std::vector<std::pair<std::string, uint64_t>> Units(const Trace& trace) {
  std::vector<std::pair<std::string, uint64_t>> units;
  for (const auto& range : trace.ranges) {
    for (uint64_t i = 0; i < range.count; ++i) units.emplace_back(trace.files[range.file].path, range.first + i);
  }
  return units;
}

TEST(MergeTracesTest, WhatIsNewComesWhereItCame) {
  const Trace long_one = Make({{"/a", 10 * kUnit}, {"/b", 10 * kUnit}}, {{0, 0, 3}, {1, 5, 1}, {0, 7, 1}});
  const Trace short_one =
      Make({{"/c", kUnit}, {"/a", 10 * kUnit}, {"/b", 10 * kUnit}}, {{0, 0, 1}, {1, 1, 1}, {2, 5, 2}});
  using Wanted = std::vector<std::pair<std::string, uint64_t>>;
  EXPECT_EQ(Units(MergeTraces(long_one, short_one)),
            (Wanted{{"/c", 0}, {"/a", 0}, {"/a", 1}, {"/a", 2}, {"/b", 5}, {"/b", 6}, {"/a", 7}}));
  EXPECT_EQ(Units(MergeTraces(short_one, long_one)),
            (Wanted{{"/a", 0}, {"/c", 0}, {"/a", 1}, {"/a", 2}, {"/b", 5}, {"/a", 7}, {"/b", 6}}));
  // The same again, or nothing (a run on a node that has all in its page cache), changes nothing.
  EXPECT_EQ(MergeTraces(long_one, long_one).ranges, long_one.ranges);
  EXPECT_EQ(MergeTraces(long_one, Trace()).ranges, long_one.ranges);
  EXPECT_EQ(MergeTraces(Trace(), long_one).ranges, long_one.ranges);
}

TEST(MergeTracesTest, TheOrderStaysUnlessAnotherRunHasQuiteAnotherOne) {
  Trace first = Make({{"/a", 1000 * kUnit}}, {}), later = first, reversed = first;
  for (uint64_t i = 0; i < 400; ++i) {
    first.ranges.push_back({0, 2 * i, 1});
    later.ranges.push_back({0, 2 * (i ^ 7), 1});  // eight threads
    reversed.ranges.push_back({0, 2 * (399 - i), 1});
  }
  EXPECT_EQ(MergeTraces(first, later).ranges, first.ranges);
  later.ranges.push_back({0, 999, 1});
  auto longer = first.ranges;
  longer.insert(longer.end() - 7, {0, 999, 1});
  EXPECT_EQ(MergeTraces(first, later).ranges, longer);
  EXPECT_EQ(MergeTraces(first, reversed).ranges, reversed.ranges);
}

TEST(MergeTracesTest, AFileThatBecameShorterIsCut) {
  const Trace merged = MergeTraces(Make({{"/a", 10 * kUnit}}, {{0, 0, 10}}), Make({{"/a", 2 * kUnit}}, {{0, 1, 1}}));
  EXPECT_EQ(merged.ranges, (std::vector<Trace::Range>{{0, 0, 2}}));
  EXPECT_EQ(merged.files[0].size, 2 * kUnit);
}

TEST(MergeTracesTest, AtRandomItIsTheUnion) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto some = [&] {
      Trace trace = Make({{"/a", 50 * kUnit}, {"/b", 50 * kUnit}}, {});
      std::set<std::pair<uint32_t, uint64_t>> seen;
      for (auto i = random() % 40; i > 0; --i) {
        const uint32_t file = random() % 2;
        const uint64_t unit = random() % 50;
        if (seen.emplace(file, unit).second) trace.ranges.push_back({file, unit, 1});
      }
      return trace;
    };
    const Trace first = some(), second = some();
    auto merged = Units(MergeTraces(first, second));
    std::set<std::pair<std::string, uint64_t>> all;
    for (const auto& unit : Units(first)) all.insert(unit);
    for (const auto& unit : Units(second)) all.insert(unit);
    std::sort(merged.begin(), merged.end());
    EXPECT_EQ(merged, (std::vector<std::pair<std::string, uint64_t>>(all.begin(), all.end())));
  }
}

using Frames = std::vector<std::vector<Trace::Range>>;

TEST(PlanFramesTest, AllInOrderAndBounded) {
  const std::vector<Trace::File> files = {{"/a", 900 * kUnit}, {"/b", 900 * kUnit}, {"/huge", 4ull << 30}};
  const std::vector<Trace::Range> ranges = {{0, 0, 300}, {1, 4, 2}, {0, 400, 500}, {2, 7, 300}, {1, 20, 1}};
  const Frames frames = PlanFrames(files, ranges);
  std::vector<Trace::Range> all;
  for (const auto& frame : frames) {
    uint64_t bytes = 0;
    for (const Trace::Range& range : frame) {
      bytes += range.count * store::UnitBytes(files[range.file].size);
      if (!all.empty() && all.back().file == range.file && all.back().first + all.back().count == range.first)
        all.back().count += range.count;
      else
        all.push_back(range);
    }
    EXPECT_LE(bytes, 2u << 20);
    EXPECT_TRUE(bytes >= 512 << 10 || &frame == &frames.back());
  }
  EXPECT_EQ(all, ranges);
  EXPECT_TRUE(PlanFrames({}, {}).empty());
}

TEST(PlanFramesTest, WhatComesInChangesFewFrames) {
  std::vector<Trace::File> files;
  std::vector<Trace::Range> ranges;
  std::mt19937 random(1);
  for (uint32_t i = 0; i < 1000; ++i) {
    files.push_back({"/usr/lib/" + std::to_string(i), 100 * kUnit});
    ranges.push_back({i, random() % 50, 1 + random() % 16});
  }
  const Frames before = PlanFrames(files, ranges);
  auto more = ranges;
  for (size_t i = 0; i < 5; ++i) more.insert(more.begin() + static_cast<long>(100 + 200 * i), {7, 90 + i, 1});
  const Frames after = PlanFrames(files, more);
  EXPECT_GT(before.size(), 80u);
  const auto kept = std::count_if(after.begin(), after.end(), [&](const auto& frame) {
    return std::find(before.begin(), before.end(), frame) != before.end();
  });
  EXPECT_GE(kept + 15, static_cast<long>(after.size()));
}

TEST(TraceStoreTest, KeepsTracesAndForgetsWhatDoesNotCheck) {
  TestDirectory directory;
  TraceStore store(directory / "traces");
  const Digest key = Sha256("key");
  EXPECT_FALSE(store.Load(key));
  const Trace trace = Make({{"/a", 10 * kUnit}}, {{0, 2, 3}});
  store.Save(key, trace);
  ASSERT_TRUE(store.Load(key));
  EXPECT_EQ(store.Load(key)->ranges, trace.ranges);
  const std::string path = directory / ("traces/" + key.Hex() + ".trace");
  const std::string bytes = *ReadFile(path);
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    std::string broken = bytes;
    if (i % 2 == 0)
      broken[random() % broken.size()] ^= static_cast<char>(1 << random() % 8);
    else
      broken.resize(random() % broken.size());
    EXPECT_FALSE(TraceStore::Decode(broken));
    if (i >= 4) continue;
    directory.Put("traces/" + key.Hex() + ".trace", broken);
    EXPECT_FALSE(store.Load(key));
    EXPECT_FALSE(PathExists(path));
  }
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(store.Load(key)) << "and nobody is waited for";
  store.Save(key, trace);
  EXPECT_TRUE(store.Load(key));
  TraceStore nowhere("");
  nowhere.Save(key, trace);
  EXPECT_FALSE(nowhere.Load(key));
}

TEST(TraceStoreTest, IsBoundedAndKeepsWhatIsUsed) {
  TestDirectory directory;
  TraceStore store(directory / "traces", 4);
  const Trace trace = Make({{"/a", kUnit}}, {{0, 0, 1}});
  const auto key = [](int i) { return Sha256(std::to_string(i)); };
  for (int i = 0; i < 8; ++i) {
    store.Save(key(i), trace);
    // Times of files are as coarse as the kernel's tick.
    const timespec times[2] = {{1000 + i, 0}, {1000 + i, 0}};
    ::utimensat(AT_FDCWD, (directory / ("traces/" + key(i).Hex() + ".trace")).c_str(), times, 0);
    if (i > 0) {
      EXPECT_TRUE(store.Load(key(0))) << i;  // used now
    }
  }
  int kept = 0;
  for (int i = 0; i < 8; ++i) kept += store.Load(key(i)).has_value();
  EXPECT_LE(kept, 5);
  EXPECT_TRUE(store.Load(key(7)));
}

class TracesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string content;
    for (int i = 0; content.size() < 40 * kUnit; ++i) content += "line " + std::to_string(i * 31) + "\n";
    content.resize(40 * kUnit);
    content_ = content;
    root_.Put("lib/big.so", content);
    root_.Put("small.py", "print(1)");
    root_.Put("root/.ssh/id_rsa", "-----BEGIN OPENSSH PRIVATE KEY-----");
    auto files = RootFiles::Open(root_.path());
    ASSERT_TRUE(files);
    files_ = std::make_unique<RootFiles>(std::move(*files));
    DenyList::Options deny;
    deny.root = root_.path();
    deny.homes = {"/root"};
    deny_ = std::make_unique<DenyList>(deny);
    Rescan();
    traces_ = std::make_unique<Traces>(&trees_, files_.get(), &digests_, state_ / "traces");
  }
  void Rescan() {
    tree::ScanOptions scan;
    scan.root = root_.path();
    auto snapshot = tree::Scan(scan);
    ASSERT_TRUE(snapshot);
    pin_ = trees_.Add(*snapshot, {});
    trees_.SetCurrent(*snapshot, deny_->Current());
    tree_ = (*snapshot)->id;
  }
  void Expect(uint64_t job) { traces_->Expect({job, 1, "secret", tree_, TraceOf(Command({"prog"}), "/")}); }
  static v1::ContentRequest::PutTrace PutOf(uint64_t job, const Trace& trace) {
    v1::ContentRequest::PutTrace put;
    put.set_job(job);
    put.set_attempt(1);
    put.set_token("secret");
    *put.mutable_record() = WriteTrace(trace);
    put.mutable_report()->set_waits(42);
    return put;
  }
  Result<v1::TraceTable> Table(uint64_t job, const std::string& token = "secret", const std::string& have = "") {
    v1::ContentRequest::GetTrace get;
    get.set_job(job);
    get.set_attempt(1);
    get.set_token(token);
    if (!have.empty()) get.add_have(have);
    return traces_->Table(get);
  }
  Result<v1::TraceFrame> Frame(uint64_t job, const std::string& table, uint32_t frame) {
    v1::ContentRequest::GetFrames get;
    get.set_job(job);
    get.set_attempt(1);
    get.set_token("secret");
    get.set_table(table);
    get.add_frame(frame);
    Digest name;
    return traces_->Frame(get, 0, &name);
  }
  static std::string Unpacked(const v1::TraceFrame& frame) {
    if (!frame.zstd()) return frame.data();
    std::string out(frame.raw_bytes(), 0);
    EXPECT_EQ(::ZSTD_decompress(out.data(), out.size(), frame.data().data(), frame.data().size()), out.size());
    return out;
  }

  FramePlan::Part PartOf(const std::string& path, uint64_t first, uint64_t count) {
    struct stat st = {};
    EXPECT_EQ(::stat((root_.path() + path).c_str(), &st), 0);
    return {path,
            {st.st_dev, st.st_ino, st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec,
             static_cast<uint64_t>(st.st_size)},
            first,
            count};
  }

  TestDirectory root_, state_;
  std::string content_;
  SnapshotTable trees_;
  DigestCache digests_{""};
  std::unique_ptr<DenyList> deny_;
  std::unique_ptr<RootFiles> files_;
  SnapshotTable::Pin pin_;
  Digest tree_;
  std::unique_ptr<Traces> traces_;
};

const Trace& Touched() {
  static const Trace trace =
      Make({{"/lib/big.so", 40 * kUnit}, {"/small.py", 8}, {"/root/.ssh/id_rsa", 35}, {"/gone", 10}},
           {{1, 0, 1}, {0, 20, 18}, {2, 0, 1}, {3, 0, 1}, {0, 0, 1}});
  return trace;
}

TEST_F(TracesTest, WhatOneRunTouchedTheNextOneGets) {
  Expect(1);
  const auto none = Table(1);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->frame_size(), 0);
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  Expect(2);
  const auto table = Table(2);
  ASSERT_TRUE(table);
  EXPECT_EQ(table->tree(), tree_.view());
  // Neither what may not be shown nor what is not there.
  ASSERT_EQ(table->file_size(), 2);
  EXPECT_EQ(table->file(0).path(), "/lib/big.so");
  EXPECT_EQ(table->file(1).path(), "/small.py");
  std::string all;
  for (int i = 0; i < table->frame_size(); ++i) {
    const auto frame = Frame(2, table->id(), static_cast<uint32_t>(i));
    ASSERT_TRUE(frame) << frame.error().message();
    EXPECT_EQ(frame->index(), static_cast<uint32_t>(i));
    const std::string data = Unpacked(*frame);
    for (size_t at = 0, unit = 0; i > 0 && at < data.size(); at += kUnit, ++unit) {
      EXPECT_EQ(store::UnitDigest(std::string_view(data).substr(at, kUnit)).view(),
                frame->digests().substr(unit * 32, 32));
    }
    all += data;
  }
  EXPECT_EQ(all, "print(1)" + content_.substr(20 * kUnit, 18 * kUnit) + content_.substr(0, kUnit));
  // A node that has it all is told so in few bytes.
  const auto again = Table(2, "secret", table->id());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->frame_size() + again->file_size(), 0);
  EXPECT_EQ(again->id(), table->id());
}

// What a home remembers of runs that have ended must not grow with them: a plan may be a megabyte.
TEST_F(TracesTest, FramesOfRunsThatHaveEndedAreToBeHadForAWhile) {
  Expect(1);
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  std::string name;
  for (uint64_t job = 2; job < 40; ++job) {
    Expect(job);
    const auto table = Table(job);
    ASSERT_TRUE(table && table->frame_size() > 0);
    name = table->id();
    if (job > 2) ASSERT_TRUE(traces_->Put(PutOf(job, Touched())));
  }
  EXPECT_TRUE(Frame(2, name, 0)) << "it runs";
  EXPECT_TRUE(Frame(39, name, 0) && Frame(30, name, 0)) << "the last ones";
  EXPECT_EQ(Frame(3, name, 0).error().code(), Code::kAborted);
}

TEST_F(TracesTest, OnlyTheRunsOwnNodeGetsIt) {
  Expect(1);
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  EXPECT_EQ(Table(1, "guess!").error().code(), Code::kDenied);
  EXPECT_EQ(Table(1, "").error().code(), Code::kDenied);
  EXPECT_EQ(Table(9).error().code(), Code::kDenied);
  const auto table = Table(1);
  ASSERT_TRUE(table);
  EXPECT_EQ(Frame(1, table->id(), 99).error().code(), Code::kInvalid);
  EXPECT_EQ(Frame(1, std::string(32, 'x'), 0).error().code(), Code::kAborted);
  EXPECT_EQ(Frame(7, table->id(), 0).error().code(), Code::kDenied);
  auto put = PutOf(1, Touched());
  put.set_token("guess!");
  EXPECT_EQ(traces_->Put(put).error().code(), Code::kDenied);
}

TEST_F(TracesTest, OfARunThatIsServedForAnotherHomeThatOneKeepsTheTrace) {
  auto kept = std::make_shared<Traces::Elsewhere>();
  kept->earlier = Touched();
  std::vector<std::string> put;
  kept->put = [&put](const v1::ContentRequest::PutTrace& p) { put.push_back(p.SerializeAsString()); };
  traces_->Expect({1, 1, "secret", tree_, {}, std::weak_ptr<const Traces::Elsewhere>(kept)});
  const auto table = Table(1);
  ASSERT_TRUE(table);
  EXPECT_EQ(table->file_size(), 2) << "by the rules of here all the same";
  EXPECT_TRUE(Frame(1, table->id(), 0));
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  EXPECT_THAT(put, testing::ElementsAre(PutOf(1, Touched()).SerializeAsString())) << "a run has one end";
  Expect(2);
  EXPECT_EQ(Table(2)->frame_size(), 0) << "nothing of it stays here";
  // The other home has gone.
  traces_->Expect({3, 1, "secret", tree_, {}, std::weak_ptr<const Traces::Elsewhere>(kept)});
  kept.reset();
  EXPECT_EQ(Table(3)->frame_size(), 0);
  EXPECT_TRUE(traces_->Put(PutOf(3, Touched())));

  // That one keeps it as of its own runs, and gives it to whoever serves the next.
  EXPECT_EQ(traces_->Earlier(TraceOf(Command({"prog"}), "/")).range_size(), 0);
  Expect(4);
  ASSERT_TRUE(traces_->Put(PutOf(4, Touched())));
  const auto earlier = ReadTrace(traces_->Earlier(TraceOf(Command({"prog"}), "/")));
  ASSERT_TRUE(earlier);
  EXPECT_EQ(earlier->ranges, Touched().ranges);
}

TEST_F(TracesTest, AnEditedFileCostsNothingElse) {
  Expect(1);
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  const auto before = Table(1);
  ASSERT_TRUE(before);
  root_.Put("small.py", "print(2) # longer than it was");
  EXPECT_EQ(Frame(1, before->id(), 0).error().code(), Code::kAborted);  // the job's tree has the old one
  Rescan();
  Expect(2);
  const auto table = Table(2);
  ASSERT_TRUE(table);
  EXPECT_NE(table->id(), before->id());
  const auto frame = Frame(2, table->id(), 0);
  ASSERT_TRUE(frame);
  EXPECT_TRUE(Unpacked(*frame).starts_with("print(2) # longer than it was"));
  // Shorter than what was touched of it: cut.
  root_.Put("lib/big.so", content_.substr(0, 21 * kUnit));
  Rescan();
  Expect(3);
  const auto cut = Table(3);
  ASSERT_TRUE(cut);
  uint64_t units = 0;
  for (int i = 2; i < cut->range_size(); i += 3) units += cut->range(i);
  EXPECT_EQ(units, 3u);
}

TEST_F(TracesTest, ReportsComeOnceNowOrLater) {
  Expect(1);
  int told = 0;
  traces_->WhenReported(1, [&](const v1::IoReport& report) { told += static_cast<int>(report.waits()); });
  EXPECT_EQ(told, 0);
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  EXPECT_EQ(told, 42);
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  EXPECT_EQ(told, 42);
  traces_->WhenReported(1, [&](const v1::IoReport&) { told = 1; });
  EXPECT_EQ(told, 1);
  traces_->WhenReported(9, [&](const v1::IoReport&) { told = 2; });
  EXPECT_EQ(told, 1);
}

TEST_F(TracesTest, ARecordThatDoesNotHoldTogetherIsRefused) {
  Expect(1);
  EXPECT_EQ(traces_->Put(PutOf(1, Make({{"relative", 1}}, {{0, 0, 1}}))).error().code(), Code::kInvalid);
  Expect(2);
  EXPECT_EQ(Table(2)->frame_size(), 0);
}

TEST_F(TracesTest, RecordsOfSeveralRunsAtOnceOnlyFillAGap) {
  Expect(1);
  ASSERT_TRUE(traces_->Put(PutOf(1, Make({{"/small.py", 8}}, {{0, 0, 1}}))));
  Expect(2);
  auto put = PutOf(2, Touched());
  put.mutable_record()->set_shared(true);
  ASSERT_TRUE(traces_->Put(put));
  EXPECT_EQ(Table(2)->file_size(), 1);
}

// A node on which something ran before tells less than the run touched.
TEST_F(TracesTest, ATraceIsPartialUntilOneRunHasToldAll) {
  Expect(1);
  auto put = PutOf(1, Make({{"/small.py", 8}}, {{0, 0, 1}}));
  put.mutable_record()->set_partial(true);
  ASSERT_TRUE(traces_->Put(put));
  Expect(2);
  EXPECT_TRUE(Table(2)->partial());
  ASSERT_TRUE(traces_->Put(PutOf(2, Make({{"/small.py", 8}}, {{0, 0, 1}}))));  // nothing new, but all
  Expect(3);
  EXPECT_FALSE(Table(3)->partial());
  put = PutOf(3, Touched());
  put.mutable_record()->set_partial(true);
  ASSERT_TRUE(traces_->Put(put));
  Expect(4);
  EXPECT_FALSE(Table(4)->partial());
  EXPECT_EQ(Table(4)->file_size(), 2) << "what a partial record has is worth having all the same";
}

// `make` in another project does not work on this one's files.
TEST_F(TracesTest, WhatADirectorysRunsTouchInItIsNotFetchedForThoseOfAnother) {
  root_.Put("a/one.c", "11111111");
  root_.Put("b/two.c", "22222222");
  Rescan();
  uint64_t job = 0;
  const auto run = [&](const std::string& directory) {
    traces_->Expect({++job, 1, "secret", tree_, TraceOf(Command({"make"}, {}, directory), "/")});
    const auto table = Table(job);
    std::vector<std::string> paths(table->partial() ? 1 : 0, "partial");
    for (const auto& file : table->file()) paths.push_back(file.path());
    return paths;
  };
  const auto put = [&](const std::string& file, bool partial) {
    auto record = PutOf(job, Make({{"/lib/big.so", 40 * kUnit}, {file, 8}}, {{0, 3, 1}, {1, 0, 1}}));
    record.mutable_record()->set_partial(partial);
    ASSERT_TRUE(traces_->Put(record));
  };
  using testing::ElementsAre;
  EXPECT_THAT(run("/a"), ElementsAre());
  put("/a/one.c", false);
  EXPECT_THAT(run("/a"), ElementsAre("/lib/big.so", "/a/one.c"));
  // The program's own files are the same everywhere; and the run's others are guessed, as without a trace.
  EXPECT_THAT(run("/b"), ElementsAre("partial", "/lib/big.so"));
  put("/b/two.c", true);
  EXPECT_THAT(run("/b"), ElementsAre("partial", "/lib/big.so", "/b/two.c"));
  EXPECT_THAT(run("/a"), ElementsAre("/lib/big.so", "/a/one.c"));
}

TEST_F(TracesTest, OnlyWhatGetsSmallerIsCompressed) {
  std::string random(4 * kUnit, 0), text;
  std::mt19937 noise(1);
  for (char& c : random) c = static_cast<char>(noise());
  while (text.size() < random.size()) text += std::to_string(noise() % 1000) + " ";
  root_.Put("random", random);
  root_.Put("text", text);
  const auto make = [&](const std::string& path, int level) {
    auto frame = FrameCache::Make(*files_, {.id = {}, .parts = {PartOf(path, 0, 4)}}, level);
    EXPECT_TRUE(frame);
    return *std::move(frame);
  };
  for (const int level : {1, 19}) {
    const v1::TraceFrame noisy = make("/random", level);
    EXPECT_FALSE(noisy.zstd());
    EXPECT_EQ(noisy.data(), random);
    EXPECT_EQ(Unpacked(make("/text", level)), text.substr(0, 4 * kUnit));
  }
  EXPECT_LT(make("/text", 19).data().size(), make("/text", 1).data().size());
}

TEST_F(TracesTest, FramesAreMadeInAdvanceKeptAndBounded) {
  std::vector<FramePlan> plans;
  for (uint64_t i = 0; i < 8; ++i) {
    plans.push_back({.id = {}, .parts = {PartOf("/lib/big.so", i, 2)}});
    plans.back().Name();
  }
  const std::string directory = state_ / "frames";
  const auto kept = [&] {
    size_t n = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error))
      n += entry.path().filename() != ".new";
    return n;
  };
  {
    FrameCache cache(files_.get(), directory);
    cache.Prepare(plans);
    for (int i = 0; i < 2000 && kept() < plans.size(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(kept(), plans.size());
  }
  const std::string path = directory + "/" + plans[3].id.Hex();
  const std::string wanted = content_.substr(3 * kUnit, 2 * kUnit);
  {
    // Kept ones are served although the file is gone: they are what that version was.
    FrameCache cache(files_.get(), directory);
    std::filesystem::rename(root_ / "lib/big.so", root_ / "lib/away");
    EXPECT_EQ(Unpacked(*cache.Get(plans[3])), wanted);
    std::filesystem::rename(root_ / "lib/away", root_ / "lib/big.so");
  }
  // (The renames gave the file another ctime.)
  {
    std::string bytes = *ReadFile(path);
    bytes[bytes.size() / 2] ^= 1;
    state_.Put("frames/" + plans[3].id.Hex(), bytes);
    FrameCache cache(files_.get(), directory);
    EXPECT_EQ(cache.Get(plans[3]).error().code(), Code::kAborted);
    EXPECT_FALSE(PathExists(path));
  }
  FrameCache small(files_.get(), directory, 1);
  small.Prepare({plans[3], plans[4]});
  EXPECT_TRUE(small.Get(plans[4]));
}

}  // namespace
}  // namespace vrun::home
