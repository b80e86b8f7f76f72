// SPDX-License-Identifier: Apache-2.0
#include "control/store/postgres.h"

#include <dlfcn.h>
#include <endian.h>
#include <libpq-fe.h>

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "base/log.h"
#include "control/store/sql.h"

namespace vrun::control {
namespace {

// As in SQLite: each step migrates the schema to the next version, and is never changed once released. The first one
// makes what SQLite has in its version 7.
constexpr int64_t kFirstVersion = 7;
constexpr const char* kMigrations[] = {R"(
CREATE TABLE jobs (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  "user" BYTEA NOT NULL, request_id BYTEA NOT NULL, home_id BYTEA NOT NULL, pool BYTEA NOT NULL, name BYTEA NOT NULL,
  spec BYTEA NOT NULL,
  milli_cpus BIGINT NOT NULL, memory_bytes BIGINT NOT NULL, gpus BIGINT NOT NULL, gpu_type BYTEA NOT NULL,
  state BIGINT NOT NULL, reason BYTEA NOT NULL,
  submitted_us BIGINT NOT NULL, started_us BIGINT NOT NULL, ended_us BIGINT NOT NULL,
  attempt BIGINT NOT NULL, epoch BIGINT NOT NULL, cancelled BIGINT NOT NULL, cancel_signal BIGINT NOT NULL,
  scheduling BYTEA NOT NULL DEFAULT '', stopping BYTEA NOT NULL DEFAULT '', stopping_us BIGINT NOT NULL DEFAULT 0,
  preemptions BIGINT NOT NULL DEFAULT 0, leaving_attempt BIGINT NOT NULL DEFAULT 0,
  leaving_epoch BIGINT NOT NULL DEFAULT 0, gang BYTEA NOT NULL DEFAULT '', pods BIGINT NOT NULL DEFAULT 0,
  ending BIGINT NOT NULL DEFAULT 0, failure BYTEA NOT NULL DEFAULT '', failed_pod BIGINT NOT NULL DEFAULT 0,
  failed_starts BIGINT NOT NULL DEFAULT 0, first_end_us BIGINT NOT NULL DEFAULT 0, saved_us BIGINT NOT NULL DEFAULT 0,
  lost_us BIGINT NOT NULL DEFAULT 0, elements BIGINT NOT NULL DEFAULT 0, "array" BIGINT NOT NULL DEFAULT 0,
  array_index BIGINT NOT NULL DEFAULT 0, parked BIGINT NOT NULL DEFAULT 0, gpu_needs BYTEA NOT NULL DEFAULT '',
  sharers BIGINT NOT NULL DEFAULT 0, gpu_fault BYTEA NOT NULL DEFAULT '', waits_since_us BIGINT NOT NULL DEFAULT 0,
  UNIQUE ("user", request_id));
CREATE INDEX jobs_unfinished ON jobs (id) WHERE ended_us = 0;
CREATE INDEX jobs_ended ON jobs (id) WHERE ended_us != 0;
CREATE UNIQUE INDEX jobs_elements ON jobs ("array", array_index) WHERE "array" != 0;
CREATE INDEX jobs_arrays ON jobs (id) WHERE elements != 0 AND ended_us = 0;
CREATE TABLE attempts (
  job BIGINT NOT NULL, attempt BIGINT NOT NULL, epoch BIGINT NOT NULL, state BIGINT NOT NULL,
  placed_us BIGINT NOT NULL, ended_us BIGINT NOT NULL, reason BYTEA NOT NULL DEFAULT '', PRIMARY KEY (job, attempt));
CREATE INDEX attempts_epoch ON attempts (epoch);
CREATE TABLE pods (
  job BIGINT NOT NULL, attempt BIGINT NOT NULL, pod BIGINT NOT NULL, node BYTEA NOT NULL, token BYTEA NOT NULL,
  gpu_mask BIGINT NOT NULL, state BIGINT NOT NULL, ready BIGINT NOT NULL, exit BYTEA NOT NULL,
  membership BIGINT NOT NULL DEFAULT 0, leaving BYTEA NOT NULL DEFAULT '', mig_start BIGINT NOT NULL DEFAULT -1,
  gpu_milli BIGINT NOT NULL DEFAULT 0, mig_profile BYTEA NOT NULL DEFAULT '', usage BYTEA NOT NULL DEFAULT '',
  held_since_us BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (job, attempt, pod));
CREATE TABLE arrays (
  job BIGINT PRIMARY KEY, "array" BYTEA NOT NULL, waiting BYTEA NOT NULL, next BIGINT NOT NULL, held BYTEA NOT NULL,
  gated BYTEA NOT NULL, completed BIGINT NOT NULL, failed BIGINT NOT NULL, cancelled BIGINT NOT NULL,
  exit BYTEA NOT NULL);
CREATE TABLE nodes (
  name BYTEA PRIMARY KEY, pool BYTEA NOT NULL, total BYTEA NOT NULL, addresses BYTEA NOT NULL, version BYTEA NOT NULL,
  boot_id BIGINT NOT NULL, last_seen_us BIGINT NOT NULL, lost BIGINT NOT NULL, draining BIGINT NOT NULL,
  facts BYTEA NOT NULL DEFAULT '', reason BYTEA NOT NULL DEFAULT '', health BYTEA NOT NULL DEFAULT '');
CREATE TABLE maintenance (
  name BYTEA PRIMARY KEY, nodes BYTEA NOT NULL, from_us BIGINT NOT NULL, until_us BIGINT NOT NULL);
CREATE TABLE journal (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, steps BYTEA NOT NULL);
CREATE TABLE meta (key BYTEA PRIMARY KEY, value BYTEA NOT NULL);
CREATE TABLE holders (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "user" BYTEA NOT NULL, team BYTEA NOT NULL,
  project BYTEA NOT NULL, pool BYTEA NOT NULL, gpu_type BYTEA NOT NULL,
  UNIQUE ("user", team, project, pool, gpu_type));
CREATE TABLE intervals (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job BIGINT NOT NULL, attempt BIGINT NOT NULL,
  pod BIGINT NOT NULL, start_us BIGINT NOT NULL, end_us BIGINT NOT NULL, holder BIGINT NOT NULL REFERENCES holders (id),
  node BYTEA NOT NULL, gpu_milli BIGINT NOT NULL, milli_cpus BIGINT NOT NULL, memory_bytes BIGINT NOT NULL,
  ended BIGINT NOT NULL, lost_us BIGINT NOT NULL, busy_us BIGINT NOT NULL, metered_us BIGINT NOT NULL,
  waited_us BIGINT NOT NULL, UNIQUE (job, attempt, pod, start_us));
CREATE INDEX intervals_end ON intervals (end_us, start_us);
CREATE INDEX intervals_start ON intervals (start_us);
)",
                                       R"(
ALTER TABLE jobs ADD COLUMN notify BYTEA NOT NULL DEFAULT '';
CREATE INDEX jobs_by_end ON jobs (ended_us, id);
CREATE TABLE messages (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message BYTEA NOT NULL);
CREATE TABLE days (
  day_us BIGINT NOT NULL, holder BIGINT NOT NULL REFERENCES holders (id), sums BYTEA NOT NULL,
  PRIMARY KEY (day_us, holder));
)"};
constexpr int64_t kVersion = kFirstVersion + static_cast<int64_t>(std::size(kMigrations)) - 1;
// Two that make the table in the same moment: one of them gets an error, and looks again.
constexpr char kLeaderTable[] =
    "CREATE TABLE IF NOT EXISTS leader (one BIGINT PRIMARY KEY, holder TEXT NOT NULL, backend INT NOT NULL, seen "
    "TIMESTAMPTZ NOT NULL, term BIGINT NOT NULL)";

constexpr const char* kLockKey = "8104118581";  // of the advisory lock; any number that others do not use
constexpr Oid kInt8 = 20, kBytea = 17;          // pg_type.dat
constexpr char kWhat[] = "state database";

// The functions of libpq that are used, without "PQ".
#define VRUN_LIBPQ(use)                                                                                             \
  use(conninfoParse) use(conninfoFree) use(freemem) use(connectdbParams) use(finish) use(status) use(errorMessage)  \
      use(exec) use(execParams) use(prepare) use(execPrepared) use(resultStatus) use(resultErrorField) use(nfields) \
          use(ntuples) use(getvalue) use(getlength) use(ftype) use(clear) use(transactionStatus) use(serverVersion)

struct Libpq {
#define VRUN_MEMBER(name) decltype(&PQ##name) name = nullptr;
  VRUN_LIBPQ(VRUN_MEMBER)
#undef VRUN_MEMBER

  static Result<const Libpq*> Load() {
    static const Result<Libpq> loaded = [] {
      Libpq pq;
      void* library = ::dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) {
        return Result<Libpq>(Error(Code::kUnsupported, "PostgreSQL: " + std::string(::dlerror()) + ": install libpq5"));
      }
      bool all = true;
#define VRUN_LOAD(name) \
  all = (pq.name = reinterpret_cast<decltype(pq.name)>(::dlsym(library, "PQ" #name))) != nullptr && all;
      VRUN_LIBPQ(VRUN_LOAD)
#undef VRUN_LOAD
#undef VRUN_LIBPQ
      if (!all) return Result<Libpq>(Error(Code::kUnsupported, "PostgreSQL: libpq.so.5 is too old"));
      return Result<Libpq>(pq);
    }();
    if (!loaded) return loaded.error();
    return &*loaded;
  }
};

std::string OneLine(const char* text) {
  std::string line = text == nullptr ? "" : text;
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.pop_back();
  for (char& c : line) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return line;
}

// SQLSTATE, PostgreSQL's manual, appendix A.
Code CodeOf(std::string_view state) {
  if (state.starts_with("53")) return Code::kExhausted;
  if (state.starts_with("08") || state.starts_with("57P")) return Code::kUnavailable;
  if (state.starts_with("28") || state == "42501" || state == "25006") return Code::kDenied;
  if (state.starts_with("XX")) return Code::kCorrupt;
  return Code::kInternal;
}

int Nibble(char c) { return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; }

// bytea_output=hex: \x and two digits a byte.
std::string FromHex(const char* text, size_t size) {
  std::string bytes;
  if (size < 2 || text[0] != '\\' || text[1] != 'x') return bytes;
  bytes.reserve(size / 2 - 1);
  for (size_t i = 2; i + 1 < size; i += 2) {
    bytes.push_back(static_cast<char>(Nibble(text[i]) << 4 | Nibble(text[i + 1])));
  }
  return bytes;
}

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

std::string ToPostgres(std::string_view sql) {
  std::string out;
  int parameters = 0;
  for (size_t i = 0; i < sql.size();) {
    if (sql[i] == '\'' || sql[i] == '"') {
      size_t end = sql.find(sql[i], i + 1);
      end = end == std::string_view::npos ? sql.size() : end + 1;
      out += sql.substr(i, end - i);
      i = end;
    } else if (sql[i] == '?') {
      out += "$" + std::to_string(++parameters);
      ++i;
    } else if (IsWord(sql[i])) {
      size_t end = i;
      while (end < sql.size() && IsWord(sql[end])) ++end;
      std::string_view word = sql.substr(i, end - i);
      constexpr std::string_view kHint = "INDEXED BY ";
      if (sql.substr(i).starts_with(kHint)) {
        end = i + kHint.size();
        while (end < sql.size() && IsWord(sql[end])) ++end;
        while (end < sql.size() && sql[end] == ' ') ++end;
        word = "";
      }
      // Reserved words of PostgreSQL, and columns of ours.
      const bool reserved = word == "user" || word == "array";
      if (reserved) out += '"';
      out += word;
      if (reserved) out += '"';
      i = end;
    } else {
      out += sql[i++];
    }
  }
  return out;
}

class PostgresStore::Connection : public sql::Database {
 public:
  class Statement;

  Connection(const Libpq* pq, PGconn* connection) : pq_(pq), connection_(connection) {}
  ~Connection() override {
    statements_.clear();
    pq_->finish(connection_);
  }

  Result<sql::Prepared*> Prepare(std::string_view sql) override;
  void Rollback() override {
    if (pq_->transactionStatus(connection_) == PQTRANS_IDLE) return;
    pq_->clear(pq_->exec(connection_, "ROLLBACK"));
  }

  bool alive() const { return pq_->status(connection_) == CONNECTION_OK; }

  Error Failure(const PGresult* result) const {
    const char* state = result == nullptr ? nullptr : pq_->resultErrorField(result, PG_DIAG_SQLSTATE);
    const char* message = result == nullptr ? nullptr : pq_->resultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const std::string text = OneLine(message != nullptr ? message : pq_->errorMessage(connection_));
    if (!alive()) return Error(Code::kUnavailable, std::string(kWhat) + ": the session is lost: " + text);
    return Error(CodeOf(state == nullptr ? "" : state), std::string(kWhat) + ": " + text);
  }
  Status Run(const std::string& sql) override {
    PGresult* result = pq_->exec(connection_, sql.c_str());
    const auto code = pq_->resultStatus(result);
    Status done;
    if (code != PGRES_COMMAND_OK && code != PGRES_TUPLES_OK) done = Failure(result);
    pq_->clear(result);
    return done;
  }
  // The columns of the first row as text; empty: there is no row.
  Result<std::vector<std::string>> Row(const std::string& sql, const std::vector<std::string>& values = {}) {
    std::vector<const char*> texts;
    for (const std::string& value : values) texts.push_back(value.c_str());
    PGresult* result = pq_->execParams(connection_, sql.c_str(), static_cast<int>(texts.size()), nullptr, texts.data(),
                                       nullptr, nullptr, 0);
    const auto code = pq_->resultStatus(result);
    Result<std::vector<std::string>> row = std::vector<std::string>();
    if (code != PGRES_COMMAND_OK && code != PGRES_TUPLES_OK) {
      row = Failure(result);
    } else if (code == PGRES_TUPLES_OK && pq_->ntuples(result) > 0) {
      for (int i = 0; i < pq_->nfields(result); ++i) {
        row->emplace_back(pq_->getvalue(result, 0, i), static_cast<size_t>(pq_->getlength(result, 0, i)));
      }
    }
    pq_->clear(result);
    return row;
  }

  // True: this controller has the database now. `again`: once more when the session of a silent one was ended.
  Result<bool> Take(const std::string& holder, std::string* active, bool again = true);
  Status Migrate();
  Status Beat();

  const Libpq* const pq_;
  PGconn* const connection_;
  uint64_t term = 0;

 private:
  std::map<std::string, std::unique_ptr<Statement>, std::less<>> statements_;
};

// Prepared on the server at its first use, when the types of its parameters are known. Rows come all at once.
class PostgresStore::Connection::Statement : public sql::Prepared {
 public:
  Statement(Connection* connection, std::string name, std::string sql)
      : connection_(connection), name_(std::move(name)), sql_(std::move(sql)) {}
  ~Statement() override { Clear(); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void BindInt(int64_t value) override {
    numbers_.push_back(htobe64(static_cast<uint64_t>(value)));
    values_.push_back({kInt8, {}, numbers_.size() - 1});
  }
  void BindText(std::string_view value) override { values_.push_back({kBytea, value, 0}); }
  void BindBlob(std::string_view value) override { values_.push_back({kBytea, value, 0}); }

  Result<bool> Step() override {
    if (result_ == nullptr) VRUN_TRY(Execute());
    column_ = 0;
    return ++row_ < rows_;
  }
  int64_t Int() override {
    const char* text = pq()->getvalue(result_, row_, column_++);
    return std::strtoll(text, nullptr, 10);
  }
  std::string Bytes() override {
    const int column = column_++;
    const char* text = pq()->getvalue(result_, row_, column);
    const auto size = static_cast<size_t>(pq()->getlength(result_, row_, column));
    return pq()->ftype(result_, column) == kBytea ? FromHex(text, size) : std::string(text, size);
  }
  void Reset() override {
    Clear();
    values_.clear();
    numbers_.clear();
  }

 private:
  struct Value {
    Oid type;
    std::string_view bytes;
    size_t number;
  };
  const Libpq* pq() const { return connection_->pq_; }
  void Clear() {
    if (result_ != nullptr) pq()->clear(result_);
    result_ = nullptr;
    rows_ = 0;
    row_ = -1;
    column_ = 0;
  }
  Status Execute() {
    PGconn* const to = connection_->connection_;
    std::vector<Oid> types;
    std::vector<const char*> data;
    std::vector<int> sizes, binary(values_.size(), 1);
    for (const Value& value : values_) {
      types.push_back(value.type);
      // A null pointer would be NULL.
      const char* bytes = value.bytes.data() != nullptr ? value.bytes.data() : "";
      data.push_back(value.type == kInt8 ? reinterpret_cast<const char*>(&numbers_[value.number]) : bytes);
      sizes.push_back(value.type == kInt8 ? 8 : static_cast<int>(value.bytes.size()));
    }
    const int count = static_cast<int>(values_.size());
    if (!prepared_) {
      PGresult* made = pq()->prepare(to, name_.c_str(), sql_.c_str(), count, types.data());
      Status done;
      if (pq()->resultStatus(made) != PGRES_COMMAND_OK) done = connection_->Failure(made);
      pq()->clear(made);
      VRUN_TRY(std::move(done));
      prepared_ = true;
    }
    result_ = pq()->execPrepared(to, name_.c_str(), count, data.data(), sizes.data(), binary.data(), 0);
    const auto code = pq()->resultStatus(result_);
    if (code != PGRES_COMMAND_OK && code != PGRES_TUPLES_OK) {
      const Error error = connection_->Failure(result_);
      Clear();
      return error;
    }
    rows_ = code == PGRES_TUPLES_OK ? pq()->ntuples(result_) : 0;
    return {};
  }

  Connection* const connection_;
  const std::string name_, sql_;
  bool prepared_ = false;
  std::vector<Value> values_;
  std::vector<uint64_t> numbers_;  // big endian
  PGresult* result_ = nullptr;     // null: not executed
  int rows_ = 0;
  int row_ = -1;
  int column_ = 0;
};

Result<sql::Prepared*> PostgresStore::Connection::Prepare(std::string_view sql) {
  auto it = statements_.find(sql);
  if (it == statements_.end()) {
    const std::string name = "s" + std::to_string(statements_.size());
    it = statements_.emplace(std::string(sql), std::make_unique<Statement>(this, name, ToPostgres(sql))).first;
  }
  return it->second.get();
}

Result<bool> PostgresStore::Connection::Take(const std::string& holder, std::string* active, bool again) {
  VRUN_ASSIGN(const auto locked, Row(std::string("SELECT pg_try_advisory_lock(") + kLockKey + ")"));
  if (locked[0] == "t") {
    VRUN_ASSIGN(const auto mine,
                Row("INSERT INTO leader (one, holder, backend, seen, term) VALUES (1, $1, pg_backend_pid(), "
                    "clock_timestamp(), 1) ON CONFLICT (one) DO UPDATE SET holder=excluded.holder, "
                    "backend=excluded.backend, seen=excluded.seen, term=leader.term+1 RETURNING term",
                    {holder}));
    term = std::strtoull(mine[0].c_str(), nullptr, 10);
    return true;
  }
  VRUN_ASSIGN(const auto other, Row("SELECT holder, backend, extract(epoch FROM clock_timestamp() - seen) > $1::float8 "
                                    "FROM leader",
                                    {std::to_string(kStaleMicros / 1e6)}));
  if (other.size() < 3) return false;  // it has just taken the lock
  *active = other[0];
  if (other[2] != "t") return false;
  LogWarning("controller {} has said nothing for {} s: its session is ended", Escape(other[0]),
             kStaleMicros / 1'000'000);
  VRUN_ASSIGN(const auto ended, Row("SELECT pg_terminate_backend($1::int, 1000)", {other[1]}));
  // Its lock is free now.
  return again && ended[0] == "t" ? Take(holder, active, false) : false;
}

Status PostgresStore::Connection::Migrate() {
  VRUN_TRY(Run("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)"));
  VRUN_ASSIGN(const auto row, Row("SELECT version FROM schema_version"));
  const int64_t version = row.empty() ? kFirstVersion - 1 : std::strtoll(row[0].c_str(), nullptr, 10);
  if (version > kVersion) {
    return Error(Code::kUnsupported, "its schema is version " + std::to_string(version) + ", this program knows " +
                                         std::to_string(kVersion) + ": use the newer vrund");
  }
  for (int64_t v = version + 1; v <= kVersion; ++v) {
    const Status done =
        Run(std::string("BEGIN;") + kMigrations[v - kFirstVersion] +
            "DELETE FROM schema_version; INSERT INTO schema_version VALUES (" + std::to_string(v) + "); COMMIT;");
    if (!done) {
      Rollback();
      return done.error().With("bring the schema up to date");
    }
  }
  return {};
}

Status PostgresStore::Connection::Beat() {
  const PGTransactionStatusType status = pq_->transactionStatus(connection_);
  if (alive() && status != PQTRANS_IDLE && status != PQTRANS_UNKNOWN) return {};  // it is in the middle of a change
  VRUN_ASSIGN(const auto mine, Row("UPDATE leader SET seen=clock_timestamp() WHERE term=$1::bigint RETURNING term",
                                   {std::to_string(term)}));
  if (mine.empty()) return Error(Code::kAborted, std::string(kWhat) + ": another controller has it now");
  return {};
}

PostgresStore::PostgresStore(Connection* connection)
    : SqlStore(std::unique_ptr<sql::Database>(connection)), connection_(connection) {}

Status PostgresStore::Beat() { return connection_->Beat(); }
uint64_t PostgresStore::term() const { return connection_->term; }

namespace {

// kInvalid: the URL is none.
Result<const Libpq*> LibpqFor(const std::string& url) {
  VRUN_ASSIGN(const Libpq* pq, Libpq::Load());
  char* why = nullptr;
  PQconninfoOption* const parsed = pq->conninfoParse(url.c_str(), &why);
  if (parsed == nullptr) {
    Error error(Code::kInvalid, std::string(kWhat) + ": " + OneLine(why));
    pq->freemem(why);
    return error;
  }
  pq->conninfoFree(parsed);
  return pq;
}

// The session of a controller that is gone, or cannot be reached, ends within seconds: on both sides.
Result<PGconn*> Connect(const Libpq& pq, const std::string& url) {
  const char* const keys[] = {"dbname",
                              "connect_timeout",
                              "tcp_user_timeout",
                              "keepalives_idle",
                              "keepalives_interval",
                              "keepalives_count",
                              "application_name",
                              "options",
                              nullptr};
  const char* const values[] = {url.c_str(),
                                "3",
                                "3000",
                                "1",
                                "1",
                                "3",
                                "vrun controller",
                                "-c synchronous_commit=on -c client_min_messages=warning -c tcp_keepalives_idle=2 -c "
                                "tcp_keepalives_interval=1 -c tcp_keepalives_count=3",
                                nullptr};
  PGconn* connection = pq.connectdbParams(keys, values, 1);
  if (pq.status(connection) == CONNECTION_OK && pq.serverVersion(connection) >= 140000) return connection;
  const bool old = pq.status(connection) == CONNECTION_OK;
  Error error(
      old ? Code::kUnsupported : Code::kUnavailable,
      std::string(kWhat) + ": " + (old ? "PostgreSQL is older than version 14" : OneLine(pq.errorMessage(connection))));
  pq.finish(connection);
  return error;
}

}  // namespace

Result<std::unique_ptr<PostgresStore>> PostgresStore::Open(const PostgresOptions& options) {
  VRUN_ASSIGN(const Libpq* pq, LibpqFor(options.url));
  std::unique_ptr<Connection> connection;
  for (std::string told;;) {
    const auto wait = [&](const std::string& why) {
      if (why != told) LogInfo("stands by: {}", why);
      told = why;
      return !options.wait();
    };
    if (connection == nullptr || !connection->alive()) {
      connection.reset();
      Result<PGconn*> made = Connect(*pq, options.url);
      if (!made && (!options.wait || made.error().code() != Code::kUnavailable)) return made.error();
      if (!made) {
        if (!wait(made.error().message())) return Error(Code::kAborted, "told to end while it stood by");
        continue;
      }
      connection = std::make_unique<Connection>(pq, *made);
    }
    (void)connection->Run(kLeaderTable);
    std::string active = "?";
    Result<bool> taken = connection->Take(options.holder, &active);
    if (taken && *taken) break;
    if (!options.wait) {
      if (!taken) return taken.error();
      return Error(Code::kExists, std::string(kWhat) + ": controller " + Escape(active) + " has it");
    }
    if (!wait(taken ? "controller " + Escape(active) + " is active" : taken.error().message())) {
      return Error(Code::kAborted, "told to end while it stood by");
    }
  }
  if (Status migrated = connection->Migrate(); !migrated) return migrated.error().With(kWhat);
  std::unique_ptr<PostgresStore> store(new PostgresStore(connection.release()));
  if (const Result<bool> opened = store->OpenKey(options.key_file); !opened) return opened.error().With(kWhat);
  return store;
}

sql::Schema PostgresSchema() { return {kFirstVersion, kMigrations}; }

Result<std::unique_ptr<sql::Database>> ConnectPostgres(const std::string& url, const std::string& holder) {
  VRUN_ASSIGN(const Libpq* pq, LibpqFor(url));
  VRUN_ASSIGN(PGconn* const made, Connect(*pq, url));
  auto connection = std::make_unique<PostgresStore::Connection>(pq, made);
  if (!holder.empty()) {
    (void)connection->Run(kLeaderTable);
    std::string active = "?";
    VRUN_ASSIGN(bool taken, connection->Take(holder, &active));
    // The server may take a moment to see that a controller has ended.
    for (int tries = 0; !taken && tries < 20; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      VRUN_ASSIGN(taken, connection->Take(holder, &active));
    }
    if (!taken) {
      return Error(Code::kExists, std::string(kWhat) + ": controller " + Escape(active) + " has it: stop it first");
    }
  }
  return std::unique_ptr<sql::Database>(std::move(connection));
}

Status BeatPostgres(sql::Database* database) { return database->Run("UPDATE leader SET seen=clock_timestamp()"); }

}  // namespace vrun::control
