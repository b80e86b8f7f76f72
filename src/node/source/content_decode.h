// SPDX-License-Identifier: Apache-2.0
// Pure checks of what home sends: turns a reply into verified units or directory objects, or an Error. No length,
// offset or digest is trusted.
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

// Returns `data`, decompressed if `zstd`; kCorrupt unless it has exactly `raw_bytes` bytes. Never allocates more than
// that. `prefix`: the preceding data, if it was compressed as a continuation of that. `out`: a string whose memory is
// reused.
Result<std::string> Unpack(std::string_view data, bool zstd, uint64_t raw_bytes, std::string_view prefix = {},
                           std::string out = {});

// Decodes hints: absolute paths with ordered ranges of whole units; else kCorrupt.
Result<std::vector<vfs::ResidentFile>> DecodeResident(const v1::Resident& resident);

// Must be ascending, within a file of that size, and at most vfs::kMaxExtents; else kCorrupt.
Result<vfs::Extents> DecodeExtents(const v1::Extents& told, uint64_t size);

// Decodes a table of frames: absolute paths, ranges within their files, each frame at least one unit and at most
// kMaxFrameBytes; else kCorrupt.
Result<vfs::TraceTable> DecodeTraceTable(const v1::TraceTable& told);
// Decodes the frame with this index of that table: decompresses it (into the memory of `buffer`) and checks each unit.
Result<vfs::TraceFrame> DecodeTraceFrame(const v1::TraceFrame& told, const vfs::TraceTable& table, uint64_t index,
                                         std::string buffer = {});
inline constexpr uint64_t kMaxFrameBytes = 4u << 20;

// Collects one range of one file. Parts must arrive in order.
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

// The directory objects of a pack, each with its computed digest, which identifies it to whoever asked.
Result<std::vector<vfs::FetchedDirectory>> DecodePack(const v1::DirectoryPack& pack);

// The directory object that the delta makes of `base`. kCorrupt also when its digest differs.
Result<vfs::FetchedDirectory> DecodeDelta(const v1::DirectoryDelta& delta, const vfs::LoadedDirectory& base);

// Collects directory objects from their parts, one at a time.
class DirectoryAssembler {
 public:
  // Returns the object with its last part. `wanted`: the only acceptable digest, if any.
  Result<std::optional<vfs::FetchedDirectory>> Add(const v1::DirectoryObject& part, const Digest* wanted);
  bool between_objects() const { return !started_; }

 private:
  bool started_ = false;
  Digest digest_;
  uint64_t total_ = 0;
  std::string encoded_;
  std::string known_ids_;
};

// Reassembles replies that arrive in slices (v1::Slice), for several requests at a time, bounded in bytes.
class SliceAssembler {
 public:
  // `reply` has a slice. True: it is now the whole message. False: more will come. kCorrupt: the slices are not a
  // message for that request, or never end.
  Result<bool> Add(v1::ContentReply* reply);

 private:
  static constexpr size_t kMostBytes = 64u << 20;
  static constexpr size_t kMostMessages = 64;
  std::unordered_map<uint64_t, std::string> parts_;  // by request
  size_t bytes_ = 0;
};

}  // namespace vrun::node
