// SPDX-License-Identifier: Apache-2.0
#include "home/root/tree_board.h"

#include <utility>

namespace vrun::home {

uint64_t TreeBoard::Join(std::function<void()> tell, std::function<void()> ping) {
  MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  members_[id] = {std::move(tell), std::move(ping)};
  if (members_.size() == 1 && wanted_) wanted_(true);
  return id;
}

void TreeBoard::Leave(uint64_t id) {
  Member dropped;  // freed without the lock
  MutexLock lock(mutex_);
  const auto it = members_.find(id);
  if (it == members_.end()) return;
  dropped = std::move(it->second);
  members_.erase(it);
  if (members_.empty()) told_ = false;
  if (members_.empty() && wanted_) wanted_(false);
}

void TreeBoard::Tell(std::map<uint64_t, uint64_t> included) {
  {
    MutexLock lock(included_mutex_);
    included_ = std::move(included);
  }
  TellAgain();
}

void TreeBoard::TellAgain() {
  MutexLock lock(mutex_);
  told_ = !members_.empty();
  for (const auto& [id, member] : members_) member.tell();
}

bool TreeBoard::current() const {
  MutexLock lock(mutex_);
  return told_ || !wanted_;
}

void TreeBoard::Ping() {
  MutexLock lock(mutex_);
  for (const auto& [id, member] : members_) {
    if (member.ping) member.ping();
  }
}

void TreeBoard::Look() {
  MutexLock lock(mutex_);
  if (look_) look_();
}

void TreeBoard::SetLook(std::function<void()> look) {
  MutexLock lock(mutex_);
  look_ = std::move(look);
}

uint64_t TreeBoard::Included(uint64_t view) const {
  MutexLock lock(included_mutex_);
  const auto it = included_.find(view);
  return it == included_.end() ? 0 : it->second;
}

std::map<uint64_t, uint64_t> TreeBoard::Mark() const {
  std::function<std::map<uint64_t, uint64_t>()> mark;
  {
    MutexLock lock(included_mutex_);
    mark = mark_;
  }
  if (!mark) return {};
  return mark();
}

void TreeBoard::SetMark(std::function<std::map<uint64_t, uint64_t>()> mark) {
  MutexLock lock(included_mutex_);
  mark_ = std::move(mark);
}

void TreeBoard::SetWanted(std::function<void(bool wanted)> wanted) {
  MutexLock lock(mutex_);
  wanted_ = std::move(wanted);
  if (wanted_) wanted_(!members_.empty());
}

}  // namespace vrun::home
