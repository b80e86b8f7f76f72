// SPDX-License-Identifier: Apache-2.0
// Read leases (fcntl(2), F_SETLEASE): whoever opens a leased file to write, or cuts it, waits in the kernel until its
// holder has given the lease back; readers notice nothing. Only the owner of a file (or root) gets one, and only while
// nobody has it open to write.
//
// A holder that is slow is not waited for for ever: after /proc/sys/fs/lease-break-time (45 s) the kernel lets the
// writer go on, and GiveLeaseBack says so. Who opens with O_NONBLOCK gets EAGAIN instead of waiting.
#pragma once

#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

// Leases speak by a signal that no thread may take otherwise: before any other thread starts.
void BlockLeaseSignals();

// `fd` is open for reading only. EAGAIN: somebody writes to it; EACCES: it is somebody else's; EINVAL: its file system
// has none.
Status TakeLease(int fd);
// True until a writer comes (or came) for it. Of a descriptor without a lease: false.
bool LeaseIsQuiet(int fd);
// True: it held until now, so nothing was written since it was taken.
bool GiveLeaseBack(int fd);

// The kernel's word that writers wait. One thread at a time.
class LeaseBreaks {
 public:
  static Result<LeaseBreaks> Open();
  int fd() const { return signals_.get(); }  // readable when there are some

  struct Batch {
    std::vector<int> descriptors;
    bool lost = false;  // there were too many: every lease has to be looked at
  };
  Batch Read();

 private:
  explicit LeaseBreaks(UniqueFd signals) : signals_(std::move(signals)) {}
  UniqueFd signals_;
};

}  // namespace vrun::home
