// SPDX-License-Identifier: Apache-2.0
// The whole state of a controller in one file, and back: the tables of its database, the key of the requests of jobs
// (store/sealed_spec.h), who belongs to the cluster (people/), and the secret of the S3 store. What one database has
// written the other one reads, so this is also the way from SQLite to PostgreSQL.
//
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::control {

// Where a controller has its state, as in ControllerOptions.
struct StatePlace {
  std::string state_directory;
  std::string database;          // PostgreSQL; "": vrun.db in state_directory
  std::string shared_directory;  // "": state_directory
  std::string authority;         // directory of ca.pem and ca.key; "": without it
};

struct BackupReport {
  uint64_t rows = 0, files = 0;
  uint64_t bytes = 0;  // of the file
  int64_t schema = 0;
  int64_t created_us = 0;
  std::string database;            // "SQLite" or "PostgreSQL": where it was made
  bool has_authority = false;      // the backup has it
  std::string moved;               // where what was there before is; "": there was nothing
  std::vector<std::string> notes;  // for people
};

// Called every few rows with what was done so far and, in a restore, its share of the file in percent (-1: unknown).
using BackupProgress = std::function<void(const BackupReport& so_far, int percent)>;

// One consistent state of the database, while a controller uses it or not. `file` is whole or not there; mode 0600.
// kNotFound: there is no database.
Result<BackupReport> BackUp(const StatePlace& from, const std::string& file, const BackupProgress& progress);

struct RestoreOptions {
  bool replace = false;  // what is there is moved aside: files into replaced-TIME, tables into the schema vrun_TIME
  // Nothing has run since the backup: numbers go on where they were. Otherwise those of jobs go on a million later, so
  // that no job gets the number of one that was submitted after the backup.
  bool exact = false;
};

// Reads the whole file before it changes anything. kExists: a controller runs there, or there is a state already (and
// not `replace`). kCorrupt: the file is damaged. kUnsupported: it is of a newer version. The state is as before, or
// that of the backup; after an error while files are put in their places it says so.
Result<BackupReport> Restore(const StatePlace& to, const std::string& file, const RestoreOptions& options,
                             const BackupProgress& progress);

}  // namespace vrun::control
