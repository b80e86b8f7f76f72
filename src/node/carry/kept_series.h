// SPDX-License-Identifier: Apache-2.0
// The writes of one attempt, kept on its node's disk (--writes=keep, proto/kept.proto): the series that Carry produces,
// with all content. Neither the root nor the overlay is needed to read it.
//
// Each is a directory with `record` (v1::Kept), `series` (frames of a 32 bit little-endian length and a v1::KeptWrite),
// `data` (the content of all files, concatenated), and `upper` while another attempt may continue from it. It appears
// by rename once everything is on the disk. Links only base and proto-lite (vrund-task). One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "node/carry/carry.h"
#include "proto/kept.pb.h"

namespace vrun::node {

// Writes one series to disk in steps.
class KeptWriter {
 public:
  // Recreates `directory`, deleting what an earlier try left there. It must be on the file system of the final
  // location.
  static Result<std::unique_ptr<KeptWriter>> Create(std::string directory, std::unique_ptr<Carry> carry);

  // Writes some more MiB; false when the whole series is written. After an error, start over with a new writer.
  Result<bool> Step();
  // Call after the last Step. Fills in the totals of `kept`, makes everything durable and moves it to `to`, including
  // the directory `upper` if that is not "". `directory` is empty afterwards.
  Status Finish(v1::Kept* kept, const std::string& to, const std::string& upper);

 private:
  KeptWriter(std::string directory, std::unique_ptr<Carry> carry)
      : directory_(std::move(directory)), carry_(std::move(carry)) {}
  Status Flush();

  const std::string directory_;
  std::unique_ptr<Carry> carry_;
  UniqueFd series_, data_;
  std::string frames_;  // not written yet
  uint64_t files_ = 0, bytes_ = 0;
};

// Reads a kept series.
class KeptReader {
 public:
  // `paths`: selects only these paths, everything below them and the directories above them; empty: all. `names_only`:
  // no FileData. An open reader keeps working when the directory is removed.
  static Result<std::unique_ptr<KeptReader>> Open(const std::string& directory, std::vector<std::string> paths,
                                                  bool names_only);
  // The next message; nullopt after the last one. kCorrupt: the files are damaged.
  Result<std::optional<v1::WriteBack>> Next();

 private:
  KeptReader(UniqueFd series, UniqueFd data, std::vector<std::string> paths, bool names_only)
      : series_(std::move(series)), data_(std::move(data)), paths_(std::move(paths)), names_only_(names_only) {}
  Result<std::optional<v1::KeptWrite>> NextFrame();
  bool Chosen(const v1::WriteBack& write);

  UniqueFd series_, data_;
  const std::vector<std::string> paths_;
  const bool names_only_;
  std::string buffer_;
  size_t at_ = 0;            // position in buffer_
  uint64_t data_at_ = 0;     // position in the data file
  bool file_chosen_ = true;  // whether the last PutFile was selected
  // New directories above the selected paths. Directories that home already had are never selected.
  std::set<std::string> made_above_;
};

// Reads the record of a kept directory. kNotFound, kCorrupt.
Result<v1::Kept> ReadKept(const std::string& directory);
Status WriteKept(const std::string& directory, const v1::Kept& kept);

}  // namespace vrun::node
