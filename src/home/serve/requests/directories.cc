// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/directories.h"

#include <numeric>
#include <string_view>
#include <utility>

#include "tree/codec.h"

namespace vrun::home {
namespace {

constexpr uint64_t kMaxPart = 1u << 20;  // of a directory object per reply
// Bytes of directory objects between two checks for more urgent work, and per pack. zstd gains little from larger
// packs.
constexpr uint64_t kStepBytes = 256 * 1024;
// For names and numbers: half as fast as level 1, and a tenth smaller.
constexpr int kPackLevel = 3;
// Computing a delta reads the whole directory: 1 ms for 4 MiB.
constexpr size_t kLeastDelta = 4 * 1024, kMostDelta = 4u << 20;

bool Packs(const tree::Directory& directory) { return directory.encoded().size() <= kStepBytes; }

}  // namespace

Directories::Directories(const DigestCache* digests, Compressor* compressor,
                         std::vector<tree::NewDirectory> directories, Form form, Send send)
    : digests_(digests),
      compressor_(compressor),
      directories_(std::move(directories)),
      form_(form),
      send_(std::move(send)) {}

bool Directories::Step() {
  uint64_t sent = 0;
  while (next_ < directories_.size() && sent < kStepBytes) {
    const tree::NewDirectory& item = directories_[next_];
    if (done_ == 0 && HasDelta(item)) {
      sent += item.directory->encoded().size();  // the cost of the comparison
      if (SendDelta()) continue;
    }
    sent += form_.packed && done_ == 0 && Packs(*item.directory) ? SendPack() : SendPart();
  }
  return next_ == directories_.size();
}

void Directories::Sent() {
  directories_[next_].directory.reset();
  ++next_;
  done_ = 0;
}

uint64_t Directories::SendPart() {
  const tree::Directory& directory = *directories_[next_].directory;
  const std::string_view encoded = directory.encoded();
  const std::string_view part = encoded.substr(done_, kMaxPart);
  v1::ContentReply reply;
  v1::DirectoryObject* object = reply.mutable_directory();
  object->set_digest(directory.digest().bytes.data(), directory.digest().bytes.size());
  object->set_raw_bytes(part.size());
  object->set_total_bytes(encoded.size());
  if (compressor_->Compress(part, object->mutable_encoded())) {
    object->set_zstd(true);
  } else {
    object->set_encoded(part.data(), part.size());
  }
  if (done_ == 0) object->set_known_ids(KnownIds(directory));
  done_ += part.size();
  if (done_ == encoded.size()) Sent();
  send_(&reply, next_ == directories_.size());
  return part.size();
}

uint64_t Directories::SendPack() {
  v1::ContentReply reply;
  v1::DirectoryPack* pack = reply.mutable_pack();
  std::string raw;
  bool known = false;
  while (next_ < directories_.size()) {
    const tree::NewDirectory& item = directories_[next_];
    const std::string_view encoded = item.directory->encoded();
    if (!Packs(*item.directory)) break;
    if (!raw.empty() && (raw.size() + encoded.size() > kStepBytes || HasDelta(item))) break;
    raw += encoded;
    pack->add_raw_bytes(static_cast<uint32_t>(encoded.size()));
    std::string ids = KnownIds(*item.directory);
    known |= !ids.empty();
    pack->add_known_ids(std::move(ids));
    Sent();
  }
  if (!known) pack->clear_known_ids();
  pack->set_zstd(compressor_->Compress(raw, pack->mutable_encoded(), kPackLevel));
  const uint64_t size = raw.size();
  if (!pack->zstd()) pack->set_encoded(std::move(raw));
  send_(&reply, next_ == directories_.size());
  return size;
}

bool Directories::HasDelta(const tree::NewDirectory& item) const {
  const auto fits = [](const tree::Directory& d) {
    return d.encoded().size() >= kLeastDelta && d.encoded().size() <= kMostDelta;
  };
  return form_.deltas && item.base && fits(*item.base) && fits(*item.directory);
}

bool Directories::SendDelta() {
  const tree::NewDirectory& item = directories_[next_];
  const std::string_view encoded = item.directory->encoded();
  v1::ContentReply reply;
  v1::DirectoryDelta* delta = reply.mutable_delta();
  if (!compressor_->CompressAfter(item.base->encoded(), encoded, delta->mutable_patch())) return false;
  if (delta->patch().size() > encoded.size() / 4) return false;  // a completely different directory
  delta->set_base(std::string(item.base->digest().view()));
  delta->set_digest(std::string(item.directory->digest().view()));
  delta->set_raw_bytes(encoded.size());
  std::vector<size_t> changed;
  tree::VisitChanged(*item.base, *item.directory, [&](size_t index, size_t) { changed.push_back(index); });
  delta->set_known_ids(KnownIds(*item.directory, changed));
  Sent();
  send_(&reply, next_ == directories_.size());
  return true;
}

std::string Directories::KnownIds(const tree::Directory& directory, std::span<const size_t> entries) const {
  std::vector<tree::KnownId> known;
  if (digests_->size() == 0) return {};
  for (const size_t i : entries) {
    const tree::Entry entry = directory.At(i);
    if (!entry.is_regular() || entry.size == 0) continue;
    if (auto id = digests_->Find(entry.version())) known.push_back({static_cast<uint32_t>(i), id->Encode()});
  }
  return tree::EncodeKnownIds(known);
}

std::string Directories::KnownIds(const tree::Directory& directory) const {
  if (digests_->size() == 0) return {};
  std::vector<size_t> all(directory.size());
  std::iota(all.begin(), all.end(), 0);
  return KnownIds(directory, all);
}

}  // namespace vrun::home
