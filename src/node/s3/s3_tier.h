// SPDX-License-Identifier: Apache-2.0
// Content from and to the pool's S3 store, for one tenant on one node. A cache: it may lack anything at any time, and
// whatever goes wrong is an error that the caller answers by asking home.
//
// Nothing that comes back is believed: an object opens only under the tenant's key and its own name, each unit is
// checked against its digest, and a file that came whole against its own (src/s3/extent.h). What does not check is
// counted, not asked for again, and written again when home has given the right one.
//
// Objects are written anew by other nodes at any time: a table that is remembered may be of yesterday's. What does not
// fit it is read again with a new one, and in the end all in one piece, which fits or is damaged.
//
// A store that fails, or answers later than home does, is left alone for a while (src/s3/breaker.h); one that has
// nothing is asked less.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
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

// Whether asking is worth a round trip. After kColdMisses misses in a row only every kColdEvery-th asks. Pure.
class MissGate {
 public:
  static constexpr uint32_t kColdMisses = 64, kColdEvery = 8;
  bool Ask() { return misses_ < kColdMisses || ++skipped_ % kColdEvery == 0; }
  void Hit() { misses_ = 0; }
  void Miss() { misses_ = std::min(misses_ + 1, kColdMisses); }

 private:
  uint32_t misses_ = 0, skipped_ = 0;
};

// How long to wait for an answer before home is asked too: a few times what it usually takes. Pure.
class Patience {
 public:
  static constexpr int64_t kLeastMicros = 250'000, kMostMicros = 1'000'000;
  static constexpr int64_t kFirstMicros = 500'000;  // before any: a connection is made too, and URLs are asked for
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
  std::array<int64_t, 32> took_{};  // the latest
  size_t count_ = 0;
};

// Any thread. Callbacks run once each, on threads of the tier's or of the URLs'.
class S3Tier {
 public:
  using Units = std::vector<vfs::FetchedUnit>;
  using TablePtr = std::shared_ptr<const s3::ExtentTable>;
  // Whether whoever asked has had the answer elsewhere.
  using GivenUp = std::shared_ptr<std::atomic<bool>>;
  // `urls` outlives it and is closed before it is destroyed.
  explicit S3Tier(S3Urls* urls);
  ~S3Tier();

  // Units [first, first + count) of it: all of them, or kNotFound or another error. A store that hangs answers after
  // many seconds: the caller waits no longer than patience() before he asks elsewhere too.
  void Fetch(const NamedContent& content, uint64_t first, uint64_t count, GivenUp given_up,
             std::function<void(Result<Units>)> done);
  int64_t patience() const;  // microseconds
  // What was asked with it came from elsewhere, where it was asked for later: that counts as a failure of the store.
  void GiveUp(const GivenUp& given_up);

  // Nothing would be asked at the moment: the store has failed, or has had nothing for long.
  bool resting();

  // For the writer. The table of an extent as it was when it was last looked at; nullptr: nothing is known, or that it
  // is not there or damaged.
  TablePtr Remembered(const NamedContent& content, uint64_t extent);
  bool Damaged(const NamedContent& content, uint64_t extent) const;
  // The table that is there now; nullptr: none, or one that does not open. Blocks.
  Result<TablePtr> Remote(const NamedContent& content, uint64_t extent);
  // All of an extent's units that the store has now and that check, by index. Blocks.
  Result<std::vector<std::optional<std::string>>> ReadExtent(const NamedContent& content, uint64_t extent);
  // Blocks.
  Status Write(const NamedContent& content, uint64_t extent, const std::vector<std::optional<s3::ExtentUnit>>& units);
  // It was not to be written after all.
  void CountDropped() { ++dropped_; }

  void Describe(v1::S3Stat* stat) const;

 private:
  struct Part;  // of a Fetch, in one extent
  using PartPtr = std::shared_ptr<Part>;

  void Begin(const PartPtr& part);
  // Its table is not known. Of those who want the same one at a time the first asks, the others wait for that.
  void GetTable(const PartPtr& part);
  // `failure`: the store could not be asked; whoever waits need not try the same.
  void TableIsOver(const std::string& name, const std::optional<Error>& failure);
  void GetUnits(const PartPtr& part, const TablePtr& table);
  // On a worker. What was read starts at `at` of the object; 0: it is all of it, its table too.
  void OpenUnits(const PartPtr& part, const TablePtr& table, const std::string& bytes, uint64_t at);
  // The table is not, or may not be, that of the object as it is now.
  void ReadAnew(const PartPtr& part, const TablePtr& table);
  // What was read does not fit the table.
  void DoesNotFit(const PartPtr& part, const TablePtr& table, bool one_piece, const Error& error);
  Result<TablePtr> OpenTable(const NamedContent& content, uint64_t extent, const std::string& bytes,
                             bool written = false);
  // One request to the store with all that the breaker wants to know; `done` runs on a worker.
  void Request(s3::Request request, std::string name, bool put, std::function<void(Result<std::string>)> done);
  // `given_up`: it has been counted already.
  void Failed(bool given_up, const std::string& problem);
  void Problem(const std::string& problem);
  std::shared_ptr<s3::Client> ClientFor(const S3Urls::Terms& terms);
  void Over(const PartPtr& part, Status status);

  struct Known {
    TablePtr table;     // null: not there
    int64_t until = 0;  // so long it is believed that something is not there, or not in it
    std::list<std::string>::iterator age;
  };
  std::optional<TablePtr> Recall(const std::string& name) const;
  bool Old(const std::string& name) const;
  // `written`: just now, by us.
  void Remember(const std::string& name, TablePtr table, bool written = false);
  void Corrupt(const std::string& name, const Error& error);

  void Post(std::function<void()> work);
  void Work();

  S3Urls* const urls_;
  s3::Breaker breaker_;
  mutable std::mutex mutex_;
  std::shared_ptr<s3::Client> client_;  // guarded by mutex_, as all below
  std::string client_ca_;
  std::unordered_map<std::string, Known> known_;
  std::list<std::string> ages_;                                  // of known_, oldest first
  std::unordered_map<std::string, std::vector<PartPtr>> asked_;  // by name: who waits for a table that is on its way
  std::unordered_set<std::string> damaged_;  // names of objects that do not check: as if absent until written again
  MissGate gate_;
  Patience patience_;
  std::string problem_;
  std::deque<std::function<void()>> work_;
  std::condition_variable wake_;
  bool ending_ = false;    // nothing more is asked
  bool stopping_ = false;  // the workers end
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> hits_{0}, misses_{0}, corrupt_{0}, dropped_{0}, errors_{0}, written_{0};
};

}  // namespace vrun::node
