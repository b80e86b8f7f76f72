// SPDX-License-Identifier: Apache-2.0
// Reads and writes content in the pool's S3 store, for one tenant on one node. The store is a cache: anything may be
// missing at any time. Every failure is an error, after which the caller asks home.
//
// Nothing from the store is trusted: an object opens only with the tenant's key and its own name, each unit is checked
// against its digest, and a complete file against its own (src/s3/extent.h). An object that fails a check is counted,
// not read again, and rewritten when home has sent the correct content.
//
// Other nodes may rewrite objects at any time, so a remembered table may be stale. If the data does not fit the table,
// both are read again, finally as one piece: then it fits or the object is damaged.
//
// A store that fails, or answers later than home, is not used for a while (src/s3/breaker.h). A store that has nothing
// is asked less often.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "node/s3/s3_extents.h"
#include "node/s3/s3_urls.h"
#include "s3/breaker.h"
#include "s3/client.h"
#include "s3/extent.h"
#include "vfs/content/source.h"

namespace vrun::v1 {
class S3Stat;
}

namespace vrun::node {

// Whether a request is worth a round trip. After kColdMisses consecutive misses only every kColdEvery-th request is
// sent. Pure.
class MissGate {
 public:
  static constexpr uint32_t kColdMisses = 64, kColdEvery = 8;
  bool Ask() { return misses_ < kColdMisses || ++skipped_ % kColdEvery == 0; }
  void Hit() { misses_ = 0; }
  void Miss() { misses_ = std::min(misses_ + 1, kColdMisses); }

 private:
  uint32_t misses_ = 0, skipped_ = 0;
};

// How long to wait for an answer before also asking home: a few times the usual latency. Pure.
class Patience {
 public:
  static constexpr int64_t kLeastMicros = 250'000, kMostMicros = 1'000'000;
  static constexpr int64_t kFirstMicros = 500'000;  // before any answer: includes a connection and a request for URLs
  void Took(int64_t micros) { took_[count_++ % took_.size()] = micros; }
  int64_t micros() const {
    if (count_ == 0) return kFirstMicros;
    auto took = took_;
    const auto end = took.begin() + static_cast<ptrdiff_t>(std::min(count_, took.size()));
    const auto median = took.begin() + (end - took.begin()) / 2;
    std::nth_element(took.begin(), median, end);
    return std::clamp(4 * *median, kLeastMicros, kMostMicros);
  }

 private:
  std::array<int64_t, 32> took_{};  // the most recent latencies
  size_t count_ = 0;
};

// Any thread. Each callback runs once, on a thread of the tier or of the URLs.
class S3Tier {
 public:
  using Units = std::vector<vfs::FetchedUnit>;
  using TablePtr = std::shared_ptr<const s3::ExtentTable>;
  // Set once the caller has got the answer elsewhere.
  using GivenUp = std::shared_ptr<std::atomic<bool>>;
  // `urls` must outlive it and be closed before it is destroyed.
  explicit S3Tier(S3Urls* urls);
  ~S3Tier();

  // Fetches units [first, first + count): all of them, or kNotFound or another error. A store that hangs answers after
  // many seconds; wait no longer than patience() before asking elsewhere too.
  void Fetch(const NamedContent& content, uint64_t first, uint64_t count, GivenUp given_up,
             std::function<void(Result<Units>)> done);
  int64_t patience() const;  // microseconds
  // The answer came from elsewhere, where it was requested later: counts as a failure of the store.
  void GiveUp(const GivenUp& given_up);

  // Whether requests are currently suppressed: the store has failed, or has had nothing for a long time.
  bool resting();

  // For the writer. The last known table of an extent; nullptr: unknown, absent or damaged.
  TablePtr Remembered(const NamedContent& content, uint64_t extent);
  bool Damaged(const NamedContent& content, uint64_t extent) const;
  // The current table in the store; nullptr: absent, or does not open. Blocks.
  Result<TablePtr> Remote(const NamedContent& content, uint64_t extent);
  // All valid units of an extent in the store, by index. Blocks.
  Result<std::vector<std::optional<std::string>>> ReadExtent(const NamedContent& content, uint64_t extent);
  // Blocks.
  Status Write(const NamedContent& content, uint64_t extent, const std::vector<std::optional<s3::ExtentUnit>>& units);
  // The write was dropped.
  void CountDropped() { ++dropped_; }

  void Describe(v1::S3Stat* stat) const;

 private:
  struct Part;  // the part of a Fetch in one extent
  using PartPtr = std::shared_ptr<Part>;

  void Begin(const PartPtr& part);
  // For an extent with an unknown table. Of concurrent requests for one table, the first reads it and the others wait.
  void GetTable(const PartPtr& part);
  // `failure`: the store could not be asked, so the waiters need not try.
  void TableIsOver(const std::string& name, const std::optional<Error>& failure);
  void GetUnits(const PartPtr& part, const TablePtr& table);
  // On a worker. `bytes` start at `at` of the object; 0: they are the whole object, with its table.
  void OpenUnits(const PartPtr& part, const TablePtr& table, const std::string& bytes, uint64_t at);
  // The table is not, or may not be, the object's current one.
  void ReadAnew(const PartPtr& part, const TablePtr& table);
  // The bytes do not fit the table.
  void DoesNotFit(const PartPtr& part, const TablePtr& table, bool one_piece, const Error& error);
  Result<TablePtr> OpenTable(const NamedContent& content, uint64_t extent, const std::string& bytes,
                             bool written = false);
  // Sends one request and reports its result to the breaker; `done` runs on a worker.
  void Request(s3::Request request, std::string name, bool put, std::function<void(Result<std::string>)> done);
  // `given_up`: already counted.
  void Failed(bool given_up, const std::string& problem);
  void Problem(const std::string& problem);
  std::shared_ptr<s3::Client> ClientFor(const S3Urls::Terms& terms);
  void Over(const PartPtr& part, Status status);

  struct Known {
    TablePtr table;     // null: not there
    int64_t until = 0;  // until when an absence is believed
    std::list<std::string>::iterator age;
  };
  std::optional<TablePtr> Recall(const std::string& name) const;
  bool Old(const std::string& name) const;
  // `written`: by us, just now.
  void Remember(const std::string& name, TablePtr table, bool written = false);
  void Corrupt(const std::string& name, const Error& error);

  void Post(std::function<void()> work);
  void Work();

  S3Urls* const urls_;
  s3::Breaker breaker_;
  mutable Mutex mutex_;
  std::shared_ptr<s3::Client> client_ VRUN_GUARDED_BY(mutex_);
  std::string client_ca_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Known> known_ VRUN_GUARDED_BY(mutex_);
  std::list<std::string> ages_ VRUN_GUARDED_BY(mutex_);  // names in known_, oldest first
  std::unordered_map<std::string, std::vector<PartPtr>> asked_
      VRUN_GUARDED_BY(mutex_);  // by name: parts that wait for a table being read
  std::unordered_set<std::string> damaged_
      VRUN_GUARDED_BY(mutex_);  // names of objects that failed a check: treated as absent until rewritten
  MissGate gate_ VRUN_GUARDED_BY(mutex_);
  Patience patience_ VRUN_GUARDED_BY(mutex_);
  std::string problem_ VRUN_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> work_ VRUN_GUARDED_BY(mutex_);
  CondVar wake_;
  bool ending_ VRUN_GUARDED_BY(mutex_) = false;    // no more requests are sent
  bool stopping_ VRUN_GUARDED_BY(mutex_) = false;  // the workers exit
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> hits_{0}, misses_{0}, corrupt_{0}, dropped_{0}, errors_{0}, written_{0};
};

}  // namespace vrun::node
