// SPDX-License-Identifier: Apache-2.0
// URLs of the pool's S3 store, as the controller gives them: asked for in batches, kept until they expire.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "proto/s3.pb.h"

namespace vrun::node {

// Any thread. Callbacks run once each, on the thread of Answered, Tick or Close, or at once; no lock held.
class S3Urls {
 public:
  using Done = std::function<void(Result<std::string> url)>;
  // `ask` sends a request on its way to the controller and returns at once.
  explicit S3Urls(std::function<void(const v1::PresignRequest&)> ask) : ask_(std::move(ask)) {}

  // kUnavailable: the controller does not answer, or the store is not usable at the moment.
  void Get(const std::string& name, bool put, int64_t now, Done done);
  void Answered(const v1::PresignReply& reply, int64_t now);
  // About once a second: ends what waits too long.
  void Tick(int64_t now);
  // Everything that waits, and that is asked for later, fails.
  void Close();

  // From the latest answer: what objects are sealed with, and whom to trust. Empty before the first.
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
  static constexpr int64_t kMarginMicros = 60'000'000;  // a URL is not used so shortly before its end

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
  void KeepLocked(const std::string& name, const std::string& url, int64_t until);
  // The next batch of one kind, unless one is under way.
  std::optional<v1::PresignRequest> NextLocked(bool put);

  const std::function<void(const v1::PresignRequest&)> ask_;
  mutable std::mutex mutex_;
  std::deque<Wanted> waiting_[2];     // to read, to write
  std::vector<Wanted> under_way_[2];  // names of the request that was sent
  uint64_t request_[2] = {};          // its id; 0: none
  uint64_t next_id_ = 1;
  std::unordered_map<std::string, Kept> kept_;  // to read
  std::list<std::string> ages_;                 // oldest first
  std::optional<Terms> terms_;
  bool closed_ = false;
};

}  // namespace vrun::node
