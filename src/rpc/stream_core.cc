// SPDX-License-Identifier: Apache-2.0
#include "rpc/stream_core.h"

#include <utility>

namespace vrun::rpc {

void StreamCore::Start(Stream::Handler* handler) {
  MutexLock lock(mu_);
  handler_ = handler;
  started_ = true;
  lock.unlock();
  transport_->StartRead();
  lock.lock();
  Pump(lock);
}

void StreamCore::Refuse(Error reason) {
  MutexLock lock(mu_);
  started_ = true;
  read_ended_ = true;
  reason_ = std::move(reason);
  cancelled_ = true;
  DropQueueLocked();
  Pump(lock);
}

void StreamCore::ReadDone(std::optional<std::string> message) {
  MutexLock lock(mu_);
  if (!message) {
    read_ended_ = true;
    // The server has ended the call: queued messages of the client can no longer be delivered.
    if (side_ == Side::kClient) DropQueueLocked();
    Pump(lock);
    return;
  }
  due_message_ = std::move(message);
  Deliver(lock);
}

void StreamCore::WriteDone(bool ok) {
  MutexLock lock(mu_);
  writing_ = false;
  queued_bytes_ -= writing_bytes_;
  writing_bytes_ = 0;
  if (!ok) {
    cancelled_ = true;
    DropQueueLocked();
  }
  if (above_high_water_ && queued_bytes_ <= Stream::kLowWater) {
    above_high_water_ = false;
    due_writable_ = true;
  }
  Pump(lock);
  Deliver(lock);
}

void StreamCore::Cancelled() {
  MutexLock lock(mu_);
  cancelled_ = true;
  DropQueueLocked();
  Pump(lock);
}

void StreamCore::Done(Error status) {
  MutexLock lock(mu_);
  done_ = true;
  closed_out_ = true;
  DropQueueLocked();
  if (reason_) {
    due_closed_ = *reason_;
  } else if (side_ == Side::kServer && cancelled_) {
    due_closed_ = Error(Code::kUnavailable, "the other side has cancelled the stream or its connection broke");
  } else {
    due_closed_ = std::move(status);
  }
  Deliver(lock);
}

void StreamCore::Queue(std::deque<std::string>* queue, std::string message) {
  MutexLock lock(mu_);
  if (finish_ || cancelled_ || closed_out_) return;
  if (side_ == Side::kClient && read_ended_) return;
  queued_bytes_ += message.size();
  if (queued_bytes_ > Stream::kHighWater) above_high_water_ = true;
  queue->push_back(std::move(message));
  Pump(lock);
}

size_t StreamCore::queued_bytes() const {
  MutexLock lock(mu_);
  return queued_bytes_;
}

void StreamCore::Finish() {
  MutexLock lock(mu_);
  finish_ = true;
  Pump(lock);
}

void StreamCore::Cancel(Error reason) {
  MutexLock lock(mu_);
  CancelLocked(std::move(reason));
  Pump(lock);
}

void StreamCore::Detach() {
  MutexLock lock(mu_);
  handler_ = nullptr;
  if (!finish_) {
    CancelLocked(Error(Code::kAborted, "the stream was closed by the other side"));
    Pump(lock);
  }
  if (in_callback_ && callback_thread_ == std::this_thread::get_id()) return;
  idle_.wait(lock, [this]() VRUN_REQUIRES(mu_) { return !in_callback_; });
}

void StreamCore::CancelLocked(Error reason) {
  if (closed_out_ || reason_) return;
  reason_ = std::move(reason);
  cancelled_ = true;
  DropQueueLocked();
  // A server without a write in progress ends the call with the reason as its status, so that the peer learns it.
  // Otherwise the write may be stuck in a full window, and only cancellation ends it.
  if (side_ == Side::kClient || writing_) transport_->TryCancel();
}

void StreamCore::DropQueueLocked() {
  urgent_.clear();
  queue_.clear();
  queued_bytes_ = writing_bytes_;
}

// The analysis does not know that `lock` holds mu_.
void StreamCore::Pump(MutexLock& lock) VRUN_NO_THREAD_SAFETY_ANALYSIS {
  if (!started_ || writing_ || closed_out_) return;
  if (auto& next = urgent_.empty() ? queue_ : urgent_; !next.empty()) {
    std::string message = std::move(next.front());
    next.pop_front();
    writing_ = true;
    writing_bytes_ = message.size();
    // Nobody calls CloseOut while writing_ is set, and the transport lives until that has completed.
    lock.unlock();
    transport_->StartWrite(std::move(message));
    lock.lock();
    return;
  }
  if (side_ == Side::kServer) {
    if (!finish_ && !read_ended_ && !cancelled_) return;
    closed_out_ = true;
    Error reason = reason_ ? *reason_ : Error(Code::kOk, "");
    lock.unlock();
    transport_->CloseOut(reason);
    lock.lock();
    return;
  }
  if (read_ended_) {
    closed_out_ = true;
    lock.unlock();
    transport_->CloseOut(Error(Code::kOk, ""));
    lock.lock();
  } else if (finish_ && !writes_done_ && !cancelled_) {
    writes_done_ = true;
    writing_ = true;
    lock.unlock();
    transport_->StartWritesDone();
    lock.lock();
  }
}

void StreamCore::Deliver(MutexLock& lock) VRUN_NO_THREAD_SAFETY_ANALYSIS {
  if (in_callback_) return;
  in_callback_ = true;
  callback_thread_ = std::this_thread::get_id();
  while (due_message_ || due_writable_ || due_closed_) {
    // Deliver a message before the end of the stream.
    if (due_message_) {
      std::string message = std::move(*due_message_);
      due_message_.reset();
      Stream::Handler* handler = handler_;
      lock.unlock();
      if (handler != nullptr) handler->OnMessage(std::move(message));
      // We are inside a completed operation, so the call cannot be over before this returns.
      transport_->StartRead();
      lock.lock();
    } else if (due_writable_) {
      due_writable_ = false;
      if (done_ || handler_ == nullptr) continue;
      Stream::Handler* handler = handler_;
      lock.unlock();
      handler->OnWritable();
      lock.lock();
    } else {
      Error reason = std::move(*due_closed_);
      due_closed_.reset();
      Stream::Handler* handler = std::exchange(handler_, nullptr);
      if (handler == nullptr) continue;
      lock.unlock();
      handler->OnClosed(std::move(reason));
      lock.lock();
    }
  }
  in_callback_ = false;
  callback_thread_ = {};
  idle_.notify_all();
}

namespace {

class StreamObject : public Stream {
 public:
  explicit StreamObject(std::shared_ptr<StreamCore> core) : core_(std::move(core)) {}
  ~StreamObject() override { core_->Detach(); }
  void Send(std::string message) override { core_->Send(std::move(message)); }
  void SendUrgent(std::string message) override { core_->SendUrgent(std::move(message)); }
  size_t queued_bytes() const override { return core_->queued_bytes(); }
  void Finish() override { core_->Finish(); }
  void Cancel(Error reason) override { core_->Cancel(std::move(reason)); }

 private:
  std::shared_ptr<StreamCore> core_;
};

}  // namespace

std::unique_ptr<Stream> MakeStream(std::shared_ptr<StreamCore> core) {
  return std::make_unique<StreamObject>(std::move(core));
}

}  // namespace vrun::rpc
