// SPDX-License-Identifier: Apache-2.0
#include "home/serve/hidden_board.h"

#include <utility>

#include "base/hash/secret.h"

namespace vrun::home {

HiddenBoard::HiddenBoard() : salt_(RandomSecret(16).value_or("")) {}

void HiddenBoard::Set(const std::vector<std::string>& paths) {
  MutexLock lock(mutex_);
  if (paths == paths_) return;
  paths_ = paths;
  names_ = HiddenNames::Of(salt_, paths_);
  const v1::Hidden hidden = MessageLocked();
  for (const auto& [id, tell] : members_) tell(hidden);
}

uint64_t HiddenBoard::Join(Tell tell) {
  MutexLock lock(mutex_);
  tell(MessageLocked());
  members_[next_id_] = std::move(tell);
  return next_id_++;
}

void HiddenBoard::Leave(uint64_t id) {
  MutexLock lock(mutex_);
  members_.erase(id);
}

bool HiddenBoard::Has(const std::string& path) const {
  MutexLock lock(mutex_);
  return names_.Find(path).has_value();
}

v1::Hidden HiddenBoard::MessageLocked() const {
  v1::Hidden hidden;
  hidden.set_salt(names_.salt());
  for (const uint32_t tag : names_.tags()) hidden.add_tag(tag);
  for (const std::string& digest : names_.digests()) hidden.add_path(digest);
  return hidden;
}

}  // namespace vrun::home
