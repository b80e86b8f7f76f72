// SPDX-License-Identifier: Apache-2.0
#include "node/source/content_decode.h"

#include <climits>

#include <zstd.h>

#include <algorithm>
#include <memory>

#include "proto/content.pb.h"
#include "tree/codec.h"

namespace vrun::node {
namespace {

constexpr char kWrongLength[] = "content whose length does not match";

Status AddKnownIds(std::string_view encoded, vfs::FetchedDirectory* fetched) {
  VRUN_ASSIGN(auto known, tree::DecodeKnownIds(encoded, fetched->directory->size()));
  for (const tree::KnownId& k : known) {
    const auto id = store::ObjectId::Decode(k.id);
    if (!id || id->algorithm == store::IdAlgorithm::kProvisional) return CorruptFromHome("a malformed object id");
    fetched->known_ids.emplace_back(k.index, *id);
  }
  return {};
}

// False: not ascending ranges of whole units.
bool DecodeRanges(const google::protobuf::RepeatedField<uint64_t>& told, uint64_t size,
                  std::vector<std::pair<uint64_t, uint64_t>>* ranges) {
  const uint64_t unit = store::UnitBytes(size);
  uint64_t at = 0;
  for (int i = 0; i + 1 < told.size(); i += 2) {
    const uint64_t first = told[i], end = told[i + 1];
    if (first < at || first >= end || end > size || first % unit != 0 || (end % unit != 0 && end != size)) return false;
    ranges->emplace_back(first, end);
    at = end;
  }
  return true;
}

}  // namespace

Result<std::string> Unpack(std::string_view data, bool zstd, uint64_t raw_bytes, std::string_view prefix,
                           std::string out) {
  if (!zstd) {
    if (data.size() != raw_bytes) return CorruptFromHome(kWrongLength);
    out.assign(data);
    return out;
  }
  // The output buffer is the limit, whatever the frame header claims.
  out.resize(raw_bytes);
  // One context per thread: creating one costs more than decompressing a small piece.
  thread_local const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(::ZSTD_createDCtx(), ::ZSTD_freeDCtx);
  // Applies to this frame only.
  if (!prefix.empty()) ::ZSTD_DCtx_refPrefix(context.get(), prefix.data(), prefix.size());
  const size_t n = ::ZSTD_decompressDCtx(context.get(), out.data(), out.size(), data.data(), data.size());
  if (!prefix.empty()) ::ZSTD_DCtx_reset(context.get(), ZSTD_reset_session_and_parameters);
  if (ZSTD_isError(n) || n != raw_bytes) return CorruptFromHome("content that does not decompress to its length");
  return out;
}

Result<std::vector<vfs::ResidentFile>> DecodeResident(const v1::Resident& resident) {
  const Error corrupt(Code::kCorrupt, "home sent hints that do not hold together");
  std::vector<vfs::ResidentFile> files;
  for (const v1::ResidentFile& told : resident.file()) {
    vfs::ResidentFile file;
    file.path = told.path();
    if (!file.path.starts_with('/') || file.path.size() >= PATH_MAX || file.path.find('\0') != std::string::npos)
      return corrupt;
    file.version = {told.version().dev(), told.version().ino(), told.version().ctime_ns(), told.version().size()};
    if (!told.object_id().empty()) {
      file.object_id = store::ObjectId::Decode(told.object_id());
      if (!file.object_id) return corrupt;
    }
    if (!DecodeRanges(told.range(), file.version.size, &file.ranges) ||
        !DecodeRanges(told.loader(), file.version.size, &file.loader)) {
      return corrupt;
    }
    files.push_back(std::move(file));
  }
  return files;
}

Result<vfs::Extents> DecodeExtents(const v1::Extents& told, uint64_t size) {
  const Error corrupt(Code::kCorrupt, "home sent extents that do not hold together");
  if (told.extent_size() % 2 != 0 || static_cast<size_t>(told.extent_size()) / 2 > vfs::kMaxExtents) return corrupt;
  vfs::Extents extents;
  extents.reserve(static_cast<size_t>(told.extent_size()) / 2);
  uint64_t at = 0;
  for (int i = 0; i < told.extent_size(); i += 2) {
    const uint64_t first = told.extent(i), end = told.extent(i + 1);
    if (first < at || first >= end || end > size) return corrupt;
    extents.emplace_back(first, end);
    at = end;
  }
  return extents;
}

Result<vfs::TraceTable> DecodeTraceTable(const v1::TraceTable& told) {
  const Error corrupt(Code::kCorrupt, "home sent an inconsistent trace");
  vfs::TraceTable table;
  const auto id = Digest::FromBytes(told.id());
  if (!id) return corrupt;
  table.id = *id;
  if (told.frame_size() == 0) return table;
  const auto tree = Digest::FromBytes(told.tree());
  if (!tree) return corrupt;
  table.tree = *tree;
  table.partial = told.partial();
  for (const v1::ResidentFile& entry : told.file()) {
    const std::string& path = entry.path();
    if (!path.starts_with('/') || path.size() >= PATH_MAX || path.find('\0') != std::string::npos) return corrupt;
    vfs::TraceTable::File file{.path = path, .version = {}, .object_id = std::nullopt};
    file.version = {entry.version().dev(), entry.version().ino(), entry.version().ctime_ns(), entry.version().size()};
    if (!entry.object_id().empty()) {
      file.object_id = store::ObjectId::Decode(entry.object_id());
      if (!file.object_id) return corrupt;
    }
    table.files.push_back(std::move(file));
  }
  int at = 0;
  for (const uint32_t ranges : told.frame()) {
    if (ranges == 0 || ranges > static_cast<uint32_t>(told.range_size() - at) / 3) return corrupt;
    auto& frame = table.frames.emplace_back();
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ranges; ++i, at += 3) {
      const uint64_t file = told.range(at), first = told.range(at + 1), count = told.range(at + 2);
      if (file >= table.files.size()) return corrupt;
      const uint64_t size = table.files[file].version.size;
      const uint64_t units = store::UnitCount(size);
      if (count == 0 || first >= units || count > units - first) return corrupt;
      bytes += count * store::UnitBytes(size);
      if (bytes > kMaxFrameBytes) return corrupt;
      frame.push_back({static_cast<uint32_t>(file), first, count});
    }
  }
  if (at != told.range_size()) return corrupt;
  return table;
}

Result<vfs::TraceFrame> DecodeTraceFrame(const v1::TraceFrame& told, const vfs::TraceTable& table, uint64_t index,
                                         std::string buffer) {
  if (index >= table.frames.size()) return CorruptFromHome("a frame that is not in its table");
  std::vector<uint64_t> lengths;  // lengths of the units
  uint64_t bytes = 0;
  for (const vfs::TraceRange& range : table.frames[index]) {
    const uint64_t size = table.files[range.file].version.size, unit_bytes = store::UnitBytes(size);
    for (uint64_t unit = range.first; unit < range.first + range.count; ++unit) {
      lengths.push_back(std::min(unit_bytes, size - unit * unit_bytes));
      bytes += lengths.back();
    }
  }
  if (told.raw_bytes() != bytes || told.digests().size() != lengths.size() * sizeof(Digest::bytes)) {
    return CorruptFromHome("a frame whose size does not match its table");
  }
  vfs::TraceFrame frame{.index = static_cast<uint32_t>(index), .digests = {}, .data = {}};
  VRUN_ASSIGN(frame.data, Unpack(told.data(), told.zstd(), bytes, {}, std::move(buffer)));
  const std::string_view digests = told.digests(), data = frame.data;
  uint64_t at = 0;
  for (size_t i = 0; i < lengths.size(); at += lengths[i++]) {
    frame.digests.push_back(*Digest::FromBytes(digests.substr(i * sizeof(Digest::bytes), sizeof(Digest::bytes))));
    if (store::UnitDigest(data.substr(at, lengths[i])) != frame.digests.back())
      return CorruptFromHome("a unit that does not match its digest");
  }
  return frame;
}

RangeAssembler::RangeAssembler(uint64_t file_size, uint64_t offset, uint64_t length)
    : file_size_(file_size), unit_bytes_(store::UnitBytes(file_size)), next_(offset), end_(offset + length) {
  range_.offset = offset;
}

Status RangeAssembler::Add(const v1::Units& units) {
  if (units.piece_size() > 0 && units.offset() != next_)
    return CorruptFromHome("a part of a file at an offset that was not its turn");
  for (const v1::Piece& piece : units.piece()) {
    const uint64_t count = piece.digests().size() / sizeof(Digest::bytes);
    if (count == 0 || piece.digests().size() % sizeof(Digest::bytes) != 0)
      return CorruptFromHome("units without digests");
    if (next_ >= end_ || count > (end_ - next_ + unit_bytes_ - 1) / unit_bytes_)
      return CorruptFromHome("more of a file than requested");
    const uint64_t length = std::min(count * unit_bytes_, file_size_ - next_);
    if (piece.raw_bytes() != length) return CorruptFromHome("a piece of the wrong length");
    std::string unpacked;
    std::string_view data = piece.data();
    if (piece.zstd()) {
      VRUN_ASSIGN(unpacked, Unpack(data, true, length));
      data = unpacked;
    } else if (data.size() != length) {
      return CorruptFromHome(kWrongLength);
    }
    for (uint64_t i = 0; i < count; ++i) {
      const std::string_view unit = data.substr(i * unit_bytes_, unit_bytes_);
      const auto digest = *Digest::FromBytes(
          std::string_view(piece.digests()).substr(i * sizeof(Digest::bytes), sizeof(Digest::bytes)));
      if (store::UnitDigest(unit) != digest) return CorruptFromHome("a unit that does not match its digest");
      range_.units.push_back({digest, std::string(unit)});
    }
    next_ += length;
  }
  if (!units.object_id().empty()) {
    const auto id = store::ObjectId::Decode(units.object_id());
    if (!id || id->algorithm == store::IdAlgorithm::kProvisional) return CorruptFromHome("a malformed object id");
    range_.object_id = *id;
  }
  return {};
}

Result<std::vector<vfs::FetchedDirectory>> DecodePack(const v1::DirectoryPack& pack) {
  uint64_t total = 0;
  for (const uint32_t size : pack.raw_bytes()) total += size;
  if (total > kMaxPartBytes) return CorruptFromHome("too large a pack of directories");
  if (pack.known_ids_size() != 0 && pack.known_ids_size() != pack.raw_bytes_size()) {
    return CorruptFromHome("a pack that names the contents of other directories");
  }
  VRUN_ASSIGN(const std::string raw, Unpack(pack.encoded(), pack.zstd(), total));
  std::vector<vfs::FetchedDirectory> objects;
  for (size_t at = 0; const uint32_t size : pack.raw_bytes()) {
    vfs::FetchedDirectory& fetched = objects.emplace_back();
    VRUN_ASSIGN(fetched.directory, tree::Directory::Parse(raw.substr(at, size)));
    at += size;
    if (pack.known_ids_size() == 0) continue;
    VRUN_TRY(AddKnownIds(pack.known_ids(static_cast<int>(objects.size()) - 1), &fetched));
  }
  return objects;
}

Result<vfs::FetchedDirectory> DecodeDelta(const v1::DirectoryDelta& delta, const vfs::LoadedDirectory& base) {
  const auto digest = Digest::FromBytes(delta.digest());
  if (!digest || delta.raw_bytes() > kMaxDirectoryBytes)
    return CorruptFromHome("a malformed difference of directories");
  const tree::Directory& was = *base.directory;
  VRUN_ASSIGN(std::string encoded, Unpack(delta.patch(), true, delta.raw_bytes(), was.encoded()));
  vfs::FetchedDirectory fetched;
  VRUN_ASSIGN(fetched.directory, tree::Directory::Parse(std::move(encoded)));
  const tree::Directory& now = *fetched.directory;
  if (now.digest() != *digest) return CorruptFromHome("a directory that does not match its digest");
  VRUN_TRY(AddKnownIds(delta.known_ids(), &fetched));
  for (const auto& [index, id] : base.known_ids) {
    const size_t at = now.Find(was.NameAt(index));
    if (at == now.size() || now.EncodedAt(at) != was.EncodedAt(index)) continue;
    fetched.known_ids.emplace_back(static_cast<uint32_t>(at), id);
  }
  std::sort(fetched.known_ids.begin(), fetched.known_ids.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return fetched;
}

Result<std::optional<vfs::FetchedDirectory>> DirectoryAssembler::Add(const v1::DirectoryObject& part,
                                                                     const Digest* wanted) {
  const auto digest = Digest::FromBytes(part.digest());
  if (!digest || (wanted && *digest != *wanted)) return CorruptFromHome("a directory that was not requested");
  if (part.raw_bytes() > kMaxPartBytes || part.total_bytes() > kMaxDirectoryBytes)
    return CorruptFromHome("too large a directory");
  if (!started_) {
    started_ = true;
    digest_ = *digest;
    total_ = part.total_bytes();
    encoded_.clear();
    known_ids_.clear();
  } else if (*digest != digest_ || part.total_bytes() != total_) {
    return CorruptFromHome("parts of two directories as one");
  }
  if (part.raw_bytes() > total_ - encoded_.size() || (part.raw_bytes() == 0 && total_ > 0)) {
    return CorruptFromHome("a directory whose length does not match");
  }
  VRUN_ASSIGN(std::string raw, Unpack(part.encoded(), part.zstd(), part.raw_bytes()));
  encoded_ += raw;
  // 33 bytes and an index per entry, and no entry is shorter: never more than the object itself.
  if (known_ids_.size() + part.known_ids().size() > kMaxDirectoryBytes) return CorruptFromHome("too many object ids");
  known_ids_ += part.known_ids();
  if (encoded_.size() < total_) return std::optional<vfs::FetchedDirectory>();

  started_ = false;
  vfs::FetchedDirectory fetched;
  VRUN_ASSIGN(fetched.directory, tree::Directory::Parse(std::move(encoded_)));
  if (fetched.directory->digest() != digest_) return CorruptFromHome("a directory that does not match its digest");
  VRUN_TRY(AddKnownIds(known_ids_, &fetched));
  return std::optional(std::move(fetched));
}

Result<bool> SliceAssembler::Add(v1::ContentReply* reply) {
  const uint64_t id = reply->id();
  std::string& whole = parts_[id];
  bytes_ += reply->slice().data().size();
  if (bytes_ > kMostBytes || parts_.size() > kMostMessages) {
    return Error(Code::kCorrupt, "home sent slices without an end");
  }
  whole += reply->slice().data();
  if (reply->slice().more()) return false;
  const std::string message = std::move(whole);
  parts_.erase(id);
  bytes_ -= message.size();
  if (!reply->ParseFromString(message) || reply->id() != id || reply->has_slice()) {
    return Error(Code::kCorrupt, "home sent slices that are no message");
  }
  return true;
}

}  // namespace vrun::node
