// SPDX-License-Identifier: Apache-2.0
// Presigned URLs of the pool's S3 store, from the controller: requested in batches, kept until they expire.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/s3.pb.h"

namespace vrun::node {

// Any thread. Each callback runs once, at once or on the thread of Answered, Tick or Close, without locks.
class S3Urls {
 public:
  using Done = std::function<void(Result<std::string> url)>;
  // `ask` queues a request to the controller and returns at once.
  explicit S3Urls(std::function<void(const v1::PresignRequest&)> ask) : ask_(std::move(ask)) {}

  // kUnavailable: the controller does not answer, or the store cannot be used now.
  void Get(const std::string& name, bool put, int64_t now, Done done);
  void Answered(const v1::PresignReply& reply, int64_t now);
  // Call about once a second: fails requests that have waited too long.
  void Tick(int64_t now);
  // Fails all pending and future requests.
  void Close();

  // From the latest answer: the key that seals objects, and the trusted certificates. Empty before the first answer.
  struct Terms {
    std::string seal;
    std::string ca_pem;
  };
  std::optional<Terms> terms() const;

 private:
  static constexpr int kBatch = 500;
  static constexpr size_t kMaxWaiting = 32768;
  static constexpr size_t kMaxKept = 16384;
  static constexpr int64_t kPatienceMicros = 3'000'000;
  static constexpr int64_t kMarginMicros = 60'000'000;  // a URL is not used this shortly before it expires

  struct Wanted {
    std::string name;
    Done done;
    int64_t since = 0;
  };
  struct Kept {
    std::string url;
    int64_t until = 0;
    std::list<std::string>::iterator age;
  };
  using Calls = std::vector<std::function<void()>>;
  void KeepLocked(const std::string& name, const std::string& url, int64_t until) VRUN_REQUIRES(mutex_);
  // The next batch of one kind, unless a batch is in progress.
  std::optional<v1::PresignRequest> NextLocked(bool put) VRUN_REQUIRES(mutex_);

  const std::function<void(const v1::PresignRequest&)> ask_;
  mutable Mutex mutex_;
  std::deque<Wanted> waiting_[2] VRUN_GUARDED_BY(mutex_);     // [0] to read, [1] to write
  std::vector<Wanted> under_way_[2] VRUN_GUARDED_BY(mutex_);  // names in the request that was sent
  uint64_t request_[2] VRUN_GUARDED_BY(mutex_) = {};          // its id; 0: none
  uint64_t next_id_ VRUN_GUARDED_BY(mutex_) = 1;
  std::unordered_map<std::string, Kept> kept_ VRUN_GUARDED_BY(mutex_);  // URLs to read
  std::list<std::string> ages_ VRUN_GUARDED_BY(mutex_);                 // oldest first
  std::optional<Terms> terms_ VRUN_GUARDED_BY(mutex_);
  bool closed_ VRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace vrun::node
