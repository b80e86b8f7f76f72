// SPDX-License-Identifier: Apache-2.0
#include "home/scope/owners.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/files.h"
#include "base/id_map.h"
#include "base/unique_fd.h"

namespace vrun::home {
namespace {

// No path is deeper (PATH_MAX), and a directory that is moved while we climb must not keep us.
constexpr int kMostAbove = 2048;
constexpr uint32_t kUsualFirstPerson = 1000;

// include/uapi/linux/posix_acl_xattr.h, little endian
constexpr size_t kAclHeader = 4, kAclEntry = 8;
constexpr uint16_t kAclUser = 0x02, kAclGroupObject = 0x04, kAclGroup = 0x08, kAclMask = 0x10;

struct AclEntry {
  uint16_t tag;
  uint16_t perm;
  uint32_t id;
};

template <typename Each>
void ForEachAclEntry(std::string_view acl, Each each) {
  for (size_t at = kAclHeader; at + kAclEntry <= acl.size(); at += kAclEntry) {
    AclEntry entry;
    std::memcpy(&entry, acl.data() + at, sizeof entry);
    each(entry);
  }
}

// UID_MIN of login.defs. A larger one than usual is not believed: a job of root may write that file too.
uint32_t FirstPerson(const std::string& root) {
  const std::string text = ReadFile(root + "/etc/login.defs", 64u << 10).value_or("");
  constexpr std::string_view kKey = "UID_MIN";
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(kKey) || line.size() == kKey.size() ||
        (line[kKey.size()] != ' ' && line[kKey.size()] != '\t')) {
      continue;
    }
    const unsigned long id = std::strtoul(line.c_str() + kKey.size(), nullptr, 10);
    if (id > 0) return static_cast<uint32_t>(std::min<unsigned long>(id, kUsualFirstPerson));
  }
  return kUsualFirstPerson;
}

}  // namespace

Owners::Owners(const std::string& root) : first_person_(FirstPerson(root)) {
  if (::stat(root.c_str(), &root_) != 0) root_ = {};
}

bool Owners::IsPerson(uint32_t id) const { return id >= first_person_ && id != IdMap::kNobody; }

template <typename Found>
bool Owners::AnyAbove(int directory, Found found) const {
  UniqueFd at(::openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat before {};
  for (int i = 0; at && i < kMostAbove; ++i) {
    struct stat st;
    if (::fstat(at.get(), &st) != 0) return false;
    if (found(st)) return true;
    const auto is = [&](const struct stat& other) { return st.st_dev == other.st_dev && st.st_ino == other.st_ino; };
    if (is(root_) || (i > 0 && is(before))) return false;
    before = st;
    at = UniqueFd(::openat(at.get(), "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  return false;
}

bool Owners::Fits(uid_t uid, int directory) const {
  if (uid == ::geteuid()) return true;
  if (!IsPerson(uid)) {
    struct stat st;
    if (::fstat(directory, &st) == 0 && !IsPerson(st.st_uid)) return true;
  }
  return AnyAbove(directory, [uid](const struct stat& st) { return st.st_uid == uid; });
}

bool Owners::GroupFits(gid_t gid, uid_t owner, int directory) const {
  if (gid == ::getegid()) return true;
  struct stat st;
  if (!IsPerson(gid) && ::fstat(directory, &st) == 0 && !IsPerson(st.st_uid)) return true;
  return AnyAbove(directory, [&](const struct stat& above) {
    return above.st_gid == gid || (IsPerson(owner) && above.st_uid == owner);
  });
}

bool Owners::AclFits(std::string_view acl, int directory) const {
  bool fits = true;
  ForEachAclEntry(acl, [&](const AclEntry& entry) {
    if (entry.perm == 0) return;
    if (entry.tag == kAclUser) fits = fits && Fits(entry.id, directory);
    if (entry.tag == kAclGroup) fits = fits && GroupFits(entry.id, 0, directory);
  });
  return fits;
}

mode_t GroupBits(std::string_view acl, mode_t mode) {
  uint16_t group = (mode >> 3) & 7, mask = 7;
  ForEachAclEntry(acl, [&](const AclEntry& entry) {
    if (entry.tag == kAclGroupObject) group = entry.perm;
    if (entry.tag == kAclMask) mask = entry.perm;
  });
  return static_cast<mode_t>(group & mask & 7) << 3;
}

}  // namespace vrun::home
