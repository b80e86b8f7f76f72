// SPDX-License-Identifier: Apache-2.0
// The life cycle of one stream, the same for both ends: the write queue, the order of callbacks, the end. Not for other
// modules.
//
// Connects three parties with different lifetimes: the user's Stream object (may be destroyed at any moment), gRPC's
// call (lives until its last operation has completed) and the handler (outlives the Stream object). The first two share
// the core. One mutex guards all its state. It is not held while calling gRPC or the handler, except for TryCancel.
//
// gRPC's rules: one write at a time; one read at a time; CloseOut only when no write is in progress, and no write after
// it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/thread/mutex.h"
#include "rpc/rpc.h"

namespace vrun::rpc {

class StreamCore {
 public:
  // A gRPC call. Valid until Done, which comes after the CloseOut that ends every started stream.
  class Transport {
   public:
    virtual void StartRead() = 0;                      // answered by ReadDone
    virtual void StartWrite(std::string message) = 0;  // answered by WriteDone
    virtual void StartWritesDone() = 0;                // client only; answered by WriteDone
    // The last request: a server finishes the call, a client releases it.
    virtual void CloseOut(const Error& reason) = 0;
    virtual void TryCancel() = 0;

   protected:
    ~Transport() = default;
  };
  enum class Side { kClient, kServer };

  // A client's stream starts as if a write were in progress: the opening of the call, which WriteDone completes.
  StreamCore(Side side, Transport* transport) : side_(side), transport_(transport), writing_(side == Side::kClient) {}

  // --- called by the transport ---
  void Start(Stream::Handler* handler);               // sends what was queued before; starts the first read
  void Refuse(Error reason);                          // instead of Start
  void ReadDone(std::optional<std::string> message);  // nullopt: no more messages
  void WriteDone(bool ok);
  void Cancelled();         // server: the call was cancelled or its connection broke
  void Done(Error status);  // last call; the transport is gone afterwards. kOk: orderly

  // --- called by the Stream object ---
  void Send(std::string message) { Queue(&queue_, std::move(message)); }
  void SendUrgent(std::string message) { Queue(&urgent_, std::move(message)); }
  size_t queued_bytes() const;
  void Finish();
  void Cancel(Error reason);
  void Detach();  // the Stream object is destroyed; returns when no callback runs on another thread

 private:
  void Queue(std::deque<std::string>* queue, std::string message);
  // Starts possible operations. It may release and retake the lock, like Deliver.
  void Pump(MutexLock& lock) VRUN_REQUIRES(mu_);
  void Deliver(MutexLock& lock) VRUN_REQUIRES(mu_);
  void CancelLocked(Error reason) VRUN_REQUIRES(mu_);
  void DropQueueLocked() VRUN_REQUIRES(mu_);

  const Side side_;
  Transport* const transport_;
  mutable Mutex mu_;
  CondVar idle_;

  Stream::Handler* handler_ VRUN_GUARDED_BY(mu_) = nullptr;
  bool started_ VRUN_GUARDED_BY(mu_) = false;
  std::deque<std::string> urgent_ VRUN_GUARDED_BY(mu_);  // sent before queue_
  std::deque<std::string> queue_ VRUN_GUARDED_BY(mu_);
  size_t queued_bytes_ VRUN_GUARDED_BY(mu_) = 0;  // of both, including the message being written
  size_t writing_bytes_ VRUN_GUARDED_BY(mu_) = 0;
  bool above_high_water_ VRUN_GUARDED_BY(mu_) = false;
  bool writing_ VRUN_GUARDED_BY(mu_);
  bool finish_ VRUN_GUARDED_BY(mu_) = false;       // requested by the user
  bool writes_done_ VRUN_GUARDED_BY(mu_) = false;  // client: half-closed
  bool read_ended_ VRUN_GUARDED_BY(mu_) = false;
  bool cancelled_ VRUN_GUARDED_BY(mu_) = false;  // no more writes
  bool closed_out_ VRUN_GUARDED_BY(mu_) = false;
  bool done_ VRUN_GUARDED_BY(mu_) = false;
  std::optional<Error> reason_ VRUN_GUARDED_BY(mu_);  // reason of a local Cancel

  // Callbacks run one at a time. A thread that is in a callback also runs those that become due meanwhile.
  bool in_callback_ VRUN_GUARDED_BY(mu_) = false;
  std::thread::id callback_thread_ VRUN_GUARDED_BY(mu_);
  std::optional<std::string> due_message_ VRUN_GUARDED_BY(mu_);
  bool due_writable_ VRUN_GUARDED_BY(mu_) = false;
  std::optional<Error> due_closed_ VRUN_GUARDED_BY(mu_);
};

// The object that users own.
std::unique_ptr<Stream> MakeStream(std::shared_ptr<StreamCore> core);

}  // namespace vrun::rpc
