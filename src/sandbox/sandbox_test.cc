// SPDX-License-Identifier: Apache-2.0
// Cases that the supervisor's own tests (src/node) do not reach: failures while building, and teardown.
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "base/files.h"
#include "sandbox/filter/bpf.h"
#include "sandbox/filter/device_filter.h"
#include "sandbox/filter/network_filter.h"

namespace vrun::sandbox {
namespace {

constexpr uint32_t kUidBase = 0x40000000;

// Runs in a child process, because a supervisor changes its namespace and working directory. 0: success.
int InSupervisor(const std::function<int(const std::string& base)>& body) {
  std::string base = "/var/tmp/vrun-sandbox-XXXXXX";
  if (::mkdtemp(base.data()) == nullptr) return 99;
  ::chmod(base.c_str(), 0755);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(30);
    ::_exit(EnterSupervisorNamespace() ? body(base) : 98);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(RemoveTree(base)) << "something is still mounted";
  return WIFEXITED(status) ? WEXITSTATUS(status) : 97;
}

Spec TrueIn(const std::string& base) {
  static_cast<void>(MakeDirs(base + "/root/bin", 0755));
  static_cast<void>(MakeDirs(base + "/task", 0755));
  Result<std::string> busybox = ReadFile("/bin/busybox");
  UniqueFd fd(::open((base + "/root/bin/true").c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0755));
  static_cast<void>(WriteAll(fd.get(), *busybox));
  Spec spec;
  spec.name = "test." + std::to_string(::getpid());
  spec.directory = base + "/task";
  spec.ids = kUidBase;
  spec.limits = {64 << 20, 500, 100};
  spec.argv = {"true"};
  spec.environment = {"PATH=/bin"};
  spec.working_directory = "/";
  return spec;
}

UniqueFd View(const std::string& base) {
  static_cast<void>(MakeDirs(base + "/root/bin", 0755));  // argument evaluation has no fixed order
  return UniqueFd(::open_tree(AT_FDCWD, (base + "/root").c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
}

void WaitFor(int fd) {
  pollfd p{fd, POLLIN, 0};
  ::poll(&p, 1, 10000);
}

class SandboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: mounts and namespaces";
    if (!PathExists("/bin/busybox")) GTEST_SKIP() << "needs /bin/busybox (package busybox-static)";
  }
};

TEST_F(SandboxTest, RunsAndEndsWithoutControlGroups) {
  EXPECT_EQ(0, InSupervisor([](const std::string& base) {
              auto sandbox = Sandbox::Start(TrueIn(base), {View(base), {}}, CgroupHost{});
              if (!sandbox) return 1;
              if ((*sandbox)->notices().size() != 5) return 2;  // three limits and two filters
              WaitFor((*sandbox)->start_fd());
              if ((*sandbox)->FinishStart()) return 3;
              WaitFor((*sandbox)->pidfd());
              Ending ending = (*sandbox)->Reap();
              if (!ending.command_ended || ending.wait_status != 0) return 4;
              return ending.peak_memory_bytes > 0 ? 0 : 5;
            }));
}

TEST_F(SandboxTest, ASignalThatComesTooLateDoesNotHideTheEnd) {
  EXPECT_EQ(0, InSupervisor([](const std::string& base) {
              Spec spec = TrueIn(base);
              spec.idle = true;
              auto sandbox = Sandbox::Start(spec, {View(base), {}}, CgroupHost{});
              if (!sandbox) return 1;
              WaitFor((*sandbox)->start_fd());
              if ((*sandbox)->FinishStart()) return 2;
              (*sandbox)->EndWhenEmpty();
              for (int i = 0; i < 10; ++i) (*sandbox)->Signal(SIGCONT);  // init does not read these any more
              WaitFor((*sandbox)->pidfd());
              const Ending ending = (*sandbox)->Reap();
              return ending.command_ended && ending.wait_status == 0 ? 0 : 3;
            }));
}

TEST_F(SandboxTest, DestructionKillsAndRemoves) {
  EXPECT_EQ(0, InSupervisor([](const std::string& base) {
              CgroupHost host = DetectCgroups();
              Spec spec = TrueIn(base);
              auto sandbox = Sandbox::Start(spec, {View(base), {}}, host);
              if (!sandbox) return 1;
              pid_t pid = (*sandbox)->pid();
              sandbox->reset();
              if (::kill(pid, 0) == 0 || errno != ESRCH) return 2;
              for (const std::string& mount :
                   {host.memory.mount, host.cpu.mount, host.pids.mount, host.cpuset.mount, host.unified}) {
                if (!mount.empty() && PathExists(mount + "/vrun/" + spec.name)) return 3;
              }
              return 0;
            }));
}

TEST_F(SandboxTest, KillBeforeTheStartIsAnEnding) {
  EXPECT_EQ(0, InSupervisor([](const std::string& base) {
              auto sandbox = Sandbox::Start(TrueIn(base), {View(base), {}}, DetectCgroups());
              if (!sandbox) return 1;
              (*sandbox)->Kill();
              WaitFor((*sandbox)->pidfd());
              Ending ending = (*sandbox)->Reap();
              return WIFSIGNALED(ending.wait_status) || ending.command_ended ? 0 : 2;
            }));
}

TEST_F(SandboxTest, ABrokenViewIsAnErrorThatSaysSo) {
  EXPECT_EQ(0, InSupervisor([](const std::string& base) {
              Spec spec = TrueIn(base);
              UniqueFd file(::open((base + "/root/bin/true").c_str(), O_RDONLY | O_CLOEXEC));
              auto sandbox = Sandbox::Start(spec, {std::move(file), {}}, DetectCgroups());
              if (sandbox) return 1;
              return sandbox.error().message().rfind("mount the root", 0) == 0 ? 0 : 2;
            }));
}

TEST_F(SandboxTest, AStaleGroupOfTheSameNameIsReplaced) {
  EXPECT_EQ(0, InSupervisor([](const std::string& base) {
              CgroupHost host = DetectCgroups();
              Spec spec = TrueIn(base);
              for (const std::string& mount : {host.memory.mount, host.pids.mount, host.unified}) {
                if (!mount.empty()) static_cast<void>(MakeDirs(mount + "/vrun/" + spec.name, 0755));
              }
              auto sandbox = Sandbox::Start(spec, {View(base), {}}, host);
              if (!sandbox || !(*sandbox)->notices().empty()) return 1;
              WaitFor((*sandbox)->pidfd());
              static_cast<void>((*sandbox)->Reap());
              return RemoveCgroups(host, spec.name) ? 0 : 2;
            }));
}

// The numbers of the programs of one kind in a group.
std::vector<uint32_t> Programs(int group, bpf_attach_type where) {
  std::vector<uint32_t> ids(64);
  bpf_attr attr{};
  attr.query.target_fd = static_cast<uint32_t>(group);
  attr.query.attach_type = where;
  attr.query.prog_ids = reinterpret_cast<uint64_t>(ids.data());
  attr.query.prog_cnt = ids.size();
  ids.resize(Bpf(BPF_PROG_QUERY, &attr) == 0 ? attr.query.prog_cnt : 0);
  return ids;
}

// A version 2 group beside those of sandboxes.
class Group {
 public:
  explicit Group(const std::string& name) : path_(DetectCgroups().unified + "/vrun/" + name) {
    static_cast<void>(MakeDirs(path_, 0755));
    fd_.Reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~Group() { ::rmdir(path_.c_str()); }
  int fd() const { return fd_.get(); }

 private:
  std::string path_;
  UniqueFd fd_;
};

TEST_F(SandboxTest, GroupsWithTheSameRulesShareTheirPrograms) {
  if (DetectCgroups().unified.empty()) GTEST_SKIP() << "needs a version 2 hierarchy";
  const std::string name = "shared." + std::to_string(::getpid());
  const Group a(name + ".a"), b(name + ".b"), c(name + ".c");
  NetworkFilter first, second, other;
  NetworkPolicy policy;
  policy.refused_local_ports = {1234};
  policy.job = 7;
  ASSERT_TRUE(first.Attach(a.fd(), policy, 1));
  policy.job = 8;
  ASSERT_TRUE(second.Attach(b.fd(), policy, 2));
  policy.refused_local_ports = {1235};
  ASSERT_TRUE(other.Attach(c.fd(), policy, 3));
  for (const auto where : {BPF_CGROUP_INET4_CONNECT, BPF_CGROUP_INET6_CONNECT, BPF_CGROUP_UDP4_SENDMSG,
                           BPF_CGROUP_UDP6_SENDMSG, BPF_CGROUP_INET4_POST_BIND, BPF_CGROUP_INET6_POST_BIND}) {
    EXPECT_EQ(1u, Programs(a.fd(), where).size());
    EXPECT_EQ(Programs(a.fd(), where), Programs(b.fd(), where)) << where;
  }
  EXPECT_NE(Programs(a.fd(), BPF_CGROUP_INET4_CONNECT), Programs(c.fd(), BPF_CGROUP_INET4_CONNECT));
  const std::vector<DeviceRule> harmless = HarmlessDevices();
  std::vector<DeviceRule> more = harmless;
  more.push_back(kFuseDevice);
  ASSERT_TRUE(FilterDevices(a.fd(), harmless) && FilterDevices(b.fd(), harmless) && FilterDevices(c.fd(), more));
  EXPECT_EQ(Programs(a.fd(), BPF_CGROUP_DEVICE), Programs(b.fd(), BPF_CGROUP_DEVICE));
  EXPECT_NE(Programs(a.fd(), BPF_CGROUP_DEVICE), Programs(c.fd(), BPF_CGROUP_DEVICE));
}

TEST_F(SandboxTest, MoreKindsOfProgramsThanAreKept) {
  if (DetectCgroups().unified.empty()) GTEST_SKIP() << "needs a version 2 hierarchy";
  for (uint32_t i = 0; i < 70; ++i) {
    const Group group("kinds." + std::to_string(::getpid()));
    std::vector<DeviceRule> allowed = HarmlessDevices();
    allowed.push_back({195, i});
    ASSERT_TRUE(FilterDevices(group.fd(), allowed)) << i;
    EXPECT_EQ(1u, Programs(group.fd(), BPF_CGROUP_DEVICE).size());
  }
  const Group group("kinds." + std::to_string(::getpid()));
  const UniqueFd kept(::openat(group.fd(), "../.programs", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_LE(Programs(kept.get(), BPF_CGROUP_DEVICE).size(), 32u);
}

}  // namespace
}  // namespace vrun::sandbox
