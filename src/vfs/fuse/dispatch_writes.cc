// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "vfs/fuse/write_operations.h"

namespace vrun::vfs {
namespace {

// Returns whether the name is usable; otherwise answers with an error. The kernel never sends slashes.
bool Usable(const std::optional<std::string_view>& name, Reply* reply, Dispatched* result) {
  if (!name || name->find('/') != std::string_view::npos) {
    *result = Dispatched::kMalformed;
    return false;
  }
  if (name->size() > 255) {
    reply->Error(ENAMETOOLONG);
    *result = Dispatched::kDone;
    return false;
  }
  return true;
}

Dispatched Make(WriteOperations& operations, uint32_t opcode, const Request& request, Decoder in, Reply* reply) {
  WriteOperations::NewName made;
  if (opcode == FUSE_MKNOD) {
    const auto mknod = in.Take<fuse_mknod_in>();
    if (!mknod) return Dispatched::kMalformed;
    made.mode = mknod->mode;
    made.umask = mknod->umask;
    made.rdev = mknod->rdev;
  } else if (opcode == FUSE_MKDIR) {
    const auto mkdir = in.Take<fuse_mkdir_in>();
    if (!mkdir) return Dispatched::kMalformed;
    made.mode = S_IFDIR | (mkdir->mode & 07777);
    made.umask = mkdir->umask;
  }
  const auto name = in.TakeName();
  Dispatched result = Dispatched::kDone;
  if (!Usable(name, reply, &result)) return result;
  made.name = *name;
  if (opcode == FUSE_SYMLINK) {
    const auto target = in.TakeName();
    if (!target) return Dispatched::kMalformed;
    made.mode = S_IFLNK | 0777;
    made.target = *target;
  }
  operations.Make(request, made, std::move(*reply));
  return Dispatched::kDone;
}

Dispatched Create(WriteOperations& operations, uint32_t opcode, Request request, Decoder in, Reply* reply) {
  const auto create = in.Take<fuse_create_in>();
  if (!create) return Dispatched::kMalformed;
  WriteOperations::NewName made;
  made.mode = S_IFREG | (create->mode & 07777);
  made.umask = create->umask;
  request.kill_privileges = (create->open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
  if (opcode == FUSE_CREATE) {  // the name in a TMPFILE request has no meaning
    const auto name = in.TakeName();
    Dispatched result = Dispatched::kDone;
    if (!Usable(name, reply, &result)) return result;
    made.name = *name;
  }
  operations.Create(request, made, create->flags, std::move(*reply));
  return Dispatched::kDone;
}

Dispatched Rename(WriteOperations& operations, uint32_t opcode, const Request& request, Decoder in, Reply* reply) {
  uint64_t to_parent = 0;
  uint32_t flags = 0;
  if (opcode == FUSE_RENAME2) {
    const auto rename = in.Take<fuse_rename2_in>();
    if (!rename) return Dispatched::kMalformed;
    to_parent = rename->newdir;
    flags = rename->flags;
  } else {
    const auto rename = in.Take<fuse_rename_in>();
    if (!rename) return Dispatched::kMalformed;
    to_parent = rename->newdir;
  }
  Dispatched result = Dispatched::kDone;
  const auto name = in.TakeName();
  if (!Usable(name, reply, &result)) return result;
  const auto to_name = in.TakeName();
  if (!Usable(to_name, reply, &result)) return result;
  operations.Rename(request, *name, to_parent, *to_name, flags, std::move(*reply));
  return Dispatched::kDone;
}

Dispatched SetXattr(WriteOperations& operations, uint64_t init_flags, const Request& request, Decoder in,
                    Reply* reply) {
  fuse_setxattr_in set{};
  if ((init_flags & FUSE_SETXATTR_EXT) != 0) {
    const auto whole = in.Take<fuse_setxattr_in>();
    if (!whole) return Dispatched::kMalformed;
    set = *whole;
  } else {
    const auto size = in.Take<uint32_t>();
    const auto flags = in.Take<uint32_t>();
    if (!size || !flags) return Dispatched::kMalformed;
    set.size = *size;
    set.flags = *flags;
  }
  const auto name = in.TakeName();
  if (!name || in.rest.size() < set.size) return Dispatched::kMalformed;
  operations.SetXattr(request, *name, in.rest.substr(0, set.size), set.flags,
                      (set.setxattr_flags & FUSE_SETXATTR_ACL_KILL_SGID) != 0, std::move(*reply));
  return Dispatched::kDone;
}

Dispatched OnName(WriteOperations& operations, uint32_t opcode, const Request& request, Decoder in, Reply* reply) {
  uint64_t source = 0;
  if (opcode == FUSE_LINK) {
    const auto link = in.Take<fuse_link_in>();
    if (!link) return Dispatched::kMalformed;
    source = link->oldnodeid;
  }
  Dispatched result = Dispatched::kDone;
  const auto name = in.TakeName();
  if (opcode == FUSE_REMOVEXATTR) {
    if (!name) return Dispatched::kMalformed;
    operations.RemoveXattr(request, *name, std::move(*reply));
    return result;
  }
  if (!Usable(name, reply, &result)) return result;
  if (opcode == FUSE_LINK) {
    operations.Link(request, source, *name, std::move(*reply));
  } else {
    operations.Remove(request, *name, opcode == FUSE_RMDIR, std::move(*reply));
  }
  return result;
}

Dispatched OnFile(WriteOperations& operations, uint32_t opcode, const Request& request, Decoder in, Reply* reply) {
  switch (opcode) {
    case FUSE_WRITE: {
      const auto write = in.Take<fuse_write_in>();
      if (!write || in.rest.size() < write->size) return Dispatched::kMalformed;
      operations.Write(request, *write, in.rest.substr(0, write->size), std::move(*reply));
      return Dispatched::kDone;
    }
    case FUSE_SETATTR: {
      const auto set = in.Take<fuse_setattr_in>();
      if (!set) return Dispatched::kMalformed;
      operations.SetAttr(request, *set, std::move(*reply));
      return Dispatched::kDone;
    }
    case FUSE_FALLOCATE: {
      const auto allocate = in.Take<fuse_fallocate_in>();
      if (!allocate) return Dispatched::kMalformed;
      operations.Allocate(request, *allocate, std::move(*reply));
      return Dispatched::kDone;
    }
    case FUSE_COPY_FILE_RANGE: {
      const auto copy = in.Take<fuse_copy_file_range_in>();
      if (!copy) return Dispatched::kMalformed;
      operations.CopyRange(request, *copy, std::move(*reply));
      return Dispatched::kDone;
    }
    case FUSE_FLUSH: operations.Flush(request, std::move(*reply)); return Dispatched::kDone;
    default: {
      const auto sync = in.Take<fuse_fsync_in>();
      if (!sync) return Dispatched::kMalformed;
      operations.Sync(request, (sync->fsync_flags & FUSE_FSYNC_FDATASYNC) != 0, std::move(*reply));
      return Dispatched::kDone;
    }
  }
}

}  // namespace

Dispatched DispatchWrite(WriteOperations& operations, uint64_t init_flags, uint32_t opcode, const Request& request,
                         Decoder in, Reply* reply) {
  switch (opcode) {
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_SYMLINK: return Make(operations, opcode, request, in, reply);
    case FUSE_CREATE:
    case FUSE_TMPFILE: return Create(operations, opcode, request, in, reply);
    case FUSE_RENAME:
    case FUSE_RENAME2: return Rename(operations, opcode, request, in, reply);
    case FUSE_LINK:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_REMOVEXATTR: return OnName(operations, opcode, request, in, reply);
    case FUSE_SETXATTR: return SetXattr(operations, init_flags, request, in, reply);
    case FUSE_WRITE:
    case FUSE_SETATTR:
    case FUSE_FALLOCATE:
    case FUSE_COPY_FILE_RANGE:
    case FUSE_FLUSH:
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR: return OnFile(operations, opcode, request, in, reply);
    default: return Dispatched::kUnknown;
  }
}

}  // namespace vrun::vfs
