// SPDX-License-Identifier: Apache-2.0
#include "node/source/tiered_source.h"

#include <atomic>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/thread/mutex.h"

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
                      // Delivered first, which also stores it: the writer reads it from the store.
                      done(std::move(answer));
                      if (count > 0) writer->Came(version, id, first, count);
                    });
}

// One call of FetchNamed.
class TieredSource::Range : public std::enable_shared_from_this<Range> {
 public:
  Range(TieredSource* source, std::function<void(std::function<void(Result<vfs::FetchedRange>)>)> ask_home,
        std::function<void(Result<vfs::FetchedRange>)> done)
      : source_(source), ask_home_(std::move(ask_home)), done_(std::move(done)) {}

  void Start(const NamedContent& content, uint64_t first, uint64_t count, uint64_t offset) {
    const int64_t patience = source_->tier_->patience();
    source_->tier_->Fetch(content, first, count, given_up_,
                          [self = shared_from_this(), offset, id = content.id](Result<S3Tier::Units> units) {
                            if (!units) return self->TierHasNot();
                            self->Answer(vfs::FetchedRange{offset, *std::move(units), id});
                          });
    {
      MutexLock lock(mutex_);
      if (!done_ || tier_over_) return;
    }
    source_->timer_.After(patience, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->AskHome();
    });
  }

 private:
  void TierHasNot() {
    std::optional<Error> of_home;
    {
      MutexLock lock(mutex_);
      tier_over_ = true;
      of_home = home_error_;
    }
    if (of_home) return Answer(*std::move(of_home));
    AskHome();
  }

  void AskHome() {
    {
      MutexLock lock(mutex_);
      if (!done_ || std::exchange(home_asked_, true)) return;
    }
    ask_home_([self = shared_from_this()](Result<vfs::FetchedRange> range) { self->HomeSays(std::move(range)); });
  }

  void HomeSays(Result<vfs::FetchedRange> range) {
    bool late;
    {
      MutexLock lock(mutex_);
      if (!done_) return;
      late = !tier_over_;
      if (!range && late) {
        home_error_ = std::move(range).error();
        return;
      }
    }
    if (late) source_->tier_->GiveUp(given_up_);
    Answer(std::move(range));
  }

  void Answer(Result<vfs::FetchedRange> range) {
    std::function<void(Result<vfs::FetchedRange>)> done;
    {
      MutexLock lock(mutex_);
      done = std::exchange(done_, nullptr);
    }
    if (done) done(std::move(range));
  }

  TieredSource* const source_;
  const S3Tier::GivenUp given_up_ = std::make_shared<std::atomic<bool>>(false);
  const std::function<void(std::function<void(Result<vfs::FetchedRange>)>)> ask_home_;
  Mutex mutex_;
  bool tier_over_ VRUN_GUARDED_BY(mutex_) = false;
  bool home_asked_ VRUN_GUARDED_BY(mutex_) = false;
  std::optional<Error> home_error_ VRUN_GUARDED_BY(mutex_);                      // set while the tier may still answer
  std::function<void(Result<vfs::FetchedRange>)> done_ VRUN_GUARDED_BY(mutex_);  // null: answered
};

void TieredSource::FetchNamed(const store::ObjectId& id, const Digest& tree, const std::string& path,
                              const tree::FileVersion& version, uint64_t offset, uint64_t length, vfs::Urgency urgency,
                              std::function<void(Result<vfs::FetchedRange>)> done) {
  writer_->Named(version, id);
  const uint64_t unit = store::UnitBytes(version.size);
  auto from_home = [this, tree, path, version, offset, length, urgency](auto answer) {
    FetchRange(tree, path, version, offset, length, urgency, std::move(answer));
  };
  std::make_shared<Range>(this, std::move(from_home), std::move(done))
      ->Start({id, version.size}, offset / unit, (length + unit - 1) / unit, offset);
}

// One call of FetchFrames. Delivers frames in the requested order, like home: readers wait for frames that come soon,
// and consider one lost once a later one has arrived (vfs/content/burst.h).
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
    {
      MutexLock lock(mutex_);
      heard_ = MonotonicMicros();
      for (const size_t slot : from_tier) slots_[slot].tier_owes = true;
    }
    if (!from_home.empty()) FromHome(from_home);
    for (const size_t slot : from_tier) FromTier(slot);
    if (!from_tier.empty()) WatchTier(source_->tier_->patience());
  }

 private:
  struct Slot {
    bool over = false;
    std::optional<vfs::TraceFrame> frame;
    bool of_home = false;
    bool tier_owes = false, home_owes = false;  // whether an answer is outstanding
    bool home_asked = false;
    S3Tier::GivenUp given_up = std::make_shared<std::atomic<bool>>(false);
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
      Mutex mutex;
      size_t left = 0;
      bool failed = false;
      std::vector<S3Tier::Units> units;  // by range
    };
    const auto& ranges = table_->frames[frames_[slot]];
    auto parts = std::make_shared<Parts>();
    parts->left = ranges.size();
    parts->units.resize(ranges.size());
    S3Tier::GivenUp given_up;
    {
      MutexLock lock(mutex_);
      given_up = slots_[slot].given_up;
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto& file = table_->files[ranges[i].file];
      source_->tier_->Fetch({*file.object_id, file.version.size}, ranges[i].first, ranges[i].count, given_up,
                            [self = shared_from_this(), slot, parts, i](Result<S3Tier::Units> units) {
                              self->Heard();
                              {
                                MutexLock lock(parts->mutex);
                                parts->failed |= !units;
                                if (units) parts->units[i] = *std::move(units);
                                if (--parts->left > 0) return;
                              }
                              if (parts->failed) return self->TierHasNot(slot);
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

  void Heard() {
    MutexLock lock(mutex_);
    heard_ = MonotonicMicros();
  }

  // In a working tier frames may queue for a long time. A tier that answers nothing for this long does not work.
  void WatchTier(int64_t after) {
    source_->timer_.After(after, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->LookAtTier();
    });
  }

  void LookAtTier() {
    const int64_t patience = source_->tier_->patience();
    int64_t silent;
    std::vector<size_t> waiting;
    {
      MutexLock lock(mutex_);
      silent = MonotonicMicros() - heard_;
      for (size_t slot = 0; slot < slots_.size(); ++slot) {
        if (!slots_[slot].over && !slots_[slot].home_asked) waiting.push_back(slot);
      }
    }
    if (waiting.empty()) return;
    if (silent < patience) return WatchTier(patience - silent);
    FromHome(waiting);
  }

  void TierHasNot(size_t slot) {
    {
      MutexLock lock(mutex_);
      slots_[slot].tier_owes = false;
      if (slots_[slot].over) return;
    }
    FromHome({slot});
    Over(slot, std::nullopt);  // unless home was asked and has not answered yet
  }

  void FromHome(std::vector<size_t> slots) {
    std::vector<uint32_t> wanted;
    {
      MutexLock lock(mutex_);
      // The tier may have reported one of them missing meanwhile.
      std::erase_if(slots,
                    [this](size_t slot) VRUN_REQUIRES(mutex_) { return std::exchange(slots_[slot].home_asked, true); });
      for (const size_t slot : slots) {
        slots_[slot].home_owes = true;
        wanted.push_back(frames_[slot]);
      }
    }
    if (wanted.empty()) return;
    source_->home_->FetchFrames(
        run_, table_, std::move(wanted),
        [self = shared_from_this(), slots](const vfs::TraceFrame& got) {
          for (const size_t slot : slots) {
            if (self->frames_[slot] == got.index) self->Over(slot, got, true);
          }
        },
        [self = shared_from_this(), slots](Status status) {
          if (!status) {
            MutexLock lock(self->mutex_);
            if (!self->error_) self->error_ = std::move(status).error();
          }
          for (const size_t slot : slots) {
            {
              MutexLock lock(self->mutex_);
              self->slots_[slot].home_owes = false;
            }
            self->Over(slot, std::nullopt);
          }
        });
  }

  // As above: a delivered frame is on its way to the store.
  void ToTier(uint32_t frame) {
    for (const vfs::TraceRange& range : table_->frames[frame]) {
      const auto& file = table_->files[range.file];
      source_->writer_->Came(file.version, file.object_id, range.first, range.count);
    }
  }

  // Records a frame for the slot (the first one counts), or that one of the sources has none.
  void Over(size_t slot, std::optional<vfs::TraceFrame> frame, bool of_home = false) {
    MutexLock lock(mutex_);
    Slot& s = slots_[slot];
    if (s.over || (!frame && (s.tier_owes || s.home_owes))) return;
    s.over = true;
    s.frame = std::move(frame);
    s.of_home = of_home;
    missing_ |= !s.frame;
    if (of_home && s.tier_owes) {
      const S3Tier::GivenUp given_up = s.given_up;
      lock.unlock();
      source_->tier_->GiveUp(given_up);
      lock.lock();
    }
    // Only one thread delivers at a time, so that the order holds outside the lock too.
    if (std::exchange(handing_on_, true)) return;
    while (next_ < slots_.size() && slots_[next_].over) {
      const bool is_of_home = slots_[next_].of_home;
      const auto ready = std::exchange(slots_[next_++].frame, std::nullopt);
      if (!ready) continue;
      lock.unlock();
      arrived_(*ready);
      if (is_of_home) ToTier(ready->index);
      lock.lock();
    }
    handing_on_ = false;
    if (next_ < slots_.size() || std::exchange(told_, true)) return;
    const Status status = error_ && missing_ ? Status(*error_) : Status();
    lock.unlock();
    done_(status);
  }

  TieredSource* const source_;
  const vfs::RunId run_;
  const std::shared_ptr<const vfs::TraceTable> table_;
  const std::vector<uint32_t> frames_;
  Mutex mutex_;
  std::vector<Slot> slots_ VRUN_GUARDED_BY(mutex_);  // one per frame in frames_
  size_t next_ VRUN_GUARDED_BY(mutex_) = 0;          // next slot to deliver
  int64_t heard_ VRUN_GUARDED_BY(mutex_) = 0;        // time of the tier's last answer
  bool missing_ VRUN_GUARDED_BY(mutex_) = false;     // some frame will never come
  bool handing_on_ VRUN_GUARDED_BY(mutex_) = false;
  bool told_ VRUN_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ VRUN_GUARDED_BY(mutex_);
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
