// SPDX-License-Identifier: Apache-2.0
// One node's content stream. Answers its requests in order of urgency.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>

#include "base/thread/mutex.h"
#include "home/pack/compression_policy.h"
#include "home/serve/requests/live_streams.h"
#include "home/serve/requests/request.h"
#include "home/serve/requests/resident.h"
#include "home/serve/requests/unit_reader.h"
#include "home/serve/requests/watch_board.h"
#include "home/serve/requests/watch_tree.h"
#include "proto/content.pb.h"
#include "rpc/rpc.h"

namespace vrun::home {

class ContentServer;

// What the jobs of this home that run at a node may have of it.
struct Serves {
  bool any = false;             // there is one
  bool all = false;             // every tree
  bool live = false;            // the states of the root, without what --expose shows to other jobs
  std::set<std::string> trees;  // digests
};

// Any thread. The server's threads work in steps of at most 1 MiB, and urgent answers overtake read-ahead in the
// stream, so a more urgent request waits for at most one step. While more than rpc::Stream::kHighWater is queued,
// nothing is read ahead; above twice that, only directory objects are read.
class ContentSession : public NodeStream {
 public:
  static constexpr size_t kMaxWaiting = 65536;  // requests; more than this ends the stream

  // Owned by a shared_ptr. `server` must outlive it.
  explicit ContentSession(ContentServer* server);

  // Call before the first request. The stream must live until Close.
  void Start(rpc::Stream* stream);
  // A serialized ContentRequest.
  void OnMessage(const std::string& message);
  void OnWritable();
  // Drops waiting requests. The stream is not used after the return.
  void Close();
  // Requests for other trees wait until a job there has them, and so does everything while there is no job (EndHeld).
  // The node is told of new states of the root only for live jobs. At the beginning everything is served.
  void SetServes(Serves serves);
  void SetServes(bool all) { SetServes(Serves{.any = all, .all = all, .live = all, .trees = {}}); }
  // False: what the node sends for its live views waits for the next job there. At the beginning true.
  void SetTakesWrites(bool takes) { live_.SetTakes(takes); }
  // Called, on any thread, with each path whose content this stream has refused as private, or that a program at the
  // other side missed because it is. Set before Start.
  void OnWithheld(std::function<void(const std::string& path)> withheld) { withheld_ = std::move(withheld); }
  // Called, on any thread, when a read waits for a job, and then not before EndHeld has found none. Set before Start.
  void OnHeld(std::function<void()> held) { on_held_ = std::move(held); }
  // Answers the reads that have waited for a job for so long with kUnavailable: a node asks a limited amount at a time,
  // and what nobody needs any more must not stand before what the next job reads. True: others wait still.
  bool EndHeld(int64_t micros);
  // The node at the other side: what its views write comes from nowhere else. Set before Start.
  void SetNode(const std::string& node) { live_.SetNode(node); }
  // Bytes of all answers so far.
  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  // TreeWatch::shown_micros.
  int64_t shown_micros() const { return tree_.shown_micros(); }

  // --- NodeStream ---
  void Send(const v1::ContentReply& reply, Urgency urgency, bool slices) override;
  void Queue(std::unique_ptr<Request> request) override;
  void Withheld(const std::string& path) override {
    if (withheld_) withheld_(path);
  }
  bool closed() const override;
  bool full() const override;

 private:
  std::unique_ptr<Request> Make(v1::ContentRequest request);
  bool Served(const v1::ContentRequest& request) VRUN_REQUIRES(mutex_);
  bool TreeServed(const std::string& tree, const std::string& path) VRUN_REQUIRES(mutex_);
  // Puts it where it waits for its turn, or for a job.
  void Wait(std::unique_ptr<Request> request, bool first) VRUN_REQUIRES(mutex_);
  Status WatchPeers(const v1::ContentRequest& request);
  Status Missed(const std::string& path);
  void Cancel(uint64_t id);
  void Schedule() VRUN_REQUIRES(mutex_);
  void Step();
  size_t SliceBytes() const;

  ContentServer* const server_;
  std::function<void(const std::string& path)> withheld_;
  std::function<void()> on_held_;
  std::atomic<uint64_t> sent_bytes_{0};
  CompressionPolicy policy_;
  // Per-node state of some kinds of requests. They lock themselves and are called without mutex_.
  UnitReader reader_;
  Resident resident_;
  PeerWatch peers_;
  HiddenWatch hidden_;
  TreeWatch tree_;
  LiveStreams live_;

  mutable Mutex mutex_;
  rpc::Stream* stream_ VRUN_GUARDED_BY(mutex_) = nullptr;
  std::deque<std::unique_ptr<Request>> waiting_[kUrgencies] VRUN_GUARDED_BY(mutex_);
  Serves serves_ VRUN_GUARDED_BY(mutex_){.any = true, .all = true, .live = true, .trees = {}};
  std::string live_tree_ VRUN_GUARDED_BY(mutex_);  // the last one that was found to be served to live jobs
  struct Held {
    std::unique_ptr<Request> request;
    int64_t since;  // monotonic
  };
  std::deque<Held> held_ VRUN_GUARDED_BY(mutex_);  // until a job at the node has that tree
  bool told_held_ VRUN_GUARDED_BY(mutex_) = false;
  std::unordered_set<uint64_t> running_ VRUN_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> cancelled_ VRUN_GUARDED_BY(mutex_);  // of running_
  size_t scheduled_ VRUN_GUARDED_BY(mutex_) = 0;                    // steps posted to the workers
  bool parked_ VRUN_GUARDED_BY(mutex_) = false;                     // waiting for OnWritable
};

}  // namespace vrun::home
