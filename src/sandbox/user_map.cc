// SPDX-License-Identifier: Apache-2.0
#include "sandbox/user_map.h"

#include <algorithm>
#include <vector>

#include "base/files.h"

namespace vrun::sandbox {

Result<std::string> IdMapText(const IdMap& ids) {
  // The last id, 2^32-1, means "none" to the kernel.
  if (uint64_t{ids.base()} + IdMap::kIds > UINT32_MAX) {
    return Error(Code::kInvalid, "uid base " + std::to_string(ids.base()) + ": no room for 65536 ids above it");
  }
  std::string text = "0 " + std::to_string(ids.base()) + " " + std::to_string(IdMap::kIds) + "\n";
  for (const uint32_t id : ids.high()) {
    text += std::to_string(id) + " " + std::to_string(ids.ToNode(id)) + " 1\n";
  }
  return text;
}

std::string InnerIdMapText(const IdMap& ids) {
  std::string text = "0 0 " + std::to_string(IdMap::kIds) + "\n";
  for (const uint32_t id : ids.high()) text += std::to_string(id) + " " + std::to_string(id) + " 1\n";
  return text;
}

Status CheckMapped(const IdMap& ids, const Identity& identity) {
  std::vector<uint32_t> all = identity.groups;
  all.insert(all.end(), {identity.uid, identity.gid});
  const std::vector<uint32_t> high = ids.high();
  for (const uint32_t id : all) {
    if (id >= IdMap::kIds && std::ranges::find(high, id) == high.end()) {
      return Error(Code::kInvalid, "uid or gid " + std::to_string(id) + " of the user has no id on this node");
    }
  }
  return {};
}

Status WriteUserMaps(pid_t pid, const IdMap& ids, const Identity& identity) {
  VRUN_TRY(CheckMapped(ids, identity));
  VRUN_ASSIGN(const std::string text, IdMapText(ids));
  const std::string proc = "/proc/" + std::to_string(pid) + "/";
  VRUN_TRY(WriteKernelFile(proc + "uid_map", text));
  return WriteKernelFile(proc + "gid_map", text);
}

}  // namespace vrun::sandbox
