// SPDX-License-Identifier: Apache-2.0
#include "home/apply_live.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "home/apply_files.h"
#include "home/apply_flush.h"
#include "home/apply_paths.h"
#include "home/file_meta.h"

namespace vrun::home {
namespace {

using vrun::v1::Meta;
using vrun::v1::WriteBack;

// Of files that this series wrote. Beyond it the oldest knowledge goes: their next change comes whole.
constexpr size_t kMostOwn = 200'000;

int64_t Ns(const struct timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

bool IsInode(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Nobody has written to a file since. Not what every change of it alters (ctime), but what only writing does.
bool HasContentOf(const struct stat& before, const struct stat& now) {
  if (!S_ISREG(now.st_mode)) return true;
  return before.st_size == now.st_size && Ns(before.st_mtim) == Ns(now.st_mtim);
}

class LiveApplier final : public Applier {
 public:
  LiveApplier(ApplyOptions options, SafeRoot root, ApplyJournal journal)
      : options_(std::move(options)),
        journal_(std::move(journal)),
        paths_(&options_, &journal_, std::move(root)),
        prefix_(".vrun-" + std::to_string(options_.job) + "-s-") {
    for (const auto& own : journal_.own_changes()) own_[{own.device, own.inode}] = own.ctime_ns;
    if (journal_.same_boot() && journal_.applied_before() > journal_.durable_before()) {
      // Done by a process that died, but perhaps not flushed.
      sequence_ = journal_.applied_before();
      flush_.TouchedEverything();
      (void)Sync();
    } else {
      sequence_ = journal_.durable_before();
    }
  }
  ~LiveApplier() override { DropFile(); }

  Status Apply(const WriteBack& message) override;
  uint64_t sequence() const override { return sequence_; }
  Result<uint64_t> Sync() override {
    VRUN_TRY(flush_.Flush());
    journal_.SetDurable(sequence_);
    return sequence_;
  }
  Flushing BeginSync() override {
    return {sequence_, std::make_shared<ApplyFlush>(std::exchange(flush_, ApplyFlush()))};
  }
  void EndSync(const Flushing& begun, bool flushed) override {
    if (flushed) {
      journal_.SetDurable(begun.sequence);
    } else {
      flush_.TouchedEverything();  // more than it was, and nothing is forgotten
    }
  }
  Status Finish() override {
    DropFile();
    VRUN_TRY(Sync());
    journal_.Remove();
    return {};
  }
  std::vector<vrun::v1::Applied> TakeApplied() override { return std::exchange(applied_, {}); }
  uint64_t TakeWantWhole() override { return std::exchange(want_whole_, 0); }
  uint64_t files() const override { return files_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  struct OpenFileState {
    Place place;
    std::string temporary;  // "": it grows in place
    UniqueFd fd;
    uint64_t sequence = 0;
    uint64_t base_size = 0;
    uint64_t end = 0;  // of what was written
    vrun::v1::PutFile put;
  };

  Status Dispatch(const WriteBack& message);
  Status BeginFile(const WriteBack& message);
  Status BeginOver(const WriteBack& message, OpenFileState* file, bool* refused);
  Status TakeData(const WriteBack& message);
  Status EndFile(uint64_t sequence);
  void DropFile();
  Status MakeDirectory(const WriteBack& message);
  Status MakeNamed(const WriteBack& message, const Meta& meta, const std::function<int(int, const char*)>& make);
  Status MakeHardLink(const WriteBack& message);
  Status Remove(const WriteBack& message);
  Status Rename(const WriteBack& message);
  Status Exchange(const WriteBack& message, const Place& from, const Place& to);
  Status SetMeta(const WriteBack& message);

  bool IsOwn(const struct stat& st) const {
    const auto own = own_.find({st.st_dev, st.st_ino});
    return own != own_.end() && own->second == Ns(st.st_ctim);
  }
  // The name is free for a directory (or for anything else) to take.
  Status MakeWay(const Place& place, bool for_directory);
  Status Install(const Place& place, const std::string& temporary);
  Status FinishMeta(const Place& place, const std::string& name, const Meta& meta, MetaFor use);
  // The operation put what has this name in place (`before` null), or changed no more than its names and attributes;
  // `copied`: where it cannot be the same inode. Nothing is told of a file that somebody else has written to or
  // replaced meanwhile: what is there now is not the job's, and the next tree has it.
  void Done(const Place& place, uint64_t sequence, const struct stat* before, bool copied = false, bool other = false);
  void Tell(const struct stat& now, uint64_t sequence, const struct stat* before, bool other);
  // A file that is about to lose one of several names; to be given to LostName afterwards.
  static UniqueFd Hold(const Place& place, const std::optional<struct stat>& st);
  void LostName(const UniqueFd& file, uint64_t sequence, const std::optional<struct stat>& before, bool other);
  std::string TemporaryName(uint64_t sequence) const { return prefix_ + std::to_string(sequence); }
  void DropTemporary(const Place& place, const std::string& name) {
    (void)WithWritable(place.parent.get(), [&] { return ::unlinkat(place.parent.get(), name.c_str(), 0); });
  }

  ApplyOptions options_;
  ApplyJournal journal_;
  ApplyPaths paths_;
  const std::string prefix_;
  uint64_t sequence_ = 0;
  uint64_t refused_ = 0;  // nothing after it is applied until it has come again
  uint64_t want_whole_ = 0;
  bool ignore_data_ = false;
  std::optional<OpenFileState> file_;
  using Inode = std::pair<uint64_t, uint64_t>;  // device, number
  std::map<Inode, int64_t> own_;                // ctime as we left it
  // Content that is not ours, under names and attributes that are: ctime before and after.
  std::map<Inode, std::pair<int64_t, int64_t>> carried_;
  std::set<std::string> attributes_left_out_;
  std::vector<vrun::v1::Applied> applied_;
  ApplyFlush flush_;
  uint64_t files_ = 0;
  uint64_t bytes_ = 0;
};

// --- messages ---

Status LiveApplier::Apply(const WriteBack& message) {
  if (message.sequence() == 0) return Error(Code::kInvalid, "a write of the job without a number");
  if (refused_ != 0 && message.sequence() > refused_) return {};
  refused_ = 0;
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
  if (!file_ && refused_ == 0) {
    sequence_ = message.sequence();
    journal_.SetApplied(sequence_);
  }
  return {};
}

Status LiveApplier::Dispatch(const WriteBack& message) {
  if (message.path() == "/" && !message.has_set_meta()) return Error(Code::kInvalid, "/: it can only get metadata");
  switch (message.op_case()) {
    case WriteBack::kPutFile: return BeginFile(message);
    case WriteBack::kMakeDirectory: return MakeDirectory(message);
    case WriteBack::kMakeSymlink: {
      const std::string& target = message.make_symlink().target();
      if (target.empty() || target.size() >= PATH_MAX || target.find('\0') != std::string::npos) {
        return Error(Code::kInvalid, Escape(message.path()) + ": a symbolic link with an impossible target");
      }
      return MakeNamed(message, message.make_symlink().meta(),
                       [&](int parent, const char* name) { return ::symlinkat(target.c_str(), parent, name); });
    }
    case WriteBack::kMakeSpecial: {
      const mode_t type = message.make_special().meta().mode() & S_IFMT;
      if (type != S_IFIFO && type != S_IFSOCK) {
        return Error(Code::kInvalid, Escape(message.path()) + ": a job may make FIFOs and sockets, not this");
      }
      return MakeNamed(message, message.make_special().meta(),
                       [&](int parent, const char* name) { return ::mknodat(parent, name, type | 0600, 0); });
    }
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

// --- putting something in its place ---

Status LiveApplier::MakeWay(const Place& place, bool for_directory) {
  const int parent = place.parent.get();
  for (int i = 0; i < kMaxBeside;) {
    VRUN_ASSIGN(auto current, LstatAt(parent, place.name));
    if (!current || S_ISDIR(current->st_mode) == for_directory) return {};
    if (!for_directory &&
        WithWritable(parent, [&] { return ::unlinkat(parent, place.name.c_str(), AT_REMOVEDIR); }) == 0) {
      return {};
    }
    const std::string beside = paths_.BesideName(std::string(NameOf(place.asked)), i);
    const int error = WithWritable(parent, [&] { return RenameToFreeName(parent, place.name, parent, beside); });
    if (error == EEXIST) {
      ++i;
      continue;
    }
    if (error != 0) return ErrnoError(error, "replace " + Escape(place.path));
    paths_.NoticeChanged(place.path, "what was there is in " + Escape(ChildOf(ParentOf(place.path), beside)));
    return {};
  }
  return Error(Code::kExists, Escape(place.path) + ": too many versions lie beside it: remove some");
}

Status LiveApplier::Install(const Place& place, const std::string& temporary) {
  const int parent = place.parent.get();
  int error = EISDIR;
  for (int i = 0; i < kMaxBeside && error == EISDIR; ++i) {  // somebody may make a directory there meanwhile
    VRUN_TRY(MakeWay(place, false));
    error = WithWritable(parent, [&] { return ::renameat(parent, temporary.c_str(), parent, place.name.c_str()); });
  }
  if (error != 0) return ErrnoError(error, "write " + Escape(place.path));
  // Where both were names of one file already, rename(2) does nothing.
  ::unlinkat(parent, temporary.c_str(), 0);
  return {};
}

Status LiveApplier::FinishMeta(const Place& place, const std::string& name, const Meta& meta, MetaFor use) {
  const auto fd = OpenName(place.parent.get(), name);
  if (!fd && fd.error().error_number() == ENOENT && name == place.name) return {};  // removed here meanwhile
  if (!fd) return fd.error();
  std::string left_out;
  Status status = SetFileMeta(fd->get(), meta, use, &left_out);
  if (!status) return std::move(status).error().With(Escape(place.path));
  if (!left_out.empty() && attributes_left_out_.insert(left_out).second) {
    paths_.Notice(Escape(place.path) + " was written without the attribute " + left_out);
  }
  return {};
}

void LiveApplier::Done(const Place& place, uint64_t sequence, const struct stat* before, bool copied, bool other) {
  flush_.Touched(place.parent.get());
  const auto found = LstatAt(place.parent.get(), place.name);
  if (!found || !*found) return;
  const struct stat& now = **found;
  if (before != nullptr && ((!copied && !IsInode(*before, now)) || !HasContentOf(*before, now))) return;
  Tell(now, sequence, before, other);
}

UniqueFd LiveApplier::Hold(const Place& place, const std::optional<struct stat>& st) {
  if (!st || !S_ISREG(st->st_mode) || st->st_nlink < 2) return UniqueFd();
  auto file = OpenName(place.parent.get(), place.name);
  return file ? *std::move(file) : UniqueFd();
}

void LiveApplier::LostName(const UniqueFd& file, uint64_t sequence, const std::optional<struct stat>& before,
                           bool other) {
  struct stat now {};
  if (!file || ::fstat(file.get(), &now) != 0 || now.st_nlink == 0) return;
  if (IsInode(*before, now) && HasContentOf(*before, now)) Tell(now, sequence, &*before, other);
}

void LiveApplier::Tell(const struct stat& st, uint64_t sequence, const struct stat* before, bool other) {
  if (before != nullptr && !IsInode(*before, st)) before = nullptr;  // a copy
  vrun::v1::Applied& applied = applied_.emplace_back();
  applied.set_sequence(sequence);
  applied.set_dev(st.st_dev);
  applied.set_ino(st.st_ino);
  applied.set_ctime_ns(Ns(st.st_ctim));
  applied.set_size(S_ISDIR(st.st_mode) ? 0 : static_cast<uint64_t>(st.st_size));
  if (before != nullptr) applied.set_before_ctime_ns(Ns(before->st_ctim));
  applied.set_other(other);
  if (!S_ISREG(st.st_mode)) return;
  const Inode inode{st.st_dev, st.st_ino};
  if (before != nullptr && !IsOwn(*before)) {
    auto& [first, last] = carried_[inode];
    if (last != Ns(before->st_ctim)) first = Ns(before->st_ctim);
    last = Ns(st.st_ctim);
    return;
  }
  if (own_.size() >= kMostOwn) own_.clear();
  own_[inode] = Ns(st.st_ctim);
  journal_.AddOwnChange({st.st_dev, st.st_ino, Ns(st.st_ctim)});
}

// --- files ---

Status LiveApplier::BeginFile(const WriteBack& message) {
  if (message.put_file().size() > static_cast<uint64_t>(INT64_MAX)) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a file of an impossible size");
  }
  OpenFileState file;
  VRUN_ASSIGN(file.place, paths_.FindOrMakeParents(message.path()));
  file.sequence = message.sequence();
  file.put = message.put_file();
  if (file.put.over() != vrun::v1::NOTHING) {
    bool refused = false;
    VRUN_TRY(BeginOver(message, &file, &refused));
    if (refused) {
      refused_ = want_whole_ = message.sequence();
      return {};
    }
  } else {
    file.temporary = TemporaryName(message.sequence());
    VRUN_TRY(MakeTemporaryName(file.place.parent.get(), file.temporary, file.place.path, [&] {
      file.fd.Reset(::openat(file.place.parent.get(), file.temporary.c_str(),
                             O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      return file.fd ? 0 : -1;
    }));
  }
  file_ = std::move(file);
  return {};
}

// Begins with what home has, if that is what the node means.
Status LiveApplier::BeginOver(const WriteBack& message, OpenFileState* file, bool* refused) {
  const int parent = file->place.parent.get();
  const auto is_meant = [&](const struct stat& st) {
    const auto& base = message.base();
    const auto carried = carried_.find({st.st_dev, st.st_ino});
    const bool same_time =
        Ns(st.st_ctim) == base.ctime_ns() || (carried != carried_.end() && carried->second.first == base.ctime_ns() &&
                                              carried->second.second == Ns(st.st_ctim));
    const bool given =
        message.has_base() && st.st_ino == base.ino() && same_time && static_cast<uint64_t>(st.st_size) == base.size();
    return S_ISREG(st.st_mode) && (given || IsOwn(st));
  };
  *refused = true;
  VRUN_ASSIGN(const auto current, LstatAt(parent, file->place.name));
  if (!current || !is_meant(*current)) return {};
  file->base_size = static_cast<uint64_t>(current->st_size);
  if (file->put.over() == vrun::v1::APPEND) {
    if (file->base_size > file->put.size()) return {};
    // Not to be had by somebody without the right to write, or while it is executed: whole, then.
    file->fd.Reset(::openat(parent, file->place.name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat opened {};
    *refused = !file->fd || ::fstat(file->fd.get(), &opened) != 0 || !is_meant(opened);
    return {};
  }
  if (file->put.over() != vrun::v1::PATCH) {
    return Error(Code::kUnsupported, Escape(message.path()) + ": a file over what this version does not know");
  }
  file->temporary = TemporaryName(message.sequence());
  DropTemporary(file->place, file->temporary);
  if (const Status copied = CopyTree(parent, file->place.name, parent, file->temporary); !copied) {
    if (copied.error().error_number() != EACCES && copied.error().error_number() != ENOENT) return copied;
    return {};
  }
  VRUN_ASSIGN(const auto after, LstatAt(parent, file->place.name));
  // It may be of a mode that keeps us out.
  if (::fchmodat(parent, file->temporary.c_str(), 0600, 0) != 0) return ErrnoError("write " + Escape(file->place.path));
  file->fd.Reset(::openat(parent, file->temporary.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  *refused = !after || !is_meant(*after) || !file->fd;
  if (*refused) DropTemporary(file->place, file->temporary);
  if (!*refused && ::ftruncate(file->fd.get(), static_cast<off_t>(file->put.size())) != 0) {
    const int error = errno;
    DropTemporary(file->place, file->temporary);
    return ErrnoError(error, "write " + Escape(file->place.path));
  }
  return {};
}

Status LiveApplier::TakeData(const WriteBack& message) {
  if (!file_ || message.path() != file_->place.asked || message.sequence() <= file_->sequence) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data of a file that was not begun");
  }
  const vrun::v1::FileData& data = message.file_data();
  const uint64_t size = file_->put.size();
  if (data.offset() > size || data.data().size() > size - data.offset()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data beyond the end of the file");
  }
  if (file_->temporary.empty() && data.offset() < file_->base_size) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data before the end of the file that it is appended to");
  }
  Status status = WriteRange(file_->fd.get(), data.data(), data.offset(), file_->put.sparse());
  if (!status) return std::move(status).error().With("write " + Escape(file_->place.path));
  if (!data.data().empty()) file_->end = std::max(file_->end, data.offset() + data.data().size());
  bytes_ += data.data().size();
  if (!data.last()) return {};
  VRUN_TRY(EndFile(message.sequence()));
  sequence_ = message.sequence();
  journal_.SetApplied(sequence_);
  return {};
}

Status LiveApplier::EndFile(uint64_t sequence) {
  OpenFileState& file = *file_;
  if ((file.put.sparse() || file.end < file.put.size()) &&
      ::ftruncate(file.fd.get(), static_cast<off_t>(file.put.size())) != 0) {
    return ErrnoError("write " + Escape(file.place.path));
  }
  VRUN_TRY(FinishMeta(file.place, file.temporary.empty() ? file.place.name : file.temporary, file.put.meta(),
                      MetaFor::kFinal));
  struct stat made {
  }, now{};
  const bool known = ::fstat(file.fd.get(), &made) == 0;
  made.st_size = static_cast<off_t>(file.put.size());
  if (!file.temporary.empty()) VRUN_TRY(Install(file.place, file.temporary));
  ++files_;
  if (known && ::fstat(file.fd.get(), &now) == 0 && HasContentOf(made, now)) Tell(now, sequence, nullptr, false);
  flush_.Touched(file.place.parent.get(), std::move(file.fd));
  file_.reset();
  return {};
}

void LiveApplier::DropFile() {
  if (!file_) return;
  if (!file_->temporary.empty()) {
    DropTemporary(file_->place, file_->temporary);
  } else if (file_->end > 0 && ::ftruncate(file_->fd.get(), static_cast<off_t>(file_->base_size)) == 0) {
    // As it was; the rest comes again.
    struct stat st {};
    if (::fstat(file_->fd.get(), &st) == 0) own_[{st.st_dev, st.st_ino}] = Ns(st.st_ctim);
  }
  file_.reset();
}

// --- other kinds ---

Status LiveApplier::MakeNamed(const WriteBack& message, const Meta& meta,
                              const std::function<int(int, const char*)>& make) {
  VRUN_ASSIGN(const Place place, paths_.FindOrMakeParents(message.path()));
  const std::string temporary = TemporaryName(message.sequence());
  VRUN_TRY(MakeTemporaryName(place.parent.get(), temporary, place.path,
                             [&] { return make(place.parent.get(), temporary.c_str()); }));
  Status status = FinishMeta(place, temporary, meta, MetaFor::kFinal);
  if (status) status = Install(place, temporary);
  if (!status) {
    DropTemporary(place, temporary);
    return status;
  }
  Done(place, message.sequence(), nullptr);
  return {};
}

Status LiveApplier::MakeHardLink(const WriteBack& message) {
  const std::string& existing = message.make_hard_link().existing();
  VRUN_TRY(CheckRootPath(existing));
  VRUN_ASSIGN(const auto source, paths_.Find(existing));
  std::optional<struct stat> source_st;
  if (source) {
    VRUN_ASSIGN(source_st, LstatAt(source->parent.get(), source->name));
  }
  if (!source_st || S_ISDIR(source_st->st_mode)) {
    paths_.Notice(Escape(existing) + " was removed at home while the job ran: " + Escape(message.path()) +
                  ", a hard link to it, was not made");
    return {};
  }
  VRUN_ASSIGN(const Place place, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(const auto current, LstatAt(place.parent.get(), place.name));
  if (current && current->st_ino == source_st->st_ino && current->st_dev == source_st->st_dev) return {};
  const std::string temporary = TemporaryName(message.sequence());
  const Status made = MakeTemporaryName(place.parent.get(), temporary, place.path, [&] {
    return ::linkat(source->parent.get(), source->name.c_str(), place.parent.get(), temporary.c_str(), 0);
  });
  if (!made) {
    const int error = made.error().error_number();
    if (error != EXDEV && error != EMLINK && error != EPERM) return made;
    // Another file system, or somebody else's file: a copy is the best there is.
    VRUN_TRY(CopyTree(source->parent.get(), source->name, place.parent.get(), temporary));
    flush_.TouchedMuch(place.parent.get());
  }
  if (const Status status = Install(place, temporary); !status) {
    DropTemporary(place, temporary);
    return status;
  }
  Done(place, message.sequence(), &*source_st, !made);
  return {};
}

Status LiveApplier::MakeDirectory(const WriteBack& message) {
  VRUN_ASSIGN(const Place place, paths_.FindOrMakeParents(message.path()));
  VRUN_TRY(MakeWay(place, true));
  const int parent = place.parent.get();
  const int error = WithWritable(parent, [&] { return ::mkdirat(parent, place.name.c_str(), 0700); });
  if (error != 0 && error != EEXIST) return ErrnoError(error, "make " + Escape(place.path));
  VRUN_TRY(FinishMeta(place, place.name, message.make_directory().meta(), MetaFor::kOpenDirectory));
  flush_.TouchedAttributes(parent, place.name);
  Done(place, message.sequence(), nullptr);
  return {};
}

Status LiveApplier::Remove(const WriteBack& message) {
  VRUN_ASSIGN(const auto place, paths_.Find(message.path()));
  if (!place) return {};
  const int parent = place->parent.get();
  VRUN_ASSIGN(const auto current, LstatAt(parent, place->name));
  if (!current) return {};
  if (paths_.HasHiddenBelow(place->path)) {
    return Error(Code::kDenied, Escape(place->path) + ": jobs may not remove it: something below is kept from them");
  }
  const bool directory = S_ISDIR(current->st_mode);
  const UniqueFd file = Hold(*place, current);
  const int error =
      WithWritable(parent, [&] { return ::unlinkat(parent, place->name.c_str(), directory ? AT_REMOVEDIR : 0); });
  if (error == ENOTEMPTY || error == EEXIST || (directory && error == EBUSY)) {
    paths_.Notice(Escape(place->path) + " was removed by the job, but it stays: it has what the job did not see");
    return {};
  }
  if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(place->path));
  flush_.Touched(parent);
  LostName(file, message.sequence(), current, false);
  return {};
}

Status LiveApplier::Rename(const WriteBack& message) {
  const auto& rename = message.rename();
  VRUN_TRY(CheckRootPath(rename.from()));
  if (rename.from() == "/" || AtOrBelow(message.path(), rename.from())) {
    return Error(Code::kInvalid, Escape(message.path()) + ": an impossible rename from " + Escape(rename.from()));
  }
  VRUN_ASSIGN(const Place to, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(const auto from, paths_.Find(rename.from()));
  if (paths_.HasHiddenBelow(to.path) || (from && paths_.HasHiddenBelow(from->path))) {
    return Error(Code::kDenied, Escape(rename.from()) + ": jobs may not rename it: something below is kept from them");
  }
  std::optional<struct stat> source;
  if (from) {
    VRUN_ASSIGN(source, LstatAt(from->parent.get(), from->name));
  }
  if (!source) {
    // Done by a process of ours that died before it could say so; or somebody removed it here.
    VRUN_ASSIGN(const auto current, LstatAt(to.parent.get(), to.name));
    if (!current) paths_.NoticeChanged(rename.from(), "it was not renamed to " + Escape(message.path()));
    return {};
  }
  if (rename.exchange()) return Exchange(message, *from, to);
  VRUN_TRY(MakeWay(to, S_ISDIR(source->st_mode)));
  VRUN_ASSIGN(const auto target, LstatAt(to.parent.get(), to.name));
  const UniqueFd replaced = Hold(to, target);
  const auto move = [&] {
    return ::renameat(from->parent.get(), from->name.c_str(), to.parent.get(), to.name.c_str());
  };
  int error = WithWritable(from->parent.get(), [&] {
    const int result = WithWritable(to.parent.get(), move);
    errno = result;
    return result == 0 ? 0 : -1;
  });
  if (error == ENOTEMPTY || error == EEXIST) {
    // The job saw an empty directory there.
    paths_.NoticeChanged(to.path, Escape(rename.from()) + " was not renamed to it: it has what the job did not see");
    return {};
  }
  const bool copied = error == EXDEV;
  if (copied) {
    // Between file systems of home, which the job sees as one.
    const std::string temporary = TemporaryName(message.sequence());
    (void)RemoveTree("/proc/self/fd/" + std::to_string(to.parent.get()) + "/" + temporary);
    VRUN_TRY(CopyTree(from->parent.get(), from->name, to.parent.get(), temporary));
    error = WithWritable(to.parent.get(), [&] {
      return ::renameat(to.parent.get(), temporary.c_str(), to.parent.get(), to.name.c_str());
    });
    if (error == 0) {
      flush_.TouchedMuch(to.parent.get());
      VRUN_TRY(flush_.Flush());  // the original goes
      VRUN_TRY(RemoveTree("/proc/self/fd/" + std::to_string(from->parent.get()) + "/" + from->name));
    }
  }
  if (error != 0) return ErrnoError(error, "rename " + Escape(from->path) + " to " + Escape(to.path));
  flush_.Touched(from->parent.get());
  Done(to, message.sequence(), &*source, copied);
  LostName(replaced, message.sequence(), target, true);
  return {};
}

Status LiveApplier::Exchange(const WriteBack& message, const Place& from, const Place& to) {
  VRUN_ASSIGN(const auto source, LstatAt(from.parent.get(), from.name));
  VRUN_ASSIGN(const auto target, LstatAt(to.parent.get(), to.name));
  if (!source || !target) return {};
  const ApplyJournal::Intent& before = journal_.intent();
  // Twice is as good as never.
  const bool done =
      before.sequence == message.sequence() && before.device == target->st_dev && before.inode == target->st_ino;
  if (!done) {
    journal_.SetIntent({message.sequence(), source->st_dev, source->st_ino, 0});
    const int error = WithWritable(from.parent.get(), [&] {
      return ::renameat2(from.parent.get(), from.name.c_str(), to.parent.get(), to.name.c_str(), RENAME_EXCHANGE);
    });
    if (error != 0) return ErrnoError(error, "exchange " + Escape(from.path) + " and " + Escape(to.path));
  }
  // Done before: what both were like then is not known.
  Done(from, message.sequence(), done ? nullptr : &*target, false, true);
  Done(to, message.sequence(), done ? nullptr : &*source);
  return {};
}

Status LiveApplier::SetMeta(const WriteBack& message) {
  const Meta& meta = message.set_meta().meta();
  if ((meta.mode() & S_IFMT) == 0) return {};
  Place place;
  if (message.path() == "/") {
    place.asked = place.path = "/";
    place.name = ".";
    VRUN_ASSIGN(place.parent, paths_.OpenRoot());
    VRUN_TRY(paths_.RefuseHidden("/"));
  } else {
    VRUN_ASSIGN(auto found, paths_.Find(message.path()));
    if (!found) return {};
    place = *std::move(found);
  }
  VRUN_ASSIGN(auto current, LstatAt(place.parent.get(), place.name));
  if (!current || (current->st_mode & S_IFMT) != (meta.mode() & S_IFMT)) return {};
  VRUN_TRY(FinishMeta(place, place.name, meta, MetaFor::kFinal));
  flush_.TouchedAttributes(place.parent.get(), place.name);
  VRUN_ASSIGN(const auto set, LstatAt(place.parent.get(), place.name));
  if (set) current->st_mtim = set->st_mtim;
  Done(place, message.sequence(), &*current);
  return {};
}

}  // namespace

std::unique_ptr<Applier> MakeLiveApplier(ApplyOptions options, SafeRoot root, ApplyJournal journal) {
  return std::make_unique<LiveApplier>(std::move(options), std::move(root), std::move(journal));
}

}  // namespace vrun::home
