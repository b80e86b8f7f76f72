// SPDX-License-Identifier: Apache-2.0
#include "node/peers/peer_server.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "node/peers/rendezvous.h"
#include "proto/peer.pb.h"
#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"

namespace vrun::node {
namespace {

constexpr unsigned kThreads = 2;
constexpr size_t kMaxSessions = 4096;
constexpr size_t kMaxQuestions = 4096;  // unanswered questions of one stream
constexpr uint32_t kMaxUnits = store::kWholeFileLimit / store::kUnitBytes;
constexpr int64_t kBeatMicros = 250'000;     // well below PeerPace::Patience
constexpr int64_t kProofMicros = 5'000'000;  // home may tell the other node first

}  // namespace

// The stream of one other node.
class PeerServer::Session final : public rpc::Stream::Handler, public std::enable_shared_from_this<Session> {
 public:
  Session(PeerServer* server, std::string asker, std::unique_ptr<rpc::Stream> stream)
      : server_(server), asker_(std::move(asker)), stream_(std::move(stream)) {}
  ~Session() override { End(); }

  void OnMessage(std::string message) override {
    v1::PeerRequest request;
    const bool parses = request.ParseFromString(message);
    MutexLock lock(mutex_);
    if (dead_) return;
    if (!parses) return CancelLocked(Error(Code::kCorrupt, "a peer's request that does not parse"));
    if (!proved_) {
      if (!request.has_hello() || hello_)
        return CancelLocked(Error(Code::kDenied, "a peer that does not prove itself"));
      hello_ = request.hello();
      return ProveLocked();
    }
    if (request.has_cancel()) {
      const uint64_t id = request.cancel().id();
      for (auto* queue : {&demand_, &ahead_}) std::erase_if(*queue, [id](const auto& q) { return q.id() == id; });
      if (under_way_.contains(id)) cancelled_.insert(id);
      return;
    }
    if (!request.has_get_units() && !request.has_get_frame()) {
      return FailLocked(request.id(),
                        Error(Code::kUnsupported, "this node does not know this request: update vrun on the node"));
    }
    if (demand_.size() + ahead_.size() + under_way_.size() >= kMaxQuestions) {
      return CancelLocked(Error(Code::kExhausted, "too many questions at a time"));
    }
    // A frame counts as demand, because a reader may wait for a part of it.
    (request.get_units().ahead() ? ahead_ : demand_).push_back(std::move(request));
    ScheduleLocked();
  }

  void OnWritable() override {
    MutexLock lock(mutex_);
    ScheduleLocked();
  }

  void OnClosed(Error) override {
    MutexLock lock(mutex_);
    dead_ = true;
  }

  const std::string& asker() const { return asker_; }

  void Recheck() {
    MutexLock lock(mutex_);
    if (!dead_ && !proved_ && hello_) ProveLocked();
  }

  // Whether it has ended, or must be ended now.
  bool Over(int64_t now) {
    MutexLock lock(mutex_);
    if (!dead_ && !proved_ && now - began_ > kProofMicros) {
      CancelLocked(Error(Code::kDenied, "only nodes that home serves may read content here"));
    }
    return dead_;
  }

  // Answers one waiting question, on a thread that may block.
  void Step() {
    v1::PeerRequest request;
    {
      MutexLock lock(mutex_);
      --scheduled_;
      auto& queue = demand_.empty() ? ahead_ : demand_;
      // A slow reader must not cost memory; OnWritable continues.
      if (dead_ || queue.empty() || stream_->queued_bytes() > rpc::Stream::kHighWater) return;
      request = std::move(queue.front());
      queue.pop_front();
      under_way_.insert(request.id());
    }
    if (request.has_get_frame())
      server_->AnswerFrame(shared_from_this(), request.id(), request.get_frame());
    else
      server_->Answer(shared_from_this(), request.id(), request.get_units());
    MutexLock lock(mutex_);
    ScheduleLocked();
  }

  void Reply(v1::PeerReply reply, uint64_t bytes = 0) {
    MutexLock lock(mutex_);
    if (dead_) return;
    if (cancelled_.contains(reply.id())) {
      if (reply.has_waiting()) return;
      cancelled_.erase(reply.id());
      under_way_.erase(reply.id());
      return;
    }
    if (!reply.has_waiting()) under_way_.erase(reply.id());
    server_->source_->Served(bytes);
    stream_->Send(reply.SerializeAsString());
  }

  void Beat() {
    MutexLock lock(mutex_);
    if (dead_ || !proved_) return;
    // Also while answers are being sent: a frame for each of many clients takes longer than anybody waits for a silent
    // node.
    if (demand_.empty() && ahead_.empty() && under_way_.empty() && stream_->queued_bytes() == 0) return;
    v1::PeerReply reply;
    reply.mutable_waiting();
    stream_->SendUrgent(reply.SerializeAsString());
  }

  void Fail(uint64_t id, const Error& error) {
    v1::PeerReply reply;
    reply.set_id(id);
    reply.mutable_error()->set_code(static_cast<int>(error.code()));
    reply.mutable_error()->set_message(error.message());
    Reply(std::move(reply));
  }

  void End() {
    std::unique_ptr<rpc::Stream> stream;
    {
      MutexLock lock(mutex_);
      dead_ = true;
      stream = std::move(stream_);
    }
  }

 private:
  void ProveLocked() VRUN_REQUIRES(mutex_) {
    PeerLinks& links = server_->source_->links();
    if (!links.Proved(asker_, *hello_)) return;  // home's next list may include it
    proved_ = true;
    v1::PeerReply reply;
    reply.mutable_hello()->set_home_id(server_->source_->options().home_id);
    reply.mutable_hello()->set_proof(links.Proof(asker_, hello_->nonce()));
    stream_->Send(reply.SerializeAsString());
  }
  void ScheduleLocked() VRUN_REQUIRES(mutex_) {
    while (!dead_ && scheduled_ < std::min<size_t>(demand_.size() + ahead_.size(), kThreads)) {
      if (stream_->queued_bytes() > rpc::Stream::kHighWater) return;
      ++scheduled_;
      server_->workers_.Post([self = shared_from_this()] { self->Step(); });
    }
  }
  void FailLocked(uint64_t id, const Error& error) VRUN_REQUIRES(mutex_) {
    v1::PeerReply reply;
    reply.set_id(id);
    reply.mutable_error()->set_code(static_cast<int>(error.code()));
    reply.mutable_error()->set_message(error.message());
    stream_->Send(reply.SerializeAsString());
  }
  void CancelLocked(const Error& reason) VRUN_REQUIRES(mutex_) {
    LogWarning("peer {}: {}", Escape(asker_), reason.message());
    dead_ = true;
    stream_->Cancel(reason);
  }

  PeerServer* const server_;
  const std::string asker_;
  const int64_t began_ = MonotonicMicros();
  Mutex mutex_;
  std::unique_ptr<rpc::Stream> stream_ VRUN_GUARDED_BY(mutex_);
  std::optional<v1::PeerHello> hello_ VRUN_GUARDED_BY(mutex_);
  bool proved_ VRUN_GUARDED_BY(mutex_) = false;
  bool dead_ VRUN_GUARDED_BY(mutex_) = false;
  std::deque<v1::PeerRequest> demand_ VRUN_GUARDED_BY(mutex_), ahead_ VRUN_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> under_way_ VRUN_GUARDED_BY(mutex_), cancelled_ VRUN_GUARDED_BY(mutex_);
  size_t scheduled_ VRUN_GUARDED_BY(mutex_) = 0;
};

PeerServer::PeerServer(PeerSource* source, vfs::Backend* backend)
    : source_(source), backend_(backend), workers_("peers", kThreads) {
  BeatLater();
}

PeerServer::~PeerServer() {
  gate_->Close();
  std::vector<SessionPtr> sessions;
  {
    MutexLock lock(mutex_);
    sessions.swap(sessions_);
  }
  for (const SessionPtr& session : sessions) session->End();
  workers_.Stop();
}

Result<rpc::Stream::Handler*> PeerServer::Accept(const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) {
  if (peer.role != "node") return Error(Code::kDenied, "content is passed on to nodes only");
  MutexLock lock(mutex_);
  if (sessions_.size() >= kMaxSessions) return Error(Code::kExhausted, "too many peers at a time");
  sessions_.push_back(std::make_shared<Session>(this, peer.name, std::move(stream)));
  return sessions_.back().get();
}

void PeerServer::Updated() {
  std::vector<SessionPtr> sessions;
  {
    MutexLock lock(mutex_);
    sessions = sessions_;
  }
  for (const SessionPtr& session : sessions) session->Recheck();
}

void PeerServer::Tick(int64_t now) {
  std::vector<SessionPtr> over, sessions;
  {
    MutexLock lock(mutex_);
    sessions = sessions_;
  }
  for (const SessionPtr& session : sessions) {
    if (session->Over(now)) over.push_back(session);
  }
  {
    MutexLock lock(mutex_);
    std::erase_if(sessions_, [&](const SessionPtr& s) { return std::find(over.begin(), over.end(), s) != over.end(); });
  }
  for (const SessionPtr& session : over) session->End();  // no callback after this
}

void PeerServer::BeatLater() {
  backend_->timers().After(kBeatMicros, [this, gate = gate_] {
    const vfs::Gate::Pass pass(gate.get());
    if (pass) Beat();
  });
}

void PeerServer::Beat() {
  std::vector<SessionPtr> sessions;
  if (source_->home()->connected()) {
    MutexLock lock(mutex_);
    sessions = sessions_;
  }
  for (const SessionPtr& session : sessions) session->Beat();
  BeatLater();
}

void PeerServer::Answer(const SessionPtr& session, uint64_t id, const v1::PeerRequest::GetUnits& get) {
  UnitPlace place;
  const auto tree = Digest::FromBytes(get.tree());
  place.path = get.path();
  place.version = {get.version().dev(), get.version().ino(), get.version().ctime_ns(), get.version().size()};
  const uint64_t first = get.first_unit(), count = get.count(), units = store::UnitCount(place.version.size);
  if (!tree || !place.path.starts_with('/') || count == 0 || count > kMaxUnits || first >= units ||
      count > units - first) {
    return session->Fail(id, Error(Code::kInvalid, "malformed question of a peer"));
  }
  place.tree = *tree;
  place.for_peer = true;
  if (auto recent = source_->units().Recent(place.version, first, count)) {
    return Give(session, id, place.version, first, *recent);
  }
  if (Held(session, id, place, first, count)) return;
  if ((get.held_only() || !reads_) && !source_->units().UnderWay(place.version, first, count)) {
    return Absent(session, id);
  }
  FromHome(session, id, place, first, count, get.ahead() ? vfs::Urgency::kAhead : vfs::Urgency::kDemand);
}

void PeerServer::Absent(const SessionPtr& session, uint64_t id) {
  v1::PeerReply reply;
  reply.set_id(id);
  reply.mutable_absent();
  session->Reply(std::move(reply));
}

void PeerServer::AnswerFrame(const SessionPtr& session, uint64_t id, const v1::PeerRequest::GetFrame& get) {
  const auto name = Digest::FromBytes(get.name());
  if (!name) return session->Fail(id, Error(Code::kInvalid, "malformed question of a peer"));
  v1::PeerReply waiting;
  waiting.set_id(id);
  waiting.mutable_waiting();
  session->Reply(std::move(waiting));
  // Checking for it needs the disk: not before the first sign of life, and not on the stream's thread.
  if (const auto place = source_->frames().Resting(*name)) {
    return workers_.Post([this, gate = gate_, session, id, name = *name, place = *place] {
      const vfs::Gate::Pass pass(gate.get());
      if (!pass) return;
      if (!Holds(place)) return GetFrame(session, id, name);
      v1::PeerReply reply;
      reply.set_id(id);
      reply.mutable_units();
      session->Reply(std::move(reply));
    });
  }
  GetFrame(session, id, *name);
}

void PeerServer::GetFrame(const SessionPtr& session, uint64_t id, const Digest& name) {
  if (!reads_ && source_->frames().Resting(name)) return Absent(session, id);  // only home has it
  source_->frames().Get(
      name,
      [this, gate = gate_, session, id](const Result<FrameExchange::Frame>& frame) {
        const vfs::Gate::Pass pass(gate.get());
        if (!pass) return;
        workers_.Post([session, id, frame] {
          if (!frame) return session->Fail(id, frame.error());
          v1::PeerReply reply;
          reply.set_id(id);
          if (!*frame)
            reply.mutable_absent();
          else if ((*frame)->signature().empty())
            reply.mutable_units();
          else
            *reply.mutable_frame() = **frame;
          const uint64_t bytes = reply.frame().data().size();
          session->Reply(std::move(reply), bytes);
        });
      },
      session->asker());
}

bool PeerServer::Holds(const FrameExchange::Place& place) {
  const vfs::TraceTable& table = *place.table;
  return std::all_of(
      table.frames[place.index].begin(), table.frames[place.index].end(), [&](const vfs::TraceRange& range) {
        const vfs::TraceTable::File& file = table.files[range.file];
        const uint64_t unit = store::UnitBytes(file.version.size);
        return backend_->files().Get(file.version, file.object_id)->Has(range.first * unit, range.count * unit);
      });
}

void PeerServer::FromHome(const SessionPtr& session, uint64_t id, const UnitPlace& place, uint64_t first,
                          uint64_t count, vfs::Urgency urgency) {
  v1::PeerReply waiting;
  waiting.set_id(id);
  waiting.mutable_waiting();
  session->Reply(std::move(waiting));
  // Known only when Get returns. If the callback runs before that, only a place in the store is lost.
  auto began = std::make_shared<std::atomic<bool>>(false);
  *began = source_->units().Get(
      place, first, count, urgency,
      [this, gate = gate_, session, id, version = place.version, first, began](Result<std::vector<HeldUnit>> units) {
        const vfs::Gate::Pass pass(gate.get());
        if (!pass) return;
        // Not on this thread, which is home's stream: other callers wait for its messages.
        workers_.Post([this, session, id, version, first, began, units = std::move(units)] {
          if (!units) return session->Fail(id, units.error());
          Give(session, id, version, first, *units);
          if (!*began) return;  // whoever started the fetch puts it into the store
          std::vector<Digest> digests;
          std::string data;
          for (const HeldUnit& unit : *units) {
            digests.push_back(unit.digest);
            data += *unit.data;
          }
          const auto all = std::make_shared<const std::string>(std::move(data));
          backend_->files().Get(version, std::nullopt)->Arrived(first, digests, *all, vfs::Origin::kAhead, all);
        });
      });
}

bool PeerServer::Held(const SessionPtr& session, uint64_t id, const UnitPlace& place, uint64_t first, uint64_t count) {
  auto data = backend_->files().Get(place.version, std::nullopt)->Held(first, count);
  if (!data) return false;
  std::vector<SignedUnitsPtr> statements(count);
  bool all = true;
  for (uint64_t i = 0; i < count; ++i) {
    statements[i] = source_->units().StatementOf(place.version, first + i);
    all &= statements[i] != nullptr;
  }
  if (all) {
    GiveData(session, id, place.version, first, count, std::move(*data), statements);
    return true;
  }
  if (!reads_) return false;
  // Content that arrived when nobody needed it, or before this process started: home must sign it first.
  v1::PeerReply waiting;
  waiting.set_id(id);
  waiting.mutable_waiting();
  session->Reply(std::move(waiting));
  auto shared = std::make_shared<std::string>(std::move(*data));
  source_->home()->FetchStatements(
      place, first, count,
      [this, gate = gate_, session, id, version = place.version, first, count,
       shared](Result<std::vector<SignedUnitsPtr>> told) {
        const vfs::Gate::Pass pass(gate.get());
        if (!pass) return;
        workers_.Post([this, session, id, version, first, count, shared, told = std::move(told)] {
          if (!told) return session->Fail(id, told.error());
          const uint64_t unit_bytes = store::UnitBytes(version.size);
          std::vector<SignedUnitsPtr> statements;
          bool ours = true;
          for (const SignedUnitsPtr& statement : *told) {
            ours &= source_->Signed(version, *statement);
            for (uint64_t i = 0; i < statement->count(); ++i) {
              const std::string_view unit =
                  std::string_view(*shared).substr(statements.size() * unit_bytes, unit_bytes);
              ours &= store::UnitDigest(unit) == statement->DigestAt(i);
              statements.push_back(statement);
            }
          }
          if (!ours || statements.size() != count) {
            return session->Fail(id, Error(Code::kAborted, "the cached content does not match home's digests"));
          }
          for (const SignedUnitsPtr& statement : *told) source_->units().Remember(version, statement);
          GiveData(session, id, version, first, count, std::move(*shared), statements);
        });
      });
  return true;
}

void PeerServer::Give(const SessionPtr& session, uint64_t id, const tree::FileVersion& version, uint64_t first,
                      const std::vector<HeldUnit>& units) {
  std::string data;
  std::vector<SignedUnitsPtr> statements;
  data.reserve(units.size() * store::UnitBytes(version.size));
  for (const HeldUnit& unit : units) {
    data += *unit.data;
    statements.push_back(unit.statement);
  }
  GiveData(session, id, version, first, units.size(), std::move(data), statements);
}

void PeerServer::GiveData(const SessionPtr& session, uint64_t id, const tree::FileVersion& version, uint64_t first,
                          uint64_t count, std::string data, const std::vector<SignedUnitsPtr>& statements) {
  const uint64_t unit_bytes = store::UnitBytes(version.size);
  v1::PeerReply reply;
  reply.set_id(id);
  for (uint64_t i = 0; i < count;) {
    const SignedUnitsPtr& statement = statements[i];
    if (!statement) return session->Fail(id, Error(Code::kAborted, "home did not sign it"));
    v1::SignedUnits* told = reply.mutable_units()->add_statement();
    told->set_offset(statement->offset);
    told->set_digests(statement->digests);
    told->set_object_id(statement->object_id);
    told->set_signature(statement->signature);
    i = statement->offset / unit_bytes + statement->count() - first;
  }
  const uint64_t bytes = data.size();
  reply.mutable_units()->set_data(std::move(data));
  session->Reply(std::move(reply), bytes);
}

}  // namespace vrun::node
