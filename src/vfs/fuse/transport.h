// SPDX-License-Identifier: Apache-2.0
// Moves FUSE packets without decoding them: /dev/fuse in production, FakeKernel in tests.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::vfs {

// Thread safety: any thread, any number at once.
class Transport {
 public:
  virtual ~Transport() = default;
  // Blocks for the next request and returns its length. 0: the connection has ended, for every thread.
  virtual size_t Receive(void* buffer, size_t size) = 0;
  // Sends one whole packet (reply or notification). Returns 0 or the errno. ENOENT: nobody waits for this reply, or the
  // kernel does not know the object of the notification.
  virtual int Send(const iovec* parts, int count) = 0;
  // Registers a file for passthrough; the kernel keeps its own reference. Returns the id (> 0) or -errno.
  virtual int OpenBacking(int fd) = 0;
  virtual void CloseBacking(int id) = 0;
  // Makes Receive return 0, now and later. Idempotent.
  virtual void Abort() = 0;
};

// Sends a notification: `code` is a fuse_notify_code; `tail` is sent right after `head`. 0 or an errno; ENOENT: the
// kernel does not know the object, which is fine. Never call it from an operation, nor while holding something that an
// operation waits for: the kernel takes locks under which it may be waiting for an answer.
int Notify(Transport& transport, int code, std::string_view head, std::string_view tail);

class DevFuse final : public Transport {
 public:
  explicit DevFuse(UniqueFd fd) : fd_(std::move(fd)) {}
  // `abort` ends the connection (a blocked read of /dev/fuse cannot be woken from this side).
  void SetAbort(std::function<void()> abort);
  int fd() const { return fd_.get(); }

  size_t Receive(void* buffer, size_t size) override;
  int Send(const iovec* parts, int count) override;
  int OpenBacking(int fd) override;
  void CloseBacking(int id) override;
  void Abort() override;

 private:
  const UniqueFd fd_;
  Mutex mutex_;
  std::function<void()> abort_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::vfs
