// SPDX-License-Identifier: Apache-2.0
// Read leases (fcntl(2), F_SETLEASE): a process that opens a leased file for writing, or truncates it, blocks in the
// kernel until the holder releases the lease; readers are not affected. Only the owner of a file (or root) gets a
// lease, and only while nobody has it open for writing.
//
// If the holder is slow, the kernel lets the writer continue after /proc/sys/fs/lease-break-time (45 s);
// GiveFileLeaseBack reports that. An open with O_NONBLOCK fails with EAGAIN instead of blocking.
#pragma once

#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

// Lease breaks arrive as a signal that must be blocked in all threads: call before any other thread starts.
void BlockLeaseSignals();

// `fd` must be open read-only. EAGAIN: somebody has it open for writing; EACCES: somebody else owns it; EINVAL: its
// file system has no leases.
Status TakeFileLease(int fd);
// True until a writer asks for the file. False for a descriptor without a lease.
bool LeaseIsQuiet(int fd);
// True: the lease held until now, so nothing was written since it was taken.
bool GiveFileLeaseBack(int fd);

// The kernel's notifications that writers are waiting. One thread at a time.
class LeaseBreaks {
 public:
  static Result<LeaseBreaks> Open();
  int fd() const { return signals_.get(); }  // readable when there are some

  struct Batch {
    std::vector<int> descriptors;
    bool lost = false;  // notifications were lost: check every lease
  };
  Batch Read();

 private:
  explicit LeaseBreaks(UniqueFd signals) : signals_(std::move(signals)) {}
  UniqueFd signals_;
};

}  // namespace vrun::home
