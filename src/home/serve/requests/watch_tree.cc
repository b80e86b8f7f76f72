// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/watch_tree.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "home/serve/requests/directories.h"
#include "tree/codec.h"
#include "tree/diff.h"
#include "tree/rules.h"
#include "tree/unread.h"

namespace vrun::home {
namespace {

// Limits for content sent unrequested with a tree, for an editor's save or two. More changes are an update, most of
// which is not read.
constexpr size_t kMostEdited = 8;
constexpr uint64_t kMostEditedBytes = 32 * 1024;
// Limit for directories that home has read for the first time. A node may have them from before home started.
constexpr uint64_t kMostReadBytes = 256 * 1024;

struct Edited {
  std::string path;
  tree::FileVersion version;
};

// Small files whose content differs from the tree before.
std::vector<Edited> FindEdited(const std::vector<tree::NewDirectory>& directories) {
  std::vector<Edited> edited;
  uint64_t bytes = 0;
  for (const tree::NewDirectory& item : directories) {
    if (!item.base) continue;
    tree::VisitChanged(*item.base, *item.directory, [&](size_t index, size_t was) {
      if (edited.size() > kMostEdited || was == item.base->size()) return;
      const tree::Entry now = item.directory->At(index);
      if (!now.is_regular() || now.size == 0 || now.size > kMostEditedBytes) return;
      if (item.base->At(was).version() == now.version()) return;
      bytes += now.size;
      edited.push_back({tree::JoinPath(item.path, now.name), now.version()});
    });
  }
  if (edited.size() > kMostEdited || bytes > kMostEditedBytes) edited.clear();
  return edited;
}

// Leaves out what was unread in `told`, unless it is little.
void DropRead(const tree::Tree& told, std::vector<tree::NewDirectory>* directories) {
  uint64_t bytes = 0;
  std::vector<tree::NewDirectory> others;
  for (const tree::NewDirectory& item : *directories) {
    if (!item.base && !tree::UnreadAbove(told, item.path).empty()) {
      bytes += item.directory->encoded().size();
    } else {
      others.push_back(item);
    }
  }
  if (bytes > kMostReadBytes) *directories = std::move(others);
}

v1::ContentRequest RequestOf(uint64_t id, const v1::ContentRequest::WatchTree& wanted) {
  v1::ContentRequest request;
  request.set_id(id);
  *request.mutable_watch_tree() = wanted;
  return request;
}

}  // namespace

// Sends one state of the root to the node.
class TreeWatch::Telling : public Request {
 public:
  // Call with the lock of `watch`.
  Telling(TreeWatch* watch, tree::TreePtr snapshot, uint64_t serial, uint64_t included)
      : Request(watch->stream_, RequestOf(watch->id_, watch->wanted_), kDirectories),
        watch_(watch),
        snapshot_(std::move(snapshot)),
        serial_(serial),
        included_(included) {}
  ~Telling() override { watch_->Over(); }

  bool Step() override {
    if (!directories_) List();
    if (!directories_->Step()) return false;
    SendEdited();
    v1::ContentReply reply;
    reply.mutable_tree_now()->set_tree(std::string(snapshot_->id.view()));
    reply.mutable_tree_now()->set_root(tree::EncodeRoot(snapshot_->root));
    reply.mutable_tree_now()->set_serial(serial_);
    reply.mutable_tree_now()->set_included(included_);
    Send(&reply, false);
    MutexLock lock(watch_->mutex_);
    if (watch_->id_ == id()) {
      watch_->told_ = snapshot_;
      watch_->told_included_ = included_;
    }
    return true;
  }

 private:
  void List() {
    tree::TreePtr told;
    bool own = false;
    {
      MutexLock lock(watch_->mutex_);
      told = watch_->told_;
      own = included_ != watch_->told_included_;
    }
    // What the node did not have before, it requests when somebody looks there.
    std::vector<tree::NewDirectory> all;
    if (told) {
      all = tree::NewDirectories(told->directory, snapshot_->directory);
      DropRead(*told, &all);
    }
    const bool deltas = request_.watch_tree().deltas();
    // The node already has its own writes.
    if (deltas && !own) edited_ = FindEdited(all);
    directories_.emplace(watch_->digests_, watch_->compressor_, std::move(all),
                         Directories::Form{.packed = true, .deltas = deltas},
                         [this](v1::ContentReply* reply, bool) { Send(reply, false); });
  }

  void SendEdited() {
    for (const Edited& file : edited_) {
      v1::ContentRequest::GetRange get;
      get.set_tree(std::string(snapshot_->id.view()));
      get.set_path(file.path);
      get.set_length(file.version.size);
      *get.mutable_version() = ToWire(file.version);
      if (!watch_->reader_->files().Check(get.tree(), file.path, file.version)) continue;
      uint64_t length = 0;
      auto part = watch_->reader_->Read(get, 0, file.version.size, &length);
      if (!part) continue;  // it has changed again: readers will request it and get the newest
      v1::ContentReply reply;
      *reply.mutable_edited()->mutable_version() = get.version();
      *reply.mutable_edited()->mutable_units() = std::move(*part->mutable_units());
      Send(&reply, false);
    }
  }

  TreeWatch* const watch_;
  const tree::TreePtr snapshot_;
  const uint64_t serial_;  // TreeNow.serial and included
  const uint64_t included_;
  std::optional<Directories> directories_;
  std::vector<Edited> edited_;
};

Status TreeWatch::Begin(const v1::ContentRequest& request) {
  Leave();
  const auto& wanted = request.watch_tree();
  const auto have = Digest::FromBytes(wanted.have());
  const auto base = have ? trees_->Find(*have) : std::nullopt;
  const uint64_t joined = board_->Join(
      [weak = stream_->weak_from_this(), this] {
        if (const auto alive = weak.lock()) Changed();
      },
      [weak = stream_->weak_from_this(), this] {
        if (const auto alive = weak.lock()) Ping();
      });
  {
    MutexLock lock(mutex_);
    board_id_ = joined;
    id_ = request.id();
    wanted_ = wanted;
    told_ = base ? base->asked : nullptr;
    if (wanted.pings()) shown_micros_ = MonotonicMicros();  // it will report whether that is so
    reader_->LendTo(wanted.view());
  }
  if (stream_->closed()) Leave();  // closed in the meantime
  // Sends the present state; new states follow with the board's next call. A table that was not kept current is not
  // sent, since the node would trust it.
  if (board_->current()) Changed();
  return {};
}

void TreeWatch::Leave() {
  uint64_t board_id;
  {
    MutexLock lock(mutex_);
    board_id = std::exchange(board_id_, 0);
    id_ = 0;
    told_ = nullptr;
    reader_->LendTo(std::nullopt);
  }
  // Without our lock: the board calls us while we are on it.
  if (board_id != 0) board_->Leave(board_id);
}

void TreeWatch::Cancel(uint64_t id) {
  MutexLock lock(mutex_);
  if (id != id_) return;
  id_ = 0;
  reader_->LendTo(std::nullopt);
}

void TreeWatch::Heard(const v1::ContentRequest::Heard& heard) {
  if (heard.shown()) shown_micros_ = MonotonicMicros();
  if (heard.look()) board_->Look();
}

void TreeWatch::Ping() {
  v1::ContentReply reply;
  {
    MutexLock lock(mutex_);
    if (!wanted_.pings() || id_ == 0) return;
    reply.set_id(id_);
  }
  reply.mutable_ping();
  stream_->Send(reply);
}

void TreeWatch::Changed() {
  std::unique_ptr<Request> next;
  {
    MutexLock lock(mutex_);
    if (id_ == 0) return;
    if (telling_ || stream_->full()) {
      tell_again_ = true;
      return;
    }
    next = NextLocked();
  }
  if (next) stream_->Queue(std::move(next));
}

void TreeWatch::Writable() {
  std::unique_ptr<Request> next;
  {
    MutexLock lock(mutex_);
    if (tell_again_ && !telling_) next = NextLocked();
  }
  if (next) stream_->Queue(std::move(next));
}

void TreeWatch::Over() {
  {
    MutexLock lock(mutex_);
    telling_ = false;
  }
  if (!stream_->closed()) Writable();
}

std::unique_ptr<Request> TreeWatch::NextLocked() {
  tell_again_ = false;
  if (id_ == 0) return nullptr;
  // Read `included` first: a tree that is newer than `included` does no harm.
  const uint64_t included = board_->Included(wanted_.view());
  auto [snapshot, serial] = trees_->Numbered();
  if (!snapshot) return nullptr;
  telling_ = true;
  return std::make_unique<Telling>(this, std::move(snapshot), serial, included);
}

}  // namespace vrun::home
