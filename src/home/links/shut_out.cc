// SPDX-License-Identifier: Apache-2.0
#include "home/links/shut_out.h"

#include "base/log.h"
#include "people/members.h"
#include "proto/people.pb.h"

namespace vrun::home {
namespace {

// A node that is shut out must be cut off within a minute.
constexpr int64_t kPauseMicros = 20'000'000, kAnswerMicros = 10'000'000;

}  // namespace

ShutOutFollower::ShutOutFollower(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes)
    : loop_(loop), controller_(controller), nodes_(nodes) {
  Wait();
}

ShutOutFollower::~ShutOutFollower() {
  *alive_ = false;
  loop_->Cancel(timer_);
}

void ShutOutFollower::Wait() {
  timer_ = loop_->After(kPauseMicros, [this] {
    if (!directory_.empty() && nodes_->connected()) Ask();
    Wait();
  });
}

void ShutOutFollower::Ask() {
  // An older controller does not know the call: then it is as it was.
  controller_->Call<v1::ShutOutRequest, v1::ShutOut>(
      "People/ShutOutList", {}, kAnswerMicros, [this, alive = alive_](Result<v1::ShutOut> list) {
        if (!*alive || !list) return;
        const Result<bool> changed = people::Members(directory_).Follow(*list);
        if (!changed) return LogWarning("who was shut out: {}", changed.error().message());
        if (*changed) nodes_->EndShutOut();
      });
}

}  // namespace vrun::home
