// SPDX-License-Identifier: Apache-2.0
// Writes a tar archive (POSIX pax, with GNU sparse files in pax form), readable by `tar`, Python and container tools.
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

// Single-threaded.
class TarWriter {
 public:
  using Sink = std::function<Status(std::string_view)>;
  // Reads at most n bytes of the file's content at `offset`; fewer only at the end. Never returns kInvalid.
  using Reader = std::function<Result<size_t>(uint64_t offset, char* buffer, size_t n)>;

  explicit TarWriter(Sink sink) : sink_(std::move(sink)) {}

  // `path`: absolute in the root; parents first. A later name of the same file becomes a link to the first. Sockets are
  // omitted, because no archive can hold them. `read` is used for regular files only.
  Status Add(const std::string& path, const tree::Entry& entry, const Reader& read);
  Status Finish();

 private:
  Status AddFile(const std::string& name, const tree::Entry& entry, const Reader& read);
  Status AddSparse(const std::string& name, const tree::Entry& entry, const Reader& read,
                   const std::vector<std::pair<uint64_t, uint64_t>>& data);
  // Writes one header, preceded by a pax header if the values do not fit.
  Status Header(char type, const std::string& name, const std::string& link, const tree::Entry& entry, uint64_t size,
                std::map<std::string, std::string> pax);
  Status Copy(const Reader& read, uint64_t offset, uint64_t length);
  Status Pad(uint64_t size);

  const Sink sink_;
  std::map<std::pair<uint64_t, uint64_t>, std::string> linked_;  // (dev, ino) -> first name
};

}  // namespace vrun::snapshots
