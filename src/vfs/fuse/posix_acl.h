// SPDX-License-Identifier: Apache-2.0
// The duties of a file system that negotiates FUSE_POSIX_ACL: keep a file's ACL and mode consistent, and apply a
// directory's default ACL to what is created in it. (The kernel checks permissions with the ACLs.) acl(5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vrun::vfs {

inline constexpr std::string_view kAccessAcl = "system.posix_acl_access";
inline constexpr std::string_view kDefaultAcl = "system.posix_acl_default";

// Values have the format of the extended attributes. All functions return nullopt if the value is not an ACL.

struct AclMode {
  uint32_t mode;      // permission bits from the ACL, other bits unchanged
  std::string value;  // the access ACL to store; empty: the mode expresses all of it
};
// Sets an access ACL on a file with `mode`.
std::optional<AclMode> SetAcl(std::string_view acl, uint32_t mode);

// The access ACL `acl` after a chmod to `mode`.
std::optional<std::string> ChmodAcl(std::string_view acl, uint32_t mode);

// Mode and access ACL of something created with `mode` (not masked by the umask) in a directory whose default ACL is
// `acl`.
std::optional<AclMode> InheritAcl(std::string_view acl, uint32_t mode);

}  // namespace vrun::vfs
