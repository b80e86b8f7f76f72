// SPDX-License-Identifier: Apache-2.0
// What runs touch of their root: paths and units in the order of first touch, independent of file versions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash/digest.h"

namespace vrun::v1 {
class Command;
class TraceRecord;
}  // namespace vrun::v1

namespace vrun::home {

struct Trace {
  struct File {
    std::string path;   // absolute
    uint64_t size = 0;  // size when recorded
  };
  // Units [first, first + count) of files[file], numbered as in the store (store/format/object_id.h).
  struct Range {
    uint32_t file = 0;
    uint64_t first = 0;
    uint64_t count = 0;
    bool operator==(const Range&) const = default;
  };
  static constexpr size_t kMaxFiles = 65536;
  static constexpr size_t kMaxPathBytes = 16u << 20;  // of all files
  static constexpr uint64_t kMaxFileBytes = 1ull << 56;
  static constexpr uint64_t kMaxUnits = 131072;  // 2 GiB of content

  std::vector<File> files;
  std::vector<Range> ranges;
  bool partial = false;  // made only of records that may be incomplete (vfs/trace/recorder.h)

  uint64_t units() const;
};

// Decides which runs share a trace: those with the same program (`env` and the like are skipped), the same script if
// the program is an interpreter or starts one, and the same environment variables that decide where libraries and
// modules come from.
struct TraceSubject {
  Digest key;   // independent of the working directory
  Digest here;  // for files in the working directory, if nothing else says which files are meant
                // (`make`, `pytest`, `python -c`); else the same as `key`
  // Files that this command line names. The next command line names others (`cat a`, `cat b`), so these are not traced.
  // Absolute paths; for a directory below the working directory, everything in it.
  std::vector<std::string> named;
  std::string directory;

  bool Names(const std::string& path) const;
};
// `root` is the directory that is "/" of the run.
TraceSubject TraceOf(const v1::Command& command, std::string_view root);
// The part of the command and environment that TraceOf uses.
v1::Command TracedPart(const v1::Command& command);

// Parses a record from a node or from disk: absolute paths, ranges within the files; what exceeds the limits is
// dropped. nullopt: the record is inconsistent.
std::optional<Trace> ReadTrace(const v1::TraceRecord& record);
v1::TraceRecord WriteTrace(const Trace& trace);

// The union, each unit once, in the order of `earlier` (so that frames made of it stay valid) unless `later` read in a
// very different order. A unit that only one trace has follows the unit that it follows there. Sizes are those of
// `later`. Cut at the limits.
Trace MergeTraces(const Trace& earlier, const Trace& later);

// The trace without everything below a directory.
Trace TraceOutside(const Trace& trace, const std::string& directory);

// Frames of 0.5 to 1 MiB of content, in order; the last may be smaller. Boundaries depend on the content that follows
// (content-defined chunking), so a merge changes only the frames into which it inserts.
std::vector<std::vector<Trace::Range>> PlanFrames(const std::vector<Trace::File>& files,
                                                  const std::vector<Trace::Range>& ranges);

}  // namespace vrun::home
