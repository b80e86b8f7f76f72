// SPDX-License-Identifier: Apache-2.0
// A store in a SQL database: what it asks is the same for all of them (sql.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "control/store/sealed_spec.h"
#include "control/store/sql.h"
#include "control/store/store.h"

namespace vrun::control {

class SqlStore : public Store {
 public:
  ~SqlStore() override;

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
  Status AddInterval(const Holder& holder, const IntervalRow& interval) override;
  Status LoseEarlier(const IntervalRow& last, int64_t from) override;
  Status PutAccountingClock(const AccountingClock& clock) override;
  Status PutDay(const Holder& holder, const DayRow& day) override;
  Status DropJob(uint64_t id) override;
  Result<uint64_t> AddMessage(const std::string& message) override;
  Status DropMessage(uint64_t number) override;
  Status PutNote(const std::string& name, const std::string& value) override;
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
  Result<JobPage> FindJobs(const JobFilter& filter, int limit) override;
  Result<std::vector<NodeRow>> Nodes() override;
  Result<std::vector<MaintenanceRow>> Maintenance() override;
  Result<uint64_t> LastEpoch() override;
  Result<std::vector<AttemptRow>> Attempts(uint64_t job) override;
  Result<std::vector<JobRow>> EndedJobs(uint64_t after, int limit, bool newest) override;
  Result<std::vector<std::string>> Journal() override;
  Status ReadIntervals(int64_t from, int64_t to,
                       const std::function<void(const Holder&, const IntervalRow&)>& each) override;
  Result<std::vector<std::pair<Holder, IntervalRow>>> IntervalsOf(uint64_t job) override;
  Result<int64_t> FirstInterval() override;
  Result<int64_t> LastInterval() override;
  Result<std::optional<AccountingClock>> GetAccountingClock() override;
  Result<std::string> NameOfJob(uint64_t id) override;
  Status ReadDays(int64_t from, int64_t to, const std::function<void(const Holder&, const DayRow&)>& each) override;
  Result<std::string> GetDay(const Holder& holder, int64_t day) override;
  Result<std::vector<OldJob>> OldJobs(int64_t ended_before, const OldJob& after, int limit) override;
  Result<bool> HasElements(uint64_t array) override;
  Result<std::vector<std::pair<uint64_t, std::string>>> Messages() override;
  Result<std::string> GetNote(const std::string& name) override;

 protected:
  // The schema is there and of this version.
  explicit SqlStore(std::unique_ptr<sql::Database> database);
  // Once, before anything else: the key of the requests of jobs (sealed_spec.h) is in this file, which is made with the
  // database. True: requests that an earlier version had stored in plain text are sealed now.
  Result<bool> OpenKey(const std::string& path);

 private:
  class Statement;
  Result<bool> SealOldSpecs();
  Result<std::string> ReadSpec(Statement& statement, const JobRow& job);
  Status DropEnvironment(const JobRow& job);
  Result<std::vector<PodRow>> Pods(uint64_t job, uint32_t attempt);
  Status ReadPods(JobRow* job, uint32_t count);
  // Reads all rows of the statement and then the pods of the jobs.
  Result<std::vector<JobRow>> ReadJobs(Statement& statement, bool with_spec);
  Result<std::vector<ArrayRow>> ReadArrays(Statement& statement);
  Result<int64_t> IdOf(const Holder& holder);  // makes it
  Result<std::map<int64_t, Holder>> Holders();
  Result<int64_t> NumberNote(const std::string& name);  // 0: there is none
  // Keeps what is asked of all attempts and intervals, and would change without those of this job.
  Status KeepExtremes(uint64_t job);
  Error Fail(Error error);  // stores the first error of a transaction

  const std::unique_ptr<sql::Database> database_;
  std::optional<SealedSpecs> specs_;  // after OpenKey
  std::optional<Error> failure_;
};

}  // namespace vrun::control
