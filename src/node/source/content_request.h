// SPDX-License-Identifier: Apache-2.0
// A question to home and its answer: for the parts of ContentSource only.
#pragma once

#include <functional>
#include <memory>

#include "node/source/content_source.h"
#include "proto/content.pb.h"

namespace vrun::node {

// What has come of the answer to one question, on one stream. Only its stream's thread touches it, no lock held:
// decompressing and hashing is most of the work here, and nobody who asks shall wait for it.
class ContentSource::Answer {
 public:
  virtual ~Answer() = default;
  virtual Status Take(const v1::ContentReply& reply) = 0;  // one part
  virtual bool whole() const = 0;                          // after the last part
  virtual void Deliver() = 0;                              // calls the owner back; once
};

// One question. Under the source's lock, but `begin` and `fail`.
struct ContentSource::Request {
  v1::ContentRequest message;
  uint64_t bytes = 0;  // that it takes of the window
  bool sent = false;   // on the active stream
  int corrupt = 0;
  int64_t deadline = 0;  // while home is away
  std::function<std::unique_ptr<Answer>()> begin;
  std::function<void(Error)> fail;
};

}  // namespace vrun::node
