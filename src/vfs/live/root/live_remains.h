// SPDX-License-Identifier: Apache-2.0
// The remains of a live view whose mount ended before home had everything written in it: its journal and its content,
// without writers. The stream still sends them home. decisions/0021.
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
  // Publishes everything, also files that were never closed. kNotFound: there is no journal; kCorrupt: the journal is
  // inconsistent. Blocks while the journal is read.
  static Result<std::unique_ptr<LiveRemains>> Open(std::shared_ptr<Backend> backend, LiveRemainsOptions options);
  // Journal and content stay in place.
  virtual ~LiveRemains() = default;
  // Lives as long as this. Once all of it is acknowledged, home has everything.
  virtual LiveStream* stream() = 0;
};

}  // namespace vrun::vfs
