// SPDX-License-Identifier: Apache-2.0
// zstd, where it pays.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread/mutex.h"

struct ZSTD_CCtx_s;

namespace vrun::home {

// Any thread. Keeps a working context for each thread that compresses at the same time: making one costs more than
// compressing a unit.
class Compressor {
 public:
  Compressor();
  ~Compressor();

  // True: *out is the zstd frame, at least a tenth smaller. False: send `data` as it is.
  bool Compress(std::string_view data, std::string* out, int level = 1);
  // The same as a delta: for a receiver that has `prefix`, which is similar to `data`. Both at most 8 MiB.
  bool CompressAfter(std::string_view prefix, std::string_view data, std::string* out);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  using Context = std::unique_ptr<ZSTD_CCtx_s, Free>;
  Context Take();
  void Return(Context context);

  Mutex mutex_;
  std::vector<Context> idle_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::home
