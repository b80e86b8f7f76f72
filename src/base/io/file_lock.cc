// SPDX-License-Identifier: Apache-2.0
#include "base/io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun {
namespace {

constexpr int64_t kWaitMicros = 2'000'000;
constexpr std::chrono::milliseconds kPause(20);

}  // namespace

Result<UniqueFd> LockFile(const std::string& path) {
  VRUN_ASSIGN(UniqueFd lock, OpenFile(path, O_RDWR | O_CREAT, 0600));
  for (const int64_t began = MonotonicMicros(); ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0;) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return ErrnoError("lock " + Escape(path));
    if (MonotonicMicros() - began > kWaitMicros)
      return Error(Code::kExists, "somebody else has locked " + Escape(path));
    std::this_thread::sleep_for(kPause);
  }
  return lock;
}

}  // namespace vrun
