// SPDX-License-Identifier: Apache-2.0
// A connection to a SQL database, as far as SqlStore needs one. Statements are written in the words that SQLite and
// PostgreSQL share, with two exceptions that the PostgreSQL side translates: parameters are `?`, and INDEXED BY is a
// hint for SQLite alone. A column or parameter is a 64-bit integer or bytes; text is bytes too, because names of files
// and jobs need not be UTF-8.
//
// One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::control::sql {

// A prepared statement. Binds in order, reads columns in order. One use at a time: bind, step, Reset.
class Prepared {
 public:
  virtual ~Prepared() = default;
  virtual void BindInt(int64_t value) = 0;
  // The bytes must live until Reset.
  virtual void BindText(std::string_view value) = 0;
  virtual void BindBlob(std::string_view value) = 0;
  // True: there is a row. False: no more rows.
  virtual Result<bool> Step() = 0;
  // Of the row; the next column each time.
  virtual int64_t Int() = 0;
  virtual std::string Bytes() = 0;
  virtual void Reset() = 0;
};

class Database {
 public:
  virtual ~Database() = default;
  // Owned by the database; the same text gives the same statement.
  virtual Result<Prepared*> Prepare(std::string_view sql) = 0;
  // One or more statements without parameters and rows, in the database's own words.
  virtual Status Run(const std::string& statements) = 0;
  // Nothing if no transaction is open: some errors end it.
  virtual void Rollback() = 0;
};

// How the schema came to be: step i makes version `first` + i of the one before.
struct Schema {
  int64_t first = 1;
  std::span<const char* const> steps;
  int64_t version() const { return first + static_cast<int64_t>(steps.size()) - 1; }
};

}  // namespace vrun::control::sql
