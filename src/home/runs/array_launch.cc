// SPDX-License-Identifier: Apache-2.0
#include "home/runs/array_launch.h"

#include <csignal>
#include <utility>

#include "base/log.h"
#include "home/runs/attached_run.h"
#include "jobs/ending.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr int64_t kDurableMicros = 500'000;  // as of one batch job

}  // namespace

ArrayLaunch::ArrayLaunch(EventLoop* loop, const JobRoots* roots, Traces* traces, const RunFiles* files,
                         std::shared_ptr<ClientConnection> client, const v1::Run& run, Events events)
    : loop_(loop),
      roots_(roots),
      traces_(traces),
      files_(files),
      client_(std::move(client)),
      run_(run),
      events_(std::move(events)) {
  client_->SetEvents({.on_message = [](v1::ClientMessage, std::vector<UniqueFd>) {}, .on_closed = [] {}});
}

ArrayLaunch::~ArrayLaunch() {
  *alive_ = false;
  loop_->Cancel(answer_);
  if (launch_) launch_->Forget();
}

void ArrayLaunch::Start() {
  launch_ = events_.make_launch(
      run_, {.on_accepted = [this](uint64_t array) { Accepted(array); },
             .on_progress = [](std::string) {},
             .on_notice =
                 [this](std::string text) {
                   v1::HomeMessage message;
                   message.mutable_notice()->set_text(std::move(text));
                   if (client_) client_->Send(message);
                 },
             .on_tree =
                 [this](const tree::TreePtr& tree) {
                   if (!launch_->live()) AttachedRun::PrepareRoot(run_, tree, roots_, traces_, files_->root());
                 },
             .goes_first = nullptr,
             .on_ready = [this](std::optional<v1::Placement>, tree::TreePtr tree,
                                const v1::SubmitRequest& request) { Ready(std::move(tree), request); },
             .on_failed = [this](Error error) { Failed(error); }});
  launch_->Start();
}

DetachedFiles ArrayLaunch::FilesOf() const {
  DetachedFiles files;
  files.directory = run_.spec().command().directory();
  files.stdout_path =
      run_.stdout_path().empty() ? tree::JoinPath(files.directory, kElementOutput) : std::string(run_.stdout_path());
  files.stderr_path = run_.stderr_path();
  files.append = run_.append_output();
  files.exposed.assign(run_.expose().begin(), run_.expose().end());
  return files;
}

void ArrayLaunch::Accepted(uint64_t array) {
  array_ = array;
  if (events_.on_accepted(array)) {
    launch_->Forget();
    ready_ = true;
    return Answer();
  }
  const DetachedFiles files = FilesOf();
  if (Status fine = files_->CheckDetached(files); !fine) {
    launch_->Abandon(SIGTERM);
    return Failed(fine.error());
  }
  const bool frozen = run_.snapshot().empty() && !launch_->live() && roots_->frozen().enabled();
  if (frozen && !ComesAfterOthers(run_.spec().scheduling())) roots_->frozen().Begin(array);
  if (Status remembered = files_->RememberDetached(array, files); !remembered) {
    LogWarning("array {}: a restarted home will not know its output files: {}", array, remembered.error().message());
  }
  events_.when_recorded([this, alive = alive_] {
    if (!*alive) return;
    record_kept_ = true;
    AnswerIfKept();
  });
  if (!frozen || !roots_->frozen().Begun(array)) return;
  answer_ = loop_->After(kDurableMicros, [this] {
    answer_ = 0;
    root_kept_ = true;
    AnswerIfKept();
  });
}

void ArrayLaunch::AnswerIfKept() {
  if (record_kept_ && root_kept_) Answer();
}

void ArrayLaunch::Ready(tree::TreePtr tree, const v1::SubmitRequest& request) {
  ArrayRun::Elements elements;
  elements.plan = AttachedRun::PlanOf(run_, request, std::move(tree), files_->root());
  elements.plan.detached = true;
  elements.files = FilesOf();
  if (elements.plan.trace) {
    files_->RememberTraced(array_, run_);
    elements.traced = files_->RecallTraced(array_);  // without what is not needed
  }
  JobRun::Plan& plan = elements.plan;
  plan.frozen = !plan.live && plan.tree && roots_->frozen().enabled() && !plan.late;
  ready_ = true;
  if (plan.frozen) {
    roots_->frozen().Add(array_, plan.tree, plan.exposed,
                         AttachedRun::FirstToFreeze(plan, elements.files.directory, traces_, files_->root()),
                         [this, alive = alive_] {
                           if (!*alive) return;
                           root_kept_ = true;
                           AnswerIfKept();
                         });
  }
  events_.on_ready(array_, std::move(elements));
  if (answer_ != 0) return;
  root_kept_ = true;  // nothing to wait for, or it has waited long enough
  AnswerIfKept();
}

void ArrayLaunch::Failed(const Error& error) {
  loop_->Cancel(std::exchange(answer_, 0));
  if (client_) client_->SendError(error);
  client_.reset();
  if (!std::exchange(over_, true)) events_.on_over();
}

void ArrayLaunch::Answer() {
  loop_->Cancel(std::exchange(answer_, 0));
  const auto client = std::exchange(client_, nullptr);
  if (client) {
    v1::HomeMessage message;
    message.mutable_accepted()->set_job(array_);
    client->Send(message);
    client->Close();
  }
  if (ready_ && !std::exchange(over_, true)) events_.on_over();
}

void ArrayLaunch::HomeEnds() {
  if (launch_) launch_->Forget();
  if (array_ != 0) return Answer();
  // The client sees the connection end, and says so.
  if (client_) client_->Close();
  client_.reset();
}

}  // namespace vrun::home
