// SPDX-License-Identifier: Apache-2.0
// Where a lazy root gets missing content: from home's content stream in production, from a map in tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/extents.h"
#include "vfs/trace/trace_table.h"

namespace vrun::vfs {

struct FetchedUnit {
  Digest digest;     // already verified against `data` by the source
  std::string data;  // uncompressed
};

struct FetchedRange {
  uint64_t offset = 0;                       // of the first unit
  std::vector<FetchedUnit> units;            // consecutive
  std::optional<store::ObjectId> object_id;  // once home knows the content's name
};

struct FetchedDirectory {
  tree::DirectoryPtr directory;  // its digest is the one asked for
  // Object ids of its files that home already knows, by entry index.
  std::vector<std::pair<uint32_t, store::ObjectId>> known_ids;
};

// The parts of a file that home's own programs have touched lately: whole units, in bytes, in order.
struct ResidentFile {
  std::string path;  // absolute
  tree::FileVersion version;
  std::optional<store::ObjectId> object_id;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // [first, end)
  // For a library: the parts that its loader reads first, for all libraries, before it processes any of them.
  std::vector<std::pair<uint64_t, uint64_t>> loader;
};

// kDemand: somebody waits for it. kAhead: nobody does yet; it comes after everything that somebody waits for.
enum class Urgency { kDemand, kAhead };

// Callbacks run once each, on any thread, possibly before the call returns. Errors: kAborted when the file is no longer
// that version, kDenied when home may not read it, kUnavailable when home is unreachable beyond the deadline.
class Source {
 public:
  virtual ~Source() = default;
  virtual void FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) = 0;
  virtual void FetchDirectory(const Digest& tree, const std::string& path, const Digest& digest,
                              std::function<void(Result<FetchedDirectory>)> done) = 0;
  // The caller cuts the range at the end of the file; offset is a multiple of the unit. `done` gets the whole range.
  virtual void FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                          uint64_t offset, uint64_t length, Urgency urgency,
                          std::function<void(Result<FetchedRange>)> done) = 0;
  // As FetchRange, for content with a known name: the source may take it from elsewhere than home.
  virtual void FetchNamed(const store::ObjectId&, const Digest& tree, const std::string& path,
                          const tree::FileVersion& version, uint64_t offset, uint64_t length, Urgency urgency,
                          std::function<void(Result<FetchedRange>)> done) {
    FetchRange(tree, path, version, offset, length, urgency, std::move(done));
  }
  // Asks home to hold that version for its reader, whatever happens to its name there (home/serve/lent_files.h). It may
  // fail. `done`, unless null, runs once home holds it or has refused.
  virtual void Borrow(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                      std::function<void()> done) = 0;
  // Where that version has data; at most kMaxExtents, small holes are left out.
  virtual void FetchExtents(const Digest&, const std::string&, const tree::FileVersion&,
                            std::function<void(Result<Extents>)> done) {
    done(Error(Code::kUnsupported, "this source cannot report holes"));
  }
  // What is worth fetching in advance of this file and of what it loads, and with `siblings` of the small files beside
  // it. A hint: a source without hints answers kUnsupported.
  virtual void FetchResident(const Digest&, const std::string&, const tree::FileVersion&, bool /*siblings*/,
                             std::function<void(Result<std::vector<ResidentFile>>)> done) {
    done(Error(Code::kUnsupported, "no hints"));
  }
  // What this run will touch, according to earlier runs. No frames if there is no trace, or if the table is in `have`.
  virtual void FetchTrace(const RunId&, const std::vector<Digest>& /*have*/,
                          std::function<void(Result<TraceTable>)> done) {
    done(Error(Code::kUnsupported, "no traces"));
  }
  // Fetches frames of a table that FetchTrace gave for this run. Calls `arrived` for each, then `done`. kAborted: some
  // of it is no longer available.
  virtual void FetchFrames(const RunId&, std::shared_ptr<const TraceTable>, std::vector<uint32_t> /*frames*/,
                           std::function<void(const TraceFrame&)> /*arrived*/, std::function<void(Status)> done) {
    done(Error(Code::kUnsupported, "no traces"));
  }
};

}  // namespace vrun::vfs
