// SPDX-License-Identifier: Apache-2.0
// Pure checks of what home sends: a reply becomes verified units or directory objects, or an Error. Nothing here trusts
// a length, an offset or a digest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "vfs/content/directory_cache.h"
#include "vfs/content/source.h"

namespace vrun::v1 {
class ContentReply;
class DirectoryDelta;
class DirectoryObject;
class DirectoryPack;
class Extents;
class Resident;
class TraceFrame;
class TraceTable;
class Units;
}  // namespace vrun::v1

namespace vrun::node {

inline constexpr uint64_t kMaxDirectoryBytes = 512u << 20;  // about five million names
inline constexpr uint64_t kMaxPartBytes = 4u << 20;         // of one part of a directory object

// kCorrupt: "home sent WHAT".
inline Error CorruptFromHome(const char* what) { return Error(Code::kCorrupt, std::string("home sent ") + what); }

// `data`, decompressed if `zstd`, has exactly `raw_bytes` bytes; else kCorrupt. Never allocates more than that.
// `prefix`: of what was compressed as following on that. `out`: a string whose memory is used for it.
Result<std::string> Unpack(std::string_view data, bool zstd, uint64_t raw_bytes, std::string_view prefix = {},
                           std::string out = {});

// Hints: absolute paths, ranges of whole units in order; else kCorrupt.
Result<std::vector<vfs::ResidentFile>> DecodeResident(const v1::Resident& resident);

// Ascending, within a file of that size, at most vfs::kMaxExtents; else kCorrupt.
Result<vfs::Extents> DecodeExtents(const v1::Extents& told, uint64_t size);

// A table of frames: absolute paths; ranges within their files; every frame of at least a unit and at most
// kMaxFrameBytes; else kCorrupt.
Result<vfs::TraceTable> DecodeTraceTable(const v1::TraceTable& told);
// The frame of that table with this index, decompressed (into the memory of `buffer`) and checked unit by unit.
Result<vfs::TraceFrame> DecodeTraceFrame(const v1::TraceFrame& told, const vfs::TraceTable& table, uint64_t index,
                                         std::string buffer = {});
inline constexpr uint64_t kMaxFrameBytes = 4u << 20;

// Collects one range of one file. The parts must come in order.
class RangeAssembler {
 public:
  RangeAssembler(uint64_t file_size, uint64_t offset, uint64_t length);
  Status Add(const v1::Units& units);
  bool complete() const { return next_ == end_; }
  vfs::FetchedRange Take() { return std::move(range_); }

 private:
  uint64_t file_size_;
  uint64_t unit_bytes_;
  uint64_t next_;
  uint64_t end_;
  vfs::FetchedRange range_;
};

// The directory objects of a pack, each with the digest that it turns out to have: what is wanted is known by that.
Result<std::vector<vfs::FetchedDirectory>> DecodePack(const v1::DirectoryPack& pack);

// The directory object that differs from `base` in this. kCorrupt also when its digest is another one.
Result<vfs::FetchedDirectory> DecodeDelta(const v1::DirectoryDelta& delta, const vfs::LoadedDirectory& base);

// Collects one directory object at a time from its parts.
class DirectoryAssembler {
 public:
  // An object when this part was its last one. `wanted`: the only digest that is acceptable, if any.
  Result<std::optional<vfs::FetchedDirectory>> Add(const v1::DirectoryObject& part, const Digest* wanted);
  bool between_objects() const { return !started_; }

 private:
  bool started_ = false;
  Digest digest_;
  uint64_t total_ = 0;
  std::string encoded_;
  std::string known_ids_;
};

// Puts replies together that came in slices (v1::Slice): some of different requests at a time, bounded in bytes.
class SliceAssembler {
 public:
  // `reply` has a slice. True: it is the whole message now. False: more of it is to come. kCorrupt: the slices are no
  // message of that request, or have no end.
  Result<bool> Add(v1::ContentReply* reply);

 private:
  static constexpr size_t kMostBytes = 64u << 20;
  static constexpr size_t kMostMessages = 64;
  std::unordered_map<uint64_t, std::string> parts_;  // by request
  size_t bytes_ = 0;
};

}  // namespace vrun::node
