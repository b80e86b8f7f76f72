// SPDX-License-Identifier: Apache-2.0
#include "sandbox/user_map.h"

#include <algorithm>

#include "base/files.h"

namespace vrun::sandbox {
namespace {
constexpr size_t kMaxLines = 340;  // UID_GID_MAP_MAX_EXTENTS
}

Result<std::string> IdMap(uint32_t uid_base, const std::vector<uint32_t>& ids) {
  // The last id, 2^32-1, means "none" to the kernel.
  constexpr uint64_t kEnd = UINT32_MAX;
  if (uint64_t{uid_base} + kMappedIds > kEnd) {
    return Error(Code::kInvalid, "uid base " + std::to_string(uid_base) + ": no room for 65536 ids above it");
  }
  std::string text = "0 " + std::to_string(uid_base) + " " + std::to_string(kMappedIds) + "\n";
  std::vector<uint32_t> high;
  for (uint32_t id : ids) {
    if (id >= kMappedIds) high.push_back(id);
  }
  std::sort(high.begin(), high.end());
  high.erase(std::unique(high.begin(), high.end()), high.end());
  if (high.size() + 1 > kMaxLines) {
    return Error(Code::kInvalid,
                 "the user is in " + std::to_string(high.size()) + " groups above 65535: Linux maps 339");
  }
  for (uint32_t id : high) {
    if (uint64_t{uid_base} + id >= kEnd) {
      return Error(Code::kInvalid, "uid or gid " + std::to_string(id) + " cannot be mapped above uid base " +
                                       std::to_string(uid_base) + ": it is too large");
    }
    text += std::to_string(id) + " " + std::to_string(uid_base + id) + " 1\n";
  }
  return text;
}

Status WriteUserMaps(pid_t pid, uint32_t uid_base, const Identity& identity) {
  VRUN_ASSIGN(std::string uids, IdMap(uid_base, {identity.uid}));
  std::vector<uint32_t> gids = identity.groups;
  gids.push_back(identity.gid);
  VRUN_ASSIGN(std::string gid_text, IdMap(uid_base, gids));
  std::string proc = "/proc/" + std::to_string(pid) + "/";
  VRUN_TRY(WriteKernelFile(proc + "uid_map", uids));
  return WriteKernelFile(proc + "gid_map", gid_text);
}

}  // namespace vrun::sandbox
