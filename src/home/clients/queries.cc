// SPDX-License-Identifier: Apache-2.0
#include "home/clients/queries.h"

#include <unistd.h>

#include "home/kept/kept_call.h"
#include "home/runs/away_jobs.h"
#include "home/runs/job_roots.h"
#include "home/runs/runs.h"
#include "home/runs/withheld.h"
#include "home/serve/content_server.h"
#include "jobs/ending.h"

namespace vrun::home {
namespace {

constexpr int64_t kTimeout = 10'000'000;

void Finish(const std::shared_ptr<ClientConnection>& client, const v1::HomeMessage& message) {
  client->Send(message);
  client->Close();
}

void Done(const std::shared_ptr<ClientConnection>& client) {
  v1::HomeMessage message;
  message.mutable_done();
  Finish(client, message);
}

}  // namespace

Queries::Queries(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const JobRoots* roots,
                 const Runs* runs, const AwayJobs* away, Withheld* withheld, const ContentServer* content,
                 std::string root)
    : loop_(loop),
      controller_(controller),
      nodes_(nodes),
      roots_(roots),
      runs_(runs),
      away_(away),
      withheld_(withheld),
      content_(content),
      root_(std::move(root)) {}

void Queries::Answer(const Client& client, const v1::Query& query) {
  if (const auto other = others_.find(query.what_case()); other != others_.end()) return other->second(client, query);
  switch (query.what_case()) {
    case v1::Query::kStatus: return Status(client);
    case v1::Query::kListJobs: return ListJobs(client, query.list_jobs().all());
    case v1::Query::kGetJob: return GetJob(client, query.get_job());
    case v1::Query::kListNodes: return ListNodes(client);
    case v1::Query::kCancelJobs: return CancelJobs(client, query.cancel_jobs());
    case v1::Query::kWhy: return Why(client, query.why());
    case v1::Query::kListTeams: return ListTeams(client);
    case v1::Query::kListAccounts: return ListAccounts(client, query.list_accounts());
    case v1::Query::kUsage: return Usage(client, query.usage());
    default:
      return client->SendError(
          Error(Code::kUnsupported,
                "home does not know this request: client and home have different versions: restart home: `vctl down`"));
  }
}

void Queries::Status(const Client& client) {
  // Asks the controller, so that the answer is current.
  v1::NodesRequest request;
  controller_->Call<v1::NodesRequest, v1::NodesReply>(
      "Nodes", request, 2'000'000, [this, alive = alive_, client](Result<v1::NodesReply> reply) {
        if (!*alive) return;
        v1::HomeMessage message;
        v1::StatusAnswer* status = message.mutable_status();
        status->set_version(VRUN_VERSION);
        status->set_pid(::getpid());
        status->set_root(root_);
        if (auto snapshot = roots_->current()) {
          status->set_entries(snapshot->entries);
          status->set_bytes(snapshot->bytes);
        }
        RootTree::Facts facts = roots_->facts();
        status->set_scanned(facts.scanned);
        status->set_watch(facts.watch);
        status->set_last_scan_s(facts.scan_seconds);
        status->set_controller(controller_->address());
        status->set_controller_connected(controller_->connected());
        status->set_controller_error(controller_->error());
        status->set_running_jobs(static_cast<uint32_t>(runs_->running()));
        status->set_served_bytes(content_->served_bytes());
        status->set_metadata_requests(content_->metadata_requests());
        if (reply && reply->has_s3()) *status->mutable_s3() = reply->s3();
        if (const FrozenRoots::Stats frozen = roots_->frozen().stats(); frozen.jobs > 0) {
          status->mutable_frozen()->set_jobs(static_cast<uint32_t>(frozen.jobs));
          status->mutable_frozen()->set_held_files(frozen.files.held);
          status->mutable_frozen()->set_old_files(frozen.files.kept.files);
          status->mutable_frozen()->set_kept_bytes(frozen.files.kept.bytes);
          status->mutable_frozen()->set_lost_files(frozen.files.lost);
          status->mutable_frozen()->set_last_lost(frozen.files.last_lost);
        }
        Finish(client, message);
      });
}

void Queries::ListJobs(const Client& client, bool all) {
  v1::ListRequest request;
  request.set_all(all);
  const auto answer = [this, alive = alive_, client](Result<v1::ListReply> reply) {
    if (!*alive) return;
    if (!reply) return client->SendError(reply.error());
    for (v1::JobInfo& info : *reply->mutable_jobs()) {
      if (!info.has_away()) continue;
      if (const auto state = away_->State(info.job())) {
        *info.mutable_away() = *state;
      } else {
        info.clear_away();
      }
    }
    v1::HomeMessage message;
    message.mutable_jobs()->mutable_jobs()->Swap(reply->mutable_jobs());
    Finish(client, message);
  };
  controller_->Call<v1::ListRequest, v1::ListReply>("List", request, kTimeout, answer);
}

void Queries::GetJob(const Client& client, const v1::Query::GetJob& query) {
  const auto element = query.has_element() ? std::optional<uint32_t>(query.element()) : std::nullopt;
  controller_->Get(query.job(), element, [this, alive = alive_, client](Result<v1::GetReply> reply) {
    if (!*alive) return;
    if (!reply) return client->SendError(reply.error());
    v1::HomeMessage message;
    v1::JobInfo* info = message.mutable_jobs()->add_jobs();
    *info = reply->info();
    const uint64_t job = info->job();  // an element's own
    info->set_frozen(roots_->frozen().Describe(job));
    info->set_live_state(runs_->LiveState(job));
    // Home knows more about the end of a job than the controller: whether all output and writes have arrived. (For a
    // lost job the controller may still learn more.)
    const Outcome* outcome = runs_->OutcomeOf(job);
    if (outcome != nullptr && (info->state() == outcome->state || (IsEnd(info->state()) && IsEnd(outcome->state)))) {
      info->set_home_status(outcome->exit_status);
      if (!outcome->reason.empty()) info->set_reason(outcome->reason);
      info->set_state(outcome->state);
    }
    const bool keeps = info->keep_writes() || info->has_away();
    if (auto state = info->has_away() ? away_->State(job) : std::nullopt) {
      *info->mutable_away() = *std::move(state);
    } else if (IsEnd(info->state())) {
      info->clear_away();
    }
    if (!keeps) return Finish(client, message);
    // Only the job's nodes know the state of its kept writes.
    const v1::JobInfo asked = *info;
    FindKept(loop_, controller_, nodes_, asked, [client, message](Result<KeptFound> found) mutable {
      v1::JobInfo* info = message.mutable_jobs()->mutable_jobs(0);
      if (found) info->mutable_kept()->Assign(found->kept.begin(), found->kept.end());
      Finish(client, message);
    });
  });
}

void Queries::ListNodes(const Client& client) {
  controller_->Call<v1::NodesRequest, v1::NodesReply>("Nodes", {}, kTimeout, [client](Result<v1::NodesReply> reply) {
    if (!reply) return client->SendError(reply.error());
    v1::HomeMessage message;
    message.mutable_nodes()->mutable_nodes()->Swap(reply->mutable_nodes());
    Finish(client, message);
  });
}

void Queries::Why(const Client& client, const v1::Query::Why& query) {
  v1::WhyRequest request;
  request.set_job(query.job());
  if (query.has_element()) request.set_element(query.element());
  controller_->Call<v1::WhyRequest, v1::WhyAnswer>("Why", request, kTimeout, [client](Result<v1::WhyAnswer> reply) {
    if (!reply) return client->SendError(reply.error());
    v1::HomeMessage message;
    *message.mutable_why() = *std::move(reply);
    Finish(client, message);
  });
}

void Queries::ListTeams(const Client& client) {
  controller_->Call<v1::TeamsRequest, v1::TeamList>("Teams", {}, kTimeout, [client](Result<v1::TeamList> reply) {
    if (!reply) return client->SendError(reply.error());
    v1::HomeMessage message;
    *message.mutable_teams() = *std::move(reply);
    Finish(client, message);
  });
}

void Queries::ListAccounts(const Client& client, const v1::Query::ListAccounts& query) {
  v1::AccountsRequest request;
  request.set_after(query.after());
  request.set_limit(query.limit());
  controller_->Call<v1::AccountsRequest, v1::AccountList>("Accounts", request, kTimeout,
                                                          [client](Result<v1::AccountList> reply) {
                                                            if (!reply) return client->SendError(reply.error());
                                                            v1::HomeMessage message;
                                                            *message.mutable_accounts() = *std::move(reply);
                                                            Finish(client, message);
                                                          });
}

void Queries::Usage(const Client& client, const v1::UsageRequest& request) {
  controller_->Call<v1::UsageRequest, v1::UsageReport>("Usage", request, kTimeout,
                                                       [client](Result<v1::UsageReport> reply) {
                                                         if (!reply) return client->SendError(reply.error());
                                                         v1::HomeMessage message;
                                                         *message.mutable_usage() = *std::move(reply);
                                                         Finish(client, message);
                                                       });
}

void Queries::CancelJobs(const Client& client, const v1::Query::CancelJobs& cancel) {
  const int count = cancel.jobs_size() + cancel.selections_size();
  if (count == 0) return Done(client);
  // All are tried; the first failure is reported.
  struct Pending {
    int left;
    std::optional<Error> failure;
  };
  auto pending = std::make_shared<Pending>(Pending{count, std::nullopt});
  const auto done = [client, pending](vrun::Status cancelled, const std::string& name) {
    if (!cancelled && !pending->failure) pending->failure = std::move(cancelled).error().With(name);
    if (--pending->left > 0) return;
    if (pending->failure) return client->SendError(*pending->failure);
    Done(client);
  };
  for (const v1::JobSelection& selection : cancel.selections()) {
    v1::CancelRequest request;
    request.set_job(selection.job());
    request.set_signal(cancel.signal());
    *request.mutable_elements() = selection.elements();
    controller_->Call<v1::CancelRequest, v1::CancelReply>(
        "Cancel", request, kTimeout,
        [done, name = "array " + std::to_string(selection.job())](Result<v1::CancelReply> reply) {
          done(reply ? vrun::Status() : std::move(reply).error(), name);
        });
  }
  for (uint64_t job : cancel.jobs()) {
    bool withheld = withheld_->GiveUp(job);
    controller_->Cancel(job, cancel.signal(), [done, job, withheld](Result<v1::CancelReply> reply) {
      done(reply || withheld ? vrun::Status() : std::move(reply).error(), "job " + std::to_string(job));
    });
  }
}

}  // namespace vrun::home
