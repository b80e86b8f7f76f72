// SPDX-License-Identifier: Apache-2.0
// The life of one stream, the same for both ends: the queue of writes, the order of callbacks, the end. Not for other
// modules.
//
// Three parties with different lifetimes meet here: the user's Stream object (may be destroyed at any moment), gRPC's
// call (lives until its last operation has completed) and the handler (outlives the Stream object). The core is shared
// by the first two. All its state is behind one mutex; neither gRPC nor the handler is called with it held, except
// TryCancel.
//
// Rules of gRPC that it keeps: one write at a time; one read at a time; CloseOut only when no write is under way, and
// no write after it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "rpc/rpc.h"

namespace vrun::rpc {

class StreamCore {
 public:
  // A call of gRPC. Valid until Done.
  class Transport {
   public:
    virtual void StartRead() = 0;                      // answered by ReadDone
    virtual void StartWrite(std::string message) = 0;  // answered by WriteDone
    virtual void StartWritesDone() = 0;                // client only; answered by WriteDone
    // The last thing that is asked: a server finishes the call, a client lets go of it.
    virtual void CloseOut(const Error& reason) = 0;
    virtual void TryCancel() = 0;

   protected:
    ~Transport() = default;
  };
  enum class Side { kClient, kServer };

  // A client's stream starts as if a write were under way, which is the opening of the call: WriteDone ends it.
  StreamCore(Side side, Transport* transport) : side_(side), transport_(transport), writing_(side == Side::kClient) {}

  // --- the calls of the transport ---
  void Start(Stream::Handler* handler);               // what was queued before goes out; the first read starts
  void Refuse(Error reason);                          // instead of Start
  void ReadDone(std::optional<std::string> message);  // nullopt: no more
  void WriteDone(bool ok);
  void Cancelled();         // server: the call was cancelled or its connection broke
  void Done(Error status);  // nothing follows; the transport is gone after this. kOk: orderly

  // --- the Stream object's calls ---
  void Send(std::string message) { Queue(&queue_, std::move(message)); }
  void SendUrgent(std::string message) { Queue(&urgent_, std::move(message)); }
  size_t queued_bytes() const;
  void Finish();
  void Cancel(Error reason);
  void Detach();  // the Stream object goes away; returns when no callback runs on another thread

 private:
  void Queue(std::deque<std::string>* queue, std::string message);
  void Pump(std::unique_lock<std::mutex>& lock);  // starts what can be started; may release and retake the lock
  void Deliver(std::unique_lock<std::mutex>& lock);
  void CancelLocked(Error reason);
  void DropQueueLocked();

  const Side side_;
  Transport* const transport_;
  mutable std::mutex mu_;
  std::condition_variable idle_;

  Stream::Handler* handler_ = nullptr;
  bool started_ = false;
  std::deque<std::string> urgent_;  // before queue_
  std::deque<std::string> queue_;
  size_t queued_bytes_ = 0;  // of both, with the message under way
  size_t writing_bytes_ = 0;
  bool above_high_water_ = false;
  bool writing_;
  bool finish_ = false;       // asked for by the user
  bool writes_done_ = false;  // client: half-closed
  bool read_ended_ = false;
  bool cancelled_ = false;  // no more writes
  bool closed_out_ = false;
  bool done_ = false;
  std::optional<Error> reason_;  // of a local Cancel

  // Callbacks run one at a time; what becomes due meanwhile is run by the thread that is in one.
  bool in_callback_ = false;
  std::thread::id callback_thread_;
  std::optional<std::string> due_message_;
  bool due_writable_ = false;
  std::optional<Error> due_closed_;
};

// The object that users hold.
std::unique_ptr<Stream> MakeStream(std::shared_ptr<StreamCore> core);

}  // namespace vrun::rpc
