// SPDX-License-Identifier: Apache-2.0
#include "home/kept/kept_carry.h"

#include <algorithm>
#include <utility>

#include "base/escape.h"

namespace vrun::home {
namespace {

constexpr int64_t kAgainMicros = 5'000'000;
constexpr uint64_t kAcknowledgeBytes = 1u << 20;

}  // namespace

KeptCarry::KeptCarry(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, uint64_t job, uint32_t pod,
                     std::string node, ApplyOptions options, std::string journal, Events events)
    : loop_(loop),
      controller_(controller),
      links_(nodes),
      job_(job),
      pod_(pod),
      node_(std::move(node)),
      options_(std::move(options)),
      journal_(std::move(journal)),
      events_(std::move(events)) {
  Find();
}

KeptCarry::~KeptCarry() {
  *alive_ = false;
  loop_->Cancel(again_);
}

// The caller is on the stack of what `f` destroys.
template <typename F>
void KeptCarry::Later(F f) {
  loop_->Post([alive = alive_, f = std::move(f)] {
    if (*alive) f();
  });
}

void KeptCarry::Find() {
  controller_->Get(job_, [this, alive = alive_](Result<v1::GetReply> reply) {
    if (!*alive) return;
    if (!reply) return Again(reply.error().message());
    FindKept(loop_, controller_, links_, reply->info(), [this, alive](Result<KeptFound> found) {
      if (!*alive) return;
      if (!found) return Again(found.error().message());
      Found(*std::move(found));
    });
  });
}

void KeptCarry::Found(KeptFound found) {
  nodes_ = std::move(found.nodes);
  for (const v1::Kept& kept : found.kept) {
    if (!kept.problem().empty() && kept.node() == node_) return Again(kept.problem());
    if (!kept.problem().empty()) {
      events_.on_notice("what an earlier attempt wrote stays on its node: " + kept.problem());
      continue;
    }
    if (kept.state() == v1::KEPT_THERE && kept.pod() == pod_) todo_.push_back(kept);
  }
  Next();
}

void KeptCarry::Again(const std::string& why) {
  call_.reset();
  pull_.reset();
  todo_.clear();
  if (std::exchange(told_, why) != why) {
    events_.on_notice(why + ": what the job wrote waits on its node, and home tries again");
  }
  if (again_ != 0) return;
  again_ = loop_->After(kAgainMicros, [this] {
    again_ = 0;
    Find();
  });
}

void KeptCarry::Next() {
  if (todo_.empty()) return events_.on_finished(left_);
  Pull();
}

const v1::NodeInfo& KeptCarry::Node() const {
  return *std::find_if(nodes_.begin(), nodes_.end(),
                       [&](const v1::NodeInfo& node) { return node.name() == todo_.front().node(); });
}

void KeptCarry::Pull() {
  const v1::Kept& kept = todo_.front();
  ApplyOptions options = options_;
  options.attempt = kept.attempt();
  options.pod = pod_;
  options.journal = journal_;
  acknowledged_ = 0;
  pull_ = std::make_unique<KeptPull>(
      loop_, std::move(options), false,
      KeptPull::Events{.on_taken = [this](uint64_t taken, uint64_t) { Taken(taken); },
                       .on_notice = [this](std::string text) { events_.on_notice(std::move(text)); },
                       .on_conflict = [this](std::string path) { events_.on_conflict(std::move(path)); },
                       .on_finished = [this](Result<uint64_t> failed) { Pulled(std::move(failed)); }});
  v1::KeptRequest request;
  request.mutable_pull()->set_job(job_);
  request.mutable_pull()->set_attempt(kept.attempt());
  request.mutable_pull()->set_pod(pod_);
  call_ = std::make_unique<KeptCall>(loop_, links_, Node(), std::move(request), true,
                                     [this](v1::KeptEvent event) { Heard(std::move(event)); });
}

void KeptCarry::Heard(v1::KeptEvent event) {
  if (event.has_error()) {
    return Later([this, why = event.error().message()] { Again(why); });
  }
  if (event.has_write()) return pull_->Write(std::move(*event.mutable_write()));
  call_.reset();
  pull_->End();
}

// Not for each message, since the window is wide.
void KeptCarry::Taken(uint64_t bytes) {
  if (!call_ || bytes < acknowledged_ + kAcknowledgeBytes) return;
  acknowledged_ = bytes;
  v1::KeptRequest request;
  request.mutable_taken()->set_bytes(bytes);
  call_->Send(request);
}

void KeptCarry::Pulled(Result<uint64_t> failed) {
  Later([this, failed = std::move(failed)] {
    if (!failed) return Again(failed.error().message());
    pull_.reset();
    left_ += *failed;
    if (*failed == 0) return Drop();
    // It may be pulled again by hand.
    todo_.pop_front();
    Next();
  });
}

void KeptCarry::Drop() {
  v1::KeptRequest request;
  request.mutable_drop()->set_job(job_);
  request.mutable_drop()->set_attempt(todo_.front().attempt());
  request.mutable_drop()->set_pod(pod_);
  request.mutable_drop()->set_state(v1::KEPT_PULLED);
  call_ = std::make_unique<KeptCall>(loop_, links_, Node(), std::move(request), false, [this](v1::KeptEvent event) {
    // All of it is here; the node removes it later by itself.
    const bool failed = event.has_error();
    Later([this, failed, why = event.error().message()] {
      call_.reset();
      if (failed) events_.on_notice("all of it is home, but the node could not remove its copy: " + why);
      todo_.pop_front();
      Next();
    });
  });
}

}  // namespace vrun::home
