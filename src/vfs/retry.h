// SPDX-License-Identifier: Apache-2.0
// When a failed fetch is tried again, and how long until then.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/result.h"

namespace vrun::vfs {

struct Retry {
  int64_t deadline = 0;  // monotonic; nothing is tried after it
  int away = 0;          // answers that said "home is away"
  int corrupt = 0;       // answers that did not hold together

  // Microseconds until the next try; negative: this error is final.
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

// Until what is here, and could not be read for want of descriptors or memory, is tried again; two thirds of a second
// over the seven times that readers try.
inline int64_t PauseMicros(int failed) { return 5'000ll << std::min(failed - 1, 6); }

// What a reader gets for a final error.
inline int ErrnoOf(const Error& error) { return error.code() == Code::kDenied ? EACCES : EIO; }

// The content named by a tree is no longer to be had from home, and never will be.
inline bool IsLost(const Error& error) {
  return error.code() == Code::kAborted || error.code() == Code::kNotFound || error.code() == Code::kCorrupt;
}

}  // namespace vrun::vfs
