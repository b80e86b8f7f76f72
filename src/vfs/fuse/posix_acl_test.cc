// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/posix_acl.h"

#include <gtest/gtest.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>

#include <vector>

namespace vrun::vfs {
namespace {

std::string Acl(std::vector<posix_acl_xattr_entry> entries) {
  const posix_acl_xattr_header header{POSIX_ACL_XATTR_VERSION};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) +
         std::string(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof entries[0]);
}
std::string Full(uint16_t user, uint16_t named, uint16_t group, uint16_t mask, uint16_t other) {
  return Acl({{ACL_USER_OBJ, user, ~0u},
              {ACL_USER, named, 1000},
              {ACL_GROUP_OBJ, group, ~0u},
              {ACL_MASK, mask, ~0u},
              {ACL_OTHER, other, ~0u}});
}
std::string Short(uint16_t user, uint16_t group, uint16_t other) {
  return Acl({{ACL_USER_OBJ, user, ~0u}, {ACL_GROUP_OBJ, group, ~0u}, {ACL_OTHER, other, ~0u}});
}

TEST(PosixAcl, TheMaskIsTheGroupOfTheMode) {
  const auto set = SetAcl(Full(7, 6, 4, 5, 1), 0104600);
  ASSERT_TRUE(set);
  EXPECT_EQ(set->mode, 0104751u);  // the bits above the permissions stay
  EXPECT_EQ(set->value, Full(7, 6, 4, 5, 1));
}

TEST(PosixAcl, WhatAModeSaysIsNotKept) {
  const auto set = SetAcl(Short(6, 4, 0), 0100777);
  ASSERT_TRUE(set);
  EXPECT_EQ(set->mode, 0100640u);
  EXPECT_EQ(set->value, "");
}

TEST(PosixAcl, ChmodChangesTheMaskAndNotTheGroup) {
  EXPECT_EQ(ChmodAcl(Full(7, 7, 7, 7, 7), 0640), Full(6, 7, 7, 4, 0));
  EXPECT_EQ(ChmodAcl(Short(7, 7, 7), 0640), Short(6, 4, 0));
}

TEST(PosixAcl, TheDefaultIsHandedOnAsFarAsTheCreatorAllows) {
  const auto file = InheritAcl(Full(7, 7, 5, 7, 5), 0100666);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->mode, 0100664u);
  EXPECT_EQ(file->value, Full(6, 7, 5, 6, 4));
  const auto plain = InheritAcl(Short(7, 5, 0), 0100666);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->mode, 0100640u);
  EXPECT_EQ(plain->value, "");
}

TEST(PosixAcl, WhatIsNoAclIsRefused) {
  EXPECT_FALSE(SetAcl("", 0644));
  EXPECT_FALSE(SetAcl(std::string(4, '\0'), 0644));
  EXPECT_FALSE(SetAcl(Short(7, 5, 0).substr(0, 13), 0644));
  EXPECT_FALSE(ChmodAcl(Acl({{ACL_USER_OBJ, 7, ~0u}}), 0644));
  EXPECT_FALSE(InheritAcl("abcdefgh", 0644));
}

}  // namespace
}  // namespace vrun::vfs
