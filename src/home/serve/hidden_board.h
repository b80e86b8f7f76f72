// SPDX-License-Identifier: Apache-2.0
// Tells each node by which names it recognizes what home hides from jobs, whether or not it exists, so that it can say
// which of them a program has asked for. A node gets digests with a salt that lasts as long as this object, not the
// names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/secrets/hidden_names.h"
#include "base/thread/mutex.h"
#include "proto/content.pb.h"

namespace vrun::home {

// Any thread.
class HiddenBoard {
 public:
  // Called with the board's lock held, so that the last list is the latest: it must not call the board.
  using Tell = std::function<void(const v1::Hidden&)>;

  HiddenBoard();
  // What is hidden now (DenyRules::Missable). Tells all members if it has changed.
  void Set(const std::vector<std::string>& paths);
  // Tells the new member before it returns its id.
  uint64_t Join(Tell tell);
  // An unknown id is ignored.
  void Leave(uint64_t id);
  bool Has(const std::string& path) const;

 private:
  v1::Hidden MessageLocked() const VRUN_REQUIRES(mutex_);

  const std::string salt_;
  mutable Mutex mutex_;
  std::vector<std::string> paths_ VRUN_GUARDED_BY(mutex_);
  HiddenNames names_ VRUN_GUARDED_BY(mutex_);
  uint64_t next_id_ VRUN_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Tell> members_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::home
