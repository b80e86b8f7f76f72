// SPDX-License-Identifier: Apache-2.0
#include "home/runs/withheld.h"

#include <functional>
#include <utility>

#include "base/log.h"

namespace vrun::home {

// Attaches once more to a task whose writes are given up, and releases it.
class Withheld::Release {
 public:
  Release(Withheld* all, uint64_t job, std::function<void()> over) : all_(all), over_(std::move(over)) {
    all_->controller_->Get(job, [this, alive = alive_, job](Result<v1::GetReply> reply) {
      if (!*alive) return;
      if (!reply || !reply->has_placement() || reply->placement().addresses_size() == 0) {
        LogWarning("job {}: cannot give up its writes: {}", job, reply ? "it has no node" : reply.error().message());
        return over_();
      }
      Open(job, reply->placement());
    });
  }
  ~Release() { *alive_ = false; }

 private:
  void Open(uint64_t job, const v1::Placement& placement) {
    auto task = all_->nodes_->OpenTask(placement.addresses(0), {.on_message =
                                                                    [this, job](v1::TaskDown message) {
                                                                      if (!message.has_exited()) return;
                                                                      v1::TaskUp up;
                                                                      up.mutable_release();
                                                                      task_->Send(up);
                                                                      task_->Finish();
                                                                      all_->files_->ForgetWithheld(job);
                                                                      LogInfo("job {}: its writes are given up", job);
                                                                    },
                                                                .on_closed = [this](Error) { over_(); }});
    if (!task) return over_();
    task_ = std::move(*task);
    v1::TaskUp up;
    up.mutable_attach()->set_job(job);
    up.mutable_attach()->set_attempt(placement.attempt());
    up.mutable_attach()->set_token(placement.token());
    up.mutable_attach()->set_home_id(all_->nodes_->home_id());
    up.mutable_attach()->set_detached(true);
    task_->Send(up);
  }

  Withheld* const all_;
  const std::function<void()> over_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<TaskStream> task_;
};

Withheld::Withheld(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const RunFiles* files)
    : loop_(loop), controller_(controller), nodes_(nodes), files_(files) {}

Withheld::~Withheld() { *alive_ = false; }

bool Withheld::GiveUp(uint64_t job) {
  if (!files_->IsWithheld(job)) return false;
  if (releases_.contains(job)) return true;
  releases_[job] = std::make_unique<Release>(this, job, [this, job] {
    loop_->Post([this, alive = alive_, job] {
      if (*alive) releases_.erase(job);
    });
  });
  return true;
}

}  // namespace vrun::home
