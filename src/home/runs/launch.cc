// SPDX-License-Identifier: Apache-2.0
#include "home/runs/launch.h"

#include <sys/random.h>

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/hash/digest.h"
#include "base/log.h"
#include "home/links/controller_client.h"
#include "home/root/root_tree.h"

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

Launch::Launch(EventLoop* loop, ControllerClient* controller, RootTree* tree, SnapshotClient* snapshots,
               const Defaults& defaults, const v1::Run& run, Events events)
    : loop_(loop),
      controller_(controller),
      root_(tree),
      snapshots_(snapshots),
      events_(std::move(events)),
      exposed_(run.expose().begin(), run.expose().end()),
      snapshot_(run.snapshot()) {
  request_.set_request_id(run.request_id().empty() ? RandomId() : run.request_id());
  request_.set_home_id(controller->home_id());
  if (run.has_array()) *request_.mutable_array() = run.array();
  v1::RunSpec* spec = request_.mutable_spec();
  *spec = run.spec();
  if (spec->pool().empty()) spec->set_pool(defaults.pool);
  if (spec->name().empty() && spec->command().argv_size() > 0) {
    spec->set_name(Escape(BaseName(spec->command().argv(0))));
  }
  // A cache that all jobs of a node share cannot be one of these.
  const bool shareable = run.snapshot().empty() && run.expose().empty() && !spec->discard_writes() &&
                         !spec->keep_writes() && !spec->away();
  spec->set_live_view(shareable && (spec->has_live_view() ? spec->live_view() : defaults.live && !run.detached()));
}

Launch::~Launch() {
  loop_->Cancel(retry_);
  loop_->Cancel(scan_note_);
}

void Launch::Start() {
  if (!snapshot_.empty()) {
    // The snapshot must be known before the job is made, because it is part of the job.
    return snapshots_->Find(snapshot_, [self = shared_from_this()](Result<v1::SnapshotReference> snapshot) {
      self->OnSnapshot(std::move(snapshot));
    });
  }
  const auto looked = [self = shared_from_this()](Result<tree::TreePtr> tree) { self->OnTree(std::move(tree)); };
  if (live()) {
    const bool all = root_->facts().scanned || !events_.uses;
    root_->Known(all ? std::vector<std::string>() : events_.uses(), looked);
  } else {
    root_->Current(exposed_, looked);
  }
  // Without a controller it fails at once, and says so.
  const RootTree::Facts facts = root_->facts();
  const bool at_once = live() ? facts.known : facts.scanned && !request_.spec().away();
  if (at_once || controller_->address().empty()) return Submit();
  // Do not occupy a slot on a node during a scan: make the job when there is a tree.
  TellScan();
}

void Launch::TellScan() {
  scan_note_ = loop_->After(kScanNoteMicros, [this] {
    scan_note_ = 0;
    if (abandoned_ || tree_) return;
    const RootTree::Facts facts = root_->facts();
    std::string far;
    if (facts.entries_before > 0) {
      far = ", " + std::to_string(std::min<uint64_t>(99, facts.entries * 100 / facts.entries_before)) + " %";
    } else if (facts.entries > 0) {
      far = ", " + std::to_string(facts.entries) + " names so far";
    }
    events_.on_progress("looking at the root" + far + " (only after home has started)");
    TellScan();
  });
}

void Launch::Submit() {
  submitting_ = true;
  if (first_try_us_ == 0) first_try_us_ = MonotonicMicros();
  controller_->Submit(
      request_, [self = shared_from_this()](Result<v1::SubmitReply> reply) { self->OnSubmitted(std::move(reply)); });
}

void Launch::OnSubmitted(Result<v1::SubmitReply> reply) {
  submitting_ = false;
  if (reply) {
    if (forgotten_) return;
    if (abandoned_) {
      controller_->Cancel(reply->job(), signal_, [job = reply->job()](Result<v1::CancelReply> cancelled) {
        if (!cancelled) LogWarning("job {}: cannot cancel: {}", job, cancelled.error().message());
      });
      return;
    }
    reply_ = std::move(*reply);
    if (!reply_->deadline().empty()) events_.on_notice(reply_->deadline());
    if (!reply_->warning().empty()) events_.on_notice(reply_->warning());
    // Taken out first: they may call Abandon, which clears the events.
    auto accepted = std::exchange(events_.on_accepted, nullptr);
    accepted(reply_->job());
    return MaybeReady();
  }
  Code code = reply.error().code();
  // The same request id makes the same job however often it is sent: a lost answer does no harm.
  bool again = code == Code::kUnavailable || code == Code::kTimeout;
  if (again && !controller_->address().empty() && MonotonicMicros() - first_try_us_ < kPatienceMicros) {
    if (!abandoned_) events_.on_progress("waiting for the controller at " + Escape(controller_->address()));
    retry_ = loop_->After(kRetryMicros, [self = shared_from_this()] {
      self->retry_ = 0;
      self->Submit();
    });
    return;
  }
  if (abandoned_) return;
  Fail(again ? std::move(reply).error().With("the controller does not answer") : std::move(reply).error());
}

void Launch::OnTree(Result<tree::TreePtr> tree) {
  loop_->Cancel(std::exchange(scan_note_, 0));
  if (abandoned_) return;
  if (!tree) return Fail(std::move(tree).error());
  tree_ = std::move(*tree);
  if (events_.on_tree) events_.on_tree(tree_);
  if (request_.spec().away()) return Announce();
  if (!reply_ && !submitting_ && retry_ == 0) Submit();
  MaybeReady();
}

// The snapshot is part of the job, so it must be announced before. The same request has the same snapshot as long as
// the root is the same, also when a client repeats it after a crash of home.
void Launch::Announce() {
  const std::string name = ".away-" + Sha256(request_.request_id() + std::string(tree_->id.view())).Hex().substr(0, 32);
  events_.on_progress("announcing the root to the snapshot store");
  SnapshotClient::Sending::Events events;
  events.on_announced = [self = weak_from_this()](v1::SnapshotReference reference) {
    const auto launch = self.lock();
    if (!launch || launch->abandoned_) return;
    *launch->request_.mutable_snapshot() = std::move(reference);
    launch->Submit();
  };
  events.on_change = [self = weak_from_this()] {
    const auto launch = self.lock();
    if (!launch || launch->abandoned_ || launch->request_.has_snapshot() || !launch->sending_) return;
    const std::string& problem = launch->sending_->state().problem;
    if (!problem.empty()) launch->Fail(Error(Code::kUnavailable, problem));
  };
  sending_ =
      snapshots_->Send(name, tree_, exposed_,
                       events_.goes_first ? events_.goes_first(tree_) : std::vector<std::string>(), std::move(events));
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
  sending_.reset();
  loop_->Cancel(std::exchange(scan_note_, 0));
  loop_->Cancel(std::exchange(retry_, 0));
}

void Launch::Abandon(int signal) {
  if (std::exchange(abandoned_, true)) return;
  signal_ = signal;
  events_ = {};
  if (sending_) snapshots_->Delete(sending_->name(), [](const Status&) {});
  sending_.reset();
  loop_->Cancel(std::exchange(scan_note_, 0));
  if (!reply_) return;  // OnSubmitted cancels it
  controller_->Cancel(reply_->job(), signal, [](Result<v1::CancelReply>) {});
}

}  // namespace vrun::home
