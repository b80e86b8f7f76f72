// SPDX-License-Identifier: Apache-2.0
#include "home/apply.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "home/apply_files.h"
#include "home/apply_flush.h"
#include "home/apply_journal.h"
#include "home/apply_live.h"
#include "home/apply_paths.h"
#include "home/file_meta.h"
#include "home/safe_root.h"
#include "tree/inode_number.h"

namespace vrun::home {
namespace {

using vrun::v1::BaseVersion;
using vrun::v1::Meta;
using vrun::v1::WriteBack;

class ApplierImpl final : public Applier {
 public:
  // `root_dev`: the device of the root itself.
  ApplierImpl(ApplyOptions options, SafeRoot root, uint64_t root_dev, ApplyJournal journal)
      : options_(std::move(options)),
        root_dev_(root_dev),
        journal_(std::move(journal)),
        paths_(&options_, &journal_, std::move(root)),
        prefix_(".vrun-" + std::to_string(options_.job) + "-") {
    // The numbers of an unnamed attempt may be those of another series.
    if (options_.attempt != 0) sequence_ = journal_.durable_before();
    for (const auto& own : journal_.own_changes()) own_ctime_[{own.device, own.inode}] = own.ctime_ns;
  }
  ~ApplierImpl() override { DropFile(); }

  Status Apply(const WriteBack& message) override;
  uint64_t sequence() const override { return sequence_; }
  Result<uint64_t> Sync() override;
  Status Finish() override;
  uint64_t files() const override { return files_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  struct OpenFileState {
    Place place;
    std::string temporary;
    UniqueFd fd;
    uint64_t sequence = 0;
    uint64_t written_end = 0;
    vrun::v1::PutFile put;
    std::optional<BaseVersion> base;
  };

  Status Dispatch(const WriteBack& message);
  Status BeginFile(const WriteBack& message);
  Status TakeData(const WriteBack& message);
  Status EndFile();
  void DropFile();
  Status MakeDirectory(const WriteBack& message);
  Status MakeSymlink(const WriteBack& message);
  Status MakeSpecial(const WriteBack& message);
  Status MakeHardLink(const WriteBack& message);
  Status Remove(const WriteBack& message);
  Status Rename(const WriteBack& message);
  Status SetMeta(const WriteBack& message);

  bool IsInode(const struct stat& st, const BaseVersion& base) const;
  bool Matches(const struct stat& st, const BaseVersion& base, bool own_rename = false) const;
  // A copy of what the command saw at `seen` becomes `to`. False: home has not all of it.
  Result<bool> Restore(const WriteBack& message, const std::string& seen, Place& to, const Meta* meta);
  // To be asked before and told after an operation that changes the ctime of an inode that keeps other names.
  UniqueFd Watch(const Place& place, const struct stat& st) const;
  void Remember(const UniqueFd& inode, bool new_times = false);

  std::string TemporaryName(uint64_t sequence) const { return prefix_ + "s-" + std::to_string(sequence); }
  template <typename Make>
  Status MakeTemporary(const Place& place, const std::string& name, Make make);
  Status Install(Place& place, const std::string& temporary, const Meta* meta, const std::optional<BaseVersion>& base);
  Result<bool> Replace(Place& place, const std::string& from, const struct stat& from_st, const struct stat& current);
  Status InstallBeside(Place& place, const std::string& temporary, const Meta* meta);
  Status FinishMeta(const Place& place, const std::string& name, const Meta& meta, MetaFor use);
  Status MoveAcross(const Place& from, const Place& to, uint64_t sequence);

  void Touched(const Place& place, UniqueFd file = UniqueFd()) {
    flush_.Touched(place.parent.get(), std::move(file));
    if (options_.applied) options_.applied(place.path);
  }
  // The operation may have been applied by a process that died before it could say so.
  bool MayBeRepeated(const WriteBack& message) const { return message.sequence() <= journal_.applied_before(); }

  ApplyOptions options_;
  const uint64_t root_dev_;
  ApplyJournal journal_;
  ApplyPaths paths_;
  std::string prefix_;
  uint64_t sequence_ = 0;
  bool ignore_data_ = false;
  std::optional<OpenFileState> file_;
  std::map<std::pair<dev_t, ino_t>, int64_t>
      own_ctime_;                                      // inodes with several names, and restored ones, as we left them
  std::map<std::pair<dev_t, ino_t>, ino_t> restored_;  // copies, and what they are copies of
  std::set<std::string> kept_;                         // what was not removed
  std::set<std::string> attributes_left_out_;
  uint64_t files_ = 0;
  uint64_t bytes_ = 0;
  ApplyFlush flush_;
};

// --- messages ---

Status ApplierImpl::Apply(const WriteBack& message) {
  if (message.sequence() == 0) return Error(Code::kInvalid, "a write of the job without a number");
  if (message.sequence() <= sequence_) return {};
  if (message.has_file_data()) {
    if (!file_ && ignore_data_) return {};
    Status status = TakeData(message);
    if (!status) {
      DropFile();
      ignore_data_ = true;
    }
    return status;
  }
  DropFile();  // begun and not ended: it comes again
  ignore_data_ = false;
  VRUN_TRY(CheckRootPath(message.path()));
  Status status = Dispatch(message);
  if (!status) {
    ignore_data_ = true;
    return status;
  }
  if (!file_) {
    sequence_ = message.sequence();
    journal_.SetApplied(sequence_);
  }
  return {};
}

Status ApplierImpl::Dispatch(const WriteBack& message) {
  if (message.path() == "/" && !message.has_set_meta()) return Error(Code::kInvalid, "/: it can only get metadata");
  switch (message.op_case()) {
    case WriteBack::kPutFile: return BeginFile(message);
    case WriteBack::kMakeDirectory: return MakeDirectory(message);
    case WriteBack::kMakeSymlink: return MakeSymlink(message);
    case WriteBack::kMakeSpecial: return MakeSpecial(message);
    case WriteBack::kMakeHardLink: return MakeHardLink(message);
    case WriteBack::kRemove: return Remove(message);
    case WriteBack::kRename: return Rename(message);
    case WriteBack::kSetMeta: return SetMeta(message);
    case WriteBack::kFileData:
    case WriteBack::OP_NOT_SET: break;
  }
  return Error(Code::kUnsupported,
               Escape(message.path()) + ": the node wrote something that this version does not know");
}

// --- versions ---

bool ApplierImpl::IsInode(const struct stat& st, const BaseVersion& base) const {
  if ((st.st_mode & S_IFMT) != base.type()) return false;
  if (base.ino() == st.st_ino || base.ino() == tree::ShownInode(st.st_dev, st.st_ino, root_dev_)) return true;
  const auto restored = restored_.find({st.st_dev, st.st_ino});
  return restored != restored_.end() && restored->second == base.ino();
}

bool ApplierImpl::Matches(const struct stat& st, const BaseVersion& base, bool own_rename) const {
  if (!IsInode(st, base)) return false;
  if (S_ISDIR(st.st_mode)) return true;
  if (static_cast<uint64_t>(st.st_size) != base.size()) return false;
  if (ToNanos(st.st_ctim) == base.ctime_ns()) return true;
  auto own = own_ctime_.find({st.st_dev, st.st_ino});
  if (own != own_ctime_.end() && own->second == ToNanos(st.st_ctim)) return true;
  return (base.nlink() > 1 || own_rename) && ToNanos(st.st_mtim) == base.mtime_ns();
}

UniqueFd ApplierImpl::Watch(const Place& place, const struct stat& st) const {
  if (S_ISDIR(st.st_mode) || st.st_nlink < 2) return UniqueFd();
  auto fd = OpenName(place.parent.get(), place.name);
  return fd ? *std::move(fd) : UniqueFd();
}

// Where mtime moved, too, it cannot vouch for the other names after a restart.
void ApplierImpl::Remember(const UniqueFd& inode, bool new_times) {
  struct stat st;
  if (!inode || ::fstat(inode.get(), &st) != 0) return;
  auto [it, added] = own_ctime_.try_emplace({st.st_dev, st.st_ino});
  it->second = ToNanos(st.st_ctim);
  if (new_times || !added) journal_.AddOwnChange({st.st_dev, st.st_ino, it->second});
}

// --- putting something in its place ---

// `make` gets the name and returns 0 or -1 with errno.
template <typename Make>
Status ApplierImpl::MakeTemporary(const Place& place, const std::string& name, Make make) {
  return MakeTemporaryName(place.parent.get(), name, place.path, [&] { return make(name.c_str()); });
}

Status ApplierImpl::FinishMeta(const Place& place, const std::string& name, const Meta& meta, MetaFor use) {
  VRUN_ASSIGN(UniqueFd fd, OpenName(place.parent.get(), name));
  VRUN_ASSIGN(const auto before, LstatAt(place.parent.get(), place.name));
  std::string left_out;
  Status status = SetFileMeta(fd.get(), KeepOwners(meta, before), use, &left_out);
  if (!status) return std::move(status).error().With(Escape(place.path));
  if (!left_out.empty() && attributes_left_out_.insert(left_out).second) {
    paths_.Notice(Escape(place.path) + " was written without the attribute " + left_out);
  }
  return {};
}

// Puts `from` (a name in the same directory) in place of `current`. False: `current` is a directory with something in
// it that the job did not see.
Result<bool> ApplierImpl::Replace(Place& place, const std::string& from, const struct stat& from_st,
                                  const struct stat& current) {
  int parent = place.parent.get();
  bool both = S_ISDIR(from_st.st_mode) && S_ISDIR(current.st_mode);
  UniqueFd old = Watch(place, current);
  int error = WithWritable(parent, [&] {
    // rename replaces like by like only.
    if (S_ISDIR(current.st_mode) && !both && ::unlinkat(parent, place.name.c_str(), AT_REMOVEDIR) != 0) return -1;
    if (S_ISDIR(from_st.st_mode) && !both && ::unlinkat(parent, place.name.c_str(), 0) != 0) return -1;
    return ::renameat(parent, from.c_str(), parent, place.name.c_str());
  });
  if (error == ENOTEMPTY || error == EEXIST) return false;
  if (error != 0) return ErrnoError(error, "replace " + Escape(place.path));
  Remember(old);
  return true;
}

// Gives the finished `temporary` its name, unless home has something there that the job did not know.
Status ApplierImpl::Install(Place& place, const std::string& temporary, const Meta* meta,
                            const std::optional<BaseVersion>& base) {
  int parent = place.parent.get();
  for (;;) {
    VRUN_ASSIGN(auto current, LstatAt(parent, place.name));
    if (!current) {
      int error = WithWritable(parent, [&] { return RenameToFreeName(parent, temporary, parent, place.name); });
      if (error == EEXIST) continue;
      if (error != 0) return ErrnoError(error, "write " + Escape(place.path));
      return {};
    }
    if (base && Matches(*current, *base)) {
      VRUN_ASSIGN(auto made, LstatAt(parent, temporary));
      if (!made) return Error(Code::kAborted, Escape(place.path) + ": somebody removed the file while it was written");
      VRUN_ASSIGN(bool replaced, Replace(place, temporary, *made, *current));
      if (replaced) return {};
    }
    if (SameContent(parent, place.name, parent, temporary)) {
      int error = WithWritable(parent, [&] { return ::unlinkat(parent, temporary.c_str(), 0); });
      if (error != 0) return ErrnoError(error, "remove " + Escape(temporary));
      return meta != nullptr ? FinishMeta(place, place.name, *meta, MetaFor::kFinal) : Status();
    }
    return InstallBeside(place, temporary, meta);
  }
}

Status ApplierImpl::InstallBeside(Place& place, const std::string& temporary, const Meta* meta) {
  int parent = place.parent.get();
  std::string original(NameOf(place.asked));
  for (int i = 0; i < kMaxBeside; ++i) {
    std::string beside = paths_.BesideName(original, i);
    VRUN_ASSIGN(auto taken, LstatAt(parent, beside));
    bool same = taken && SameContent(parent, beside, parent, temporary);
    if (taken && !same) continue;
    std::string put = ChildOf(ParentOf(place.path), beside);
    VRUN_TRY(journal_.Add(place.asked, put));
    int error = WithWritable(parent, [&] {
      return same ? ::unlinkat(parent, temporary.c_str(), 0) : RenameToFreeName(parent, temporary, parent, beside);
    });
    if (error == EEXIST) continue;
    if (error != 0) return ErrnoError(error, "write " + Escape(put));
    paths_.NoticeChanged(place.asked, "its version is in " + Escape(put));
    place.path = put;
    place.name = beside;
    return meta != nullptr ? FinishMeta(place, beside, *meta, MetaFor::kFinal) : Status();
  }
  return Error(Code::kExists, Escape(place.path) + ": too many versions lie beside it: remove some");
}

// --- files ---

std::optional<BaseVersion> BaseOf(const WriteBack& message) {
  if (!message.has_base()) return std::nullopt;
  return message.base();
}

Status ApplierImpl::BeginFile(const WriteBack& message) {
  if (message.put_file().size() > static_cast<uint64_t>(INT64_MAX)) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a file of an impossible size");
  }
  OpenFileState file;
  VRUN_ASSIGN(file.place, paths_.FindOrMakeParents(message.path()));
  file.temporary = TemporaryName(message.sequence());
  file.sequence = message.sequence();
  file.put = message.put_file();
  file.base = BaseOf(message);
  VRUN_TRY(MakeTemporary(file.place, file.temporary, [&](const char* name) {
    int fd = ::openat(file.place.parent.get(), name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    file.fd.Reset(fd);
    return fd < 0 ? -1 : 0;
  }));
  file_ = std::move(file);
  return {};
}

Status ApplierImpl::TakeData(const WriteBack& message) {
  if (!file_ || message.path() != file_->place.asked || message.sequence() <= file_->sequence) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data of a file that was not begun");
  }
  const vrun::v1::FileData& data = message.file_data();
  uint64_t size = file_->put.size();
  if (data.offset() > size || data.data().size() > size - data.offset()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data beyond the end of the file");
  }
  Status status = WriteRange(file_->fd.get(), data.data(), data.offset(), file_->put.sparse());
  if (!status) return std::move(status).error().With("write " + Escape(file_->place.path));
  if (!data.data().empty()) file_->written_end = std::max(file_->written_end, data.offset() + data.data().size());
  bytes_ += data.data().size();
  if (!data.last()) return {};
  VRUN_TRY(EndFile());
  sequence_ = message.sequence();
  journal_.SetApplied(sequence_);
  return {};
}

Status ApplierImpl::EndFile() {
  OpenFileState& file = *file_;
  // Also when nothing is missing: leading or trailing blocks of zeros may have been left out.
  if ((file.put.sparse() || file.written_end < file.put.size()) &&
      ::ftruncate(file.fd.get(), static_cast<off_t>(file.put.size())) != 0) {
    return ErrnoError("write " + Escape(file.place.path));
  }
  VRUN_TRY(FinishMeta(file.place, file.temporary, file.put.meta(), MetaFor::kFinal));
  VRUN_TRY(Install(file.place, file.temporary, &file.put.meta(), file.base));
  ++files_;
  Touched(file.place, std::move(file.fd));
  file_.reset();
  return {};
}

void ApplierImpl::DropFile() {
  if (!file_) return;
  (void)WithWritable(file_->place.parent.get(),
                     [&] { return ::unlinkat(file_->place.parent.get(), file_->temporary.c_str(), 0); });
  file_.reset();
}

// --- other kinds ---

Status ApplierImpl::MakeSymlink(const WriteBack& message) {
  const auto& link = message.make_symlink();
  if (link.target().empty() || link.target().size() >= PATH_MAX || link.target().find('\0') != std::string::npos) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a symbolic link with an impossible target");
  }
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  std::string temporary = TemporaryName(message.sequence());
  VRUN_TRY(MakeTemporary(place, temporary, [&](const char* name) {
    return ::symlinkat(link.target().c_str(), place.parent.get(), name);
  }));
  Status status = FinishMeta(place, temporary, link.meta(), MetaFor::kFinal);
  if (status) status = Install(place, temporary, &link.meta(), BaseOf(message));
  if (!status) {
    ::unlinkat(place.parent.get(), temporary.c_str(), 0);
    return status;
  }
  Touched(place);
  return {};
}

Status ApplierImpl::MakeSpecial(const WriteBack& message) {
  const auto& special = message.make_special();
  mode_t type = special.meta().mode() & S_IFMT;
  if (type != S_IFIFO && type != S_IFSOCK) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a job may make FIFOs and sockets, not this");
  }
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  std::string temporary = TemporaryName(message.sequence());
  VRUN_TRY(MakeTemporary(place, temporary,
                         [&](const char* name) { return ::mknodat(place.parent.get(), name, type | 0600, 0); }));
  Status status = FinishMeta(place, temporary, special.meta(), MetaFor::kFinal);
  if (status) status = Install(place, temporary, &special.meta(), BaseOf(message));
  if (!status) {
    ::unlinkat(place.parent.get(), temporary.c_str(), 0);
    return status;
  }
  Touched(place);
  return {};
}

Status ApplierImpl::MakeHardLink(const WriteBack& message) {
  const std::string& existing = message.make_hard_link().existing();
  VRUN_TRY(CheckRootPath(existing));
  VRUN_ASSIGN(auto source, paths_.Find(existing));
  std::optional<struct stat> source_st;
  if (source) {
    VRUN_ASSIGN(source_st, LstatAt(source->parent.get(), source->name));
  }
  const bool changed = message.make_hard_link().has_source() && source_st && !S_ISDIR(source_st->st_mode) &&
                       !Matches(*source_st, message.make_hard_link().source());
  if (!source_st || S_ISDIR(source_st->st_mode) || changed) {
    VRUN_ASSIGN(Place copy, paths_.FindOrMakeParents(message.path()));
    VRUN_ASSIGN(const auto there, LstatAt(copy.parent.get(), copy.name));
    if (there && MayBeRepeated(message)) return {};
    VRUN_ASSIGN(const bool restored, Restore(message, message.make_hard_link().seen(), copy, nullptr));
    if (restored) {
      if (changed) {
        paths_.NoticeChanged(existing, Escape(copy.path) + ", a hard link to it, is a copy of what the job had there");
      }
      return {};
    }
  }
  if (!source_st || S_ISDIR(source_st->st_mode)) {
    paths_.Notice(Escape(existing) + " was removed at home while job " + std::to_string(options_.job) +
                  " ran: " + Escape(message.path()) + ", a hard link to it, was not made");
    return {};
  }
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(auto current, LstatAt(place.parent.get(), place.name));
  if (current && current->st_ino == source_st->st_ino && current->st_dev == source_st->st_dev) return {};
  std::string temporary = TemporaryName(message.sequence());
  UniqueFd inode;
  if (auto fd = OpenName(source->parent.get(), source->name)) inode = *std::move(fd);
  Status made = MakeTemporary(place, temporary, [&](const char* name) {
    return ::linkat(source->parent.get(), source->name.c_str(), place.parent.get(), name, 0);
  });
  if (!made) {
    int error = made.error().error_number();
    if (error != EXDEV && error != EMLINK && error != EPERM) return made;
    // Another file system, or somebody else's file: a copy is the best there is.
    VRUN_TRY(CopyTree(source->parent.get(), source->name, place.parent.get(), temporary));
    flush_.TouchedMuch(place.parent.get());
  }
  Status status = Install(place, temporary, nullptr, BaseOf(message));
  if (!status) {
    ::unlinkat(place.parent.get(), temporary.c_str(), 0);
    return status;
  }
  Remember(inode);
  Touched(place);
  return {};
}

Status ApplierImpl::MakeDirectory(const WriteBack& message) {
  const Meta& meta = message.make_directory().meta();
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  int parent = place.parent.get();
  for (int i = -1; i < kMaxBeside;) {
    VRUN_ASSIGN(auto current, LstatAt(parent, place.name));
    if (current && S_ISDIR(current->st_mode)) return i < 0 ? Status() : journal_.Add(place.asked, place.path);
    if (current && i < 0 && message.has_base() && Matches(*current, message.base())) {
      UniqueFd old = Watch(place, *current);
      int error = WithWritable(parent, [&] { return ::unlinkat(parent, place.name.c_str(), 0); });
      if (error != 0 && error != ENOENT) return ErrnoError(error, "replace " + Escape(place.path));
      Remember(old);
    } else if (current) {
      place.name = paths_.BesideName(std::string(NameOf(place.asked)), ++i);
      place.path = ChildOf(ParentOf(place.path), place.name);
      continue;
    }
    if (i >= 0) {
      VRUN_TRY(journal_.Add(place.asked, place.path));
    }
    int error = WithWritable(parent, [&] { return ::mkdirat(parent, place.name.c_str(), 0700); });
    if (error == EEXIST) continue;
    if (error != 0) return ErrnoError(error, "make " + Escape(place.path));
    if (i >= 0) paths_.NoticeChanged(place.asked, "its version is in " + Escape(place.path));
    Touched(place);
    flush_.TouchedAttributes(parent, place.name);
    return FinishMeta(place, place.name, meta, MetaFor::kOpenDirectory);
  }
  return Error(Code::kExists, Escape(place.path) + ": too many versions lie beside it: remove some");
}

Status ApplierImpl::Remove(const WriteBack& message) {
  VRUN_ASSIGN(auto place, paths_.Find(message.path()));
  if (!place) return {};
  int parent = place->parent.get();
  VRUN_ASSIGN(auto current, LstatAt(parent, place->name));
  if (!current) return {};
  std::string job = std::to_string(options_.job);
  if (!message.has_base() || !Matches(*current, message.base())) {
    kept_.insert(place->path);
    if (!MayBeRepeated(message)) paths_.NoticeChanged(place->path, "the job removed it, but it stays");
    return {};
  }
  bool directory = S_ISDIR(current->st_mode);
  UniqueFd old = Watch(*place, *current);
  int error =
      WithWritable(parent, [&] { return ::unlinkat(parent, place->name.c_str(), directory ? AT_REMOVEDIR : 0); });
  if (error == ENOTEMPTY || error == EEXIST || (directory && error == EBUSY)) {
    auto below = kept_.lower_bound(place->path + "/");
    bool told = below != kept_.end() && AtOrBelow(*below, place->path);
    kept_.insert(place->path);
    if (!told) {
      paths_.Notice(Escape(place->path) + " was removed by job " + job +
                    ", but it stays: it has what the job did not see");
    }
    return {};
  }
  if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(place->path));
  Remember(old);
  Touched(*place);
  return {};
}

// --- renames ---

// Between file systems of home, which the job saw as one: a copy, then the original goes.
Status ApplierImpl::MoveAcross(const Place& from, const Place& to, uint64_t sequence) {
  std::string temporary = TemporaryName(sequence);
  int parent = to.parent.get();
  VRUN_TRY(RemoveTree("/proc/self/fd/" + std::to_string(parent) + "/" + temporary));
  VRUN_TRY(CopyTree(from.parent.get(), from.name, parent, temporary));
  int error = WithWritable(parent, [&] { return RenameToFreeName(parent, temporary, parent, to.name); });
  if (error != 0) {
    (void)RemoveTree("/proc/self/fd/" + std::to_string(parent) + "/" + temporary);
    return ErrnoError(error, "write " + Escape(to.path));
  }
  flush_.TouchedMuch(parent);
  VRUN_TRY(flush_.Flush());  // the original goes
  return RemoveTree("/proc/self/fd/" + std::to_string(from.parent.get()) + "/" + from.name);
}

Status ApplierImpl::Rename(const WriteBack& message) {
  const auto& rename = message.rename();
  VRUN_TRY(CheckRootPath(rename.from()));
  if (rename.from() == "/" || AtOrBelow(message.path(), rename.from()) || !rename.has_source()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": an impossible rename from " + Escape(rename.from()));
  }
  VRUN_ASSIGN(Place to, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(auto from, paths_.Find(rename.from()));
  if (paths_.HasHiddenBelow(to.path) || (from && paths_.HasHiddenBelow(from->path))) {
    return Error(Code::kDenied, Escape(rename.from()) + ": jobs may not rename it: something below is kept from them");
  }
  std::optional<struct stat> from_st;
  if (from) {
    VRUN_ASSIGN(from_st, LstatAt(from->parent.get(), from->name));
  }
  VRUN_ASSIGN(auto current, LstatAt(to.parent.get(), to.name));
  UniqueFd inode;
  auto finish = [&]() -> Status {
    Touched(to);
    if (rename.has_meta()) {
      VRUN_TRY(FinishMeta(to, to.name, rename.meta(), MetaFor::kFinal));
      flush_.TouchedAttributes(to.parent.get(), to.name);
    }
    Remember(inode, rename.has_meta());
    return {};
  };
  const BaseVersion& source = rename.source();
  bool is_source = from_st && IsInode(*from_st, source);
  if (current && IsInode(*current, source)) {
    // Done before; or, where both were names of one file, rename(2) itself would do nothing.
    if (is_source && !S_ISDIR(from_st->st_mode) && from_st->st_dev == current->st_dev) {
      int error =
          WithWritable(from->parent.get(), [&] { return ::unlinkat(from->parent.get(), from->name.c_str(), 0); });
      if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(from->path));
    }
    inode = Watch(to, *current);  // by its other names it is still to be known as ours
    return finish();
  }
  bool own_name = NameOf(rename.from()).starts_with(prefix_);
  if (!is_source || !Matches(*from_st, source, own_name)) {
    // A copy to another file system has another inode: absent here and present there is all that can be seen.
    bool repeated = MayBeRepeated(message) ||
                    (!from_st && current && (current->st_mode & S_IFMT) == source.type() && !message.has_base());
    if (repeated) return {};
    bool aside = NameOf(message.path()).starts_with(prefix_);
    VRUN_ASSIGN(const bool restored, Restore(message, rename.seen(), to, rename.has_meta() ? &rename.meta() : nullptr));
    if (restored) {
      if (!own_name && !aside) {
        paths_.NoticeChanged(rename.from(),
                             "it stays, and " + Escape(to.path) + " is a copy of what the job had there");
      }
      return {};
    }
    // What could not be put aside under a name of ours was told then.
    if (!own_name) {
      paths_.NoticeChanged(rename.from(), aside ? "it was not renamed as the job did"
                                                : "it was not renamed to " + Escape(message.path()));
    }
    return {};
  }
  inode = Watch(*from, *from_st);

  bool replace = false;
  auto move = [&]() -> int {
    auto call = [&] {
      return replace ? ::renameat(from->parent.get(), from->name.c_str(), to.parent.get(), to.name.c_str())
                     : RenameToFreeName(from->parent.get(), from->name, to.parent.get(), to.name);
    };
    auto with_target = [&] {
      int error = WithWritable(to.parent.get(), call);
      errno = error;
      return error == 0 ? 0 : -1;
    };
    return WithWritable(from->parent.get(), with_target);
  };
  UniqueFd old;
  if (current && message.has_base() && Matches(*current, message.base())) {
    old = Watch(to, *current);
    if (S_ISDIR(current->st_mode) == S_ISDIR(from_st->st_mode) && current->st_dev == from_st->st_dev) {
      replace = true;
      current.reset();
    } else {
      // rename does not replace unlike things.
      int error = WithWritable(to.parent.get(), [&] {
        return ::unlinkat(to.parent.get(), to.name.c_str(), S_ISDIR(current->st_mode) ? AT_REMOVEDIR : 0);
      });
      if (error == 0) {
        current.reset();
      } else if (error != ENOTEMPTY && error != EEXIST) {
        return ErrnoError(error, "replace " + Escape(to.path));
      }
    }
  }
  for (int i = -1; i < kMaxBeside;) {
    if (current) {
      to.name = paths_.BesideName(std::string(NameOf(to.asked)), ++i);
      to.path = ChildOf(ParentOf(to.path), to.name);
      VRUN_ASSIGN(current, LstatAt(to.parent.get(), to.name));
      continue;
    }
    if (i >= 0) {
      VRUN_TRY(journal_.Add(to.asked, to.path));
    }
    int error = move();
    if (error == EEXIST || error == ENOTEMPTY) {
      replace = false;
      VRUN_ASSIGN(current, LstatAt(to.parent.get(), to.name));
      continue;
    }
    if (error == EXDEV) {
      VRUN_TRY(MoveAcross(*from, to, message.sequence()));
    } else if (error != 0) {
      return ErrnoError(error, "rename " + Escape(from->path) + " to " + Escape(to.path));
    }
    Remember(old);
    Touched(*from);
    if (i >= 0) paths_.NoticeChanged(to.asked, "its version is in " + Escape(to.path));
    return finish();
  }
  return Error(Code::kExists, Escape(to.path) + ": too many versions lie beside it: remove some");
}

Result<bool> ApplierImpl::Restore(const WriteBack& message, const std::string& seen, Place& to, const Meta* meta) {
  if (!options_.restore || seen.empty()) return false;
  const int parent = to.parent.get();
  const std::string temporary = TemporaryName(message.sequence());
  const std::string temporary_path = "/proc/self/fd/" + std::to_string(parent) + "/" + temporary;
  VRUN_TRY(RemoveTree(temporary_path));
  struct Made {
    std::pair<dev_t, ino_t> inode;
    ino_t was = 0;
  };
  std::vector<Made> all;
  Status made;
  const int error = WithWritable(parent, [&] {
    all.clear();
    made = options_.restore(seen, parent, temporary, [&](int fd, const tree::Entry& was) {
      struct stat st {};
      if (::fstat(fd, &st) != 0) return;
      all.push_back({{st.st_dev, st.st_ino}, tree::ShownInode(was.dev, was.ino, root_dev_)});
      own_ctime_[all.back().inode] = ToNanos(st.st_ctim);
    });
    errno = made ? 0 : made.error().error_number();
    return made || errno == 0 ? 0 : -1;
  });
  if (!made) {
    VRUN_TRY(RemoveTree(temporary_path));
    const bool full = error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM;
    if (full) return std::move(made).error().With("write " + Escape(to.path));
    return false;
  }
  for (const Made& one : all) restored_[one.inode] = one.was;
  flush_.TouchedMuch(parent);
  VRUN_TRY(Install(to, temporary, meta, BaseOf(message)));
  if (meta != nullptr) VRUN_TRY(FinishMeta(to, to.name, *meta, MetaFor::kFinal));
  // Its name, and what it lost to a conflict, move its ctime.
  const auto st = LstatAt(parent, to.name);
  if (st && *st) own_ctime_[{(*st)->st_dev, (*st)->st_ino}] = ToNanos((*st)->st_ctim);
  Touched(to);
  return true;
}

// --- metadata ---

Status ApplierImpl::SetMeta(const WriteBack& message) {
  const Meta& meta = message.set_meta().meta();
  VRUN_ASSIGN(const auto found, paths_.FindOrRoot(message.path()));
  if (!found) return {};
  const Place& place = *found;
  VRUN_ASSIGN(auto current, LstatAt(place.parent.get(), place.name));
  if (!current) return {};
  bool same = (current->st_mode & S_IFMT) == (meta.mode() & S_IFMT);
  if (same && !S_ISDIR(current->st_mode)) {
    // Only another content counts: its metadata are what the job changed, and may have been set by a process that died.
    const BaseVersion& base = message.base();
    int64_t mtime = ToNanos(current->st_mtim);
    same = message.has_base() && (Matches(*current, base) || (current->st_ino == base.ino() &&
                                                              static_cast<uint64_t>(current->st_size) == base.size() &&
                                                              (mtime == base.mtime_ns() || mtime == meta.mtime_ns())));
  }
  if (!same) {
    if (!MayBeRepeated(message)) paths_.NoticeChanged(place.path, "the job's mode, owner and times were not set");
    return {};
  }
  UniqueFd inode = Watch(place, *current);
  VRUN_TRY(FinishMeta(place, place.name, meta, MetaFor::kFinal));
  Remember(inode, true);
  flush_.TouchedAttributes(place.parent.get(), place.name);
  Touched(place);
  return {};
}

// --- durability ---

Result<uint64_t> ApplierImpl::Sync() {
  VRUN_TRY(flush_.Flush());
  journal_.SetDurable(sequence_);
  return sequence_;
}

Status ApplierImpl::Finish() {
  DropFile();
  VRUN_ASSIGN(uint64_t done, Sync());
  (void)done;
  journal_.Remove();
  return {};
}

}  // namespace

Result<std::unique_ptr<Applier>> Applier::Open(ApplyOptions options) {
  VRUN_ASSIGN(SafeRoot root, SafeRoot::Open(options.root));
  VRUN_ASSIGN(ApplyJournal journal, ApplyJournal::Open(options.journal, options.attempt));
  if (options.live) return MakeLiveApplier(std::move(options), std::move(root), std::move(journal));
  VRUN_ASSIGN(const UniqueFd top, root.OpenDirectory("/"));
  struct stat st;
  if (::fstat(top.get(), &st) != 0) return ErrnoError("stat of the root");
  return std::unique_ptr<Applier>(
      std::make_unique<ApplierImpl>(std::move(options), std::move(root), st.st_dev, std::move(journal)));
}

}  // namespace vrun::home
