// SPDX-License-Identifier: Apache-2.0
// Transfers to and from a store, over libcurl: many at a time on one thread, over connections that are kept.
//
// A URL is either presigned, and then needs nothing else, or is signed by libcurl with the keys given to the client
// (the controller's own calls). What may pass by itself (connection errors, time-outs, 5xx, 429, 408) is tried again
// after a pause with jitter. Bodies of answers are bounded by the request.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "s3/sigv4.h"

namespace vrun::s3 {

struct ClientOptions {
  size_t concurrency = 24;  // transfers at a time; more wait in order
  size_t max_waiting = 4096;
  int64_t connect_micros = 3'000'000;
  int64_t transfer_micros = 20'000'000;  // one try, all of it
  int tries = 3;
  int64_t pause_micros = 100'000;  // before the second try, at most; doubles with each
  std::string ca_pem;              // as in Bucket
  std::optional<Keys> keys;        // sign with them
  std::string region;              // for that
};

enum class Method { kGet, kPut, kHead, kDelete };

struct Request {
  Method method = Method::kGet;
  std::string url;
  uint64_t first = 0, bytes = 0;            // of a GET: this range; bytes 0: all
  uint64_t max_bytes = 8u << 20;            // of the answer; more is an error
  std::shared_ptr<const std::string> body;  // of a PUT
  std::string what;                         // for messages: "get", "bucket b"; never the URL, which is a secret
  int tries = 0;                            // 0: as in the options
  // Once true nobody waits for the answer any more: what has not begun never does, and ends with kAborted.
  std::shared_ptr<const std::atomic<bool>> given_up;
};

struct ClientStats {
  uint64_t requests = 0;  // tries
  uint64_t retries = 0;
  uint64_t received_bytes = 0;  // bodies
  uint64_t sent_bytes = 0;
  uint64_t connections = 0;  // opened
};

// Any thread. Callbacks run once each, on the client's thread, which they must not hold up.
class Client {
 public:
  using Done = std::function<void(Result<std::string> body)>;

  explicit Client(ClientOptions options);
  // What is under way is broken off: kAborted.
  ~Client();

  // Errors as FromAnswer (answer.h); kUnavailable where the store is not reached, kTimeout when it is too slow,
  // kCorrupt when the answer is larger than max_bytes or a range was asked for and all of it came, kExhausted when too
  // many wait.
  void Start(Request request, Done done);
  ClientStats stats() const;

 private:
  class Loop;
  const std::unique_ptr<Loop> loop_;
};

}  // namespace vrun::s3
