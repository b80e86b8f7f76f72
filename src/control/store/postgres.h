// SPDX-License-Identifier: Apache-2.0
// The store in a PostgreSQL database (14 or later), for controllers of which one is active and others stand by.
//
// One controller at a time has the database: its session holds an advisory lock, and it says every second that it is
// alive (Beat). One that stands by asks for the lock. If the active one has said nothing for kStaleMicros (it was
// stopped, or its machine cannot be reached), the one that stands by ends its session on the server, which frees the
// lock. So whoever has lost the lock has lost its session too, and cannot write: that is the fence. A session that is
// lost is not made again: the controller ends, and stands by when it is started again.
//
// libpq is loaded when a store is opened, so that programs start without it. Sessions have synchronous_commit=on.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "control/store/sql.h"
#include "control/store/sql_store.h"

namespace vrun::control {

struct PostgresOptions {
  std::string url;       // as libpq takes it: postgresql://USER@HOST:PORT/DATABASE, or keywords
  std::string holder;    // who this controller is, for people
  std::string key_file;  // of the requests of jobs (sealed_spec.h); the same for all controllers of the database
  // Waits until the database is there and no other controller has it. Called every quarter of a second meanwhile, and
  // may take that long; true: give up (kAborted). Null: does not wait.
  std::function<bool()> wait;
};

// A session of its own, for backups (backup/). `holder`: it takes the lock first, as a controller does. kExists:
// another has it for two seconds. A controller that stands by takes the lock away again unless BeatPostgres is called
// every second, on another session. `holder` "": it does not ask, and is to read only.
Result<std::unique_ptr<sql::Database>> ConnectPostgres(const std::string& url, const std::string& holder);
Status BeatPostgres(sql::Database* database);
sql::Schema PostgresSchema();

class PostgresStore : public SqlStore {
 public:
  static constexpr int64_t kStaleMicros = 3'000'000;

  // Creates or migrates the schema. kExists: another controller has the database. kUnsupported: a newer version made
  // it, or libpq is not there. kUnavailable: it cannot be reached.
  static Result<std::unique_ptr<PostgresStore>> Open(const PostgresOptions& options);

  // To be called every second. On an error the database is lost for good: whoever has this store must end.
  Status Beat();
  // How many controllers have had the database, this one included.
  uint64_t term() const;

 private:
  class Connection;
  explicit PostgresStore(Connection* connection);  // which it takes
  Connection* const connection_;
  friend Result<std::unique_ptr<sql::Database>> ConnectPostgres(const std::string& url, const std::string& holder);
};

// For tests: a statement as PostgreSQL gets it.
std::string ToPostgres(std::string_view sql);

}  // namespace vrun::control
