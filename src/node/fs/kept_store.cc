// SPDX-License-Identifier: Apache-2.0
#include "node/fs/kept_store.h"

#include <dirent.h>
#include <stdio.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "node/carry/kept_series.h"

namespace vrun::node {
namespace {

constexpr int64_t kDay = 24 * 3600 * 1'000'000LL;

std::vector<std::string> Names(const std::string& directory) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory.c_str()), ::closedir);
  while (dirent* e = dir ? ::readdir(dir.get()) : nullptr) {
    if (e->d_name[0] != '.') names.push_back(e->d_name);
  }
  return names;
}

}  // namespace

KeptStore::KeptStore(std::string directory, KeptLimits limits, std::function<int64_t()> now)
    : directory_(std::move(directory)), limits_(limits), now_(std::move(now)) {}

std::string KeptStore::PathOf(const std::string& tenant, const AttemptKey& key) const {
  return directory_ + "/" + tenant + "/" + key.Name();
}

std::vector<KeptStore::Entry> KeptStore::Entries(const std::string& tenant) const {
  std::vector<Entry> entries;
  for (const std::string& name : Names(directory_ + "/" + tenant)) {
    const std::string path = directory_ + "/" + tenant + "/" + name;
    auto kept = ReadKept(path);
    if (!kept) {
      LogWarning("{}: {}", Escape(path), kept.error().message());
      continue;
    }
    Entry entry{tenant, path, *std::move(kept)};
    entry.kept.set_until_us(entry.kept.kept_us() + limits_.days * kDay);
    if (entry.kept.state() == v1::KEPT_THERE) {
      // Content with an upper for another attempt is stored twice.
      entry.disk_bytes = entry.kept.bytes() * (PathExists(path + "/upper") ? 2 : 1);
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return AttemptKey::Of(a.kept) < AttemptKey::Of(b.kept); });
  for (const Entry& later : entries) {
    for (Entry& earlier : entries) {
      if (later.kept.continues() != 0 && earlier.kept.job() == later.kept.job() &&
          earlier.kept.attempt() == later.kept.continues() && earlier.kept.pod() == later.kept.pod()) {
        earlier.superseded = true;
      }
    }
  }
  return entries;
}

std::vector<KeptStore::Entry> KeptStore::AllEntries() const {
  std::vector<Entry> all;
  for (const std::string& tenant : Names(directory_)) {
    std::vector<Entry> entries = Entries(tenant);
    std::move(entries.begin(), entries.end(), std::back_inserter(all));
  }
  return all;
}

std::vector<v1::Kept> KeptStore::Of(const std::string& tenant, uint64_t job) const {
  MutexLock lock(mutex_);
  std::vector<v1::Kept> out;
  for (Entry& entry : Entries(tenant)) {
    if (entry.kept.job() == job && !entry.superseded) out.push_back(std::move(entry.kept));
  }
  return out;
}

// Writes the record first: a crash in between leaves content that is not listed any more, which Expire finds.
Status KeptStore::Remove(const Entry& entry, v1::Handover why) {
  v1::Kept kept = entry.kept;
  kept.clear_until_us();
  kept.set_state(why);
  kept.set_gone_us(now_());
  VRUN_TRY(WriteKept(entry.directory, kept));
  for (const char* name : {"/series", "/data", "/upper"}) VRUN_TRY(RemoveTree(entry.directory + name));
  return {};
}

Status KeptStore::Drop(const std::string& tenant, const AttemptKey& key, v1::Handover why) {
  MutexLock lock(mutex_);
  for (const Entry& entry : Entries(tenant)) {
    if (AttemptKey::Of(entry.kept) != key) continue;
    if (entry.kept.state() == v1::KEPT_THERE) return Remove(entry, why);
  }
  return Error(Code::kNotFound, "job " + std::to_string(key.job) + ": this node has no kept writes of it any more");
}

void KeptStore::Expire() {
  MutexLock lock(mutex_);
  const auto check = [](const Status& removed) {
    if (!removed) LogError("cannot remove kept writes: {}", removed.error().message());
  };
  std::vector<Entry> there;
  for (Entry& entry : AllEntries()) {
    if (entry.superseded) {
      check(RemoveTree(entry.directory));
    } else if (entry.kept.state() != v1::KEPT_THERE) {
      // A removal that was interrupted.
      for (const char* name : {"/series", "/data", "/upper"}) check(RemoveTree(entry.directory + name));
      if (now_() - entry.kept.gone_us() > limits_.days * kDay) check(RemoveTree(entry.directory));
    } else if (now_() >= entry.kept.until_us()) {
      check(Remove(entry, v1::KEPT_EXPIRED));
    } else {
      there.push_back(std::move(entry));
    }
  }
  std::sort(there.begin(), there.end(),
            [](const Entry& a, const Entry& b) { return a.kept.kept_us() < b.kept.kept_us(); });
  uint64_t total = 0;
  for (const Entry& entry : there) total += entry.disk_bytes;
  for (const Entry& entry : there) {
    if (total <= limits_.bytes) break;
    LogWarning("job {}: removing its kept writes ({} bytes): all kept writes are above their limit", entry.kept.job(),
               entry.kept.bytes());
    check(Remove(entry, v1::KEPT_EXPIRED));
    total -= entry.disk_bytes;
  }
}

Result<uint32_t> KeptStore::TakeUpper(const std::string& tenant, const AttemptKey& key, const std::string& root,
                                      const std::string& to) {
  MutexLock lock(mutex_);
  std::vector<Entry> entries = Entries(tenant);
  std::erase_if(entries, [&](const Entry& e) {
    return e.kept.job() != key.job || e.kept.attempt() >= key.attempt || e.kept.pod() != key.pod;
  });
  if (entries.empty()) return 0;
  const Entry& last = entries.back();
  const std::string upper = last.directory + "/upper";
  if (last.kept.state() != v1::KEPT_THERE || last.kept.root() != root || !PathExists(upper)) return 0;
  if (::rename(upper.c_str(), to.c_str()) != 0) return ErrnoError("go on with " + Escape(upper));
  return last.kept.attempt();
}

}  // namespace vrun::node
