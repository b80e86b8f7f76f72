// SPDX-License-Identifier: Apache-2.0
// Writes to the store what readers have from memory already: files of up to 1 MiB that bursts bring, and small ones
// that were fetched. (Parts of larger files are written as they come: there are few such files, and much of their
// content.) Making a thousand files costs a cold import more than a second of a core while its process wants all of
// them, and a reader of one file the time until it is made; a little later nobody minds. So it begins when nothing has
// come for a moment, or when half of the memory is used.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace vrun::vfs {

// Thread safety: any thread. One thread of its own at low priority, started with the first piece.
class WriteBehind {
 public:
  // `limit_bytes`: of pieces that wait; the memory that this may take.
  explicit WriteBehind(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  // Everything that was posted has run.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // In order of posting. False: as much as may wait waits already, and the caller writes by itself.
  bool Post(uint64_t bytes, std::function<void()> write);

 private:
  void Run();

  const uint64_t limit_bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<uint64_t, std::function<void()>>> waiting_;  // guarded by mutex_, as all below
  int64_t posted_ = 0;                                              // the last of them; monotonic microseconds
  uint64_t bytes_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vrun::vfs
