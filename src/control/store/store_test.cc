// SPDX-License-Identifier: Apache-2.0
// The contract of a store, run on SQLite.
#include <gtest/gtest.h>

#include "control/store/sqlite.h"
#include "control/testing/testing.h"

namespace vrun::control {
namespace {

JobRow Row(const std::string& user, const std::string& request_id) {
  JobRow job;
  job.user = user;
  job.request_id = request_id;
  job.home_id = std::string("h\0me", 4);
  job.pool = "local";
  job.name = "name\n\xff";
  job.spec = std::string("\0spec", 5);
  job.needs = {1500, int64_t{1} << 40, 2, "h100"};
  job.submitted_us = 42;
  return job;
}

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() { Open(); }
  void Open() {
    store_.reset();
    auto opened = SqliteStore::Open(directory_.path() + "/vrun.db");
    VRUN_CHECK(opened.has_value());
    store_ = std::move(*opened);
  }
  uint64_t Insert(const JobRow& row) {
    EXPECT_TRUE(store_->Begin());
    auto id = store_->InsertJob(row);
    EXPECT_TRUE(id);
    EXPECT_TRUE(store_->Commit());
    return *id;
  }

  TestDirectory directory_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(StoreTest, WhatWasCommittedIsThereAfterReopening) {
  uint64_t id = Insert(Row("anna@h", "r1"));
  JobRow job = **store_->GetJob(id);
  job.state = v1::RUNNING;
  job.attempt = 3;
  job.epoch = uint64_t{1} << 62;
  job.node = "n1";
  job.token = std::string("\0\xff", 2);
  job.cancelled = true;
  job.cancel_signal = 15;
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->UpdateJob(job));
  ASSERT_TRUE(store_->PutAttempt({id, 3, job.epoch, "n1", v1::STARTING, 5, 0, ""}));
  ASSERT_TRUE(store_->PutAttempt({id, 3, job.epoch, "n1", v1::RUNNING, 0, 0, ""}));
  ASSERT_TRUE(store_->PutNode({"n1", "local", "total", {"a:1", "b:2"}, "0.1", UINT64_MAX, 7, true, false}));
  ASSERT_TRUE(store_->Commit());
  Open();
  JobRow read = **store_->GetJob(id);
  EXPECT_EQ(read.home_id, std::string("h\0me", 4));
  EXPECT_EQ(read.name, "name\n\xff");
  EXPECT_EQ(read.spec, std::string("\0spec", 5));
  EXPECT_EQ(read.needs, job.needs);
  EXPECT_EQ(read.state, v1::RUNNING);
  EXPECT_EQ(read.epoch, job.epoch);
  EXPECT_EQ(read.token, job.token);
  EXPECT_TRUE(read.cancelled);
  EXPECT_EQ(*store_->LastEpoch(), job.epoch);
  auto nodes = *store_->Nodes();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].addresses, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(nodes[0].boot_id, UINT64_MAX);
  EXPECT_TRUE(nodes[0].lost);
}

TEST_F(StoreTest, RolledBackIsForgottenAndIdsAreNeverUsedAgain) {
  uint64_t first = Insert(Row("anna@h", "r1"));
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->InsertJob(Row("anna@h", "r2")));
  store_->Rollback();
  EXPECT_FALSE(store_->FindRequest("anna@h", "r2")->has_value());
  EXPECT_GT(Insert(Row("anna@h", "r3")), first);
}

TEST_F(StoreTest, OneRequestOfAUserIsOneJob) {
  uint64_t id = Insert(Row("anna@h", "r1"));
  EXPECT_EQ(**store_->FindRequest("anna@h", "r1"), id);
  Insert(Row("bob@h", "r1"));
  ASSERT_TRUE(store_->Begin());
  EXPECT_FALSE(store_->InsertJob(Row("anna@h", "r1")));
  EXPECT_TRUE(store_->failure().has_value());
  EXPECT_FALSE(store_->InsertJob(Row("anna@h", "r9"))) << "a failed transaction takes nothing more";
  EXPECT_FALSE(store_->Commit());
  store_->Rollback();
  EXPECT_FALSE(store_->FindRequest("anna@h", "r9")->has_value());
}

TEST_F(StoreTest, ListsAreNewestFirstAndFiltered) {
  uint64_t a = Insert(Row("anna@h", "1"));
  uint64_t b = Insert(Row("anna@h", "2"));
  JobRow ended = **store_->GetJob(a);
  ended.state = v1::COMPLETED;
  ended.ended_us = 9;
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->UpdateJob(ended));
  ASSERT_TRUE(store_->Commit());
  EXPECT_EQ(store_->UnfinishedJobs()->size(), 1u);
  auto all = *store_->ListJobs(true, "", 10);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, b);
  EXPECT_EQ(all[0].spec, std::string("\0spec", 5));
  EXPECT_EQ(store_->ListJobs(true, std::string("h\0me", 4), 1)->size(), 1u);
  EXPECT_EQ(store_->ListJobs(false, "other", 10)->size(), 0u);
}

TEST_F(StoreTest, ASecondOwnerIsRefused) {
  auto second = SqliteStore::Open(directory_.path() + "/vrun.db");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kExists);
}

TEST_F(StoreTest, AFullDiskIsAnErrorAndGoesAwayWithSpace) {
  Insert(Row("anna@h", "r1"));
  store_->LimitPages(1);
  ASSERT_TRUE(store_->Begin());
  JobRow big = Row("anna@h", "r2");
  big.spec.assign(200'000, 's');
  auto id = store_->InsertJob(big);
  ASSERT_FALSE(id);
  EXPECT_EQ(id.error().code(), Code::kExhausted);
  store_->Rollback();
  store_->LimitPages(0);
  big.request_id = "r3";
  EXPECT_GT(Insert(big), 0u);
}

TEST_F(StoreTest, RubbishIsNotADatabase) {
  ASSERT_TRUE(WriteFileAtomic(directory_.path() + "/rubbish.db", std::string(10'000, 'r'), 0600));
  EXPECT_EQ(SqliteStore::Open(directory_.path() + "/rubbish.db").error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace vrun::control
