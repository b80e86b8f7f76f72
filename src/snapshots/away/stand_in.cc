// SPDX-License-Identifier: Apache-2.0
#include "snapshots/away/stand_in.h"

#include <set>
#include <utility>

#include "base/escape.h"
#include "base/log.h"

namespace vrun::snapshots {
namespace {

constexpr int64_t kAskMicros = 5'000'000;
constexpr int64_t kAgainMicros = 1'000'000;

bool HasPlace(v1::JobState state) { return state == v1::STARTING || state == v1::RUNNING || state == v1::COMPLETING; }

}  // namespace

// One pod of an attempt. Attached until the job has gone on, with a new connection when one breaks.
class StandIn::Guest {
 public:
  Guest(EventLoop* loop, Root root, v1::Placement placement)
      : loop_(loop), root_(std::move(root)), placement_(std::move(placement)) {
    Open();
  }
  ~Guest() {
    *alive_ = false;
    loop_->Cancel(again_);
  }

 private:
  void Open() {
    if (placement_.addresses_size() == 0) return;
    const int which = next_++ % placement_.addresses_size();
    auto task = root_.nodes->OpenTask(placement_.node(), placement_.addresses(which),
                                      {.on_message = [this](v1::TaskDown message) { Heard(message); },
                                       .on_closed = [this](const Error& reason) { Closed(reason); }});
    if (!task) return Later();
    task_ = std::move(*task);
    v1::TaskUp up;
    v1::Attach* attach = up.mutable_attach();
    attach->set_job(placement_.job());
    attach->set_attempt(placement_.attempt());
    attach->set_pod(placement_.pod());
    attach->set_token(placement_.token());
    attach->set_home_id(root_.home_id);
    attach->set_tree(root_.reference.tree());
    attach->set_apart(root_.reference.apart());
    attach->set_detached(true);
    task_->Send(up);
  }
  void Heard(const v1::TaskDown& message) {
    if (message.has_error()) {
      LogInfo("job {}: node {}: {}", placement_.job(), Escape(placement_.node()), Escape(message.error().message()));
    }
    if (!message.has_attached() || message.attached().content_addresses_size() == 0) return;
    const auto& addresses = message.attached().content_addresses();
    content_ = root_.nodes->UseContent({addresses.begin(), addresses.end()}, {.placement = placement_});
    if (std::exchange(told_, true)) return;
    LogInfo("job {} attempt {}: its root is served to node {}", placement_.job(), placement_.attempt(),
            Escape(placement_.node()));
  }
  void Closed(const Error& reason) {
    LogDebug("job {}: the node ended the connection: {}", placement_.job(), reason.message());
    Later();
  }
  void Later() {
    again_ = loop_->After(kAgainMicros, [this] {
      again_ = 0;
      task_.reset();
      Open();
    });
  }

  EventLoop* const loop_;
  const Root root_;
  const v1::Placement placement_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<home::TaskStream> task_;
  std::unique_ptr<home::NodeLinks::ContentUse> content_;
  EventLoop::TimerId again_ = 0;
  int next_ = 0;
  bool told_ = false;
};

StandIn::StandIn(EventLoop* loop, rpc::Channel* controller, FindRoot find)
    : loop_(loop), controller_(controller), find_(std::move(find)) {}

StandIn::~StandIn() { *alive_ = false; }

template <typename Reply>
void StandIn::Ask(const std::string& method, const std::string& request, std::function<void(Result<Reply>)> done) {
  controller_->Call("/vrun.v1.Control/" + method, request, kAskMicros,
                    [loop = loop_, alive = alive_, done = std::move(done)](Result<std::string> bytes) {
                      loop->Post([alive, done, bytes = std::move(bytes)] {
                        if (!*alive) return;
                        if (!bytes) return done(bytes.error());
                        Reply reply;
                        if (!reply.ParseFromString(*bytes)) return done(Error(Code::kCorrupt, "it does not parse"));
                        done(std::move(reply));
                      });
                    });
}

void StandIn::Look() {
  if (std::exchange(asking_, true)) return;
  Ask<v1::ListReply>("List", v1::ListRequest().SerializeAsString(), [this](Result<v1::ListReply> list) {
    asking_ = false;
    // Without a controller everything goes on.
    if (list) Heard(*list);
  });
}

void StandIn::Heard(const v1::ListReply& list) {
  std::map<uint64_t, uint32_t> there;
  for (const v1::JobInfo& info : list.jobs()) {
    if (info.has_away() && HasPlace(info.state())) there[info.job()] = info.attempt();
  }
  const auto goes_on = [&](uint64_t job, uint32_t attempt) {
    const auto it = there.find(job);
    return it != there.end() && it->second == attempt;
  };
  std::erase_if(guests_,
                [&](const auto& guest) { return !goes_on(std::get<0>(guest.first), std::get<1>(guest.first)); });
  std::erase_if(known_, [&](const auto& known) { return !goes_on(known.first, known.second); });
  for (const v1::JobInfo& info : list.jobs()) {
    if (!there.contains(info.job()) || known_.contains(info.job())) continue;
    known_[info.job()] = info.attempt();
    v1::GetRequest request;
    request.set_job(info.job());
    Ask<v1::GetReply>("Get", request.SerializeAsString(), [this, job = info.job(), owner = info.user()](auto reply) {
      if (reply && reply->has_placement() && reply->has_snapshot()) return Serve(owner, *reply);
      known_.erase(job);  // asked again
    });
  }
}

void StandIn::Serve(const std::string& owner, const v1::GetReply& job) {
  if (job.placements_size() == 0) return Open(owner, job.snapshot(), job.placement());
  for (const v1::Placement& placement : job.placements()) Open(owner, job.snapshot(), placement);
}

void StandIn::Open(const std::string& owner, const v1::SnapshotReference& reference, const v1::Placement& placement) {
  const Key key(placement.job(), placement.attempt(), placement.pod());
  if (!guests_.try_emplace(key).second) return;
  find_(owner, reference, [this, alive = alive_, key, placement](Result<Root> root) {
    if (!*alive) return;
    const auto it = guests_.find(key);
    if (it == guests_.end() || it->second) return;
    if (root) {
      it->second = std::make_unique<Guest>(loop_, *std::move(root), placement);
      return;
    }
    LogInfo("job {}: {}", placement.job(), root.error().message());
    guests_.erase(it);
    known_.erase(placement.job());  // tried again
  });
}

}  // namespace vrun::snapshots
