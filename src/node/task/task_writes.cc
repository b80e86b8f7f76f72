// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_writes.h"

#include <algorithm>

namespace vrun::node {

Status TaskWrites::Begin(std::optional<CarryOptions> options) {
  if (options) {
    VRUN_ASSIGN(carry_, Carry::Open(*std::move(options)));
    if (acknowledged_ != 0) VRUN_TRY(carry_->Restart(acknowledged_));
  } else {
    all_sent_ = true;
  }
  begun_ = true;
  return {};
}

void TaskWrites::BeginKept(v1::WriteBackEnd end) {
  kept_end_ = std::move(end);
  all_sent_ = begun_ = true;
}

Status TaskWrites::Resume(uint64_t sequence) {
  acknowledged_ = std::max(acknowledged_, sequence);
  end_sent_ = false;
  return Retry();
}

Status TaskWrites::Retry() {
  flying_.clear();
  flying_bytes_ = 0;
  in_file_ = false;
  if (!carry_) return {};
  all_sent_ = false;
  return carry_->Restart(acknowledged_);
}

void TaskWrites::Acknowledge(uint64_t sequence) {
  acknowledged_ = std::max(acknowledged_, sequence);
  while (!flying_.empty() && flying_.front().sequence <= sequence) {
    flying_bytes_ -= flying_.front().bytes;
    flying_.pop_front();
  }
}

Result<std::optional<v1::TaskDown>> TaskWrites::Next() {
  std::optional<v1::TaskDown> out;
  if (!begun_ || end_sent_) return out;
  if (!all_sent_) {
    if (!in_file_ && (flying_.size() >= kOperations || flying_bytes_ >= kBytes)) return out;
    VRUN_ASSIGN(std::optional<v1::WriteBack> write, carry_->Next());
    if (write) {
      in_file_ = write->has_put_file() || (write->has_file_data() && !write->file_data().last());
      uint64_t bytes = write->file_data().data().size();
      flying_.push_back({write->sequence(), bytes});
      flying_bytes_ += bytes;
      out.emplace();
      *out->mutable_write_back() = *std::move(write);
      return out;
    }
    all_sent_ = true;
  }
  out.emplace();
  v1::WriteBackEnd* end = out->mutable_write_back_end();
  *end = carry_ ? carry_->End() : kept_end_;
  end_sent_ = true;
  return out;
}

}  // namespace vrun::node
