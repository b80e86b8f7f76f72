// SPDX-License-Identifier: Apache-2.0
// LiveRoot with a journal: what changed is written down before it is answered, and goes home.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "proto/task.pb.h"
#include "vfs/attributes.h"
#include "vfs/live_root.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kResent = 1ull << 63;  // in the unique of a request that another server had (FUSE_UNIQUE_RESEND)
constexpr size_t kMostLately = 4096;      // more than are done while one waits to be answered
constexpr auto kOwedPause = std::chrono::milliseconds(50);

}  // namespace

Status LiveRoot::Begin(LiveJournal* journal, LiveStream* stream, LiveState* state) {
  journal_ = journal;
  stream_ = stream;
  files_.SetJournal(journal);
  if (state != nullptr) {
    VRUN_TRY(RestoreFrom(state));
  }
  {
    const TreeLock lock(*this);
    tree_.Track();
    if (state == nullptr) {
      LiveState begin;
      begin.tree = home_tree_;
      frame_.Header(begin);
      tree_.Touch(tree_.root());
    }
  }
  stream_->SetOnApplied(
      [this](uint64_t number, const std::vector<LiveStream::Applied>& applied) { OnAcknowledged(number, applied); });
  std::lock_guard lock(dirty_mutex_);
  tick_ = backend_.timers().After(options_.publish_micros, [this, gate = gate_] {
    const Gate::Pass pass(gate.get());
    if (pass) Tick();
  });
  return {};
}

// --- the journal -----------------------------------------------------------------------------------------------------

uint64_t LiveRoot::WriteJournalLocked() {
  if (journal_ == nullptr) return 0;
  const bool changing = std::exchange(changing_, false);
  if (told_ > 0) told_changes_.emplace_back(stream_->last(), tree_.changes());
  LiveTree::Touched touched = tree_.TakeTouched();
  if (touched.empty() && frame_.empty()) return 0;
  const bool told = std::exchange(told_, 0) > 0;
  const uint64_t last = stream_->last();
  for (const uint64_t nodeid : touched.nodes) {
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) continue;
    if (told && node->change != 0) node->operation = last;
    frame_.Node(*node, node->file ? node->file->id() : 0);
  }
  for (const auto& [nodeid, name] : touched.names) {
    LiveNode* directory = tree_.Find(nodeid);
    if (directory == nullptr) continue;
    auto& entries = directory->directory->entries;
    const auto it = entries.find(name);
    if (it == entries.end()) {
      frame_.Name(nodeid, name, nullptr);
      continue;
    }
    LiveEntry& entry = it->second;
    if (told && entry.change != 0) entry.operation = last;
    const LiveSavedName saved{entry.node != nullptr ? entry.node->nodeid : 0, entry.cookie, entry.operation};
    frame_.Name(nodeid, name, &saved);
  }
  for (const uint64_t nodeid : touched.places) {
    if (const LiveNode* directory = tree_.Find(nodeid)) frame_.Places(*directory);
  }
  for (const uint64_t nodeid : touched.gone) frame_.Gone(nodeid);
  const Status appended = journal_->Append(frame_, changing ? LiveJournal::Of::kChange : LiveJournal::Of::kReading);
  frame_.clear();
  return told && appended ? last : 0;  // what is not in it goes home with the next checkpoint
}

int LiveRoot::ChangeLocked(uint64_t bytes) {
  if (journal_ == nullptr) return 0;
  if (!journal_->TakesChange(bytes)) return ENOSPC;
  changing_ = true;
  return 0;
}

int LiveRoot::MakeJournalRoom() {
  uint64_t lacks = 0;
  const int error = journal_->Reserve(&lacks);
  if (error == 0) return 0;
  (void)files_.GiveWay(error, lacks);
  Checkpoint();
  return journal_->Reserve(&lacks);
}

void LiveRoot::SeekJournalRoom() {
  if (journal_ != nullptr && !journal_->TakesChange()) (void)MakeJournalRoom();
}

LiveState LiveRoot::NumbersLocked() {
  LiveState numbers;
  numbers.tree = home_tree_;
  numbers.acknowledged = stream_->acknowledged();
  numbers.next_operation = stream_->last() + 1;
  numbers.next_node = tree_.next_id();
  numbers.next_cookie = tree_.next_cookie();
  numbers.next_file = files_.NextId();
  return numbers;
}

void LiveRoot::Checkpoint() {
  std::lock_guard alone(checkpoint_mutex_);
  if (!journal_->WantsCheckpoint()) return;
  LiveFrame all;
  uint64_t last = 0;
  {
    const TreeLock lock(*this);
    journal_->BeginCheckpoint();
    last = stream_->last();
    all.Header(NumbersLocked());
    tree_.ForEach([&](const LiveNode& node) {
      all.Node(node, node.file ? node.file->id() : 0);
      if (node.file) all.File(node.file->State());
    });
    tree_.ForEach([&](const LiveNode& node) {
      if (!node.is_directory()) return;
      if (!node.directory->places.empty()) all.Places(node);
      for (const auto& [name, entry] : node.directory->entries) {
        const LiveSavedName saved{entry.node != nullptr ? entry.node->nodeid : 0, entry.cookie, entry.operation};
        all.Name(node.nodeid, name, &saved);
      }
    });
    stream_->ForEach([&](const LiveOperation& op) { all.Operation(op); });
    for (const auto& [unique, node] : lately_) all.Done(unique, node);
    if (!untold_.empty()) all.Untold(untold_);
    if (!left_untold_.empty()) all.Untold(left_untold_);
    for (const auto& [directory, name] : doubt_.absent()) all.Absent(directory, name);
  }
  if (const Status written = journal_->FinishCheckpoint(all); !written) {
    LogWarning("{}: the journal of a live view stays as it is", written.error().message());
  } else {
    stream_->Release(last);  // some of it the journal had not
  }
}

Status LiveRoot::RestoreFrom(LiveState* state) {
  std::unordered_map<uint64_t, bool> wanted;  // by backing file
  for (const auto& [nodeid, file] : state->file_of) wanted[file] = true;
  for (const auto& [number, op] : state->operations) {
    if (op.content.file != 0) wanted[op.content.file] = true;
    if (op.content.aside != 0) wanted[op.content.aside] = true;
  }
  restored_ = true;
  // Before anything is answered: the one after this may learn of nothing else.
  state->SkipNumbers();
  LiveFrame begun;
  begun.Header(*state);
  VRUN_TRY(journal_->Append(begun, LiveJournal::Of::kChange));
  VRUN_TRY(files_.Restore(state->next_file, [&](uint64_t id) { return wanted.contains(id); }));
  std::unordered_map<uint64_t, std::shared_ptr<LiveFile>> files;
  for (const auto& [id, saved] : state->files) {
    if (!wanted.contains(id)) continue;
    std::shared_ptr<FileContent> lower;
    if (saved.incomplete) lower = backend_.files().Get(saved.lower, std::nullopt);
    if (auto file = LiveFile::Restore(files_, saved, std::move(lower))) files[id] = std::move(file);
  }
  for (auto& [number, op] : state->operations) {
    if (op.kind != LiveOperation::Kind::kPut) continue;
    const auto file = files.find(op.content.file);
    if (file != files.end()) op.version = file->second->RestoreVersion(op.content);
  }
  done_.insert(state->done.begin(), state->done.end());
  lately_ = state->done;  // this one may die before it has answered
  left_untold_ = std::move(state->untold);
  for (const auto& [directory, name] : state->absent) (void)doubt_.NoteAbsent(directory, name);
  std::vector<uint64_t> dirty;
  for (const auto& [nodeid, id] : state->file_of) {
    const auto file = files.find(id);
    const auto node = state->nodes.find(nodeid);
    if (file == files.end() || node == state->nodes.end()) continue;
    if (file->second->dirty() || !node->second->named_at_home) dirty.push_back(nodeid);
  }
  {
    std::lock_guard lock(mutex_);
    VRUN_TRY(tree_.Restore(state, files));
    told_changes_.emplace_back(state->next_operation - 1, tree_.changes());
    acknowledged_ = state->acknowledged;
  }
  stream_->Restore(std::move(state->operations), state->acknowledged, state->next_operation);
  for (const uint64_t nodeid : dirty) NoteDirty(nodeid);
  return {};
}

uint64_t LiveRoot::ChangesIn(uint64_t operation) {
  while (!told_changes_.empty() && told_changes_.front().first <= operation) {
    included_changes_ = told_changes_.front().second;
    told_changes_.pop_front();
  }
  return included_changes_;
}

// --- what home is told -----------------------------------------------------------------------------------------------

void LiveRoot::WithRoom(Reply reply, Then then) {
  if (journal_ == nullptr) return then(std::move(reply));
  if (!stream_->HasRoom()) {
    reply.Suspend();
    const auto shared = std::make_shared<Reply>(std::move(reply));
    const auto again = [this, gate = gate_, shared, then] {
      const Gate::Pass pass(gate.get());
      if (pass) WithRoom(std::move(*shared), then);
    };
    if (!stream_->MustWait(again)) again();
    return;
  }
  if (const int error = MakeJournalRoom(); error != 0) {
    reply.Error(error);
    return;
  }
  then(std::move(reply));
}

void LiveRoot::DidLocked(const Request& request, uint64_t node) {
  if (journal_ == nullptr) return;
  frame_.Done(request.unique & ~kResent, node);
  lately_.emplace_back(request.unique & ~kResent, node);
  if (lately_.size() > kMostLately) lately_.pop_front();
}

std::optional<uint64_t> LiveRoot::WasDone(const Request& request, Reply* reply) {
  if ((request.unique & kResent) == 0) return std::nullopt;
  const auto it = done_.find(request.unique & ~kResent);
  if (it == done_.end()) return std::nullopt;
  if (reply == nullptr) return it->second;
  fuse_entry_out out{};
  {
    const TreeLock lock(*this);
    if (LiveNode* node = tree_.Find(it->second)) out = CountedEntryLocked(node);
  }
  if (out.nodeid == 0) {
    reply->Error(0);
  } else if (!reply->Struct(out)) {
    Forget(out.nodeid, 1);
  }
  return it->second;
}

// What home had goes from there with the next version of ours: so all of it is here before that is told.
void LiveRoot::WithContent(uint64_t nodeid, Reply reply, Then then) {
  std::shared_ptr<LiveFile> file;
  if (journal_ != nullptr) {
    const TreeLock lock(*this);
    const LiveNode* node = tree_.Find(nodeid);
    if (node != nullptr) file = node->file;
  }
  if (!file || file->complete() || !file->dirty()) return then(std::move(reply));
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  NeedOwn(nodeid, file, {0, UINT64_MAX}, false, [this, nodeid, shared, then](int error) {
    if (error != 0) {
      Publish(nodeid);  // as in PublishWhole
      shared->Error(error);
    } else {
      then(std::move(*shared));
    }
  });
}

LiveOperation LiveRoot::OperationLocked(Kind kind, LiveNode* node) const {
  LiveOperation op;
  op.kind = kind;
  op.node = node->nodeid;
  uint64_t valid = 0;
  const fuse_attr attr = AttrLocked(*node, &valid);
  op.attributes = node->attributes;
  op.attributes.uid = options_.ids.ToHome(attr.uid);
  op.attributes.gid = options_.ids.ToHome(attr.gid);
  op.attributes.mtime = {static_cast<time_t>(attr.mtime), static_cast<long>(attr.mtimensec)};
  op.attributes.atime = {static_cast<time_t>(attr.atime), static_cast<long>(attr.atimensec)};
  for (const auto& [name, value] : node->xattrs) {
    op.xattrs.emplace_back(name, HomeXattr(name, value, options_.ids));
  }
  op.target = node->target;
  return op;
}

void LiveRoot::AddLocked(LiveOperation op) {
  op.number = stream_->last() + 1;
  frame_.Operation(op);
  ++told_;
  stream_->Add(std::move(op));
}

void LiveRoot::TellLocked(Kind kind, LiveNode* node, std::string path, std::string from, uint64_t other) {
  if (journal_ == nullptr) return;
  LiveOperation op = OperationLocked(kind, node);
  op.path = std::move(path);
  op.from = std::move(from);
  op.other = other;
  op.born = !node->named_at_home;
  node->named_at_home = true;
  tree_.Touch(node);
  AddLocked(std::move(op));
}

void LiveRoot::TellMadeLocked(LiveNode* node) {
  if (journal_ == nullptr) return;
  const uint32_t type = node->attributes.mode & S_IFMT;
  const std::string path = tree_.PathOf(*node);
  if (type == S_IFDIR) TellLocked(Kind::kDirectory, node, path);
  if (type == S_IFLNK) TellLocked(Kind::kSymlink, node, path);
  if (type == S_IFIFO || type == S_IFSOCK) TellLocked(Kind::kSpecial, node, path);
  // A regular file when it is published. A device never: only root could make it at home, and should not.
}

void LiveRoot::TellMetaLocked(LiveNode* node) {
  if (journal_ == nullptr) return;
  tree_.Touch(node);
  // What home has not heard of comes with all its attributes.
  if (!node->named_at_home || (node->names.empty() && node->nodeid != LiveTree::kRootId)) return;
  TellLocked(Kind::kMeta, node, tree_.PathOf(*node));
}

// With the operations up to now home has it as it is here: without what was gone before home heard of it.
void LiveRoot::NothingToTellLocked() {
  if (journal_ != nullptr) ++told_;
}

void LiveRoot::TellIfLostLocked(LiveNode* node) {
  const bool lost = node->file && node->file->dirty() && node->gone_at_home && node->names.empty() &&
                    PlaceOfOvertakenLocked(*node).empty();
  if (!lost || journal_ == nullptr || std::exchange(node->lost_reported, true)) return;
  LogWarning("{} is gone at home: what was written to it since goes nowhere", Escape(node->HomePath()));
  LiveOperation op;
  op.kind = Kind::kMeta;  // of mode 0
  op.node = node->nodeid;
  op.path = node->HomePath();
  if (ChangeLocked() == 0) AddLocked(std::move(op));
}

void LiveRoot::TellRemovedLocked(uint64_t nodeid, const std::string& path, bool gone) {
  if (journal_ == nullptr) return;
  if (gone) {
    auto taken = stream_->TakeBack(nodeid);
    for (LiveOperation& op : taken) {
      frame_.Dropped(op.number);
      taken_back_.push_back(std::move(op));
    }
    if (!taken.empty()) return NothingToTellLocked();
  }
  LiveOperation op;
  op.kind = Kind::kRemove;
  op.node = nodeid;
  op.path = path;
  AddLocked(std::move(op));
}

// Home has changed or replaced a file, and with that another node has its name, while somebody here had it open or was
// about to open it: what was written to it belongs into what is there now, as on any shared file system; but not what
// home has put there in its place, other than at the end. "": there is no such place.
std::string LiveRoot::PlaceOfOvertakenLocked(const LiveNode& node) {
  if (!node.gone_at_home || !node.replaced || !node.file) return "";
  const LiveNode* directory = tree_.Find(node.replaced->first);
  const std::string& name = node.replaced->second;
  if (directory == nullptr || !directory->is_directory() || !directory->directory->loaded) return "";
  const LiveDirectory& of = *directory->directory;
  const size_t index = of.loaded->directory->Find(name);
  if (index == of.loaded->directory->size()) return "";
  const tree::Entry is = of.loaded->directory->At(index);
  const auto entry = of.entries.find(name);
  if (!is.is_regular() || (entry != of.entries.end() && entry->second.node == nullptr)) return "";
  const bool same = is.ino == node.version.ino || is.ino == node.at_home.ino;
  return same || node.file->Appended() > 0 ? tree_.PathOf(*directory, name) : "";
}

int LiveRoot::PublishLocked(LiveNode* node) {
  if (journal_ == nullptr || !node->file) return 0;
  const std::string path = node->names.empty() ? PlaceOfOvertakenLocked(*node) : tree_.PathOf(*node);
  if (path.empty()) return 0;
  if (node->named_at_home && !node->file->dirty()) return 0;
  tree::FileVersion base;
  std::shared_ptr<LiveVersion> version;
  int error = ChangeLocked();
  if (error == 0) {
    auto published = node->file->Publish(&base);
    if (published) {
      version = *std::move(published);
    } else {
      error = published.error().error_number() != 0 ? published.error().error_number() : EIO;
    }
  }
  if (error != 0) {
    std::lock_guard lock(dirty_mutex_);
    dirty_.try_emplace(node->nodeid, Dirty{MonotonicMicros()}).first->second.owed = true;
    return error;
  }
  node->truncated = false;
  if (version == nullptr) return 0;  // nothing new
  LiveOperation op = OperationLocked(Kind::kPut, node);
  op.path = path;
  op.born = !node->named_at_home;
  op.base = base;
  op.content = version->content();
  op.version = version;
  // Whatever file is there.
  if (node->names.empty() && op.content.over == v1::APPEND) op.content.over = v1::APPEND_ANY;
  // What home has of it already is written in place.
  if (!op.born) {
    op.linked = node->at_home.ino != 0 ? node->at_home.ino : node->home ? node->version.ino : UINT64_MAX;
  }
  node->named_at_home = true;
  tree_.Changed(node);  // anew: its number is to be one that home has with this operation, and not with an earlier one
  for (const LiveName& name : node->names) tree_.TouchName(*name.parent, name.name);
  AddLocked(std::move(op));
  // Its other names are to be names of what took its place (also of an append, for which home may want the whole).
  for (size_t i = 1; i < node->names.size(); ++i) {
    TellLocked(Kind::kLink, node, tree_.PathOf(*node->names[i].parent, node->names[i].name), path);
  }
  return 0;
}

// --- when ------------------------------------------------------------------------------------------------------------

void LiveRoot::NoteDirty(uint64_t nodeid) {
  if (journal_ == nullptr) return;
  std::lock_guard lock(dirty_mutex_);
  dirty_.try_emplace(nodeid, Dirty{MonotonicMicros()});
}

void LiveRoot::Publish(uint64_t nodeid) {
  if (journal_ == nullptr) return;
  {
    std::lock_guard lock(dirty_mutex_);
    if (dirty_.erase(nodeid) == 0) return;
  }
  const TreeLock lock(*this);
  if (LiveNode* node = tree_.Find(nodeid)) (void)PublishLocked(node);
}

// A writer that goes on and on. What is rewritten in place waits for its writer to be done: half of it is nothing.
void LiveRoot::PublishAppended(uint64_t nodeid, const std::shared_ptr<LiveFile>& file) {
  if (journal_ == nullptr || file->Appended() < options_.publish_bytes) return;
  PublishWritten(nodeid, file);
}

void LiveRoot::PublishWritten(uint64_t nodeid, const std::shared_ptr<LiveFile>& file) {
  if (file && !file->complete()) {
    PublishWhole(nodeid, file, /*closed=*/false);
  } else {
    Publish(nodeid);
  }
}

void LiveRoot::Tick() {
  const int64_t before = MonotonicMicros() - options_.publish_micros;
  SeekJournalRoom();
  std::vector<std::pair<uint64_t, bool>> due;
  {
    std::lock_guard lock(dirty_mutex_);
    for (const auto& [nodeid, dirty] : dirty_) {
      if (dirty.owed || dirty.since <= before) due.emplace_back(nodeid, dirty.owed);
    }
  }
  for (const auto& [nodeid, owed] : due) {
    bool appended = owed;
    std::shared_ptr<LiveFile> file;
    if (!owed) {
      const TreeLock lock(*this);
      const LiveNode* node = tree_.Find(nodeid);
      appended = node == nullptr || !node->file || !node->named_at_home || node->file->Appended() > 0 ||
                 node->truncated || (no_open_ && closes_ == nullptr);
      if (node != nullptr) file = node->file;
    }
    if (appended) PublishWritten(nodeid, file);
  }
  Checkpoint();
  std::lock_guard lock(dirty_mutex_);
  tick_ = backend_.timers().After(options_.publish_micros, [this, gate = gate_] {
    const Gate::Pass pass(gate.get());
    if (pass) Tick();
  });
}

std::vector<uint64_t> LiveRoot::PublishDirty() {
  std::vector<uint64_t> all, owed;
  {
    std::lock_guard lock(dirty_mutex_);
    for (const auto& [nodeid, dirty] : dirty_) all.push_back(nodeid);
  }
  for (const uint64_t nodeid : all) Publish(nodeid);
  std::lock_guard lock(dirty_mutex_);
  for (const auto& [nodeid, dirty] : dirty_) {
    if (dirty.owed) owed.push_back(nodeid);
  }
  return owed;
}

uint64_t LiveRoot::PublishAll() {
  if (journal_ == nullptr) return 0;
  SettleCloses();
  std::vector<uint64_t> owed = PublishDirty();
  for (const int64_t deadline = MonotonicMicros() + kHomeMicros; !owed.empty() && MonotonicMicros() < deadline;) {
    SeekJournalRoom();
    {
      std::unique_lock lock(dirty_mutex_);
      completed_.wait_for(lock, kOwedPause, [] { return false; });
    }
    owed = PublishDirty();
  }
  for (const uint64_t nodeid : owed) ReportUnpublished(nodeid);
  return stream_->last();
}

// It stays dirty: as soon as it can be it is published all the same.
void LiveRoot::ReportUnpublished(uint64_t nodeid) {
  std::string path;
  {
    const TreeLock lock(*this);
    if (const LiveNode* node = tree_.Find(nodeid)) path = tree_.PathOf(*node);
  }
  const std::string why =
      "what was written last is not at home yet: this node's disk is full, or it has no descriptors";
  LogError("{}: {}", Escape(path), why);
  if (options_.on_content_lost) options_.on_content_lost(path, why);
}

void LiveRoot::SyncHome(uint64_t nodeid, Reply reply) {
  WithContent(nodeid, std::move(reply), [this, nodeid](Reply whole) {
    Publish(nodeid);
    if (const Status flushed = journal_->Flush(); !flushed) {
      whole.Error(EIO);
      return;
    }
    whole.Suspend();
    const auto shared = std::make_shared<Reply>(std::move(whole));
    stream_->WhenAcknowledged(0, [shared] { shared->Error(0); });
  });
}

void LiveRoot::AppliedLocked(LiveNode* node, const LiveStream::Applied& one) {
  tree_.Touch(node);
  if (one.before_ctime_ns == 0) {
    node->at_home = one.version;
    return;
  }
  // Attributes and names of what was there. If that was what we know, this is its next version: a tree that has it is
  // where to read it from.
  tree::FileVersion before = one.version;
  before.ctime_ns = one.before_ctime_ns;
  const bool known = before == node->at_home || before == node->version;
  node->at_home = known ? one.version : tree::FileVersion{};
}

void LiveRoot::OnAcknowledged(uint64_t number, const std::vector<LiveStream::Applied>& applied) {
  const Gate::Pass pass(gate_.get());
  if (!pass) return;
  bool again = false;
  std::vector<std::function<void()>> waited;
  {
    const TreeLock lock(*this);
    (void)ChangeLocked();  // of the room for changes; but it can be without it: home says again what it has
    frame_.Acknowledged(number);
    for (const LiveStream::Applied& one : applied) {
      if (LiveNode* node = tree_.Find(one.node)) AppliedLocked(node, one);
    }
    acknowledged_ = std::max(acknowledged_, number);
    again = std::exchange(behind_, false);
    waited = NewsLocked();
  }
  for (const auto& waiter : waited) waiter();
  if (again && options_.on_released) options_.on_released();
}

}  // namespace vrun::vfs
