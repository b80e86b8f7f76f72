// SPDX-License-Identifier: Apache-2.0
// The durable state of the controller, whatever keeps it. One contract test suite runs on every implementation.
//
// One thread. Changes are made between Begin and Commit; after Commit they survive any crash. Once a statement has
// failed the transaction cannot be committed any more: failure() says why, and everything else fails until Rollback.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/common.pb.h"
#include "sched/sched.h"

namespace vrun::control {

struct JobRow {
  uint64_t id = 0;
  std::string user;
  std::string request_id;
  std::string home_id;
  std::string pool;
  std::string name;
  sched::Resources needs;  // as accounted
  v1::JobState state = v1::PENDING;
  std::string reason;  // why it ended so; "" when the exit record says it all
  int64_t submitted_us = 0;
  int64_t started_us = 0;  // 0: not yet
  int64_t ended_us = 0;
  uint32_t attempt = 0;  // 0: never placed
  uint64_t epoch = 0;
  std::string node;
  std::string token;
  std::string exit;        // serialized ExitRecord; "": none
  bool cancelled = false;  // somebody has asked for its end
  int32_t cancel_signal = 0;
  std::string spec;  // serialized SubmitRequest; filled by reads only where it says so
};

struct AttemptRow {
  uint64_t job = 0;
  uint32_t attempt = 0;
  uint64_t epoch = 0;
  std::string node;
  v1::JobState state = v1::STARTING;
  int64_t placed_us = 0;
  int64_t ended_us = 0;
  std::string exit;
};

struct NodeRow {
  std::string name;
  std::string pool;
  std::string total;  // serialized v1.Resources
  std::vector<std::string> addresses;
  std::string version;
  uint64_t boot_id = 0;
  int64_t last_seen_us = 0;
  bool lost = false;
  bool draining = false;
};

class Store {
 public:
  virtual ~Store() = default;

  virtual Status Begin() = 0;
  virtual Status Commit() = 0;  // on an error nothing was changed
  virtual void Rollback() = 0;
  virtual const std::optional<Error>& failure() const = 0;

  virtual Result<uint64_t> InsertJob(const JobRow& job) = 0;  // with its spec; the id, never used before
  virtual Status UpdateJob(const JobRow& job) = 0;            // what changes in a job's life
  virtual Status PutAttempt(const AttemptRow& attempt) = 0;
  virtual Status PutNode(const NodeRow& node) = 0;

  virtual Result<std::optional<uint64_t>> FindRequest(const std::string& user, const std::string& request_id) = 0;
  virtual Result<std::optional<JobRow>> GetJob(uint64_t id) = 0;  // with its spec
  virtual Result<std::vector<JobRow>> UnfinishedJobs() = 0;       // in order of ids
  // With their specs, newest first, at most `limit`. home_id "": any.
  virtual Result<std::vector<JobRow>> ListJobs(bool ended_too, const std::string& home_id, int limit) = 0;
  virtual Result<std::vector<NodeRow>> Nodes() = 0;
  virtual Result<uint64_t> LastEpoch() = 0;
};

}  // namespace vrun::control
