// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include <filesystem>
#include <random>

#include "home/ahead/trace_frames.h"
#include "home/pack/digest_cache.h"
#include "home/root/root_files.h"
#include "home/root/tree_table.h"
#include "home/testing/test_directory.h"
#include "home/testing/trace_testing.h"
#include "proto/content.pb.h"
#include "store/format/object_id.h"
#include "tree/scan/scan.h"

namespace vrun::home {
namespace {

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
  TreeTable trees_;
  DigestCache digests_{""};
  std::unique_ptr<DenyList> deny_;
  std::unique_ptr<RootFiles> files_;
  TreeTable::Pin pin_;
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
  // Neither denied nor missing files.
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
  // A node that has everything gets a short answer.
  const auto again = Table(2, "secret", table->id());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->frame_size() + again->file_size(), 0);
  EXPECT_EQ(again->id(), table->id());
}

// Memory for ended runs must be bounded: a plan may be a megabyte.
TEST_F(TracesTest, FramesOfRunsThatHaveEndedAreToBeHadForAWhile) {
  Expect(1);
  ASSERT_TRUE(traces_->Put(PutOf(1, Touched())));
  std::string name;
  for (uint64_t job = 2; job < 40; ++job) {
    Expect(job);
    const auto table = Table(job);
    ASSERT_TRUE(table && table->frame_size() > 0);
    name = table->id();
    if (job > 2) {
      ASSERT_TRUE(traces_->Put(PutOf(job, Touched())));
    }
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
  // The other home is gone.
  traces_->Expect({3, 1, "secret", tree_, {}, std::weak_ptr<const Traces::Elsewhere>(kept)});
  kept.reset();
  EXPECT_EQ(Table(3)->frame_size(), 0);
  EXPECT_TRUE(traces_->Put(PutOf(3, Touched())));

  // The other home stores it like those of its own runs, and passes it to the server of the next run.
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
  EXPECT_EQ(Frame(1, before->id(), 0).error().code(), Code::kAborted);  // the job's tree has the old version
  Rescan();
  Expect(2);
  const auto table = Table(2);
  ASSERT_TRUE(table);
  EXPECT_NE(table->id(), before->id());
  const auto frame = Frame(2, table->id(), 0);
  ASSERT_TRUE(frame);
  EXPECT_TRUE(Unpacked(*frame).starts_with("print(2) # longer than it was"));
  // The file is shorter than the touched part: cut.
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

// A warm node reports less than the run touched.
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

// `make` in another project does not use this project's files.
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
  // The program's own files are the same everywhere; the others are guessed, as without a trace.
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
    // Stored frames are served although the file is gone: they have the content of that version.
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
