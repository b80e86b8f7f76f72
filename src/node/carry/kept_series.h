// SPDX-License-Identifier: Apache-2.0
// What one attempt wrote, kept on its node's disk: the series of operations that Carry tells, with all content, so that
// neither the root nor the overlay is needed any more (--writes=keep, proto/kept.proto).
//
// A directory: `record` (v1::Kept), `series` (frames of a 32 bit little-endian length and a v1::KeptWrite), `data` (the
// content of all files one after the other), and `upper` while another attempt may go on there. It appears by rename
// when everything is on the disk. Links only base and proto-lite (vrund-task). One thread at a time.
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

// Writes one series down, piece by piece.
class KeptWriter {
 public:
  // `directory` is made anew (what an earlier try left there goes) and must be on the same file system as where it is
  // to be kept.
  static Result<std::unique_ptr<KeptWriter>> Create(std::string directory, std::unique_ptr<Carry> carry);

  // Some MiB more; false when all of the series is written. An error: begin anew, with a new writer.
  Result<bool> Step();
  // After the last Step: completes `kept` with the figures, makes all of it durable and moves it to `to`, with the
  // directory `upper` if that is not "". Nothing of it is in `directory` then.
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

// Reads it again.
class KeptReader {
 public:
  // `paths`: only what is at or below one of these, and the directories above them; empty: all. `names_only`: no
  // FileData. What is read stays readable when the directory is removed meanwhile.
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
  size_t at_ = 0;            // in buffer_
  uint64_t data_at_ = 0;     // in the file
  bool file_chosen_ = true;  // the last PutFile
  // Above what is chosen, and new: a directory that home had already is nobody's choice.
  std::set<std::string> made_above_;
};

// The record of a kept directory. kNotFound, kCorrupt.
Result<v1::Kept> ReadKept(const std::string& directory);
Status WriteKept(const std::string& directory, const v1::Kept& kept);

}  // namespace vrun::node
