// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/records.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <vector>

#include "base/files.h"
#include "base/io/event_loop.h"
#include "home/frozen/record_sync.h"
#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

class RecordsTest : public testing::Test {
 protected:
  std::string Read(const std::string& name) { return ReadFile(state_ / ("jobs/" + name)).value_or("!"); }
  ino_t Inode(const std::string& name) {
    struct stat st {};
    EXPECT_EQ(::stat((state_ / ("jobs/" + name)).c_str(), &st), 0);
    return st.st_ino;
  }

  TestDirectory state_;
  Records records_{state_ / "jobs", state_ / "common"};
};

TEST_F(RecordsTest, ThoseOfTheSameContentAreOneFile) {
  for (const char* name : {"1", "2", "3"}) ASSERT_TRUE(records_.Put(name, "same"));
  ASSERT_TRUE(records_.Put("4", "other"));
  ASSERT_TRUE(records_.Sync());
  EXPECT_EQ(Inode("1"), Inode("3"));
  EXPECT_NE(Inode("1"), Inode("4"));
  EXPECT_EQ(Read("2"), "same");
  EXPECT_EQ(Read("4"), "other");
}

TEST_F(RecordsTest, ARecordIsReplacedAndItsFormerCompanionsStay) {
  ASSERT_TRUE(records_.Put("1", "a"));
  ASSERT_TRUE(records_.Put("2", "a"));
  ASSERT_TRUE(records_.Put("1", "a"));  // the same once more
  ASSERT_TRUE(records_.Put("1", "b"));
  ASSERT_TRUE(records_.PutLoose("3", "c"));
  ASSERT_TRUE(records_.PutLoose("2", "c"));
  EXPECT_EQ(Read("1"), "b");
  EXPECT_EQ(Read("2"), "c");
  EXPECT_EQ(Read("3"), "c");
  // Nothing else is left there.
  size_t files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(state_ / "jobs")) ++files;
  EXPECT_EQ(files, 3u);
}

TEST_F(RecordsTest, WhatNoSyncWaitsForIsNoFileOfOneThatDoes) {
  ASSERT_TRUE(records_.PutLoose("1", "a", true));
  ASSERT_TRUE(records_.PutLoose("2", "a", true));
  ASSERT_TRUE(records_.Put("3", "a"));
  ASSERT_TRUE(records_.PutLoose("4", "a"));
  EXPECT_EQ(Inode("1"), Inode("2"));
  EXPECT_NE(Inode("1"), Inode("3"));
  EXPECT_EQ(Inode("3"), Inode("4"));
}

TEST_F(RecordsTest, WhatIsRemovedMeanwhileIsMadeAgain) {
  ASSERT_TRUE(records_.Put("1", "a"));
  std::filesystem::remove(state_ / "common");
  ASSERT_TRUE(records_.Put("2", "a"));
  ASSERT_TRUE(records_.Put("3", "a"));
  EXPECT_EQ(Read("2") + Read("3"), "aa");
  std::filesystem::remove_all(state_ / "jobs");
  EXPECT_FALSE(records_.Sync());
  (void)records_.Put("4", "a");
  ASSERT_TRUE(records_.Put("5", "a"));
  EXPECT_EQ(Read("5"), "a");
  EXPECT_TRUE(records_.Sync());
}

TEST(RecordSync, ThoseThatComeDuringAFlushShareTheNextOne) {
  EventLoop loop;
  std::promise<void> gate;
  std::atomic<int> flushes = 0;
  RecordSync sync(&loop, [&]() -> Status {
    if (++flushes == 1) gate.get_future().wait();
    return flushes < 3 ? Status() : Status(Error(Code::kInternal, "the disk refuses"));
  });
  std::vector<int> done;
  for (int i = 0; i < 4; ++i) sync.Then([&done, i] { done.push_back(i); });
  loop.RunOnce(0);
  EXPECT_TRUE(done.empty());
  gate.set_value();
  while (done.size() < 4) loop.RunOnce(1000);
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(flushes, 2);
  // Nobody waits forever.
  sync.Then([&done] { done.push_back(4); });
  while (done.size() < 5) loop.RunOnce(1000);
}

}  // namespace
}  // namespace vrun::home
