// SPDX-License-Identifier: Apache-2.0
#include "snapshots/away/late_files.h"

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "base/escape.h"

namespace vrun::snapshots {
namespace {

// One request; a multiple of every unit size.
constexpr uint64_t kLateBytes = 4u << 20;

}  // namespace

void LateFiles::Await(const tree::TreePtr& tree) {
  const MutexLock lock(mu_);
  awaited_[tree->id] = tree;
}

void LateFiles::Over(const tree::TreePtr& tree) {
  const MutexLock lock(mu_);
  awaited_.erase(tree->id);
}

bool LateFiles::TakeStored() {
  const MutexLock lock(mu_);
  return std::exchange(stored_, false);
}

tree::TreePtr LateFiles::TreeWith(std::string_view path, const tree::FileVersion& version) const {
  const MutexLock lock(mu_);
  const auto has = [&](const tree::Tree& tree) {
    const auto entry = tree::Lookup(tree, path);
    return entry && entry->is_regular() && entry->version() == version;
  };
  for (const auto& [id, tree] : awaited_) {
    if (has(*tree) || (tree->apart && has(*tree->apart))) return tree;
  }
  return nullptr;
}

Result<std::shared_ptr<store::Object>> LateFiles::Fetch(std::string_view path, const tree::FileVersion& version,
                                                        uint64_t offset, uint64_t length) {
  const tree::TreePtr tree = TreeWith(path, version);
  if (!tree) return Error(Code::kNotFound, Escape(path) + ": not in a snapshot that is being made");
  const uint64_t unit = store::UnitBytes(version.size);
  offset = std::min(offset, version.size - 1) / unit * unit;
  const uint64_t end = std::min(version.size, offset + std::max<uint64_t>(length, 1) + unit);
  // A small file comes whole, so that its content has its final name at once.
  uint64_t from = version.size <= kLateBytes ? 0 : offset;
  const uint64_t to = version.size <= kLateBytes ? version.size : end;
  std::shared_ptr<store::Object> object;
  for (; from < to; from += kLateBytes) {
    const uint64_t bytes = std::min({kLateBytes, version.size - from, (to - from + unit - 1) / unit * unit});
    auto answer = std::make_shared<std::promise<Result<vfs::FetchedRange>>>();
    source_->FetchRange(tree->id, std::string(path), version, from, bytes, vfs::Urgency::kDemand,
                        [answer](Result<vfs::FetchedRange> range) { answer->set_value(std::move(range)); });
    VRUN_ASSIGN(const vfs::FetchedRange range, answer->get_future().get());
    std::vector<store::PutUnit> units;
    std::vector<Digest> digests;
    for (const vfs::FetchedUnit& fetched : range.units) {
      units.push_back({fetched.digest, fetched.data});
      digests.push_back(fetched.digest);
    }
    if (!object) {
      store::ObjectId id = store::ProvisionalId(home_id_, version.dev, version.ino, version.ctime_ns, version.size);
      if (const auto known = ids_->Find(version)) id = *known;
      if (digests.size() == store::UnitCount(version.size)) id = store::ContentId(version.size, digests);
      VRUN_ASSIGN(object, store_->Acquire(id, version.size));
    }
    VRUN_TRY(object->Put(range.offset / unit, units, true));
    const MutexLock lock(mu_);
    stored_ = true;
  }
  if (object->complete() && object->id().algorithm != store::IdAlgorithm::kProvisional) {
    ids_->Remember(version, object->id(), INT64_MAX);
  }
  return object;
}

}  // namespace vrun::snapshots
