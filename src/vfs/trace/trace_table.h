// SPDX-License-Identifier: Apache-2.0
// What a run touched, in order: recorded on the node, kept by home, and given to the next node that runs the same
// command.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash/digest.h"
#include "store/format/object_id.h"
#include "tree/tree.h"

namespace vrun::vfs {

// One attempt of a job, with its right to ask home for its trace.
struct RunId {
  uint64_t job = 0;
  uint32_t attempt = 0;
  std::string token;
};

// Units [first, first + count) of a file in a list.
struct TraceRange {
  uint32_t file = 0;
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const TraceRange&) const = default;
};

// What home expects a run to touch: frames in the order of first touch, each fetched and compressed as one.
struct TraceTable {
  struct File {
    std::string path;  // absolute, no symlink on the way
    tree::FileVersion version;
    std::optional<store::ObjectId> object_id;
  };
  Digest id;             // of the table
  Digest tree;           // the tree that has these files
  bool partial = false;  // no run recorded everything it touched: others may want more, also of these files
  std::vector<File> files;
  std::vector<std::vector<TraceRange>> frames;
};

// The verified content of a frame: its units one after the other.
struct TraceFrame {
  uint32_t index = 0;
  std::vector<Digest> digests;
  std::string data;
};

// Why content came, and where a reader got it from.
enum class Origin : uint8_t { kCache, kTrace, kAhead, kDemand };
inline constexpr size_t kOrigins = 4;

// What one run did with its root. Times are relative to its beginning.
struct Recording {
  // When the first and the last of a kind came.
  struct Span {
    int64_t first_micros = -1;  // negative: nothing came
    int64_t last_micros = -1;
    void Add(int64_t micros) {
      if (first_micros < 0) first_micros = micros;
      last_micros = micros;
    }
  };
  struct File {
    std::string path;
    tree::FileVersion version;
  };
  struct Wait {
    std::string path;
    uint64_t offset = 0;
    int64_t micros = 0;
    Origin origin = Origin::kDemand;
    int64_t at_micros = 0;
  };
  struct Fetched {
    std::string path;
    uint64_t bytes = 0;               // uncompressed
    uint64_t unread_bytes = 0;        // of `bytes`
    Origin origin = Origin::kDemand;  // the reason for which most of it came
    Span when;
  };
  struct Count {
    uint64_t fetched_units = 0;
    uint64_t fetched_bytes = 0;  // uncompressed
    uint64_t used_units = 0;     // units that the run read, as far as the kernel asked for them
    uint64_t unread_bytes = 0;   // fetched and not read
    Span fetched;
  };
  std::vector<File> files;
  std::vector<TraceRange> ranges;  // in order of first touch
  bool shared = false;             // other runs ran at the same time: parts of this may be theirs
  bool partial = false;            // may lack what the kernel had already, or read without asking
  std::array<Count, kOrigins> counts;
  uint64_t waits = 0;
  int64_t waited_micros = 0;
  int64_t wall_micros = 0;
  std::vector<Wait> slowest;
  std::vector<Fetched> largest;  // files
};

}  // namespace vrun::vfs
