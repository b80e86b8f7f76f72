// SPDX-License-Identifier: Apache-2.0
#include "control/backup/tables.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/escape.h"

namespace vrun::control {
namespace {

// What only PostgreSQL has: who has the database, and the version that SQLite keeps in its header.
constexpr std::string_view kNotState[] = {"leader", "schema_version"};
constexpr int kFetched = 200;                         // rows that a cursor gives at once
constexpr size_t kMostParameters = 20'000;            // of one statement; SQLite's limit is 32,766
constexpr size_t kRowsOfInsert = 200;                 // of one statement
constexpr size_t kMostLoadedBytes = size_t{8} << 20;  // of rows that wait

std::string Quoted(const std::string& name) { return '"' + name + '"'; }

bool IsState(const std::string& table) {
  return std::find(std::begin(kNotState), std::end(kNotState), table) == std::end(kNotState);
}

// Resets the statement at the end of a block.
class StatementUse {
 public:
  explicit StatementUse(sql::Prepared* prepared) : prepared_(prepared) {}
  ~StatementUse() { prepared_->Reset(); }
  StatementUse(const StatementUse&) = delete;
  StatementUse& operator=(const StatementUse&) = delete;
  sql::Prepared* operator->() const { return prepared_; }

 private:
  sql::Prepared* const prepared_;
};

constexpr char kSqliteColumns[] =
    "SELECT m.name, c.name, upper(c.type), m.sql LIKE '%AUTOINCREMENT%' FROM sqlite_master m "
    "JOIN pragma_table_info(m.name) c WHERE m.type='table' AND m.name NOT LIKE 'sqlite!_%' ESCAPE '!' "
    "ORDER BY m.name, c.cid";
constexpr char kPostgresColumns[] =
    "SELECT c.table_name::text, c.column_name::text, upper(c.data_type::text), "
    "CASE WHEN c.is_identity='YES' THEN 1 ELSE 0 END FROM information_schema.columns c "
    "JOIN information_schema.tables t ON t.table_schema=c.table_schema AND t.table_name=c.table_name "
    "WHERE c.table_schema=current_schema() AND t.table_type='BASE TABLE' ORDER BY c.table_name, c.ordinal_position";
// A table, and one to which it refers.
constexpr char kSqliteReferences[] =
    "SELECT DISTINCT m.name, f.\"table\" FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) f "
    "WHERE m.type='table'";
constexpr char kPostgresReferences[] =
    "SELECT DISTINCT a.relname::text, b.relname::text FROM pg_constraint c JOIN pg_class a ON a.oid=c.conrelid "
    "JOIN pg_class b ON b.oid=c.confrelid WHERE c.contype='f' AND c.connamespace=current_schema()::text::regnamespace";

Result<ColumnKind> ColumnKindOf(const std::string& table, const std::string& column, const std::string& type) {
  if (type == "INTEGER" || type == "BIGINT") return ColumnKind::kInteger;
  if (type == "TEXT") return ColumnKind::kText;
  if (type == "BLOB" || type == "BYTEA") return ColumnKind::kBlob;
  return Error(Code::kUnsupported, "column " + Escape(column) + " of table " + Escape(table) + " is of type " +
                                       Escape(type) + ", which a backup does not know");
}

}  // namespace

Result<std::string> Tables::Ask(const std::string& sql, const std::vector<std::string>& parameters) {
  VRUN_ASSIGN(sql::Prepared * prepared, database_->Prepare(sql));
  const StatementUse use(prepared);
  for (const std::string& p : parameters) use->BindBlob(p);
  VRUN_ASSIGN(const bool row, use->Step());
  return row ? use->Bytes() : "";
}

Status Tables::BeginReading() {
  return database_->Run(engine_ == Engine::kSqlite ? "BEGIN; SELECT count(*) FROM sqlite_master"
                                                   : "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
}

Result<int64_t> Tables::Version() {
  std::string text;
  if (engine_ == Engine::kSqlite) {
    VRUN_ASSIGN(text, Ask("PRAGMA user_version"));
  } else {
    VRUN_ASSIGN(const std::string there, Ask("SELECT to_regclass('schema_version')::text"));
    if (!there.empty()) {
      VRUN_ASSIGN(text, Ask("SELECT version FROM schema_version"));
    }
  }
  const int64_t version = std::strtoll(text.c_str(), nullptr, 10);
  if (version == 0) {
    VRUN_ASSIGN(const std::vector<TableShape> shapes, Shapes());
    if (!shapes.empty()) {
      return Error(Code::kCorrupt, "state database: it has a table " + Escape(shapes[0].name) +
                                       ", which is not a controller's: name another database");
    }
  }
  return version;
}

Result<std::vector<TableShape>> Tables::Shapes() {
  std::vector<TableShape> all;
  {
    VRUN_ASSIGN(sql::Prepared * prepared,
                database_->Prepare(engine_ == Engine::kSqlite ? kSqliteColumns : kPostgresColumns));
    const StatementUse use(prepared);
    for (;;) {
      VRUN_ASSIGN(const bool row, use->Step());
      if (!row) break;
      const std::string table = use->Bytes(), column = use->Bytes(), type = use->Bytes();
      const bool gives_ids = use->Int() != 0;
      if (!IsState(table)) continue;
      if (all.empty() || all.back().name != table) all.push_back({table, {}, {}, false});
      VRUN_ASSIGN(const ColumnKind kind, ColumnKindOf(table, column, type));
      all.back().columns.push_back(column);
      all.back().kinds.push_back(kind);
      all.back().gives_ids = all.back().gives_ids || gives_ids;
    }
  }
  std::map<std::string, std::set<std::string>> refers;
  {
    VRUN_ASSIGN(sql::Prepared * prepared,
                database_->Prepare(engine_ == Engine::kSqlite ? kSqliteReferences : kPostgresReferences));
    const StatementUse use(prepared);
    for (;;) {
      VRUN_ASSIGN(const bool row, use->Step());
      if (!row) break;
      const std::string from = use->Bytes(), to = use->Bytes();
      if (from != to) refers[from].insert(to);
    }
  }
  std::vector<TableShape> ordered;
  std::set<std::string> done;
  while (!all.empty()) {
    const auto ready = [&](const TableShape& shape) {
      const std::set<std::string>& to = refers[shape.name];
      return std::includes(done.begin(), done.end(), to.begin(), to.end());
    };
    auto next = std::find_if(all.begin(), all.end(), ready);
    if (next == all.end())
      return Error(Code::kUnsupported, "tables that refer to each other: a backup cannot hold them");
    done.insert(next->name);
    ordered.push_back(std::move(*next));
    all.erase(next);
  }
  return ordered;
}

Result<bool> Tables::HasRows(const std::vector<TableShape>& shapes) {
  for (const TableShape& shape : shapes) {
    VRUN_ASSIGN(const std::string one, Ask("SELECT 1 FROM " + Quoted(shape.name) + " LIMIT 1"));
    if (!one.empty()) return true;
  }
  return false;
}

Result<int64_t> Tables::LastId(const TableShape& shape) {
  if (!shape.gives_ids) return 0;
  std::string text;
  if (engine_ == Engine::kSqlite) {
    VRUN_ASSIGN(text, Ask("SELECT seq FROM sqlite_sequence WHERE name='" + shape.name + "'"));
  } else {
    // Its table is one of the transaction's; its value is not. A later one does no harm.
    VRUN_ASSIGN(const std::string sequence, Ask("SELECT pg_get_serial_sequence('" + shape.name + "', 'id')"));
    if (sequence.empty()) return 0;
    VRUN_ASSIGN(text, Ask("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM " + sequence));
  }
  return std::strtoll(text.c_str(), nullptr, 10);
}

Status Tables::Read(const TableShape& shape, const std::function<Status(v1::BackupRow row)>& each) {
  std::string select = "SELECT ";
  for (const std::string& column : shape.columns) select += (select.size() > 7 ? ", " : "") + Quoted(column);
  select += " FROM " + Quoted(shape.name);
  const auto rows_of = [&](const std::string& sql) -> Result<int> {
    VRUN_ASSIGN(sql::Prepared * prepared, database_->Prepare(sql));
    const StatementUse use(prepared);
    for (int rows = 0;; ++rows) {
      VRUN_ASSIGN(const bool row, use->Step());
      if (!row) return rows;
      v1::BackupRow out;
      for (const ColumnKind kind : shape.kinds) {
        if (kind == ColumnKind::kInteger) {
          out.add_numbers(use->Int());
        } else {
          out.add_texts(use->Bytes());
        }
      }
      VRUN_TRY(each(std::move(out)));
    }
  };
  if (engine_ == Engine::kSqlite) {
    VRUN_ASSIGN([[maybe_unused]] const int rows, rows_of(select));
    return {};
  }
  // libpq would hold all rows at once.
  const std::string cursor = Quoted("backup_" + shape.name);
  VRUN_TRY(database_->Run("DECLARE " + cursor + " NO SCROLL CURSOR FOR " + select));
  for (int rows = 1; rows > 0;) {
    VRUN_ASSIGN(rows, rows_of("FETCH " + std::to_string(kFetched) + " FROM " + cursor));
  }
  return database_->Run("CLOSE " + cursor);
}

Status Tables::Migrate(const sql::Schema& schema, int64_t from, int64_t to) {
  for (int64_t v = std::max(from + 1, schema.first); v <= to; ++v) {
    VRUN_TRY(database_->Run(schema.steps[static_cast<size_t>(v - schema.first)]));
  }
  const std::string version = std::to_string(to);
  return database_->Run(engine_ == Engine::kSqlite
                            ? "PRAGMA user_version=" + version
                            : "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL); DELETE FROM "
                              "schema_version; INSERT INTO schema_version VALUES (" +
                                  version + ")");
}

Status Tables::SetLastId(const TableShape& shape, int64_t last_id) {
  if (!shape.gives_ids) return {};
  const std::string last = std::to_string(last_id), name = "'" + shape.name + "'";
  if (engine_ == Engine::kSqlite) {
    VRUN_TRY(database_->Run("UPDATE sqlite_sequence SET seq=max(seq, " + last + ") WHERE name=" + name));
    return database_->Run("INSERT INTO sqlite_sequence (name, seq) SELECT " + name + ", " + last +
                          " WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name=" + name + ")");
  }
  return database_->Run("SELECT setval(pg_get_serial_sequence(" + name + ", 'id'), greatest(" + last +
                        ", (SELECT max(id) FROM " + Quoted(shape.name) + "), 1), greatest(" + last +
                        ", (SELECT max(id) FROM " + Quoted(shape.name) + "), 0) > 0)");
}

Result<std::unique_ptr<RowLoader>> RowLoader::For(sql::Database* database, Engine engine, const TableShape& shape,
                                                  const v1::BackupTable& table) {
  const Error differs(Code::kCorrupt, "table " + Escape(shape.name) + " has other columns in the backup");
  if (static_cast<size_t>(table.columns_size()) != shape.columns.size() ||
      table.integer_size() != table.columns_size()) {
    return differs;
  }
  std::string head = "INSERT INTO " + Quoted(shape.name) + " (", one = "(";
  std::vector<ColumnKind> kinds;
  int numbers = 0;
  std::set<std::string> seen;
  for (int i = 0; i < table.columns_size(); ++i) {
    const auto found = std::find(shape.columns.begin(), shape.columns.end(), table.columns(i));
    if (found == shape.columns.end() || !seen.insert(table.columns(i)).second) return differs;
    kinds.push_back(shape.kinds[static_cast<size_t>(found - shape.columns.begin())]);
    if ((kinds.back() == ColumnKind::kInteger) != table.integer(i)) return differs;
    numbers += table.integer(i) ? 1 : 0;
    head += (i > 0 ? ", " : "") + Quoted(*found);
    one += i > 0 ? ",?" : "?";
  }
  head += engine == Engine::kPostgres ? ") OVERRIDING SYSTEM VALUE VALUES " : ") VALUES ";
  std::unique_ptr<RowLoader> loader(new RowLoader(database, std::move(head)));
  loader->one_ = one + ")";
  loader->batch_ = std::clamp<size_t>(kMostParameters / kinds.size(), 1, kRowsOfInsert);
  loader->numbers_ = numbers;
  loader->texts_ = static_cast<int>(kinds.size()) - numbers;
  loader->kinds_ = std::move(kinds);
  return loader;
}

Status RowLoader::Add(v1::BackupRow row) {
  if (row.numbers_size() != numbers_ || row.texts_size() != texts_) {
    return Error(Code::kCorrupt, "a row of the backup does not fit its table");
  }
  bytes_ += row.ByteSizeLong();
  rows_.push_back(std::move(row));
  if (bytes_ > kMostLoadedBytes) return Flush();
  if (rows_.size() < batch_) return {};
  VRUN_TRY(Insert(0, rows_.size()));
  rows_.clear();
  bytes_ = 0;
  return {};
}

Status RowLoader::Flush() {
  for (size_t i = 0; i < rows_.size(); ++i) VRUN_TRY(Insert(i, 1));
  rows_.clear();
  bytes_ = 0;
  return {};
}

Status RowLoader::Insert(size_t from, size_t count) {
  std::string sql = head_;
  for (size_t i = 0; i < count; ++i) sql += (i > 0 ? "," : "") + one_;
  VRUN_ASSIGN(sql::Prepared * prepared, database_->Prepare(sql));
  const StatementUse use(prepared);
  for (size_t i = from; i < from + count; ++i) {
    int number = 0, text = 0;
    for (const ColumnKind kind : kinds_) {
      if (kind == ColumnKind::kInteger) {
        use->BindInt(rows_[i].numbers(number++));
      } else if (kind == ColumnKind::kText) {
        use->BindText(rows_[i].texts(text++));
      } else {
        use->BindBlob(rows_[i].texts(text++));
      }
    }
  }
  VRUN_ASSIGN([[maybe_unused]] const bool row, use->Step());
  return {};
}

}  // namespace vrun::control
