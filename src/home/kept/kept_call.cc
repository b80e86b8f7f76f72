// SPDX-License-Identifier: Apache-2.0
#include "home/kept/kept_call.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/escape.h"

namespace vrun::home {
namespace {

constexpr int64_t kNodesTimeout = 10'000'000;
constexpr int64_t kSilence = 10'000'000;

std::string NameOf(const v1::NodeInfo& node) { return "node " + Escape(node.name()); }

// All calls of one FindKept; lives as long as they do.
struct Finding {
  KeptFound found;
  std::vector<std::unique_ptr<KeptCall>> calls;
  size_t open = 0;
  std::function<void(Result<KeptFound>)> done;

  void Problem(const std::string& node, const std::string& text) {
    v1::Kept& kept = found.kept.emplace_back();
    kept.set_node(node);
    kept.set_problem(text);
  }
  void Finish() {
    std::stable_sort(found.kept.begin(), found.kept.end(), [](const v1::Kept& a, const v1::Kept& b) {
      return std::pair(!a.problem().empty(), a.attempt()) < std::pair(!b.problem().empty(), b.attempt());
    });
    // Writes with which a later attempt continued do not matter any more, on whichever node the record is.
    const std::vector<v1::Kept> all = found.kept;
    std::erase_if(found.kept, [&](const v1::Kept& earlier) {
      return std::any_of(all.begin(), all.end(), [&](const v1::Kept& later) {
        return earlier.attempt() != 0 && later.continues() == earlier.attempt() && later.pod() == earlier.pod();
      });
    });
    std::exchange(done, nullptr)(std::move(found));
  }
};

void AskAll(EventLoop* loop, NodeLinks* links, const v1::JobInfo& job, const v1::NodesReply& nodes,
            const std::shared_ptr<Finding>& finding) {
  std::set<std::string> names;
  for (const v1::AttemptInfo& attempt : job.attempts()) names.insert(attempt.node());
  if (names.empty()) names.insert(job.node());
  names.erase("");
  v1::KeptRequest request;
  request.mutable_describe()->set_job(job.job());
  finding->open = 1;  // until all are asked
  for (const std::string& name : names) {
    const auto node = std::find_if(nodes.nodes().begin(), nodes.nodes().end(),
                                   [&](const v1::NodeInfo& info) { return info.name() == name; });
    if (node == nodes.nodes().end()) {
      finding->Problem(name, "node " + Escape(name) + " is gone, and the writes of the job with it");
      continue;
    }
    if (node->state() == "lost" || node->state() == "away") {
      finding->Problem(name, NameOf(*node) + " is " + node->state() + ": pull the writes of the job when it is back");
      continue;
    }
    finding->found.nodes.push_back(*node);
    ++finding->open;
    finding->calls.push_back(
        std::make_unique<KeptCall>(loop, links, *node, request, false, [finding, name](const v1::KeptEvent& event) {
          if (event.has_error()) finding->Problem(name, event.error().message());
          for (const v1::Kept& kept : event.list().kept()) {
            finding->found.kept.push_back(kept);
            finding->found.kept.back().set_node(name);
          }
          if (--finding->open > 0) return;
          // Breaks the cycle: the calls own this object.
          auto calls = std::move(finding->calls);
          finding->Finish();
        }));
  }
  if (--finding->open > 0) return;
  loop->Post([finding] {
    auto calls = std::move(finding->calls);
    if (finding->done) finding->Finish();
  });
}

}  // namespace

KeptCall::KeptCall(EventLoop* loop, NodeLinks* nodes, v1::NodeInfo node, v1::KeptRequest request, bool patient,
                   std::function<void(v1::KeptEvent)> heard)
    : loop_(loop),
      nodes_(nodes),
      node_(std::move(node)),
      request_(std::move(request)),
      patient_(patient),
      heard_(std::move(heard)) {
  request_.set_home_id(nodes_->home_id());
  if (!patient_) {
    timer_ = loop_->After(kSilence, [this] {
      timer_ = 0;
      Fail(Error(Code::kTimeout, NameOf(node_) + ": no answer for 10 s: look into its log"));
    });
  }
  Open();
}

KeptCall::~KeptCall() {
  *alive_ = false;
  loop_->Cancel(timer_);
}

void KeptCall::Send(const v1::KeptRequest& request) {
  if (!over_ && stream_) stream_->Send(request);
}

void KeptCall::Open() {
  const auto later = [this](const Error& error) {
    loop_->Post([this, alive = alive_, error] {
      if (*alive) Fail(error);
    });
  };
  if (address_ >= node_.addresses_size()) {
    return later(
        Error(Code::kUnavailable, NameOf(node_) + ": it cannot be reached from here: `vctl doctor` may tell why"));
  }
  auto stream = nodes_->OpenKept(
      node_.name(), node_.addresses(address_++),
      {.on_message = [this](v1::KeptEvent event) { Heard(std::move(event)); },
       .on_closed =
           [this](const Error& reason) {
             if (over_) return;
             // Unreachable: try another address.
             if (reason.code() == Code::kUnavailable && address_ < node_.addresses_size()) return Open();
             Fail(Error(reason.code() == Code::kOk ? Code::kInternal : reason.code(),
                        NameOf(node_) + ": " + (reason.code() == Code::kOk ? "no answer" : reason.message())));
           }});
  if (!stream) return later(stream.error());
  stream_ = std::move(*stream);
  stream_->Send(request_);
}

void KeptCall::Heard(v1::KeptEvent event) {
  if (over_) return;
  over_ = !event.has_write();
  if (event.has_error()) event.mutable_error()->set_message(NameOf(node_) + ": " + Escape(event.error().message()));
  if (over_) loop_->Cancel(std::exchange(timer_, 0));
  // A copy, because the callback may destroy this object.
  const auto heard = heard_;
  heard(std::move(event));
}

void KeptCall::Fail(const Error& error) {
  if (std::exchange(over_, true)) return;
  loop_->Cancel(std::exchange(timer_, 0));
  v1::KeptEvent event;
  event.mutable_error()->set_code(static_cast<int>(error.code()));
  event.mutable_error()->set_message(error.message());
  const auto heard = heard_;
  heard(std::move(event));
}

void FindKept(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const v1::JobInfo& job,
              std::function<void(Result<KeptFound>)> done) {
  auto finding = std::make_shared<Finding>();
  finding->done = std::move(done);
  controller->Call<v1::NodesRequest, v1::NodesReply>("Nodes", {}, kNodesTimeout,
                                                     [loop, nodes, job, finding](Result<v1::NodesReply> reply) {
                                                       if (!reply)
                                                         return std::exchange(finding->done, nullptr)(reply.error());
                                                       AskAll(loop, nodes, job, *reply, finding);
                                                     });
}

}  // namespace vrun::home
