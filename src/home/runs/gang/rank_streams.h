// SPDX-License-Identifier: Apache-2.0
// The numbers of the streams of a pod's ranks (task.proto, StreamId).
#pragma once

#include <cstdint>

#include "proto/task.pb.h"

namespace vrun::home {

// `fd`: STDIN, STDOUT or STDERR. `rank`: index in the pod.
inline v1::StreamId RankStream(uint32_t rank, v1::StreamId fd) {
  if (rank == 0) return fd;
  return static_cast<v1::StreamId>(static_cast<uint32_t>(v1::FIRST_OF_RANKS) + 3 * rank + static_cast<uint32_t>(fd));
}

struct RankOfStream {
  uint32_t rank = 0;
  v1::StreamId fd = v1::STDIN;
};
inline RankOfStream SplitRankStream(v1::StreamId stream) {
  const uint32_t number = static_cast<uint32_t>(stream);
  const uint32_t first = static_cast<uint32_t>(v1::FIRST_OF_RANKS);
  if (number < first) return {0, stream};
  return {(number - first) / 3, static_cast<v1::StreamId>((number - first) % 3)};
}

}  // namespace vrun::home
