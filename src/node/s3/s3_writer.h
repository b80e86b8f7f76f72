// SPDX-License-Identifier: Apache-2.0
// Copies what the node fetched from home to the pool's S3 store in the background: some time after it arrived, from the
// disk store, a few extents at a time, with a bounded rate. Nobody waits for it; what exceeds the bounds is dropped.
//
// Memory: a bounded number of extent names, and the extents being written.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/thread/mutex.h"
#include "node/s3/s3_extents.h"
#include "node/s3/s3_tier.h"
#include "store/store.h"
#include "tree/tree.h"

namespace vrun::node {

struct S3WriterOptions {
  size_t threads = 4;
  size_t max_waiting = 16384;           // extents
  uint64_t bytes_a_second = 64u << 20;  // content before compression
  int64_t delay_micros = 1'500'000;     // so that an extent being read is not written after each unit
  int64_t again_micros = 10'000'000;    // minimum time between writes of an extent, unless a run has ended
  // Runs the function once the disk store has everything that arrived before. Null: it always has.
  std::function<void(std::function<void()>)> when_stored = nullptr;
};

// Any thread. The store and the tier must outlive it.
class S3Writer {
 public:
  S3Writer(store::Store* store, S3Tier* tier, S3WriterOptions options = {});
  // Waits for the writes in progress.
  ~S3Writer();

  // Units [first, first + count) of a version came from home. Without a name they are remembered (a bounded number of
  // versions) until Named supplies it.
  void Came(const tree::FileVersion& version, const std::optional<store::ObjectId>& id, uint64_t first, uint64_t count);
  void Named(const tree::FileVersion& version, const store::ObjectId& id);
  // A run is over: writes what waits at once.
  void Hurry();
  size_t waiting();  // including those being written

 private:
  struct Waiting {
    NamedContent content;
    uint64_t extent = 0;
    int64_t due = 0;
    bool taken = false;
    bool again = false;  // more arrived while it was being written
  };
  void WhenStored(std::function<void()> task);
  void Stored(const tree::FileVersion& version, const std::optional<store::ObjectId>& id, uint64_t first,
              uint64_t count);
  void AddLocked(const NamedContent& content, uint64_t extent, int64_t now) VRUN_REQUIRES(mutex_);
  void Run();
  // kNotFound: not in the disk store.
  Status Write(const NamedContent& content, uint64_t extent);
  // Rate limit: charges `bytes` and returns the time at which they may be written.
  int64_t Spend(uint64_t bytes);
  void Pace(uint64_t bytes);  // charges the bytes and waits

  store::Store* const store_;
  S3Tier* const tier_;
  const S3WriterOptions options_;
  Mutex mutex_;
  CondVar wake_;
  std::map<std::string, Waiting> waiting_ VRUN_GUARDED_BY(mutex_);   // by name
  std::multimap<int64_t, std::string> due_ VRUN_GUARDED_BY(mutex_);  // names in waiting_ that no worker has taken
  std::unordered_map<std::string, int64_t> written_ VRUN_GUARDED_BY(mutex_);  // time of the last write; bounded
  std::unordered_map<tree::FileVersion, std::vector<uint64_t>, tree::FileVersionHash> unnamed_
      VRUN_GUARDED_BY(mutex_);  // extents
  std::deque<tree::FileVersion> unnamed_ages_ VRUN_GUARDED_BY(mutex_);
  int64_t free_from_ VRUN_GUARDED_BY(mutex_) = 0;  // the rate is used up until this time
  bool stopping_ VRUN_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace vrun::node
