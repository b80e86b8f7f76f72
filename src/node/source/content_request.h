// SPDX-License-Identifier: Apache-2.0
// A request to home and its answer. Only for the parts of ContentSource.
#pragma once

#include <functional>
#include <memory>

#include "node/source/content_source.h"
#include "proto/content.pb.h"

namespace vrun::node {

// The received part of the answer to one request, on one stream. Only the stream's thread uses it, without a lock: most
// of the work here is decompression and hashing, which must not block callers.
class ContentSource::Answer {
 public:
  virtual ~Answer() = default;
  virtual Status Take(const v1::ContentReply& reply) = 0;  // adds one part
  virtual bool whole() const = 0;                          // whether the last part was taken
  virtual void Deliver() = 0;                              // calls the owner's callback; once
};

// One request. Guarded by the source's lock, except `begin` and `fail`.
struct ContentSource::Request {
  v1::ContentRequest message;
  uint64_t bytes = 0;  // its share of the window
  bool sent = false;   // on the active stream
  int corrupt = 0;
  int64_t deadline = 0;  // applies while home is away
  std::function<std::unique_ptr<Answer>()> begin;
  std::function<void(Error)> fail;
};

}  // namespace vrun::node
