// SPDX-License-Identifier: Apache-2.0
#include "sandbox/filter/seccomp.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <initializer_list>

namespace vrun::sandbox {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the table of system calls was not reviewed for this architecture"
#endif

struct Refusal {
  uint32_t number;
  uint16_t error;
};

// Refused whatever the arguments.
constexpr Refusal kRefused[] = {
    // Large parts of the kernel that a command has no need of, each with a history of holes.
    {SYS_io_uring_setup, ENOSYS},
    {SYS_io_uring_enter, ENOSYS},
    {SYS_io_uring_register, ENOSYS},
    {SYS_bpf, EPERM},
    {SYS_userfaultfd, EPERM},
    {SYS_fanotify_init, EPERM},
    // Keys are not in a namespace: they would be shared with other commands of the same id.
    {SYS_add_key, EPERM},
    {SYS_keyctl, EPERM},
    {SYS_request_key, EPERM},
    // A handle names a file of the whole file system, also outside of what is mounted here.
    {SYS_open_by_handle_at, EPERM},
    // The machine's own affairs.
    {SYS_acct, EPERM},
    {SYS_clock_settime, EPERM},
    {SYS_settimeofday, EPERM},
    {SYS_delete_module, EPERM},
    {SYS_finit_module, EPERM},
    {SYS_init_module, EPERM},
    {SYS_kexec_load, EPERM},
    {SYS_kexec_file_load, EPERM},
    {SYS_lookup_dcookie, EPERM},
    {SYS_quotactl, EPERM},
    {443 /* quotactl_fd */, EPERM},
    {SYS_reboot, EPERM},
    {SYS_swapoff, EPERM},
    {SYS_swapon, EPERM},
    {SYS_syslog, EPERM},  // what the kernel says of others
    {SYS_vhangup, EPERM},
#if defined(__x86_64__)
    {SYS_ioperm, EPERM},
    {SYS_iopl, EPERM},
    {SYS__sysctl, ENOSYS},
    {SYS_create_module, ENOSYS},
    {SYS_get_kernel_syms, ENOSYS},
    {SYS_query_module, ENOSYS},
    {SYS_nfsservctl, ENOSYS},
    {SYS_sysfs, EPERM},
    {SYS_uselib, EPERM},
#endif
};

// Refused as well where a command may have no namespaces and mounts of its own. All need a privilege of the sandbox's
// root anyway, but they are the part of the kernel in which most of the holes of the last years were.
constexpr Refusal kMounting[] = {
    {SYS_mount, EPERM},
    {SYS_umount2, EPERM},
    {SYS_pivot_root, EPERM},
    {SYS_setns, EPERM},
    {SYS_open_tree, EPERM},
    {SYS_move_mount, EPERM},
    {SYS_fsopen, EPERM},
    {SYS_fsconfig, EPERM},
    {SYS_fsmount, EPERM},
    {SYS_fspick, EPERM},
    {SYS_mount_setattr, EPERM},
    {467 /* open_tree_attr */, EPERM},
    // Its flags are in memory, where a filter cannot look. libc then uses clone.
    {SYS_clone3, ENOSYS},
};

constexpr uint32_t kNamespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                 CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWTIME;

// Writes forward jumps only. A condition skips the instructions of its case, of which there are few.
class Program {
 public:
  void Load(size_t offset) { Emit(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  // The low half: these arguments are ints, and the kernel ignores the rest too.
  void LoadArgument(size_t index) { Load(offsetof(seccomp_data, args) + index * sizeof(uint64_t)); }
  void LoadNumber() { Load(offsetof(seccomp_data, nr)); }
  void Return(uint32_t action) { Emit(BPF_RET | BPF_K, action); }
  void Refuse(uint16_t error) { Return(SECCOMP_RET_ERRNO | error); }
  void Allow() { Return(SECCOMP_RET_ALLOW); }
  // If the accumulator has `value`, runs `body`, which must end in a return.
  template <typename Body>
  void If(uint32_t value, Body body) {
    Conditional(BPF_JEQ, value, true, body);
  }
  template <typename Body>
  void IfNot(uint32_t value, Body body) {
    Conditional(BPF_JEQ, value, false, body);
  }
  template <typename Body>
  void IfGreater(uint32_t value, Body body) {
    Conditional(BPF_JGT, value, true, body);
  }
  template <typename Body>
  void IfAnyBit(uint32_t mask, Body body) {
    Conditional(BPF_JSET, mask, true, body);
  }

  std::vector<sock_filter> Take() { return std::move(code_); }

 private:
  void Emit(int code, uint32_t k) { code_.push_back({static_cast<uint16_t>(code), 0, 0, k}); }
  template <typename Body>
  void Conditional(int test, uint32_t value, bool wanted, Body body) {
    const size_t at = code_.size();
    Emit(BPF_JMP | test | BPF_K, value);
    body();
    const auto skip = static_cast<uint8_t>(code_.size() - at - 1);
    (wanted ? code_[at].jf : code_[at].jt) = skip;
  }

  std::vector<sock_filter> code_;
};

// Families and protocols that programs use. Others are modules of the kernel that an open would load, or see more than
// the command's own (packets, other machines' guests).
void FilterSockets(Program* p) {
  p->If(SYS_socket, [p] {
    p->LoadArgument(0);
    for (const uint32_t family : {AF_INET, AF_INET6}) {
      p->If(family, [p] {
        p->LoadArgument(2);  // SCTP, MPTCP and others would not pass the filters on connect
        for (const uint32_t protocol :
             {0, int{IPPROTO_TCP}, int{IPPROTO_UDP}, int{IPPROTO_ICMP}, int{IPPROTO_ICMPV6}}) {
          p->If(protocol, [p] { p->Allow(); });
        }
        p->Refuse(EPROTONOSUPPORT);
      });
    }
    p->If(AF_NETLINK, [p] {
      p->LoadArgument(2);
      for (const uint32_t protocol :
           {NETLINK_ROUTE, NETLINK_USERSOCK, NETLINK_KOBJECT_UEVENT, NETLINK_GENERIC, NETLINK_RDMA}) {
        p->If(protocol, [p] { p->Allow(); });
      }
      p->Refuse(EPROTONOSUPPORT);
    });
    p->If(AF_UNIX, [p] { p->Allow(); });
    p->Refuse(EAFNOSUPPORT);
  });
}

// Input that a terminal would take for its user's.
void FilterIoctl(Program* p) {
  p->If(SYS_ioctl, [p] {
    p->LoadArgument(1);
    p->If(TIOCSTI, [p] { p->Refuse(EPERM); });
    p->If(0x541C /* TIOCLINUX */, [p] { p->Refuse(EPERM); });
    p->Allow();
  });
}

// One's own processes. Not a whole processor with all who run on it, even where the node is so permissive.
void FilterPerf(Program* p) {
  p->If(SYS_perf_event_open, [p] {
    p->LoadArgument(1);
    p->If(UINT32_MAX, [p] { p->Refuse(EACCES); });
    p->LoadArgument(4);
    p->IfAnyBit(PERF_FLAG_PID_CGROUP, [p] { p->Refuse(EACCES); });
    p->Allow();
  });
}

void FilterPersonality(Program* p) {
  p->If(SYS_personality, [p] {
    p->LoadArgument(0);
    p->If(UINT32_MAX, [p] { p->Allow(); });  // only asks
    // gdb turns the randomization of addresses off.
    p->IfAnyBit(~(uint32_t{PER_LINUX32} | uint32_t{UNAME26} | uint32_t{ADDR_NO_RANDOMIZE}), [p] { p->Refuse(EPERM); });
    p->Allow();
  });
}

void FilterNamespaces(Program* p) {
  p->If(SYS_clone, [p] {
    p->LoadArgument(0);
    p->IfAnyBit(kNamespaces & ~uint32_t{CLONE_NEWTIME}, [p] { p->Refuse(EPERM); });  // that bit is the signal's there
    p->Allow();
  });
  p->If(SYS_unshare, [p] {
    p->LoadArgument(0);
    p->IfAnyBit(kNamespaces, [p] { p->Refuse(EPERM); });
    p->Allow();
  });
}

}  // namespace

std::vector<sock_filter> SeccompProgram(const SeccompPolicy& policy) {
  Program p;
  p.Load(offsetof(seccomp_data, arch));
  // Killed rather than refused: a 32-bit program that gets ENOSYS for everything ends in some obscure way.
  p.IfNot(kArchitecture, [&p] { p.Return(SECCOMP_RET_KILL_PROCESS); });
  p.LoadNumber();
  p.IfGreater(kLastReviewedCall, [&p] { p.Refuse(ENOSYS); });  // also the numbers of x32
  FilterIoctl(&p);
  FilterSockets(&p);
  FilterPerf(&p);
  FilterPersonality(&p);
  if (!policy.allow_namespaces) FilterNamespaces(&p);
  for (const Refusal& r : kRefused) p.If(r.number, [&] { p.Refuse(r.error); });
  if (!policy.allow_namespaces) {
    for (const Refusal& r : kMounting) p.If(r.number, [&] { p.Refuse(r.error); });
  }
  p.Allow();
  return p.Take();
}

}  // namespace vrun::sandbox
