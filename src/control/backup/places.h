// SPDX-License-Identifier: Apache-2.0
// The files of a backup: which of a controller's files belong to it, and how they come to their places.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "control/backup/backup.h"
#include "proto/backup.pb.h"

namespace vrun::control {

// What a backup has besides tables. In the backup it is called `name`, a file or a directory with all below it.
struct StatePart {
  std::string name;
  std::string path;
  bool with_database = false;  // it goes with the database, and means nothing without it
};
std::vector<StatePart> StateParts(const StatePlace& place);
std::string DatabaseFile(const StatePlace& place);
std::string SharedDirectory(const StatePlace& place);

// Gives all files of the parts that are there. Files that go away meanwhile are left out.
Status ReadParts(const std::vector<StatePart>& parts, const std::function<Status(v1::BackupFile)>& each);

// Files of a backup in a directory of their own, until Place. The destructor removes it.
class StagedFiles {
 public:
  explicit StagedFiles(std::string directory) : directory_(std::move(directory)) {}
  ~StagedFiles();
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  Status Start();  // empty, mode 0700
  // kCorrupt: its path leads out of the directory.
  Status Add(const v1::BackupFile& file);
  // kExists: one of the parts is there already and differs; not those that go with the database.
  Status Check(const std::vector<StatePart>& parts) const;
  // What is there and differs goes to `aside` first. Returns whether something did.
  Result<bool> Place(const std::vector<StatePart>& parts, const std::string& aside);
  const std::string& directory() const { return directory_; }

 private:
  const std::string directory_;
};

// Moves a file or directory, if it is there, into a directory, which is made.
Status MoveAside(const std::string& path, const std::string& directory);

}  // namespace vrun::control
