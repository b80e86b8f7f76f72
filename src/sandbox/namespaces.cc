// SPDX-License-Identifier: Apache-2.0
#include "sandbox/namespaces.h"

#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace vrun::sandbox {

Result<ClonedChild> CloneIntoNamespaces(int cgroup, bool network, const std::function<void()>& inside) {
  int pidfd = -1;
  clone_args args{};
  // The cgroup namespace is created later, inside the groups: its root is the creator's current group.
  args.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_PIDFD;
  if (network) args.flags |= CLONE_NEWNET;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  if (cgroup >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<uint64_t>(cgroup);
  }
  long pid = ::syscall(SYS_clone3, &args, sizeof args);
  if (pid == 0) {
    inside();
    ::_exit(127);
  }
  if (pid < 0) {
    int e = errno;
    Error error = ErrnoError(e, "clone into new namespaces");
    if (e == ENOSPC || e == EPERM) {
      return Error(error.code(),
                   error.message() + ": user namespaces are off on this node: raise user.max_user_namespaces");
    }
    return error;
  }
  return ClonedChild{static_cast<pid_t>(pid), UniqueFd(pidfd)};
}

}  // namespace vrun::sandbox
