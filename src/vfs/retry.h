// SPDX-License-Identifier: Apache-2.0
// When to retry a failed fetch, and after how long.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/result.h"

namespace vrun::vfs {

struct Retry {
  int64_t deadline = 0;  // monotonic; no retry after it
  int away = 0;          // answers that said "home is away"
  int corrupt = 0;       // answers that failed verification

  // Microseconds until the next try; negative: the error is final.
  int64_t Next(const Error& error, int64_t now) {
    switch (error.code()) {
      case Code::kUnavailable:
      case Code::kTimeout: {
        const int64_t delay = std::min<int64_t>(50'000ll << std::min(away++, 5), 1'000'000);
        return now + delay < deadline ? delay : -1;
      }
      case Code::kCorrupt: return ++corrupt < 3 && now < deadline ? 0 : -1;
      default: return -1;
    }
  }
};

// Pause before the retry of a local read that failed for lack of descriptors or memory. The seven tries of a reader
// take two thirds of a second together.
inline int64_t PauseMicros(int failed) { return 5'000ll << std::min(failed - 1, 6); }

// The errno that a reader gets for a final error.
inline int ErrnoOf(const Error& error) { return error.code() == Code::kDenied ? EACCES : EIO; }

// Home does not have the content that a tree names any more, and will not have it again.
inline bool IsLost(const Error& error) {
  return error.code() == Code::kAborted || error.code() == Code::kNotFound || error.code() == Code::kCorrupt;
}

}  // namespace vrun::vfs
