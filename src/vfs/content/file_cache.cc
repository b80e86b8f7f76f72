// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/file_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "vfs/content/backend.h"
#include "vfs/content/burst.h"

namespace vrun::vfs {
namespace {

constexpr size_t kContentsKept = 256;  // each pins its object in the store
constexpr int64_t kSaidAgainMicros = 60'000'000;

}  // namespace

std::shared_ptr<FileContent> FileCache::Get(const tree::FileVersion& version,
                                            const std::optional<store::ObjectId>& known_id) {
  std::vector<std::shared_ptr<FileContent>> dropped;  // freed without the lock
  MutexLock lock(mutex_);
  if (const auto it = cached_.find(version); it != cached_.end()) {
    recent_.splice(recent_.begin(), recent_, it->second.position);
    return it->second.content;
  }
  std::weak_ptr<FileContent>& known = known_[version];
  std::shared_ptr<FileContent> content = known.lock();
  if (!content) {
    content = std::make_shared<FileContent>(*this, version, known_id);
    known = content;
  }
  recent_.push_front(version);
  cached_[version] = {content, recent_.begin()};
  if (recent_.size() > kContentsKept) {
    const auto last = cached_.find(recent_.back());
    dropped.push_back(std::move(last->second.content));
    cached_.erase(last);
    recent_.pop_back();
  }
  if (known_.size() >= sweep_at_) {
    std::erase_if(known_, [](const auto& item) { return item.second.expired(); });
    sweep_at_ = std::max<size_t>(4096, known_.size() * 2);
  }
  return content;
}

void FileCache::Close() {
  gate_->Close();
  std::vector<std::shared_ptr<FileContent>> contents;
  std::list<FileContent::Waiter> waiters;  // gone without a lock
  {
    MutexLock lock(mutex_);
    for (const auto& [version, known] : known_) {
      if (auto content = known.lock()) contents.push_back(std::move(content));
    }
  }
  for (const auto& content : contents) {
    MutexLock lock(content->mutex_);
    waiters.splice(waiters.end(), content->waiters_);
  }
}

void FileCache::ReleaseIdle() {
  // References that do not count as a use: one per burst that holds the content, and the table's. Freed without the
  // lock.
  std::vector<std::shared_ptr<FileContent>> idle = backend_.bursts().Held();
  {
    MutexLock lock(mutex_);
    for (const auto& [version, cached] : cached_) idle.push_back(cached.content);
  }
  std::unordered_map<const FileContent*, long> unused;
  for (const auto& content : idle) unused[content.get()] += 2;
  // Keep contents with units only in memory, which would have to be fetched again, and contents of bursts, which must
  // receive arriving units. Release only their objects.
  for (const auto& content : idle) {
    if (content.use_count() <= unused[content.get()]) content->ReleaseObject();
  }
  std::erase_if(idle, [](const auto& content) { return content->HoldsUnstored(); });
  MutexLock lock(mutex_);
  for (const auto& content : idle) {
    const auto it = cached_.find(content->version_);
    if (it == cached_.end() || it->second.content != content) continue;
    recent_.erase(it->second.position);
    cached_.erase(it);
  }
}

void FileCache::StoreRefuses(const Error& error) {
  const int64_t now = MonotonicMicros();
  int64_t said = said_refused_micros_;
  if (now - said < kSaidAgainMicros || !said_refused_micros_.compare_exchange_strong(said, now)) return;
  LogWarning("cannot write to the content cache: new content stays in memory, up to a limit: {}",
             Escape(error.message()));
}

void FileCache::AddUnstored(const std::shared_ptr<FileContent>& content, uint64_t unit, uint64_t bytes) {
  std::vector<Unstored> dropped;
  {
    MutexLock lock(mutex_);
    unstored_.push_back({content, unit, bytes});
    unstored_bytes_ += bytes;
    while (unstored_bytes_ > backend_.options().unstored_memory_bytes && unstored_.size() > 1) {
      unstored_bytes_ -= unstored_.front().bytes;
      dropped.push_back(std::move(unstored_.front()));
      unstored_.pop_front();
    }
  }
  for (const Unstored& old : dropped) {
    if (const auto owner = old.content.lock()) owner->DropUnstored(old.unit);
  }
}

}  // namespace vrun::vfs
