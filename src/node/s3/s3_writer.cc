// SPDX-License-Identifier: Apache-2.0
#include "node/s3/s3_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"

namespace vrun::node {
namespace {

constexpr size_t kMaxUnnamed = 4096;  // versions
constexpr size_t kMaxWritten = 65536;

}  // namespace

S3Writer::S3Writer(store::Store* store, S3Tier* tier, S3WriterOptions options)
    : store_(store), tier_(tier), options_(std::move(options)) {
  for (size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

S3Writer::~S3Writer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void S3Writer::WhenStored(std::function<void()> task) {
  if (!options_.when_stored) return task();
  options_.when_stored(std::move(task));
}

void S3Writer::Came(const tree::FileVersion& version, const std::optional<store::ObjectId>& id, uint64_t first,
                    uint64_t count) {
  if (version.size == 0 || count == 0) return;
  WhenStored([this, version, id, first, count] { Stored(version, id, first, count); });
}

void S3Writer::Stored(const tree::FileVersion& version, const std::optional<store::ObjectId>& id, uint64_t first,
                      uint64_t count) {
  const NamedContent content{id.value_or(store::ObjectId()), version.size};
  const uint64_t per = content.units_per_extent();
  const int64_t now = MonotonicMicros();
  bool added = false;
  {
    MutexLock lock(mutex_);
    for (uint64_t extent = first / per; extent <= (first + count - 1) / per; ++extent) {
      if (id && id->algorithm != store::IdAlgorithm::kProvisional) {
        AddLocked(content, extent, now);
        added = true;
        continue;
      }
      auto [it, fresh] = unnamed_.try_emplace(version);
      if (fresh) unnamed_ages_.push_back(version);
      if (std::find(it->second.begin(), it->second.end(), extent) == it->second.end()) it->second.push_back(extent);
      if (unnamed_ages_.size() > kMaxUnnamed) {
        unnamed_.erase(unnamed_ages_.front());
        unnamed_ages_.pop_front();
      }
    }
  }
  if (added) wake_.notify_one();
  if (id) Named(version, *id);
}

void S3Writer::Named(const tree::FileVersion& version, const store::ObjectId& id) {
  if (id.algorithm == store::IdAlgorithm::kProvisional) return;
  {
    MutexLock lock(mutex_);
    const auto it = unnamed_.find(version);
    if (it == unnamed_.end()) return;
    const int64_t now = MonotonicMicros();
    for (const uint64_t extent : it->second) AddLocked({id, version.size}, extent, now);
    unnamed_.erase(it);
    std::erase(unnamed_ages_, version);
  }
  wake_.notify_one();
}

void S3Writer::AddLocked(const NamedContent& content, uint64_t extent, int64_t now) {
  const std::string name = content.NameOf(extent);
  if (const auto it = waiting_.find(name); it != waiting_.end()) {
    it->second.again = it->second.taken;
    return;
  }
  if (waiting_.size() >= options_.max_waiting) return tier_->CountDropped();
  int64_t due = now + options_.delay_micros;
  if (const auto it = written_.find(name); it != written_.end())
    due = std::max(due, it->second + options_.again_micros);
  waiting_[name] = {content, extent, due};
  due_.emplace(due, name);
}

void S3Writer::Hurry() {
  WhenStored([this] {
    MutexLock lock(mutex_);
    const int64_t now = MonotonicMicros();
    due_.clear();
    for (auto& [name, w] : waiting_) {
      w.due = now;
      if (!w.taken) due_.emplace(now, name);
    }
    wake_.notify_all();
  });
}

size_t S3Writer::waiting() {
  MutexLock lock(mutex_);
  return waiting_.size();
}

void S3Writer::Run() {
  // Lower priority than all other work; but not SCHED_IDLE, which could hold the store's locks forever.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
  MutexLock lock(mutex_);
  while (!stopping_) {
    const int64_t now = MonotonicMicros();
    if (due_.empty() || due_.begin()->first > now) {
      if (due_.empty()) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, std::chrono::microseconds(due_.begin()->first - now));
      }
      continue;
    }
    const std::string name = due_.begin()->second;
    due_.erase(due_.begin());
    Waiting& w = waiting_[name];
    w.taken = true;
    const NamedContent content = w.content;
    const uint64_t extent = w.extent;
    lock.unlock();
    const Status status = Write(content, extent);
    lock.lock();
    const auto it = waiting_.find(name);
    const bool again = it->second.again;
    waiting_.erase(it);
    if (written_.size() > kMaxWritten) written_.clear();
    written_[name] = MonotonicMicros();
    if (!status) {
      if (status.error().code() != Code::kNotFound) tier_->CountDropped();
    } else if (again) {
      AddLocked(content, extent, MonotonicMicros());
    }
  }
}

Status S3Writer::Write(const NamedContent& content, uint64_t extent) {
  VRUN_ASSIGN(auto object, store_->Acquire(content.id, content.size));
  const uint64_t units = content.UnitsOf(extent), base = extent * content.units_per_extent();
  const uint64_t unit_bytes = store::UnitBytes(content.size);
  std::vector<bool> here(units, true);
  for (const store::UnitRange& missing : object->MissingUnits(base * unit_bytes, units * unit_bytes)) {
    for (uint64_t u = missing.first; u < missing.first + missing.count; ++u) {
      if (u >= base && u - base < units) here[u - base] = false;
    }
  }
  const auto all = [&](const std::vector<bool>& v) {
    return std::all_of(v.begin(), v.end(), [](bool b) { return b; });
  };
  const auto none = std::none_of(here.begin(), here.end(), [](bool b) { return b; });
  if (none || (content.size <= store::kWholeFileLimit && !all(here))) {
    return Error(Code::kNotFound, "not in the store");
  }

  const auto news = [&](const S3Tier::TablePtr& table) {
    for (uint64_t i = 0; i < units; ++i) {
      if (here[i] && !(table && table->Has(i))) return true;
    }
    return false;
  };
  if (!news(tier_->Remembered(content, extent))) return {};
  std::vector<std::string> data(units);
  uint64_t own_bytes = 0, their_bytes = 0;
  for (uint64_t i = 0; i < units; ++i) {
    if (!here[i]) continue;
    data[i].resize(content.LengthOfUnit(base + i));
    const auto n = object->Read((base + i) * unit_bytes, data[i].data(), data[i].size());
    if (n && *n == data[i].size()) {
      own_bytes += data[i].size();
      continue;
    }
    if (content.size <= store::kWholeFileLimit) return {};
    data[i].clear();  // was corrupt on disk, and has been dropped by the read
    here[i] = false;
  }
  if (own_bytes == 0) return Error(Code::kNotFound, "not in the store");
  Pace(own_bytes);

  // The write replaces the whole object, so the object is read now, after all waiting: another node may have added to
  // it.
  const bool damaged = tier_->Damaged(content, extent);
  VRUN_ASSIGN(const auto remote, tier_->Remote(content, extent));
  if (!damaged && !news(remote)) return {};
  bool more_there = false;
  for (uint64_t i = 0; remote && i < units; ++i) more_there |= remote->Has(i) && !here[i];
  if (more_there) {
    auto read = tier_->ReadExtent(content, extent);
    if (!read) {
      const Code code = read.error().code();
      if (code != Code::kNotFound && code != Code::kCorrupt) return std::move(read).error();
      read = std::vector<std::optional<std::string>>(units);
    }
    for (uint64_t i = 0; i < units; ++i) {
      if (here[i] || !(*read)[i]) continue;
      data[i] = *std::move((*read)[i]);
      their_bytes += data[i].size();
    }
  }
  std::vector<std::optional<s3::ExtentUnit>> parts(units);
  for (uint64_t i = 0; i < units; ++i) {
    if (!data[i].empty()) parts[i] = s3::ExtentUnit{store::UnitDigest(data[i]), data[i]};
  }
  Spend(their_bytes);
  return tier_->Write(content, extent, parts);
}

int64_t S3Writer::Spend(uint64_t bytes) {
  MutexLock lock(mutex_);
  const int64_t begin = std::max(MonotonicMicros(), free_from_);
  free_from_ = begin + static_cast<int64_t>(bytes * 1'000'000 / options_.bytes_a_second);
  return begin;
}

void S3Writer::Pace(uint64_t bytes) {
  const int64_t begin = Spend(bytes);
  MutexLock lock(mutex_);
  while (!stopping_ && MonotonicMicros() < begin) {
    wake_.wait_for(lock, std::chrono::microseconds(begin - MonotonicMicros()));
  }
}

}  // namespace vrun::node
