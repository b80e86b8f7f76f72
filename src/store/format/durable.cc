// SPDX-License-Identifier: Apache-2.0
#include "store/format/durable.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <set>

#include "base/files.h"

namespace vrun::store {
namespace {

constexpr size_t kFew = 256;

Status SyncOne(const std::string& path, bool may_be_absent = false) {
  const auto fd = OpenFile(path, O_RDONLY);
  if (!fd) return may_be_absent && fd.error().error_number() == ENOENT ? Status() : Status(fd.error());
  return ::fsync(fd->get()) == 0 ? Status() : Status(ErrnoError("sync " + path));
}

Status SyncBlobs(const std::string& directory) {
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return ErrnoError("list " + directory);
  Status synced;
  while (const dirent* entry = ::readdir(dir)) {
    if (synced && std::string_view(entry->d_name).ends_with(".pack")) synced = SyncOne(directory + "/" + entry->d_name);
  }
  ::closedir(dir);
  VRUN_TRY(synced);
  return SyncOne(directory);
}

}  // namespace

Status MakeAllDurable(const std::string& directory) {
  VRUN_ASSIGN(const UniqueFd fd, OpenFile(directory, O_RDONLY | O_DIRECTORY));
  return ::syncfs(fd.get()) == 0 ? Status() : Status(ErrnoError("sync " + directory));
}

Status MakeDurable(const std::string& directory, const std::vector<ObjectId>& objects) {
  if (objects.size() > kFew) return MakeAllDurable(directory);
  std::set<std::string> shards;
  for (const ObjectId& id : objects) {
    const std::string hex = id.digest.Hex();
    const std::string shard = directory + "/objects/" + hex.substr(0, 2);
    const std::string content = shard + "/" + hex + "." + static_cast<char>('0' + static_cast<int>(id.algorithm));
    VRUN_TRY(SyncOne(content));
    VRUN_TRY(SyncOne(content + ".map", true));  // a file of one unit has none
    shards.insert(shard);
  }
  for (const std::string& shard : shards) VRUN_TRY(SyncOne(shard));
  return SyncBlobs(directory + "/blobs");
}

}  // namespace vrun::store
