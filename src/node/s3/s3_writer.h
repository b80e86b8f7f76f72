// SPDX-License-Identifier: Apache-2.0
// What a node fetched from home goes to the pool's S3 store too, behind everybody's back: a while after it came, from
// the disk store, a few extents at a time, no faster than a bound. Nobody waits for it; what is too much is dropped.
//
// Memory: names of extents, bounded in number, and the extents that are being written.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "node/s3/s3_extents.h"
#include "node/s3/s3_tier.h"
#include "store/store.h"
#include "tree/tree.h"

namespace vrun::node {

struct S3WriterOptions {
  size_t threads = 4;
  size_t max_waiting = 16384;           // extents
  uint64_t bytes_a_second = 64u << 20;  // of content, before compression
  int64_t delay_micros = 1'500'000;     // an extent that is being read is not written after each unit
  int64_t again_micros = 10'000'000;    // nor written more often than this, unless a run has ended
  // Runs what it is given once the disk store has all that came before. Null: it has.
  std::function<void(std::function<void()>)> when_stored = nullptr;
};

// Any thread. The store and the tier outlive it.
class S3Writer {
 public:
  S3Writer(store::Store* store, S3Tier* tier, S3WriterOptions options = {});
  // Ends with what is being written.
  ~S3Writer();

  // Units [first, first + count) of a version came from home. Without a name they are remembered (a bounded number of
  // versions) until Named tells it.
  void Came(const tree::FileVersion& version, const std::optional<store::ObjectId>& id, uint64_t first, uint64_t count);
  void Named(const tree::FileVersion& version, const store::ObjectId& id);
  // A run is over: what waits is written now.
  void Hurry();
  size_t waiting();  // or being written

 private:
  struct Waiting {
    NamedContent content;
    uint64_t extent = 0;
    int64_t due = 0;
    bool taken = false;
    bool again = false;  // more came while it was being written
  };
  void WhenStored(std::function<void()> task);
  void Stored(const tree::FileVersion& version, const std::optional<store::ObjectId>& id, uint64_t first,
              uint64_t count);
  void AddLocked(const NamedContent& content, uint64_t extent, int64_t now);
  void Run();
  // kNotFound: the disk store has not got it.
  Status Write(const NamedContent& content, uint64_t extent);
  // Of the bound: so many bytes are written. When they may be.
  int64_t Spend(uint64_t bytes);
  void Pace(uint64_t bytes);  // and waits for that

  store::Store* const store_;
  S3Tier* const tier_;
  const S3WriterOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, Waiting> waiting_;            // by name
  std::multimap<int64_t, std::string> due_;           // names of waiting_ that are not taken
  std::unordered_map<std::string, int64_t> written_;  // when; bounded
  std::unordered_map<tree::FileVersion, std::vector<uint64_t>, tree::FileVersionHash> unnamed_;  // extents
  std::deque<tree::FileVersion> unnamed_ages_;
  int64_t free_from_ = 0;  // the rate has been used up until then
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vrun::node
