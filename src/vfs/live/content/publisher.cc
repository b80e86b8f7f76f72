// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/content/publisher.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "proto/task.pb.h"

namespace vrun::vfs {
namespace {

constexpr auto kOwedPause = std::chrono::milliseconds(50);
// A file that was written kLong times publish_micros ago counts as quiet after a kShort-th of publish_micros.
constexpr int64_t kLong = 5, kShort = 10;

}  // namespace

Publisher::~Publisher() {
  MutexLock lock(dirty_mutex_);
  if (tick_ != 0) timers_.Cancel(tick_);
}

void Publisher::Begin() {
  std::vector<uint64_t> dirty;
  {
    const TreeLock lock(tree_);
    tree_.ForEach([&](const LiveNode& node) {
      if (node.file && (node.file->dirty() || !node.named_at_home())) dirty.push_back(node.nodeid);
    });
  }
  for (const uint64_t nodeid : dirty) NoteDirty(nodeid);
  StartTimer();
}

void Publisher::StartTimer() {
  MutexLock lock(dirty_mutex_);
  tick_ = timers_.After(publish_micros_, tree_.Guarded([this] { Tick(); }));
}

// --- before a change -------------------------------------------------------------------------------------------------

void Publisher::WithRoom(Reply reply, Then then) {
  if (!tree_.journaled()) return then(std::move(reply));
  if (!tree_.stream().HasRoom()) {
    reply.Suspend();
    const auto shared = std::make_shared<Reply>(std::move(reply));
    const auto again = tree_.Guarded([this, shared, then] { WithRoom(std::move(*shared), then); });
    if (!tree_.stream().MustWait(again)) again();
    return;
  }
  if (const int error = tree_.MakeRoom(); error != 0) {
    reply.Error(error);
    return;
  }
  then(std::move(reply));
}

void Publisher::WithContent(uint64_t nodeid, Reply reply, Then then) {
  std::shared_ptr<LiveFile> file;
  if (tree_.journaled()) {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(nodeid);
    if (node != nullptr) file = node->file;
  }
  if (!file || file->complete() || !file->dirty()) return then(std::move(reply));
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  contents_.Need(nodeid, file, {0, UINT64_MAX}, false, [this, nodeid, shared, then](int error) {
    if (error != 0) {
      Publish(nodeid);  // as in PublishWhole
      shared->Error(error);
    } else {
      then(std::move(*shared));
    }
  });
}

// --- what was written ------------------------------------------------------------------------------------------------

// Home has changed or replaced a file while somebody here had it open or was about to open it; another node has its
// name now. Content written to it belongs to the file that is there now, as on any shared file system. But if home has
// put another file there, only appended content does. "": there is no such place.
std::string Publisher::PlaceOfOvertakenLocked(const LiveNode& node) {
  if (!node.gone_at_home() || !node.replaced || !node.file) return "";
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

void Publisher::TellIfLostLocked(LiveNode* node) {
  const bool lost = node->file && node->file->dirty() && node->gone_at_home() && node->names.empty() &&
                    PlaceOfOvertakenLocked(*node).empty();
  if (!lost || !tree_.journaled() || std::exchange(node->lost_reported, true)) return;
  LogWarning("{} was removed at home: what was written to it since then is lost", Escape(node->HomePath()));
  LiveOperation op;
  op.kind = Kind::kMeta;  // with mode 0
  op.node = node->nodeid;
  op.path = node->HomePath();
  if (tree_.ChangeLocked() == 0) tree_.AddLocked(std::move(op));
}

int Publisher::PublishLocked(LiveNode* node) {
  if (!tree_.journaled() || !node->file) return 0;
  const std::string path = node->names.empty() ? PlaceOfOvertakenLocked(*node) : tree_.PathOf(*node);
  if (path.empty()) return 0;
  if (node->named_at_home() && !node->file->dirty()) return 0;
  tree::FileVersion base;
  std::shared_ptr<LiveVersion> version;
  int error = tree_.ChangeLocked();
  if (error == 0) {
    auto published = node->file->Publish(&base);
    if (published) {
      version = *std::move(published);
    } else {
      error = published.error().error_number() != 0 ? published.error().error_number() : EIO;
    }
  }
  if (error != 0) {
    MutexLock lock(dirty_mutex_);
    const int64_t now = MonotonicMicros();
    dirty_.try_emplace(node->nodeid, Dirty{now, now}).first->second.owed = true;
    return error;
  }
  if (node->writing == LiveNode::Writing::kTruncated) node->writing = LiveNode::Writing::kNothing;
  if (version == nullptr) return 0;  // nothing new
  LiveOperation op = teller_.OperationLocked(Kind::kPut, node);
  op.path = path;
  op.born = !node->named_at_home();
  op.base = base;
  op.content = version->content();
  op.version = version;
  // Append to any file that is there.
  const bool all = op.content.ranges.empty() ? op.content.size == 0 : op.content.ranges.front().offset == 0;
  const bool made = std::exchange(node->made_to_append, false) && op.born && op.content.over == v1::NOTHING && all;
  if (made || (node->names.empty() && op.content.over == v1::APPEND)) op.content.over = v1::APPEND_ANY;
  // If home has the file, it is written in place.
  if (!op.born) {
    op.linked = node->at_home.ino != 0 ? node->at_home.ino : node->in_home_tree() ? node->version.ino : UINT64_MAX;
  }
  node->SetNamedAtHome();
  tree_.Changed(node);  // numbers it again, since home gets this change only with this operation, not an earlier one
  for (const LiveName& name : node->names) tree_.TouchName(*name.parent, name.name);
  tree_.AddLocked(std::move(op));
  // The other names must become names of the new file (also after an append, for which home may ask for the whole
  // file).
  for (size_t i = 1; i < node->names.size(); ++i) {
    teller_.TellLocked(Kind::kLink, node, tree_.PathOf(*node->names[i].parent, node->names[i].name), path);
  }
  return 0;
}

void Publisher::NoteDirty(uint64_t nodeid) {
  if (!tree_.journaled()) return;
  const int64_t now = MonotonicMicros();
  MutexLock lock(dirty_mutex_);
  dirty_.try_emplace(nodeid, Dirty{now, now}).first->second.latest = now;
}

bool Publisher::IsQuiet(const Dirty& dirty, int64_t now) const {
  const int64_t pause = now - dirty.latest, age = now - dirty.since;
  return pause >= publish_micros_ || (age >= kLong * publish_micros_ && pause >= publish_micros_ / kShort);
}

bool Publisher::IsQuiet(uint64_t nodeid) {
  MutexLock lock(dirty_mutex_);
  const auto it = dirty_.find(nodeid);
  return it != dirty_.end() && IsQuiet(it->second, MonotonicMicros());
}

void Publisher::Publish(uint64_t nodeid) {
  if (!tree_.journaled()) return;
  {
    MutexLock lock(dirty_mutex_);
    if (dirty_.erase(nodeid) == 0) return;
  }
  const TreeLock lock(tree_);
  if (LiveNode* node = tree_.Find(nodeid)) (void)PublishLocked(node);
}

// The writer keeps the file open. Changes in place wait until it has finished or pauses (Tick), because half of them
// may be useless.
void Publisher::PublishAppended(uint64_t nodeid, const std::shared_ptr<LiveFile>& file) {
  if (!tree_.journaled() || file->Appended() < publish_bytes_) return;
  PublishWritten(nodeid, file);
}

void Publisher::PublishWritten(uint64_t nodeid, const std::shared_ptr<LiveFile>& file) {
  if (file && !file->complete()) {
    PublishWhole(nodeid, file, /*closed=*/false);
  } else {
    Publish(nodeid);
  }
}

void Publisher::Tick() {
  struct Due {
    uint64_t nodeid;
    bool owed;
    bool quiet;
  };
  const int64_t now = MonotonicMicros();
  tree_.SeekRoom();
  std::vector<Due> all;
  {
    MutexLock lock(dirty_mutex_);
    for (const auto& [nodeid, dirty] : dirty_) {
      if (dirty.owed || now - dirty.since >= publish_micros_) all.push_back({nodeid, dirty.owed, IsQuiet(dirty, now)});
    }
  }
  for (const Due& due : all) {
    bool publish = due.owed;
    std::shared_ptr<LiveFile> file;
    if (!due.owed) {
      const TreeLock lock(tree_);
      const LiveNode* node = tree_.Find(due.nodeid);
      publish = node == nullptr || !node->file || !node->named_at_home() || node->file->Appended() > 0 ||
                node->writing == LiveNode::Writing::kTruncated || (notices_.no_open() && closes_ == nullptr);
      if (node != nullptr) file = node->file;
    }
    // One version at a time: a program that writes all the time must not wait for the link.
    if (publish || (due.quiet && file && !file->IsUnderWay())) PublishWritten(due.nodeid, file);
  }
  tree_.Checkpoint();
  StartTimer();
}

std::vector<uint64_t> Publisher::PublishDirty() {
  std::vector<uint64_t> all, owed;
  {
    MutexLock lock(dirty_mutex_);
    for (const auto& [nodeid, dirty] : dirty_) all.push_back(nodeid);
  }
  for (const uint64_t nodeid : all) Publish(nodeid);
  MutexLock lock(dirty_mutex_);
  for (const auto& [nodeid, dirty] : dirty_) {
    if (dirty.owed) owed.push_back(nodeid);
  }
  return owed;
}

uint64_t Publisher::PublishAll() {
  if (!tree_.journaled()) return 0;
  SettleCloses();
  std::vector<uint64_t> owed = PublishDirty();
  for (const int64_t deadline = MonotonicMicros() + HomeNews::kMicros; !owed.empty() && MonotonicMicros() < deadline;) {
    tree_.SeekRoom();
    {
      MutexLock lock(dirty_mutex_);
      completed_.wait_for(lock, kOwedPause, [] { return false; });
    }
    owed = PublishDirty();
  }
  for (const uint64_t nodeid : owed) ReportUnpublished(nodeid);
  return tree_.stream().last();
}

// The file stays dirty, and is published as soon as possible.
void Publisher::ReportUnpublished(uint64_t nodeid) {
  std::string path;
  {
    const TreeLock lock(tree_);
    if (const LiveNode* node = tree_.Find(nodeid)) path = tree_.PathOf(*node);
  }
  const std::string why =
      "the last writes are not at home yet: this node's disk is full, or it has no free descriptors";
  LogError("{}: {}", Escape(path), why);
  contents_.TellLost(path, why);
}

void Publisher::Sync(uint64_t nodeid, Reply reply) {
  WithContent(nodeid, std::move(reply), [this, nodeid](Reply whole) {
    Publish(nodeid);
    if (const Status flushed = tree_.Flush(); !flushed) {
      whole.Error(EIO);
      return;
    }
    whole.Suspend();
    const auto shared = std::make_shared<Reply>(std::move(whole));
    tree_.stream().WhenAcknowledged(0, [shared] { shared->Error(0); });
  });
}

}  // namespace vrun::vfs
