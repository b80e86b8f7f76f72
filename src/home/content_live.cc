// SPDX-License-Identifier: Apache-2.0
// A ContentSession for live views: it tells its node of every state of the root (WatchTree), and takes what is written
// there (BeginWrites).
#include <algorithm>
#include <tuple>
#include <utility>

#include "home/content_server.h"
#include "home/content_session.h"
#include "home/live_writes.h"
#include "tree/codec.h"

namespace vrun::home {
namespace {

constexpr uint64_t kStepBytes = 256 * 1024;  // between two looks at other work

}  // namespace

// First the request itself, later again for each tree that the node is told of (`snapshot`).
bool ContentSession::WatchTree(Work* work) {
  if (work->snapshot) return TellTree(work);
  LeaveTree();
  const auto have = Digest::FromBytes(work->request.watch_tree().have());
  const auto base = have ? server_->trees_->Find(*have) : std::nullopt;
  const uint64_t joined = server_->tree_board_.Join([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->TreeChanged();
  });
  bool closed = false;
  {
    std::lock_guard lock(mutex_);
    closed = stream_ == nullptr;
    board_id_ = joined;
    watch_id_ = work->request.id();
    watch_view_ = work->request.watch_tree().view();
    told_ = base ? base->asked : nullptr;
  }
  if (closed) LeaveTree();
  TreeChanged();  // what there is; what is new comes with the board's next word
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

void ContentSession::TellTreeLocked() {
  tell_again_ = false;
  if (watch_id_ == 0) return;
  auto work = std::make_unique<Work>();
  work->request.set_id(watch_id_);
  work->request.mutable_watch_tree();
  // First what is included: what the tree has besides does no harm.
  work->included = server_->tree_board_.Included(watch_view_);
  std::tie(work->snapshot, work->serial) = server_->trees_->Numbered();
  if (!work->snapshot) return;
  telling_ = true;
  waiting_[kDirectories].push_back(std::move(work));
  Schedule();
}

bool ContentSession::TellTree(Work* work) {
  if (!work->listed) {
    tree::SnapshotPtr told;
    {
      std::lock_guard lock(mutex_);
      told = told_;
    }
    // What the node did not have before it asks for where somebody looks.
    if (told) work->tree = tree::NewDirectories(told->directory, work->snapshot->directory);
    work->listed = true;
  }
  uint64_t sent = 0;
  while (work->next < work->tree.size() && sent < kStepBytes) {
    if (work->done == 0 && Packs(*work->tree[work->next].directory)) {
      sent += SendPack(work);
      continue;
    }
    tree::NewDirectory& item = work->tree[work->next];
    const uint64_t before = work->done;
    const bool whole = SendDirectory(work, *item.directory, false);
    sent += work->done - before;
    if (!whole) continue;
    work->done = 0;
    item.directory.reset();
    ++work->next;
  }
  if (work->next < work->tree.size()) return false;
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  reply.mutable_tree_now()->set_tree(std::string(work->snapshot->id.view()));
  reply.mutable_tree_now()->set_root(tree::EncodeRoot(work->snapshot->root));
  reply.mutable_tree_now()->set_serial(work->serial);
  reply.mutable_tree_now()->set_included(work->included);
  Send(reply);
  std::lock_guard lock(mutex_);
  telling_ = false;
  if (watch_id_ == work->request.id()) told_ = work->snapshot;
  if (tell_again_ && stream_ != nullptr) TellTreeLocked();
  return true;
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
