// SPDX-License-Identifier: Apache-2.0
// The parts that do not need root.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/command_path.h"
#include "base/files.h"
#include "sandbox/cgroup.h"
#include "sandbox/command_plan.h"
#include "sandbox/mounts.h"
#include "sandbox/user_map.h"

namespace vrun::sandbox {
namespace {

TEST(IdMapText, TheRangeAndALineForEachIdAboveIt) {
  EXPECT_EQ("0 1000000 65536\n", *IdMapText(1000000));
  EXPECT_EQ("0 1073741824 65536\n4000000000 2147483648 1\n70000 2147483649 1\n",
            *IdMapText(IdMap(0x40000000, {4000000000u, 70000})));
  EXPECT_EQ("0 0 65536\n", *IdMapText(0));
  EXPECT_FALSE(IdMapText(UINT32_MAX - 100));
  EXPECT_FALSE(IdMapText(UINT32_MAX - 65535));
}

TEST(CheckMapped, NamesTheIdThatIsNot) {
  const IdMap ids(0x40000000, {70000});
  EXPECT_TRUE(CheckMapped(ids, {1000, 70000, {5, 70000}}));
  EXPECT_NE(CheckMapped(ids, {1000, 1000, {70001}}).error().message().find("70001"), std::string::npos);
  EXPECT_FALSE(CheckMapped(ids, {70002, 1000, {}}));
}

TEST(CommandCandidates, AsExecvpLooks) {
  using V = std::vector<std::string>;
  EXPECT_EQ((V{"/a/x", "/b/x"}), CommandCandidates("x", {"PATH=/a:/b"}));
  EXPECT_EQ((V{"./x", "/a/x", "./x"}), CommandCandidates("x", {"PATH=:/a:"}));
  EXPECT_EQ((V{"./x"}), CommandCandidates("x", {"PATH="}));
  EXPECT_EQ((V{"d/x"}), CommandCandidates("d/x", {"PATH=/a"}));
  EXPECT_EQ((V{}), CommandCandidates("", {"PATH=/a"}));
  EXPECT_EQ("/usr/local/sbin/x", CommandCandidates("x", {"XPATH=/a"})[0]);
}

TEST(ExplainStart, EscapesAndNames) {
  Spec spec;
  spec.argv = {"a\nb"};
  spec.working_directory = "/x\033y";
  StartMessage m{Stage::kNotFound, ENOENT, {}};
  StartFailure f = ExplainStart(m, spec);
  EXPECT_EQ(StartFailure::Kind::kNotFound, f.kind);
  EXPECT_EQ(std::string::npos, f.reason.find('\n'));
  m = {Stage::kDirectory, ENOENT, {}};
  f = ExplainStart(m, spec);
  EXPECT_EQ(StartFailure::Kind::kFailed, f.kind);
  EXPECT_EQ(std::string::npos, f.reason.find('\033'));
  m = {static_cast<Stage>(12345), EIO, {}};
  std::memset(m.detail, 'x', sizeof m.detail);  // not terminated
  EXPECT_EQ(StartFailure::Kind::kFailed, ExplainStart(m, spec).kind);
}

constexpr const char* kHybrid =
    "24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "30 24 0:26 / /sys/fs/cgroup/cpu\\040set rw,relatime - cgroup cgroup rw,cpuset\n"
    "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 24 0:28 / /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n"
    "33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(ParseCgroupMounts, Hybrid) {
  CgroupHost host = ParseCgroupMounts(kHybrid, "pids hugetlb\n");
  EXPECT_EQ("/sys/fs/cgroup/mem ory", host.memory.mount);
  EXPECT_FALSE(host.memory.v2);
  EXPECT_EQ("/sys/fs/cgroup/cpu,cpuacct", host.cpu.mount);
  EXPECT_EQ("/sys/fs/cgroup/cpu set", host.cpuset.mount);
  EXPECT_FALSE(host.cpuset.v2);
  EXPECT_EQ("/sys/fs/cgroup/unified", host.pids.mount);
  EXPECT_TRUE(host.pids.v2);
  EXPECT_EQ("/sys/fs/cgroup/unified", host.unified);
}

TEST(ParseCgroupMounts, PureAndNoneAndRubbish) {
  CgroupHost pure =
      ParseCgroupMounts("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "cpuset cpu io memory pids\n");
  EXPECT_TRUE(pure.memory.v2 && pure.cpu.v2 && pure.pids.v2 && pure.cpuset.v2);
  CgroupHost none = ParseCgroupMounts("24 1 0:22 / / rw - ext4 /dev/vda rw\n", "memory");
  EXPECT_FALSE(none.memory || none.cpu || none.pids);
  EXPECT_EQ("", none.unified);
  ParseCgroupMounts("\n - \n - cgroup2\nx - cgroup\\\n1 2 3 4 \\04 5 - cgroup2 a b\n", "");
}

TEST(SweepCgroups, TakesOldEmptyGroupsOnly) {
  char directory[] = "/var/tmp/vrun-sweep-XXXXXX";  // instead of a real cgroup mount, which others use meanwhile
  ASSERT_NE(nullptr, ::mkdtemp(directory));
  CgroupHost host;
  host.unified = directory;
  ASSERT_TRUE(MakeDirs(host.unified + "/vrun/stale", 0755));
  ASSERT_TRUE(MakeDirs(host.unified + "/vrun/busy/x", 0755));
  SweepCgroups(host);
  EXPECT_TRUE(PathExists(host.unified + "/vrun/stale"));  // young
  SweepCgroups(host, -5);
  EXPECT_FALSE(PathExists(host.unified + "/vrun/stale"));
  EXPECT_TRUE(PathExists(host.unified + "/vrun/busy"));
  ASSERT_TRUE(RemoveTree(directory));
}

TEST(Cgroup, NoticesWhatIsNotEnforced) {
  Cgroup group;
  std::vector<std::string> notices;
  group.Create({}, "x", {1 << 20, 500, 10}, &notices);
  EXPECT_EQ(3u, notices.size());
  EXPECT_EQ(-1, group.unified_fd());
  EXPECT_EQ(0u, group.oom_kills());
  EXPECT_TRUE(group.Remove());
  notices.clear();
  group.Create({}, "x", {}, &notices);
  EXPECT_TRUE(notices.empty());
  // One core on one processor needs no control group to be enforced, but half a core does.
  group.Create({}, "x", {0, 1000, 0, {0}}, &notices);
  EXPECT_TRUE(notices.empty());
  group.Create({}, "x", {0, 500, 0, {0}}, &notices);
  EXPECT_EQ(1u, notices.size());
}

// Stands in for a version 1 hierarchy, which would fill the files itself.
TEST(Cgroup, ACpusetOfVersion1HasMemoryNodesAndProcessorsBeforeAnybodyEnters) {
  char directory[] = "/var/tmp/vrun-cpuset-XXXXXX";
  ASSERT_NE(nullptr, ::mkdtemp(directory));
  const std::string top = directory, parent = top + "/vrun", own = parent + "/x";
  for (const std::string& d : {top, parent, own}) {
    ASSERT_TRUE(MakeDirs(d, 0755));
    for (const char* file : {"/cpuset.cpus", "/cpuset.mems", "/tasks"})
      ASSERT_TRUE(WriteFileAtomic(d + file, "", 0644));
  }
  ASSERT_TRUE(WriteFileAtomic(parent + "/cpuset.mems", "0-1\n", 0644));
  ASSERT_TRUE(WriteFileAtomic(top + "/cpuset.cpus", "0-7\n", 0644));
  ASSERT_TRUE(WriteFileAtomic(top + "/cpuset.mems", "0-1\n", 0644));
  CgroupHost host;
  host.cpuset = {top, false};
  Cgroup group;
  std::vector<std::string> notices;
  group.Create(host, "x", {0, 3000, 0, {2, 3, 5}}, &notices);
  EXPECT_TRUE(notices.empty());
  EXPECT_EQ("2-3,5", *ReadFile(own + "/cpuset.cpus"));
  EXPECT_EQ(1u, group.entrances().size());
  ASSERT_TRUE(RemoveTree(top));
}

TEST(HostsWith, TheNamesOfTheNodeComeBehindTheOnesOfTheRoot) {
  const std::string node = "10.0.0.7\tgpu7 n7\n";
  EXPECT_EQ("127.0.0.1\tlocalhost\n10.0.0.7\tgpu7\n10.0.0.7\tn7\n", HostsWith("", node));
  EXPECT_EQ("127.0.0.1 localhost\n10.0.0.7\tgpu7\n10.0.0.7\tn7\n", HostsWith("127.0.0.1 localhost", node));
  // Home's entry for a name takes precedence, but a comment does not count.
  EXPECT_EQ("::1 localhost\n192.0.2.1 box gpu7 # n7\n10.0.0.7\tn7\n",
            HostsWith("::1 localhost\n192.0.2.1 box gpu7 # n7\n", node));
  const std::string all = "127.0.0.1 localhost gpu7\n127.0.0.1 n7";
  EXPECT_EQ(all, HostsWith(all, node));
}

}  // namespace
}  // namespace vrun::sandbox
