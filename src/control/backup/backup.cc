// SPDX-License-Identifier: Apache-2.0
#include "control/backup/backup.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <optional>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/file_lock.h"
#include "control/backup/backup_file.h"
#include "control/backup/places.h"
#include "control/backup/tables.h"
#include "control/store/postgres.h"
#include "control/store/sqlite.h"
#include "people/members.h"

namespace vrun::control {
namespace {

constexpr int64_t kSkippedIds = 1'000'000;
constexpr int64_t kSkippedEpochs = 1'000'000'000;
constexpr uint64_t kRowsBetweenReports = 500;
constexpr int64_t kBeatEveryMicros = 500'000;

Engine EngineOf(const StatePlace& place) { return place.database.empty() ? Engine::kSqlite : Engine::kPostgres; }
sql::Schema SchemaOf(Engine engine) { return engine == Engine::kSqlite ? SqliteSchema() : PostgresSchema(); }
const char* NameOf(Engine engine) { return engine == Engine::kSqlite ? "SQLite" : "PostgreSQL"; }

Status KnowsVersion(int64_t version, const sql::Schema& schema, const std::string& whose) {
  if (version <= schema.version()) return {};
  return Error(Code::kUnsupported, whose + " is of schema version " + std::to_string(version) +
                                       ", this program knows " + std::to_string(schema.version()) +
                                       ": use the newer vrund");
}

// "20261128-141523", UTC.
std::string Stamp(int64_t wall_us) {
  const time_t seconds = static_cast<time_t>(wall_us / 1'000'000);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  return {text, ::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts)};
}

void AuditIt(const StatePlace& place, const char* what, const std::string& file) {
  people::Members(SharedDirectory(place) + "/people")
      .Audit({"", "uid " + std::to_string(::getuid()), "here", what, file, "ok"});
}

// What a restore loads, in whichever database. Nothing of it is there before Finish, and nothing after a failure.
class Target {
 public:
  virtual ~Target() = default;
  virtual sql::Database* database() = 0;
  // An empty database with the schema of this version, in an open transaction.
  virtual Status Make(int64_t version) = 0;
  virtual Status Finish() = 0;
  virtual Status Beat() { return {}; }
};

class SqliteTarget final : public Target {
 public:
  // `staged`: where the file is made; it goes to `path`.
  SqliteTarget(std::string staged, std::string path, std::string aside)
      : staged_(std::move(staged)), path_(std::move(path)), aside_(std::move(aside)) {}

  sql::Database* database() override { return database_.get(); }
  Status Make(int64_t version) override {
    VRUN_ASSIGN(database_, OpenSqlite(staged_, true));
    VRUN_TRY(database_->Run("BEGIN"));
    return Tables(database_.get(), Engine::kSqlite).Migrate(SqliteSchema(), 0, version);
  }
  Status Finish() override {
    VRUN_TRY(database_->Run("COMMIT"));
    VRUN_TRY(FinishSqlite(std::move(database_), staged_));
    for (const char* suffix : {"", "-wal", "-shm"}) VRUN_TRY(MoveAside(path_ + suffix, aside_));
    if (::rename(staged_.c_str(), path_.c_str()) != 0) return ErrnoError("move " + Escape(staged_));
    VRUN_ASSIGN(const UniqueFd directory, OpenFile(path_.substr(0, path_.rfind('/')), O_RDONLY | O_DIRECTORY));
    if (::fsync(directory.get()) != 0 && errno != EINVAL) return ErrnoError("fsync of the state directory");
    return {};
  }

 private:
  const std::string staged_, path_, aside_;
  std::unique_ptr<sql::Database> database_;
};

// Tables that are there go to a schema of their own in the same transaction in which the new ones come.
class PostgresTarget final : public Target {
 public:
  PostgresTarget(std::unique_ptr<sql::Database> database, std::unique_ptr<sql::Database> beats, std::string aside)
      : database_(std::move(database)), beats_(std::move(beats)), aside_(std::move(aside)) {}
  ~PostgresTarget() override {
    // The server may take a moment to see that a session has ended.
    database_->Rollback();
    (void)database_->Run("SELECT pg_advisory_unlock_all()");
  }

  sql::Database* database() override { return database_.get(); }
  Status Make(int64_t version) override {
    if (version < PostgresSchema().first) {
      return Error(Code::kUnsupported, "the backup is of schema version " + std::to_string(version) +
                                           ", which PostgreSQL never had: restore it into a file, start a controller "
                                           "on that once, and take a backup of it");
    }
    Tables tables(database_.get(), Engine::kPostgres);
    VRUN_TRY(database_->Run("BEGIN"));
    VRUN_ASSIGN(const int64_t before, tables.Version());
    if (before != 0) {
      VRUN_ASSIGN(std::vector<TableShape> shapes, tables.Shapes());
      VRUN_TRY(database_->Run("CREATE SCHEMA \"" + aside_ + "\""));
      shapes.push_back({"schema_version", {}, {}, false});
      for (const TableShape& shape : shapes) {
        VRUN_TRY(database_->Run("ALTER TABLE \"" + shape.name + "\" SET SCHEMA \"" + aside_ + "\""));
      }
    }
    return tables.Migrate(PostgresSchema(), PostgresSchema().first - 1, version);
  }
  Status Finish() override { return database_->Run("COMMIT"); }
  Status Beat() override {
    const int64_t now = MonotonicMicros();
    if (now - beat_us_ < kBeatEveryMicros) return {};
    beat_us_ = now;
    return BeatPostgres(beats_.get());
  }

 private:
  const std::unique_ptr<sql::Database> database_, beats_;
  const std::string aside_;
  int64_t beat_us_ = 0;
};

class RestoreRun {
 public:
  RestoreRun(StatePlace to, std::string file, RestoreOptions options, const BackupProgress& progress)
      : to_(std::move(to)),
        engine_(EngineOf(to_)),
        file_(std::move(file)),
        options_(options),
        progress_(progress),
        stamp_(Stamp(WallMicros())),
        staged_(SharedDirectory(to_) + "/restoring") {}

  Result<BackupReport> Go() {
    VRUN_TRY(MakeDirs(to_.state_directory, 0700));
    VRUN_TRY(MakeDirs(SharedDirectory(to_), 0700));
    VRUN_ASSIGN(const UniqueFd lock, Lock());
    VRUN_TRY(Verify());
    VRUN_TRY(LookAtDatabase());
    VRUN_TRY(staged_.Start());
    VRUN_TRY(ReadFiles());
    const std::vector<StatePart> parts = StateParts(to_);
    if (!options_.replace) VRUN_TRY(staged_.Check(parts));
    VRUN_TRY(Load());
    Result<bool> moved = staged_.Place(parts, Aside());
    if (!moved) {
      return std::move(moved).error().With("some files of the backup are in their places, and the database is not");
    }
    if (Status done = target_->Finish(); !done) {
      return done.error().With("the files of the backup are in their places, and the database is not");
    }
    AuditIt(to_, "restore", file_);
    const bool tables = engine_ == Engine::kPostgres && has_state_;
    if (*moved || (has_state_ && !tables)) report_.moved = SharedDirectory(to_) + "/" + Aside();
    if (tables) report_.moved += (report_.moved.empty() ? "" : ", ") + ("the schema " + SchemaAside());
    if (report_.has_authority && to_.authority.empty()) {
      report_.notes.push_back("the backup has the key of the cluster's authority: --authority DIR restores it");
    }
    return report_;
  }

 private:
  std::string Aside() const { return "replaced-" + stamp_; }
  std::string SchemaAside() const {
    std::string name = "vrun_" + stamp_;
    for (char& c : name) c = c == '-' ? '_' : c;
    return name;
  }

  Result<UniqueFd> Lock() const {
    Result<UniqueFd> lock = LockFile(to_.state_directory + "/lock");
    if (lock || lock.error().code() != Code::kExists) return lock;
    return Error(Code::kExists, "a controller runs on " + Escape(to_.state_directory) + ": stop it first");
  }

  void Tell(const BackupReader* reader) {
    if (!progress_) return;
    const bool known = reader != nullptr && reader->size() > 0;
    progress_(report_, known ? static_cast<int>(reader->bytes() * 100 / reader->size()) : -1);
  }

  // All records of the file, in order.
  Status Each(const std::function<Status(v1::BackupRecord& record)>& what) {
    VRUN_ASSIGN(const std::unique_ptr<BackupReader> reader, BackupReader::Open(file_));
    v1::BackupRecord record;
    for (uint64_t n = 0;; ++n) {
      VRUN_ASSIGN(const bool more, reader->Next(&record));
      if (!more) break;
      if (Status done = what(record); !done) return done.error().With(Escape(file_));
      if (n % kRowsBetweenReports == 0) Tell(reader.get());
    }
    report_.bytes = reader->bytes();
    return {};
  }

  Status Verify() {
    bool first = true;
    return Each([&](v1::BackupRecord& record) -> Status {
      if (first != record.has_header())
        return Error(Code::kCorrupt, "it is damaged: the header is not the first record");
      if (first) {
        const v1::BackupHeader& header = record.header();
        report_.schema = header.schema();
        report_.created_us = header.created_us();
        report_.database = header.database();
        if (header.schema() < 1) return Error(Code::kCorrupt, "it is damaged: it has no schema version");
        VRUN_TRY(KnowsVersion(header.schema(), SchemaOf(engine_), "the backup"));
      }
      first = false;
      if (record.has_file() && record.file().path().starts_with("authority/")) report_.has_authority = true;
      return {};
    });
  }

  // Without --replace. What is newer may have what this program does not see.
  Status MayBeReplaced(Tables& tables, const std::string& name) const {
    VRUN_ASSIGN(const int64_t version, tables.Version());
    if (Status known = KnowsVersion(version, SchemaOf(engine_), "the database that is there"); !known) {
      return known.error().With(name);
    }
    VRUN_ASSIGN(const std::vector<TableShape> shapes, tables.Shapes());
    VRUN_ASSIGN(const bool rows, tables.HasRows(shapes));
    if (!rows) return {};
    return Error(Code::kExists, name + ": there is a state already: with --replace it is moved aside");
  }

  Status LookAtDatabase() {
    if (engine_ == Engine::kPostgres) {
      VRUN_ASSIGN(std::unique_ptr<sql::Database> database, ConnectPostgres(to_.database, "a restore"));
      VRUN_ASSIGN(std::unique_ptr<sql::Database> beats, ConnectPostgres(to_.database, ""));
      target_ = std::make_unique<PostgresTarget>(std::move(database), std::move(beats), SchemaAside());
      Tables tables(target_->database(), engine_);
      VRUN_ASSIGN(const int64_t version, tables.Version());
      if (!options_.replace) VRUN_TRY(MayBeReplaced(tables, "PostgreSQL"));
      has_state_ = version != 0;
      return {};
    }
    const std::string path = DatabaseFile(to_);
    has_state_ = PathExists(path);
    if (has_state_ && !options_.replace) {
      VRUN_ASSIGN(const std::unique_ptr<sql::Database> database, OpenSqlite(path, false));
      Tables tables(database.get(), engine_);
      VRUN_TRY(MayBeReplaced(tables, Escape(path)));
    }
    staged_database_.emplace(to_.state_directory + "/restoring-database");
    VRUN_TRY(staged_database_->Start());
    target_ = std::make_unique<SqliteTarget>(staged_database_->directory() + "/vrun.db", path,
                                             to_.state_directory + "/" + Aside());
    return {};
  }

  Status ReadFiles() {
    return Each([this](v1::BackupRecord& record) -> Status {
      VRUN_TRY(target_->Beat());
      if (!record.has_file()) return {};
      if (!record.file().more()) ++report_.files;
      return staged_.Add(record.file());
    });
  }

  Status Load() {
    VRUN_TRY(target_->Make(report_.schema));
    sql::Database* const database = target_->database();
    Tables tables(database, engine_);
    std::map<std::string, TableShape> shapes;
    VRUN_ASSIGN(std::vector<TableShape> all, tables.Shapes());
    for (TableShape& shape : all) shapes[shape.name] = std::move(shape);
    std::map<std::string, int64_t> last_ids;
    std::unique_ptr<RowLoader> loader;
    VRUN_TRY(Each([&](v1::BackupRecord& record) -> Status {
      VRUN_TRY(target_->Beat());
      if (record.has_table()) {
        if (loader) VRUN_TRY(loader->Flush());
        const v1::BackupTable& table = record.table();
        const auto shape = shapes.find(table.name());
        if (shape == shapes.end() || !last_ids.emplace(table.name(), table.last_id()).second) {
          return Error(Code::kCorrupt, "it is damaged: table " + Escape(table.name()));
        }
        VRUN_ASSIGN(loader, RowLoader::For(database, engine_, shape->second, table));
      } else if (record.has_row()) {
        if (!loader) return Error(Code::kCorrupt, "it is damaged: a row of no table");
        ++report_.rows;
        return loader->Add(std::move(*record.mutable_row()));
      }
      return {};
    }));
    if (loader) VRUN_TRY(loader->Flush());
    if (last_ids.size() != shapes.size()) return Error(Code::kCorrupt, Escape(file_) + ": tables are missing");
    for (const auto& [name, last] : last_ids) VRUN_TRY(tables.SetLastId(shapes[name], last));
    VRUN_TRY(SkipNumbers(tables, shapes));
    const sql::Schema schema = SchemaOf(engine_);
    return tables.Migrate(schema, report_.schema, schema.version());
  }

  // Nodes may still have jobs that were submitted after the backup.
  Status SkipNumbers(Tables& tables, const std::map<std::string, TableShape>& shapes) {
    const auto jobs = shapes.find("jobs");
    if (options_.exact || jobs == shapes.end()) return {};
    VRUN_ASSIGN(const int64_t last, tables.LastId(jobs->second));
    VRUN_TRY(tables.SetLastId(jobs->second, last + kSkippedIds));
    VRUN_ASSIGN(const std::string given, tables.Ask("SELECT coalesce(max(epoch), 0) FROM attempts"));
    VRUN_ASSIGN(const std::string floor, tables.Ask("SELECT value FROM meta WHERE key='epoch-floor'"));
    const int64_t epoch = std::max(std::strtoll(given.c_str(), nullptr, 10), std::strtoll(floor.c_str(), nullptr, 10));
    VRUN_ASSIGN([[maybe_unused]] const std::string nothing,
                tables.Ask("INSERT INTO meta (key, value) VALUES ('epoch-floor', ?) ON CONFLICT (key) DO UPDATE SET "
                           "value=excluded.value",
                           {std::to_string(epoch + kSkippedEpochs)}));
    report_.notes.push_back("the next job is number " + std::to_string(last + kSkippedIds + 1));
    return {};
  }

  const StatePlace to_;
  const Engine engine_;
  const std::string file_;
  const RestoreOptions options_;
  const BackupProgress& progress_;
  const std::string stamp_;
  StagedFiles staged_;
  std::optional<StagedFiles> staged_database_;
  std::unique_ptr<Target> target_;
  bool has_state_ = false;  // a database is there
  BackupReport report_;
};

}  // namespace

Result<BackupReport> BackUp(const StatePlace& from, const std::string& file, const BackupProgress& progress) {
  const Engine engine = EngineOf(from);
  VRUN_ASSIGN(const std::unique_ptr<sql::Database> database,
              engine == Engine::kSqlite ? OpenSqlite(DatabaseFile(from), false) : ConnectPostgres(from.database, ""));
  Tables tables(database.get(), engine);
  VRUN_TRY(tables.BeginReading());
  BackupReport report;
  VRUN_ASSIGN(report.schema, tables.Version());
  if (report.schema == 0) return Error(Code::kNotFound, "state database: no controller has used it");
  VRUN_TRY(KnowsVersion(report.schema, SchemaOf(engine), "the database"));
  VRUN_ASSIGN(const std::vector<TableShape> shapes, tables.Shapes());
  report.created_us = WallMicros();
  report.database = NameOf(engine);

  VRUN_ASSIGN(const std::unique_ptr<BackupWriter> writer, BackupWriter::Create(file));
  const auto tell = [&] {
    report.bytes = writer->bytes();
    if (progress) progress(report, -1);
  };
  v1::BackupRecord record;
  v1::BackupHeader* header = record.mutable_header();
  header->set_schema(report.schema);
  header->set_created_us(report.created_us);
  header->set_program(VRUN_VERSION);
  header->set_database(report.database);
  VRUN_TRY(writer->Add(record));
  for (const TableShape& shape : shapes) {
    record.Clear();
    v1::BackupTable* table = record.mutable_table();
    table->set_name(shape.name);
    for (size_t i = 0; i < shape.columns.size(); ++i) {
      table->add_columns(shape.columns[i]);
      table->add_integer(shape.kinds[i] == ColumnKind::kInteger);
    }
    VRUN_ASSIGN(const int64_t last_id, tables.LastId(shape));
    table->set_last_id(last_id);
    VRUN_TRY(writer->Add(record));
    VRUN_TRY(tables.Read(shape, [&](v1::BackupRow row) -> Status {
      *record.mutable_row() = std::move(row);
      VRUN_TRY(writer->Add(record));
      if (++report.rows % kRowsBetweenReports == 0) tell();
      return {};
    }));
  }
  AuditIt(from, "backup", file);  // which is part of it: what is there afterwards is what the backup has
  VRUN_TRY(ReadParts(StateParts(from), [&](v1::BackupFile part) -> Status {
    if (!part.more()) ++report.files;
    if (part.path().starts_with("authority/")) report.has_authority = true;
    *record.mutable_file() = std::move(part);
    return writer->Add(record);
  }));
  if (!from.authority.empty() && !report.has_authority) {
    return Error(Code::kNotFound, "the authority of the cluster is not in " + Escape(from.authority));
  }
  VRUN_TRY(writer->Finish());
  tell();
  return report;
}

Result<BackupReport> Restore(const StatePlace& to, const std::string& file, const RestoreOptions& options,
                             const BackupProgress& progress) {
  return RestoreRun(to, file, options, progress).Go();
}

}  // namespace vrun::control
