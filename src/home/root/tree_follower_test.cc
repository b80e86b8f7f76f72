// SPDX-License-Identifier: Apache-2.0
#include "home/root/tree_follower.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

class TreeFollowerTest : public testing::Test {
 protected:
  void SetUp() override {
    root_.Put("d/f", "0");
    RootTree::Options options;
    options.root = root_.path();
    options.deny.root = root_.path();
    options.cookie_directory = state_.path() + "/watch";
    options.backend = WatchOptions::Backend::kInotify;
    tree_ = std::make_unique<RootTree>(&loop_, options, &table_);
    follower_ = std::make_unique<TreeFollower>(&loop_, tree_.get(), &board_);
    tree_->Start();
  }
  bool Until(const std::function<bool()>& holds) {
    for (const int64_t end = MonotonicMicros() + 20'000'000; !holds() && MonotonicMicros() < end;) loop_.RunOnce(10);
    return holds();
  }
  bool Shows(const std::string& path, uint64_t size) {
    const auto entry = table_.current() ? tree::Lookup(*table_.current(), path) : Error(Code::kNotFound, "");
    return entry && entry->size == size;
  }

  TestDirectory root_, state_;
  EventLoop loop_;
  TreeTable table_;
  TreeBoard board_;
  std::unique_ptr<RootTree> tree_;
  std::unique_ptr<TreeFollower> follower_;
};

TEST_F(TreeFollowerTest, WhoWantsToKnowIsToldOfEachChangeAndThatThereIsNone) {
  std::atomic<int> told{0};
  const uint64_t id = board_.Join([&] { ++told; });
  ASSERT_TRUE(Until([&] { return told > 0 && Shows("/d/f", 1); }));
  for (int i = 1; i < 20; ++i) {
    const int before = told;
    root_.Put("d/f", std::string(static_cast<size_t>(i) + 1, 'x'));
    ASSERT_TRUE(Until([&] { return told > before && Shows("/d/f", static_cast<uint64_t>(i) + 1); })) << i;
  }
  const int before = told;
  EXPECT_TRUE(Until([&] { return told >= before + 2; }));  // nothing changes, and that is reported
  board_.Leave(id);
}

TEST_F(TreeFollowerTest, NobodyWantsToKnowNothingIsDone) {
  int told = 0;
  const uint64_t id = board_.Join([&] { ++told; });
  ASSERT_TRUE(Until([&] { return told > 0; }));
  board_.Leave(id);
  for (int i = 0; i < 20; ++i) loop_.RunOnce(10);
  const auto before = table_.current();
  root_.Put("d/new", "x");
  for (int i = 0; i < 20; ++i) loop_.RunOnce(10);
  EXPECT_EQ(table_.current(), before);
}

TEST_F(TreeFollowerTest, WhatBecomesOursIsGoneFromTheNextTree) {
  const uint64_t id = board_.Join([] {});
  ASSERT_TRUE(Until([&] { return Shows("/d/f", 1); }));
  tree_->DenyOwn({root_ / "d/f"});
  EXPECT_TRUE(Until([&] { return !Shows("/d/f", 1); }));
  EXPECT_TRUE(table_.rules()->Denies("/d/f", {"/d"})) << "and is not opened by anybody";
  board_.Leave(id);
}

// No tree may say that a file is nowhere because it was renamed again while its two names were examined.
TEST_F(TreeFollowerTest, WhatIsRenamedAllTheTimeIsNotMissing) {
  const uint64_t id = board_.Join([] {});
  ASSERT_TRUE(Until([&] { return Shows("/d/f", 1); }));
  std::filesystem::rename(root_ / "d/f", root_ / "d/0");
  ASSERT_TRUE(Until([&] { return Shows("/d/0", 1); }));
  std::atomic<bool> over{false};
  std::thread renamer([&] {
    for (int i = 0; i < 1'000; ++i) {
      std::filesystem::rename(root_ / ("d/" + std::to_string(i)), root_ / ("d/" + std::to_string(i + 1)));
      std::this_thread::sleep_for(std::chrono::microseconds(1'500));
    }
    over = true;
  });
  size_t looks = 0, missing = 0;
  tree::TreePtr seen;
  while (!over) {
    loop_.RunOnce(1);
    const tree::TreePtr now = table_.current();
    if (now == seen) continue;
    seen = now;
    ++looks;
    const auto directory = tree::LookupDirectory(*now, "/d");
    missing += !directory || (*directory)->size() != 1;
  }
  renamer.join();
  EXPECT_GT(looks, 50u);
  EXPECT_LE(missing, looks / 50) << "of " << looks;  // on a busy machine a refresh may take longer than the next change
  board_.Leave(id);
}

// As after the removal of a million files: the next change is small and must not wait as long as that refresh took.
TEST_F(TreeFollowerTest, AfterOneLargeChangeTheNextIsSoonSeen) {
  const uint64_t id = board_.Join([] {});
  ASSERT_TRUE(Until([&] { return Shows("/d/f", 1); }));
  std::filesystem::create_directories(root_ / "away/many");
  for (int i = 0; i < 15'000; ++i) {
    const UniqueFd made(
        ::open((root_ / ("away/many/" + std::to_string(i))).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    if (i % 1'000 == 0) loop_.RunOnce(0);
  }
  ASSERT_TRUE(Until([&] { return Shows("/away/many/14999", 0); }));
  for (int i = 0; i < 150; ++i) loop_.RunOnce(10);  // nothing more
  // Everything is rescanned.
  std::filesystem::rename(root_ / "away/many", root_ / "away/more");
  int64_t began = MonotonicMicros();
  ASSERT_TRUE(Until([&] { return Shows("/away/more/14999", 0); }));
  const int64_t large = MonotonicMicros() - began;
  root_.Put("d/f", "xyz");
  began = MonotonicMicros();
  ASSERT_TRUE(Until([&] { return Shows("/d/f", 3); }));
  EXPECT_LT(MonotonicMicros() - began, 2 * large);
  board_.Leave(id);
}

TEST_F(TreeFollowerTest, ABurstIsAFewTrees) {
  std::atomic<int> told{0};
  const uint64_t id = board_.Join([&] { ++told; });
  ASSERT_TRUE(Until([&] { return told > 0; }));
  const int before = told;
  const int64_t began = MonotonicMicros();
  for (int i = 0; i < 2000; ++i) {
    root_.Put("d/" + std::to_string(i), "x");
    if (i % 10 == 0) loop_.RunOnce(0);
  }
  ASSERT_TRUE(Until([&] { return Shows("/d/1999", 1); }));
  EXPECT_LE(told - before, (MonotonicMicros() - began) / 3'000 + 6);  // its first refreshes are closer together
  board_.Leave(id);
}

}  // namespace
}  // namespace vrun::home
