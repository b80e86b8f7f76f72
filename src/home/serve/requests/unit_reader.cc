// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/unit_reader.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace vrun::home {
namespace {

constexpr uint64_t kPieceBytes = 64u << 10;  // compressed as one piece; whole units
constexpr size_t kMaxShrinks = 8192;

}  // namespace

void UnitReader::LendTo(std::optional<uint64_t> view) {
  MutexLock lock(mutex_);
  view_ = view;
}

std::optional<uint64_t> UnitReader::LentTo() {
  MutexLock lock(mutex_);
  return view_;
}

Result<v1::ContentReply> UnitReader::Read(const v1::ContentRequest::GetRange& get, uint64_t offset, uint64_t end,
                                          uint64_t* length) {
  const tree::FileVersion version = Version(get.version());
  const uint64_t unit = store::UnitBytes(version.size);
  *length = std::min(end - offset, kMaxPart);
  VRUN_ASSIGN(const ServedFiles::Open open, files_->OpenPart(get.path(), version, offset, *length));
  const bool whole = get.offset() == 0 && get.length() >= version.size && version.size <= store::kWholeFileLimit;
  if (const auto view = LentTo(); view && !whole) files_->Lend(open, version, *view);

  v1::ContentReply reply;
  v1::Units* units = reply.mutable_units();
  units->set_offset(offset);
  if (*length == 0 && version.size > 0) return reply;
  const uint64_t first = offset / unit, count = (*length + unit - 1) / unit;
  if (const auto known = ids_->Find(version); known && hot_->Find(version, first, count, units)) {
    // OpenPart has just checked that the file is still that version.
    units->set_object_id(known->Encode());
    Attest(get, version, units);
    return reply;
  }
  std::vector<iovec> parts;
  for (uint64_t at = 0; at < *length; at += kPieceBytes) {
    std::string* data = units->add_piece()->mutable_data();
    data->resize(std::min(kPieceBytes, *length - at));
    parts.push_back({data->data(), data->size()});
  }
  VRUN_TRY(files_->Read(open, get.path(), version, std::move(parts), offset));

  const std::vector<Digest> digests = Pack(version, units, get.digests_only());
  if (!get.digests_only()) hot_->Keep(version, first, *units, WallMicros() * 1000);
  if (const auto known = ids_->Learn(get.path(), version, first, digests)) units->set_object_id(known->Encode());
  Attest(get, version, units);
  return reply;
}

std::vector<Digest> UnitReader::Pack(const tree::FileVersion& version, v1::Units* units, bool digests_only) {
  Shrinks shrinks;
  {
    MutexLock lock(mutex_);
    if (const auto it = shrinks_.find(version); it != shrinks_.end()) shrinks = it->second;
  }
  const uint64_t unit = store::UnitBytes(version.size);
  std::vector<Digest> digests;
  const int level = digests_only ? 0 : policy_->level();
  uint64_t raw = 0, small = 0;
  const int64_t began = MonotonicMicros();
  int64_t hashing = 0;
  for (v1::Piece& piece : *units->mutable_piece()) {
    const std::string_view data = piece.data();
    const int64_t start = MonotonicMicros();
    for (size_t at = 0; at < data.size(); at += unit) {
      digests.push_back(store::UnitDigest(data.substr(at, unit)));
      piece.mutable_digests()->append(digests.back().view());
    }
    hashing += MonotonicMicros() - start;
    piece.set_raw_bytes(static_cast<uint32_t>(data.size()));
    if (level == 0 || !shrinks.Try()) continue;
    std::string packed;
    const bool smaller = compressor_->Compress(data, &packed, level);
    shrinks.Tried(smaller);
    raw += data.size();
    small += smaller ? packed.size() : data.size();
    if (!smaller) continue;
    piece.set_data(std::move(packed));
    piece.set_zstd(true);
  }
  policy_->Compressed(level, raw, small, MonotonicMicros() - began - hashing);
  if (level > 0) {
    MutexLock lock(mutex_);
    if (shrinks_.size() >= kMaxShrinks) shrinks_.clear();
    shrinks_[version] = shrinks;
  }
  return digests;
}

void UnitReader::Attest(const v1::ContentRequest::GetRange& get, const tree::FileVersion& version,
                        v1::Units* units) const {
  std::string all;
  for (v1::Piece& piece : *units->mutable_piece()) {
    all += piece.digests();
    if (!get.digests_only()) continue;
    piece.clear_data();
    piece.clear_zstd();
  }
  if (!get.sign()) return;
  units->set_signature(signer_->Units(version, units->offset(), all, units->object_id()));
}

}  // namespace vrun::home
