// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/withheld.h"

#include <utility>

#include "base/clock.h"

namespace vrun::vfs {

void Withheld::Set(HiddenNames names) {
  MutexLock lock(mutex_);
  names_ = std::move(names);
  told_us_.assign(names_.size(), 0);
}

bool Withheld::Asked(const std::string& path) {
  const int64_t now = MonotonicMicros();
  {
    MutexLock lock(mutex_);
    const auto place = names_.Find(path);
    if (!place) return false;
    int64_t& told = told_us_[*place];
    if (told != 0 && now - told < kAgainMicros) return true;
    told = now;
  }
  if (asked_) asked_(path);
  return true;
}

}  // namespace vrun::vfs
