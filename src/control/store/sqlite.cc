// SPDX-License-Identifier: Apache-2.0
#include "control/store/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string_view>

#include "base/escape.h"
#include "base/files.h"
#include "base/io/file_lock.h"
#include "base/unique_fd.h"
#include "control/store/sql.h"

namespace vrun::control {
namespace {

// Each step migrates the schema to the next version. Once released, a step is never changed; new ones are appended.
constexpr const char* kMigrations[] = {
    R"(
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  user TEXT NOT NULL, request_id TEXT NOT NULL, home_id BLOB NOT NULL, pool TEXT NOT NULL, name TEXT NOT NULL,
  spec BLOB NOT NULL,
  milli_cpus INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, gpus INTEGER NOT NULL, gpu_type TEXT NOT NULL,
  state INTEGER NOT NULL, reason TEXT NOT NULL,
  submitted_us INTEGER NOT NULL, started_us INTEGER NOT NULL, ended_us INTEGER NOT NULL,
  attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, node TEXT NOT NULL, token BLOB NOT NULL, exit BLOB NOT NULL,
  cancelled INTEGER NOT NULL, cancel_signal INTEGER NOT NULL,
  UNIQUE (user, request_id));
CREATE INDEX jobs_unfinished ON jobs (id) WHERE ended_us = 0;
CREATE TABLE attempts (
  job INTEGER NOT NULL, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, node TEXT NOT NULL, state INTEGER NOT NULL,
  placed_us INTEGER NOT NULL, ended_us INTEGER NOT NULL, exit BLOB NOT NULL,
  PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE INDEX attempts_epoch ON attempts (epoch);
CREATE TABLE nodes (
  name TEXT PRIMARY KEY, pool TEXT NOT NULL, total BLOB NOT NULL, addresses TEXT NOT NULL, version TEXT NOT NULL,
  boot_id INTEGER NOT NULL, last_seen_us INTEGER NOT NULL, lost INTEGER NOT NULL, draining INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
)",
    R"(
ALTER TABLE jobs ADD COLUMN scheduling BLOB NOT NULL DEFAULT x'';
ALTER TABLE jobs ADD COLUMN gpu_mask INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN stopping TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN stopping_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN preemptions INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN leaving_attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN leaving_epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN leaving_node TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN leaving_token BLOB NOT NULL DEFAULT x'';
ALTER TABLE attempts ADD COLUMN reason TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_ended ON jobs (id) WHERE ended_us != 0;
CREATE TABLE journal (id INTEGER PRIMARY KEY, steps BLOB NOT NULL);
)",
    // jobs.pods: number of pods of the present attempt. Until now every attempt had one. 4 is COMPLETING.
    R"(
CREATE TABLE pods (
  job INTEGER NOT NULL, attempt INTEGER NOT NULL, pod INTEGER NOT NULL, node TEXT NOT NULL, token BLOB NOT NULL,
  gpu_mask INTEGER NOT NULL, state INTEGER NOT NULL, ready INTEGER NOT NULL, exit BLOB NOT NULL,
  PRIMARY KEY (job, attempt, pod)) WITHOUT ROWID;
INSERT INTO pods SELECT job, attempt, 0, node, x'', 0, state, 0, exit FROM attempts;
INSERT OR REPLACE INTO pods SELECT id, attempt, 0, node, token, gpu_mask, state, 0, exit FROM jobs WHERE node != '';
UPDATE pods SET token = j.leaving_token, state = 4 FROM jobs j
  WHERE pods.job = j.id AND pods.attempt = j.leaving_attempt AND j.leaving_attempt != 0;
ALTER TABLE jobs ADD COLUMN gang BLOB NOT NULL DEFAULT x'';
ALTER TABLE jobs ADD COLUMN pods INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET pods = 1 WHERE node != '';
ALTER TABLE jobs ADD COLUMN ending INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN failure TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN failed_pod INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN failed_starts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN first_end_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs DROP COLUMN node;
ALTER TABLE jobs DROP COLUMN token;
ALTER TABLE jobs DROP COLUMN exit;
ALTER TABLE jobs DROP COLUMN gpu_mask;
ALTER TABLE jobs DROP COLUMN leaving_node;
ALTER TABLE jobs DROP COLUMN leaving_token;
ALTER TABLE attempts DROP COLUMN node;
ALTER TABLE attempts DROP COLUMN exit;
)",
    R"(
ALTER TABLE nodes ADD COLUMN facts BLOB NOT NULL DEFAULT x'';
ALTER TABLE nodes ADD COLUMN reason TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN saved_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN lost_us INTEGER NOT NULL DEFAULT 0;
CREATE TABLE maintenance (
  name TEXT PRIMARY KEY, nodes TEXT NOT NULL, from_us INTEGER NOT NULL, until_us INTEGER NOT NULL) WITHOUT ROWID;
)",
    R"(
ALTER TABLE jobs ADD COLUMN elements INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN array INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN array_index INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX jobs_elements ON jobs (array, array_index) WHERE array != 0;
CREATE INDEX jobs_arrays ON jobs (id) WHERE elements != 0 AND ended_us = 0;
CREATE TABLE arrays (
  job INTEGER PRIMARY KEY, array BLOB NOT NULL, waiting BLOB NOT NULL, next INTEGER NOT NULL, held BLOB NOT NULL,
  gated BLOB NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL, cancelled INTEGER NOT NULL,
  exit BLOB NOT NULL);
ALTER TABLE pods ADD COLUMN membership INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pods ADD COLUMN leaving TEXT NOT NULL DEFAULT '';
)",
    // gpu_needs: a serialized Resources.
    R"(
ALTER TABLE jobs ADD COLUMN gpu_needs BLOB NOT NULL DEFAULT x'';
ALTER TABLE jobs ADD COLUMN sharers INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN gpu_fault TEXT NOT NULL DEFAULT '';
ALTER TABLE pods ADD COLUMN mig_start INTEGER NOT NULL DEFAULT -1;
ALTER TABLE pods ADD COLUMN gpu_milli INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pods ADD COLUMN mig_profile TEXT NOT NULL DEFAULT '';
ALTER TABLE pods ADD COLUMN usage BLOB NOT NULL DEFAULT x'';
ALTER TABLE nodes ADD COLUMN health BLOB NOT NULL DEFAULT x'';
)",
    // Accounting begins with what runs. meta: accounting-clock.
    R"(
ALTER TABLE pods ADD COLUMN held_since_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN waits_since_us INTEGER NOT NULL DEFAULT 0;
UPDATE pods SET held_since_us = a.placed_us FROM jobs j, attempts a
  WHERE j.ended_us = 0 AND j.pods > 0 AND pods.job = j.id AND pods.attempt = j.attempt AND pods.state < 4
    AND a.job = j.id AND a.attempt = j.attempt;
CREATE TABLE holders (
  id INTEGER PRIMARY KEY, user TEXT NOT NULL, team TEXT NOT NULL, project TEXT NOT NULL, pool TEXT NOT NULL,
  gpu_type TEXT NOT NULL, UNIQUE (user, team, project, pool, gpu_type));
CREATE TABLE intervals (
  id INTEGER PRIMARY KEY, job INTEGER NOT NULL, attempt INTEGER NOT NULL, pod INTEGER NOT NULL,
  start_us INTEGER NOT NULL, end_us INTEGER NOT NULL, holder INTEGER NOT NULL REFERENCES holders (id),
  node TEXT NOT NULL, gpu_milli INTEGER NOT NULL, milli_cpus INTEGER NOT NULL, memory_bytes INTEGER NOT NULL,
  ended INTEGER NOT NULL, lost_us INTEGER NOT NULL, busy_us INTEGER NOT NULL, metered_us INTEGER NOT NULL,
  waited_us INTEGER NOT NULL, UNIQUE (job, attempt, pod, start_us));
CREATE INDEX intervals_end ON intervals (end_us, start_us);
CREATE INDEX intervals_start ON intervals (start_us);
)",
    // Messages, and what is left of jobs that were removed: a serialized DaySums for each day and holder.
    R"(
ALTER TABLE jobs ADD COLUMN notify BLOB NOT NULL DEFAULT x'';
CREATE INDEX jobs_by_end ON jobs (ended_us, id);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, message BLOB NOT NULL);
CREATE TABLE days (
  day_us INTEGER NOT NULL, holder INTEGER NOT NULL REFERENCES holders (id), sums BLOB NOT NULL,
  PRIMARY KEY (day_us, holder)) WITHOUT ROWID;
)"};
constexpr int kSchemaVersion = static_cast<int>(std::size(kMigrations));

Code CodeOf(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_NOMEM: return Code::kExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return Code::kExists;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Code::kCorrupt;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH: return Code::kDenied;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN: return Code::kUnavailable;
    default: return Code::kInternal;
  }
}

const char* Advice(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_FULL: return ": make room on the controller's disk and try again";
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN: return ": make the controller's state directory writable";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return ": restore the controller's database from a backup";
    case SQLITE_BUSY: return ": another process uses it";
    default: return ": see the controller's log";
  }
}

// `db`: may be null.
Error SqliteError(sqlite3* db, int code, std::string_view what) {
  std::string text =
      std::string(what) + ": " + (db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code)) + Advice(code);
  return Error(CodeOf(code), std::move(text));
}

class SqlitePrepared : public sql::Prepared {
 public:
  SqlitePrepared(sqlite3* handle, sqlite3_stmt* statement) : handle_(handle), statement_(statement) {}
  ~SqlitePrepared() override { sqlite3_finalize(statement_); }
  SqlitePrepared(const SqlitePrepared&) = delete;
  SqlitePrepared& operator=(const SqlitePrepared&) = delete;

  void BindInt(int64_t value) override {
    if (Bindable()) code_ = sqlite3_bind_int64(statement_, next_bind_, value);
  }
  void BindText(std::string_view value) override {
    if (Bindable())
      code_ = sqlite3_bind_text64(statement_, next_bind_, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8);
  }
  void BindBlob(std::string_view value) override {
    // A null pointer would bind NULL.
    if (Bindable())
      code_ = sqlite3_bind_blob64(statement_, next_bind_, value.data() != nullptr ? value.data() : "", value.size(),
                                  SQLITE_STATIC);
  }
  Result<bool> Step() override {
    if (code_ == SQLITE_OK) code_ = sqlite3_step(statement_);
    column_ = 0;
    if (code_ == SQLITE_ROW) {
      code_ = SQLITE_OK;
      return true;
    }
    if (code_ == SQLITE_DONE) return false;
    return SqliteError(handle_, code_, "state database");
  }
  int64_t Int() override { return sqlite3_column_int64(statement_, column_++); }
  std::string Bytes() override {
    const int c = column_++;
    const void* data = sqlite3_column_blob(statement_, c);
    return data == nullptr
               ? ""
               : std::string(static_cast<const char*>(data), static_cast<size_t>(sqlite3_column_bytes(statement_, c)));
  }
  void Reset() override {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
    code_ = SQLITE_OK;
    next_bind_ = column_ = 0;
  }

 private:
  bool Bindable() {
    ++next_bind_;
    return code_ == SQLITE_OK;
  }

  sqlite3* const handle_;
  sqlite3_stmt* const statement_;
  int code_ = SQLITE_OK;
  int next_bind_ = 0;
  int column_ = 0;
};

}  // namespace

class SqliteStore::Connection : public sql::Database {
 public:
  ~Connection() override {
    statements_.clear();
    sqlite3_close(handle);
  }
  Result<sql::Prepared*> Prepare(std::string_view sql) override {
    auto it = statements_.find(sql);
    if (it == statements_.end()) {
      sqlite3_stmt* made = nullptr;
      const int code = sqlite3_prepare_v3(handle, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                                          &made, nullptr);
      if (code != SQLITE_OK) return SqliteError(handle, code, "state database");
      it = statements_.emplace(std::string(sql), std::make_unique<SqlitePrepared>(handle, made)).first;
    }
    return it->second.get();
  }
  void Rollback() override {
    // Some errors have already ended the transaction.
    if (sqlite3_get_autocommit(handle) == 0) (void)sqlite3_exec(handle, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Status Run(const std::string& statements) override {
    const int code = sqlite3_exec(handle, statements.c_str(), nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? Status() : SqliteError(handle, code, "state database");
  }
  Status Migrate();

  sqlite3* handle = nullptr;

 private:
  std::map<std::string, std::unique_ptr<SqlitePrepared>, std::less<>> statements_;  // prepared once
};

SqliteStore::SqliteStore(Connection* connection, UniqueFd lock)
    : SqlStore(std::unique_ptr<sql::Database>(connection)), lock_(std::move(lock)), connection_(connection) {}

Result<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path) {
  auto database = std::make_unique<Connection>();
  const std::string what = "state database " + Escape(path);
  Result<UniqueFd> lock = LockFile(path + ".lock");
  if (!lock && lock.error().code() == Code::kExists) return Error(Code::kExists, what + ": another process uses it");
  if (!lock) return std::move(lock).error().With(what);
  // SQLite gives its other files the mode of this one.
  if (const UniqueFd made(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)); made) {
    static_cast<void>(::fchmod(made.get(), 0600));
  }
  int code = sqlite3_open_v2(path.c_str(), &database->handle,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
                             nullptr);
  if (code != SQLITE_OK) return SqliteError(database->handle, code, what);
  sqlite3_busy_timeout(database->handle, 2000);
  // FULL: every commit does an fsync.
  for (const char* pragma : {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA wal_autocheckpoint=2000",
                             "PRAGMA foreign_keys=ON", "PRAGMA secure_delete=ON"}) {
    code = sqlite3_exec(database->handle, pragma, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) return SqliteError(database->handle, code, what);
  }
  if (auto migrated = database->Migrate(); !migrated) return migrated.error().With(what);
  std::unique_ptr<SqliteStore> store(new SqliteStore(database.release(), *std::move(lock)));
  const Result<bool> sealed = store->OpenKey(path + ".key");
  if (!sealed) return sealed.error().With(what);
  // Earlier versions did not overwrite what they deleted.
  for (const char* sql : {"VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"}) {
    if (!*sealed) break;
    code = sqlite3_exec(store->connection_->handle, sql, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) return SqliteError(store->connection_->handle, code, "seal the requests of jobs");
  }
  return store;
}

Status SqliteStore::Connection::Migrate() {
  int64_t version = 0;
  {
    VRUN_ASSIGN(sql::Prepared * read, Prepare("PRAGMA user_version"));
    VRUN_ASSIGN([[maybe_unused]] bool row, read->Step());
    version = read->Int();
    read->Reset();
  }
  if (version > kSchemaVersion) {
    return Error(Code::kUnsupported, "its schema is version " + std::to_string(version) + ", this program knows " +
                                         std::to_string(kSchemaVersion) + ": use the newer vrund");
  }
  for (int64_t v = version; v < kSchemaVersion; ++v) {
    std::string sql =
        std::string("BEGIN IMMEDIATE;") + kMigrations[v] + "PRAGMA user_version=" + std::to_string(v + 1) + ";COMMIT;";
    int code = sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) {
      Error error = SqliteError(handle, code, "bring the schema up to date");
      Rollback();
      return error;
    }
  }
  return {};
}

sql::Schema SqliteSchema() { return {1, kMigrations}; }

Result<std::unique_ptr<sql::Database>> OpenSqlite(const std::string& path, bool make) {
  const std::string what = "state database " + Escape(path);
  auto database = std::make_unique<SqliteStore::Connection>();
  if (make) {
    VRUN_ASSIGN([[maybe_unused]] const UniqueFd made, OpenFile(path, O_RDWR | O_CREAT | O_EXCL, 0600));
  } else if (!PathExists(path)) {
    return Error(Code::kNotFound, what + ": there is none");
  }
  // Not read-only: after a crash the WAL must be looked through, and its index is a file.
  const int code = sqlite3_open_v2(path.c_str(), &database->handle,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  if (code != SQLITE_OK) return SqliteError(database->handle, code, what);
  sqlite3_busy_timeout(database->handle, 10'000);
  // One that is made is of use only when it is whole.
  const Status set = database->Run(make ? "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; PRAGMA foreign_keys=OFF"
                                        : "PRAGMA query_only=ON");
  if (!set) return set.error().With(what);
  return std::unique_ptr<sql::Database>(std::move(database));
}

Status FinishSqlite(std::unique_ptr<sql::Database> database, const std::string& path) {
  // A controller that opens it sets its journal.
  database.reset();
  VRUN_ASSIGN(const UniqueFd file, OpenFile(path, O_RDWR));
  if (::fsync(file.get()) != 0) return ErrnoError("fsync " + Escape(path));
  return {};
}

void SqliteStore::LimitPages(int pages) {
  std::string sql = "PRAGMA max_page_count=" + std::to_string(pages > 0 ? pages : 1'000'000'000);
  (void)sqlite3_exec(connection_->handle, sql.c_str(), nullptr, nullptr, nullptr);
}

}  // namespace vrun::control
