// SPDX-License-Identifier: Apache-2.0
#include "home/queries.h"

#include <unistd.h>

#include "base/clock.h"
#include "home/cache_queries.h"
#include "home/content_server.h"
#include "home/controller_client.h"
#include "home/frozen_roots.h"
#include "home/kept_call.h"
#include "home/kept_queries.h"
#include "home/log_spool.h"
#include "home/root_tree.h"
#include "home/runs.h"
#include "home/snapshot_table.h"
#include "home/snapshots.h"
#include "jobs/ending.h"

namespace vrun::home {
namespace {

constexpr int64_t kTimeout = 10'000'000;
constexpr uint64_t kLogBytes = 256 * 1024;
constexpr int64_t kEndCheckMicros = 1'000'000;

void Finish(const std::shared_ptr<ClientConnection>& client, const v1::HomeMessage& message) {
  client->Send(message);
  client->Close();
}

void Done(const std::shared_ptr<ClientConnection>& client) {
  v1::HomeMessage message;
  message.mutable_done();
  Finish(client, message);
}

// One reader of a log. Goes on when the client has taken what it was sent, and at the end when there is more. Owned by
// the callbacks of its connection.
class LogReader : public std::enable_shared_from_this<LogReader> {
 public:
  LogReader(const Services* services, const Runs* runs, uint64_t job, bool follow)
      : services_(services), runs_(runs), job_(job), follow_(follow) {}
  ~LogReader() { services_->loop->Cancel(check_); }

  void Start(const std::shared_ptr<ClientConnection>& client) {
    client_ = client;
    // The connection holds us, we hold the connection weakly.
    client->SetEvents({.on_message = [self = shared_from_this()](v1::ClientMessage, std::vector<UniqueFd>) {},
                       .on_closed = [] {},
                       .on_drained = [self = shared_from_this()] { self->Next(); }});
    if (follow_) {
      changed_ = services_->spool->Subscribe(job_, [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->Next();
      });
    }
    Next();
  }

 private:
  void Next() {
    auto client = client_.lock();
    if (reading_ || !client || !client->open() || client->queued_bytes() > 0) return;
    reading_ = true;
    // Looked at before the read: what a run has said before it ended is in the log by then.
    bool over = !follow_ || !runs_->Has(job_);
    services_->spool->ReadFrom(job_, position_, kLogBytes,
                               [self = shared_from_this(), over](Result<LogSpool::Read> read) {
                                 self->reading_ = false;
                                 self->Got(std::move(read), over);
                               });
  }

  void Got(Result<LogSpool::Read> read, bool over) {
    auto client = client_.lock();
    if (!client || !client->open()) return;
    if (!read) {
      // A job of this home without a file has said nothing yet, or nothing at all.
      if (read.error().code() != Code::kNotFound) return client->SendError(read.error());
      if (over) return NothingKept(client);
      return CheckLater();
    }
    position_ = read->next;
    v1::HomeMessage message;
    for (LogSpool::Record& record : read->records) {
      message.mutable_log()->set_data(std::move(record.data));
      message.mutable_log()->set_is_stderr(record.stream == v1::STDERR);
      message.mutable_log()->set_is_note(record.note);
      client->Send(message);
    }
    if (!read->at_end) {
      if (client->queued_bytes() == 0) Next();
      return;
    }
    if (over) return End(client);
    CheckLater();
  }

  void End(const std::shared_ptr<ClientConnection>& client) {
    if (const Outcome* outcome = follow_ ? runs_->OutcomeOf(job_) : nullptr) {
      v1::HomeMessage message;
      v1::Finished* finished = message.mutable_finished();
      if (outcome->record) *finished->mutable_record() = *outcome->record;
      finished->set_exit_status(outcome->exit_status);
      finished->set_state(outcome->state);
      finished->set_reason(outcome->reason);
      finished->set_job(job_);
      client->Send(message);
    }
    Done(client);
  }

  void NothingKept(const std::shared_ptr<ClientConnection>& client) {
    services_->controller->Get(job_, [self = shared_from_this(), job = job_](Result<v1::GetReply> reply) {
      auto to = self->client_.lock();
      if (!to) return;
      if (reply) return self->End(to);  // it has said nothing, or not here
      to->SendError(reply.error().code() == Code::kNotFound
                        ? Error(Code::kNotFound, "job " + std::to_string(job) + ": there is no such job")
                        : reply.error());
    });
  }

  // The end of a run is not announced here; a second is soon enough for somebody who follows a log.
  void CheckLater() {
    if (check_ != 0) return;
    check_ = services_->loop->After(kEndCheckMicros, [weak = weak_from_this()] {
      auto self = weak.lock();
      if (!self) return;
      self->check_ = 0;
      self->Next();
    });
  }

  const Services* const services_;
  const Runs* const runs_;
  const uint64_t job_;
  const bool follow_;
  std::weak_ptr<ClientConnection> client_;
  std::unique_ptr<LogSpool::Subscription> changed_;
  EventLoop::TimerId check_ = 0;
  uint64_t position_ = 0;
  bool reading_ = false;
};

}  // namespace

Queries::Queries(const Services* services, Runs* runs, const ContentServer* content, std::function<void()> shut_down)
    : services_(services), runs_(runs), content_(content), shut_down_(std::move(shut_down)) {}

void Queries::Answer(std::shared_ptr<ClientConnection> client, const v1::Query& query) {
  switch (query.what_case()) {
    case v1::Query::kStatus: return Status(client);
    case v1::Query::kShutdown: Done(client); return shut_down_();
    case v1::Query::kListJobs: return ListJobs(client, query.list_jobs().all());
    case v1::Query::kGetJob: return GetJob(client, query.get_job().job());
    case v1::Query::kListNodes: return ListNodes(client);
    case v1::Query::kCancelJobs: return CancelJobs(client, query.cancel_jobs());
    case v1::Query::kCache: return AnswerCacheQuery(services_, client, query.cache());
    case v1::Query::kKept: return AnswerKeptQuery(services_, client, query.kept());
    case v1::Query::kWhy: return Why(client, query.why().job());
    case v1::Query::kListTeams: return ListTeams(client);
    case v1::Query::kListAccounts: return ListAccounts(client, query.list_accounts());
    case v1::Query::kSnapshot: return services_->snapshots->Answer(client, query.snapshot());
    case v1::Query::kReadLog: return ReadLog(client, query.read_log().job(), query.read_log().follow());
    default:
      return client->SendError(
          Error(Code::kUnsupported, "home does not know that question: client and home are of different versions"));
  }
}

void Queries::Status(const Client& client) {
  // The controller is asked, so that the answer is of now.
  v1::NodesRequest request;
  services_->controller->Call<v1::NodesRequest, v1::NodesReply>(
      "Nodes", request, 2'000'000, [this, alive = alive_, client](Result<v1::NodesReply> reply) {
        if (!*alive) return;
        v1::HomeMessage message;
        v1::StatusAnswer* status = message.mutable_status();
        status->set_version(VRUN_VERSION);
        status->set_pid(::getpid());
        status->set_root(services_->root);
        if (auto snapshot = services_->trees->current()) {
          status->set_entries(snapshot->entries);
          status->set_bytes(snapshot->bytes);
        }
        RootTree::Facts facts = services_->tree->facts();
        status->set_scanned(facts.scanned);
        status->set_watch(facts.watch);
        status->set_last_scan_s(facts.scan_seconds);
        status->set_controller(services_->controller->address());
        status->set_controller_connected(services_->controller->connected());
        status->set_controller_error(services_->controller->error());
        status->set_running_jobs(static_cast<uint32_t>(runs_->running()));
        status->set_served_bytes(content_->served_bytes());
        status->set_metadata_requests(content_->metadata_requests());
        if (reply && reply->has_s3()) *status->mutable_s3() = reply->s3();
        if (const FrozenRoots::Stats frozen = services_->frozen->stats(); frozen.jobs > 0) {
          status->mutable_frozen()->set_jobs(static_cast<uint32_t>(frozen.jobs));
          status->mutable_frozen()->set_held_files(frozen.files.held);
          status->mutable_frozen()->set_kept_files(frozen.files.kept.files);
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
  services_->controller->Call<v1::ListRequest, v1::ListReply>(
      "List", request, kTimeout, [client](Result<v1::ListReply> reply) {
        if (!reply) return client->SendError(reply.error());
        v1::HomeMessage message;
        message.mutable_jobs()->mutable_jobs()->Swap(reply->mutable_jobs());
        Finish(client, message);
      });
}

void Queries::GetJob(const Client& client, uint64_t job) {
  services_->controller->Get(job, [this, alive = alive_, client, job,
                                   live_state = runs_->LiveState(job)](Result<v1::GetReply> reply) {
    if (!*alive) return;
    if (!reply) return client->SendError(reply.error());
    v1::HomeMessage message;
    v1::JobInfo* info = message.mutable_jobs()->add_jobs();
    *info = reply->info();
    info->set_frozen(services_->frozen->Describe(job));
    info->set_live_state(live_state);
    // Home knows more of an end than the controller: whether all that it printed and wrote is here.
    // (Of a job that was lost the controller may hear again.)
    const Outcome* outcome = runs_->OutcomeOf(job);
    if (outcome != nullptr && (info->state() == outcome->state || (IsEnd(info->state()) && IsEnd(outcome->state)))) {
      info->set_home_status(outcome->exit_status);
      if (!outcome->reason.empty()) info->set_reason(outcome->reason);
      info->set_state(outcome->state);
    }
    if (!info->keep_writes()) return Finish(client, message);
    // Only its nodes know what has become of it.
    const v1::JobInfo asked = *info;
    FindKept(services_, asked, [client, message](Result<KeptFound> found) mutable {
      v1::JobInfo* info = message.mutable_jobs()->mutable_jobs(0);
      if (found) info->mutable_kept()->Assign(found->kept.begin(), found->kept.end());
      Finish(client, message);
    });
  });
}

void Queries::ListNodes(const Client& client) {
  services_->controller->Call<v1::NodesRequest, v1::NodesReply>(
      "Nodes", {}, kTimeout, [client](Result<v1::NodesReply> reply) {
        if (!reply) return client->SendError(reply.error());
        v1::HomeMessage message;
        message.mutable_nodes()->mutable_nodes()->Swap(reply->mutable_nodes());
        Finish(client, message);
      });
}

void Queries::Why(const Client& client, uint64_t job) {
  v1::WhyRequest request;
  request.set_job(job);
  services_->controller->Call<v1::WhyRequest, v1::WhyAnswer>("Why", request, kTimeout,
                                                             [client](Result<v1::WhyAnswer> reply) {
                                                               if (!reply) return client->SendError(reply.error());
                                                               v1::HomeMessage message;
                                                               *message.mutable_why() = *std::move(reply);
                                                               Finish(client, message);
                                                             });
}

void Queries::ListTeams(const Client& client) {
  services_->controller->Call<v1::TeamsRequest, v1::TeamList>("Teams", {}, kTimeout,
                                                              [client](Result<v1::TeamList> reply) {
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
  services_->controller->Call<v1::AccountsRequest, v1::AccountList>("Accounts", request, kTimeout,
                                                                    [client](Result<v1::AccountList> reply) {
                                                                      if (!reply)
                                                                        return client->SendError(reply.error());
                                                                      v1::HomeMessage message;
                                                                      *message.mutable_accounts() = *std::move(reply);
                                                                      Finish(client, message);
                                                                    });
}

void Queries::CancelJobs(const Client& client, const v1::Query::CancelJobs& cancel) {
  if (cancel.jobs_size() == 0) return Done(client);
  // All are tried; the first failure is what is told.
  struct Pending {
    int left;
    std::optional<Error> failure;
  };
  auto pending = std::make_shared<Pending>(Pending{cancel.jobs_size(), std::nullopt});
  for (uint64_t job : cancel.jobs()) {
    bool withheld = runs_->ReleaseWithheld(job);
    services_->controller->Cancel(job, cancel.signal(),
                                  [client, pending, job, withheld](Result<v1::CancelReply> reply) {
                                    if (!reply && !withheld && !pending->failure)
                                      pending->failure = reply.error().With("job " + std::to_string(job));
                                    if (--pending->left > 0) return;
                                    if (pending->failure) return client->SendError(*pending->failure);
                                    Done(client);
                                  });
  }
}

void Queries::ReadLog(const Client& client, uint64_t job, bool follow) {
  std::make_shared<LogReader>(services_, runs_, job, follow)->Start(client);
}

}  // namespace vrun::home
