// SPDX-License-Identifier: Apache-2.0
#include "store/format/blob_packs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "base/files.h"

namespace vrun::store {
namespace {

constexpr size_t kHeaderBytes = 48;
constexpr size_t kMaxBlob = 512u << 20;

std::string EncodeHeader(const Digest& digest, size_t length) {
  std::string header = "VRBP";
  for (int i = 0; i < 4; ++i) header.push_back(static_cast<char>(length >> (8 * i)));
  header.append(digest.view());
  header.append(Sha256(header).view().substr(0, 8));
  return header;
}

bool DecodeHeader(std::string_view bytes, Digest* digest, uint32_t* length) {
  if (bytes.substr(0, 4) != "VRBP") return false;
  if (bytes.substr(40, 8) != Sha256(bytes.substr(0, 40)).view().substr(0, 8)) return false;
  *length = 0;
  for (int i = 4; i-- > 0;) *length = *length << 8 | static_cast<uint8_t>(bytes[4 + static_cast<size_t>(i)]);
  *digest = *Digest::FromBytes(bytes.substr(8, 32));
  return true;
}

}  // namespace

BlobPacks::BlobPacks(std::string directory, uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_(limit_bytes) {}

void BlobPacks::Load() {
  std::vector<std::string> names;
  if (DIR* dir = ::opendir(directory_.c_str())) {
    while (const dirent* entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name.size() > 5 && name.substr(name.size() - 5) == ".pack") names.emplace_back(name);
    }
    ::closedir(dir);
  }
  std::sort(names.begin(), names.end());  // names begin with the time
  MutexLock lock(mu_);
  for (const std::string& name : names) {
    auto pack = std::make_shared<Pack>();
    pack->path = directory_ + "/" + name;
    auto fd = OpenFile(pack->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (!fd || ::fstat(fd->get(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
    pack->fd = std::move(*fd);
    pack->size = static_cast<uint64_t>(st.st_size);
    bytes_ += pack->size;
    packs_.push_back(pack);
    IndexPack(pack);
  }
  while (bytes_ > limit_ && !packs_.empty()) DropOldest();
  loaded_ = true;
  loaded_cv_.notify_all();
}

void BlobPacks::IndexPack(const std::shared_ptr<Pack>& pack) {
  // Headers are close together: one read covers many of them.
  std::string window;
  uint64_t window_at = 0;
  for (uint64_t at = 0; at + kHeaderBytes <= pack->size;) {
    if (at < window_at || at + kHeaderBytes > window_at + window.size()) {
      window.resize(256 * 1024);
      auto n = PreadUpTo(pack->fd.get(), window.data(), window.size(), at);
      if (!n || *n < kHeaderBytes) return;
      window.resize(*n);
      window_at = at;
    }
    Digest digest;
    uint32_t length;
    // A torn or damaged record hides what follows; that is fetched again.
    if (!DecodeHeader(std::string_view(window).substr(at - window_at, kHeaderBytes), &digest, &length)) return;
    if (length > pack->size - at - kHeaderBytes) return;
    index_[digest] = {pack, at + kHeaderBytes, length};
    at += kHeaderBytes + length;
  }
}

Result<std::string> BlobPacks::Get(const Digest& digest, bool* corrupt) {
  *corrupt = false;
  Place place;
  {
    MutexLock lock(mu_);
    loaded_cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return loaded_; });
    auto it = index_.find(digest);
    if (it == index_.end()) return Error(Code::kNotFound, "store: directory object is not in the cache");
    place = it->second;
  }
  std::string bytes(place.length, '\0');
  auto n = PreadUpTo(place.pack->fd.get(), bytes.data(), bytes.size(), place.offset);
  if (n && *n == bytes.size() && Sha256(bytes) == digest) return bytes;
  *corrupt = true;
  MutexLock lock(mu_);
  auto it = index_.find(digest);
  if (it != index_.end() && it->second.pack == place.pack && it->second.offset == place.offset) index_.erase(it);
  return Error(Code::kNotFound, "store: directory object was damaged in the cache");
}

Status BlobPacks::NewPack() {
  static constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "/%016llx-%d-%d.pack", static_cast<unsigned long long>(WallMicros()),
                  static_cast<int>(::getpid()), i);
    VRUN_TRY(MakeDirs(directory_, 0700));  // the directory may have been removed
    auto fd = OpenFile(directory_ + name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (!fd && fd.error().error_number() == EEXIST) continue;
    if (!fd) return std::move(fd).error();
    current_ = std::make_shared<Pack>();
    current_->path = directory_ + name;
    current_->fd = std::move(*fd);
    packs_.push_back(current_);
    return {};
  }
  return Error(Code::kExhausted, "store: cannot name a new pack");
}

void BlobPacks::DropOldest() {
  std::shared_ptr<Pack> oldest = packs_.front();
  packs_.erase(packs_.begin());
  bytes_ -= oldest->size;
  if (current_ == oldest) current_.reset();
  std::erase_if(index_, [&](const auto& item) { return item.second.pack == oldest; });
  ::unlink(oldest->path.c_str());
}

Status BlobPacks::Put(const Digest& digest, std::string_view bytes) {
  if (bytes.size() > kMaxBlob) return Error(Code::kInvalid, "store: directory object is too large");
  MutexLock lock(mu_);
  loaded_cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return loaded_; });
  return PutLocked(digest, bytes);
}

Status BlobPacks::PutLocked(const Digest& digest, std::string_view bytes) {
  if (index_.contains(digest)) return {};
  if (current_ && current_->size > limit_ / 4) current_.reset();
  if (!current_) VRUN_TRY(NewPack());
  const std::string header = EncodeHeader(digest, bytes.size());
  const uint64_t at = current_->size;
  Status written = PwriteAll(current_->fd.get(), header, at);
  if (written) written = PwriteAll(current_->fd.get(), bytes, at + header.size());
  if (!written) {
    [[maybe_unused]] int ignored = ::ftruncate(current_->fd.get(), static_cast<off_t>(at));
    return written;
  }
  const uint64_t added = header.size() + bytes.size();
  current_->size += added;
  bytes_ += added;
  index_[digest] = {current_, at + header.size(), static_cast<uint32_t>(bytes.size())};
  while (bytes_ > limit_ && packs_.size() > 1 && packs_.front() != current_) DropOldest();
  return {};
}

Status BlobPacks::Sweep(const std::function<bool(const Digest&)>& needed) {
  MutexLock lock(mu_);
  loaded_cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return loaded_; });
  const bool all_needed = std::all_of(index_.begin(), index_.end(), [&](const auto& i) { return needed(i.first); });
  if (all_needed) return {};
  const std::vector<std::shared_ptr<Pack>> old_packs = std::exchange(packs_, {});
  const auto old_index = std::exchange(index_, {});
  current_.reset();
  const uint64_t old_bytes = std::exchange(bytes_, 0);
  const auto copy = [&]() VRUN_REQUIRES(mu_) -> Status {
    for (const auto& [digest, place] : old_index) {
      if (!needed(digest)) continue;
      std::string bytes(place.length, '\0');
      VRUN_ASSIGN(const size_t n, PreadUpTo(place.pack->fd.get(), bytes.data(), bytes.size(), place.offset));
      if (n == bytes.size()) VRUN_TRY(PutLocked(digest, bytes));
    }
    for (const auto& pack : packs_) {
      if (::fsync(pack->fd.get()) != 0) return ErrnoError("sync " + pack->path);
    }
    return {};
  };
  const Status copied = copy();
  if (!copied) {  // nothing is lost: the old packs stay valid
    for (const auto& pack : packs_) ::unlink(pack->path.c_str());
    packs_ = old_packs;
    index_ = old_index;
    bytes_ = old_bytes;
    current_.reset();
    return copied;
  }
  VRUN_ASSIGN(const UniqueFd directory, OpenFile(directory_, O_RDONLY | O_DIRECTORY));
  if (::fsync(directory.get()) != 0) return ErrnoError("sync " + directory_);
  for (const auto& pack : old_packs) ::unlink(pack->path.c_str());
  return {};
}

uint64_t BlobPacks::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

std::vector<Digest> BlobPacks::List() const {
  MutexLock lock(mu_);
  std::vector<Digest> all;
  for (const auto& [digest, place] : index_) all.push_back(digest);
  return all;
}

}  // namespace vrun::store
