// SPDX-License-Identifier: Apache-2.0
// LiveRoot: changes of attributes, extended attributes and ACLs.
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "vfs/fuse/posix_acl.h"
#include "vfs/live/root/live_root.h"
#include "vfs/live/tree/node_attributes.h"

namespace vrun::vfs {
namespace {

// At most `size` bytes; size 0: answers with the length.
void AnswerSized(const std::string& data, uint32_t size, Reply reply) {
  if (size == 0) {
    reply.Struct(fuse_getxattr_out{static_cast<uint32_t>(data.size()), 0});
  } else if (data.size() > size) {
    reply.Error(ERANGE);
  } else {
    reply.Data(data);
  }
}

}  // namespace

void LiveRoot::SetAttr(const Request& request, const fuse_setattr_in& in, Reply reply) {
  publisher_.SeeCloses();
  publisher_.WithRoom(std::move(reply),
                      [this, request, in](Reply ready) { SetAttrNow(request, in, std::move(ready)); });
}

void LiveRoot::SetAttrNow(const Request& request, const fuse_setattr_in& in, Reply reply) {
  const bool kill = (in.valid & FATTR_KILL_SUIDGID) != 0;
  if ((in.valid & FATTR_SIZE) != 0) {
    if (const int error =
            writer_.Truncate(request.nodeid, in.size, kill ? &request : nullptr, (in.valid & FATTR_FH) != 0);
        error != 0) {
      reply.Error(error);
      return;
    }
    if ((in.valid & FATTR_FH) == 0) {  // truncate(2): no close will follow, so it is published below
      publisher_.WithContent(request.nodeid, std::move(reply),
                             [this, request, in](Reply whole) { SetAttrResized(request, in, std::move(whole)); });
      return;
    }
  }
  SetAttrResized(request, in, std::move(reply));
}

void LiveRoot::SetAttrResized(const Request& request, const fuse_setattr_in& in, Reply reply) {
  const bool kill = (in.valid & FATTR_KILL_SUIDGID) != 0;
  const timespec now = LiveNow();
  const auto time = [&](uint32_t which, uint32_t set_now, uint64_t seconds, uint32_t nanoseconds, timespec* out) {
    if ((in.valid & which) == 0) return false;
    *out = (in.valid & set_now) != 0 ? now : timespec{static_cast<time_t>(seconds), static_cast<long>(nanoseconds)};
    return true;
  };
  timespec atime{}, mtime{};
  const bool set_atime = time(FATTR_ATIME, FATTR_ATIME_NOW, in.atime, in.atimensec, &atime);
  const bool set_mtime = time(FATTR_MTIME, FATTR_MTIME_NOW, in.mtime, in.mtimensec, &mtime);
  std::shared_ptr<LiveFile> file;
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(request.nodeid);
    if (node == nullptr) {
      reply.Error(ESTALE);
      return;
    }
    if (const int error = tree_.ChangeLocked(); error != 0) {
      reply.Error(error);
      return;
    }
    LiveAttributes& a = node->attributes;
    if (kill || (in.valid & (FATTR_UID | FATTR_GID)) != 0) DropPrivileges(node, &request, tree_.ids());
    if ((in.valid & FATTR_UID) != 0) a.uid = in.uid;
    if ((in.valid & FATTR_GID) != 0) a.gid = in.gid;
    if ((in.valid & FATTR_MODE) != 0) SetMode(node, in.mode);
    if (set_atime) a.atime = atime;
    if (set_mtime) a.mtime = mtime;
    a.ctime = now;
    tree_.Changed(node);
    file = node->file;
    if (file && (set_atime || set_mtime)) {
      if (const int error = file->SetTimes(set_atime ? &atime : nullptr, set_mtime ? &mtime : nullptr); error != 0) {
        reply.Error(error);
        return;
      }
    }
    // With no-open this may be the truncation of an open, which is published at its close (otherwise by Tick).
    const bool by_name =
        (in.valid & FATTR_SIZE) != 0 && (in.valid & FATTR_FH) == 0 && node->writing != LiveNode::Writing::kTruncated;
    if (by_name && !node->names.empty()) (void)publisher_.PublishLocked(node);
    if ((in.valid & ~uint32_t{FATTR_SIZE | FATTR_FH | FATTR_LOCKOWNER | FATTR_KILL_SUIDGID}) != 0)
      teller_.TellMetaLocked(node);
  }
  AnswerAttr(request.nodeid, std::move(reply));
}

void LiveRoot::GetXattr(const Request& request, std::string_view name, uint32_t size, Reply reply) {
  std::string value;
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(request.nodeid);
    const std::string* found = node != nullptr ? FindXattr(node, name) : nullptr;
    if (found == nullptr) {
      reply.Error(ENODATA);
      return;
    }
    value = *found;
  }
  AnswerSized(value, size, std::move(reply));
}

void LiveRoot::ListXattr(const Request& request, uint32_t size, Reply reply) {
  std::string names;
  {
    const TreeLock lock(tree_);
    if (const LiveNode* node = tree_.Find(request.nodeid)) {
      for (const auto& [name, value] : node->xattrs) {
        names += name;
        names += '\0';
      }
    }
  }
  AnswerSized(names, size, std::move(reply));
}

void LiveRoot::SetXattr(const Request& request, std::string_view name, std::string_view value, uint32_t flags,
                        bool kill_sgid, Reply reply) {
  if (WasDone(request, &reply)) return;
  publisher_.SeeCloses();
  tree_.SeekRoom();
  int error = CheckXattrName(name);
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(request.nodeid);
    std::string* found = node != nullptr ? FindXattr(node, name) : nullptr;
    if (node == nullptr) error = ESTALE;
    if (error == 0 && found != nullptr && (flags & XATTR_CREATE) != 0) error = EEXIST;
    if (error == 0 && found == nullptr && (flags & XATTR_REPLACE) != 0) error = ENODATA;
    if (error == 0) error = tree_.ChangeLocked(value.size() * 2);
    std::string kept(value);
    if (error == 0 && name == kAccessAcl) {
      if (auto acl = SetAcl(value, node->attributes.mode)) {
        node->attributes.mode = kill_sgid ? acl->mode & ~uint32_t{S_ISGID} : acl->mode;
        kept = std::move(acl->value);
      } else {
        error = EINVAL;
      }
    }
    if (error == 0) {
      if (kept.empty() && name == kAccessAcl) {
        EraseXattr(node, name);
      } else if (found != nullptr) {
        *found = std::move(kept);
      } else {
        node->xattrs.emplace_back(name, std::move(kept));
      }
      node->attributes.ctime = LiveNow();
      tree_.Changed(node);
      teller_.TellMetaLocked(node);
      DidLocked(request, 0);
    }
  }
  reply.Error(error);
}

void LiveRoot::RemoveXattr(const Request& request, std::string_view name, Reply reply) {
  if (WasDone(request, &reply)) return;
  publisher_.SeeCloses();
  tree_.SeekRoom();
  int error = ENODATA;
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(request.nodeid);
    const int refused = tree_.ChangeLocked();
    if (refused != 0) {
      error = refused;
    } else if (node != nullptr && EraseXattr(node, name)) {
      node->attributes.ctime = LiveNow();
      tree_.Changed(node);
      teller_.TellMetaLocked(node);
      DidLocked(request, 0);
      error = 0;
    } else if (name == kAccessAcl || name == kDefaultAcl) {
      error = node != nullptr ? 0 : ESTALE;  // removing a missing ACL succeeds
    }
  }
  reply.Error(error);
}

}  // namespace vrun::vfs
