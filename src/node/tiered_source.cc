// SPDX-License-Identifier: Apache-2.0
#include "node/tiered_source.h"

#include <mutex>
#include <optional>
#include <utility>

namespace vrun::node {

void TieredSource::FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                              uint64_t offset, uint64_t length, vfs::Urgency urgency,
                              std::function<void(Result<vfs::FetchedRange>)> done) {
  home_->FetchRange(tree, path, version, offset, length, urgency,
                    [writer = writer_, version, done = std::move(done)](Result<vfs::FetchedRange> answer) {
                      std::optional<store::ObjectId> id;
                      uint64_t first = 0, count = 0;
                      if (answer) {
                        id = answer->object_id;
                        first = answer->offset / store::UnitBytes(version.size);
                        count = answer->units.size();
                      }
                      // On its way to the store first: the writer reads it from there.
                      done(std::move(answer));
                      if (count > 0) writer->Came(version, id, first, count);
                    });
}

void TieredSource::FetchNamed(const store::ObjectId& id, const Digest& tree, const std::string& path,
                              const tree::FileVersion& version, uint64_t offset, uint64_t length, vfs::Urgency urgency,
                              std::function<void(Result<vfs::FetchedRange>)> done) {
  writer_->Named(version, id);
  const uint64_t unit = store::UnitBytes(version.size);
  const NamedContent content{id, version.size};
  tier_->Fetch(content, offset / unit, (length + unit - 1) / unit,
               [this, id, tree, path, version, offset, length, urgency,
                done = std::move(done)](Result<S3Tier::Units> units) mutable {
                 if (!units) return FetchRange(tree, path, version, offset, length, urgency, std::move(done));
                 done(vfs::FetchedRange{offset, *std::move(units), id});
               });
}

// One call of FetchFrames. Frames are handed on in the order of asking, as home would send them: readers wait for what
// comes soon, and take it for lost once a later one has come (vfs/burst.h).
class TieredSource::Frames : public std::enable_shared_from_this<Frames> {
 public:
  Frames(TieredSource* source, vfs::RunId run, std::shared_ptr<const vfs::TraceTable> table,
         std::vector<uint32_t> frames, std::function<void(const vfs::TraceFrame&)> arrived,
         std::function<void(Status)> done)
      : source_(source),
        run_(std::move(run)),
        table_(std::move(table)),
        frames_(std::move(frames)),
        slots_(frames_.size()),
        arrived_(std::move(arrived)),
        done_(std::move(done)) {}

  void Start() {
    std::vector<size_t> from_home, from_tier;
    const bool resting = source_->tier_->resting();
    for (size_t slot = 0; slot < frames_.size(); ++slot) {
      (resting || !HasNames(frames_[slot]) ? from_home : from_tier).push_back(slot);
    }
    if (!from_home.empty()) FromHome(from_home);
    for (const size_t slot : from_tier) FromTier(slot);
  }

 private:
  struct Slot {
    bool over = false;
    std::optional<vfs::TraceFrame> frame;
    bool of_home = false;
  };

  bool HasNames(uint32_t frame) const {
    for (const vfs::TraceRange& range : table_->frames[frame]) {
      const auto& id = table_->files[range.file].object_id;
      if (!id || id->algorithm == store::IdAlgorithm::kProvisional) return false;
    }
    return true;
  }

  void FromTier(size_t slot) {
    struct Parts {
      std::mutex mutex;
      size_t left = 0;
      bool failed = false;
      std::vector<S3Tier::Units> units;  // by range
    };
    const auto& ranges = table_->frames[frames_[slot]];
    auto parts = std::make_shared<Parts>();
    parts->left = ranges.size();
    parts->units.resize(ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto& file = table_->files[ranges[i].file];
      source_->tier_->Fetch({*file.object_id, file.version.size}, ranges[i].first, ranges[i].count,
                            [self = shared_from_this(), slot, parts, i](Result<S3Tier::Units> units) {
                              {
                                std::lock_guard lock(parts->mutex);
                                parts->failed |= !units;
                                if (units) parts->units[i] = *std::move(units);
                                if (--parts->left > 0) return;
                              }
                              if (parts->failed) return self->FromHome({slot});
                              vfs::TraceFrame out{.index = self->frames_[slot], .digests = {}, .data = {}};
                              for (const auto& range : parts->units) {
                                for (const vfs::FetchedUnit& unit : range) {
                                  out.digests.push_back(unit.digest);
                                  out.data += unit.data;
                                }
                              }
                              self->Over(slot, std::move(out));
                            });
    }
  }

  void FromHome(std::vector<size_t> slots) {
    std::vector<uint32_t> wanted;
    for (const size_t slot : slots) wanted.push_back(frames_[slot]);
    source_->home_->FetchFrames(
        run_, table_, std::move(wanted),
        [self = shared_from_this(), slots](const vfs::TraceFrame& got) {
          for (const size_t slot : slots) {
            if (self->frames_[slot] == got.index) self->Over(slot, got, true);
          }
        },
        [self = shared_from_this(), slots](Status status) {
          if (!status) {
            std::lock_guard lock(self->mutex_);
            if (!self->error_) self->error_ = std::move(status).error();
          }
          for (const size_t slot : slots) self->Over(slot, std::nullopt);
        });
  }

  // As above: what has been handed on is on its way to the store.
  void ToTier(uint32_t frame) {
    for (const vfs::TraceRange& range : table_->frames[frame]) {
      const auto& file = table_->files[range.file];
      source_->writer_->Came(file.version, file.object_id, range.first, range.count);
    }
  }

  // The slot's frame, or word that none will come; the first counts.
  void Over(size_t slot, std::optional<vfs::TraceFrame> frame, bool of_home = false) {
    std::unique_lock lock(mutex_);
    if (slots_[slot].over) return;
    slots_[slot] = {true, std::move(frame), of_home};
    // One thread at a time hands on, so that the order holds outside of the lock too.
    if (std::exchange(handing_on_, true)) return;
    while (next_ < slots_.size() && slots_[next_].over) {
      Slot ready = std::exchange(slots_[next_++], {.over = true});
      if (!ready.frame) continue;
      lock.unlock();
      const uint32_t index = ready.frame->index;
      arrived_(*ready.frame);
      if (ready.of_home) ToTier(index);
      lock.lock();
    }
    handing_on_ = false;
    if (next_ < slots_.size() || std::exchange(told_, true)) return;
    const Status status = error_ ? Status(*error_) : Status();
    lock.unlock();
    done_(status);
  }

  TieredSource* const source_;
  const vfs::RunId run_;
  const std::shared_ptr<const vfs::TraceTable> table_;
  const std::vector<uint32_t> frames_;
  std::mutex mutex_;
  std::vector<Slot> slots_;  // guarded by mutex_, as all below; of frames_
  size_t next_ = 0;          // to hand on
  bool handing_on_ = false;
  bool told_ = false;
  std::optional<Error> error_;
  const std::function<void(const vfs::TraceFrame&)> arrived_;
  const std::function<void(Status)> done_;
};

void TieredSource::FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table,
                               std::vector<uint32_t> frames, std::function<void(const vfs::TraceFrame&)> arrived,
                               std::function<void(Status)> done) {
  if (frames.empty()) return done({});
  for (const auto& file : table->files) {
    if (file.object_id) writer_->Named(file.version, *file.object_id);
  }
  std::make_shared<Frames>(this, run, std::move(table), std::move(frames), std::move(arrived), std::move(done))
      ->Start();
}

}  // namespace vrun::node
