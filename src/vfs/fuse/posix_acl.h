// SPDX-License-Identifier: Apache-2.0
// What a file system that takes FUSE_POSIX_ACL has to do with ACLs itself: keep them and the mode of a file in step,
// and hand a directory's default on to what is made in it. (The kernel checks permissions by them.) acl(5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vrun::vfs {

inline constexpr std::string_view kAccessAcl = "system.posix_acl_access";
inline constexpr std::string_view kDefaultAcl = "system.posix_acl_default";

// Values are in the form of the extended attributes. All functions say nullopt to what is no ACL.

struct AclMode {
  uint32_t mode;      // permission bits as the ACL gives them, the others as they were
  std::string value;  // of the access ACL that is left to be kept; empty: the mode says it all
};
// An access ACL is set on a file of `mode`.
std::optional<AclMode> SetAcl(std::string_view acl, uint32_t mode);

// The access ACL `acl` after a chmod to `mode`.
std::optional<std::string> ChmodAcl(std::string_view acl, uint32_t mode);

// Something is made with `mode` (not masked by the umask) in a directory whose default ACL is `acl`: its mode, and its
// access ACL.
std::optional<AclMode> InheritAcl(std::string_view acl, uint32_t mode);

}  // namespace vrun::vfs
