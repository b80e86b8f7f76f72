// SPDX-License-Identifier: Apache-2.0
// The two long-running parts of a series: the data of one file, and the removal of one directory of the lower.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "node/carry/overlay_layer.h"
#include "proto/task.pb.h"

namespace vrun::node {

// Data travels in cells of 1 MiB at fixed places. A cell without data uses its sequence number but is not sent (the
// last one always is), so that numbers do not depend on where the file system keeps holes at the moment.
class FileCells {
 public:
  static uint64_t Count(uint64_t size);

  // `fd`: the file, -1 for an empty one. `first_sequence`: of the first cell.
  FileCells(UniqueFd fd, std::string path, uint64_t size, uint64_t first_sequence)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size), first_sequence_(first_sequence) {}

  // The next message; `last` of its data says when to stop.
  Result<vrun::v1::WriteBack> Next();

 private:
  UniqueFd fd_;
  std::string path_;
  uint64_t size_;
  uint64_t first_sequence_;
  uint64_t cell_ = 0;
};

// Removes what the lower has at `from` and home has at `path`, children first, each with its version.
class RemovalWalk {
 public:
  // `keep_top`: only what is below. `spared` says of (path in the lower, path at home) that it is not to be touched.
  using Spared = std::function<bool(const std::string& from, const std::string& path)>;
  RemovalWalk(const OverlayLayer* lower, Spared spared, std::string from, std::string path, bool keep_top);

  // A message without number; nullopt when all is told.
  Result<std::optional<vrun::v1::WriteBack>> Next();

 private:
  struct Frame {
    std::string from;
    std::string path;
    std::vector<LayerEntry> entries;
    size_t next = 0;
  };
  // A message for what is no directory; directories are pushed.
  Result<std::optional<vrun::v1::WriteBack>> Visit(std::string from, std::string path);

  const OverlayLayer* lower_;
  Spared spared_;
  std::string from_;
  std::string path_;
  bool keep_top_;
  bool begun_ = false;
  std::vector<Frame> frames_;
};

}  // namespace vrun::node
