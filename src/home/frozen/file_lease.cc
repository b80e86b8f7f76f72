// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/file_lease.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace vrun::home {
namespace {

// A real-time signal carries the descriptor and is queued. When the queue is full, SIGIO is sent instead.
int BreakSignal() { return SIGRTMIN + 3; }

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, BreakSignal());
  sigaddset(&set, SIGIO);
  return set;
}

}  // namespace

void BlockLeaseSignals() {
  const sigset_t set = Signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Status TakeFileLease(int fd) {
  if (::fcntl(fd, F_SETSIG, BreakSignal()) != 0 || ::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return ErrnoError("lease");
  return {};
}

bool LeaseIsQuiet(int fd) { return ::fcntl(fd, F_GETLEASE) == F_RDLCK; }

// If the kernel has revoked the lease, this fails with EAGAIN.
bool GiveFileLeaseBack(int fd) { return ::fcntl(fd, F_SETLEASE, F_UNLCK) == 0; }

Result<LeaseBreaks> LeaseBreaks::Open() {
  const sigset_t set = Signals();
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return ErrnoError("signalfd");
  return LeaseBreaks(std::move(fd));
}

LeaseBreaks::Batch LeaseBreaks::Read() {
  Batch batch;
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == static_cast<uint32_t>(SIGIO)) {
      batch.lost = true;
    } else {
      batch.descriptors.push_back(info.ssi_fd);
    }
  }
  return batch;
}

}  // namespace vrun::home
