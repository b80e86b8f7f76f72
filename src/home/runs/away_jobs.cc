// SPDX-License-Identifier: Apache-2.0
#include "home/runs/away_jobs.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "home/links/controller_client.h"
#include "jobs/ending.h"

namespace vrun::home {
namespace {

constexpr int64_t kTellMicros = 200'000;
constexpr int64_t kRemoveAgainMicros = 5'000'000;
constexpr size_t kNamedFiles = 3;

}  // namespace

AwayJobs::AwayJobs(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, SnapshotClient* snapshots,
                   const RunFiles* files)
    : loop_(loop), controller_(controller), roots_(roots), snapshots_(snapshots), files_(files) {}

AwayJobs::~AwayJobs() {
  *alive_ = false;
  loop_->Cancel(again_);
  for (auto& [id, job] : jobs_) {
    for (auto& client : job.clients) client->SetEvents({});
  }
}

void AwayJobs::Begin(uint64_t id, std::unique_ptr<SnapshotClient::Sending> sending) {
  Job& job = jobs_[id];
  job.snapshot = sending->name();
  job.sending = std::move(sending);
  files_->RememberAway(id, {job.snapshot, false});
  Listen(id);
}

void AwayJobs::Listen(uint64_t id) {
  jobs_[id].sending->SetEvents({.on_announced = nullptr, .on_change = [this, id] { Changed(id); }});
  Changed(id);
}

void AwayJobs::TakeUp(uint64_t id, const std::string& snapshot, const std::vector<std::string>& first) {
  if (jobs_.contains(id)) return;
  const auto remembered = files_->RecallAway(id);
  Job& job = jobs_[id];
  job.snapshot = snapshot;
  // A home that knows nothing of the job is another machine's: the first one has said that it is safe, or cannot go on.
  const bool sends = remembered ? !remembered->complete : roots_->frozen().Begun(id);
  if (!sends) {
    job.complete = true;
    return files_->RememberAway(id, {snapshot, true});
  }
  auto found = roots_->frozen().Find(id);
  if (!found) {
    job.problem = "home ended before it had noted down what the job shall see: submit it again";
    LogWarning("job {}: {}", id, job.problem);
    if (notice_) notice_(id, job.problem);
    return controller_->Cancel(id, SIGTERM, [](const Result<v1::CancelReply>&) {});
  }
  LogInfo("job {}: goes on sending its root", id);
  job.sending = snapshots_->Send(snapshot, found->tree, found->exposed, first, {});
  Listen(id);
}

void AwayJobs::Changed(uint64_t id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || !it->second.sending) return;
  Job& job = it->second;
  const SnapshotClient::Sending::State& state = job.sending->state();
  if (!state.lost.empty() && !std::exchange(job.told_lost, true) && notice_) {
    std::string names;
    for (size_t i = 0; i < std::min(state.lost.size(), kNamedFiles); ++i) {
      names += (i == 0 ? "" : ", ") + Escape(state.lost[i]);
    }
    if (state.lost.size() > kNamedFiles) names += " and " + std::to_string(state.lost.size() - kNamedFiles) + " more";
    notice_(id, "changed at home before they were sent, so that the job cannot read them: " + names);
  }
  if (state.complete) return Completed(id);
  Tell(id, !state.problem.empty());
}

void AwayJobs::Completed(uint64_t id) {
  Job& job = jobs_[id];
  LogInfo("job {}: all of its root is in the pool's store", id);
  job.complete = true;
  files_->RememberAway(id, {job.snapshot, true});
  roots_->frozen().Forget(id);
  // Posted, because it is on the stack.
  loop_->Post([sending = std::shared_ptr<SnapshotClient::Sending>(std::move(job.sending))] {});
  Tell(id, true);
}

std::optional<v1::AwayState> AwayJobs::State(uint64_t id) const {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return std::nullopt;
  const Job& job = it->second;
  v1::AwayState state;
  state.set_safe(job.complete || job.over);
  if (state.safe()) return state;
  state.set_problem(job.problem);
  if (!job.sending) return state;
  const SnapshotClient::Sending::State& sending = job.sending->state();
  const v1::SnapshotProgress& p = sending.progress;
  state.set_files_left(p.total_files() - std::min(p.files(), p.total_files()));
  state.set_bytes_left(p.total_bytes() - std::min(p.bytes(), p.total_bytes()) + p.total_saved_bytes() -
                       std::min(p.saved_bytes(), p.total_saved_bytes()));
  state.set_bytes(p.total_bytes());
  state.set_problem(sending.problem);
  return state;
}

void AwayJobs::Watch(uint64_t id, const std::shared_ptr<ClientConnection>& client) {
  if (!State(id)) return client->Close();
  jobs_[id].clients.push_back(client);
  client->SetEvents({.on_message = [](const v1::ClientMessage&, const std::vector<UniqueFd>&) {},
                     .on_closed =
                         [this, alive = alive_, id, raw = client.get()] {
                           const auto it = *alive ? jobs_.find(id) : jobs_.end();
                           if (it == jobs_.end()) return;
                           std::erase_if(it->second.clients, [raw](const auto& c) { return c.get() == raw; });
                         }});
  Tell(id, true);
}

void AwayJobs::Tell(uint64_t id, bool always) {
  Job& job = jobs_[id];
  const int64_t now = MonotonicMicros();
  if (job.clients.empty() || (!always && now - job.told_us < kTellMicros)) return;
  job.told_us = now;
  v1::HomeMessage message;
  *message.mutable_away() = *State(id);
  const bool last = message.away().safe() || !job.problem.empty();
  for (const auto& client : job.clients) {
    client->Send(message);
    if (last) client->SetEvents({});
    if (last) client->Close();
  }
  if (last) job.clients.clear();
}

// --- the end

void AwayJobs::Ended(uint64_t id) {
  const auto remembered = files_->RecallAway(id);
  if (!jobs_.contains(id) && !remembered) return;
  Job& job = jobs_[id];
  if (job.snapshot.empty() && remembered) job.snapshot = remembered->snapshot;
  Remove(id);
}

// Only the controller knows that no other attempt follows.
void AwayJobs::Remove(uint64_t id) {
  controller_->Get(id, [this, alive = alive_, id](Result<v1::GetReply> reply) {
    if (!*alive || !jobs_.contains(id)) return;
    const bool gone = !reply && reply.error().code() == Code::kNotFound;
    if (!gone && (!reply || !IsEnd(reply->info().state()))) return RemoveLater();
    Job& job = jobs_[id];
    job.over = true;
    job.sending.reset();
    roots_->frozen().Forget(id);
    Tell(id, true);
    snapshots_->Delete(job.snapshot, [this, alive, id](const Status& deleted) {
      if (!*alive) return;
      if (!deleted) {
        LogInfo("job {}: its snapshot: {}: tried again", id, deleted.error().message());
        return RemoveLater();
      }
      files_->ForgetAway(id);
      jobs_.erase(id);
    });
  });
}

void AwayJobs::RemoveLater() {
  if (again_ != 0) return;
  again_ = loop_->After(kRemoveAgainMicros, [this] {
    again_ = 0;
    for (const uint64_t id : files_->RememberedAway()) Ended(id);
  });
}

}  // namespace vrun::home
