// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/posix_acl.h"

#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>

#include <cstring>
#include <vector>

namespace vrun::vfs {
namespace {

struct Acl {
  std::vector<posix_acl_xattr_entry> entries;

  posix_acl_xattr_entry* Find(uint16_t tag) {
    for (auto& entry : entries) {
      if (entry.e_tag == tag) return &entry;
    }
    return nullptr;
  }
  // The group bits of the mode hold the mask if there is one.
  posix_acl_xattr_entry* Group() {
    auto* mask = Find(ACL_MASK);
    return mask != nullptr ? mask : Find(ACL_GROUP_OBJ);
  }
  // The mode can express the whole ACL.
  bool IsMode() const { return entries.size() == 3; }
};

std::optional<Acl> Parse(std::string_view value) {
  posix_acl_xattr_header header;
  if (value.size() < sizeof header || (value.size() - sizeof header) % sizeof(posix_acl_xattr_entry) != 0) {
    return std::nullopt;
  }
  std::memcpy(&header, value.data(), sizeof header);
  if (header.a_version != POSIX_ACL_XATTR_VERSION) return std::nullopt;
  Acl acl;
  acl.entries.resize((value.size() - sizeof header) / sizeof(posix_acl_xattr_entry));
  if (!acl.entries.empty()) std::memcpy(acl.entries.data(), value.data() + sizeof header, value.size() - sizeof header);
  if (acl.Find(ACL_USER_OBJ) == nullptr || acl.Group() == nullptr || acl.Find(ACL_OTHER) == nullptr) {
    return std::nullopt;
  }
  return acl;
}

std::string Encode(const Acl& acl) {
  posix_acl_xattr_header header{};
  header.a_version = POSIX_ACL_XATTR_VERSION;
  std::string value(reinterpret_cast<const char*>(&header), sizeof header);
  value.append(reinterpret_cast<const char*>(acl.entries.data()), acl.entries.size() * sizeof(posix_acl_xattr_entry));
  return value;
}

uint32_t Bits(const posix_acl_xattr_entry& entry) { return entry.e_perm & 7u; }

}  // namespace

std::optional<AclMode> SetAcl(std::string_view value, uint32_t mode) {
  auto acl = Parse(value);
  if (!acl) return std::nullopt;
  AclMode result;
  result.mode =
      (mode & ~0777u) | Bits(*acl->Find(ACL_USER_OBJ)) << 6 | Bits(*acl->Group()) << 3 | Bits(*acl->Find(ACL_OTHER));
  if (!acl->IsMode()) result.value = value;
  return result;
}

std::optional<std::string> ChmodAcl(std::string_view value, uint32_t mode) {
  auto acl = Parse(value);
  if (!acl) return std::nullopt;
  acl->Find(ACL_USER_OBJ)->e_perm = static_cast<uint16_t>(mode >> 6 & 7);
  acl->Group()->e_perm = static_cast<uint16_t>(mode >> 3 & 7);
  acl->Find(ACL_OTHER)->e_perm = static_cast<uint16_t>(mode & 7);
  return Encode(*acl);
}

std::optional<AclMode> InheritAcl(std::string_view value, uint32_t mode) {
  auto acl = Parse(value);
  if (!acl) return std::nullopt;
  // Each of the three classes gets what both the default ACL and the creator allow.
  const auto both = [](posix_acl_xattr_entry* entry, uint32_t bits) {
    entry->e_perm = static_cast<uint16_t>(entry->e_perm & bits);
    return Bits(*entry);
  };
  AclMode result;
  result.mode = (mode & ~0777u) | both(acl->Find(ACL_USER_OBJ), mode >> 6 & 7) << 6 |
                both(acl->Group(), mode >> 3 & 7) << 3 | both(acl->Find(ACL_OTHER), mode & 7);
  if (!acl->IsMode()) result.value = Encode(*acl);
  return result;
}

}  // namespace vrun::vfs
