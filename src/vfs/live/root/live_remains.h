// SPDX-License-Identifier: Apache-2.0
// What is left of a live view whose mount has ended before home had all that was written in it: its journal and its
// content, with nobody to write on. Home gets it by the stream, as it would have then. decisions/0021.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/id_map.h"
#include "base/result.h"
#include "vfs/content/backend.h"
#include "vfs/live/data/live_stream.h"

namespace vrun::vfs {

struct LiveRemainsOptions {
  std::string journal;  // as LiveViewOptions
  std::string written;
  LiveStreamOptions stream;
  std::function<void()> on_ready;
  IdMap ids;
};

// Thread safety: any thread.
class LiveRemains {
 public:
  // All of it is published, also what nobody had closed. kNotFound: there is no journal; kCorrupt: it does not hang
  // together. Blocks while the journal is read.
  static Result<std::unique_ptr<LiveRemains>> Open(std::shared_ptr<Backend> backend, LiveRemainsOptions options);
  // Journal and content stay where they are.
  virtual ~LiveRemains() = default;
  // As long as this. When all of it is acknowledged, home has everything.
  virtual LiveStream* stream() = 0;
};

}  // namespace vrun::vfs
