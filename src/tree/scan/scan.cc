// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/scan.h"

#include "base/clock.h"
#include "base/escape.h"
#include "tree/scan/scan_engine.h"

namespace vrun::tree {

Result<Entry> ReadEntry(int dir_fd, const std::string& name) {
  Entry entry;
  AttributeReader reader;
  if (const int error = reader.Read(dir_fd, name.c_str(), &entry); error != 0) {
    return ErrnoError(error, "stat " + Escape(name));
  }
  return entry;
}

Result<TreePtr> Scan(const ScanOptions& options, ScanStats* stats) {
  const int64_t start = MonotonicMicros();
  VRUN_ASSIGN(const ScanContext context, ScanContext::Open(options));
  VRUN_ASSIGN(Entry root, ReadEntry(context.root.get(), ""));
  ScanEngine engine(context);
  VRUN_ASSIGN(DirectoryPtr directory, engine.Run("/"));
  TreePtr snapshot = AssembleTree(std::move(root), std::move(directory));
  if (stats != nullptr) {
    stats->entries = snapshot->entries;
    stats->unreadable_directories = engine.unreadable();
    stats->seconds = static_cast<double>(MonotonicMicros() - start) / 1e6;
  }
  return snapshot;
}

}  // namespace vrun::tree
