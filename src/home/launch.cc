// SPDX-License-Identifier: Apache-2.0
#include "home/launch.h"

#include <sys/random.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/escape.h"
#include "base/log.h"
#include "home/controller_client.h"
#include "home/root_tree.h"
#include "home/snapshots.h"

namespace vrun::home {
namespace {

constexpr int64_t kRetryMicros = 250'000;
constexpr int64_t kPatienceMicros = 8'000'000;
constexpr int64_t kScanNoteMicros = 500'000;

std::string RandomId() {
  Digest d;
  [[maybe_unused]] ssize_t n = ::getrandom(d.bytes.data(), d.bytes.size(), 0);
  return d.Hex().substr(0, 32);
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

Launch::Launch(const Services* services, const v1::Run& run, Events events)
    : services_(services),
      events_(std::move(events)),
      exposed_(run.expose().begin(), run.expose().end()),
      snapshot_(run.snapshot()) {
  request_.set_request_id(run.request_id().empty() ? RandomId() : run.request_id());
  *request_.mutable_command() = run.command();
  request_.set_pool(run.pool().empty() ? services->default_pool : run.pool());
  std::string name = run.name();
  if (name.empty() && run.command().argv_size() > 0) name = Escape(BaseName(run.command().argv(0)));
  request_.set_name(name);
  *request_.mutable_resources() = run.resources();
  request_.set_time_limit_s(run.time_limit_s());
  request_.set_home_id(services->home_id);
  request_.set_discard_writes(run.discard_writes());
  request_.set_keep_writes(run.keep_writes());
  // One that all jobs of a node share cannot be any of these.
  const bool shareable = run.snapshot().empty() && run.expose().empty() && !run.discard_writes() && !run.keep_writes();
  request_.set_live_view(shareable &&
                         (run.has_live_view() ? run.live_view() : services->default_live && !run.detached()));
  *request_.mutable_scheduling() = run.scheduling();
}

Launch::~Launch() {
  services_->loop->Cancel(retry_);
  services_->loop->Cancel(scan_note_);
}

void Launch::Start() {
  if (!snapshot_.empty()) {
    // Which one it is has to be known before the job is made: it is part of it.
    return services_->snapshots->Find(snapshot_, [self = shared_from_this()](Result<v1::SnapshotReference> snapshot) {
      self->OnSnapshot(std::move(snapshot));
    });
  }
  services_->tree->Current(
      exposed_, [self = shared_from_this()](Result<tree::SnapshotPtr> tree) { self->OnTree(std::move(tree)); });
  if (services_->tree->facts().scanned) return Submit();
  // A slot on a node that waits for a scan helps nobody: the job is made when there is a tree.
  events_.on_progress("scanning the root");
  int64_t begun = MonotonicMicros();
  auto note = [this, begun](auto& again) -> void {
    scan_note_ = services_->loop->After(kScanNoteMicros, [this, begun, again] {
      scan_note_ = 0;
      if (abandoned_ || tree_) return;
      events_.on_progress("scanning the root for " + std::to_string((MonotonicMicros() - begun) / 1'000'000) +
                          " s (only the first time)");
      again(again);
    });
  };
  note(note);
}

void Launch::Submit() {
  submitting_ = true;
  if (first_try_us_ == 0) first_try_us_ = MonotonicMicros();
  services_->controller->Submit(
      request_, [self = shared_from_this()](Result<v1::SubmitReply> reply) { self->OnSubmitted(std::move(reply)); });
}

void Launch::OnSubmitted(Result<v1::SubmitReply> reply) {
  submitting_ = false;
  if (reply) {
    if (forgotten_) return;
    if (abandoned_) {
      services_->controller->Cancel(reply->job(), signal_, [job = reply->job()](Result<v1::CancelReply> cancelled) {
        if (!cancelled) LogWarning("job {}: cannot cancel: {}", job, cancelled.error().message());
      });
      return;
    }
    reply_ = std::move(*reply);
    if (!reply_->deadline().empty()) events_.on_notice(reply_->deadline());
    // Taken out first: they may end in Abandon, which clears the events.
    auto accepted = std::exchange(events_.on_accepted, nullptr);
    accepted(reply_->job());
    return MaybeReady();
  }
  Code code = reply.error().code();
  // The same request id makes the same job, however often it is asked: a lost answer does no harm.
  bool again = code == Code::kUnavailable || code == Code::kTimeout;
  if (again && !services_->controller->address().empty() && MonotonicMicros() - first_try_us_ < kPatienceMicros) {
    if (!abandoned_) events_.on_progress("waiting for the controller at " + Escape(services_->controller->address()));
    retry_ = services_->loop->After(kRetryMicros, [self = shared_from_this()] {
      self->retry_ = 0;
      self->Submit();
    });
    return;
  }
  if (abandoned_) return;
  Fail(again ? std::move(reply).error().With("the controller does not answer") : std::move(reply).error());
}

void Launch::OnTree(Result<tree::SnapshotPtr> tree) {
  services_->loop->Cancel(std::exchange(scan_note_, 0));
  if (abandoned_) return;
  if (!tree) return Fail(std::move(tree).error());
  tree_ = std::move(*tree);
  if (!reply_ && !submitting_ && retry_ == 0) Submit();
  MaybeReady();
}

void Launch::OnSnapshot(Result<v1::SnapshotReference> snapshot) {
  if (abandoned_) return;
  if (!snapshot) return Fail(std::move(snapshot).error());
  *request_.mutable_snapshot() = *std::move(snapshot);
  Submit();
}

void Launch::MaybeReady() {
  if (abandoned_ || !reply_ || (!tree_ && snapshot_.empty())) return;
  std::optional<v1::Placement> placement;
  if (reply_->has_placement()) placement = reply_->placement();
  auto ready = std::exchange(events_.on_ready, nullptr);
  if (ready) ready(std::move(placement), tree_, request_);
}

void Launch::Fail(Error error) {
  if (abandoned_) return;
  auto self = shared_from_this();
  auto failed = std::move(events_.on_failed);
  Abandon(0);
  failed(std::move(error));
}

void Launch::Forget() {
  abandoned_ = forgotten_ = true;
  events_ = {};
  services_->loop->Cancel(std::exchange(scan_note_, 0));
  services_->loop->Cancel(std::exchange(retry_, 0));
}

void Launch::Abandon(int signal) {
  if (std::exchange(abandoned_, true)) return;
  signal_ = signal;
  events_ = {};
  services_->loop->Cancel(std::exchange(scan_note_, 0));
  if (!reply_) return;  // OnSubmitted cancels it
  services_->controller->Cancel(reply_->job(), signal, [](Result<v1::CancelReply>) {});
}

}  // namespace vrun::home
