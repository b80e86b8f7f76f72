// SPDX-License-Identifier: Apache-2.0
#include "node/carry/carry.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/escape.h"
#include "base/files.h"
#include "node/carry/carry_parts.h"
#include "node/carry/overlay_layer.h"
#include "node/carry/rename_plan.h"

namespace vrun::node {
namespace {

using vrun::v1::BaseVersion;
using vrun::v1::Meta;
using vrun::v1::WriteBack;

// Deeper paths can only be made with chdir; they would make a series quadratic in their depth.
constexpr size_t kMaxPath = 32768;

constexpr char kMark[] = "trusted.vrun.root";
constexpr char kUserMark[] = "user.vrun.root";

bool SameMeta(Meta a, Meta b) {
  a.clear_atime_ns();
  b.clear_atime_ns();
  return a.SerializeAsString() == b.SerializeAsString();
}

class CarryImpl final : public Carry {
 public:
  CarryImpl(CarryOptions options, OverlayLayer upper, OverlayLayer lower)
      : options_(std::move(options)), upper_(std::move(upper)), lower_(std::move(lower)) {}

  Status Start() {
    VRUN_ASSIGN(RenamePlan plan, RenamePlan::Read(&upper_, &lower_, options_.skip));
    plan_ = std::move(plan);
    VRUN_ASSIGN(auto mark, upper_.Xattr("/", options_.user_xattrs ? kUserMark : kMark));
    carry_root_ = mark.has_value();
    return Restart(0);
  }

  Result<std::optional<WriteBack>> Next() override;
  Status Restart(uint64_t after_sequence) override;
  vrun::v1::WriteBackEnd End() const override {
    vrun::v1::WriteBackEnd end;
    end.set_sequence(sequence_);
    end.set_entries(entries_);
    return end;
  }

 private:
  enum class Phase { kRenames, kContent, kClosing, kDone };

  // Queued work, in order.
  struct Work {
    enum class Kind { kMessage, kFile, kRemoveBelow, kRemoveWhole };
    Kind kind = Kind::kMessage;
    WriteBack message;                    // kMessage, kFile
    const OverlayLayer* layer = nullptr;  // kFile: the layer with its data
    std::string from;                     // kFile: path of the data in `layer`; removals: path in the lower
    std::string below;                    // kFile: path in the lower of the file to which it was appended; "": none
    std::string path;                     // removals: current path at home
  };

  // A directory in the current walk.
  struct Frame {
    UpperDirectory directory;
    std::vector<LayerEntry> entries;
    size_t next = 0;
    bool directories = false;  // kContent: in the second pass, over the subdirectories
    bool changed = false;      // kClosing: an operation touched an entry of this directory
    bool closed = false;       // kClosing: removals and metadata were queued
  };
  Status Advance();
  Status AdvanceRenames();
  Status AdvanceContent();
  Status AdvanceClosing();
  Result<Frame> OpenFrame(UpperDirectory directory);

  Result<std::optional<WriteBack>> RunFront();
  Result<std::optional<WriteBack>> StepRemoval();
  Result<std::optional<WriteBack>> BeginFile();
  std::optional<WriteBack> Number(WriteBack message);

  Status PlanMove(const Move& move);
  Status EnsureParents(std::string_view path, UpperDirectory* parent);
  // Makes `path` free for something else; sets *base to the version still there to be replaced, if any.
  Status FreePlace(const UpperDirectory& parent, const std::string& path, std::optional<BaseVersion>* base);
  Status Evacuate(const std::string& from);
  Result<std::string> TemporaryFor(const std::string& current);
  std::string Current(const std::string& from) const;

  Status PlanEntry(const UpperDirectory& directory, const std::string& name);
  Result<std::optional<struct stat>> Occupant(const UpperDirectory& directory, const std::string& name) const;
  Result<Meta> UpperMeta(const std::string& path, const struct stat& st) const {
    return upper_.ReadMeta(path, st, options_.ids);
  }
  Status PlanDirectory(const UpperDirectory& directory, const std::optional<BaseVersion>& base);
  Status CloseDirectory(Frame& frame);
  WriteBack& Push(std::string path, const std::optional<BaseVersion>& base);

  CarryOptions options_;
  OverlayLayer upper_;
  OverlayLayer lower_;
  std::optional<RenamePlan> plan_;
  bool carry_root_ = false;

  // State of one series; Restart resets it.
  Phase phase_ = Phase::kRenames;
  uint64_t sequence_ = 0;
  uint64_t skip_until_ = 0;
  uint64_t entries_ = 0;
  std::deque<Work> work_;
  std::vector<Frame> frames_;
  std::optional<RemovalWalk> removal_;
  std::optional<FileCells> data_;
  size_t next_move_ = 0;
  std::map<std::string, std::string> located_;      // lower path of what was renamed so far -> its current path
  std::set<std::string> pending_;                   // sources still at their lower place, relative to their parents
  std::unordered_set<std::string> made_;            // directories that the first phase created
  std::unordered_set<std::string> held_temporary_;  // directories in which something was put aside
  uint64_t temporaries_ = 0;
  std::vector<UpperDirectory> chain_;             // the last result of EnsureParents
  std::unordered_map<ino_t, std::string> links_;  // upper inode with several names -> the name used at home
};

Status CarryImpl::Restart(uint64_t after_sequence) {
  phase_ = Phase::kRenames;
  sequence_ = entries_ = 0;
  skip_until_ = after_sequence;
  work_.clear();
  frames_.clear();
  removal_.reset();
  data_.reset();
  next_move_ = 0;
  located_.clear();
  pending_.clear();
  for (const Move& move : plan_->moves()) pending_.insert(move.from);
  made_.clear();
  held_temporary_.clear();
  temporaries_ = 0;
  chain_.clear();
  links_.clear();
  return {};
}

Result<std::optional<WriteBack>> CarryImpl::Next() {
  for (;;) {
    if (data_) {
      VRUN_ASSIGN(WriteBack message, data_->Next());
      sequence_ = message.sequence();
      if (message.file_data().last()) data_.reset();
      return message;
    } else if (!work_.empty()) {
      VRUN_ASSIGN(auto message, RunFront());
      if (message) return message;
    } else if (phase_ == Phase::kDone) {
      return std::nullopt;
    } else {
      VRUN_TRY(Advance());
    }
  }
}

std::optional<WriteBack> CarryImpl::Number(WriteBack message) {
  ++entries_;
  message.set_sequence(++sequence_);
  if (sequence_ <= skip_until_) return std::nullopt;
  return message;
}

Result<std::optional<WriteBack>> CarryImpl::RunFront() {
  switch (work_.front().kind) {
    case Work::Kind::kMessage: {
      WriteBack message = std::move(work_.front().message);
      work_.pop_front();
      return Number(std::move(message));
    }
    case Work::Kind::kFile: return BeginFile();
    case Work::Kind::kRemoveBelow: return StepRemoval();
    case Work::Kind::kRemoveWhole: return StepRemoval();
  }
  return std::nullopt;
}

Result<std::optional<WriteBack>> CarryImpl::BeginFile() {
  Work work = std::move(work_.front());
  work_.pop_front();
  uint64_t size = work.message.put_file().size();
  uint64_t cells = FileCells::Count(size);
  ++entries_;
  work.message.set_sequence(++sequence_);
  if (sequence_ + cells <= skip_until_) {
    sequence_ += cells;
    return std::nullopt;
  }
  UniqueFd fd;
  if (size > 0) {
    VRUN_ASSIGN(fd, work.layer->OpenRegular(work.from));
  }
  if (!work.below.empty()) {
    const auto below = lower_.OpenRegular(work.below);
    work.message.mutable_put_file()->set_appended(below &&
                                                  SameBeginning(fd.get(), below->get(), work.message.base().size()));
  }
  data_.emplace(std::move(fd), work.message.path(), size, sequence_ + 1);
  return std::move(work.message);
}

Result<std::optional<WriteBack>> CarryImpl::StepRemoval() {
  Work& work = work_.front();
  if (!removal_) {
    removal_.emplace(
        &lower_,
        [this](const std::string& from, const std::string& path) {
          return plan_->MovedAway(from) || plan_->Skipped(path);
        },
        work.from, work.path, work.kind == Work::Kind::kRemoveBelow);
  }
  VRUN_ASSIGN(auto message, removal_->Next());
  if (message) return Number(*std::move(message));
  removal_.reset();
  work_.pop_front();
  return std::nullopt;
}

// --- the walks ---

WriteBack& CarryImpl::Push(std::string path, const std::optional<BaseVersion>& base) {
  Work& work = work_.emplace_back();
  work.message.set_path(std::move(path));
  if (base) *work.message.mutable_base() = *base;
  return work.message;
}

Result<CarryImpl::Frame> CarryImpl::OpenFrame(UpperDirectory directory) {
  if (directory.path.size() > kMaxPath) {
    return Error(Code::kUnsupported, "a directory is nested too deep to be carried home: it begins with " +
                                         Escape(directory.path.substr(0, 200)));
  }
  Frame frame;
  VRUN_ASSIGN(frame.entries, upper_.List(directory.path));
  std::erase_if(frame.entries, [&](const LayerEntry& e) { return plan_->Skipped(JoinPath(directory.path, e.name)); });
  frame.directory = std::move(directory);
  return frame;
}

Status CarryImpl::Advance() {
  switch (phase_) {
    case Phase::kRenames: return AdvanceRenames();
    case Phase::kContent: return AdvanceContent();
    case Phase::kClosing: return AdvanceClosing();
    case Phase::kDone: return {};
  }
  return {};
}

Status CarryImpl::AdvanceRenames() {
  if (next_move_ < plan_->moves().size()) return PlanMove(plan_->moves()[next_move_++]);
  phase_ = Phase::kContent;
  VRUN_ASSIGN(Frame frame, OpenFrame(plan_->Root()));
  frames_.push_back(std::move(frame));
  return {};
}

Status CarryImpl::AdvanceContent() {
  if (frames_.empty()) {
    phase_ = Phase::kClosing;
    VRUN_ASSIGN(Frame frame, OpenFrame(plan_->Root()));
    frames_.push_back(std::move(frame));
    return {};
  }
  Frame& frame = frames_.back();
  if (frame.next == frame.entries.size()) {
    if (frame.directories) {
      frames_.pop_back();
    } else {
      frame.directories = true;
      frame.next = 0;
    }
    return {};
  }
  const LayerEntry& entry = frame.entries[frame.next++];
  if (entry.directory != frame.directories) return {};
  if (!entry.directory) return PlanEntry(frame.directory, entry.name);
  VRUN_ASSIGN(UpperDirectory child, plan_->Enter(frame.directory, entry.name));
  if (!child.home && !made_.contains(child.path)) {
    std::optional<BaseVersion> base;
    VRUN_ASSIGN(auto occupant, Occupant(frame.directory, entry.name));
    if (occupant) base = VersionOf(*occupant);
    VRUN_TRY(PlanDirectory(child, base));
  }
  VRUN_ASSIGN(Frame inner, OpenFrame(std::move(child)));
  frames_.push_back(std::move(inner));
  return {};
}

Result<std::optional<struct stat>> CarryImpl::Occupant(const UpperDirectory& directory, const std::string& name) const {
  if (!directory.home) return std::nullopt;
  std::string there = JoinPath(*directory.home, name);
  if (plan_->MovedAway(there)) return std::nullopt;
  return lower_.Lstat(there);
}

Status CarryImpl::PlanDirectory(const UpperDirectory& directory, const std::optional<BaseVersion>& base) {
  VRUN_ASSIGN(auto st, upper_.Lstat(directory.path));
  if (!st) return Error(Code::kCorrupt, Escape(directory.path) + ": it vanished from the task's directory");
  VRUN_ASSIGN(Meta meta, UpperMeta(directory.path, *st));
  *Push(directory.path, base).mutable_make_directory()->mutable_meta() = std::move(meta);
  return {};
}

// Handles one upper name that is not a directory.
Status CarryImpl::PlanEntry(const UpperDirectory& directory, const std::string& name) {
  std::string path = JoinPath(directory.path, name);
  VRUN_ASSIGN(auto st, upper_.Lstat(path));
  if (!st) return Error(Code::kCorrupt, Escape(path) + ": it vanished from the task's directory");
  VRUN_ASSIGN(bool whiteout, upper_.IsWhiteout(path, *st));
  if (whiteout) return {};
  // Device nodes cannot be created in a user namespace.
  if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) return {};
  if (plan_->IsDestination(path)) {
    if (st->st_nlink > 1) links_.emplace(st->st_ino, path);
    return {};
  }

  bool metacopy = false;
  std::string data;
  if (S_ISREG(st->st_mode)) {
    VRUN_ASSIGN(metacopy, upper_.IsMetacopy(path));
  }
  if (metacopy) {
    VRUN_ASSIGN(data, plan_->DataOf(directory, name));
  }

  VRUN_ASSIGN(auto occupant, Occupant(directory, name));
  std::optional<BaseVersion> base;
  if (occupant) base = VersionOf(*occupant);
  VRUN_ASSIGN(Meta meta, UpperMeta(path, *st));

  if (metacopy && occupant && JoinPath(*directory.home, name) == data) {
    if (st->st_nlink > 1) links_.emplace(st->st_ino, path);
    VRUN_ASSIGN(Meta before, lower_.ReadMeta(data, *occupant, options_.ids));
    if (!SameMeta(meta, before)) *Push(std::move(path), base).mutable_set_meta()->mutable_meta() = std::move(meta);
    return {};
  }

  if (occupant && S_ISDIR(occupant->st_mode)) {
    Work& work = work_.emplace_back();
    work.kind = Work::Kind::kRemoveBelow;
    work.from = JoinPath(*directory.home, name);
    work.path = path;
  }
  if (st->st_nlink > 1) {
    const std::string& primary = plan_->PrimaryName(st->st_ino);
    auto [it, first] = links_.try_emplace(st->st_ino, primary.empty() ? path : primary);
    if (it->second != path) {
      vrun::v1::MakeHardLink* link = Push(std::move(path), base).mutable_make_hard_link();
      link->set_existing(it->second);
      if (!metacopy) return {};
      VRUN_ASSIGN(const auto seen, lower_.Lstat(data));
      if (seen) *link->mutable_source() = VersionOf(*seen);
      link->set_seen(data);
      return {};
    }
  }
  WriteBack& message = Push(path, base);
  if (S_ISREG(st->st_mode)) {
    vrun::v1::PutFile* put = message.mutable_put_file();
    *put->mutable_meta() = std::move(meta);
    put->set_size(static_cast<uint64_t>(st->st_size));
    put->set_sparse(static_cast<uint64_t>(st->st_blocks) * 512 < static_cast<uint64_t>(st->st_size));
    Work& work = work_.back();
    work.kind = Work::Kind::kFile;
    work.layer = metacopy ? &lower_ : &upper_;
    work.from = metacopy ? data : path;
    if (!metacopy && occupant && S_ISREG(occupant->st_mode) && st->st_size > occupant->st_size) {
      work.below = JoinPath(*directory.home, name);
    }
  } else if (S_ISLNK(st->st_mode)) {
    VRUN_ASSIGN(std::string target, upper_.ReadLink(path));
    message.mutable_make_symlink()->set_target(std::move(target));
    *message.mutable_make_symlink()->mutable_meta() = std::move(meta);
  } else {
    *message.mutable_make_special()->mutable_meta() = std::move(meta);
  }
  return {};
}

Status CarryImpl::AdvanceClosing() {
  if (frames_.empty()) {
    phase_ = Phase::kDone;
    return {};
  }
  Frame& frame = frames_.back();
  if (frame.next < frame.entries.size()) {
    const LayerEntry& entry = frame.entries[frame.next++];
    if (!entry.directory) return {};
    VRUN_ASSIGN(UpperDirectory child, plan_->Enter(frame.directory, entry.name));
    if (!child.home || plan_->IsDestination(child.path)) frame.changed = true;
    VRUN_ASSIGN(Frame inner, OpenFrame(std::move(child)));
    frames_.push_back(std::move(inner));
    return {};
  }
  VRUN_TRY(CloseDirectory(frame));
  frames_.pop_back();
  return {};
}

Status CarryImpl::CloseDirectory(Frame& frame) {
  const UpperDirectory& directory = frame.directory;
  auto remove = [&](const std::string& name) -> Status {
    VRUN_ASSIGN(auto occupant, Occupant(directory, name));
    if (!occupant) return {};
    frame.changed = true;
    Work& work = work_.emplace_back();
    work.kind = Work::Kind::kRemoveWhole;
    work.from = JoinPath(*directory.home, name);
    work.path = JoinPath(directory.path, name);
    return {};
  };
  std::set<std::string_view> here;
  bool opaque = directory.home && !directory.merged;
  for (const LayerEntry& entry : frame.entries) {
    if (!entry.directory) {
      frame.changed = true;
      std::string path = JoinPath(directory.path, entry.name);
      VRUN_ASSIGN(auto st, upper_.Lstat(path));
      if (!st) return Error(Code::kCorrupt, Escape(path) + ": it vanished from the task's directory");
      VRUN_ASSIGN(bool whiteout, upper_.IsWhiteout(path, *st));
      if (whiteout) {
        VRUN_TRY(remove(entry.name));
      }
    }
    here.insert(entry.name);
  }
  if (opaque) {
    VRUN_ASSIGN(auto below, lower_.List(*directory.home));
    for (const LayerEntry& entry : below) {
      if (!here.contains(entry.name) && !plan_->Skipped(JoinPath(directory.path, entry.name))) {
        VRUN_TRY(remove(entry.name));
      }
    }
  }
  if (directory.path == "/" && !carry_root_) return {};
  VRUN_ASSIGN(auto st, upper_.Lstat(directory.path));
  if (!st) return Error(Code::kCorrupt, Escape(directory.path) + ": it vanished from the task's directory");
  VRUN_ASSIGN(Meta meta, UpperMeta(directory.path, *st));
  std::optional<BaseVersion> base;
  bool due = frame.changed || !directory.home || held_temporary_.contains(directory.path);
  if (directory.home) {
    VRUN_ASSIGN(auto before, lower_.Lstat(*directory.home));
    if (before) {
      base = VersionOf(*before);
      if (!due) {
        VRUN_ASSIGN(Meta lower_meta, lower_.ReadMeta(*directory.home, *before, options_.ids));
        due = !SameMeta(meta, lower_meta);
      }
    }
  }
  if (due) *Push(directory.path, base).mutable_set_meta()->mutable_meta() = std::move(meta);
  return {};
}

// --- renames ---

std::string CarryImpl::Current(const std::string& from) const {
  for (std::string_view prefix = from; prefix.size() > 1; prefix = ParentPath(prefix)) {
    auto it = located_.find(std::string(prefix));
    if (it != located_.end()) return it->second + from.substr(prefix.size());
  }
  return from;
}

Status CarryImpl::PlanMove(const Move& move) {
  UpperDirectory parent;
  VRUN_TRY(EnsureParents(move.to, &parent));
  std::optional<BaseVersion> base;
  VRUN_TRY(FreePlace(parent, move.to, &base));
  VRUN_ASSIGN(auto source, lower_.Lstat(move.from));
  if (!source)
    return Error(Code::kCorrupt, Escape(move.from) + ": the command renamed it, but the root does not have it");
  WriteBack& message = Push(move.to, base);
  message.mutable_rename()->set_from(Current(move.from));
  message.mutable_rename()->set_seen(move.from);
  *message.mutable_rename()->mutable_source() = VersionOf(*source);
  if (!move.directory) {
    VRUN_ASSIGN(auto st, upper_.Lstat(move.to));
    if (!st) return Error(Code::kCorrupt, Escape(move.to) + ": it vanished from the task's directory");
    VRUN_ASSIGN(Meta meta, UpperMeta(move.to, *st));
    *message.mutable_rename()->mutable_meta() = std::move(meta);
  }
  located_[move.from] = move.to;
  pending_.erase(move.from);
  return {};
}

Status CarryImpl::EnsureParents(std::string_view path, UpperDirectory* parent) {
  std::string_view wanted = ParentPath(path);
  while (!chain_.empty() && !IsAtOrBelow(wanted, chain_.back().path)) chain_.pop_back();
  if (chain_.empty()) chain_.push_back(plan_->Root());
  while (chain_.back().path != wanted) {
    size_t begin = chain_.back().path == "/" ? 1 : chain_.back().path.size() + 1;
    std::string name(wanted.substr(begin, wanted.find('/', begin) - begin));
    VRUN_ASSIGN(UpperDirectory next, plan_->Enter(chain_.back(), name));
    if (!next.home && !made_.contains(next.path)) {
      std::optional<BaseVersion> base;
      VRUN_TRY(FreePlace(chain_.back(), next.path, &base));
      VRUN_TRY(PlanDirectory(next, base));
      made_.insert(next.path);
    }
    chain_.push_back(std::move(next));
  }
  *parent = chain_.back();
  return {};
}

Status CarryImpl::FreePlace(const UpperDirectory& parent, const std::string& path, std::optional<BaseVersion>* base) {
  if (!parent.home) return {};
  std::string there = JoinPath(*parent.home, BaseName(path));
  if (plan_->MovedAway(there)) {
    if (pending_.contains(there) && Current(there) == path) return Evacuate(there);
    return {};
  }
  VRUN_ASSIGN(auto st, lower_.Lstat(there));
  if (!st) return {};
  *base = VersionOf(*st);
  if (!S_ISDIR(st->st_mode)) return {};
  // The directory itself will be removed, but not what was moved out of it.
  std::vector<std::string> inside;
  for (auto it = pending_.lower_bound(there + "/"); it != pending_.end() && IsAtOrBelow(*it, there); ++it) {
    inside.push_back(*it);
  }
  for (const std::string& from : inside) {
    if (IsAtOrBelow(Current(from), path)) VRUN_TRY(Evacuate(from));
  }
  Work& work = work_.emplace_back();
  work.kind = Work::Kind::kRemoveBelow;
  work.from = std::move(there);
  work.path = path;
  return {};
}

Status CarryImpl::Evacuate(const std::string& from) {
  std::string current = Current(from);
  VRUN_ASSIGN(std::string temporary, TemporaryFor(current));
  VRUN_ASSIGN(auto source, lower_.Lstat(from));
  if (!source) return Error(Code::kCorrupt, Escape(from) + ": the command renamed it, but the root does not have it");
  WriteBack& message = Push(temporary, std::nullopt);
  message.mutable_rename()->set_from(current);
  message.mutable_rename()->set_seen(from);
  *message.mutable_rename()->mutable_source() = VersionOf(*source);
  located_[from] = std::move(temporary);
  pending_.erase(from);
  return {};
}

// A free name in the nearest ancestor that is neither moved nor removed, so that the name stays valid.
Result<std::string> CarryImpl::TemporaryFor(const std::string& current) {
  UpperDirectory at = plan_->Root();
  std::string_view parent = ParentPath(current);
  while (at.path != parent) {
    size_t begin = at.path == "/" ? 1 : at.path.size() + 1;
    std::string name(parent.substr(begin, parent.find('/', begin) - begin));
    VRUN_ASSIGN(auto st, upper_.Lstat(JoinPath(at.path, name)));
    if (!st || !S_ISDIR(st->st_mode)) break;
    VRUN_ASSIGN(UpperDirectory next, plan_->Enter(at, name));
    if (!next.home || *next.home != next.path) break;
    at = std::move(next);
  }
  held_temporary_.insert(at.path);
  for (;;) {
    std::string path =
        JoinPath(at.path, ".vrun-" + std::to_string(options_.job) + "-" + std::to_string(++temporaries_));
    VRUN_ASSIGN(auto below, lower_.Lstat(path));
    VRUN_ASSIGN(auto above, upper_.Lstat(path));
    if (!below && !above) return path;
  }
}

}  // namespace

Result<std::unique_ptr<Carry>> Carry::Open(CarryOptions options) {
  VRUN_ASSIGN(OverlayLayer upper, OverlayLayer::Open(options.upper, options.user_xattrs));
  VRUN_ASSIGN(OverlayLayer lower, OverlayLayer::Open(options.lower, options.user_xattrs, options.apart));
  auto carry = std::make_unique<CarryImpl>(std::move(options), std::move(upper), std::move(lower));
  VRUN_TRY(carry->Start());
  return std::unique_ptr<Carry>(std::move(carry));
}

Status PrepareUpper(const std::string& upper, const std::string& lower, const std::string& apart, bool user_xattrs) {
  VRUN_ASSIGN(OverlayLayer from, OverlayLayer::Open(lower, user_xattrs, apart));
  VRUN_ASSIGN(auto st, from.Lstat("/"));
  if (!st) return Error(Code::kUnavailable, Escape(lower) + ": the root is not there");
  auto fail = [&] { return ErrnoError("prepare " + Escape(upper)); };
  if (::lchown(upper.c_str(), st->st_uid, st->st_gid) != 0) return fail();
  if (::chmod(upper.c_str(), st->st_mode & 07777) != 0) return fail();
  for (const char* name : {"system.posix_acl_access", "system.posix_acl_default"}) {
    VRUN_ASSIGN(auto value, from.Xattr("/", name));
    if (value && ::lsetxattr(upper.c_str(), name, value->data(), value->size(), 0) != 0) return fail();
  }
  if (::lsetxattr(upper.c_str(), user_xattrs ? kUserMark : kMark, "1", 1, 0) != 0) return fail();
  struct timespec times[2] = {st->st_atim, st->st_mtim};
  if (::utimensat(AT_FDCWD, upper.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) return fail();
  return {};
}

}  // namespace vrun::node
