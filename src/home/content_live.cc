// SPDX-License-Identifier: Apache-2.0
// A ContentSession for live views: it tells its node of every state of the root (WatchTree), and takes what is written
// there (BeginWrites).
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "home/content_server.h"
#include "home/content_session.h"
#include "home/live_writes.h"
#include "store/object_id.h"
#include "tree/codec.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr uint64_t kStepBytes = 256 * 1024;  // between two looks at other work
// Content that comes unasked with a tree: of an editor's save or two. More is an update, of which much is not read.
constexpr size_t kMostEdited = 8;
constexpr uint64_t kMostEditedBytes = 32 * 1024;
// What a directory differs in is found by going through all of it: 1 ms for 4 MiB.
constexpr size_t kLeastDelta = 4 * 1024, kMostDelta = 4u << 20;

}  // namespace

// First the request itself, later again for each tree that the node is told of (`snapshot`).
bool ContentSession::WatchTree(Work* work) {
  if (work->snapshot) return TellTree(work);
  LeaveTree();
  const auto have = Digest::FromBytes(work->request.watch_tree().have());
  const auto base = have ? server_->trees_->Find(*have) : std::nullopt;
  const uint64_t joined = server_->tree_board_.Join(
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->TreeChanged();
      },
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->Ping();
      });
  bool closed = false;
  {
    std::lock_guard lock(mutex_);
    closed = stream_ == nullptr;
    board_id_ = joined;
    watch_id_ = work->request.id();
    watch_view_ = work->request.watch_tree().view();
    pings_ = work->request.watch_tree().pings();
    if (pings_) shown_micros_ = MonotonicMicros();  // it is going to say so, or not
    watch_deltas_ = work->request.watch_tree().deltas();
    told_ = base ? base->asked : nullptr;
  }
  if (closed) LeaveTree();
  // What there is, and what is new with the board's next word. A table that nobody has kept current is not told: the
  // node would believe it.
  if (server_->tree_board_.current()) TreeChanged();
  return true;
}

void ContentSession::LeaveTree() {
  uint64_t id;
  {
    std::lock_guard lock(mutex_);
    id = std::exchange(board_id_, 0);
    watch_id_ = 0;
    told_ = nullptr;
  }
  // Without our lock: the board tells us while we are on it.
  if (id != 0) server_->tree_board_.Leave(id);
}

void ContentSession::TreeChanged() {
  std::lock_guard lock(mutex_);
  if (stream_ == nullptr || watch_id_ == 0) return;
  // A link that is behind is told once it has caught up, and then of the newest only.
  if (telling_ || stream_->queued_bytes() > rpc::Stream::kHighWater) {
    tell_again_ = true;
    return;
  }
  TellTreeLocked();
}

void ContentSession::Lend(const tree::FileVersion& version, int fd, bool whole) {
  if (whole && version.size <= store::kWholeFileLimit) return;
  uint64_t view = 0;
  {
    std::lock_guard lock(mutex_);
    if (watch_id_ == 0) return;
    view = watch_view_;
  }
  server_->lent_.Keep(version, fd, view);
}

void ContentSession::Ping() {
  v1::ContentReply reply;
  {
    std::lock_guard lock(mutex_);
    if (!pings_ || watch_id_ == 0) return;
    reply.set_id(watch_id_);
  }
  reply.mutable_ping();
  Send(reply);
}

void ContentSession::TakeHeard(const v1::ContentRequest::Heard& heard) {
  if (heard.shown()) shown_micros_ = MonotonicMicros();
  if (heard.look()) server_->tree_board_.Look();
}

void ContentSession::TellTreeLocked() {
  tell_again_ = false;
  if (watch_id_ == 0) return;
  auto work = std::make_unique<Work>();
  work->request.set_id(watch_id_);
  work->request.mutable_watch_tree();
  // First what is included: what the tree has besides does no harm.
  work->included = server_->tree_board_.Included(watch_view_);
  work->deltas = watch_deltas_;
  std::tie(work->snapshot, work->serial) = server_->trees_->Numbered();
  if (!work->snapshot) return;
  telling_ = true;
  waiting_[kDirectories].push_back(std::move(work));
  Schedule();
}

bool ContentSession::TellTree(Work* work) {
  if (!work->listed) {
    tree::SnapshotPtr told;
    bool own = false;
    {
      std::lock_guard lock(mutex_);
      told = told_;
      own = work->included != told_included_;
    }
    // What the node did not have before it asks for where somebody looks.
    if (told) work->tree = tree::NewDirectories(told->directory, work->snapshot->directory);
    // A node that writes has what it wrote.
    if (work->deltas && !own) FindEdited(work);
    work->listed = true;
  }
  uint64_t sent = 0;
  while (work->next < work->tree.size() && sent < kStepBytes) {
    tree::NewDirectory& item = work->tree[work->next];
    if (work->done == 0 && HasDelta(*work, item)) {
      sent += item.directory->encoded().size();  // that is what it costs
      if (SendDelta(work)) continue;
    }
    if (work->done == 0 && Packs(*item.directory)) {
      sent += SendPack(work);
      continue;
    }
    const uint64_t before = work->done;
    const bool whole = SendDirectory(work, *item.directory, false);
    sent += work->done - before;
    if (!whole) continue;
    work->done = 0;
    item.directory.reset();
    ++work->next;
  }
  if (work->next < work->tree.size()) return false;
  SendEdited(*work);
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  reply.mutable_tree_now()->set_tree(std::string(work->snapshot->id.view()));
  reply.mutable_tree_now()->set_root(tree::EncodeRoot(work->snapshot->root));
  reply.mutable_tree_now()->set_serial(work->serial);
  reply.mutable_tree_now()->set_included(work->included);
  Send(reply);
  std::lock_guard lock(mutex_);
  telling_ = false;
  if (watch_id_ == work->request.id()) {
    told_ = work->snapshot;
    told_included_ = work->included;
  }
  if (tell_again_ && stream_ != nullptr) TellTreeLocked();
  return true;
}

bool ContentSession::HasDelta(const Work& work, const tree::NewDirectory& item) {
  const auto fits = [](const tree::Directory& d) {
    return d.encoded().size() >= kLeastDelta && d.encoded().size() <= kMostDelta;
  };
  return work.deltas && item.base && fits(*item.base) && fits(*item.directory);
}

bool ContentSession::SendDelta(Work* work) {
  tree::NewDirectory& item = work->tree[work->next];
  const std::string_view encoded = item.directory->encoded();
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  v1::DirectoryDelta* delta = reply.mutable_delta();
  if (!server_->compressor_.CompressAfter(item.base->encoded(), encoded, delta->mutable_patch())) return false;
  if (delta->patch().size() > encoded.size() / 4) return false;  // another directory altogether
  delta->set_base(std::string(item.base->digest().view()));
  delta->set_digest(std::string(item.directory->digest().view()));
  delta->set_raw_bytes(encoded.size());
  std::vector<size_t> changed;
  tree::VisitChanged(*item.base, *item.directory, [&](size_t index, size_t) { changed.push_back(index); });
  delta->set_known_ids(KnownIds(*item.directory, changed));
  Send(reply);
  item.directory.reset();
  ++work->next;
  return true;
}

void ContentSession::FindEdited(Work* work) const {
  uint64_t bytes = 0;
  for (const tree::NewDirectory& item : work->tree) {
    if (!item.base) continue;
    tree::VisitChanged(*item.base, *item.directory, [&](size_t index, size_t was) {
      if (work->edited.size() > kMostEdited || was == item.base->size()) return;
      const tree::Entry now = item.directory->At(index);
      if (!now.is_regular() || now.size == 0 || now.size > kMostEditedBytes) return;
      if (item.base->At(was).version() == now.version()) return;
      bytes += now.size;
      work->edited.push_back({tree::JoinPath(item.path, now.name), now.version()});
    });
  }
  if (work->edited.size() > kMostEdited || bytes > kMostEditedBytes) work->edited.clear();
}

void ContentSession::SendEdited(const Work& work) {
  for (const Work::Edited& file : work.edited) {
    Work read;
    auto* get = read.request.mutable_get_range();
    get->set_tree(std::string(work.snapshot->id.view()));
    get->set_path(file.path);
    get->set_length(file.version.size);
    if (!CheckServed(get->tree(), file.path, file.version)) continue;
    uint64_t length = 0;
    v1::FileVersion version;
    version.set_dev(file.version.dev);
    version.set_ino(file.version.ino);
    version.set_ctime_ns(file.version.ctime_ns);
    version.set_size(file.version.size);
    *get->mutable_version() = version;
    auto part = ReadPart(&read, file.version.size, &length);
    if (!part) continue;  // it has changed again: whoever reads it asks, and is told
    v1::ContentReply reply;
    reply.set_id(work.request.id());
    *reply.mutable_edited()->mutable_version() = version;
    *reply.mutable_edited()->mutable_units() = std::move(*part->mutable_units());
    Send(reply);
  }
}

// --- what is written there -------------------------------------------------------------------------------------------

bool ContentSession::BeginWrites(Work* work) {
  const uint64_t id = work->request.id();
  const uint64_t view = work->request.begin_writes().view();
  LiveWrites* writes = server_->live_writes_;
  if (writes == nullptr) return Fail(id, Error(Code::kUnsupported, "nothing is written here"));
  const uint64_t joined = writes->Join(view, [weak = weak_from_this(), id](const v1::LiveAck& ack) {
    const auto self = weak.lock();
    if (!self) return;
    v1::ContentReply reply;
    reply.set_id(id);
    *reply.mutable_live_ack() = ack;
    self->Send(reply);
  });
  bool closed = false;
  {
    std::lock_guard lock(mutex_);
    closed = stream_ == nullptr;
    writes_[view] = joined;
  }
  if (closed) LeaveWrites();
  return true;
}

void ContentSession::TakeWrite(v1::ContentRequest::LiveWrite* write) {
  if (server_->live_writes_ == nullptr) return;
  server_->live_writes_->Write(write->view(), write->begin(), std::move(*write->mutable_write()));
}

bool ContentSession::EndWrites(Work* work) {
  const uint64_t view = work->request.end_writes().view();
  server_->lent_.Drop(view);
  {
    std::lock_guard lock(mutex_);
    if (writes_.erase(view) == 0) return true;  // somebody else's
  }
  server_->live_writes_->End(view);
  return true;
}

void ContentSession::LeaveWrites() {
  std::map<uint64_t, uint64_t> writes;
  {
    std::lock_guard lock(mutex_);
    writes.swap(writes_);
  }
  for (const auto& [view, joined] : writes) server_->live_writes_->Leave(view, joined);
}

}  // namespace vrun::home
