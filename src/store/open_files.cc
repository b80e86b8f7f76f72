// SPDX-License-Identifier: Apache-2.0
#include "store/open_files.h"

namespace vrun::store {

uint64_t OpenFiles::NewKey() {
  MutexLock lock(mu_);
  return next_key_++;
}

ObjectFilesPtr OpenFiles::Get(uint64_t key) {
  MutexLock lock(mu_);
  auto it = index_.find(key);
  if (it == index_.end()) return nullptr;
  lru_.splice(lru_.begin(), lru_, it->second);
  return it->second->second;
}

void OpenFiles::Insert(uint64_t key, ObjectFilesPtr files) {
  ObjectFilesPtr closed;  // close(2) happens outside the lock
  MutexLock lock(mu_);
  if (auto it = index_.find(key); it != index_.end()) {
    closed = std::exchange(it->second->second, std::move(files));
    lru_.splice(lru_.begin(), lru_, it->second);
    return;
  }
  lru_.emplace_front(key, std::move(files));
  index_[key] = lru_.begin();
  if (lru_.size() > max_objects_) {
    closed = std::move(lru_.back().second);
    index_.erase(lru_.back().first);
    lru_.pop_back();
  }
}

void OpenFiles::Erase(uint64_t key) {
  ObjectFilesPtr closed;
  MutexLock lock(mu_);
  auto it = index_.find(key);
  if (it == index_.end()) return;
  closed = std::move(it->second->second);
  lru_.erase(it->second);
  index_.erase(it);
}

void OpenFiles::CloseAll() {
  std::list<Item> closed;  // closed after the lock
  MutexLock lock(mu_);
  closed.swap(lru_);
  index_.clear();
}

size_t OpenFiles::size() const {
  MutexLock lock(mu_);
  return lru_.size();
}

}  // namespace vrun::store
