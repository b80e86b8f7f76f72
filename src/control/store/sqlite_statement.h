// SPDX-License-Identifier: Apache-2.0
// Prepared statements of the SQLite store. Only its own files include this.
#pragma once

#include <sqlite3.h>

#include <map>
#include <string>
#include <string_view>

#include "control/store/sqlite.h"

namespace vrun::control {

// `db`: may be null.
Error SqliteError(sqlite3* db, int code, std::string_view what);

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

}  // namespace vrun::control
