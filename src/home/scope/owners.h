// SPDX-License-Identifier: Apache-2.0
// Whose files a job of root may leave at home. Root may give files to anybody; a node that was taken over must not be
// able to plant a file that another person then owns, in a place that is not his: he could change it, and somebody who
// trusts the place would use it. docs/decisions/0060.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace vrun::home {

// Immutable; any thread.
class Owners {
 public:
  // Reads /etc/login.defs of the root.
  explicit Owners(const std::string& root);

  // Whether a file in the open directory may belong to this user. Yes for this process's own; for whoever owns a
  // directory above it, because he can replace everything in there anyway; and for a system user (_apt, www-data) where
  // the directory is not a person's.
  bool Fits(uid_t uid, int directory) const;
  // The same for a group. A file of `owner`, a person in his own directory, may have any.
  bool GroupFits(gid_t gid, uid_t owner, int directory) const;

  // Whether an ACL (the value of system.posix_acl_*) names nobody whom such a file could not belong to.
  bool AclFits(std::string_view acl, int directory) const;

 private:
  bool IsPerson(uint32_t id) const;
  // Calls found(st) for the open directory and all above it, up to the root. True as soon as it does.
  template <typename Found>
  bool AnyAbove(int directory, Found found) const;

  struct stat root_ {};
  uint32_t first_person_ = 1000;
};

// The permissions that the owning group really has under an ACL, as bits of a mode (0070).
mode_t GroupBits(std::string_view acl, mode_t mode);

}  // namespace vrun::home
