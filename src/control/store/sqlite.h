// SPDX-License-Identifier: Apache-2.0
// The store in one SQLite file: WAL, synchronous=FULL, so one fsync per transaction.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "control/store/sealed_spec.h"
#include "control/store/store.h"

namespace vrun::control {

class SqliteStore : public Store {
 public:
  // Opens or creates the file and migrates its schema. kExists: another process has it open. kUnsupported: a newer
  // version wrote it. The key of the requests of jobs (sealed_spec.h) is in the file PATH.key, which is made with the
  // database.
  static Result<std::unique_ptr<SqliteStore>> Open(const std::string& path);
  ~SqliteStore() override;

  // For tests: the disk is full once the file has this many pages. 0: no limit.
  void LimitPages(int pages);

  Status Begin() override;
  Status Commit() override;
  void Rollback() override;
  const std::optional<Error>& failure() const override { return failure_; }
  Result<uint64_t> InsertJob(const JobRow& job) override;
  Status UpdateJob(const JobRow& job) override;
  Status PutPod(uint64_t job, uint32_t attempt, const PodRow& pod) override;
  Status PutAttempt(const AttemptRow& attempt) override;
  Status InsertArray(const ArrayRow& array) override;
  Status UpdateArray(const ArrayRow& array, bool sets) override;
  Status PutNode(const NodeRow& node) override;
  Status PutMaintenance(const MaintenanceRow& window) override;
  Status DropMaintenance(const std::string& name) override;
  Status AppendJournal(const std::string& row) override;
  Status ClearJournal() override;
  Result<std::optional<uint64_t>> FindRequest(const std::string& user, const std::string& request_id) override;
  Result<std::optional<JobRow>> GetJob(uint64_t id) override;
  Result<std::vector<JobRow>> UnfinishedJobs() override;
  Result<std::optional<v1::JobState>> StateOfJob(uint64_t id) override;
  Result<std::optional<ArrayRow>> GetArray(uint64_t job) override;
  Result<std::vector<ArrayRow>> UnfinishedArrays() override;
  Result<std::optional<uint64_t>> FindElement(uint64_t array, uint32_t index) override;
  Result<std::vector<ElementEnd>> EndedElements(uint64_t array) override;
  Result<std::vector<JobRow>> ListJobs(bool ended_too, int limit) override;
  Result<std::vector<NodeRow>> Nodes() override;
  Result<std::vector<MaintenanceRow>> Maintenance() override;
  Result<uint64_t> LastEpoch() override;
  Result<std::vector<AttemptRow>> Attempts(uint64_t job) override;
  Result<std::vector<JobRow>> EndedJobs(uint64_t after, int limit, bool newest) override;
  Result<std::vector<std::string>> Journal() override;

 private:
  struct Database;
  class Statement;
  explicit SqliteStore(std::unique_ptr<Database> database);
  Status Migrate();
  Status OpenKey(const std::string& path);
  // Seals what an earlier version has stored in plain text.
  Status SealOldSpecs();
  Result<std::string> ReadSpec(Statement& statement, const JobRow& job);
  Status DropEnvironment(const JobRow& job);
  Result<std::vector<PodRow>> Pods(uint64_t job, uint32_t attempt);
  Status ReadPods(JobRow* job, uint32_t count);
  // Reads all rows of the statement and then the pods of the jobs.
  Result<std::vector<JobRow>> ReadJobs(Statement& statement, bool with_spec);
  Result<std::vector<ArrayRow>> ReadArrays(Statement& statement);
  Error Fail(Error error);  // stores the first error of a transaction

  std::unique_ptr<Database> database_;
  std::optional<SealedSpecs> specs_;  // after OpenKey
  std::optional<Error> failure_;
};

}  // namespace vrun::control
