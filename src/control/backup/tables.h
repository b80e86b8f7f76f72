// SPDX-License-Identifier: Apache-2.0
// The tables of a controller's database as its schema names them, for both databases: whoever adds a table need not
// know of backups.
//
// One thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "control/store/sql.h"
#include "proto/backup.pb.h"

namespace vrun::control {

enum class Engine { kSqlite, kPostgres };

enum class ColumnKind { kInteger, kText, kBlob };  // text and bytes are one kind in PostgreSQL

struct TableShape {
  std::string name;
  std::vector<std::string> columns;
  std::vector<ColumnKind> kinds;
  bool gives_ids = false;  // and gives none twice, also when rows are deleted
};

class Tables {
 public:
  Tables(sql::Database* database, Engine engine) : database_(database), engine_(engine) {}

  // One consistent state of all tables until the database is closed.
  Status BeginReading();
  // 0: it has no schema. kCorrupt: it has tables, and they are not a controller's.
  Result<int64_t> Version();
  // Those to which others refer come first.
  Result<std::vector<TableShape>> Shapes();
  Result<bool> HasRows(const std::vector<TableShape>& shapes);
  // The highest id that the table ever gave.
  Result<int64_t> LastId(const TableShape& shape);
  Status Read(const TableShape& shape, const std::function<Status(v1::BackupRow row)>& each);

  // Runs the steps of the schema that lead from one version to another, in the open transaction.
  Status Migrate(const sql::Schema& schema, int64_t from, int64_t to);
  // Ids go on after this one, and after those of the rows.
  Status SetLastId(const TableShape& shape, int64_t last_id);
  // One statement, with at most one value as its answer; "" without one.
  Result<std::string> Ask(const std::string& sql, const std::vector<std::string>& parameters = {});

 private:
  sql::Database* const database_;
  const Engine engine_;
};

// Puts rows into a table, many with each statement.
class RowLoader {
 public:
  // `columns`: those that each row has. kCorrupt: the table has others.
  static Result<std::unique_ptr<RowLoader>> For(sql::Database* database, Engine engine, const TableShape& shape,
                                                const v1::BackupTable& table);
  Status Add(v1::BackupRow row);
  Status Flush();

 private:
  RowLoader(sql::Database* database, std::string head) : database_(database), head_(std::move(head)) {}
  Status Insert(size_t from, size_t count);

  sql::Database* const database_;
  const std::string head_;         // INSERT INTO ... VALUES
  std::string one_;                // (?,?)
  std::vector<ColumnKind> kinds_;  // in the order of the rows
  size_t batch_ = 1;               // rows of one statement
  int numbers_ = 0, texts_ = 0;    // of a row
  std::vector<v1::BackupRow> rows_;
  size_t bytes_ = 0;
};

}  // namespace vrun::control
