// SPDX-License-Identifier: Apache-2.0
// The filters as programs, without a kernel. In one: tests/security.
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstring>

#include "sandbox/filter/bpf.h"
#include "sandbox/filter/network_filter.h"
#include "sandbox/filter/seccomp.h"

namespace vrun::sandbox {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#else
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

// What the kernel would do: the instructions that SeccompProgram uses.
uint32_t Interpret(const std::vector<sock_filter>& program, const seccomp_data& data) {
  uint32_t a = 0;
  for (size_t at = 0; at < program.size(); ++at) {
    const sock_filter& i = program[at];
    switch (i.code) {
      case BPF_LD | BPF_W | BPF_ABS: std::memcpy(&a, reinterpret_cast<const char*>(&data) + i.k, sizeof a); break;
      case BPF_JMP | BPF_JEQ | BPF_K: at += a == i.k ? i.jt : i.jf; break;
      case BPF_JMP | BPF_JGT | BPF_K: at += a > i.k ? i.jt : i.jf; break;
      case BPF_JMP | BPF_JSET | BPF_K: at += (a & i.k) != 0 ? i.jt : i.jf; break;
      case BPF_RET | BPF_K: return i.k;
      default: ADD_FAILURE() << "instruction " << i.code; return 0;
    }
  }
  ADD_FAILURE() << "no return";
  return 0;
}

uint32_t Call(const std::vector<sock_filter>& program, int number, std::vector<uint64_t> arguments = {}) {
  seccomp_data data{};
  data.nr = number;
  data.arch = kArchitecture;
  for (size_t i = 0; i < arguments.size(); ++i) data.args[i] = arguments[i];
  return Interpret(program, data);
}

TEST(SeccompProgram, EveryNumberHasAnAnswerAndMostAreAllowed) {
  const std::vector<sock_filter> program = SeccompProgram({});
  EXPECT_LT(program.size(), 256u);
  int allowed = 0;
  for (int number = 0; number <= static_cast<int>(kLastReviewedCall); ++number) {
    const uint32_t action = Call(program, number);
    const bool errno_or_allow = action == SECCOMP_RET_ALLOW || (action & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO;
    EXPECT_TRUE(errno_or_allow) << number;
    allowed += action == SECCOMP_RET_ALLOW;
  }
  EXPECT_GT(allowed, 400);
  for (const int number : {static_cast<int>(kLastReviewedCall) + 1, 0x40000000, 0x40000001, -1}) {
    EXPECT_EQ(SECCOMP_RET_ERRNO | ENOSYS, Call(program, number)) << number;
  }
  for (const int number : {SYS_read, SYS_ptrace, SYS_clone3, SYS_unshare, SYS_mount, SYS_execve, SYS_mbind}) {
    EXPECT_EQ(SECCOMP_RET_ALLOW, Call(program, number)) << number;
  }
  seccomp_data foreign{};
  foreign.arch = AUDIT_ARCH_I386;
  EXPECT_EQ(SECCOMP_RET_KILL_PROCESS, Interpret(program, foreign));
}

TEST(SeccompProgram, ArgumentsDecide) {
  const std::vector<sock_filter> program = SeccompProgram({});
  EXPECT_EQ(SECCOMP_RET_ALLOW, Call(program, SYS_socket, {AF_INET, SOCK_STREAM, 6}));
  EXPECT_EQ(SECCOMP_RET_ERRNO | EPROTONOSUPPORT, Call(program, SYS_socket, {AF_INET, SOCK_STREAM, 132}));
  EXPECT_EQ(SECCOMP_RET_ERRNO | EAFNOSUPPORT, Call(program, SYS_socket, {AF_VSOCK, SOCK_STREAM, 0}));
  EXPECT_EQ(SECCOMP_RET_ALLOW, Call(program, SYS_ioctl, {0, 0x5401, 0}));
  EXPECT_EQ(SECCOMP_RET_ERRNO | EPERM, Call(program, SYS_ioctl, {0, 0x5412, 0}));
  // The kernel looks at the low half only.
  EXPECT_EQ(SECCOMP_RET_ERRNO | EPERM, Call(program, SYS_ioctl, {0, 0xdead00005412, 0}));
  EXPECT_EQ(SECCOMP_RET_ALLOW, Call(program, SYS_personality, {0x0040000}));
  EXPECT_EQ(SECCOMP_RET_ERRNO | EPERM, Call(program, SYS_personality, {0x0400000}));
  EXPECT_EQ(SECCOMP_RET_ALLOW, Call(program, SYS_perf_event_open, {0, 0, 0, 0, 0}));
  EXPECT_EQ(SECCOMP_RET_ERRNO | EACCES, Call(program, SYS_perf_event_open, {0, UINT64_MAX, 0, 0, 0}));
}

TEST(SeccompProgram, WithoutNamespaces) {
  const std::vector<sock_filter> program = SeccompProgram({.allow_namespaces = false});
  EXPECT_EQ(SECCOMP_RET_ERRNO | ENOSYS, Call(program, SYS_clone3));
  EXPECT_EQ(SECCOMP_RET_ALLOW, Call(program, SYS_clone, {0x3d0f00}));  // a thread
  EXPECT_EQ(SECCOMP_RET_ERRNO | EPERM, Call(program, SYS_clone, {0x10000000}));
  EXPECT_EQ(SECCOMP_RET_ERRNO | EPERM, Call(program, SYS_unshare, {0x20000}));
  EXPECT_EQ(SECCOMP_RET_ALLOW, Call(program, SYS_unshare, {0x400}));  // its descriptors
  EXPECT_EQ(SECCOMP_RET_ERRNO | EPERM, Call(program, SYS_mount));
}

TEST(ParseDestination, Forms) {
  EXPECT_EQ(8u, ParseDestination("10.0.0.0", 8, 0)->bits);
  EXPECT_EQ(32u, ParseDestination("10.0.0.0", 0, 0)->bits);
  EXPECT_TRUE(ParseDestination("fd00::1", 0, 443)->v6);
  for (const char* bad : {"", "host", "10.0.0", "fd00::g"}) EXPECT_FALSE(ParseDestination(bad, 0, 0)) << bad;
  EXPECT_FALSE(ParseDestination("10.0.0.0", 33, 0));
}

TEST(BpfAssembler, JumpsAreRelativeToTheNextInstruction) {
  BpfAssembler a;
  const auto end = a.NewLabel();
  a.JumpIf(1, 5, end);
  a.Return(1);
  a.Bind(end);
  a.Return(0);
  const std::vector<bpf_insn> code = a.Finish();
  ASSERT_EQ(5u, code.size());
  EXPECT_EQ(2, code[0].off);
}

}  // namespace
}  // namespace vrun::sandbox
