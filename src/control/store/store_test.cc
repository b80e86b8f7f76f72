// SPDX-License-Identifier: Apache-2.0
// The contract of a store, run on SQLite and on a real PostgreSQL.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include "base/files.h"
#include "control/store/postgres.h"
#include "control/store/sqlite.h"
#include "control/testing/postgres_server.h"
#include "control/testing/testing.h"
#include "proto/control.pb.h"

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
  job.needs.gpu_milli = 250;
  job.needs.gpu_burst_milli = 500;
  job.needs.gpu_sharing = v1::GPU_TIME_SLICE;
  job.needs.mig_profile = "1g.10gb";
  job.needs.gpu_memory_bytes = int64_t{1} << 40;
  job.needs.sharers = uint64_t{3} << 62;
  job.submitted_us = 42;
  job.gang.set_pods(2);
  return job;
}

// One server for all tests. Null: PostgreSQL is not installed.
PostgresServer* Postgres() {
  static const std::unique_ptr<PostgresServer> server(PostgresServer::Programs().empty() ? nullptr
                                                                                         : new PostgresServer());
  return server.get();
}

enum class Kind { kSqlite, kPostgres };

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kPostgres) {
      if (Postgres() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed: tools/install-deps --test";
      url_ = Postgres()->MakeDatabase();
    }
    Open();
  }
  void Open() {
    store_.reset();
    if (GetParam() == Kind::kPostgres) {
      auto opened = PostgresStore::Open({.url = url_, .holder = "test", .key_file = directory_.path() + "/key"});
      ASSERT_TRUE(opened) << opened.error().message();
      store_ = std::move(*opened);
      return;
    }
    auto opened = SqliteStore::Open(directory_.path() + "/vrun.db");
    ASSERT_TRUE(opened) << opened.error().message();
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
  std::string url_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(On, StoreTest, ::testing::Values(Kind::kSqlite, Kind::kPostgres),
                         [](const auto& info) { return info.param == Kind::kSqlite ? "Sqlite" : "Postgres"; });

class SqliteStoreTest : public ::testing::Test {
 protected:
  SqliteStoreTest() { Open(); }
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

TEST_P(StoreTest, WhatWasCommittedIsThereAfterReopening) {
  uint64_t id = Insert(Row("anna@h", "r1"));
  JobRow job = **store_->GetJob(id);
  job.state = v1::RUNNING;
  job.attempt = 3;
  job.epoch = uint64_t{1} << 62;
  job.pods = {{0, "n1", std::string("\0\xff", 2), 3, v1::RUNNING, true, ""},
              {1, "n2", "t", 12, v1::COMPLETED, true, "e"}};
  job.pods[1].mig_start = 4;
  job.pods[1].gpu_milli = 250;
  job.pods[1].mig_profile = "1g.10gb";
  job.pods[1].usage = "u";
  job.pods[1].held_since_us = 13;
  job.waits_since_us = 14;
  job.gpu_fault = "GPU 3 of n1: XID 79";
  job.leaving.attempt = 2;
  job.ending = Ending::kFailed;
  job.failure = "rank 1 on n2: exit 1";
  job.failed_pod = 1;
  job.saved_us = 11;
  job.lost_us = 12;
  job.scheduling.set_hold(true);
  job.cancelled = true;
  job.cancel_signal = 15;
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->UpdateJob(job));
  for (PodRow pod : job.pods) {
    ASSERT_TRUE(store_->PutPod(id, 3, pod));
    pod.state = pod.pod == 0 ? v1::COMPLETING : v1::PREEMPTED;
    ASSERT_TRUE(store_->PutPod(id, 2, pod));
  }
  ASSERT_TRUE(store_->PutAttempt({id, 3, job.epoch, v1::STARTING, 5, 0}));
  ASSERT_TRUE(store_->PutAttempt({id, 3, job.epoch, v1::FAILED, 0, 7, "why"}));
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
  ASSERT_EQ(read.pods.size(), 2u);
  EXPECT_EQ(read.pods[0].token, job.pods[0].token);
  EXPECT_EQ(read.pods[1].node, "n2");
  EXPECT_EQ(read.pods[1].gpu_mask, 12u);
  EXPECT_EQ(read.pods[1].exit, "e");
  EXPECT_TRUE(read.pods[1].ready);
  EXPECT_EQ(read.pods[0].mig_start, -1);
  EXPECT_EQ(read.pods[1].mig_start, 4);
  EXPECT_EQ(read.pods[1].gpu_milli, 250u);
  EXPECT_EQ(read.pods[1].mig_profile, "1g.10gb");
  EXPECT_EQ(read.pods[1].usage, "u");
  EXPECT_EQ(read.pods[1].held_since_us, 13);
  EXPECT_EQ(read.waits_since_us, 14);
  EXPECT_EQ(read.gpu_fault, job.gpu_fault);
  ASSERT_EQ(read.leaving.pods.size(), 1u) << "the other one's writes are home";
  EXPECT_EQ(read.leaving.pods[0].node, "n1");
  EXPECT_EQ(read.gang.pods(), 2u);
  EXPECT_EQ(read.ending, Ending::kFailed);
  EXPECT_EQ(read.failure, "rank 1 on n2: exit 1");
  EXPECT_EQ(read.failed_pod, 1u);
  EXPECT_EQ(read.saved_us, 11);
  EXPECT_EQ(read.lost_us, 12);
  EXPECT_TRUE(read.scheduling.hold());
  const std::vector<AttemptRow> attempts = *store_->Attempts(id);
  ASSERT_EQ(attempts.size(), 1u);
  EXPECT_EQ(attempts[0].placed_us, 5);
  EXPECT_EQ(attempts[0].ended_us, 7);
  EXPECT_EQ(attempts[0].reason, "why");
  EXPECT_EQ(attempts[0].pods.size(), 2u);
  EXPECT_TRUE(read.cancelled);
  EXPECT_EQ(*store_->LastEpoch(), job.epoch);
  auto nodes = *store_->Nodes();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].addresses, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(nodes[0].boot_id, UINT64_MAX);
  EXPECT_TRUE(nodes[0].lost);
}

TEST_P(StoreTest, RolledBackIsForgottenAndIdsAreNeverUsedAgain) {
  uint64_t first = Insert(Row("anna@h", "r1"));
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->InsertJob(Row("anna@h", "r2")));
  store_->Rollback();
  EXPECT_FALSE(store_->FindRequest("anna@h", "r2")->has_value());
  EXPECT_GT(Insert(Row("anna@h", "r3")), first);
}

TEST_P(StoreTest, OneRequestOfAUserIsOneJob) {
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

TEST_P(StoreTest, ListsAreNewestFirstAndFiltered) {
  uint64_t a = Insert(Row("anna@h", "1"));
  uint64_t b = Insert(Row("anna@h", "2"));
  JobRow ended = **store_->GetJob(a);
  ended.state = v1::COMPLETED;
  ended.ended_us = 9;
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->UpdateJob(ended));
  ASSERT_TRUE(store_->Commit());
  EXPECT_EQ(store_->UnfinishedJobs()->size(), 1u);
  auto all = *store_->ListJobs(true, 10);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, b);
  EXPECT_EQ(all[0].spec, std::string("\0spec", 5));
  EXPECT_EQ(store_->ListJobs(true, 1)->size(), 1u);
  ASSERT_EQ(store_->ListJobs(false, 10)->size(), 1u);
}

TEST_P(StoreTest, PagesOfJobsGoBackToTheFirstOne) {
  std::vector<uint64_t> ids;
  for (int i = 0; i < 7; ++i) ids.push_back(Insert(Row(i % 2 == 0 ? "anna@h" : "ben@h", std::to_string(i))));
  std::vector<uint64_t> seen;
  JobFilter filter;
  filter.user = "anna@h";
  do {
    const auto page = store_->FindJobs(filter, 2);
    ASSERT_TRUE(page);
    for (const JobRow& job : page->jobs) seen.push_back(job.id);
    filter.before = page->next;
  } while (filter.before != 0);
  EXPECT_EQ(seen, (std::vector<uint64_t>{ids[6], ids[4], ids[2], ids[0]}));
  filter = {};
  filter.state = v1::RUNNING;
  EXPECT_TRUE(store_->FindJobs(filter, 10)->jobs.empty());
  filter.state = v1::PENDING;
  EXPECT_EQ(store_->FindJobs(filter, 10)->jobs.size(), 7u);
  EXPECT_EQ(store_->FindJobs(filter, 10)->next, 0u);
}

TEST_P(StoreTest, AnArrayIsOneRowAndItsElementsAreFound) {
  JobRow row = Row("anna@h", "r1");
  row.elements = 100;
  const uint64_t id = Insert(row);
  ArrayRow array;
  array.job = id;
  array.array.add_ranges()->set_last(99);
  array.left.Add(0, 100);
  array.held.Add(7);
  array.gated.Add(9);
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->InsertArray(array));
  array.left.Remove(0);
  array.next = 1;
  array.completed = 3;
  array.failed = 4;
  array.cancelled = 5;
  array.exit = "e";
  ASSERT_TRUE(store_->UpdateArray(array, false));
  ASSERT_TRUE(store_->Commit());
  JobRow element = Row("anna@h", "r2");
  element.array = id;
  element.array_index = 7;
  const uint64_t first = Insert(element);
  element.request_id = "r3";
  element.array_index = 8;
  const uint64_t second = Insert(element);
  Open();
  const std::vector<ArrayRow> arrays = *store_->UnfinishedArrays();
  ASSERT_EQ(arrays.size(), 1u);
  EXPECT_EQ(arrays[0].job, id);
  EXPECT_EQ(arrays[0].left, array.left) << "what began is left out by its number alone";
  EXPECT_EQ(arrays[0].held, array.held);
  EXPECT_EQ(arrays[0].gated, array.gated);
  EXPECT_EQ(arrays[0].array.ranges(0).last(), 99u);
  EXPECT_EQ(arrays[0].completed, 3u);
  EXPECT_EQ(arrays[0].failed, 4u);
  EXPECT_EQ(arrays[0].cancelled, 5u);
  EXPECT_EQ(arrays[0].exit, "e");
  EXPECT_EQ(*store_->FindElement(id, 8), second);
  EXPECT_FALSE(*store_->FindElement(id, 9));
  EXPECT_FALSE(*store_->FindElement(0, 0));
  EXPECT_EQ((*store_->GetJob(first))->array, id);
  EXPECT_EQ((*store_->GetJob(first))->array_index, 7u);
  EXPECT_EQ((*store_->GetJob(id))->elements, 100u);
  EXPECT_EQ(store_->ListJobs(false, 10)->size(), 1u) << "elements that wait are not listed";
  EXPECT_EQ(store_->ListJobs(true, 10)->size(), 3u);

  JobRow ended = **store_->GetJob(second);
  ended.state = v1::COMPLETED;
  ended.ended_us = 1;
  ended.parked = true;
  JobRow whole = **store_->GetJob(id);
  whole.state = v1::FAILED;
  whole.ended_us = 1;
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(store_->UpdateJob(ended));
  ASSERT_TRUE(store_->UpdateJob(whole));
  ASSERT_TRUE(store_->UpdateArray(array, true));
  ASSERT_TRUE(store_->Commit());
  EXPECT_TRUE((*store_->GetJob(second))->parked);
  const std::vector<ElementEnd> ends = *store_->EndedElements(id);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].index, 8u);
  EXPECT_TRUE(ends[0].completed);
  EXPECT_TRUE(store_->UnfinishedArrays()->empty());
  EXPECT_EQ((*store_->GetArray(id))->left, array.left);
  EXPECT_EQ(*store_->StateOfJob(id), v1::FAILED);
  EXPECT_FALSE(*store_->StateOfJob(4711));
  EXPECT_EQ(store_->EndedJobs(0, 10, false)->size(), 1u) << "its elements are accounted, not the array";
  // An element can have only one job.
  ASSERT_TRUE(store_->Begin());
  EXPECT_FALSE(store_->InsertJob(element));
  store_->Rollback();
}

TEST_F(SqliteStoreTest, ASecondOwnerIsRefused) {
  auto second = SqliteStore::Open(directory_.path() + "/vrun.db");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kExists);
}

TEST_F(SqliteStoreTest, AFullDiskIsAnErrorAndGoesAwayWithSpace) {
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

// Until version 2 a job had one place, in its own row.
TEST_F(SqliteStoreTest, AnOlderDatabaseKeepsItsJobsAndTheirPlaces) {
  const std::string path = directory_.path() + "/old.db";
  sqlite3* old = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &old), SQLITE_OK);
  const char* kVersion2 = R"(
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  user TEXT NOT NULL, request_id TEXT NOT NULL, home_id BLOB NOT NULL, pool TEXT NOT NULL, name TEXT NOT NULL,
  spec BLOB NOT NULL,
  milli_cpus INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, gpus INTEGER NOT NULL, gpu_type TEXT NOT NULL,
  state INTEGER NOT NULL, reason TEXT NOT NULL,
  submitted_us INTEGER NOT NULL, started_us INTEGER NOT NULL, ended_us INTEGER NOT NULL,
  attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, node TEXT NOT NULL, token BLOB NOT NULL, exit BLOB NOT NULL,
  cancelled INTEGER NOT NULL, cancel_signal INTEGER NOT NULL,
  scheduling BLOB NOT NULL DEFAULT x'', gpu_mask INTEGER NOT NULL DEFAULT 0, stopping TEXT NOT NULL DEFAULT '',
  stopping_us INTEGER NOT NULL DEFAULT 0, preemptions INTEGER NOT NULL DEFAULT 0,
  leaving_attempt INTEGER NOT NULL DEFAULT 0, leaving_epoch INTEGER NOT NULL DEFAULT 0,
  leaving_node TEXT NOT NULL DEFAULT '', leaving_token BLOB NOT NULL DEFAULT x'',
  UNIQUE (user, request_id));
CREATE INDEX jobs_unfinished ON jobs (id) WHERE ended_us = 0;
CREATE TABLE attempts (
  job INTEGER NOT NULL, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, node TEXT NOT NULL, state INTEGER NOT NULL,
  placed_us INTEGER NOT NULL, ended_us INTEGER NOT NULL, exit BLOB NOT NULL, reason TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE INDEX attempts_epoch ON attempts (epoch);
CREATE TABLE nodes (
  name TEXT PRIMARY KEY, pool TEXT NOT NULL, total BLOB NOT NULL, addresses TEXT NOT NULL, version TEXT NOT NULL,
  boot_id INTEGER NOT NULL, last_seen_us INTEGER NOT NULL, lost INTEGER NOT NULL, draining INTEGER NOT NULL)
  WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX jobs_ended ON jobs (id) WHERE ended_us != 0;
CREATE TABLE journal (id INTEGER PRIMARY KEY, steps BLOB NOT NULL);
INSERT INTO jobs VALUES
  (1,'anna','r1',x'01','local','runs',x'05',1000,0,2,'',3,'',1,2,0, 1,7,'n1',x'aa',x'', 0,0,x'',3,'',0,0, 0,0,'',x''),
  (2,'anna','r2',x'01','local','left',x'05',1000,0,0,'',1,'',1,0,0, 1,8,'',x'',x'', 0,0,x'',0,'',0,1, 1,8,'n2',x'bb'),
  (3,'anna','r3',x'01','local','over',x'05',1000,0,0,'',5,'',1,2,9, 1,9,'n3',x'cc',x'dd', 0,0,x'',0,'',0,0, 0,0,'',x'');
INSERT INTO attempts VALUES (1,1,7,'n1',3,1,0,x'',''), (2,1,8,'n2',11,1,5,x'ee','why'), (3,1,9,'n3',5,1,9,x'dd','');
PRAGMA user_version=2;
)";
  ASSERT_EQ(sqlite3_exec(old, kVersion2, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(old);
  sqlite3_close(old);
  auto opened = SqliteStore::Open(path);
  ASSERT_TRUE(opened) << opened.error().message();
  const std::vector<JobRow> jobs = *(*opened)->UnfinishedJobs();
  ASSERT_EQ(jobs.size(), 2u);
  ASSERT_EQ(jobs[0].pods.size(), 1u);
  EXPECT_EQ(jobs[0].pods[0].node, "n1");
  EXPECT_EQ(jobs[0].pods[0].token, "\xaa");
  EXPECT_EQ(jobs[0].pods[0].gpu_mask, 3u);
  EXPECT_EQ(jobs[0].pods[0].state, v1::RUNNING);
  EXPECT_EQ(jobs[0].pods[0].held_since_us, 1) << "it is accounted from its placement on";
  EXPECT_TRUE(jobs[1].pods.empty()) << "it waits";
  ASSERT_EQ(jobs[1].leaving.pods.size(), 1u);
  EXPECT_EQ(jobs[1].leaving.pods[0].token, "\xbb");
  EXPECT_EQ(jobs[1].leaving.pods[0].node, "n2");
  const JobRow over = **(*opened)->GetJob(3);
  ASSERT_EQ(over.pods.size(), 1u);
  EXPECT_EQ(over.pods[0].exit, "\xdd");
  EXPECT_EQ(over.spec, "\x05") << "sealed now";
  EXPECT_EQ((*opened)->Attempts(2)->at(0).pods.at(0).exit, "\xee");
  EXPECT_EQ(*(*opened)->LastEpoch(), 9u);
}

TEST_P(StoreTest, WhatAPodHadBeforeTheClockWasSetCanBeLost) {
  const Holder anna{"anna@h", "vision", "p", "local", "h100"};
  IntervalRow row;
  row.job = 1;
  row.attempt = 1;
  row.ended = IntervalEnd::kContinued;
  ASSERT_TRUE(store_->Begin());
  for (const int64_t start : {10, 30, 50}) {
    row.start_us = start;
    row.end_us = start + 10;
    ASSERT_TRUE(store_->AddInterval(anna, row));
  }
  row.pod = 1;  // another one
  ASSERT_TRUE(store_->AddInterval(anna, row));
  row.pod = 0;
  row.ended = IntervalEnd::kFailed;
  ASSERT_TRUE(store_->LoseEarlier(row, 35));
  ASSERT_TRUE(store_->Commit());
  std::vector<std::pair<IntervalEnd, int64_t>> ends;
  for (const auto& [holder, interval] : *store_->IntervalsOf(1)) ends.emplace_back(interval.ended, interval.lost_us);
  using Ends = std::vector<std::pair<IntervalEnd, int64_t>>;
  EXPECT_EQ(ends, (Ends{{IntervalEnd::kContinued, 0},
                        {IntervalEnd::kFailed, 5},
                        {IntervalEnd::kFailed, 10},
                        {IntervalEnd::kContinued, 0}}));
}

TEST_P(StoreTest, IntervalsAreFoundByTheirTimeAndByTheirJob) {
  const Holder anna{"anna@h", "vision", "p", "local", "h100"}, bob{"bob@h", "speech", "", "local", ""};
  const auto add = [&](const Holder& holder, uint64_t job, int64_t start, int64_t end) {
    IntervalRow row;
    row.job = job;
    row.attempt = 1;
    row.start_us = start;
    row.end_us = end;
    row.node = "n1";
    row.gpu_milli = 2500;
    row.milli_cpus = 1000;
    row.memory_bytes = int64_t{1} << 40;
    row.ended = IntervalEnd::kPreempted;
    row.lost_us = 3;
    row.busy_us = 20;
    row.metered_us = 10;
    row.waited_us = 7;
    return store_->AddInterval(holder, row);
  };
  EXPECT_EQ(*store_->FirstInterval(), 0);
  EXPECT_EQ(*store_->LastInterval(), 0);
  EXPECT_FALSE(store_->GetAccountingClock()->has_value());
  ASSERT_TRUE(store_->Begin());
  ASSERT_TRUE(add(anna, 1, 10, 20));
  ASSERT_TRUE(add(anna, 1, 20, 50));
  ASSERT_TRUE(add(bob, 2, 30, 40));
  ASSERT_TRUE(add(bob, 3, 40, 40));
  ASSERT_TRUE(store_->PutAccountingClock({"boot id", 5, 50}));
  ASSERT_TRUE(store_->PutAccountingClock({"boot id\n", 6, 60}));
  ASSERT_TRUE(store_->Commit());
  ASSERT_TRUE(store_->Begin());
  EXPECT_FALSE(add(anna, 1, 10, 30)) << "it is accounted already";
  store_->Rollback();
  Open();
  const auto between = [&](int64_t from, int64_t to) {
    std::vector<std::pair<std::string, int64_t>> found;
    EXPECT_TRUE(store_->ReadIntervals(from, to, [&](const Holder& holder, const IntervalRow& row) {
      found.emplace_back(holder.user, row.start_us);
    }));
    return found;
  };
  using Found = std::vector<std::pair<std::string, int64_t>>;
  EXPECT_EQ(between(0, 100), (Found{{"anna@h", 10}, {"bob@h", 30}, {"bob@h", 40}, {"anna@h", 20}}));
  EXPECT_EQ(between(20, 30), (Found{{"anna@h", 20}}));
  EXPECT_EQ(between(40, 41), (Found{{"bob@h", 40}, {"anna@h", 20}}));
  EXPECT_EQ(between(50, 100), Found());
  const auto of_job = *store_->IntervalsOf(1);
  ASSERT_EQ(of_job.size(), 2u);
  EXPECT_EQ(of_job[0].first, anna);
  EXPECT_EQ(of_job[0].second.node, "n1");
  EXPECT_EQ(of_job[0].second.gpu_milli, 2500);
  EXPECT_EQ(of_job[0].second.ended, IntervalEnd::kPreempted);
  EXPECT_EQ(of_job[0].second.lost_us, 3);
  EXPECT_EQ(of_job[0].second.busy_us, 20);
  EXPECT_EQ(of_job[1].second.busy_us, 0) << "the pod had used no more since";
  EXPECT_EQ(of_job[0].second.waited_us, 7);
  EXPECT_EQ(*store_->FirstInterval(), 10);
  EXPECT_EQ(*store_->LastInterval(), 50);
  const AccountingClock clock = **store_->GetAccountingClock();
  EXPECT_EQ(clock.boot_id, "boot id\n");
  EXPECT_EQ(clock.monotonic, 6);
  EXPECT_EQ(clock.at_us, 60);
}

TEST_F(SqliteStoreTest, AnEnvironmentIsSealedAndGoneWithItsJob) {
  v1::SubmitRequest request;
  v1::Command* command = request.mutable_spec()->mutable_command();
  command->add_argv("run");
  command->add_environment("TOKEN=zq9-value");
  command->set_script("#!/bin/sh zq9-value");
  JobRow row = Row("anna", "r1");
  row.spec = request.SerializeAsString();
  const uint64_t id = Insert(row);
  const auto is_on_disk = [&] {
    for (const char* file : {"/vrun.db", "/vrun.db-wal"}) {
      if (ReadFile(directory_.path() + file).value_or("").find("zq9-value") != std::string::npos) return true;
    }
    return false;
  };
  EXPECT_FALSE(is_on_disk());
  Open();
  JobRow job = **store_->GetJob(id);
  EXPECT_EQ(job.spec, row.spec);
  EXPECT_EQ(store_->ListJobs(true, 10)->at(0).spec, row.spec);
  job.state = v1::COMPLETED;
  job.ended_us = 7;
  ASSERT_TRUE(store_->Begin() && store_->UpdateJob(job) && store_->Commit());
  v1::SubmitRequest left;
  ASSERT_TRUE(left.ParseFromString((**store_->GetJob(id)).spec));
  EXPECT_EQ(left.spec().command().argv(0), "run");
  EXPECT_EQ(left.spec().command().environment_size(), 0);
  EXPECT_EQ(left.spec().command().script(), "");
  EXPECT_FALSE(is_on_disk());
  // A row of another's request tells nothing, and a lost key is an error.
  store_.reset();
  sqlite3* raw = nullptr;
  ASSERT_EQ(sqlite3_open((directory_.path() + "/vrun.db").c_str(), &raw), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(raw, "UPDATE jobs SET user='eve'", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(raw);
  Open();
  EXPECT_EQ(store_->GetJob(id).error().code(), Code::kCorrupt);
  store_.reset();
  ASSERT_EQ(::unlink((directory_.path() + "/vrun.db.key").c_str()), 0);
  EXPECT_EQ(SqliteStore::Open(directory_.path() + "/vrun.db").error().code(), Code::kNotFound);
}

TEST_F(SqliteStoreTest, RubbishIsNotADatabase) {
  ASSERT_TRUE(WriteFileAtomic(directory_.path() + "/rubbish.db", std::string(10'000, 'r'), 0600));
  EXPECT_EQ(SqliteStore::Open(directory_.path() + "/rubbish.db").error().code(), Code::kCorrupt);
}

TEST_P(StoreTest, OldJobsGoWithAllOfTheirRowsAndDaysAndMessagesStay) {
  JobRow row = Row("anna", "old");
  row.notify.mutable_who()->set_mail("a@b");
  const uint64_t id = Insert(row);
  const Holder holder{"anna", "lab", "", "local", "h100"};
  ASSERT_TRUE(store_->Begin());
  JobRow job = **store_->GetJob(id);
  EXPECT_EQ(job.notify.who().mail(), "a@b");
  job.ended_us = 100;
  job.state = v1::COMPLETED;
  ASSERT_TRUE(store_->UpdateJob(job));
  ASSERT_TRUE(store_->PutAttempt({id, 1, 77, v1::COMPLETED, 1, 2}));
  IntervalRow interval;
  interval.job = id;
  interval.start_us = 40;
  interval.end_us = 90;
  ASSERT_TRUE(store_->AddInterval(holder, interval));
  EXPECT_TRUE(store_->OldJobs(100, {}, 10)->empty());
  const auto old = store_->OldJobs(101, {}, 10);
  ASSERT_EQ(old->size(), 1u);
  EXPECT_TRUE(store_->OldJobs(101, (*old)[0], 10)->empty());
  ASSERT_TRUE(store_->PutDay(holder, {0, "one"}));
  ASSERT_TRUE(store_->PutDay(holder, {0, "two"}));
  ASSERT_TRUE(store_->DropJob(id));
  const uint64_t first = *store_->AddMessage("m1"), second = *store_->AddMessage(std::string("m\0", 2));
  EXPECT_LT(first, second);
  ASSERT_TRUE(store_->DropMessage(first));
  ASSERT_TRUE(store_->PutNote("n", "v"));
  ASSERT_TRUE(store_->Commit());
  Open();
  EXPECT_FALSE(store_->GetJob(id)->has_value());
  EXPECT_TRUE(store_->Attempts(id)->empty());
  EXPECT_TRUE(store_->IntervalsOf(id)->empty());
  EXPECT_EQ(*store_->LastEpoch(), 77u);
  EXPECT_EQ(*store_->FirstInterval(), 40);
  EXPECT_EQ(*store_->LastInterval(), 90);
  EXPECT_EQ(*store_->GetDay(holder, 0), "two");
  ASSERT_EQ(store_->Messages()->size(), 1u);
  EXPECT_EQ((*store_->Messages())[0], std::pair(second, std::string("m\0", 2)));
  EXPECT_EQ(*store_->GetNote("n"), "v");
}

}  // namespace
}  // namespace vrun::control
