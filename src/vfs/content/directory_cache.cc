// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/directory_cache.h"

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "tree/unread.h"
#include "vfs/content/backend.h"

namespace vrun::vfs {

std::optional<store::ObjectId> LoadedDirectory::KnownId(size_t index) const {
  const auto known = std::lower_bound(known_ids.begin(), known_ids.end(), index,
                                      [](const auto& id, size_t at) { return id.first < at; });
  if (known == known_ids.end() || known->first != index) return std::nullopt;
  return known->second;
}

DirectoryCache::DirectoryCache(Backend& backend) : backend_(backend) {}

LoadedDirectoryPtr DirectoryCache::InMemory(const Digest& digest) {
  MutexLock lock(mutex_);
  const auto it = cached_.find(digest);
  if (it == cached_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, it->second.position);
  return it->second.directory;
}

void DirectoryCache::Remember(LoadedDirectoryPtr directory) {
  const Digest digest = directory->directory->digest();
  std::vector<LoadedDirectoryPtr> dropped;  // freed without the lock
  MutexLock lock(mutex_);
  const auto [it, is_new] = cached_.try_emplace(digest);
  if (!is_new) {
    // The newer answer may contain ids that the older one did not.
    if (directory->known_ids.size() > it->second.directory->known_ids.size())
      it->second.directory = std::move(directory);
    return;
  }
  bytes_ += directory->directory->encoded().size();
  recent_.push_front(digest);
  it->second = {std::move(directory), recent_.begin()};
  while (bytes_ > backend_.options().directory_memory_bytes && recent_.size() > 1) {
    const auto last = cached_.find(recent_.back());
    bytes_ -= last->second.directory->directory->encoded().size();
    dropped.push_back(std::move(last->second.directory));
    cached_.erase(last);
    recent_.pop_back();
  }
}

LoadedDirectoryPtr DirectoryCache::Find(const Digest& digest) {
  if (tree::IsUnread(digest)) return nullptr;  // home reads the directory when it is asked for it
  if (LoadedDirectoryPtr found = InMemory(digest)) return found;
  auto blob = backend_.store()->GetBlob(digest);
  if (!blob) return nullptr;
  auto parsed = tree::Directory::Parse(*std::move(blob));
  if (!parsed || (*parsed)->digest() != digest) return nullptr;
  auto loaded = std::make_shared<LoadedDirectory>();
  loaded->directory = *std::move(parsed);
  Remember(loaded);
  return loaded;
}

void DirectoryCache::Insert(FetchedDirectory directory) {
  auto loaded = std::make_shared<LoadedDirectory>();
  loaded->directory = std::move(directory.directory);
  loaded->known_ids = std::move(directory.known_ids);
  Remember(loaded);
  Finish(loaded->directory->digest(), LoadedDirectoryPtr(loaded));
}

void DirectoryCache::Get(const Digest& tree, const std::string& path, const Digest& digest, Done done) {
  if (LoadedDirectoryPtr found = Find(digest)) {
    done(std::move(found));
    return;
  }
  {
    MutexLock lock(mutex_);
    const auto [it, is_new] = fetching_.try_emplace(digest);
    it->second.waiters.push_back(std::move(done));
    // Home answers for the trees of running jobs: who asks last may have one when the first has none any more.
    it->second.tree = tree;
    it->second.path = path;
    if (!is_new) return;
    const int64_t patience = backend_.options().home_deadline_micros;
    it->second.retry.deadline = MonotonicMicros() + patience;
    it->second.deadline_timer = backend_.timers().After(patience, [this, digest] {
      Finish(digest, Error(Code::kTimeout, "fetch a directory: home did not answer in time"));
    });
  }
  Start(digest);
}

void DirectoryCache::Start(const Digest& digest) {
  Digest tree;
  std::string path;
  uint64_t attempt = 0;
  {
    MutexLock lock(mutex_);
    const auto it = fetching_.find(digest);
    if (it == fetching_.end()) return;
    tree = it->second.tree;
    path = it->second.path;
    attempt = ++it->second.attempt;
  }
  backend_.source()->FetchDirectory(tree, path, digest,
                                    [this, gate = gate_, digest, attempt](Result<FetchedDirectory> answer) {
                                      const Gate::Pass pass(gate.get());
                                      if (pass) Answered(digest, attempt, std::move(answer));
                                    });
}

void DirectoryCache::Answered(const Digest& digest, uint64_t attempt, Result<FetchedDirectory> answer) {
  if (answer && (!answer->directory || answer->directory->digest() != digest)) {
    answer = Error(Code::kCorrupt, "fetch a directory: home's answer does not match the digest");
  }
  if (!answer) {
    int64_t delay = -1;
    {
      MutexLock lock(mutex_);
      const auto it = fetching_.find(digest);
      if (it == fetching_.end() || it->second.attempt != attempt) return;
      delay = it->second.retry.Next(answer.error(), MonotonicMicros());
    }
    if (delay < 0) {
      Finish(digest, std::move(answer).error());
      return;
    }
    ++backend_.mutable_counters().fetch_retries;
    backend_.timers().After(
        delay, [this, digest] { Start(digest); }, true);
    return;
  }
  auto loaded = std::make_shared<LoadedDirectory>();
  loaded->directory = std::move(answer->directory);
  loaded->known_ids = std::move(answer->known_ids);
  Remember(loaded);
  Finish(digest, LoadedDirectoryPtr(loaded));
  // After the readers, so that they do not wait for the disk. A full disk only costs a later round trip.
  if (!backend_.store()->PutBlob(digest, loaded->directory->encoded())) {
    ++backend_.mutable_counters().store_write_failures;
  }
}

void DirectoryCache::Finish(const Digest& digest, Result<LoadedDirectoryPtr> result) {
  Fetch fetch;
  {
    MutexLock lock(mutex_);
    const auto it = fetching_.find(digest);
    if (it == fetching_.end()) return;
    fetch = std::move(it->second);
    fetching_.erase(it);
  }
  backend_.timers().Cancel(fetch.deadline_timer);
  if (!result && !tree::IsUnread(digest))
    LogWarning("directory {}: {}", Escape(fetch.path), Escape(result.error().message()));
  for (Done& done : fetch.waiters) done(result);
}

Status DirectoryCache::GetAll(const Digest& tree, const std::vector<std::pair<Digest, std::string>>& wanted,
                              Loaded* have) {
  struct Wait {
    Mutex mutex;
    CondVar changed;
    size_t left VRUN_GUARDED_BY(mutex) = 0;
    std::optional<Error> error VRUN_GUARDED_BY(mutex);
    std::vector<std::pair<Digest, LoadedDirectoryPtr>> loaded VRUN_GUARDED_BY(mutex);
  };
  const auto wait = std::make_shared<Wait>();
  {
    MutexLock lock(wait->mutex);
    wait->left = wanted.size();
  }
  for (const auto& [digest, path] : wanted) {
    Get(tree, path, digest, [wait, digest = digest](Result<LoadedDirectoryPtr> loaded) {
      MutexLock lock(wait->mutex);
      if (loaded) {
        wait->loaded.emplace_back(digest, *std::move(loaded));
      } else {
        wait->error = std::move(loaded).error();
      }
      if (--wait->left == 0) wait->changed.notify_all();
    });
  }
  MutexLock lock(wait->mutex);
  wait->changed.wait(lock, [&]() VRUN_REQUIRES(wait->mutex) { return wait->left == 0; });  // each ends at its deadline
  for (auto& [digest, loaded] : wait->loaded) (*have)[digest] = std::move(loaded);
  if (wait->error) return *wait->error;
  return {};
}

}  // namespace vrun::vfs
