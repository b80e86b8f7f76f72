// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/records.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/files.h"
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

}  // namespace
}  // namespace vrun::home
