// SPDX-License-Identifier: Apache-2.0
// One node's content stream: its requests, in the order in which they deserve an answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "home/pack/compression_policy.h"
#include "home/serve/requests/live_streams.h"
#include "home/serve/requests/request.h"
#include "home/serve/requests/resident.h"
#include "home/serve/requests/unit_reader.h"
#include "home/serve/requests/watch_peers.h"
#include "home/serve/requests/watch_tree.h"
#include "proto/content.pb.h"
#include "rpc/rpc.h"

namespace vrun::home {

class ContentServer;

// Any thread. Work is done on the server's threads in steps of at most 1 MiB, and what somebody waits for overtakes in
// the stream what is sent ahead, so that a later, more urgent request waits for no more than a step. While the stream
// has more than rpc::Stream::kHighWater queued nothing is read ahead, with twice that nothing but directory objects is
// read.
class ContentSession : public NodeStream {
 public:
  static constexpr size_t kMaxWaiting = 65536;  // requests; more ends the stream

  // Held in a shared_ptr. `server` must outlive it.
  explicit ContentSession(ContentServer* server);

  // Before the first request. The stream must live until Close.
  void Start(rpc::Stream* stream);
  // A serialized ContentRequest.
  void OnMessage(const std::string& message);
  void OnWritable();
  // Drops what waits; when it returns the stream is not touched any more.
  void Close();
  // Bytes of all answers so far.
  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  // TreeWatch::shown_micros.
  int64_t shown_micros() const { return tree_.shown_micros(); }

  // --- NodeStream ---
  void Send(const v1::ContentReply& reply, Urgency urgency, bool slices) override;
  void Queue(std::unique_ptr<Request> request) override;
  bool closed() const override;
  bool full() const override;

 private:
  std::unique_ptr<Request> Make(v1::ContentRequest request);
  void Cancel(uint64_t id);
  void Schedule();
  void Step();
  size_t SliceBytes() const;

  ContentServer* const server_;
  std::atomic<uint64_t> sent_bytes_{0};
  CompressionPolicy policy_;
  // What some kinds of requests know of the node. They lock themselves, and are not called with mutex_ held.
  UnitReader reader_;
  Resident resident_;
  PeerWatch peers_;
  TreeWatch tree_;
  LiveStreams live_;

  mutable std::mutex mutex_;
  rpc::Stream* stream_ = nullptr;  // guarded by mutex_, as all below
  std::deque<std::unique_ptr<Request>> waiting_[kUrgencies];
  std::unordered_set<uint64_t> running_;
  std::unordered_set<uint64_t> cancelled_;  // of running_
  size_t scheduled_ = 0;                    // steps posted to the workers
  bool parked_ = false;                     // waits for OnWritable
};

}  // namespace vrun::home
