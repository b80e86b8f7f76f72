// SPDX-License-Identifier: Apache-2.0
// A tar archive (POSIX pax, with GNU's sparse files in pax form): what `tar`, Python and the tools of containers read.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::snapshots {

// One thread.
class TarWriter {
 public:
  using Sink = std::function<Status(std::string_view)>;
  // Bytes of the file's content from `offset` on, at most n: kInvalid never, less than n at the end only.
  using Reader = std::function<Result<size_t>(uint64_t offset, char* buffer, size_t n)>;

  explicit TarWriter(Sink sink) : sink_(std::move(sink)) {}

  // `path`: absolute in the root; parents first. The second name of a file becomes a link to the first. A socket, which
  // no archive can hold, is left out. `read` is used for regular files only.
  Status Add(const std::string& path, const tree::Entry& entry, const Reader& read);
  Status Finish();

 private:
  Status AddFile(const std::string& name, const tree::Entry& entry, const Reader& read);
  Status AddSparse(const std::string& name, const tree::Entry& entry, const Reader& read,
                   const std::vector<std::pair<uint64_t, uint64_t>>& data);
  // One header, behind a pax header if what it says does not fit.
  Status Header(char type, const std::string& name, const std::string& link, const tree::Entry& entry, uint64_t size,
                std::map<std::string, std::string> pax);
  Status Copy(const Reader& read, uint64_t offset, uint64_t length);
  Status Pad(uint64_t size);

  const Sink sink_;
  std::map<std::pair<uint64_t, uint64_t>, std::string> linked_;  // (dev, ino) -> first name
};

}  // namespace vrun::snapshots
