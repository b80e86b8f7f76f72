// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "node/carry/kept_series.h"
#include "node/fs/kept_store.h"

namespace vrun::node {
namespace {

constexpr int64_t kDay = 24 * 3600 * 1'000'000LL;
constexpr char kOwner[] = "00112233445566778899aabbccddeeff";

// Replays the given operations.
class FakeCarry : public Carry {
 public:
  void Directory(const std::string& path) { Add(path).mutable_make_directory()->mutable_meta()->set_mode(0755); }
  void File(const std::string& path, const std::string& content) {
    v1::PutFile* put = Add(path).mutable_put_file();
    put->set_size(content.size());
    v1::FileData* data = Add(path).mutable_file_data();
    data->set_data(content);
    data->set_last(true);
  }
  void Changed(const std::string& path) { Add(path).mutable_set_meta()->mutable_meta()->set_mode(0755); }
  void Removed(const std::string& path) { Add(path).mutable_remove(); }
  void Moved(const std::string& from, const std::string& path) { Add(path).mutable_rename()->set_from(from); }

  Result<std::optional<v1::WriteBack>> Next() override {
    if (at_ == writes_.size()) return std::nullopt;
    return writes_[at_++];
  }
  Status Restart(uint64_t) override { return {}; }
  v1::WriteBackEnd End() const override {
    v1::WriteBackEnd end;
    end.set_sequence(writes_.size());
    end.set_entries(writes_.size());
    return end;
  }

 private:
  v1::WriteBack& Add(const std::string& path) {
    v1::WriteBack& write = writes_.emplace_back();
    write.set_sequence(writes_.size());
    write.set_path(path);
    return write;
  }
  std::deque<v1::WriteBack> writes_;
  size_t at_ = 0;
};

class KeptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/var/tmp/vrun-kept-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    MakeStore();
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(directory_)); }

  // As after a restart of the agent.
  void MakeStore() {
    store_ = std::make_unique<KeptStore>(directory_ + "/kept", KeptLimits{limit_, 14}, [this] { return now_; });
  }

  void Keep(uint64_t job, uint32_t attempt, std::unique_ptr<FakeCarry> carry, const std::string& upper = "",
            uint32_t continues = 0, const std::string& owner = kOwner) {
    auto writer = KeptWriter::Create(directory_ + "/task/kept", std::move(carry));
    ASSERT_TRUE(writer) << writer.error().message();
    for (;;) {
      Result<bool> more = (*writer)->Step();
      ASSERT_TRUE(more) << more.error().message();
      if (!*more) break;
    }
    v1::Kept kept;
    kept.set_job(job);
    kept.set_attempt(attempt);
    kept.set_kept_us(now_);
    kept.set_root("root");
    kept.set_continues(continues);
    const Status finished = (*writer)->Finish(&kept, store_->PathOf(owner, {job, attempt}), upper);
    ASSERT_TRUE(finished) << finished.error().message();
  }
  void KeepBytes(uint64_t job, size_t bytes) {
    auto carry = std::make_unique<FakeCarry>();
    carry->File("/out", std::string(bytes, 'x'));
    Keep(job, 1, std::move(carry));
  }
  v1::Handover State(uint64_t job) {
    const auto kept = store_->Of(kOwner, job);
    return kept.size() == 1 ? kept[0].state() : v1::KEPT_STATE_UNSPECIFIED;
  }
  // The reader's output, one line each: "PATH" or "PATH=CONTENT".
  std::vector<std::string> Read(uint64_t job, std::vector<std::string> paths = {}, bool names_only = false) {
    std::vector<std::string> lines;
    auto reader = KeptReader::Open(store_->PathOf(kOwner, {job, 1}), std::move(paths), names_only);
    if (!reader) return {"error: " + reader.error().message()};
    for (;;) {
      auto write = (*reader)->Next();
      if (!write) return {"error: " + write.error().message()};
      if (!*write) return lines;
      if ((**write).has_file_data()) {
        lines.back() += "=" + (**write).file_data().data();
      } else {
        lines.push_back((**write).path());
      }
    }
  }

  std::string directory_;
  uint64_t limit_ = 1000;
  int64_t now_ = 1'000 * kDay;
  std::unique_ptr<KeptStore> store_;
};

TEST_F(KeptTest, WhatWasKeptIsReadAgain) {
  auto carry = std::make_unique<FakeCarry>();
  carry->Directory("/out");
  carry->File("/out/a", "first");
  carry->File("/out/empty", "");
  carry->File("/out/ab", std::string(100'000, 'b'));
  carry->Removed("/gone");
  Keep(7, 1, std::move(carry));
  EXPECT_EQ(Read(7), (std::vector<std::string>{"/out", "/out/a=first",
                                               "/out/empty=", "/out/ab=" + std::string(100'000, 'b'), "/gone"}));
  const auto kept = store_->Of(kOwner, 7);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].files(), 3u);
  EXPECT_EQ(kept[0].entries(), 8u);
  EXPECT_EQ(kept[0].bytes(), 100'005u);
  EXPECT_EQ(kept[0].until_us(), now_ + 14 * kDay);
  EXPECT_TRUE(store_->Of("another", 7).empty());
}

TEST_F(KeptTest, SomeOfItIsChosenByPath) {
  auto carry = std::make_unique<FakeCarry>();
  carry->Moved("/was", "/is");
  carry->Directory("/out");
  carry->File("/out/a", "A");
  carry->File("/out/ab", "B");
  carry->Directory("/out/deep");
  carry->File("/out/deep/c", "C");
  carry->Removed("/gone");
  carry->Changed("/was");
  carry->Changed("/home");  // existed before
  carry->Changed("/out");
  Keep(7, 1, std::move(carry));
  EXPECT_EQ(Read(7, {"/home/x"}), std::vector<std::string>());
  EXPECT_EQ(Read(7, {"/out/a"}), (std::vector<std::string>{"/out", "/out/a=A", "/out"}));
  EXPECT_EQ(Read(7, {"/out/deep", "/gone"}),
            (std::vector<std::string>{"/out", "/out/deep", "/out/deep/c=C", "/gone", "/out"}));
  EXPECT_EQ(Read(7, {"/was"}), (std::vector<std::string>{"/is", "/was"}));
  EXPECT_EQ(Read(7, {"/nothing"}), std::vector<std::string>());
  EXPECT_EQ(Read(7, {"/out"}, true),
            (std::vector<std::string>{"/out", "/out/a", "/out/ab", "/out/deep", "/out/deep/c", "/out"}));
}

TEST_F(KeptTest, DamageIsAnErrorAndNoContent) {
  KeepBytes(7, 500);
  const std::string where = store_->PathOf(kOwner, {7, 1});
  ASSERT_EQ(::truncate((where + "/data").c_str(), 499), 0);
  EXPECT_EQ(Read(7)[0].substr(0, 6), "error:");
  ASSERT_EQ(::truncate((where + "/series").c_str(), 5), 0);
  EXPECT_EQ(Read(7)[0].substr(0, 6), "error:");
}

TEST_F(KeptTest, ExpiresAfterItsDays) {
  KeepBytes(1, 10);
  now_ += 10 * kDay;
  KeepBytes(2, 10);
  now_ += 4 * kDay - 1;
  store_->Expire();
  EXPECT_EQ(State(1), v1::KEPT_THERE);
  now_ += 1;
  MakeStore();
  store_->Expire();
  EXPECT_EQ(State(1), v1::KEPT_EXPIRED);
  EXPECT_EQ(store_->Of(kOwner, 1)[0].gone_us(), now_);
  EXPECT_EQ(store_->Of(kOwner, 1)[0].bytes(), 10u);
  EXPECT_FALSE(PathExists(store_->PathOf(kOwner, {1, 1}) + "/data"));
  EXPECT_EQ(State(2), v1::KEPT_THERE);
  // Its record stays for the same time again.
  now_ += 14 * kDay;
  store_->Expire();
  EXPECT_EQ(State(1), v1::KEPT_EXPIRED);
  now_ += 1;
  store_->Expire();
  EXPECT_TRUE(store_->Of(kOwner, 1).empty());
  EXPECT_EQ(State(2), v1::KEPT_EXPIRED);
}

TEST_F(KeptTest, TheOldestGoesForTheBound) {
  KeepBytes(3, 400);
  now_ += 1;
  KeepBytes(1, 400);
  now_ += 1;
  KeepBytes(2, 200);
  store_->Expire();
  EXPECT_EQ(State(3), v1::KEPT_THERE);
  now_ += 1;
  KeepBytes(4, 500);
  MakeStore();
  store_->Expire();
  EXPECT_EQ(State(3), v1::KEPT_EXPIRED);
  EXPECT_EQ(State(1), v1::KEPT_EXPIRED);
  EXPECT_EQ(State(2), v1::KEPT_THERE);
  EXPECT_EQ(State(4), v1::KEPT_THERE);
}

TEST_F(KeptTest, WhatIsDroppedIsGoneAndSaysSo) {
  KeepBytes(7, 100);
  ASSERT_TRUE(store_->Drop(kOwner, {7, 1}, v1::KEPT_PULLED));
  EXPECT_EQ(State(7), v1::KEPT_PULLED);
  EXPECT_FALSE(PathExists(store_->PathOf(kOwner, {7, 1}) + "/series"));
  EXPECT_EQ(store_->Drop(kOwner, {7, 1}, v1::KEPT_DROPPED).error().code(), Code::kNotFound);
  EXPECT_EQ(store_->Drop("another", {7, 1}, v1::KEPT_DROPPED).error().code(), Code::kNotFound);
}

// Killed after writing the record, before removing the content.
TEST_F(KeptTest, ARemovalIsBroughtToItsEndAfterARestart) {
  KeepBytes(7, 100);
  const std::string where = store_->PathOf(kOwner, {7, 1});
  auto kept = ReadKept(where);
  ASSERT_TRUE(kept);
  kept->set_state(v1::KEPT_DROPPED);
  kept->set_gone_us(now_);
  ASSERT_TRUE(WriteKept(where, *kept));
  MakeStore();
  store_->Expire();
  EXPECT_FALSE(PathExists(where + "/data"));
  EXPECT_EQ(State(7), v1::KEPT_DROPPED);
}

TEST_F(KeptTest, TheNextAttemptGoesOnWithTheUpperOnTheSameRootOnly) {
  const auto keep_first = [&] {
    ASSERT_TRUE(MakeDirs(directory_ + "/task/upper", 0700));
    ASSERT_TRUE(WriteFileAtomic(directory_ + "/task/upper/out", "1", 0600));
    auto carry = std::make_unique<FakeCarry>();
    carry->File("/out", "1");
    Keep(7, 1, std::move(carry), directory_ + "/task/upper");
  };
  keep_first();
  const std::string to = directory_ + "/next";
  EXPECT_EQ(*store_->TakeUpper(kOwner, {7, 2}, "other root", to), 0u);
  EXPECT_EQ(*store_->TakeUpper("another", {7, 2}, "root", to), 0u);
  EXPECT_EQ(*store_->TakeUpper(kOwner, {8, 2}, "root", to), 0u);
  EXPECT_FALSE(PathExists(to));
  EXPECT_EQ(*store_->TakeUpper(kOwner, {7, 2}, "root", to), 1u);
  EXPECT_EQ(ReadFile(to + "/out").value_or(""), "1");
  EXPECT_EQ(State(7), v1::KEPT_THERE);
  // When the second one is over it contains everything, and the first one is no longer needed.
  auto carry = std::make_unique<FakeCarry>();
  carry->File("/out", "12");
  Keep(7, 2, std::move(carry), "", 1);
  ASSERT_EQ(store_->Of(kOwner, 7).size(), 1u);
  EXPECT_EQ(store_->Of(kOwner, 7)[0].attempt(), 2u);
  store_->Expire();
  EXPECT_FALSE(PathExists(store_->PathOf(kOwner, {7, 1})));
}

}  // namespace
}  // namespace vrun::node
