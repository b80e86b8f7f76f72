// SPDX-License-Identifier: Apache-2.0
// The client side of one stream to another node's file system server (proto/peer.proto). Opened on first use, both
// sides prove themselves, and after a failure it stays closed for a while.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/peer.pb.h"
#include "rpc/rpc.h"
#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::node {

// The health of one member: a member that fails is not asked for a while, longer each time, until it answers well
// again.
class PeerHealth {
 public:
  bool Down(int64_t now) const { return now < down_until_; }
  // Whether it was late and has not answered since.
  bool doubtful() const { return strikes_ > 0; }
  void Answered() { strikes_ = failures_ = 0; }
  // It did not answer in time. Several concurrent requests may report this.
  void Late(int64_t now);
  // It sent signs of life and then stopped; or it still sends them but never delivers what was asked.
  void Stalled(int64_t now);
  // Its stream broke or could not be opened.
  void Broke(int64_t now);
  // It sent false content.
  void Lied(int64_t now);

 private:
  void Rest(int64_t now, int64_t first, int64_t last);

  int strikes_ = 0;
  int failures_ = 0;
  int64_t struck_ = 0;
  int64_t down_until_ = 0;
};

// Limits how many questions to one currently silent peer may be asked elsewhere at the same time: two, doubled each
// time the other source answered first. Reason: if a peer's machine is busy for half a second, its askers must not all
// fetch everything it owes them elsewhere; a dead peer is given up for all questions after a few. Any thread.
class PeerDoubt {
 public:
  bool Begin() {
    MutexLock lock(mutex_);
    if (under_way_ >= most_) return false;
    ++under_way_;
    return true;
  }
  void Over(bool elsewhere_was_first) {
    MutexLock lock(mutex_);
    --under_way_;
    most_ = elsewhere_was_first ? std::min(2 * most_, 1 << 20) : kFirst;
  }
  // The peer sent something.
  void Heard() {
    MutexLock lock(mutex_);
    most_ = kFirst;
  }

 private:
  static constexpr int kFirst = 2;
  Mutex mutex_;
  int under_way_ VRUN_GUARDED_BY(mutex_) = 0, most_ VRUN_GUARDED_BY(mutex_) = kFirst;
};

// Any thread. Answers run on the stream's thread without locks.
class PeerClient final : public std::enable_shared_from_this<PeerClient> {
 public:
  struct Options {
    std::string home_id;
    std::string secret;  // home's secret for all members
    std::string asker;   // our name
    std::string owner;   // the peer's name
    std::string address;
    rpc::Credentials credentials;
  };
  // Called with Waiting any number of times first (its id 0: not about this question alone), then once with an answer
  // or with the error of the missing stream.
  using Answered = std::function<void(Result<v1::PeerReply>)>;

  // `timers` must outlive it.
  PeerClient(Options options, vfs::TimerThread* timers) : options_(std::move(options)), timers_(timers) {}
  ~PeerClient();

  // Sets the id of `question`.
  uint64_t Ask(const v1::PeerRequest& question, Answered answered);
  // Whether the stream is open and proved. Until then silence means nothing: a failed opening is reported as an answer.
  bool proved();
  // Time of the last message from the peer, of any kind; monotonic. Signs of life queue behind content in the stream.
  int64_t heard() const { return heard_.load(std::memory_order_relaxed); }
  PeerDoubt& doubt() { return doubt_; }
  // The caller no longer waits: the question gets no answer.
  void Cancel(uint64_t id);
  // Pending questions get kAborted. Do not call from within a callback of a stream.
  void Close();

 private:
  // One connection attempt. It outlives its stream.
  struct Link final : rpc::Stream::Handler {
    void OnMessage(std::string message) override { client->OnMessage(this, message); }
    void OnClosed(Error reason) override { client->OnClosed(this, reason); }
    ~Link() override {
      stream.reset();  // no callback after this
      channel.reset();
    }
    std::shared_ptr<PeerClient> client;
    std::string nonce;
    bool proved = false;
    std::unique_ptr<rpc::Channel> channel;
    std::unique_ptr<rpc::Stream> stream;
  };

  Result<std::shared_ptr<Link>> PrepareLocked() VRUN_REQUIRES(mutex_);
  void Open(const std::shared_ptr<Link>& link);
  void OnMessage(Link* link, const std::string& message);
  void OnClosed(Link* link, const Error& reason);
  // Fails all pending questions. The link is destroyed on the timers' thread, because a channel cannot be destroyed on
  // its own thread.
  void DropLocked(const Error& reason, std::vector<Answered>* failed) VRUN_REQUIRES(mutex_);

  const Options options_;
  vfs::TimerThread* const timers_;
  std::atomic<int64_t> heard_{0};
  PeerDoubt doubt_;
  Mutex mutex_;
  std::shared_ptr<Link> link_ VRUN_GUARDED_BY(mutex_);
  bool closed_ VRUN_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ VRUN_GUARDED_BY(mutex_) = 1;
  struct Asked {
    v1::PeerRequest request;
    Answered answered;
    bool sent = false;
  };
  std::map<uint64_t, Asked> asked_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::node
