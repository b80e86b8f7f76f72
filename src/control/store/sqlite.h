// SPDX-License-Identifier: Apache-2.0
// The store in one SQLite file: WAL, synchronous=FULL, so one fsync per transaction.
#pragma once

#include <memory>
#include <string>

#include "control/store/sql_store.h"

namespace vrun::control {

class SqliteStore : public SqlStore {
 public:
  // Opens or creates the file and migrates its schema. kExists: another process has it open. kUnsupported: a newer
  // version wrote it. The key of the requests of jobs (sealed_spec.h) is in the file PATH.key.
  static Result<std::unique_ptr<SqliteStore>> Open(const std::string& path);

  // For tests: the disk is full once the file has this many pages. 0: no limit.
  void LimitPages(int pages);

 private:
  class Connection;
  explicit SqliteStore(Connection* connection);  // which it takes
  Connection* const connection_;
};

}  // namespace vrun::control
