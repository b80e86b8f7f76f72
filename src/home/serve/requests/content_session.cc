// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/content_session.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "home/serve/content_server.h"
#include "home/serve/requests/requests.h"

namespace vrun::home {
namespace {

// For answers that are not urgent.
constexpr double kSliceSeconds = 0.01;
constexpr size_t kLeastSlice = 64u << 10, kMostSlice = 1u << 20;
constexpr size_t kFirstSlice = 256u << 10;  // while the link's speed is unknown

size_t MostQueued(Urgency urgency) {
  if (urgency == kDirectories) return std::numeric_limits<size_t>::max();
  return urgency == kRanges ? 2 * rpc::Stream::kHighWater : rpc::Stream::kHighWater;
}

// Watching and the like give no content by themselves: what is watched is told only while the session serves.
bool IsOrder(const v1::ContentRequest& r) {
  return r.has_watch_peers() || r.has_watch_hidden() || r.has_missed() || r.has_watch_tree() || r.has_begin_writes() ||
         r.has_end_writes();
}

// What a node asks again if it needs it still.
bool IsRead(const v1::ContentRequest& r) {
  return r.has_get_range() || r.has_get_directory() || r.has_get_extents() || r.has_get_resident();
}

class RefusedRequest : public Request {
 public:
  RefusedRequest(NodeStream* stream, v1::ContentRequest request, Urgency urgency, Error why)
      : Request(stream, std::move(request), urgency), why_(std::move(why)) {}
  bool Step() override { return Fail(why_); }

 private:
  const Error why_;
};

Error NoJobHasIt() { return Error(Code::kUnavailable, "no job of this home on the node has this tree"); }

}  // namespace

ContentSession::ContentSession(ContentServer* server)
    : server_(server),
      reader_(&server->served_, &server->ids_, &server->hot_units_, &server->compressor_, &server->signer_, &policy_),
      resident_(&server->served_, server->digests_),
      peers_(&server->peers_, this),
      hidden_(&server->hidden_, this),
      tree_(server->trees_, &server->tree_board_, server->digests_, &server->compressor_, &reader_, this),
      live_(server->live_writes_, &server->lent_, this) {}

// --- dispatch ---

std::unique_ptr<Request> ContentSession::Make(v1::ContentRequest r) {
  using Asked = v1::ContentRequest;
  const auto reply = [&](Urgency urgency, OneReply::Answer answer) {
    return std::make_unique<OneReply>(this, std::move(r), urgency, std::move(answer));
  };
  const auto order = [&](Order::Carry carry) { return std::make_unique<Order>(this, std::move(r), std::move(carry)); };
  const auto directories = [&](Urgency urgency, GetDirectories::Find find) {
    return std::make_unique<GetDirectories>(this, std::move(r), urgency, server_->trees_, server_->digests_,
                                            &server_->compressor_, std::move(find));
  };
  switch (r.what_case()) {
    case Asked::kGetRoot:
      return reply(kDirectories, [this](const Asked& a) { return GetRoot(*server_->trees_, a.get_root()); });
    case Asked::kGetDirectory: return directories(kDirectories, FindDirectory);
    case Asked::kGetTree: return directories(kTrees, FindTree);
    case Asked::kGetRange: return std::make_unique<GetRange>(this, std::move(r), &reader_);
    case Asked::kGetExtents:
      return reply(kDirectories, [this](const Asked& a) { return GetExtents(server_->served_, a.get_extents()); });
    case Asked::kGetResident: return reply(kRanges, [this](const Asked& a) { return resident_.Get(a.get_resident()); });
    case Asked::kGetTrace:
      return reply(kRanges, [this](const Asked& a) { return GetTrace(server_->traces_, a.get_trace()); });
    case Asked::kPutTrace:
      return reply(kRanges, [this](const Asked& a) { return PutTrace(server_->traces_, a.put_trace()); });
    case Asked::kGetFrames:
      return std::make_unique<GetFrames>(this, std::move(r), &server_->traces_, &server_->signer_);
    case Asked::kWatchPeers: return order([this](const Asked& a) { return WatchPeers(a); });
    case Asked::kWatchHidden: return order([this](const Asked& a) { return hidden_.Begin(a.id()); });
    case Asked::kMissed: return order([this](const Asked& a) { return Missed(a.missed().path()); });
    case Asked::kWatchTree: return order([this](const Asked& a) { return tree_.Begin(a); });
    case Asked::kBeginWrites: return order([this](const Asked& a) { return live_.Begin(a); });
    case Asked::kEndWrites: return order([this](const Asked& a) { return live_.End(a); });
    default:
      return std::make_unique<RefusedRequest>(
          this, std::move(r), kDirectories,
          Error(Code::kUnsupported, "home does not know this content request: update vrun at home"));
  }
}

void ContentSession::OnMessage(const std::string& message) {
  server_->ids_.Busy();
  server_->traces_.frames().Busy();
  v1::ContentRequest request;
  if (!request.ParseFromString(message)) {
    MutexLock lock(mutex_);
    if (stream_ != nullptr) stream_->Cancel(Error(Code::kCorrupt, "content request does not parse"));
    return;
  }
  if (closed()) return;
  // These need no answer and are cheap.
  if (request.has_write()) return live_.Write(request.mutable_write());
  if (request.has_heard()) {
    MutexLock lock(mutex_);
    if (!serves_.live) request.mutable_heard()->set_look(false);
    lock.unlock();
    return tree_.Heard(request.heard());
  }
  if (request.has_cancel()) return Cancel(request.cancel().id());
  if (request.has_get_root() || request.has_get_directory() || request.has_get_tree()) ++server_->metadata_requests_;
  const bool order = IsOrder(request);
  auto made = Make(std::move(request));
  MutexLock lock(mutex_);
  if (stream_ == nullptr) return;
  if (waiting_[made->urgency()].size() + held_.size() >= kMaxWaiting) {
    stream_->Cancel(Error(Code::kExhausted, "too many content requests at a time"));
    return;
  }
  if (order) {
    waiting_[made->urgency()].push_back(std::move(made));
  } else {
    Wait(std::move(made), false);
  }
  Schedule();
}

// A request names its tree, and home answers for that tree. An unknown tree is one from before a restart of home: what
// is the same in the present one is served, to whoever knows its version or digest.
bool ContentSession::TreeServed(const std::string& tree, const std::string& path) {
  if (serves_.trees.contains(tree) || (serves_.live && path.empty() && tree == live_tree_)) return true;
  const auto id = Digest::FromBytes(tree);
  const auto held = id ? server_->trees_->Find(*id) : std::nullopt;
  if (!held) return true;
  if (!serves_.live) return false;
  // The tree of a job elsewhere, or one with the same digest: not with what was exposed to that job alone.
  if (!held->exposed.empty() && !path.empty()) {
    const auto rules = server_->trees_->rules();
    return rules && !rules->Denies(path);
  }
  if (held->exposed.empty()) live_tree_ = tree;
  return true;
}

bool ContentSession::Served(const v1::ContentRequest& r) {
  using Asked = v1::ContentRequest;
  if (serves_.all) return true;
  // What a run has touched may come a little after its end; it has a token and gives the node nothing.
  if (r.what_case() == Asked::kPutTrace) return true;
  if (!serves_.any) return false;
  switch (r.what_case()) {
    case Asked::kGetRoot: return TreeServed(r.get_root().tree(), "");
    case Asked::kGetTree: return TreeServed(r.get_tree().tree(), "");
    case Asked::kGetDirectory: return TreeServed(r.get_directory().tree(), "");
    case Asked::kGetRange: return TreeServed(r.get_range().tree(), r.get_range().path());
    case Asked::kGetExtents: return TreeServed(r.get_extents().tree(), r.get_extents().path());
    case Asked::kGetResident: return TreeServed(r.get_resident().tree(), r.get_resident().path());
    case Asked::kWatchTree: return serves_.live;  // a state of the root that home tells by itself
    default: return true;                         // with the token of a job
  }
}

void ContentSession::Wait(std::unique_ptr<Request> request, bool first) {
  if (!Served(request->asked()) && request->asked().get_range().for_peer()) {
    const Urgency urgency = request->urgency();
    request = std::make_unique<RefusedRequest>(this, v1::ContentRequest(request->asked()), urgency, NoJobHasIt());
  } else if (!Served(request->asked())) {
    const bool read = IsRead(request->asked());
    held_.push_back({std::move(request), MonotonicMicros()});
    if (read && on_held_ && !std::exchange(told_held_, true)) on_held_();
    return;
  }
  auto& queue = waiting_[request->urgency()];
  if (first) {
    queue.push_front(std::move(request));
  } else {
    queue.push_back(std::move(request));
  }
}

void ContentSession::SetServes(Serves serves) {
  bool live = false;
  {
    MutexLock lock(mutex_);
    serves_ = std::move(serves);
    live_tree_.clear();
    live = serves_.live;
    std::deque<std::unique_ptr<Request>> all;
    for (auto& queue : waiting_) {
      std::move(queue.begin(), queue.end(), std::back_inserter(all));
      queue.clear();
    }
    std::deque<Held> held;
    held.swap(held_);
    for (Held& h : held) {
      if (Served(h.request->asked())) {
        all.push_back(std::move(h.request));
      } else {
        held_.push_back(std::move(h));
      }
    }
    // Orders give nothing and were not held before.
    for (auto& request : all) {
      if (IsOrder(request->asked()) && !request->asked().has_watch_tree()) {
        waiting_[request->urgency()].push_back(std::move(request));
      } else {
        Wait(std::move(request), false);
      }
    }
    Schedule();
  }
  if (live) OnWritable();  // what the node was not told meanwhile
}

bool ContentSession::EndHeld(int64_t micros) {
  std::vector<std::unique_ptr<Request>> over;
  bool more = false;
  {
    MutexLock lock(mutex_);
    const int64_t before = MonotonicMicros() - micros;
    const auto ends = [&](const Held& h) { return h.since <= before && IsRead(h.request->asked()); };
    for (Held& h : held_) {
      if (ends(h)) over.push_back(std::move(h.request));
    }
    std::erase_if(held_, [](const Held& h) { return !h.request; });
    more = std::any_of(held_.begin(), held_.end(), [](const Held& h) { return IsRead(h.request->asked()); });
    told_held_ = more;
  }
  for (const auto& request : over) {
    v1::ContentReply reply;
    reply.set_id(request->id());
    reply.set_last(true);
    reply.mutable_error()->set_code(static_cast<int>(NoJobHasIt().code()));
    reply.mutable_error()->set_message(NoJobHasIt().message());
    Send(reply, kDirectories, /*slices=*/false);
  }
  return more;
}

Status ContentSession::WatchPeers(const v1::ContentRequest& request) {
  const auto& watch = request.watch_peers();
  if (watch.name().empty() || watch.addresses_size() == 0) {
    return Error(Code::kInvalid, "malformed request for peers");
  }
  return peers_.Begin(request.id(), PeerBoard::Member{watch.name(), watch.addresses(0), watch.pool()});
}

// It is the node's word: only what is hidden here is passed on, and the node is told nothing.
Status ContentSession::Missed(const std::string& path) {
  const auto rules = server_->trees_->rules();
  if (rules && server_->hidden_.Has(path) && rules->Misses(path)) Withheld(path);
  return {};
}

void ContentSession::Cancel(uint64_t id) {
  tree_.Cancel(id);
  std::vector<std::unique_ptr<Request>> dropped;  // destroyed without the lock
  MutexLock lock(mutex_);
  if (running_.contains(id)) cancelled_.insert(id);
  for (auto& queue : waiting_) {
    const auto kept = std::stable_partition(queue.begin(), queue.end(), [id](const auto& r) { return r->id() != id; });
    std::move(kept, queue.end(), std::back_inserter(dropped));
    queue.erase(kept, queue.end());
  }
  for (Held& h : held_) {
    if (h.request->id() == id) dropped.push_back(std::move(h.request));
  }
  std::erase_if(held_, [](const Held& h) { return !h.request; });
}

// --- the stream ---

void ContentSession::Start(rpc::Stream* stream) {
  MutexLock lock(mutex_);
  stream_ = stream;
}

void ContentSession::Close() {
  std::deque<std::unique_ptr<Request>> dropped[kUrgencies];
  std::deque<Held> held;
  {
    MutexLock lock(mutex_);
    stream_ = nullptr;
    held.swap(held_);
    for (int u = 0; u < kUrgencies; ++u) dropped[u].swap(waiting_[u]);
  }
  peers_.Leave();
  hidden_.Leave();
  tree_.Leave();
  live_.Leave();
}

bool ContentSession::closed() const {
  MutexLock lock(mutex_);
  return stream_ == nullptr;
}

bool ContentSession::full() const {
  MutexLock lock(mutex_);
  return stream_ == nullptr || !serves_.live || stream_->queued_bytes() > rpc::Stream::kHighWater;
}

void ContentSession::Queue(std::unique_ptr<Request> request) {
  MutexLock lock(mutex_);
  if (stream_ == nullptr) return;
  Wait(std::move(request), false);
  Schedule();
}

void ContentSession::OnWritable() {
  {
    MutexLock lock(mutex_);
    parked_ = false;
    Schedule();
  }
  tree_.Writable();
}

// Posts one step per runnable request, but no more than the workers can use.
void ContentSession::Schedule() {
  constexpr size_t kEnough = 8;
  size_t wanted = waiting_[kDirectories].size() + waiting_[kRanges].size();
  if (!parked_) wanted += waiting_[kTrees].size() + waiting_[kAhead].size();
  while (scheduled_ < std::min(wanted, kEnough)) {
    ++scheduled_;
    server_->workers_.Post([self = shared_from_this(), this] { Step(); });
  }
}

void ContentSession::Step() {
  std::unique_ptr<Request> work;  // destroyed without the lock
  {
    MutexLock lock(mutex_);
    --scheduled_;
    if (stream_ == nullptr) return;
    for (int u = 0; u < kUrgencies && !work; ++u) {
      if (waiting_[u].empty()) continue;
      if (stream_->queued_bytes() > MostQueued(static_cast<Urgency>(u))) {
        parked_ = true;
        // It may have become writable in between, and then OnWritable would not be called.
        if (stream_->queued_bytes() > rpc::Stream::kLowWater) return;
        parked_ = false;
      }
      work = std::move(waiting_[u].front());
      waiting_[u].pop_front();
    }
    if (!work) return;
    running_.insert(work->id());
  }
  const bool answered = work->Step();
  MutexLock lock(mutex_);
  running_.erase(work->id());
  const bool cancelled = cancelled_.erase(work->id()) > 0;
  if (!answered && !cancelled && stream_ != nullptr) Wait(std::move(work), true);
  Schedule();
}

// What the link sends in kSliceSeconds: an urgent answer waits at most that long for the slice being sent.
size_t ContentSession::SliceBytes() const {
  const double link = policy_.link();
  if (link <= 0) return kFirstSlice;
  return static_cast<size_t>(std::clamp(link * kSliceSeconds, double{kLeastSlice}, double{kMostSlice}));
}

void ContentSession::Send(const v1::ContentReply& reply, Urgency urgency, bool slices) {
  std::string bytes;
  reply.SerializeToString(&bytes);
  MutexLock lock(mutex_);
  if (stream_ == nullptr || cancelled_.contains(reply.id())) return;
  server_->served_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  sent_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  // Before queueing: the bytes queued now are those that the link has not sent since the last message.
  bool more = running_.size() > 1 || !reply.last();
  for (const auto& queue : waiting_) more |= !queue.empty();
  policy_.Sent(MonotonicMicros(), sent_bytes_.load(std::memory_order_relaxed) - bytes.size(), stream_->queued_bytes(),
               more);
  if (urgency < kTrees) return stream_->SendUrgent(std::move(bytes));
  const size_t slice = SliceBytes();
  if (!slices || bytes.size() <= slice + slice / 2) return stream_->Send(std::move(bytes));
  for (size_t at = 0; at < bytes.size(); at += slice) {
    v1::ContentReply part;
    part.set_id(reply.id());
    part.mutable_slice()->set_data(bytes.substr(at, slice));
    part.mutable_slice()->set_more(bytes.size() - at > slice);
    stream_->Send(part.SerializeAsString());
  }
}

}  // namespace vrun::home
