// SPDX-License-Identifier: Apache-2.0
#include "control/access/bounds.h"

#include <algorithm>

#include "base/escape.h"

namespace vrun::control {
namespace {

constexpr int64_t kSavedMicros = 10'000'000;  // calls of so much time may come at once
constexpr size_t kMostUsers = 10'000;         // remembered although they have nothing open

}  // namespace

void CallLimiter::Use(const Bounds& bounds) {
  MutexLock lock(shared_->mutex);
  shared_->bounds = bounds;
}

Status CallLimiter::Call(const std::string& user, int64_t now_us) {
  Shared& s = *shared_;
  MutexLock lock(s.mutex);
  if (s.bounds.requests_per_second == 0) return {};
  // Those whose calls are all saved up again are as good as unknown.
  if (s.users.size() > kMostUsers) {
    std::erase_if(s.users, [&](const auto& entry) {
      return entry.second.streams == 0 && now_us - entry.second.at_us > kSavedMicros;
    });
  }
  const int64_t rate = s.bounds.requests_per_second;
  User& one = s.users[user];
  const int64_t since = one.at_us == 0 ? kSavedMicros : std::min(now_us - one.at_us, kSavedMicros);
  one.left_micro = std::min(one.left_micro + since * rate, kSavedMicros * rate);
  one.at_us = now_us;
  if (one.left_micro < 1'000'000) {
    return Error(Code::kExhausted, "user " + Escape(user) + ": more than " + std::to_string(rate) +
                                       " requests a second, which is the limit of each user: ask less often");
  }
  one.left_micro -= 1'000'000;
  return {};
}

Result<std::shared_ptr<void>> CallLimiter::OpenStream(const std::string& user) {
  MutexLock lock(shared_->mutex);
  User& one = shared_->users[user];
  if (shared_->bounds.streams != 0 && one.streams >= shared_->bounds.streams) {
    return Error(Code::kExhausted, "user " + Escape(user) + ": " + std::to_string(one.streams) +
                                       " jobs are watched, which is the limit of each user: wait until some end, or "
                                       "use vbatch");
  }
  ++one.streams;
  return std::shared_ptr<void>(nullptr, [shared = shared_, user](void*) {
    MutexLock inner(shared->mutex);
    const auto it = shared->users.find(user);
    if (it != shared->users.end() && it->second.streams > 0) --it->second.streams;
  });
}

}  // namespace vrun::control
