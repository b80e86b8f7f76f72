// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/mounts.h"

#include <gtest/gtest.h>

#include "tree/rules.h"

namespace vrun::tree {
namespace {

constexpr char kInfo[] =
    "1 1 0:2 / / rw - rootfs rootfs rw\n"
    "20 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    "21 20 0:4 / /proc rw - proc proc rw\n"
    "22 20 0:5 / /mnt/server rw - nfs4 host:/export rw\n"
    "23 22 254:1 / /mnt/server/inside rw - ext4 /dev/vdb rw\n"
    "24 20 254:2 / /data\\040disk rw - xfs /dev/vdc ro,noatime\n"
    "25 20 254:0 /home/u /srv/bind rw - ext4 /dev/vda rw\n"
    "26 20 0:6 / /home/u/remote rw - fuse.sshfs u@host: rw\n"
    "27 20 0:7 / /covered/below rw - ext4 /dev/vdd rw\n"
    "28 20 0:8 / /covered rw - tmpfs tmpfs rw\n"
    "29 20 0:9 / /win rw - fuseblk /dev/sda1 rw\n";

const Mount* At(const MountTable& table, const std::string& point) {
  for (const Mount& m : table.mounts()) {
    if (m.point == point) return &m;
  }
  return nullptr;
}

TEST(MountTable, KnowsWhatBelongsToTheTree) {
  auto table = MountTable::Parse(kInfo, "/");
  ASSERT_TRUE(table) << table.error().message();
  EXPECT_EQ(table->mounts()[0].point, "/");
  EXPECT_EQ(table->mounts()[0].type, "ext4");
  EXPECT_TRUE(table->Excluded("/proc"));
  EXPECT_TRUE(table->Excluded("/mnt/server"));
  EXPECT_TRUE(table->Excluded("/home/u/remote"));
  EXPECT_FALSE(table->Excluded("/win"));
  ASSERT_NE(At(*table, "/data disk"), nullptr);
  EXPECT_TRUE(At(*table, "/data disk")->included);
  EXPECT_TRUE(At(*table, "/data disk")->read_only);
  EXPECT_EQ(At(*table, "/srv/bind")->fs_root, "/home/u");
  EXPECT_EQ(At(*table, "/mnt/server/inside"), nullptr) << "not reached through an excluded one";
  EXPECT_EQ(At(*table, "/covered/below"), nullptr) << "hidden by the mount above it";
  EXPECT_NE(At(*table, "/covered"), nullptr);
  ASSERT_NE(table->ExcludedIn("/mnt"), nullptr);
  EXPECT_TRUE(table->ExcludedIn("/mnt")->contains("server"));
  EXPECT_EQ(table->ExcludedIn("/srv"), nullptr);
}

TEST(MountTable, TranslatesToARootThatIsADirectory) {
  auto table = MountTable::Parse(kInfo, "/home/u/");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->mounts().size(), 2u);
  EXPECT_EQ(table->mounts()[0].fs_root, "/home/u");
  EXPECT_EQ(table->mounts()[0].host_point, "/home/u");
  EXPECT_TRUE(table->Excluded("/remote"));
  auto bind = MountTable::Parse(kInfo, "/srv/bind/x");
  ASSERT_TRUE(bind);
  EXPECT_EQ(bind->mounts()[0].fs_root, "/home/u/x");
}

TEST(MountTable, TheRootsOwnFileSystemAlwaysBelongs) {
  auto table = MountTable::Parse("1 1 0:2 / / rw - 9p host rw\n", "/");
  ASSERT_TRUE(table);
  EXPECT_TRUE(table->mounts()[0].included);
}

TEST(MountTable, RefusesWhatDoesNotParse) {
  EXPECT_FALSE(MountTable::Parse("", "/"));
  EXPECT_FALSE(MountTable::Parse("nonsense\n", "/"));
  EXPECT_FALSE(MountTable::Parse("1 1 0:x / / rw - ext4 /dev/vda rw\n", "/"));
  EXPECT_FALSE(MountTable::Parse("1 1 0:2 / / rw -\n", "/"));
  EXPECT_FALSE(MountTable::Parse("1 1 0:2 / / rw - ext4 /dev/vda rw\n1 1 0:2 / / rw - ext4 /dev/vda rw\n", "/"));
  EXPECT_TRUE(MountTable::Read("/"));
}

TEST(PathRules, KnowsHollowAndHidden) {
  PathRules rules({"/proc", "//tmp/"}, {"/root/.ssh/id", "/top"});
  EXPECT_TRUE(rules.IsHollow("/tmp"));
  EXPECT_FALSE(rules.IsHollow("/tmp/x"));
  EXPECT_TRUE(rules.IsHidden("/root/.ssh", "id"));
  EXPECT_FALSE(rules.IsHidden("/root/.ssh", "id.pub"));
  EXPECT_TRUE(rules.IsHidden("/", "top"));
  EXPECT_TRUE(rules.Excludes("/tmp"));
  EXPECT_TRUE(rules.Excludes("/tmp/a/b"));
  EXPECT_TRUE(rules.Excludes("/top/a"));
  EXPECT_FALSE(rules.Excludes("/tmpx"));
  EXPECT_FALSE(rules.Excludes("/root/.ssh"));
  EXPECT_EQ(CleanPath("/a//./b/"), "/a/b");
  EXPECT_EQ(CleanPath("/"), "/");
  EXPECT_EQ(JoinPath("/", "a"), "/a");
}

}  // namespace
}  // namespace vrun::tree
