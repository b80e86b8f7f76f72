// SPDX-License-Identifier: Apache-2.0
// Where a lazy root gets what it does not have: home's content stream in production, a map in tests.
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
#include "vfs/trace/trace.h"

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
  // Object ids of its files that home knows already, by entry index.
  std::vector<std::pair<uint32_t, store::ObjectId>> known_ids;
};

// What home's own programs have touched of a file lately: whole units, in bytes, in order.
struct ResidentFile {
  std::string path;  // absolute
  tree::FileVersion version;
  std::optional<store::ObjectId> object_id;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // [first, end)
  // The same, of a library: what its loader reads first, of all libraries before it goes through any of them.
  std::vector<std::pair<uint64_t, uint64_t>> loader;
};

// kDemand: somebody waits for it. kAhead: nobody does yet; it comes after all that somebody waits for.
enum class Urgency { kDemand, kAhead };

// Callbacks run once each, on any thread, possibly before the call returns. Errors: kAborted when the file is not that
// version any more, kDenied when home may not read it, kUnavailable when home is away for longer than the deadline.
class Source {
 public:
  virtual ~Source() = default;
  virtual void FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) = 0;
  virtual void FetchDirectory(const Digest& tree, const std::string& path, const Digest& digest,
                              std::function<void(Result<FetchedDirectory>)> done) = 0;
  // The range is cut at the end of the file by the caller; offset is a multiple of the unit. `done` gets the whole
  // range.
  virtual void FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                          uint64_t offset, uint64_t length, Urgency urgency,
                          std::function<void(Result<FetchedRange>)> done) = 0;
  // The same of content whose name is known: a source that has it by name may take it from elsewhere than home.
  virtual void FetchNamed(const store::ObjectId&, const Digest& tree, const std::string& path,
                          const tree::FileVersion& version, uint64_t offset, uint64_t length, Urgency urgency,
                          std::function<void(Result<FetchedRange>)> done) {
    FetchRange(tree, path, version, offset, length, urgency, std::move(done));
  }
  // Home is to hold that version for its reader, whatever becomes of its name there (home/serve/lent_files.h). It may
  // fail. `done`, unless null, runs once home holds it, or will not.
  virtual void Borrow(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                      std::function<void()> done) = 0;
  // Where that version has data; at most kMaxExtents, small holes being left out.
  virtual void FetchExtents(const Digest&, const std::string&, const tree::FileVersion&,
                            std::function<void(Result<Extents>)> done) {
    done(Error(Code::kUnsupported, "nothing is known of holes"));
  }
  // What is worth fetching of this file and what it loads, and with `siblings` of the small files beside it, before it
  // is asked for. A hint: a source that cannot tell says kUnsupported.
  virtual void FetchResident(const Digest&, const std::string&, const tree::FileVersion&, bool /*siblings*/,
                             std::function<void(Result<std::vector<ResidentFile>>)> done) {
    done(Error(Code::kUnsupported, "no hints"));
  }
  // What this run will touch, as far as earlier ones tell; no frames where there is no trace, or the table is one that
  // is in `have`.
  virtual void FetchTrace(const RunId&, const std::vector<Digest>& /*have*/,
                          std::function<void(Result<TraceTable>)> done) {
    done(Error(Code::kUnsupported, "no traces"));
  }
  // Frames of a table that FetchTrace gave for this run, each as it comes, then `done`. kAborted: some of it is not to
  // be had any more.
  virtual void FetchFrames(const RunId&, std::shared_ptr<const TraceTable>, std::vector<uint32_t> /*frames*/,
                           std::function<void(const TraceFrame&)> /*arrived*/, std::function<void(Status)> done) {
    done(Error(Code::kUnsupported, "no traces"));
  }
};

}  // namespace vrun::vfs
