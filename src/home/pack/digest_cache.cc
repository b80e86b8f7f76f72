// SPDX-License-Identifier: Apache-2.0
#include "home/pack/digest_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "base/escape.h"
#include "base/files.h"
#include "base/hash/digest.h"
#include "base/log.h"

namespace vrun::home {
namespace {

constexpr std::string_view kMagic = "VRUNDC3\n";
constexpr size_t kBody = 8 * 4 + 33;
constexpr size_t kCheck = 7;  // first bytes of the body's SHA-256: detects torn or corrupt records, not attackers
constexpr size_t kRecord = kBody + kCheck;
static_assert(kRecord == 72);
constexpr size_t kFlushBytes = 64 * 1024;
// Longer than any kernel's tick, with a margin for a clock that is being slewed.
constexpr int64_t kSettledNs = 60'000'000;

void AppendU64(std::string* out, uint64_t v) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(v >> (8 * i)));
}

uint64_t U64(std::string_view s) {
  uint64_t v = 0;
  for (size_t i = 0; i < 8; ++i) v |= static_cast<uint64_t>(static_cast<uint8_t>(s[i])) << (8 * i);
  return v;
}

void AppendRecord(std::string* out, const tree::FileVersion& version, const store::ObjectId& id) {
  std::string body;
  body.reserve(kRecord);
  AppendU64(&body, version.dev);
  AppendU64(&body, version.ino);
  AppendU64(&body, static_cast<uint64_t>(version.ctime_ns));
  AppendU64(&body, version.size);
  body += id.Encode();
  body += Sha256(body).view().substr(0, kCheck);
  *out += body;
}

struct Record {
  tree::FileVersion version;
  store::ObjectId id;
};

std::optional<Record> ParseRecord(std::string_view raw) {
  if (raw.size() != kRecord) return std::nullopt;
  std::string_view body = raw.substr(0, kBody);
  if (Sha256(body).view().substr(0, kCheck) != raw.substr(kBody)) return std::nullopt;
  auto id = store::ObjectId::Decode(body.substr(32));
  if (!id || id->algorithm == store::IdAlgorithm::kProvisional) return std::nullopt;
  return Record{{U64(body), U64(body.substr(8)), static_cast<int64_t>(U64(body.substr(16))), U64(body.substr(24))},
                *id};
}

}  // namespace

DigestCache::DigestCache(std::string path, size_t limit) : path_(std::move(path)), limit_(std::max<size_t>(limit, 2)) {
  MutexLock lock(mutex_);
  if (!path_.empty()) Load();
}

DigestCache::~DigestCache() { Flush(); }

void DigestCache::Load() {
  auto file = OpenFile(path_, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
  if (!file) {
    LogWarning("digests of files will not survive a restart of home: {}", file.error().message());
    failed_ = true;
    return;
  }
  auto content = ReadFile(path_, limit_ * 2 * kRecord + kMagic.size() + kRecord);
  size_t good = 0;
  if (content && std::string_view(*content).starts_with(kMagic)) {
    std::string_view rest = std::string_view(*content).substr(kMagic.size());
    good = kMagic.size();
    while (auto record = ParseRecord(rest.substr(0, kRecord))) {
      Insert(record->version, record->id);
      rest.remove_prefix(kRecord);
      good += kRecord;
    }
  }
  // Cuts off what does not parse, so that new records do not follow garbage.
  bool whole = content && good == content->size() && good > 0;
  if (!whole) {
    if (content && !content->empty()) {
      LogWarning("{}: cut after {} good bytes of {}", Escape(path_), good, content->size());
    }
    if (::ftruncate(file->get(), static_cast<off_t>(good)) != 0) {
      LogWarning("digests of files will not survive a restart of home: truncate {}: {}", Escape(path_),
                 std::strerror(errno));
      failed_ = true;
      return;
    }
    if (good == 0 && !WriteAll(file->get(), kMagic)) {
      failed_ = true;
      return;
    }
  }
  file_ = std::move(*file);
}

std::optional<store::ObjectId> DigestCache::Find(const tree::FileVersion& version) const {
  MutexLock lock(mutex_);
  auto it = ids_.find(version);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

void DigestCache::Insert(const tree::FileVersion& version, const store::ObjectId& id) {
  auto [it, fresh] = ids_.insert_or_assign(version, id);
  if (fresh) order_.push_back(version);
}

void DigestCache::Remember(const tree::FileVersion& version, const store::ObjectId& id, int64_t now_ns) {
  if (now_ns - version.ctime_ns < kSettledNs) return;
  MutexLock lock(mutex_);
  auto it = ids_.find(version);
  if (it != ids_.end() && it->second == id) return;
  Insert(version, id);
  if (file_) AppendRecord(&buffer_, version, id);
  if (ids_.size() > limit_) {
    CompactLocked();
  } else if (buffer_.size() >= kFlushBytes) {
    FlushLocked();
  }
}

void DigestCache::CompactLocked() {
  while (ids_.size() > limit_ / 2) {
    ids_.erase(order_.front());
    order_.pop_front();
  }
  if (!file_) return;
  std::string all(kMagic);
  all.reserve(kMagic.size() + order_.size() * kRecord);
  for (const tree::FileVersion& version : order_) AppendRecord(&all, version, ids_.at(version));
  buffer_.clear();
  Status written = WriteFileAtomic(path_, all, 0600);
  auto file = OpenFile(path_, O_RDWR | O_APPEND | O_NOFOLLOW);
  if (!written || !file) {
    // The old file stays: too long, but correct.
    if (!failed_) LogWarning("digests of files: cannot compact {}", Escape(path_));
    failed_ = true;
    if (!file) file_.Reset();
    return;
  }
  file_ = std::move(*file);
}

void DigestCache::Flush() {
  MutexLock lock(mutex_);
  FlushLocked();
}

void DigestCache::FlushLocked() {
  if (buffer_.empty() || !file_) return;
  off_t before = ::lseek(file_.get(), 0, SEEK_END);
  Status written = WriteAll(file_.get(), buffer_);
  buffer_.clear();
  if (written) return;
  if (!failed_) LogWarning("digests of files will not survive a restart of home: {}", written.error().message());
  failed_ = true;
  // A partial record would hide all later ones at the next start.
  if (before >= 0 && ::ftruncate(file_.get(), before) == 0) return;
  file_.Reset();
}

size_t DigestCache::size() const {
  MutexLock lock(mutex_);
  return ids_.size();
}

}  // namespace vrun::home
