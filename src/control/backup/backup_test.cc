// SPDX-License-Identifier: Apache-2.0
// Backups of both databases, the real ones: what comes back is what was there, or nothing changes.
#include "control/backup/backup.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <set>

#include "base/io/file_lock.h"
#include "control/backup/backup_file.h"
#include "control/backup/places.h"
#include "control/backup/tables.h"
#include "control/store/postgres.h"
#include "control/store/sqlite.h"
#include "control/testing/postgres_server.h"
#include "control/testing/testing.h"

namespace vrun::control {
namespace {

PostgresServer* ServerOfBackups() {
  static const std::unique_ptr<PostgresServer> server(PostgresServer::Programs().empty() ? nullptr
                                                                                         : new PostgresServer());
  return server.get();
}

// All of a backup but its time: rows by table, as "column=value", and files by name.
struct Contents {
  std::map<std::string, std::multiset<std::string>> tables;
  std::map<std::string, std::set<std::string>> columns;
  std::map<std::string, std::string> files;
  std::string audit;  // has the backups and restores themselves
  bool operator==(const Contents& other) const {
    return tables == other.tables && columns == other.columns && files == other.files;
  }
};

Contents ContentsOf(const std::string& file) {
  Contents all;
  auto reader = BackupReader::Open(file);
  EXPECT_TRUE(reader) << reader.error().message();
  if (!reader) return all;
  v1::BackupRecord record;
  v1::BackupTable table;
  for (;;) {
    const Result<bool> more = (*reader)->Next(&record);
    EXPECT_TRUE(more) << more.error().message();
    if (!more || !*more) return all;
    if (record.has_table()) {
      table = record.table();
      all.tables[table.name()];
      for (const std::string& column : table.columns()) all.columns[table.name()].insert(column);
    } else if (record.has_row()) {
      std::set<std::string> values;
      int number = 0, text = 0;
      for (int i = 0; i < table.columns_size(); ++i) {
        values.insert(table.columns(i) + "=" +
                      (table.integer(i) ? std::to_string(record.row().numbers(number++)) : record.row().texts(text++)));
      }
      std::string row;
      for (const std::string& value : values) row += std::to_string(value.size()) + ":" + value;
      all.tables[table.name()].insert(row);
    } else if (record.has_file()) {
      const bool audit = record.file().path() == "people/audit";
      (audit ? all.audit : all.files[record.file().path()]) += record.file().content();
    }
  }
}

class BackupTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  StatePlace Place(const std::string& name) const { return {Path(name), "", "", ""}; }

  // A state with a job that runs, one that has ended, files, and a row in each table that the schema has.
  StatePlace Filled(const std::string& name) {
    const StatePlace place = Place(name);
    EXPECT_TRUE(MakeDirs(place.state_directory + "/people/members/home", 0700));
    auto opened = SqliteStore::Open(DatabaseFile(place));
    EXPECT_TRUE(opened) << opened.error().message();
    SqliteStore& store = **opened;
    EXPECT_TRUE(store.Begin());
    for (int i = 0; i < 450; ++i) {
      JobRow job;
      job.user = "anna";
      job.request_id = "r" + std::to_string(i);
      job.name = "name\n\xff";
      job.home_id = std::string("h\0me", 4);
      job.spec = std::string("\0spec", 5) + std::to_string(i);
      job.pool = "local";
      job.submitted_us = 42;
      const auto id = store.InsertJob(job);
      EXPECT_TRUE(id) << id.error().message();
      EXPECT_TRUE(store.PutAttempt({*id, 1, *id + 100, v1::RUNNING, 5, 0}));
      EXPECT_TRUE(store.PutPod(*id, 1, {0, "n1", std::string("\0t", 2)}));
    }
    IntervalRow interval{1, 1, 0, 10, 20, "n1"};
    EXPECT_TRUE(store.AddInterval({"anna", "vision", "p", "local", "h100"}, interval));
    EXPECT_TRUE(store.PutAccountingClock({"boot", 1, 2}));
    EXPECT_TRUE(store.AppendJournal("journal"));
    EXPECT_TRUE(store.Commit());
    opened->reset();
    FillEmptyTables(DatabaseFile(place));
    EXPECT_TRUE(WriteFileAtomic(place.state_directory + "/content-secret", std::string(32, '\1'), 0600));
    EXPECT_TRUE(WriteFileAtomic(place.state_directory + "/people/members/home/anna@laptop", "member", 0600));
    EXPECT_TRUE(WriteFileAtomic(place.state_directory + "/people/audit", std::string(2'500'000, 'a'), 0600));
    return place;
  }

  // A row of made-up values for each table that has none: of tables that this test does not know, too.
  static void FillEmptyTables(const std::string& path) {
    std::vector<TableShape> shapes;
    {
      auto database = OpenSqlite(path, false);
      ASSERT_TRUE(database);
      Tables tables(database->get(), Engine::kSqlite);
      auto all = tables.Shapes();
      ASSERT_TRUE(all) << all.error().message();
      for (TableShape& shape : *all) {
        if (!*tables.HasRows({shape})) shapes.push_back(std::move(shape));
      }
    }
    sqlite3* handle = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
    for (const TableShape& shape : shapes) {
      std::string names, values;
      for (size_t i = 0; i < shape.columns.size(); ++i) {
        names += (i > 0 ? ", \"" : "\"") + shape.columns[i] + "\"";
        const ColumnKind kind = shape.kinds[i];
        values += i > 0 ? ", " : "";
        values += kind == ColumnKind::kInteger ? "1" : kind == ColumnKind::kText ? "'text'" : "x'00ff'";
      }
      const std::string sql = "INSERT INTO \"" + shape.name + "\" (" + names + ") VALUES (" + values + ")";
      EXPECT_EQ(sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
          << sql << ": " << sqlite3_errmsg(handle);
    }
    sqlite3_close(handle);
  }

  BackupReport Take(const StatePlace& from, const std::string& file) {
    auto done = BackUp(from, Path(file), {});
    EXPECT_TRUE(done) << done.error().message();
    return done.value_or(BackupReport{});
  }
  Result<BackupReport> Put(const StatePlace& to, const std::string& file, RestoreOptions options = {false, true}) {
    return Restore(to, Path(file), options, {});
  }

  TestDirectory directory_;
};

TEST_F(BackupTest, WhatWasThereIsThereAgain) {
  const StatePlace from = Filled("a");
  const BackupReport taken = Take(from, "one");
  EXPECT_EQ(taken.database, "SQLite");
  EXPECT_GT(taken.rows, 450u);
  EXPECT_EQ(taken.files, 4u);
  struct stat st {};
  ASSERT_EQ(::stat(Path("one").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);

  const auto put = Put(Place("b"), "one");
  ASSERT_TRUE(put) << put.error().message();
  EXPECT_EQ(put->rows, taken.rows);
  EXPECT_EQ(put->moved, "");
  EXPECT_FALSE(PathExists(Path("b/restoring")) || PathExists(Path("b/restoring-database")));
  Take(Place("b"), "two");
  const Contents one = ContentsOf(Path("one"));
  EXPECT_EQ(one, ContentsOf(Path("two")));
  EXPECT_TRUE(one.audit.starts_with(std::string(2'500'000, 'a')) && one.audit.ends_with("ok\n"));
  for (const auto& [table, rows] : one.tables) EXPECT_FALSE(rows.empty()) << table;

  auto store = SqliteStore::Open(DatabaseFile(Place("b")));
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_EQ((*store)->GetJob(7)->value().spec, std::string("\0spec", 5) + "6") << "the key came along";
}

TEST_F(BackupTest, TheOtherDatabaseReadsIt) {
  if (ServerOfBackups() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed: tools/install-deps --test";
  Take(Filled("a"), "one");
  StatePlace postgres = Place("pg");
  postgres.database = ServerOfBackups()->MakeDatabase();
  const auto put = Put(postgres, "one");
  ASSERT_TRUE(put) << put.error().message();
  EXPECT_EQ(Take(postgres, "two").database, "PostgreSQL");
  const auto back = Put(Place("b"), "two");
  ASSERT_TRUE(back) << back.error().message();
  Take(Place("b"), "three");
  // Each has all tables and columns of the other one: none was forgotten in a migration of one of them.
  const Contents one = ContentsOf(Path("one"));
  EXPECT_EQ(one, ContentsOf(Path("two")));
  EXPECT_EQ(one, ContentsOf(Path("three")));

  auto store = PostgresStore::Open({postgres.database, "test", postgres.state_directory + "/vrun.db.key", {}});
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_EQ((*store)->GetJob(7)->value().spec, std::string("\0spec", 5) + "6");
  // Ids go on.
  ASSERT_TRUE((*store)->Begin());
  JobRow job;
  job.user = "ben";
  job.request_id = "new";
  EXPECT_EQ(*(*store)->InsertJob(job), 451u);
  EXPECT_TRUE((*store)->AppendJournal("more"));
  EXPECT_TRUE((*store)->AddInterval({"ben", "", "", "local", ""}, {451, 1, 0, 10, 20, "n1"}));
  EXPECT_TRUE((*store)->Commit());
}

// SQLite gives back what it was given: bytes in a column of text would not be found any more.
TEST_F(BackupTest, ValuesHaveTheTypesOfTheirColumns) {
  Take(Filled("a"), "one");
  ASSERT_TRUE(Put(Place("b"), "one"));
  for (const char* name : {"a", "b"}) {
    auto database = OpenSqlite(DatabaseFile(Place(name)), false);
    ASSERT_TRUE(database);
    Tables tables(database->get(), Engine::kSqlite);
    const auto shapes = tables.Shapes();
    ASSERT_TRUE(shapes) << shapes.error().message();
    for (const TableShape& shape : *shapes) {
      for (size_t i = 0; i < shape.columns.size(); ++i) {
        const char* type = shape.kinds[i] == ColumnKind::kInteger ? "integer"
                           : shape.kinds[i] == ColumnKind::kText  ? "text"
                                                                  : "blob";
        const auto others = tables.Ask("SELECT count(*) FROM \"" + shape.name + "\" WHERE typeof(\"" +
                                       shape.columns[i] + "\") != '" + type + "'");
        ASSERT_TRUE(others) << others.error().message();
        EXPECT_EQ(*others, "0") << name << ": " << shape.name << "." << shape.columns[i] << " is no " << type;
      }
    }
  }
}

TEST_F(BackupTest, AStoreIsBackedUpWhileItIsUsed) {
  const StatePlace place = Filled("a");
  auto store = SqliteStore::Open(DatabaseFile(place));
  ASSERT_TRUE(store) << store.error().message();
  JobRow job;
  job.user = "ben";
  job.request_id = "late";
  ASSERT_TRUE((*store)->Begin());
  ASSERT_TRUE((*store)->InsertJob(job));
  Take(place, "one");  // not yet committed: not part of it
  ASSERT_TRUE((*store)->Commit());
  Take(place, "two");
  EXPECT_EQ(ContentsOf(Path("one")).tables["jobs"].size() + 1, ContentsOf(Path("two")).tables["jobs"].size());
  ASSERT_TRUE((*store)->Begin());
  job.request_id = "later";
  EXPECT_TRUE((*store)->InsertJob(job));
  EXPECT_TRUE((*store)->Commit());
}

TEST_F(BackupTest, NothingIsOverwritten) {
  const StatePlace place = Filled("a");
  Take(place, "one");
  const auto refused = Put(place, "one");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExists);
  EXPECT_NE(refused.error().message().find("--replace"), std::string::npos) << refused.error().message();

  // People that are not those of the backup are a state too.
  StatePlace other = Place("b");
  ASSERT_TRUE(MakeDirs(other.state_directory + "/people", 0700));
  ASSERT_TRUE(WriteFileAtomic(other.state_directory + "/people/audit", "theirs", 0600));
  EXPECT_EQ(Put(other, "one").error().code(), Code::kExists);
  EXPECT_EQ(*ReadFile(other.state_directory + "/people/audit"), "theirs");
  EXPECT_FALSE(PathExists(DatabaseFile(other)));

  ASSERT_TRUE(WriteFileAtomic(place.state_directory + "/people/audit", "since", 0600));
  const auto put = Put(place, "one", {true, true});
  ASSERT_TRUE(put) << put.error().message();
  EXPECT_EQ(*ReadFile(put->moved + "/people/audit"), "since");
  EXPECT_TRUE(PathExists(put->moved + "/vrun.db"));
  Take(place, "two");
  EXPECT_EQ(ContentsOf(Path("one")), ContentsOf(Path("two")));
}

TEST_F(BackupTest, PostgresTablesAreMovedAside) {
  if (ServerOfBackups() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed: tools/install-deps --test";
  Take(Filled("a"), "one");
  StatePlace postgres = Place("pg");
  postgres.database = ServerOfBackups()->MakeDatabase();
  ASSERT_TRUE(Put(postgres, "one"));
  EXPECT_EQ(Put(postgres, "one").error().code(), Code::kExists);
  const auto put = Put(postgres, "one", {true, true});
  ASSERT_TRUE(put) << put.error().message();
  EXPECT_NE(put->moved.find("the schema vrun_"), std::string::npos) << put->moved;
  Take(postgres, "two");
  EXPECT_EQ(ContentsOf(Path("one")), ContentsOf(Path("two")));

  // Another's tables are not touched.
  StatePlace others = Place("other");
  others.database = ServerOfBackups()->MakeDatabase();
  const std::string name = others.database.substr(others.database.rfind('=') + 1);
  ASSERT_TRUE(ServerOfBackups()->Sql("CREATE TABLE accounts (id bigint)", name));
  const auto refused = Put(others, "one", {true, true});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("accounts"), std::string::npos) << refused.error().message();
}

TEST_F(BackupTest, NotWhileAControllerRuns) {
  Take(Filled("a"), "one");
  ASSERT_TRUE(MakeDirs(Path("b"), 0700));
  auto lock = LockFile(Path("b") + "/lock");
  ASSERT_TRUE(lock);
  const auto refused = Put(Place("b"), "one");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("a controller runs on"), std::string::npos) << refused.error().message();
  if (ServerOfBackups() == nullptr) return;
  StatePlace postgres = Place("pg");
  postgres.database = ServerOfBackups()->MakeDatabase();
  auto store = PostgresStore::Open({postgres.database, "first", Path("key"), {}});
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_NE(Put(postgres, "one").error().message().find("controller first has it"), std::string::npos);
}

TEST_F(BackupTest, NumbersThatWereGivenSinceAreNotGivenAgain) {
  Take(Filled("a"), "one");
  ASSERT_TRUE(Put(Place("b"), "one", {}));
  auto store = SqliteStore::Open(DatabaseFile(Place("b")));
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_GT(*(*store)->LastEpoch(), 1'000'000'000u);
  ASSERT_TRUE((*store)->Begin());
  JobRow job;
  job.user = "ben";
  job.request_id = "new";
  EXPECT_EQ(*(*store)->InsertJob(job), 1'000'451u);
  (*store)->Rollback();
}

TEST_F(BackupTest, ADamagedFileChangesNothing) {
  Take(Filled("a"), "one");
  const std::string whole = *ReadFile(Path("one"));
  std::mt19937 random(7);
  int meaningless = 0;
  for (int i = 0; i < 200; ++i) {
    std::string bytes = whole;
    const size_t at = random() % whole.size();
    if (i % 2 == 0) {
      bytes.resize(at);
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    }
    ASSERT_TRUE(WriteFileAtomic(Path("bad"), bytes, 0600));
    const auto refused = Put(Place("b"), "bad");
    if (refused) {  // zstd has bits that mean nothing
      ASSERT_TRUE(i % 2 == 1 && ++meaningless < 4) << i << " at " << at;
      EXPECT_EQ(ContentsOf(Path("bad")), ContentsOf(Path("one")));
      ASSERT_TRUE(RemoveTree(Path("b")));
      continue;
    }
    EXPECT_TRUE(refused.error().code() == Code::kCorrupt || refused.error().code() == Code::kInvalid ||
                refused.error().code() == Code::kUnsupported)
        << refused.error().message();
    EXPECT_EQ(refused.error().message().find('\n'), std::string::npos);
    ASSERT_FALSE(PathExists(Path("b/vrun.db")) || PathExists(Path("b/people")));
  }
  ASSERT_TRUE(WriteFileAtomic(Path("bad"), whole + "x", 0600));
  EXPECT_EQ(Put(Place("b"), "bad").error().code(), Code::kCorrupt);
  EXPECT_TRUE(Put(Place("b"), "one"));
}

// With --replace too: only a whole backup moves aside what is there.
TEST_F(BackupTest, ADamagedFileLeavesTheStateThatIsThere) {
  std::vector<StatePlace> places{Filled("a")};
  Take(places[0], "one");
  if (ServerOfBackups() != nullptr) {
    places.push_back(Place("pg"));
    places[1].database = ServerOfBackups()->MakeDatabase();
    ASSERT_TRUE(Put(places[1], "one"));
  }
  const std::string whole = *ReadFile(Path("one"));
  const Contents before = ContentsOf(Path("one"));
  for (const StatePlace& place : places) {
    for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{20}, size_t{0}}) {
      ASSERT_TRUE(WriteFileAtomic(Path("cut"), whole.substr(0, size), 0600));
      EXPECT_FALSE(Put(place, "cut", {true, false})) << size;
    }
    Take(place, "after");
    EXPECT_EQ(before, ContentsOf(Path("after"))) << place.database;
  }
}

TEST_F(BackupTest, ADatabaseOfANewerVersionIsNotReplaced) {
  Take(Filled("a"), "one");
  for (const bool on_postgres : {false, true}) {
    if (on_postgres && ServerOfBackups() == nullptr) continue;
    StatePlace place = Place(on_postgres ? "pg" : "b");
    if (on_postgres) {
      place.database = ServerOfBackups()->MakeDatabase();
      const std::string name = place.database.substr(place.database.rfind('=') + 1);
      ASSERT_TRUE(PostgresStore::Open({place.database, "test", Path("key"), {}}));
      ASSERT_TRUE(ServerOfBackups()->Sql("UPDATE schema_version SET version=1000", name));
    } else {
      ASSERT_TRUE(MakeDirs(place.state_directory, 0700));
      ASSERT_TRUE(SqliteStore::Open(DatabaseFile(place)));
      sqlite3* handle = nullptr;
      ASSERT_EQ(sqlite3_open(DatabaseFile(place).c_str(), &handle), SQLITE_OK);
      EXPECT_EQ(sqlite3_exec(handle, "PRAGMA user_version=1000", nullptr, nullptr, nullptr), SQLITE_OK);
      sqlite3_close(handle);
    }
    const auto refused = Put(place, "one");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kUnsupported);
    EXPECT_NE(refused.error().message().find("is of schema version 1000"), std::string::npos)
        << refused.error().message();
    const auto replaced = Put(place, "one", {true, true});
    ASSERT_TRUE(replaced) << replaced.error().message();
    EXPECT_NE(replaced->moved, "");
  }
}

TEST_F(BackupTest, ADeviceIsNotReplaced) {
  ASSERT_EQ(::mkfifo(Path("device").c_str(), 0600), 0);
  EXPECT_FALSE(BackupWriter::Create(Path("device")));
  EXPECT_TRUE(BackupWriter::Create(Path("new")));
}

// Whoever made the file has its digest right, and not our interest in mind.
TEST_F(BackupTest, AForgedFileWritesNowhereElse) {
  for (const std::string name : {"../outside", "/etc/outside", "people/../../outside", "people//x", "", "."}) {
    auto writer = BackupWriter::Create(Path("forged"));
    ASSERT_TRUE(writer);
    v1::BackupRecord record;
    record.mutable_header()->set_schema(1);
    ASSERT_TRUE((*writer)->Add(record));
    record.mutable_file()->set_path(name);
    record.mutable_file()->set_content("x");
    ASSERT_TRUE((*writer)->Add(record));
    ASSERT_TRUE((*writer)->Finish());
    EXPECT_EQ(Put(Place("b"), "forged").error().code(), Code::kCorrupt) << name;
    EXPECT_FALSE(PathExists(Path("outside")));
  }
}

TEST_F(BackupTest, OfANewerVersionOrNothingIsRefused) {
  auto writer = BackupWriter::Create(Path("newer"));
  ASSERT_TRUE(writer);
  v1::BackupRecord record;
  record.mutable_header()->set_schema(1000);
  ASSERT_TRUE((*writer)->Add(record));
  ASSERT_TRUE((*writer)->Finish());
  EXPECT_EQ(Put(Place("b"), "newer").error().code(), Code::kUnsupported);
  EXPECT_EQ(BackUp(Place("nothing"), Path("x"), {}).error().code(), Code::kNotFound);
  EXPECT_FALSE(PathExists(Path("x")) || PathExists(Path("nothing/vrun.db")));
}

// As it is after an update of the program: the backup is older.
TEST_F(BackupTest, AnOlderSchemaIsBroughtUpToDate) {
  const std::string path = Path("old.db");
  const sql::Schema schema = SqliteSchema();
  {
    auto database = OpenSqlite(path, true);
    ASSERT_TRUE(database);
    Tables tables(database->get(), Engine::kSqlite);
    ASSERT_TRUE((*database)->Run("BEGIN"));
    ASSERT_TRUE(tables.Migrate(schema, 0, schema.version() - 1));
    ASSERT_TRUE((*database)->Run("COMMIT"));
    ASSERT_TRUE(FinishSqlite(std::move(*database), path));
  }
  ASSERT_TRUE(MakeDirs(Path("a"), 0700));
  ASSERT_EQ(::rename(path.c_str(), Path("a/vrun.db").c_str()), 0);
  EXPECT_EQ(Take(Place("a"), "one").schema, schema.version() - 1);
  ASSERT_TRUE(Put(Place("b"), "one"));
  auto database = OpenSqlite(Path("b/vrun.db"), false);
  ASSERT_TRUE(database);
  EXPECT_EQ(*Tables(database->get(), Engine::kSqlite).Version(), schema.version());
}

TEST_F(BackupTest, TheAuthorityOnlyWhereItIsAskedFor) {
  StatePlace place = Filled("a");
  ASSERT_TRUE(MakeDirs(Path("pki"), 0700));
  ASSERT_TRUE(WriteFileAtomic(Path("pki/ca.pem"), "certificate", 0644));
  ASSERT_TRUE(WriteFileAtomic(Path("pki/ca.key"), "key", 0600));
  EXPECT_FALSE(Take(place, "without").has_authority);
  place.authority = Path("pki");
  EXPECT_TRUE(Take(place, "with").has_authority);
  const auto told = Put(Place("b"), "with");
  ASSERT_TRUE(told) << told.error().message();
  ASSERT_EQ(told->notes.size(), 1u);
  StatePlace to = Place("c");
  to.authority = Path("new-pki");
  ASSERT_TRUE(Put(to, "with"));
  EXPECT_EQ(*ReadFile(Path("new-pki/ca.key")), "key");
  place.authority = Path("nowhere");
  EXPECT_EQ(BackUp(place, Path("x"), {}).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace vrun::control
