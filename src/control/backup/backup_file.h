// SPDX-License-Identifier: Apache-2.0
// The file of a backup: eight bytes that name the format, then one zstd frame with records (proto/backup.proto), each
// after its length in four bytes, little-endian. The last one has the digest of all before it.
//
// One thread each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "proto/backup.pb.h"

namespace vrun::control {

class BackupWriter {
 public:
  // Writes beside `path`, mode 0600. What is at `path` stays there until Finish.
  static Result<std::unique_ptr<BackupWriter>> Create(const std::string& path);
  virtual ~BackupWriter() = default;  // without Finish nothing stays on the disk

  virtual Status Add(const v1::BackupRecord& record) = 0;
  // The end record, fsync, rename.
  virtual Status Finish() = 0;
  virtual uint64_t bytes() const = 0;  // of the file, so far
};

class BackupReader {
 public:
  // kUnsupported: it is of a newer format. kInvalid: it is no backup.
  static Result<std::unique_ptr<BackupReader>> Open(const std::string& path);
  virtual ~BackupReader() = default;

  // False: that was all, and the digest is right. kCorrupt: it is damaged or was cut off.
  virtual Result<bool> Next(v1::BackupRecord* record) = 0;
  virtual uint64_t bytes() const = 0;  // of the file, so far
  virtual uint64_t size() const = 0;   // of the file
};

}  // namespace vrun::control
