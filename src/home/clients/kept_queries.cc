// SPDX-License-Identifier: Apache-2.0
#include "home/clients/kept_queries.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "home/kept/kept_call.h"
#include "home/kept/kept_pull.h"

namespace vrun::home {
namespace {

constexpr int64_t kTellEvery = 200'000;
// A list is sent as fast as the client reads it.
constexpr size_t kMaxQueued = 1u << 20;

class KeptConversation : public std::enable_shared_from_this<KeptConversation> {
 public:
  KeptConversation(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const JobRoots* roots,
                   const RunFiles* files, const v1::Query::KeptWrites& query)
      : loop_(loop), controller_(controller), links_(nodes), roots_(roots), files_(files), query_(query) {}

  // The connection owns us, we hold it weakly.
  void Start(const std::shared_ptr<ClientConnection>& client) {
    client_ = client;
    client->SetEvents({.on_message = [self = shared_from_this()](v1::ClientMessage, std::vector<UniqueFd>) {},
                       .on_closed =
                           [self = shared_from_this()] {
                             self->call_.reset();
                             self->pull_.reset();
                           },
                       .on_drained = [self = shared_from_this()] { self->Drained(); }});
    controller_->Get(query_.job(), [weak = weak_from_this()](Result<v1::GetReply> reply) {
      auto self = weak.lock();
      if (!self || self->client_.expired()) return;
      if (!reply) return self->Fail(reply.error());
      self->Find(reply->info());
    });
  }

 private:
  std::string What() const { return "what job " + std::to_string(query_.job()) + " wrote"; }

  void Find(const v1::JobInfo& job) {
    if (!job.keep_writes() && !job.has_away()) {
      return Fail(
          Error(Code::kNotFound,
                What() + ": it was not kept: only your own jobs with --writes=keep or --away keep their writes"));
    }
    FindKept(loop_, controller_, links_, job,
             [weak = weak_from_this(), over = job.ended_us() != 0](Result<KeptFound> found) {
               auto self = weak.lock();
               if (!self || self->client_.expired()) return;
               if (!found) return self->Fail(found.error());
               self->Found(*std::move(found), over);
             });
  }

  void Found(KeptFound found, bool over) {
    nodes_ = std::move(found.nodes);
    for (const v1::Kept& kept : found.kept) {
      if (kept.problem().empty() && kept.state() == v1::KEPT_THERE) todo_.push_back(kept);
    }
    const auto problem = std::find_if(found.kept.begin(), found.kept.end(),
                                      [](const v1::Kept& kept) { return !kept.problem().empty(); });
    const bool away = problem != found.kept.end();
    if (todo_.empty()) {
      if (away) return Fail(Error(Code::kUnavailable, What() + ": " + problem->problem()));
      if (!over) return Fail(Error(Code::kNotFound, What() + ": the job has not ended: pull its writes afterwards"));
      if (found.kept.empty()) return Fail(Error(Code::kNotFound, What() + ": no node has it"));
      const v1::Handover state = found.kept.back().state();
      return Fail(
          Error(Code::kNotFound, What() + ": it was " +
                                     (state == v1::KEPT_PULLED    ? "pulled already"
                                      : state == v1::KEPT_DROPPED ? "dropped"
                                                                  : "given up by its node: too old, or no room")));
    }
    if (away) Notice(problem->problem());
    Next();
  }

  void Next() {
    if (todo_.empty()) {
      v1::HomeMessage message;
      message.mutable_done();
      return Finish(message);
    }
    result_.Clear();
    *result_.mutable_kept() = todo_.front();
    todo_.pop_front();
    if (query_.has_drop()) return Drop(v1::KEPT_DROPPED);
    Pull();
  }

  const v1::NodeInfo& Node() const {
    return *std::find_if(nodes_.begin(), nodes_.end(),
                         [&](const v1::NodeInfo& node) { return node.name() == result_.kept().node(); });
  }

  // --- pull

  bool whole() const { return query_.pull().paths_size() == 0 && query_.pull().to().empty(); }

  void Pull() {
    const auto& pull = query_.pull();
    if (!pull.list()) MakePull();
    v1::KeptRequest request;
    request.mutable_pull()->set_job(query_.job());
    request.mutable_pull()->set_attempt(result_.kept().attempt());
    *request.mutable_pull()->mutable_paths() = pull.paths();
    request.mutable_pull()->set_names_only(pull.list());
    told_us_ = MonotonicMicros();
    listed_ = acknowledged_ = 0;
    call_ = std::make_unique<KeptCall>(loop_, links_, Node(), std::move(request), true,
                                       [this](v1::KeptEvent event) { Heard(std::move(event)); });
  }

  void MakePull() {
    ApplyOptions options;
    options.root = query_.pull().to().empty() ? files_->root() : query_.pull().to();
    options.job = query_.job();
    if (query_.pull().to().empty()) roots_->AddTo(&options, nullptr);
    if (whole()) {
      // An interrupted pull may be resumed, even if it has already stored a conflicting version beside home's file.
      options.attempt = result_.kept().attempt();
      options.journal = files_->MakeApplyJournal(std::to_string(query_.job()) + ".kept");
    }
    pull_ = std::make_unique<KeptPull>(
        loop_, std::move(options), !query_.pull().to().empty(),
        KeptPull::Events{.on_taken = [this](uint64_t taken, uint64_t content) { Taken(taken, content); },
                         .on_notice = [this](const std::string& text) { Notice(text); },
                         .on_finished = [this](Result<uint64_t> failed) { Pulled(std::move(failed)); }});
  }

  void Heard(v1::KeptEvent event) {
    auto self = shared_from_this();  // closing the connection releases us
    if (event.has_error()) {
      return Fail(Error(static_cast<Code>(event.error().code()), What() + ": " + event.error().message()));
    }
    if (event.has_write() && pull_) return pull_->Write(std::move(*event.mutable_write()));
    if (event.has_write()) return List(*event.mutable_write());
    call_.reset();
    if (pull_) return pull_->End();
    Next();
  }

  void List(v1::WriteBack& write) {
    listed_ += write.ByteSizeLong();
    v1::HomeMessage message;
    message.mutable_kept()->mutable_entry()->Swap(&write);
    Send(message);
    auto client = client_.lock();
    if (client && client->queued_bytes() < kMaxQueued) Acknowledge(listed_);
  }

  void Drained() {
    if (call_ && !pull_) Acknowledge(listed_);
  }

  // Not for each message, since the window is wide.
  void Acknowledge(uint64_t bytes) {
    if (!call_ || bytes < acknowledged_ + (1u << 20)) return;
    acknowledged_ = bytes;
    v1::KeptRequest request;
    request.mutable_taken()->set_bytes(bytes);
    call_->Send(request);
  }

  void Taken(uint64_t taken, uint64_t content) {
    Acknowledge(taken);
    if (MonotonicMicros() - told_us_ < kTellEvery) return;
    told_us_ = MonotonicMicros();
    v1::HomeMessage message;
    v1::KeptProgress* progress = message.mutable_kept()->mutable_progress();
    progress->set_bytes(content);
    progress->set_total_bytes(result_.kept().bytes());
    progress->set_node(result_.kept().node());
    Send(message);
  }

  void Pulled(Result<uint64_t> failed) {
    auto self = shared_from_this();
    if (!failed) {
      return Fail(Error(failed.error().code(), failed.error().message() + ": " + What() + " stays on node " +
                                                   Escape(result_.kept().node()) + ": make room and pull again"));
    }
    result_.set_failed(*failed);
    result_.set_files(pull_->files());
    result_.set_bytes(pull_->bytes());
    pull_.reset();
    // Keep everything if something is not in its place: it may be pulled again.
    if (whole() && *failed == 0) return Drop(v1::KEPT_PULLED);
    Told();
  }

  // --- drop

  void Drop(v1::Handover why) {
    v1::KeptRequest request;
    request.mutable_drop()->set_job(query_.job());
    request.mutable_drop()->set_attempt(result_.kept().attempt());
    request.mutable_drop()->set_state(why);
    call_ =
        std::make_unique<KeptCall>(loop_, links_, Node(), std::move(request), false, [this, why](v1::KeptEvent event) {
          auto self = shared_from_this();
          call_.reset();
          if (event.has_error()) {
            if (why == v1::KEPT_DROPPED) {
              return Fail(Error(static_cast<Code>(event.error().code()), event.error().message()));
            }
            Notice("everything is home, but the node could not drop its copy: " + event.error().message());
          } else {
            result_.mutable_kept()->set_state(why);
          }
          Told();
        });
  }

  // --- the client

  void Told() {
    v1::HomeMessage message;
    *message.mutable_kept()->mutable_result() = result_;
    Send(message);
    Next();
  }
  void Notice(const std::string& text) {
    v1::HomeMessage message;
    message.mutable_kept()->set_notice(text);
    Send(message);
  }
  void Send(const v1::HomeMessage& message) {
    if (auto client = client_.lock()) client->Send(message);
  }
  void Finish(const v1::HomeMessage& message) {
    auto client = client_.lock();
    if (!client) return;
    client->Send(message);
    client->Close();
  }
  void Fail(const Error& error) {
    call_.reset();
    pull_.reset();
    if (auto client = client_.lock()) client->SendError(error);
  }

  EventLoop* const loop_;
  ControllerClient* const controller_;
  NodeLinks* const links_;
  const JobRoots* const roots_;
  const RunFiles* const files_;
  const v1::Query::KeptWrites query_;
  std::weak_ptr<ClientConnection> client_;
  std::vector<v1::NodeInfo> nodes_;
  std::deque<v1::Kept> todo_;
  v1::KeptResult result_;  // of the current attempt
  std::unique_ptr<KeptCall> call_;
  std::unique_ptr<KeptPull> pull_;
  int64_t told_us_ = 0;
  uint64_t listed_ = 0, acknowledged_ = 0;
};

}  // namespace

void AnswerKeptQuery(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const JobRoots* roots,
                     const RunFiles* files, const std::shared_ptr<ClientConnection>& client,
                     const v1::Query::KeptWrites& query) {
  std::make_shared<KeptConversation>(loop, controller, nodes, roots, files, query)->Start(client);
}

}  // namespace vrun::home
