// SPDX-License-Identifier: Apache-2.0
// LiveRoot: creates, links, removes and renames.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "vfs/fuse/posix_acl.h"
#include "vfs/live/root/live_root.h"
#include "vfs/live/tree/node_attributes.h"

namespace vrun::vfs {
namespace {

// A NewName that remains valid after its packet is gone.
struct KeptName {
  explicit KeptName(const WriteOperations::NewName& made) : of(made), name(made.name), target(made.target) {
    of.name = name;
    of.target = target;
  }
  KeptName(const KeptName& other) : KeptName(other.of) {}
  KeptName& operator=(const KeptName&) = delete;
  WriteOperations::NewName of;
  std::string name;
  std::string target;
};

struct CreateOut {
  fuse_entry_out entry;
  OpenOut open;
};

}  // namespace

int LiveRoot::MakeNodeLocked(const Request& request, LiveNode* parent, const NewName& made,
                             std::shared_ptr<LiveFile> file, LiveNode** out, bool claimed) {
  if (parent->attributes.nlink == 0) return ENOENT;  // removed while it was a working directory
  if (const int error = tree_.ChangeLocked(); error != 0) return error;
  LiveAttributes a;
  a.mode = made.mode;
  a.uid = request.uid;
  a.gid = request.gid;
  a.rdev = made.rdev;
  a.size = made.target.size();
  a.atime = a.mtime = a.ctime = LiveNow();
  if ((parent->attributes.mode & S_ISGID) != 0) {
    a.gid = parent->attributes.gid;
    if (S_ISDIR(a.mode)) a.mode |= S_ISGID;
  }
  std::optional<AclMode> inherited;
  const std::string* from = FindXattr(parent, kDefaultAcl);
  if (from != nullptr && !S_ISLNK(a.mode)) inherited = InheritAcl(*from, a.mode);
  if (inherited) {
    a.mode = inherited->mode;
  } else if (!S_ISLNK(a.mode)) {
    a.mode &= ~(made.umask & 0777);
  }
  if (S_ISDIR(a.mode)) {
    a.size = 4096;
    a.blocks = 8;
  }
  LiveNode* node = tree_.New(a);
  tree_.Changed(node);
  node->target = made.target;
  node->file = std::move(file);
  if (claimed) node->SetNamedAtHome();  // home is told when it is removed
  if (inherited) {
    if (!inherited->value.empty()) node->xattrs.emplace_back(kAccessAcl, inherited->value);
    if (S_ISDIR(a.mode)) node->xattrs.emplace_back(kDefaultAcl, *from);
  }
  if (!made.name.empty()) {
    if (const int error = tree_.Add(parent, made.name, node, a.ctime); error != 0) {
      tree_.Drop(node);
      return error;
    }
    teller_.TellMadeLocked(node);
  }
  *out = node;
  return 0;
}

void LiveRoot::Make(const Request& request, const NewName& made, Reply reply) {
  if (WasDone(request, &reply)) return;
  publisher_.SeeCloses();
  publisher_.WithRoom(std::move(reply), [this, request, kept = KeptName(made)](Reply ready) {
    directories_.With(request.nodeid, std::move(ready), [this, request, kept](Reply loaded) {
      Exclusively(request, kept.of, 0, std::move(loaded), [this, request, kept](Reply whole, bool claimed) {
        MakeLoaded(request, kept.of, std::move(whole), claimed);
      });
    });
  });
}

void LiveRoot::MakeLoaded(const Request& request, const NewName& made, Reply reply, bool claimed) {
  std::shared_ptr<LiveFile> file;
  if (S_ISREG(made.mode)) {
    auto created = LiveFile::Create(files_);
    if (!created) {
      reply.Error(ErrnoOfFile(created.error()));
      return;
    }
    file = *std::move(created);
  }
  fuse_entry_out out{};
  {
    const TreeLock lock(tree_);
    LiveNode* parent = directories_.FindLocked(request.nodeid);
    LiveNode* node = claimed ? TakeClaimedLocked(request, parent, made.name, made.mode) : nullptr;
    int error = parent != nullptr ? 0 : ESTALE;
    if (error == 0 && node == nullptr) error = MakeNodeLocked(request, parent, made, std::move(file), &node, claimed);
    if (error != 0) {
      reply.Error(error);
      return;
    }
    if (node->file) (void)publisher_.PublishLocked(node);
    DidLocked(request, node->nodeid);
    out = CountedEntryLocked(node);
  }
  if (reply.Struct(out)) return;
  Forget(out.nodeid, 1);
  if (claimed) Unclaim(request.nodeid, std::string(made.name), S_ISDIR(made.mode));
}

void LiveRoot::Create(const Request& request, const NewName& made, uint32_t flags, Reply reply) {
  if (const auto nodeid = WasDone(request, nullptr)) {
    if (*nodeid == DoneRequests::kExists) {
      reply.Error(EEXIST);
    } else {
      AnswerCreated(*nodeid, std::move(reply));
    }
    return;
  }
  if (made.name.empty() && !options_.nameless_files) {
    reply.Error(ENOSYS);
    return;
  }
  publisher_.WithRoom(std::move(reply), [this, request, flags, kept = KeptName(made)](Reply ready) {
    // A file without a name needs no loaded directory. It is the first file created in a view (CloseWatch), while the
    // names of the whole tree are still being fetched.
    if (kept.of.name.empty()) return CreateLoaded(request, kept.of, flags, std::move(ready), false);
    directories_.With(request.nodeid, std::move(ready), [this, request, flags, kept](Reply loaded) {
      if ((flags & O_EXCL) == 0) return CreateLoaded(request, kept.of, flags, std::move(loaded), false);
      Exclusively(request, kept.of, 0, std::move(loaded), [this, request, flags, kept](Reply whole, bool claimed) {
        CreateLoaded(request, kept.of, flags, std::move(whole), claimed);
      });
    });
  });
}

void LiveRoot::CreateLoaded(const Request& request, const NewName& made, uint32_t flags, Reply reply, bool claimed) {
  const bool write = (flags & O_ACCMODE) != O_RDONLY;
  auto created = LiveFile::Create(files_);
  if (!created) {
    reply.Error(ErrnoOfFile(created.error()));
    return;
  }
  uint64_t nodeid = 0;
  bool dirty = false;
  {
    const TreeLock lock(tree_);
    LiveNode* parent = made.name.empty() ? tree_.Find(request.nodeid) : directories_.FindLocked(request.nodeid);
    LiveNode* node = claimed ? TakeClaimedLocked(request, parent, made.name, made.mode) : nullptr;
    const bool ours = node == nullptr;
    int error = parent != nullptr ? 0 : ESTALE;
    if (error == 0 && ours) error = MakeNodeLocked(request, parent, made, *created, &node, claimed);
    if (error != 0) {
      // Somebody else has made it since the kernel looked. Without O_EXCL it is to be opened: the kernel looks again.
      reply.Error(error == EEXIST && (flags & O_EXCL) == 0 ? ESTALE : error);
      return;
    }
    ++node->lookups;  // at once: without a name and lookups the node would be dropped
    nodeid = node->nodeid;
    if (ours) node->made_to_append = write && (flags & O_APPEND) != 0 && (flags & O_EXCL) == 0 && !made.name.empty();
    if (ours && notices_.no_open() && write) node->writers = 1;
    if (ours && notices_.no_open() && !write) (void)publisher_.PublishLocked(node);  // no close will be reported
    if (!ours) node->seen = LiveNode::Seen::kOpened;
    DidLocked(request, nodeid);
    dirty = ours && (!notices_.no_open() || write);
  }
  if (dirty) publisher_.NoteDirty(nodeid);
  if (!AnswerCreated(nodeid, std::move(reply)) && claimed) Unclaim(request.nodeid, std::string(made.name), false);
}

bool LiveRoot::AnswerCreated(uint64_t nodeid, Reply reply) {
  CreateOut out{};
  // Open before telling the kernel the attributes, because their lifetime depends on it.
  out.open = notices_.no_open() ? OpenOut{0, kOpenKeepCache, 0} : opens_.OpenNow(nodeid, true);
  {
    const TreeLock lock(tree_);
    if (const LiveNode* node = tree_.Find(nodeid)) out.entry = EntryOutLocked(*node);
  }
  if (reply.Struct(out)) return true;
  if (notices_.no_open()) {
    publisher_.Closed(nodeid);
  } else {
    opens_.Close(nodeid, out.open.fh);
  }
  Forget(nodeid, 1);
  return false;
}

void LiveRoot::Link(const Request& request, uint64_t source, std::string_view name, Reply reply) {
  if (WasDone(request, &reply)) return;
  publisher_.SeeCloses();
  publisher_.WithRoom(std::move(reply), [this, request, source, name = std::string(name)](Reply ready) {
    directories_.With(request.nodeid, std::move(ready), [this, request, source, name](Reply loaded) {
      publisher_.WithContent(source, std::move(loaded), [this, request, source, name](Reply whole) {
        NewName made{};
        made.name = name;
        Exclusively(request, made, source, std::move(whole), [this, request, source, name](Reply answer, bool claimed) {
          LinkLoaded(request, source, name, std::move(answer), claimed);
        });
      });
    });
  });
}

void LiveRoot::LinkLoaded(const Request& request, uint64_t source, const std::string& name, Reply loaded,
                          bool claimed) {
  fuse_entry_out out{};
  {
    const TreeLock lock(tree_);
    LiveNode* parent = directories_.FindLocked(request.nodeid);
    LiveNode* node = tree_.Find(source);
    int error = parent == nullptr || node == nullptr ? ESTALE : 0;
    if (error == 0 && node->is_directory()) error = EPERM;
    LiveNode* const there =
        claimed && error == 0 ? TakeClaimedLocked(request, parent, name, node->attributes.mode) : nullptr;
    if (error == 0 && parent->attributes.nlink == 0) error = ENOENT;
    if (error == 0 && there == nullptr && tree_.Child(parent, name) != nullptr) error = EEXIST;
    if (error == 0) error = tree_.ChangeLocked();
    // Publish the current content under the existing name before adding another.
    std::string existing;
    if (error == 0 && there == nullptr && !node->names.empty()) {
      error = publisher_.PublishLocked(node);
      existing = tree_.PathOf(*node);
    }
    if (error == 0 && there == nullptr) error = tree_.Add(parent, name, node, LiveNow());
    if (error != 0) {
      loaded.Error(error);
      return;
    }
    if (there != nullptr) {
      node = there;  // home's link, seen in its tree
    } else if (existing.empty()) {
      (void)publisher_.PublishLocked(node);  // the first name of a file without names (O_TMPFILE)
    } else if (node->named_at_home()) {
      teller_.TellLocked(Kind::kLink, node, tree_.PathOf(*parent, name), existing);
    }
    DidLocked(request, node->nodeid);
    out = CountedEntryLocked(node);
  }
  if (loaded.Struct(out)) return;
  Forget(out.nodeid, 1);
  if (claimed) Unclaim(request.nodeid, name, false);
}

void LiveRoot::Remove(const Request& request, std::string_view name, bool directory, Reply reply) {
  if (WasDone(request, &reply)) return;
  publisher_.SeeCloses();
  tree_.SeekRoom();
  const std::string kept(name);
  directories_.WithChild(request.nodeid, kept, std::move(reply), [this, request, kept, directory](Reply loaded) {
    int error = ESTALE;
    {
      const TreeLock lock(tree_);
      if (LiveNode* parent = directories_.FindLocked(request.nodeid)) error = RemoveLocked(parent, kept, directory);
      if (error == 0) DidLocked(request, 0);
    }
    loaded.Error(error);
  });
}

uint64_t LiveRoot::ChildId(uint64_t directory, const std::string& name) {
  const TreeLock lock(tree_);
  LiveNode* parent = directories_.FindLocked(directory);
  const LiveNode* child = parent != nullptr ? tree_.Child(parent, name) : nullptr;
  return child != nullptr ? child->nodeid : 0;
}

int LiveRoot::RemoveLocked(LiveNode* parent, const std::string& name, bool directory) {
  LiveNode* node = tree_.Child(parent, name);
  if (node == nullptr) return ENOENT;
  if (const int error = tree_.ChangeLocked(); error != 0) return error;
  const std::string path = tree_.PathOf(*parent, name);
  const bool known = node->named_at_home(), is_directory = node->is_directory();
  const uint64_t nodeid = node->nodeid;
  const auto removed = removed_.LosesContentLocked(node);
  if (const int error = tree_.Remove(parent, name, directory, LiveNow()); error != 0) return error;
  node = tree_.Find(nodeid);  // may be gone
  if (known) {
    teller_.TellRemovedLocked(nodeid, path, !is_directory && (node == nullptr || node->attributes.nlink == 0));
    removed_.HoldLocked(removed);
  } else {
    tree_.NothingToTellLocked();
  }
  return 0;
}

void LiveRoot::Rename(const Request& request, std::string_view name, uint64_t to_parent, std::string_view to_name,
                      uint32_t flags, Reply reply) {
  if ((flags & ~uint32_t{RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT}) != 0) {
    reply.Error(EINVAL);
    return;
  }
  if (WasDone(request, &reply)) return;
  publisher_.SeeCloses();
  publisher_.WithRoom(std::move(reply), [this, request, name = std::string(name), to_parent,
                                         to_name = std::string(to_name), flags](Reply ready) {
    directories_.With(request.nodeid, std::move(ready), [this, request, name, to_parent, to_name, flags](Reply loaded) {
      directories_.WithChild(
          to_parent, to_name, std::move(loaded), [this, request, name, to_parent, to_name, flags](Reply both) {
            publisher_.WithContent(ChildId(request.nodeid, name), std::move(both),
                                   [this, request, name, to_parent, to_name, flags](Reply whole) {
                                     RenameLoaded(request, name, to_parent, to_name, flags, std::move(whole));
                                   });
          });
    });
  });
}

int LiveRoot::RenameLocked(LiveNode* from, const std::string& name, LiveNode* to, const std::string& to_name,
                           uint32_t flags) {
  LiveNode* node = tree_.Child(from, name);
  LiveNode* there = tree_.Child(to, to_name);
  const bool exchange = (flags & RENAME_EXCHANGE) != 0;
  const std::string old_path = tree_.PathOf(*from, name), path = tree_.PathOf(*to, to_name);
  if (const int error = tree_.ChangeLocked(); error != 0) return error;
  // Publish content before the name that refers to it. (If the rename then fails, it was published early, which is
  // harmless.)
  if (node != nullptr && node != there) {
    if (const int error = publisher_.PublishLocked(node); error != 0) return error;
    const int error = exchange && there != nullptr ? publisher_.PublishLocked(there) : 0;
    if (error != 0) return error;
  }
  const bool known = node != nullptr && node->named_at_home();
  const bool there_known = there != nullptr && there->named_at_home();
  const uint64_t there_id = there != nullptr ? there->nodeid : 0;
  const auto removed = exchange || node == there ? std::nullopt : removed_.LosesContentLocked(there);
  if (const int error = tree_.Rename(from, name, to, to_name, flags, LiveNow()); error != 0) return error;
  if (node == there) return 0;
  if (known) {
    teller_.TellLocked(exchange ? Kind::kExchange : Kind::kRename, node, path, old_path, there_id);
    removed_.HoldLocked(removed);
  } else if (there_known) {
    teller_.TellRemovedLocked(there_id, path, false);  // home cannot have the node that replaced it (a device)
    removed_.HoldLocked(removed);
  } else {
    tree_.NothingToTellLocked();
  }
  return 0;
}

void LiveRoot::RenameLoaded(const Request& request, const std::string& name, uint64_t to_parent,
                            const std::string& to_name, uint32_t flags, Reply reply) {
  int error = ESTALE;
  {
    const TreeLock lock(tree_);
    LiveNode* from = directories_.FindLocked(request.nodeid);
    LiveNode* to = directories_.FindLocked(to_parent);
    if (from != nullptr && to != nullptr) {
      error = to->attributes.nlink == 0 ? ENOENT : RenameLocked(from, name, to, to_name, flags);
      if (error == 0 && (flags & RENAME_WHITEOUT) != 0) {
        LiveNode* whiteout = nullptr;
        error = MakeNodeLocked(request, from, {name, S_IFCHR, 0, 0, {}}, nullptr, &whiteout);
      }
      if (error == 0) DidLocked(request, 0);
    }
  }
  reply.Error(error);
}

}  // namespace vrun::vfs
