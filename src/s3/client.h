// SPDX-License-Identifier: Apache-2.0
// Transfers to and from a store with libcurl: many at a time on one thread, over persistent connections.
//
// A URL is either presigned, and needs nothing else, or libcurl signs it with the keys given to the client (the
// controller's own calls). Transient failures (connection errors, timeouts, 5xx, 429, 408) are retried after a pause
// with jitter. Each request limits the size of its answer's body.
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
  size_t concurrency = 24;  // concurrent transfers; more wait in order
  size_t max_waiting = 4096;
  int64_t connect_micros = 3'000'000;
  int64_t transfer_micros = 20'000'000;  // limit for one whole try
  int tries = 3;
  int64_t pause_micros = 100'000;  // maximum pause before the second try; doubles with each
  std::string ca_pem;              // see Bucket
  std::optional<Keys> keys;        // sign with these
  std::string region;              // for signing
};

enum class Method { kGet, kPut, kHead, kDelete };

struct Request {
  Method method = Method::kGet;
  std::string url;
  uint64_t first = 0, bytes = 0;            // range of a GET; bytes 0: everything
  uint64_t max_bytes = 8u << 20;            // limit of the answer; a larger one is an error
  std::shared_ptr<const std::string> body;  // for a PUT
  std::string what;                         // for messages: "get", "bucket b"; never the URL, which is secret
  int tries = 0;                            // 0: the options' value
  // Once true, nobody waits for the answer: a request that has not begun never does, and ends with kAborted.
  std::shared_ptr<const std::atomic<bool>> given_up;
};

struct ClientStats {
  uint64_t requests = 0;  // tries
  uint64_t retries = 0;
  uint64_t received_bytes = 0;  // bodies
  uint64_t sent_bytes = 0;
  uint64_t connections = 0;  // opened
};

// Any thread. Each callback runs once, on the client's thread, and must not block it.
class Client {
 public:
  using Done = std::function<void(Result<std::string> body)>;

  explicit Client(ClientOptions options);
  // Aborts transfers in progress with kAborted.
  ~Client();

  // Errors as from FromAnswer (answer.h). Also kUnavailable if the store is unreachable, kTimeout if it is too slow,
  // kCorrupt if the answer exceeds max_bytes or ignored the range, kExhausted if too many requests wait.
  void Start(Request request, Done done);
  ClientStats stats() const;

 private:
  class Loop;
  const std::unique_ptr<Loop> loop_;
};

}  // namespace vrun::s3
