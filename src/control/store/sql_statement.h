// SPDX-License-Identifier: Apache-2.0
// One use of a prepared statement of a SqlStore. Only its own files include this.
#pragma once

#include <string>
#include <string_view>

#include "control/store/sql.h"
#include "control/store/sql_store.h"

namespace vrun::control {

// Binds in order, reads columns in order. The destructor resets the statement.
class SqlStore::Statement {
 public:
  Statement(SqlStore* store, std::string_view sql) : store_(store) {
    if (store_->failure_) return;
    Result<sql::Prepared*> made = store_->database_->Prepare(sql);
    if (made) {
      prepared_ = *made;
    } else {
      (void)store_->Fail(made.error());
    }
  }
  ~Statement() {
    if (prepared_ != nullptr) prepared_->Reset();
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Int(int64_t value) {
    if (prepared_ != nullptr) prepared_->BindInt(value);
    return *this;
  }
  // The text must outlive the use of the statement.
  Statement& Text(std::string_view value) {
    if (prepared_ != nullptr) prepared_->BindText(value);
    return *this;
  }
  Statement& Blob(std::string_view value) {
    if (prepared_ != nullptr) prepared_->BindBlob(value);
    return *this;
  }

  // True: there is a row. False: no more rows.
  Result<bool> Step() {
    if (store_->failure_) return *store_->failure_;
    Result<bool> row = prepared_->Step();
    if (!row) return store_->Fail(row.error());
    return row;
  }
  Status Run() {
    VRUN_ASSIGN([[maybe_unused]] bool row, Step());
    return {};
  }

  // Of a row that Step has found.
  int64_t Int() { return prepared_->Int(); }
  std::string Bytes() { return prepared_->Bytes(); }

 private:
  SqlStore* const store_;
  sql::Prepared* prepared_ = nullptr;  // null: the store has failed
};

}  // namespace vrun::control
