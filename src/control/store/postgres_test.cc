// SPDX-License-Identifier: Apache-2.0
// What only a store on PostgreSQL does: one controller at a time, also when sessions end at any moment. On a real
// server.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "control/store/postgres.h"
#include "control/testing/postgres_server.h"
#include "control/testing/testing.h"

namespace vrun::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

JobRow Row(const std::string& request_id) {
  JobRow job;
  job.user = "anna";
  job.request_id = request_id;
  job.pool = "local";
  job.submitted_us = 42;
  return job;
}

class PostgresTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!PostgresServer::Programs().empty()) server_ = new PostgresServer();
  }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << "PostgreSQL is not installed: tools/install-deps --test";
    url_ = server_->MakeDatabase();
  }
  // A session that was ended on the server keeps the database for a moment.
  std::unique_ptr<PostgresStore> Open(const std::string& holder = "a") {
    auto opened = PostgresStore::Open(
        {.url = url_, .holder = holder, .key_file = key_, .wait = [end = steady_clock::now() + seconds(10)] {
           std::this_thread::sleep_for(milliseconds(20));
           return steady_clock::now() > end;
         }});
    EXPECT_TRUE(opened) << opened.error().message();
    return opened ? std::move(*opened) : nullptr;
  }
  // Waits for the database, as a controller that stands by.
  auto StandBy(const std::string& holder) {
    return std::async(std::launch::async, [this, holder] {
      return PostgresStore::Open({.url = url_, .holder = holder, .key_file = key_, .wait = [this] {
                                    std::this_thread::sleep_for(milliseconds(50));
                                    return give_up_.load();
                                  }});
    });
  }
  std::string Database() const { return url_.substr(url_.rfind('=') + 1); }

  static inline PostgresServer* server_ = nullptr;
  TestDirectory directory_;
  const std::string key_ = directory_.path() + "/key";
  std::string url_;
  std::atomic<bool> give_up_ = false;
};

TEST(ToPostgresTest, WordsThatDifferAreTranslated) {
  EXPECT_EQ(ToPostgres("SELECT a FROM t WHERE b=? AND c=?"), "SELECT a FROM t WHERE b=$1 AND c=$2");
  EXPECT_EQ(ToPostgres("SELECT user, arrays.array, users FROM jobs"),
            "SELECT \"user\", arrays.\"array\", users FROM jobs");
  EXPECT_EQ(ToPostgres("FROM jobs INDEXED BY jobs_arrays WHERE x=?"), "FROM jobs WHERE x=$1");
  EXPECT_EQ(ToPostgres("SELECT 'user ? INDEXED BY x'"), "SELECT 'user ? INDEXED BY x'");
}

TEST_F(PostgresTest, OneControllerAtATimeHasIt) {
  auto first = Open("first");
  auto refused = PostgresStore::Open({.url = url_, .holder = "second", .key_file = key_});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExists);
  EXPECT_NE(refused.error().message().find("controller first has it"), std::string::npos) << refused.error().message();
  EXPECT_EQ(first->term(), 1u);
  first.reset();
  EXPECT_EQ(Open("second")->term(), 2u);
}

TEST_F(PostgresTest, WhoStandsByTakesOverWhenTheOtherEnds) {
  auto first = Open("first");
  auto second = StandBy("second");
  EXPECT_EQ(second.wait_for(milliseconds(300)), std::future_status::timeout);
  const auto began = steady_clock::now();
  first.reset();
  auto store = second.get();
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_LT(steady_clock::now() - began, milliseconds(2000));
}

TEST_F(PostgresTest, WhoStandsByCanBeToldToEnd) {
  auto first = Open("first");
  auto second = StandBy("second");
  give_up_ = true;
  EXPECT_EQ(second.get().error().code(), Code::kAborted);
}

TEST_F(PostgresTest, AControllerThatLivesKeepsIt) {
  auto first = Open("first");
  auto second = StandBy("second");
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(first->Beat());
    EXPECT_EQ(second.wait_for(milliseconds(500)), std::future_status::timeout);
  }
  give_up_ = true;
  EXPECT_FALSE(second.get());
}

// As after SIGSTOP, or behind a broken link: its session is there, and it says nothing.
TEST_F(PostgresTest, AControllerThatIsSilentLosesItAndCannotWriteAnyMore) {
  auto first = Open("first");
  ASSERT_TRUE(first->Beat());
  ASSERT_TRUE(first->Begin());
  ASSERT_TRUE(first->InsertJob(Row("r1")));
  const auto began = steady_clock::now();
  auto second = StandBy("second").get();
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_LT(steady_clock::now() - began, milliseconds(5000));
  EXPECT_FALSE((*second)->FindRequest("anna", "r1")->has_value());
  const Status late = first->Commit();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kUnavailable) << late.error().message();
  first->Rollback();
  EXPECT_FALSE(first->Beat());
  EXPECT_FALSE(first->Begin());
  EXPECT_TRUE((*second)->Beat());
  EXPECT_FALSE((*second)->FindRequest("anna", "r1")->has_value());
}

// The session is ended after each statement of a change: all of it is there, or nothing, and nothing is there twice.
TEST_F(PostgresTest, AChangeIsWholeWhereverTheSessionEnds) {
  constexpr int kSteps = 6;
  for (int end = 0; end <= kSteps; ++end) {
    auto store = Open();
    const std::string request = "r" + std::to_string(end);
    int step = 0;
    uint64_t id = 0;
    const auto then = [&] {
      if (step++ == end) {
        EXPECT_TRUE(server_->Sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname='" +
                                 Database() + "' AND application_name='vrun controller'"));
      }
    };
    Status done = store->Begin();
    then();
    if (done) {
      auto made = store->InsertJob(Row(request));
      if (made) id = *made;
      done = made ? Status() : Status(made.error());
    }
    then();
    if (done) done = store->PutAttempt({id, 1, 1, v1::STARTING, 5, 0});
    then();
    if (done) done = store->PutPod(id, 1, {0, "n1", "t"});
    then();
    if (done) done = store->AppendJournal("j");
    then();
    if (done) done = store->Commit();
    then();
    const bool committed = done.has_value();
    if (!committed) store->Rollback();
    then();
    EXPECT_EQ(store->Beat().has_value(), false);
    store.reset();
    store = Open();
    EXPECT_EQ(committed, end >= kSteps - 1);
    const auto job = store->FindRequest("anna", request);
    ASSERT_TRUE(job) << job.error().message();
    EXPECT_EQ(job->has_value(), committed) << end;
    if (committed) {
      EXPECT_EQ(store->Attempts(**job)->at(0).pods.size(), 1u);
    }
    EXPECT_EQ(store->Journal()->size(), committed ? static_cast<size_t>(end - kSteps + 2) : 0u);
  }
}

TEST_F(PostgresTest, WhatWasCommittedSurvivesAKilledServer) {
  auto store = Open();
  ASSERT_TRUE(store->Begin());
  ASSERT_TRUE(store->InsertJob(Row("r1")));
  ASSERT_TRUE(store->Commit());
  ASSERT_TRUE(store->Begin());
  ASSERT_TRUE(store->InsertJob(Row("r2")));
  server_->Stop(SIGKILL);
  const bool late = store->Commit().has_value();  // the session may live a moment longer than the server
  store.reset();
  auto gone = PostgresStore::Open({.url = url_, .holder = "a", .key_file = key_});
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), Code::kUnavailable);
  auto waits = StandBy("a");
  server_->Start();
  auto again = waits.get();
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE((*again)->FindRequest("anna", "r1")->has_value());
  EXPECT_EQ((*again)->FindRequest("anna", "r2")->has_value(), late);
}

TEST_F(PostgresTest, AWrongAddressIsOneLine) {
  for (const std::string url : {"postgresql://nobody@127.0.0.1:1/x", "host=/nowhere", "postgresql://[", "nonsense=1"}) {
    auto opened = PostgresStore::Open({.url = url, .holder = "a", .key_file = key_});
    ASSERT_FALSE(opened) << url;
    EXPECT_EQ(opened.error().message().find('\n'), std::string::npos);
    EXPECT_TRUE(opened.error().message().starts_with("state database: ")) << opened.error().message();
  }
}

TEST_F(PostgresTest, ANewerSchemaIsNotTouched) {
  Open().reset();
  ASSERT_TRUE(server_->Sql("UPDATE schema_version SET version=1000", Database()));
  auto opened = PostgresStore::Open({.url = url_, .holder = "a", .key_file = key_});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace vrun::control
