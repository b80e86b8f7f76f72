// SPDX-License-Identifier: Apache-2.0
// What runs touch of their root: paths and units in the order of first touch, whatever the versions of the files.
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
    uint64_t size = 0;  // when it was recorded
  };
  // Units [first, first + count) of files[file], as the store has them (store/format/object_id.h).
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
  bool partial = false;  // made of records only that may lack things (vfs/trace/recorder.h)

  uint64_t units() const;
};

// Which runs share a trace: the same program (`env` and the like only run it), the same script where the program is an
// interpreter or starts one, and the same of what decides in the environment where libraries and modules come from.
struct TraceSubject {
  Digest key;   // wherever it runs
  Digest here;  // of what it touches in its working directory, where nothing else says which files are meant
                // (`make`, `pytest`, `python -c`); else the same as `key`
  // What this very command line names: the next one names something else (`cat a`, `cat b`), so it is not traced.
  // Absolute paths; of directories below the working directory all that they have.
  std::vector<std::string> named;
  std::string directory;

  bool Names(const std::string& path) const;
};
// `root` is the directory that is "/" of the run.
TraceSubject TraceOf(const v1::Command& command, std::string_view root);
// What TraceOf looks at, and no more of the environment.
v1::Command TracedPart(const v1::Command& command);

// From a node or from the disk: absolute paths, ranges within the files; what is over the limits is left out. nullopt:
// it does not hold together.
std::optional<Trace> ReadTrace(const v1::TraceRecord& record);
v1::TraceRecord WriteTrace(const Trace& trace);

// The union, each unit once, in the order of `earlier` (frames that were made of it stay what they are), unless `later`
// read things in quite another one; what only one has comes after what it came after there. Sizes are those of `later`.
// Within the limits: the end is dropped.
Trace MergeTraces(const Trace& earlier, const Trace& later);

// Without what is below a directory.
Trace TraceOutside(const Trace& trace, const std::string& directory);

// Frames of 0.5 to 1 MiB of content, in order; the last may be smaller. Where one ends depends on what the next begins
// with (content-defined chunking): what a merge adds changes the frames that it comes into and leaves the others.
std::vector<std::vector<Trace::Range>> PlanFrames(const std::vector<Trace::File>& files,
                                                  const std::vector<Trace::Range>& ranges);

}  // namespace vrun::home
