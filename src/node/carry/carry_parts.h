// SPDX-License-Identifier: Apache-2.0
// The two long parts of a series: the data of one file, and the removal of one lower directory.
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

// Data is sent in cells of 1 MiB at fixed offsets. A cell without data uses up its sequence number but is not sent,
// except the last. So the numbers do not depend on where the file system currently has holes.
class FileCells {
 public:
  static uint64_t Count(uint64_t size);

  // `fd`: the file, -1 for an empty one. `first_sequence`: the number of the first cell.
  FileCells(UniqueFd fd, std::string path, uint64_t size, uint64_t first_sequence)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size), first_sequence_(first_sequence) {}

  // The next message; its `last` flag marks the end.
  Result<vrun::v1::WriteBack> Next();

 private:
  UniqueFd fd_;
  std::string path_;
  uint64_t size_;
  uint64_t first_sequence_;
  uint64_t cell_ = 0;
};

// Removes the lower's `from`, which home has at `path`, children first, each with its version.
class RemovalWalk {
 public:
  // `keep_top`: removes only what is below. `spared`(path in the lower, path at home): true if it must not be touched.
  using Spared = std::function<bool(const std::string& from, const std::string& path)>;
  RemovalWalk(const OverlayLayer* lower, Spared spared, std::string from, std::string path, bool keep_top);

  // A message without a number; nullopt at the end.
  Result<std::optional<vrun::v1::WriteBack>> Next();

 private:
  struct Frame {
    std::string from;
    std::string path;
    std::vector<LayerEntry> entries;
    size_t next = 0;
  };
  // Returns a message for a non-directory; pushes a directory.
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
