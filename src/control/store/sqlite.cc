// SPDX-License-Identifier: Apache-2.0
#include "control/store/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/escape.h"
#include "base/unique_fd.h"

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
)"};
constexpr int kSchemaVersion = static_cast<int>(std::size(kMigrations));

constexpr char kJobColumns[] =
    "id, user, request_id, home_id, pool, name, milli_cpus, memory_bytes, gpus, gpu_type, state, reason, submitted_us, "
    "started_us, ended_us, attempt, epoch, cancelled, cancel_signal, scheduling, stopping, stopping_us, preemptions, "
    "leaving_attempt, leaving_epoch, gang, ending, failure, failed_pod, failed_starts, first_end_us, saved_us, "
    "lost_us, elements, array, array_index, parked, gpu_needs, sharers, gpu_fault, LENGTH(spec), pods";

constexpr char kArrayColumns[] =
    "arrays.job, arrays.array, waiting, next, held, gated, completed, failed, arrays.cancelled, exit";

constexpr char kPodColumns[] =
    "pod, node, token, gpu_mask, state, ready, exit, membership, leaving, mig_start, gpu_milli, "
    "mig_profile, usage";

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

Error SqliteError(sqlite3* db, int code, std::string_view what) {
  std::string text =
      std::string(what) + ": " + (db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code)) + Advice(code);
  return Error(CodeOf(code), std::move(text));
}

// To whom a sealed request belongs.
std::string OwnerOf(const JobRow& job) { return job.user + '\0' + job.request_id; }

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& p : parts) text += p + "\n";
  return text;
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    parts.push_back(text.substr(at, end - at));
  }
  return parts;
}

}  // namespace

struct SqliteStore::Database {
  ~Database() {
    for (auto& [sql, statement] : statements) sqlite3_finalize(statement);
    sqlite3_close(handle);
  }
  sqlite3* handle = nullptr;
  std::map<std::string, sqlite3_stmt*, std::less<>> statements;  // prepared once
};

// One use of a prepared statement: binds in order, reads columns in order. The destructor resets the statement.
class SqliteStore::Statement {
 public:
  Statement(SqliteStore* store, std::string_view sql) : store_(store) {
    Database& db = *store->database_;
    auto it = db.statements.find(sql);
    if (it == db.statements.end()) {
      sqlite3_stmt* made = nullptr;
      code_ = sqlite3_prepare_v3(db.handle, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT, &made,
                                 nullptr);
      if (code_ != SQLITE_OK) return;
      it = db.statements.emplace(std::string(sql), made).first;
    }
    statement_ = it->second;
  }
  ~Statement() {
    if (statement_ == nullptr) return;
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Int(int64_t value) {
    if (Bindable()) code_ = sqlite3_bind_int64(statement_, next_bind_, value);
    return *this;
  }
  // The text must outlive the use of the statement.
  Statement& Text(std::string_view value) {
    if (Bindable())
      code_ = sqlite3_bind_text64(statement_, next_bind_, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8);
    return *this;
  }
  Statement& Blob(std::string_view value) {
    if (Bindable()) {
      // A null pointer would bind NULL.
      code_ = sqlite3_bind_blob64(statement_, next_bind_, value.data() != nullptr ? value.data() : "", value.size(),
                                  SQLITE_STATIC);
    }
    return *this;
  }

  // True: there is a row. False: no more rows.
  Result<bool> Step() {
    if (store_->failure_) return *store_->failure_;
    if (code_ == SQLITE_OK) code_ = sqlite3_step(statement_);
    column_ = 0;
    if (code_ == SQLITE_ROW) {
      code_ = SQLITE_OK;
      return true;
    }
    if (code_ == SQLITE_DONE) return false;
    return store_->Fail(SqliteError(store_->database_->handle, code_, "state database"));
  }
  Status Run() {
    VRUN_ASSIGN([[maybe_unused]] bool row, Step());
    return {};
  }

  int64_t Int() { return sqlite3_column_int64(statement_, column_++); }
  std::string Bytes() {
    int c = column_++;
    const void* data = sqlite3_column_blob(statement_, c);
    return data == nullptr
               ? ""
               : std::string(static_cast<const char*>(data), static_cast<size_t>(sqlite3_column_bytes(statement_, c)));
  }

 private:
  bool Bindable() {
    ++next_bind_;
    return code_ == SQLITE_OK;
  }

  SqliteStore* const store_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
  int next_bind_ = 0;
  int column_ = 0;
};

namespace {

// What a job takes of GPUs besides their number and type.
std::string GpuNeeds(const Needs& needs) {
  v1::Resources gpus;
  gpus.set_gpu_milli(needs.gpu_milli);
  gpus.set_gpu_burst_milli(needs.gpu_burst_milli);
  gpus.set_gpu_sharing(needs.gpu_sharing);
  gpus.set_mig_profile(needs.mig_profile);
  gpus.set_gpu_memory_bytes(static_cast<uint64_t>(needs.gpu_memory_bytes));
  return gpus.SerializeAsString();
}

// The number of its pods is the next column.
template <typename S>
JobRow ReadJob(S& s) {
  JobRow job;
  job.id = static_cast<uint64_t>(s.Int());
  job.user = s.Bytes();
  job.request_id = s.Bytes();
  job.home_id = s.Bytes();
  job.pool = s.Bytes();
  job.name = s.Bytes();
  job.needs.milli_cpus = s.Int();
  job.needs.memory_bytes = s.Int();
  job.needs.gpus = s.Int();
  job.needs.gpu_type = s.Bytes();
  job.state = static_cast<v1::JobState>(s.Int());
  job.reason = s.Bytes();
  job.submitted_us = s.Int();
  job.started_us = s.Int();
  job.ended_us = s.Int();
  job.attempt = static_cast<uint32_t>(s.Int());
  job.epoch = static_cast<uint64_t>(s.Int());
  job.cancelled = s.Int() != 0;
  job.cancel_signal = static_cast<int32_t>(s.Int());
  (void)job.scheduling.ParseFromString(s.Bytes());
  job.stopping = s.Bytes();
  job.stopping_us = s.Int();
  job.preemptions = static_cast<uint32_t>(s.Int());
  job.leaving.attempt = static_cast<uint32_t>(s.Int());
  job.leaving.epoch = static_cast<uint64_t>(s.Int());
  (void)job.gang.ParseFromString(s.Bytes());
  job.ending = static_cast<Ending>(s.Int());
  job.failure = s.Bytes();
  job.failed_pod = static_cast<uint32_t>(s.Int());
  job.failed_starts = static_cast<uint32_t>(s.Int());
  job.first_end_us = s.Int();
  job.saved_us = s.Int();
  job.lost_us = s.Int();
  job.elements = static_cast<uint32_t>(s.Int());
  job.array = static_cast<uint64_t>(s.Int());
  job.array_index = static_cast<uint32_t>(s.Int());
  job.parked = s.Int() != 0;
  v1::Resources gpus;
  (void)gpus.ParseFromString(s.Bytes());
  job.needs.gpu_milli = gpus.gpu_milli();
  job.needs.gpu_burst_milli = gpus.gpu_burst_milli();
  job.needs.gpu_sharing = gpus.gpu_sharing();
  job.needs.mig_profile = gpus.mig_profile();
  job.needs.gpu_memory_bytes = static_cast<int64_t>(gpus.gpu_memory_bytes());
  job.needs.sharers = static_cast<uint64_t>(s.Int());
  job.gpu_fault = s.Bytes();
  job.spec_bytes = static_cast<uint64_t>(s.Int());
  return job;
}

template <typename S>
PodRow ReadPod(S& s) {
  PodRow pod;
  pod.pod = static_cast<uint32_t>(s.Int());
  pod.node = s.Bytes();
  pod.token = s.Bytes();
  pod.gpu_mask = static_cast<uint32_t>(s.Int());
  pod.state = static_cast<v1::JobState>(s.Int());
  pod.ready = s.Int() != 0;
  pod.exit = s.Bytes();
  pod.membership = static_cast<Membership>(s.Int());
  pod.leaving = s.Bytes();
  pod.mig_start = static_cast<int32_t>(s.Int());
  pod.gpu_milli = static_cast<uint32_t>(s.Int());
  pod.mig_profile = s.Bytes();
  pod.usage = s.Bytes();
  return pod;
}

}  // namespace

SqliteStore::SqliteStore(std::unique_ptr<Database> database) : database_(std::move(database)) {}
SqliteStore::~SqliteStore() = default;

Result<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path) {
  auto database = std::make_unique<Database>();
  const std::string what = "state database " + Escape(path);
  // SQLite gives its other files the mode of this one.
  if (const UniqueFd made(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)); made) {
    static_cast<void>(::fchmod(made.get(), 0600));
  }
  int code = sqlite3_open_v2(path.c_str(), &database->handle,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
                             nullptr);
  if (code != SQLITE_OK) return SqliteError(database->handle, code, what);
  sqlite3_busy_timeout(database->handle, 2000);
  // EXCLUSIVE: one owner, and the index of the WAL is in memory instead of in a mapped file. FULL: every commit does an
  // fsync.
  for (const char* pragma : {"PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL",
                             "PRAGMA wal_autocheckpoint=2000", "PRAGMA foreign_keys=ON", "PRAGMA secure_delete=ON"}) {
    code = sqlite3_exec(database->handle, pragma, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) return SqliteError(database->handle, code, what);
  }
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(database)));
  if (auto migrated = store->Migrate(); !migrated) return migrated.error().With(what);
  if (auto opened = store->OpenKey(path + ".key"); !opened) return opened.error().With(what);
  if (auto sealed = store->SealOldSpecs(); !sealed) return sealed.error().With(what);
  return store;
}

Status SqliteStore::Migrate() {
  int64_t version = 0;
  {
    Statement read(this, "PRAGMA user_version");
    VRUN_ASSIGN([[maybe_unused]] bool row, read.Step());
    version = read.Int();
  }
  if (version > kSchemaVersion) {
    return Error(Code::kUnsupported, "its schema is version " + std::to_string(version) + ", this program knows " +
                                         std::to_string(kSchemaVersion) + ": use the newer vrund");
  }
  for (int64_t v = version; v < kSchemaVersion; ++v) {
    std::string sql =
        std::string("BEGIN IMMEDIATE;") + kMigrations[v] + "PRAGMA user_version=" + std::to_string(v + 1) + ";COMMIT;";
    int code = sqlite3_exec(database_->handle, sql.c_str(), nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) {
      Error error = SqliteError(database_->handle, code, "bring the schema up to date");
      Rollback();
      return error;
    }
  }
  return {};
}

Status SqliteStore::OpenKey(const std::string& path) {
  bool needed = false;
  {
    Statement s(this, "SELECT 1 FROM jobs WHERE substr(spec, 1, 4)=? LIMIT 1");
    s.Blob(SealedSpecs::kMagic);
    VRUN_ASSIGN(needed, s.Step());
  }
  VRUN_ASSIGN(specs_, SealedSpecs::Open(path, needed));
  return {};
}

Status SqliteStore::SealOldSpecs() {
  std::vector<JobRow> plain;
  {
    Statement s(this,
                "SELECT id, user, request_id, ended_us, spec FROM jobs WHERE spec!=x'' AND substr(spec, 1, 4)!=?");
    s.Blob(SealedSpecs::kMagic);
    for (;;) {
      VRUN_ASSIGN(const bool row, s.Step());
      if (!row) break;
      JobRow& job = plain.emplace_back();
      job.id = static_cast<uint64_t>(s.Int());
      job.user = s.Bytes();
      job.request_id = s.Bytes();
      job.ended_us = s.Int();
      job.spec = s.Bytes();
    }
  }
  if (plain.empty()) return {};
  VRUN_TRY(Begin());
  for (JobRow& job : plain) {
    if (job.ended_us != 0) job.spec = WithoutEnvironment(job.spec).value_or(job.spec);
    const std::string sealed = specs_->Seal(job.spec, OwnerOf(job));
    VRUN_TRY(Statement(this, "UPDATE jobs SET spec=? WHERE id=?").Blob(sealed).Int(static_cast<int64_t>(job.id)).Run());
  }
  VRUN_TRY(Commit());
  // Earlier versions did not overwrite what they deleted.
  for (const char* sql : {"VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"}) {
    const int code = sqlite3_exec(database_->handle, sql, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) return SqliteError(database_->handle, code, "seal the requests of jobs");
  }
  return {};
}

Result<std::string> SqliteStore::ReadSpec(Statement& statement, const JobRow& job) {
  Result<std::string> spec = specs_->Open(statement.Bytes(), OwnerOf(job));
  if (!spec) return Fail(std::move(spec).error().With("job " + std::to_string(job.id)));
  return spec;
}

// What an ended job is shown with stays.
Status SqliteStore::DropEnvironment(const JobRow& job) {
  std::string spec;
  {
    Statement s(this, "SELECT spec FROM jobs WHERE id=?");
    s.Int(static_cast<int64_t>(job.id));
    VRUN_ASSIGN(const bool row, s.Step());
    if (!row) return {};
    VRUN_ASSIGN(spec, ReadSpec(s, job));
  }
  const std::optional<std::string> left = WithoutEnvironment(spec);
  if (!left) return {};
  const std::string sealed = specs_->Seal(*left, OwnerOf(job));
  return Statement(this, "UPDATE jobs SET spec=? WHERE id=?").Blob(sealed).Int(static_cast<int64_t>(job.id)).Run();
}

void SqliteStore::LimitPages(int pages) {
  std::string sql = "PRAGMA max_page_count=" + std::to_string(pages > 0 ? pages : 1'000'000'000);
  (void)sqlite3_exec(database_->handle, sql.c_str(), nullptr, nullptr, nullptr);
}

Error SqliteStore::Fail(Error error) {
  if (!failure_) failure_ = error;
  return error;
}

Status SqliteStore::Begin() { return Statement(this, "BEGIN").Run(); }

Status SqliteStore::Commit() { return Statement(this, "COMMIT").Run(); }

void SqliteStore::Rollback() {
  failure_.reset();
  // Some errors have already ended the transaction.
  if (sqlite3_get_autocommit(database_->handle) == 0) {
    (void)sqlite3_exec(database_->handle, "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

Result<uint64_t> SqliteStore::InsertJob(const JobRow& job) {
  const std::string spec = specs_->Seal(job.spec, OwnerOf(job));
  Statement s(
      this,
      "INSERT INTO jobs (user, request_id, home_id, pool, name, spec, milli_cpus, memory_bytes, gpus, gpu_type, "
      "state, reason, submitted_us, started_us, ended_us, attempt, epoch, cancelled, cancel_signal, scheduling, gang, "
      "elements, array, array_index, gpu_needs, sharers) VALUES "
      "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
  const std::string scheduling = job.scheduling.SerializeAsString(), gang = job.gang.SerializeAsString();
  const std::string gpu_needs = GpuNeeds(job.needs);
  s.Text(job.user).Text(job.request_id).Blob(job.home_id).Text(job.pool).Text(job.name).Blob(spec);
  s.Int(job.needs.milli_cpus).Int(job.needs.memory_bytes).Int(job.needs.gpus).Text(job.needs.gpu_type);
  s.Int(job.state).Text(job.reason).Int(job.submitted_us).Int(job.started_us).Int(job.ended_us);
  s.Int(job.attempt).Int(static_cast<int64_t>(job.epoch)).Int(job.cancelled).Int(job.cancel_signal).Blob(scheduling);
  s.Blob(gang).Int(job.elements).Int(static_cast<int64_t>(job.array)).Int(job.array_index);
  s.Blob(gpu_needs).Int(static_cast<int64_t>(job.needs.sharers));
  VRUN_TRY(s.Run());
  return static_cast<uint64_t>(sqlite3_last_insert_rowid(database_->handle));
}

Status SqliteStore::UpdateJob(const JobRow& job) {
  Statement s(
      this,
      "UPDATE jobs SET state=?, reason=?, started_us=?, ended_us=?, attempt=?, epoch=?, cancelled=?, cancel_signal=?, "
      "stopping=?, stopping_us=?, preemptions=?, leaving_attempt=?, leaving_epoch=?, ending=?, failure=?, "
      "failed_pod=?, failed_starts=?, first_end_us=?, saved_us=?, lost_us=?, scheduling=?, pods=?, parked=?, "
      "gpu_fault=? "
      "WHERE id=?");
  const std::string scheduling = job.scheduling.SerializeAsString();
  s.Int(job.state).Text(job.reason).Int(job.started_us).Int(job.ended_us).Int(job.attempt);
  s.Int(static_cast<int64_t>(job.epoch)).Int(job.cancelled).Int(job.cancel_signal);
  s.Text(job.stopping).Int(job.stopping_us).Int(job.preemptions).Int(job.leaving.attempt);
  s.Int(static_cast<int64_t>(job.leaving.epoch)).Int(static_cast<int64_t>(job.ending)).Text(job.failure);
  s.Int(job.failed_pod).Int(job.failed_starts).Int(job.first_end_us);
  s.Int(job.saved_us).Int(job.lost_us).Blob(scheduling).Int(static_cast<int64_t>(job.pods.size()));
  s.Int(job.parked).Text(job.gpu_fault).Int(static_cast<int64_t>(job.id));
  VRUN_TRY(s.Run());
  return job.ended_us != 0 && job.array == 0 ? DropEnvironment(job) : Status();
}

Status SqliteStore::InsertArray(const ArrayRow& row) {
  Statement s(this,
              "INSERT INTO arrays (job, array, waiting, next, held, gated, completed, failed, cancelled, exit) VALUES "
              "(?,?,?,?,?,?,?,?,?,?)");
  const std::string array = row.array.SerializeAsString(), left = row.left.Encode(), held = row.held.Encode();
  const std::string gated = row.gated.Encode();
  s.Int(static_cast<int64_t>(row.job)).Blob(array).Blob(left).Int(static_cast<int64_t>(row.next)).Blob(held);
  s.Blob(gated).Int(static_cast<int64_t>(row.completed)).Int(static_cast<int64_t>(row.failed));
  s.Int(static_cast<int64_t>(row.cancelled)).Blob(row.exit);
  return s.Run();
}

Status SqliteStore::UpdateArray(const ArrayRow& row, bool sets) {
  {
    Statement s(this, "UPDATE arrays SET next=?, completed=?, failed=?, cancelled=?, exit=? WHERE job=?");
    s.Int(static_cast<int64_t>(row.next))
        .Int(static_cast<int64_t>(row.completed))
        .Int(static_cast<int64_t>(row.failed));
    s.Int(static_cast<int64_t>(row.cancelled)).Blob(row.exit).Int(static_cast<int64_t>(row.job));
    VRUN_TRY(s.Run());
  }
  if (!sets) return {};
  Statement s(this, "UPDATE arrays SET waiting=?, held=?, gated=? WHERE job=?");
  const std::string left = row.left.Encode(), held = row.held.Encode(), gated = row.gated.Encode();
  s.Blob(left).Blob(held).Blob(gated).Int(static_cast<int64_t>(row.job));
  return s.Run();
}

Status SqliteStore::PutPod(uint64_t job, uint32_t attempt, const PodRow& pod) {
  Statement s(this,
              "INSERT INTO pods (job, attempt, pod, node, token, gpu_mask, state, ready, exit, membership, leaving, "
              "mig_start, gpu_milli, mig_profile, usage) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) "
              "ON CONFLICT (job, attempt, pod) DO UPDATE SET state=excluded.state, ready=excluded.ready, "
              "exit=excluded.exit, membership=excluded.membership, leaving=excluded.leaving, usage=excluded.usage");
  s.Int(static_cast<int64_t>(job)).Int(attempt).Int(pod.pod).Text(pod.node).Blob(pod.token).Int(pod.gpu_mask);
  s.Int(pod.state).Int(pod.ready).Blob(pod.exit).Int(static_cast<int64_t>(pod.membership)).Text(pod.leaving);
  s.Int(pod.mig_start).Int(pod.gpu_milli).Text(pod.mig_profile).Blob(pod.usage);
  return s.Run();
}

Status SqliteStore::PutAttempt(const AttemptRow& a) {
  Statement s(this,
              "INSERT INTO attempts (job, attempt, epoch, state, placed_us, ended_us, reason) VALUES (?,?,?,?,?,?,?) "
              "ON CONFLICT (job, attempt) DO UPDATE SET state=excluded.state, ended_us=excluded.ended_us, "
              "reason=excluded.reason");
  s.Int(static_cast<int64_t>(a.job)).Int(a.attempt).Int(static_cast<int64_t>(a.epoch)).Int(a.state);
  s.Int(a.placed_us).Int(a.ended_us).Text(a.reason);
  return s.Run();
}

Status SqliteStore::PutNode(const NodeRow& node) {
  const std::string addresses = Join(node.addresses);
  Statement s(this,
              "INSERT OR REPLACE INTO nodes (name, pool, total, addresses, version, boot_id, last_seen_us, lost, "
              "draining, facts, reason, health) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)");
  s.Text(node.name).Text(node.pool).Blob(node.total).Text(addresses).Text(node.version);
  s.Int(static_cast<int64_t>(node.boot_id)).Int(node.last_seen_us).Int(node.lost).Int(node.draining);
  s.Blob(node.facts).Text(node.reason).Blob(node.health);
  return s.Run();
}

Status SqliteStore::PutMaintenance(const MaintenanceRow& window) {
  const std::string nodes = Join(window.nodes);
  Statement s(this, "INSERT OR REPLACE INTO maintenance (name, nodes, from_us, until_us) VALUES (?,?,?,?)");
  s.Text(window.name).Text(nodes).Int(window.from_us).Int(window.until_us);
  return s.Run();
}

Status SqliteStore::DropMaintenance(const std::string& name) {
  Statement s(this, "DELETE FROM maintenance WHERE name=?");
  s.Text(name);
  return s.Run();
}

Result<std::vector<MaintenanceRow>> SqliteStore::Maintenance() {
  Statement s(this, "SELECT name, nodes, from_us, until_us FROM maintenance ORDER BY name");
  std::vector<MaintenanceRow> windows;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return windows;
    MaintenanceRow& w = windows.emplace_back();
    w.name = s.Bytes();
    w.nodes = Split(s.Bytes());
    w.from_us = s.Int();
    w.until_us = s.Int();
  }
}

Result<std::optional<uint64_t>> SqliteStore::FindRequest(const std::string& user, const std::string& request_id) {
  Statement s(this, "SELECT id FROM jobs WHERE user=? AND request_id=?");
  s.Text(user).Text(request_id);
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<uint64_t>();
  return std::optional<uint64_t>(static_cast<uint64_t>(s.Int()));
}

Result<std::optional<JobRow>> SqliteStore::GetJob(uint64_t id) {
  static const std::string sql = std::string("SELECT ") + kJobColumns + ", spec FROM jobs WHERE id=?";
  Statement s(this, sql);
  s.Int(static_cast<int64_t>(id));
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<JobRow>();
  JobRow job = ReadJob(s);
  const auto pods = static_cast<uint32_t>(s.Int());
  VRUN_ASSIGN(job.spec, ReadSpec(s, job));
  VRUN_TRY(ReadPods(&job, pods));
  return std::optional<JobRow>(std::move(job));
}

Result<std::vector<PodRow>> SqliteStore::Pods(uint64_t job, uint32_t attempt) {
  static const std::string sql =
      std::string("SELECT ") + kPodColumns + " FROM pods WHERE job=? AND attempt=? ORDER BY pod";
  Statement s(this, sql);
  s.Int(static_cast<int64_t>(job)).Int(attempt);
  std::vector<PodRow> pods;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return pods;
    pods.push_back(ReadPod(s));
  }
}

Status SqliteStore::ReadPods(JobRow* job, uint32_t count) {
  if (count > 0) {
    VRUN_ASSIGN(job->pods, Pods(job->id, job->attempt));
  }
  if (job->leaving.attempt == 0) return {};
  VRUN_ASSIGN(job->leaving.pods, Pods(job->id, job->leaving.attempt));
  std::erase_if(job->leaving.pods, [](const PodRow& pod) { return IsOver(pod.state); });
  return {};
}

Result<std::vector<JobRow>> SqliteStore::ReadJobs(Statement& s, bool with_spec) {
  std::vector<JobRow> jobs;
  std::vector<uint32_t> counts;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) break;
    jobs.push_back(ReadJob(s));
    counts.push_back(static_cast<uint32_t>(s.Int()));
    if (with_spec) {
      VRUN_ASSIGN(jobs.back().spec, ReadSpec(s, jobs.back()));
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) VRUN_TRY(ReadPods(&jobs[i], counts[i]));
  return jobs;
}

Result<std::vector<JobRow>> SqliteStore::UnfinishedJobs() {
  static const std::string sql = std::string("SELECT ") + kJobColumns + " FROM jobs WHERE ended_us=0 ORDER BY id";
  Statement s(this, sql);
  return ReadJobs(s, false);
}

Result<std::optional<v1::JobState>> SqliteStore::StateOfJob(uint64_t id) {
  Statement s(this, "SELECT state FROM jobs WHERE id=?");
  s.Int(static_cast<int64_t>(id));
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<v1::JobState>();
  return std::optional<v1::JobState>(static_cast<v1::JobState>(s.Int()));
}

Result<std::vector<ArrayRow>> SqliteStore::ReadArrays(Statement& s) {
  std::vector<ArrayRow> arrays;
  for (;;) {
    VRUN_ASSIGN(bool found, s.Step());
    if (!found) return arrays;
    ArrayRow& row = arrays.emplace_back();
    row.job = static_cast<uint64_t>(s.Int());
    bool parses = row.array.ParseFromString(s.Bytes());
    parses = Positions::Decode(s.Bytes(), &row.left) && parses;
    row.next = static_cast<uint64_t>(s.Int());
    row.left.Remove(0, row.next);
    parses = Positions::Decode(s.Bytes(), &row.held) && parses;
    parses = Positions::Decode(s.Bytes(), &row.gated) && parses;
    if (!parses) return Fail(Error(Code::kCorrupt, "array " + std::to_string(row.job) + ": its record does not parse"));
    row.completed = static_cast<uint64_t>(s.Int());
    row.failed = static_cast<uint64_t>(s.Int());
    row.cancelled = static_cast<uint64_t>(s.Int());
    row.exit = s.Bytes();
  }
}

Result<std::optional<ArrayRow>> SqliteStore::GetArray(uint64_t job) {
  static const std::string sql = std::string("SELECT ") + kArrayColumns + " FROM arrays WHERE job=?";
  Statement s(this, sql);
  s.Int(static_cast<int64_t>(job));
  VRUN_ASSIGN(std::vector<ArrayRow> rows, ReadArrays(s));
  if (rows.empty()) return std::optional<ArrayRow>();
  return std::optional<ArrayRow>(std::move(rows[0]));
}

Result<std::vector<ArrayRow>> SqliteStore::UnfinishedArrays() {
  static const std::string sql = std::string("SELECT ") + kArrayColumns +
                                 " FROM jobs INDEXED BY jobs_arrays JOIN arrays ON arrays.job=jobs.id WHERE "
                                 "elements!=0 AND ended_us=0 ORDER BY jobs.id";
  Statement s(this, sql);
  return ReadArrays(s);
}

Result<std::optional<uint64_t>> SqliteStore::FindElement(uint64_t array, uint32_t index) {
  Statement s(this, "SELECT id FROM jobs WHERE array=? AND array_index=? AND array!=0");
  s.Int(static_cast<int64_t>(array)).Int(index);
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<uint64_t>();
  return std::optional<uint64_t>(static_cast<uint64_t>(s.Int()));
}

Result<std::vector<ElementEnd>> SqliteStore::EndedElements(uint64_t array) {
  Statement s(this,
              "SELECT array_index, state FROM jobs WHERE array=? AND array!=0 AND ended_us!=0 ORDER BY array_index");
  s.Int(static_cast<int64_t>(array));
  std::vector<ElementEnd> ends;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return ends;
    const auto index = static_cast<uint32_t>(s.Int());
    ends.push_back({index, s.Int() == v1::COMPLETED});
  }
}

Result<std::vector<JobRow>> SqliteStore::ListJobs(bool ended_too, int limit) {
  static const std::string select = std::string("SELECT ") + kJobColumns + ", spec FROM jobs ";
  static const std::string any = select + "ORDER BY id DESC LIMIT ?";
  static const std::string arrays =
      select + "INDEXED BY jobs_arrays WHERE elements!=0 AND ended_us=0 ORDER BY id DESC LIMIT ?";
  // 1 is PENDING.
  static const std::string others = select +
                                    "WHERE ended_us=0 AND elements=0 AND (array=0 OR state!=1) ORDER BY id "
                                    "DESC LIMIT ?";
  static_assert(v1::PENDING == 1);
  const auto read = [&](const std::string& sql) {
    Statement s(this, sql);
    s.Int(limit);
    return ReadJobs(s, true);
  };
  if (ended_too) return read(any);
  VRUN_ASSIGN(std::vector<JobRow> jobs, read(arrays));
  VRUN_ASSIGN(std::vector<JobRow> rest, read(others));
  std::move(rest.begin(), rest.end(), std::back_inserter(jobs));
  std::sort(jobs.begin(), jobs.end(), [](const JobRow& a, const JobRow& b) { return a.id > b.id; });
  return jobs;
}

Result<std::vector<NodeRow>> SqliteStore::Nodes() {
  Statement s(this,
              "SELECT name, pool, total, addresses, version, boot_id, last_seen_us, lost, draining, facts, reason, "
              "health FROM nodes "
              "ORDER BY name");
  std::vector<NodeRow> nodes;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return nodes;
    NodeRow& n = nodes.emplace_back();
    n.name = s.Bytes();
    n.pool = s.Bytes();
    n.total = s.Bytes();
    n.addresses = Split(s.Bytes());
    n.version = s.Bytes();
    n.boot_id = static_cast<uint64_t>(s.Int());
    n.last_seen_us = s.Int();
    n.lost = s.Int() != 0;
    n.draining = s.Int() != 0;
    n.facts = s.Bytes();
    n.reason = s.Bytes();
    n.health = s.Bytes();
  }
}

Result<std::vector<AttemptRow>> SqliteStore::Attempts(uint64_t job) {
  Statement s(this,
              "SELECT job, attempt, epoch, state, placed_us, ended_us, reason FROM attempts WHERE job=? ORDER BY "
              "attempt");
  s.Int(static_cast<int64_t>(job));
  std::vector<AttemptRow> attempts;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) break;
    AttemptRow& a = attempts.emplace_back();
    a.job = static_cast<uint64_t>(s.Int());
    a.attempt = static_cast<uint32_t>(s.Int());
    a.epoch = static_cast<uint64_t>(s.Int());
    a.state = static_cast<v1::JobState>(s.Int());
    a.placed_us = s.Int();
    a.ended_us = s.Int();
    a.reason = s.Bytes();
  }
  for (AttemptRow& a : attempts) {
    VRUN_ASSIGN(a.pods, Pods(job, a.attempt));
  }
  return attempts;
}

Result<std::vector<JobRow>> SqliteStore::EndedJobs(uint64_t after, int limit, bool newest) {
  static const std::string select =
      std::string("SELECT ") + kJobColumns + " FROM jobs WHERE ended_us!=0 AND elements=0 AND id>? ";
  static const std::string ascending = select + "ORDER BY id LIMIT ?", descending = select + "ORDER BY id DESC LIMIT ?";
  Statement s(this, newest ? descending : ascending);
  s.Int(static_cast<int64_t>(after)).Int(limit);
  VRUN_ASSIGN(std::vector<JobRow> jobs, ReadJobs(s, false));
  if (newest) std::reverse(jobs.begin(), jobs.end());
  return jobs;
}

Status SqliteStore::AppendJournal(const std::string& row) {
  Statement s(this, "INSERT INTO journal (steps) VALUES (?)");
  s.Blob(row);
  return s.Run();
}

Status SqliteStore::ClearJournal() { return Statement(this, "DELETE FROM journal").Run(); }

Result<std::vector<std::string>> SqliteStore::Journal() {
  Statement s(this, "SELECT steps FROM journal ORDER BY id");
  std::vector<std::string> rows;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return rows;
    rows.push_back(s.Bytes());
  }
}

Result<uint64_t> SqliteStore::LastEpoch() {
  Statement s(this, "SELECT coalesce(max(epoch), 0) FROM attempts");
  VRUN_ASSIGN([[maybe_unused]] bool row, s.Step());
  return static_cast<uint64_t>(s.Int());
}

}  // namespace vrun::control
