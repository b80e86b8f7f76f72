// SPDX-License-Identifier: Apache-2.0
#include "snapshots/capture.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/thread/mutex.h"
#include "node/source/content_source.h"
#include "snapshots/vault.h"

namespace vrun::snapshots {
namespace {

constexpr size_t kRequests = 256;           // concurrent requests
constexpr uint64_t kRangeBytes = 4u << 20;  // per request; a multiple of every unit size
constexpr int64_t kTellCapturedMicros = 200'000;

// Files below earlier elements of `first` come first. The order is otherwise that of the tree.
void PutFirst(const std::vector<std::string>& first, std::vector<NewFile>* files) {
  if (first.empty()) return;
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t i = 0; i < first.size(); ++i) ranks.emplace(first[i], i);
  const auto rank = [&](std::string_view path) {
    size_t best = first.size();
    for (std::string_view part = path; !part.empty(); part = part.substr(0, part.rfind('/'))) {
      if (const auto it = ranks.find(part); it != ranks.end()) best = std::min(best, it->second);
    }
    if (const auto it = ranks.find("/"); it != ranks.end()) best = std::min(best, it->second);
    return best;
  };
  std::vector<std::pair<size_t, NewFile>> ranked;
  ranked.reserve(files->size());
  for (NewFile& file : *files) {
    const size_t at = rank(file.path);
    ranked.emplace_back(at, std::move(file));
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < ranked.size(); ++i) (*files)[i] = std::move(ranked[i].second);
}

}  // namespace

// One file being captured.
struct Capture::File {
  NewFile what;
  Mutex mutex;  // ranges may arrive on several threads
  std::shared_ptr<store::Object> object VRUN_GUARDED_BY(mutex);
  std::vector<Digest> digests VRUN_GUARDED_BY(mutex);  // digests of all units
  uint64_t bytes_left VRUN_GUARDED_BY(mutex) = 0;
  std::optional<store::ObjectId> id VRUN_GUARDED_BY(mutex);  // set once the file is complete
  std::optional<Error> error VRUN_GUARDED_BY(mutex);
};

Capture::Capture(node::ContentSource* source, store::Store* store, const Vault* vault, Manifest* manifest,
                 std::string home_id, Progress progress)
    : source_(source),
      store_(store),
      vault_(vault),
      manifest_(manifest),
      home_id_(std::move(home_id)),
      progress_(std::move(progress)) {}

// Pending requests refer to this.
Capture::~Capture() {
  MutexLock lock(mu_);
  changed_cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return under_way_ == 0; });
}

vrun::Result<Capture::Names> Capture::FetchNames(const Digest& tree, const Digest& have) {
  Names names;
  VRUN_ASSIGN(names.root, FetchRoot(tree));
  auto fresh = FetchDirectories(tree, have);
  // Home was restarted, so that it does not know that tree.
  if (!fresh && fresh.error().code() == Code::kNotFound && have != Digest()) fresh = FetchDirectories(tree, Digest());
  if (!fresh) return std::move(fresh).error();
  names.fresh = *std::move(fresh);
  return names;
}

vrun::Result<Capture::Result> Capture::Run(const Digest& tree, const Names& names, const Wishes& wishes) {
  Result result;
  result.root = names.root;
  std::vector<NewFile> files;
  VRUN_ASSIGN(result.directory, manifest_->Complete(result.root.child, names.fresh, &files));
  PutFirst(wishes.first, &files);
  VRUN_TRY(FetchFiles(tree, files, wishes.bear_losses, &result));
  return result;
}

vrun::Result<tree::Entry> Capture::FetchRoot(const Digest& tree) {
  std::optional<vrun::Result<tree::Entry>> root;
  MutexLock lock(mu_);
  ++under_way_;
  lock.unlock();
  source_->FetchRoot(tree, [&](vrun::Result<tree::Entry> entry) {
    MutexLock guard(mu_);
    root = std::move(entry);
    --under_way_;
    changed_cv_.notify_all();
  });
  lock.lock();
  changed_cv_.wait(lock, [&] { return root.has_value(); });
  return *std::move(root);
}

vrun::Result<NewDirectories> Capture::FetchDirectories(const Digest& tree, const Digest& have) {
  NewDirectories fresh;
  std::optional<Status> over;
  MutexLock lock(mu_);
  ++under_way_;
  lock.unlock();
  source_->FetchTree(
      tree, have,
      [&](std::vector<vfs::FetchedDirectory> arrived) {
        MutexLock guard(mu_);
        for (vfs::FetchedDirectory& d : arrived) {
          const Digest digest = d.directory->digest();
          fresh[digest] = {std::move(d.directory), std::move(d.known_ids)};
        }
      },
      [&](Status status) {
        MutexLock guard(mu_);
        over = std::move(status);
        --under_way_;
        changed_cv_.notify_all();
      });
  lock.lock();
  changed_cv_.wait(lock, [&] { return over.has_value(); });
  if (!*over) return std::move(*over).error();
  return fresh;
}

bool Capture::InStore(const store::ObjectId& id, uint64_t size) const {
  auto object = store_->Acquire(id, size);
  return (object && (*object)->complete()) || (vault_ != nullptr && vault_->is_open() && vault_->Has(id, size));
}

Status Capture::FetchFiles(const Digest& tree, const std::vector<NewFile>& files, bool bear_losses, Result* result) {
  {
    MutexLock lock(mu_);
    told_.set_total_files(files.size());
    for (const NewFile& file : files) told_.set_total_bytes(told_.total_bytes() + file.version.size);
  }
  const auto settle = [&](const std::vector<FilePtr>& over) {
    for (const FilePtr& file : over) {
      MutexLock lock(file->mutex);
      if (file->id) {
        manifest_->Identify(file->what.version, *file->id);
        result->stored.push_back(*file->id);
        result->sent_bytes += file->what.version.size;
      } else if (file->error->code() == Code::kAborted) {
        result->changed.push_back(file->what.path);
        if (bear_losses) manifest_->MarkLost(file->what);
      } else {
        manifest_->MarkUnreadable(file->what);
      }
    }
  };
  const auto wait = [&](size_t until) -> bool {
    std::vector<FilePtr> over;
    bool go_on;
    {
      MutexLock lock(mu_);
      changed_cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return under_way_ <= until; });
      over.swap(over_);
      go_on = !failed_;
    }
    settle(over);
    return go_on;
  };
  for (const NewFile& file : files) {
    if (file.id && InStore(*file.id, file.version.size)) {
      manifest_->Identify(file.version, *file.id);
      MutexLock lock(mu_);
      told_.set_files(told_.files() + 1);
      told_.set_bytes(told_.bytes() + file.version.size);
      continue;
    }
    if (!wait(kRequests)) break;
    auto sent = std::make_shared<File>();
    sent->what = file;
    {
      MutexLock lock(sent->mutex);
      sent->bytes_left = file.version.size;
      sent->digests.resize(store::UnitCount(file.version.size));
    }
    Fetch(tree, sent);
  }
  wait(0);
  MutexLock lock(mu_);
  if (failed_) return *failed_;
  return {};
}

void Capture::Fetch(const Digest& tree, const FilePtr& file) {
  const tree::FileVersion& version = file->what.version;
  for (uint64_t offset = 0; offset < version.size; offset += kRangeBytes) {
    const uint64_t length = std::min(kRangeBytes, version.size - offset);
    {
      MutexLock lock(mu_);
      // A file with very many ranges waits in between.
      changed_cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return under_way_ <= kRequests; });
      ++under_way_;
    }
    source_->FetchRange(tree, file->what.path, version, offset, length, vfs::Urgency::kAhead,
                        [this, file, offset, length](vrun::Result<vfs::FetchedRange> range) {
                          Arrived(file, offset, length, std::move(range));
                        });
  }
}

void Capture::Arrived(const FilePtr& file, uint64_t offset, uint64_t length, vrun::Result<vfs::FetchedRange> range) {
  std::optional<Error> fatal;
  bool whole = false;
  {
    MutexLock lock(file->mutex);
    file->bytes_left -= length;
    if (!file->error) {
      Status kept;
      if (!range) {
        kept = std::move(range).error();
      } else if (range->offset != offset) {
        kept = Error(Code::kInternal, "home sent a different range than requested");
      } else {
        kept = Keep(file, *range);
      }
      if (kept && file->bytes_left == 0) kept = Complete(file.get());
      if (!kept) file->error = kept.error();
      // A changed file is retried, an unreadable one is left out; any other error fails the capture.
      const bool bearable = kept || kept.error().code() == Code::kAborted || kept.error().code() == Code::kDenied;
      if (!bearable) fatal = kept.error().With(Escape(file->what.path));
    }
    whole = file->bytes_left == 0;
  }
  MutexLock lock(mu_);
  --under_way_;
  if (fatal && !failed_) failed_ = std::move(fatal);
  told_.set_bytes(told_.bytes() + length);
  if (whole) {
    told_.set_files(told_.files() + 1);
    over_.push_back(file);
  }
  if (const int64_t now = MonotonicMicros(); progress_ && now - told_us_ > kTellCapturedMicros) {
    told_us_ = now;
    if (!progress_(told_) && !failed_) failed_ = Error(Code::kAborted, "snapshot: home has gone");
  }
  changed_cv_.notify_all();
}

// Arrived holds the file's mutex.
Status Capture::Keep(const FilePtr& file, const vfs::FetchedRange& range) VRUN_NO_THREAD_SAFETY_ANALYSIS {
  const tree::FileVersion& v = file->what.version;
  const uint64_t first = range.offset / store::UnitBytes(v.size);
  std::vector<store::PutUnit> units;
  for (const vfs::FetchedUnit& unit : range.units) {
    if (first + units.size() >= file->digests.size()) return Error(Code::kInternal, "home sent more than the file has");
    file->digests[first + units.size()] = unit.digest;
    units.push_back({unit.digest, unit.data});
  }
  if (!file->object) {
    // If a file comes as one range, its name is known before anything is written; otherwise it is set at the end.
    store::ObjectId id = store::ProvisionalId(home_id_, v.dev, v.ino, v.ctime_ns, v.size);
    if (units.size() == file->digests.size()) id = store::ContentId(v.size, file->digests);
    VRUN_ASSIGN(file->object, store_->Acquire(id, v.size));
  }
  // kAborted: an earlier attempt stored a unit with other content under this version.
  return file->object->Put(first, units, true);
}

// Like Keep.
Status Capture::Complete(File* file) VRUN_NO_THREAD_SAFETY_ANALYSIS {
  store::ObjectId id = file->object->id();
  if (id.algorithm == store::IdAlgorithm::kProvisional) {
    VRUN_TRY(file->object->Resolve(store::ContentId(file->what.version.size, file->digests)));
    id = file->object->id();
  }
  if (!file->object->complete()) {
    return Error(Code::kExhausted, "the snapshot store could not keep all of it: is its disk full?");
  }
  file->object.reset();
  file->id = id;
  return {};
}

}  // namespace vrun::snapshots
