// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>

#include "base/files.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "store/core.h"
#include "store/format/blob_packs.h"
#include "store/format/unit_map.h"
#include "store/object_base.h"

namespace vrun::store {
namespace {

constexpr time_t kTemporaryAge = 3600;  // abandoned temporary files older than this are removed

uint64_t BlobLimit(const Options& options) {
  if (options.never_evict) return UINT64_MAX;
  return std::clamp<uint64_t>(options.max_bytes / 8, 4u << 20, 1u << 30);
}

// Whether a name "HEX.A" uses one of the SHA-256 algorithms, which nothing refers to any more.
bool IsOutdated(std::string_view name) {
  return name.size() >= 66 && name[64] == '.' && (name[65] == '1' || name[65] == '2');
}

// The id in a name "HEX.A"; nullopt for anything else.
std::optional<ObjectId> IdOfName(std::string_view name) {
  if (name.size() != 66 || name[64] != '.' || !IsIdAlgorithm(static_cast<uint8_t>(name[65] - '0'))) return std::nullopt;
  const auto digest = Digest::FromHex(name.substr(0, 64));
  if (!digest) return std::nullopt;
  return ObjectId{static_cast<IdAlgorithm>(name[65] - '0'), *digest};
}

struct Found {
  ObjectId id;
  uint64_t size = 0;
  uint64_t disk_bytes = 0;
  bool has_map = false;
  int64_t used = 0;
};

class StoreImpl final : public Store {
 public:
  explicit StoreImpl(const Options& options)
      : core_(std::make_shared<Core>(options)), blobs_(options.directory + "/blobs", BlobLimit(options)) {}

  ~StoreImpl() override {
    {
      MutexLock lock(mu_);
      stop_ = true;
      changed_cv_.notify_all();
    }
    if (keeper_.joinable()) keeper_.join();
    core_->Close();
  }

  Status Start() {
    VRUN_TRY(core_->Prepare());
    keeper_ = std::thread([this] {
      Scan();
      Keep();
    });
    return {};
  }

  Result<std::shared_ptr<Object>> Acquire(const ObjectId& id, uint64_t size) override {
    VRUN_ASSIGN(std::shared_ptr<Object> object, core_->Acquire(id, size));
    return object;
  }

  Result<std::string> GetBlob(const Digest& digest) override {
    bool corrupt = false;
    auto blob = blobs_.Get(digest, &corrupt);
    if (corrupt) ++core_->corrupt;
    return blob;
  }

  Status PutBlob(const Digest& digest, std::string_view bytes) override {
    if (!core_->MakeRoom(bytes.size())) {
      ++core_->failed_writes;
      return Error(Code::kExhausted, "store: the cache is full of files in use");
    }
    Status put = blobs_.Put(digest, bytes);
    if (!put && IsDiskFull(put.error()) && core_->EvictAtLeast(bytes.size() + 4096)) put = blobs_.Put(digest, bytes);
    core_->SetOtherBytes(blobs_.bytes());
    if (put || put.error().code() == Code::kInvalid) return put;
    ++core_->failed_writes;
    return Error(Code::kExhausted, put.error().message());
  }

  Stats stats() const override {
    Stats s;
    s.bytes = core_->bytes();
    s.limit_bytes = core_->limit();
    s.objects = core_->objects();
    s.hits = core_->hits;
    s.misses = core_->misses;
    s.corrupt_units = core_->corrupt;
    s.evictions = core_->evictions;
    s.failed_writes = core_->failed_writes;
    core_->FreeSpace(&s.disk_free_bytes, &s.min_free_bytes);
    return s;
  }

  Result<uint64_t> Prune(uint64_t bytes) override {
    WaitForScan();
    core_->EvictDownTo(bytes);
    return core_->bytes();
  }

  Result<uint64_t> Sweep(const std::function<bool(const ObjectId&)>& object_needed,
                         const std::function<bool(const Digest&)>& blob_needed) override {
    WaitForScan();
    uint64_t freed = 0;
    for (const Found& found : List()) {
      if (object_needed(found.id)) continue;
      core_->Remove(found.id);
      freed += found.disk_bytes;
    }
    const uint64_t before = blobs_.bytes();
    VRUN_TRY(blobs_.Sweep(blob_needed));
    core_->SetOtherBytes(blobs_.bytes());
    return freed + before - std::min(before, blobs_.bytes());
  }

  void SetLimit(uint64_t max_bytes) override {
    core_->SetLimit(max_bytes);
    MutexLock lock(mu_);
    limit_changed_ = true;
    changed_cv_.notify_all();
  }
  void OnPressure(std::function<void()> release) override { core_->OnPressure(std::move(release)); }

  bool GiveWay(int error, uint64_t bytes) override {
    if (error == EMFILE || error == ENFILE) {
      core_->files.CloseAll();
      return true;
    }
    if (error != ENOSPC && error != EDQUOT) return false;
    const uint64_t before = core_->evictions;
    core_->EvictAtLeast(bytes);
    return core_->evictions != before;
  }

  Result<VerifyReport> Verify(const std::function<bool(const VerifyReport&)>& progress) override {
    WaitForScan();
    const std::vector<Found> objects = List();
    const std::vector<Digest> blobs = blobs_.List();
    VerifyReport report;
    report.total_objects = objects.size() + blobs.size();
    const auto go_on = [&] { return !stop_ && (!progress || progress(report)); };
    const Error stopped(Code::kAborted, "verify: stopped before the end");
    for (const Found& found : objects) {
      ++report.objects;
      VerifyObject(found, &report);
      if (!go_on()) return stopped;
    }
    for (const Digest& digest : blobs) {
      ++report.objects;
      ++report.units;
      bool corrupt = false;
      auto blob = blobs_.Get(digest, &corrupt);
      if (blob) report.bytes += blob->size();
      if (corrupt) ++report.corrupt_units;
      if (corrupt) ++core_->corrupt;
      if (!go_on()) return stopped;
    }
    return report;
  }

  void WaitForScan() override {
    MutexLock lock(mu_);
    changed_cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return scanned_; });
  }

 private:
  void Scan() {
    blobs_.Load();
    core_->SetOtherBytes(blobs_.bytes());
    std::vector<Found> found = List();
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.used > b.used; });
    for (const Found& f : found) {
      if (stop_) break;
      core_->AddScanned(f.id, f.disk_bytes);
    }
    core_->MakeRoom(0);
    MutexLock lock(mu_);
    scanned_ = true;
    changed_cv_.notify_all();
  }

  // Evicts continually: others may fill the disk, and the limit may be lowered, while nothing is written here.
  void Keep() {
    MutexLock lock(mu_);
    const auto every = std::chrono::microseconds(core_->options.free_space_check_micros);
    for (;;) {
      changed_cv_.wait_for(lock, every, [&]() VRUN_REQUIRES(mu_) { return stop_ || limit_changed_; });
      if (stop_) return;
      limit_changed_ = false;
      lock.unlock();
      if (!core_->options.never_evict) {
        core_->EvictDownTo(core_->limit());
        core_->KeepFreeSpace();
      }
      lock.lock();
    }
  }

  // Lists what is on disk. Also removes remains of crashes.
  std::vector<Found> List() {
    std::vector<Found> all;
    const std::string objects = core_->options.directory + "/objects/";
    static constexpr char kHex[] = "0123456789abcdef";
    for (int i = 0; i < 256 && !stop_; ++i) ListShard(objects + kHex[i >> 4] + kHex[i & 15], &all);
    return all;
  }

  void ListShard(const std::string& shard, std::vector<Found>* all) {
    DIR* dir = ::opendir(shard.c_str());
    if (!dir) return;
    struct Files {
      std::optional<struct stat> content, map;
    };
    std::map<std::string, Files> by_name;
    while (const dirent* entry = ::readdir(dir)) {
      std::string name = entry->d_name;
      struct stat st;
      if (name == "." || name == ".." || ::fstatat(::dirfd(dir), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (name.starts_with(".tmp-")) {
        if (st.st_mtime + kTemporaryAge < ::time(nullptr)) ::unlinkat(::dirfd(dir), name.c_str(), 0);
      } else if (name.ends_with(".map")) {
        by_name[name.substr(0, name.size() - 4)].map = st;
      } else {
        by_name[name].content = st;
      }
    }
    ::closedir(dir);
    for (const auto& [name, files] : by_name) {
      const auto id = IdOfName(name);
      if (!id && IsOutdated(name) && !core_->options.never_evict) {
        ::unlink((shard + "/" + name).c_str());
        ::unlink((shard + "/" + name + ".map").c_str());
      }
      if (!id) continue;
      const uint64_t size = files.content ? static_cast<uint64_t>(files.content->st_size) : 0;
      const bool small = files.content && !files.map && id->algorithm == IdAlgorithm::kBlake3 && UnitCount(size) <= 1;
      if (!small && (!files.content || !files.map)) {
        RemoveHalf(shard + "/" + name, *id);
        continue;
      }
      Found found{.id = *id, .size = size};
      found.disk_bytes = static_cast<uint64_t>(files.content->st_blocks) * 512;
      found.used = std::max<int64_t>(files.content->st_atime, files.content->st_mtime);
      if (files.map) {
        found.disk_bytes += static_cast<uint64_t>(files.map->st_blocks) * 512;
        found.has_map = true;
      }
      all->push_back(found);
    }
  }

  // For a truncated content file, only the map has the true size.
  uint64_t SizeInMap(const ObjectId& id, uint64_t otherwise) const {
    auto fd = OpenFile(core_->MapPath(id), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    char bytes[kMapHeaderBytes];
    auto n = fd ? PreadUpTo(fd->get(), bytes, sizeof bytes, 0) : Result<size_t>(size_t{0});
    auto header = DecodeMapHeader({bytes, n ? *n : 0});
    return header ? header->size : otherwise;
  }

  void VerifyObject(const Found& found, VerifyReport* report) {
    if (!found.has_map) return VerifySmall(found.id, report);
    auto object = core_->Acquire(found.id, SizeInMap(found.id, found.size), /*used=*/false);
    if (!object) {
      // The map's content is impossible.
      ++report->units;
      ++report->corrupt_units;
      ++core_->corrupt;
      core_->Remove(found.id);
      return;
    }
    const uint64_t found_before = report->corrupt_units;
    const uint64_t before = core_->corrupt;
    (*object)->VerifyAll(report);
    // Refused files. (May also include what other threads find meanwhile.)
    if (report->corrupt_units == found_before) report->corrupt_units += core_->corrupt - before;
  }

  // By name alone: a truncated file would have the wrong size for an Object.
  void VerifySmall(const ObjectId& id, VerifyReport* report) {
    ++report->units;
    const std::string path = core_->ContentPath(id);
    const auto fd = OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!fd && fd.error().code() == Code::kNotFound) return;  // evicted meanwhile
    if (!fd && SaysNothing(fd.error())) return;
    std::string content(kUnitBytes + 1, '\0');
    const auto n = fd ? PreadUpTo(fd->get(), content.data(), content.size(), 0) : Result<size_t>(size_t{0});
    if (!n && SaysNothing(n.error())) return;
    content.resize(n ? *n : 0);  // not a regular file: no content
    report->bytes += content.size();
    if (fd && n && UnitDigest(content) == id.digest) return;
    ++report->corrupt_units;
    ++core_->corrupt;
    if (::unlink(path.c_str()) != 0 && errno == EISDIR) (void)RemoveTree(path);
    core_->Forget(id);
  }

  void RemoveHalf(const std::string& content, const ObjectId& id) {
    auto lock = core_->LockShard(id, LOCK_EX);
    if (!lock) return;
    // Under the lock, both files exist or one is garbage.
    if (PathExists(content) && PathExists(content + ".map")) return;
    ::unlink((content + ".map").c_str());
    ::unlink(content.c_str());
  }

  std::shared_ptr<Core> core_;
  BlobPacks blobs_;
  std::atomic<bool> stop_{false};
  Mutex mu_;
  CondVar changed_cv_;  // scanned_, stop_, limit_changed_
  bool limit_changed_ VRUN_GUARDED_BY(mu_) = false;
  bool scanned_ VRUN_GUARDED_BY(mu_) = false;
  std::thread keeper_;  // counts existing content, then watches the free space
};

}  // namespace

Result<std::unique_ptr<Store>> Store::Open(const Options& options) {
  auto store = std::make_unique<StoreImpl>(options);
  if (Status started = store->Start(); !started) {
    return std::move(started).error().With("open the content cache " + options.directory);
  }
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace vrun::store
