// SPDX-License-Identifier: Apache-2.0
#include "home/runs/withheld.h"

#include <functional>
#include <utility>
#include <vector>

#include "base/log.h"

namespace vrun::home {

// Attaches once more to the tasks whose writes are given up, and releases them: of a gang, one for each pod.
class Withheld::Release {
 public:
  Release(Withheld* all, uint64_t job, std::function<void()> over) : all_(all), over_(std::move(over)) {
    all_->controller_->Get(job, [this, alive = alive_, job](Result<v1::GetReply> reply) {
      if (!*alive) return;
      std::vector<v1::Placement> placements;
      if (reply) placements.assign(reply->placements().begin(), reply->placements().end());
      if (reply && placements.empty() && reply->has_placement()) placements.push_back(reply->placement());
      if (placements.empty()) {
        LogWarning("job {}: cannot give up its writes: {}", job, reply ? "it has no node" : reply.error().message());
        return over_();
      }
      open_ = placements.size();
      tasks_.resize(placements.size());
      for (size_t i = 0; i < placements.size(); ++i) Open(job, placements[i], i);
    });
  }
  ~Release() { *alive_ = false; }

 private:
  void Open(uint64_t job, const v1::Placement& placement, size_t i) {
    if (placement.addresses_size() == 0) return Closed();
    auto task = all_->nodes_->OpenTask(placement.node(), placement.addresses(0),
                                       {.on_message =
                                            [this, job, i](v1::TaskDown message) {
                                              if (!message.has_exited()) return;
                                              v1::TaskUp up;
                                              up.mutable_release();
                                              tasks_[i]->Send(up);
                                              tasks_[i]->Finish();
                                              all_->files_->ForgetWithheld(job);
                                              LogInfo("job {}: its writes are given up", job);
                                            },
                                        .on_closed = [this](Error) { Closed(); }});
    if (!task) return Closed();
    tasks_[i] = std::move(*task);
    v1::TaskUp up;
    up.mutable_attach()->set_job(job);
    up.mutable_attach()->set_attempt(placement.attempt());
    up.mutable_attach()->set_pod(placement.pod());
    up.mutable_attach()->set_token(placement.token());
    up.mutable_attach()->set_home_id(all_->nodes_->home_id());
    up.mutable_attach()->set_detached(true);
    tasks_[i]->Send(up);
  }
  void Closed() {
    if (--open_ == 0) over_();
  }

  Withheld* const all_;
  const std::function<void()> over_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<std::unique_ptr<TaskStream>> tasks_;
  size_t open_ = 0;
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
