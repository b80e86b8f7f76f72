// SPDX-License-Identifier: Apache-2.0
// FUSE over io_uring (Linux 6.14, /sys/module/fuse/parameters/enable_uring): one system call answers a request and
// fetches the next, on the CPU of the caller. FORGET, INTERRUPT and notifications stay with /dev/fuse.
//
// The kernel has one queue for each CPU that there may ever be; each needs entries, which are buffers that hold one
// request from its arrival to its answer. A queue whose entries are all being worked at lets its CPU's callers wait.
//
// A connection that uses it ends with the process that serves it: FUSE_NOTIFY_RESEND does not know of requests that
// were in an entry, and one that the kernel was about to copy into an entry of a dying process is in nobody's hands.
// docs/decisions/0009.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace vrun::vfs {

class FuseRing {
 public:
  // One request as /dev/fuse would have given it; valid during the call. On the threads of the ring.
  using Handler = std::function<void(std::string_view packet)>;

  // Rings and memory, so that what this system does not allow (seccomp, limits, an old kernel) is known before the
  // kernel is told: after INIT it waits for the queues. `payload` is the most that an answer carries.
  static Result<std::unique_ptr<FuseRing>> Create(int device, size_t payload);
  ~FuseRing();
  FuseRing(const FuseRing&) = delete;
  FuseRing& operator=(const FuseRing&) = delete;

  // Registers all entries; from then on requests come to `handler`. If the kernel refuses, they go on coming through
  // /dev/fuse. After INIT was answered with kFuseOverIoUring.
  void Start(Handler handler);
  // Joins the threads; what is answered later nobody gets. After the connection was aborted. Idempotent.
  void Stop();
  // Any thread. False: it is not the answer to a request that came through the ring.
  bool Answer(const iovec* parts, int count);

 private:
  struct Entry;
  class Lane;

  FuseRing(int device, size_t payload);

  const int device_;
  const size_t payload_;
  std::atomic<bool> stop_{false};
  Handler handler_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // a ring and a thread each
  std::mutex mutex_;
  std::unordered_map<uint64_t, Entry*> pending_;  // requests that are not answered yet, by id
};

}  // namespace vrun::vfs
