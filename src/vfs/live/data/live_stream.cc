// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/data/live_stream.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "vfs/live/data/live_file.h"

namespace vrun::vfs {
namespace {

using Kind = LiveOperation::Kind;

constexpr uint64_t kMessageBytes = 1 << 20;
constexpr uint64_t kSkipped = 1 << 20;  // numbers; more than there can be unacknowledged operations

uint64_t SequenceOf(uint64_t number, uint64_t place) { return number << LiveStream::kPlaceBits | place; }

uint64_t BytesOf(const LiveContent& content) {
  uint64_t bytes = 0;
  for (const ByteRange& range : content.ranges) bytes += range.length;
  return bytes;
}

void SetMeta(const LiveOperation& op, v1::Meta* meta) {
  meta->set_mode(op.attributes.mode);
  meta->set_uid(op.attributes.uid);
  meta->set_gid(op.attributes.gid);
  meta->set_mtime_ns(ToNanos(op.attributes.mtime));
  meta->set_atime_ns(ToNanos(op.attributes.atime));
  for (const auto& [name, value] : op.xattrs) {
    v1::Xattr* xattr = meta->add_xattrs();
    xattr->set_name(name);
    xattr->set_value(value);
  }
}

void SetPut(const LiveOperation& op, v1::WriteBack* message) {
  v1::PutFile* put = message->mutable_put_file();
  SetMeta(op, put->mutable_meta());
  put->set_size(op.content.size);
  put->set_over(static_cast<v1::Over>(op.content.over));
  put->set_linked(op.linked);
  if (op.content.over == v1::APPEND_ANY) {
    put->set_append_from(op.content.ranges.empty() ? op.content.size : op.content.ranges.front().offset);
    return;
  }
  if (op.base.ino == 0 || op.content.over == v1::NOTHING) return;
  v1::BaseVersion* base = message->mutable_base();
  base->set_ino(op.base.ino);
  base->set_ctime_ns(op.base.ctime_ns);
  base->set_size(op.base.size);
  base->set_type(S_IFREG);
}

// The first message of an operation; returns whether more follow.
bool Begin(const LiveOperation& op, bool claims, v1::WriteBack* message) {
  message->set_path(op.path);
  const bool exclusive = op.exclusive && claims;
  message->set_exclusive(exclusive);
  switch (op.kind) {
    case Kind::kPut: SetPut(op, message); return !exclusive;
    case Kind::kDirectory:
      SetMeta(op, message->mutable_make_directory()->mutable_meta());
      // Home leaves the directory accessible to its owner until the last message.
      return !exclusive && (op.attributes.mode & 0700) != 0700;
    case Kind::kSymlink:
      SetMeta(op, message->mutable_make_symlink()->mutable_meta());
      message->mutable_make_symlink()->set_target(op.target);
      return false;
    case Kind::kSpecial: SetMeta(op, message->mutable_make_special()->mutable_meta()); return false;
    case Kind::kLink: message->mutable_make_hard_link()->set_existing(op.from); return false;
    case Kind::kRemove: message->mutable_remove(); return false;
    case Kind::kRename:
    case Kind::kExchange:
      message->mutable_rename()->set_from(op.from);
      message->mutable_rename()->set_exchange(op.kind == Kind::kExchange);
      return false;
    case Kind::kMeta:
      SetMeta(op, message->mutable_set_meta()->mutable_meta());
      // A kPut that was given up: home asked for the whole, and accepts nothing below the number of its first message.
      return op.attributes.mode == 0;
  }
  return false;
}

}  // namespace

// --- sending ---------------------------------------------------------------------------------------------------------

void LiveStream::SetReady(std::function<void()> ready) { ready_ = std::move(ready); }

const LiveStream::Item* LiveStream::NextItemLocked() {
  if (cursor_.number != 0) {
    const auto it = items_.find(cursor_.number);
    if (it != items_.end()) return &it->second;
    cursor_ = {};
  }
  if (flying_ >= options_.window_operations || flying_bytes_ >= options_.window_bytes) return nullptr;
  const auto next = items_.upper_bound(sent_);
  if (next == items_.end() || next->first > released_) return nullptr;
  if (!held_.empty() && next->first >= *held_.begin()) return nullptr;
  sent_ = next->first;
  next->second.sent = true;
  ++flying_;
  flying_bytes_ += next->second.bytes;
  cursor_ = {next->first, 0, 0, 0};
  return &next->second;
}

// The last operations were taken back. A caller may still wait for their numbers (the end of a run), and what they
// changed in the view is home's again once home has heard of them.
std::optional<v1::WriteBack> LiveStream::NextGapLocked() {
  const bool more = items_.upper_bound(sent_) != items_.end();
  if (more || sent_ >= released_) return std::nullopt;
  sent_ = released_;
  std::optional<v1::WriteBack> out(std::in_place);
  out->set_path("/");
  out->mutable_set_meta()->mutable_meta();  // with mode 0
  out->set_sequence(SequenceOf(released_, kLastPlace));
  return out;
}

Result<std::optional<v1::WriteBack>> LiveStream::Next() {
  std::optional<v1::WriteBack> out;
  std::shared_ptr<LiveVersion> version;
  ByteRange part;
  uint64_t epoch = 0;
  {
    MutexLock lock(mutex_);
    const Item* item = NextItemLocked();
    if (item == nullptr) return NextGapLocked();
    const LiveOperation& op = item->operation;
    out.emplace();
    if (cursor_.place == 0) {
      const bool more = Begin(op, takes_claims(), &*out);
      out->set_sequence(SequenceOf(op.number, more ? 0 : kLastPlace));
      cursor_.place = 1;
      if (!more) cursor_ = {};
      return out;
    }
    out->set_path(op.path);
    if (op.kind != Kind::kPut) {
      SetMeta(op, out->mutable_set_meta()->mutable_meta());
      out->set_sequence(SequenceOf(op.number, kLastPlace));
      cursor_ = {};
      return out;
    }
    // A part of the content. It is read as it was published, however late.
    const auto& ranges = op.content.ranges;
    if (cursor_.range < ranges.size()) {
      const ByteRange& range = ranges[cursor_.range];
      part = {range.offset + cursor_.done, std::min(kMessageBytes, range.length - cursor_.done)};
      cursor_.done += part.length;
      if (cursor_.done == range.length) {
        ++cursor_.range;
        cursor_.done = 0;
      }
    } else {
      part = {op.content.size, 0};
    }
    const bool last = cursor_.range >= ranges.size();
    out->mutable_file_data()->set_offset(part.offset);
    out->mutable_file_data()->set_last(last);
    out->set_sequence(SequenceOf(op.number, last ? kLastPlace : cursor_.place++));
    version = op.version;
    epoch = epoch_;
    sent_bytes_ += part.length;
    if (last) cursor_ = {};
  }
  if (part.length == 0) return out;
  std::string& data = *out->mutable_file_data()->mutable_data();
  data.resize(part.length);
  const int error = version ? version->Read(part.offset, data.data(), data.size()) : EIO;
  MutexLock lock(mutex_);
  if (epoch != epoch_) return std::optional<v1::WriteBack>();  // sent again from elsewhere
  if (error != 0) {
    RewindLocked((out->sequence() >> kPlaceBits) - 1);  // never send a file with a hole in its content
    return ErrnoError(error, "read the new content of " + Escape(out->path()) + " to send it home");
  }
  return out;
}

// Sending starts again after `after`; home skips messages that it already has.
void LiveStream::RewindLocked(uint64_t after) {
  sent_ = after;
  cursor_ = {};
  flying_ = 0;
  flying_bytes_ = 0;
  ++epoch_;
}

void LiveStream::Resume(uint64_t sequence) {
  v1::WriteBackAck ack;
  ack.set_sequence(sequence);
  Acknowledge(ack);
  {
    MutexLock lock(mutex_);
    RewindLocked(acknowledged_);
  }
  Ready();
}

// Home does not have the version that this content is based on: send the whole current file. If that is impossible,
// because the rest was home's and is gone, only appended content can still be sent, to the end of home's file.
void LiveStream::AskForWhole(uint64_t number) {
  MutexLock lock(mutex_);
  const auto it = items_.find(number);
  if (it == items_.end()) return;
  LiveOperation& op = it->second.operation;
  if (op.kind == Kind::kPut && op.version && op.version->BecomeWhole()) {
    op.content = op.version->content();
    bytes_ -= it->second.bytes;
    it->second.bytes = BytesOf(op.content);
    bytes_ += it->second.bytes;
  } else if (op.kind == Kind::kPut && op.content.over == v1::APPEND) {
    op.content.over = v1::APPEND_ANY;
  } else if (op.kind == Kind::kPut) {
    LogError("{} was changed here and at home, and the common base is gone: home's version stays, the one here is lost",
             Escape(op.path));
    op.kind = Kind::kMeta;
    op.attributes.mode = 0;  // no file type: home's file keeps its own attributes
    op.version = nullptr;
  }
  RewindLocked(number - 1);
}

// Callbacks whose operations are all acknowledged.
std::vector<std::function<void()>> LiveStream::TakeServedLocked() {
  std::vector<std::function<void()>> served;
  while (!waiting_.empty() && (items_.empty() || waiting_.begin()->first < items_.begin()->first)) {
    served.push_back(std::move(waiting_.begin()->second));
    waiting_.erase(waiting_.begin());
  }
  return served;
}

void LiveStream::Acknowledge(const v1::WriteBackAck& ack) {
  const bool whole_operation = (ack.sequence() & kLastPlace) == kLastPlace;
  const uint64_t number = (ack.sequence() >> kPlaceBits) - (whole_operation || ack.sequence() == 0 ? 0 : 1);
  std::vector<LiveOperation> done;  // content is released after the journal knows
  std::vector<std::function<void()>> calls;
  uint64_t before = 0, upto = 0;
  {
    MutexLock lock(mutex_);
    before = acknowledged_;
    while (!items_.empty() && items_.begin()->first <= number) {
      Item& item = items_.begin()->second;
      NoteOverLocked(item.operation);
      bytes_ -= item.bytes;
      if (items_.begin()->first <= sent_ && flying_ > 0) {
        --flying_;
        flying_bytes_ -= std::min(flying_bytes_, item.bytes);
      }
      done.push_back(std::move(item.operation));
      items_.erase(items_.begin());
    }
    acknowledged_ = std::max(acknowledged_, std::min(number, next_number_ - 1));
    sent_ = std::max(sent_, acknowledged_);
    upto = acknowledged_;
    calls = TakeServedLocked();
    if (bytes_ < options_.most_bytes && items_.size() < options_.most_operations) {
      for (auto& go : blocked_) calls.push_back(std::move(go));
      blocked_.clear();
    }
  }
  if (on_applied_ && (upto > before || ack.applied_size() > 0 || ack.refused_size() > 0)) {
    std::map<uint64_t, std::pair<uint64_t, uint64_t>> nodes_of;
    for (const LiveOperation& op : done) nodes_of[op.number] = {op.node, op.other};
    std::vector<Applied> applied;
    for (const uint64_t one : ack.refused()) {
      Applied& refused = applied.emplace_back();
      refused.number = one >> kPlaceBits;
      refused.refused = true;
    }
    for (const v1::Applied& one : ack.applied()) {
      const auto it = nodes_of.find(one.sequence() >> kPlaceBits);
      if (it == nodes_of.end()) continue;
      const auto& [node, other] = it->second;
      applied.push_back({it->first,
                         one.other() ? other : node,
                         {one.dev(), one.ino(), one.ctime_ns(), one.size()},
                         one.before_ctime_ns()});
    }
    on_applied_(upto, applied);
  }
  if (ack.want_whole() != 0) AskForWhole(ack.want_whole() >> kPlaceBits);
  for (const auto& call : calls) call();
  Ready();
}

// --- the view --------------------------------------------------------------------------------------------------------

void LiveStream::Restore(std::map<uint64_t, LiveOperation> operations, uint64_t acknowledged, uint64_t next) {
  MutexLock lock(mutex_);
  acknowledged_ = sent_ = acknowledged;
  next_number_ = next + kSkipped;
  released_ = next_number_ - 1;
  for (auto& [number, op] : operations) {
    Item item;
    item.bytes = BytesOf(op.content);
    item.sent = true;  // it may have been sent
    bytes_ += item.bytes;
    NoteLocked(op);
    item.operation = std::move(op);
    items_.emplace(number, std::move(item));
  }
}

void LiveStream::NoteLocked(const LiveOperation& op) {
  of_node_[op.node].push_back(op.number);
  if (op.other != 0) of_node_[op.other].push_back(op.number);
}

void LiveStream::NoteOverLocked(const LiveOperation& op) {
  for (const uint64_t node : {op.node, op.other}) {
    const auto numbers = of_node_.find(node);
    if (numbers == of_node_.end()) continue;
    std::erase(numbers->second, op.number);
    if (numbers->second.empty()) of_node_.erase(numbers);
  }
}

uint64_t LiveStream::Add(LiveOperation operation) {
  MutexLock lock(mutex_);
  const uint64_t number = next_number_++;
  operation.number = number;
  Item item;
  item.bytes = BytesOf(operation.content);
  bytes_ += item.bytes;
  NoteLocked(operation);
  item.operation = std::move(operation);
  items_.emplace(number, std::move(item));
  return number;
}

void LiveStream::Release(uint64_t upto) {
  {
    MutexLock lock(mutex_);
    released_ = std::max(released_, upto);
  }
  Ready();
}

std::vector<LiveOperation> LiveStream::TakeBack(uint64_t node) {
  std::vector<LiveOperation> taken;
  std::vector<std::function<void()>> calls;
  MutexLock lock(mutex_);
  const auto numbers = of_node_.find(node);
  if (numbers == of_node_.end()) return taken;
  bool born = false;
  for (const uint64_t number : numbers->second) {
    const Item& item = items_.at(number);
    const Kind kind = item.operation.kind;
    const bool alone = kind == Kind::kPut || kind == Kind::kSymlink || kind == Kind::kSpecial || kind == Kind::kMeta;
    if (item.sent || !alone) return taken;
    born = born || item.operation.born;
  }
  if (!born) return taken;
  for (const uint64_t number : numbers->second) {
    const auto it = items_.find(number);
    bytes_ -= it->second.bytes;
    taken.push_back(std::move(it->second.operation));
    items_.erase(it);
    held_.erase(number);
  }
  dropped_ += taken.size();
  of_node_.erase(numbers);
  calls = TakeServedLocked();
  lock.unlock();
  for (const auto& call : calls) call();
  return taken;
}

void LiveStream::Hold(uint64_t number) {
  MutexLock lock(mutex_);
  held_.insert(number);
}

void LiveStream::Unhold(uint64_t number) {
  {
    MutexLock lock(mutex_);
    if (held_.erase(number) == 0) return;
  }
  Ready();
}

void LiveStream::ForEach(const std::function<void(const LiveOperation&)>& visit) const {
  MutexLock lock(mutex_);
  for (const auto& [number, item] : items_) visit(item.operation);
}

uint64_t LiveStream::acknowledged() const {
  MutexLock lock(mutex_);
  return acknowledged_;
}

uint64_t LiveStream::last() const {
  MutexLock lock(mutex_);
  return next_number_ - 1;
}

bool LiveStream::HasRoom() const {
  MutexLock lock(mutex_);
  return bytes_ < options_.most_bytes && items_.size() < options_.most_operations;
}

bool LiveStream::MustWait(std::function<void()> go) {
  MutexLock lock(mutex_);
  if (bytes_ < options_.most_bytes && items_.size() < options_.most_operations) return false;
  blocked_.push_back(std::move(go));
  return true;
}

void LiveStream::WhenAcknowledged(uint64_t number, std::function<void()> done) {
  {
    MutexLock lock(mutex_);
    if (number == 0) number = next_number_ - 1;
    if (!items_.empty() && items_.begin()->first <= number) {
      waiting_.emplace(number, std::move(done));
      return;
    }
  }
  done();
}

LiveStreamStats LiveStream::stats() const {
  MutexLock lock(mutex_);
  LiveStreamStats stats;
  stats.operations = items_.size();
  stats.bytes = bytes_;
  stats.acknowledged = acknowledged_;
  stats.last = next_number_ - 1;
  stats.sent_bytes = sent_bytes_;
  stats.dropped = dropped_;
  stats.waiting = blocked_.size();
  return stats;
}

}  // namespace vrun::vfs
