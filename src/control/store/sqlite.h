// SPDX-License-Identifier: Apache-2.0
// The store in one SQLite file: WAL, synchronous=FULL, so one fsync per transaction. One process has it as its store;
// others may read it meanwhile.
#pragma once

#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "control/store/sql.h"
#include "control/store/sql_store.h"

namespace vrun::control {

// A connection of its own, for backups (backup/): beside a store that has the file open, or to make one. `make`: the
// file is not there yet, and is safe on the disk only after FinishSqlite. Otherwise it only reads, and a file that is
// not there is kNotFound.
Result<std::unique_ptr<sql::Database>> OpenSqlite(const std::string& path, bool make);
Status FinishSqlite(std::unique_ptr<sql::Database> database, const std::string& path);
sql::Schema SqliteSchema();

class SqliteStore : public SqlStore {
 public:
  // Opens or creates the file and migrates its schema. kExists: another process has it open, as the lock of PATH.lock
  // says. kUnsupported: a newer version wrote it. The key of the requests of jobs (sealed_spec.h) is in the file
  // PATH.key.
  static Result<std::unique_ptr<SqliteStore>> Open(const std::string& path);

  // For tests: the disk is full once the file has this many pages. 0: no limit.
  void LimitPages(int pages);

 private:
  class Connection;
  SqliteStore(Connection* connection, UniqueFd lock);  // which it takes
  const UniqueFd lock_;
  Connection* const connection_;
  friend Result<std::unique_ptr<sql::Database>> OpenSqlite(const std::string& path, bool make);
};

}  // namespace vrun::control
