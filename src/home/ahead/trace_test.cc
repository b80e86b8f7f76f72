// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/trace.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>
#include <set>

#include "home/ahead/trace_frames.h"
#include "home/ahead/trace_store.h"
#include "home/testing/test_directory.h"
#include "home/testing/trace_testing.h"
#include "store/format/object_id.h"

namespace vrun::home {
namespace {

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

// What exceeds the limits is dropped, and the rest can be stored.
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

// The path and unit of each, in order.
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
  // Merging the same again, or nothing (a run on a node with everything in its page cache), changes nothing.
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
  directory.Put("traces/" + key.Hex() + ".trace/inside", "a directory in its place");
  EXPECT_FALSE(store.Load(key));
  store.Save(key, trace);
  EXPECT_TRUE(store.Load(key));
  ASSERT_EQ(::unlink(path.c_str()), 0);
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
    // File times are as coarse as the kernel's tick.
    const timespec times[2] = {{1000 + i, 0}, {1000 + i, 0}};
    ::utimensat(AT_FDCWD, (directory / ("traces/" + key(i).Hex() + ".trace")).c_str(), times, 0);
    if (i > 0) {
      EXPECT_TRUE(store.Load(key(0))) << i;  // marks it as used
    }
  }
  int kept = 0;
  for (int i = 0; i < 8; ++i) kept += store.Load(key(i)).has_value();
  EXPECT_LE(kept, 5);
  EXPECT_TRUE(store.Load(key(7)));
}

}  // namespace
}  // namespace vrun::home
