// SPDX-License-Identifier: Apache-2.0
// The asking end of one stream to another node's file system server (proto/peer.proto): opened when it is first needed,
// proved on both sides, closed for a while when it does not work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "proto/peer.pb.h"
#include "rpc/rpc.h"
#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::node {

// How a member did: who fails is left alone for a while, longer each time, until it answers well again.
class PeerHealth {
 public:
  bool Down(int64_t now) const { return now < down_until_; }
  // Whether it was late and has not answered since.
  bool doubtful() const { return strikes_ > 0; }
  void Answered() { strikes_ = failures_ = 0; }
  // It did not answer in time; more than one request may say so at the same time.
  void Late(int64_t now);
  // It said that it lives, and then no more; or it does, and never gives what it was asked for.
  void Stalled(int64_t now);
  // Its stream broke or could not be opened.
  void Broke(int64_t now);
  // It sent what is not so.
  void Lied(int64_t now);

 private:
  void Rest(int64_t now, int64_t first, int64_t last);

  int strikes_ = 0;
  int failures_ = 0;
  int64_t struck_ = 0;
  int64_t down_until_ = 0;
};

// How many questions to one peer, that says nothing at the moment, may be asked elsewhere at the same time: two, and
// twice as many each time that elsewhere was first. A peer whose machine is busy for half a second must not have all
// that it owes fetched by each of its askers; one that is dead is given up for all questions after a few of them. Any
// thread.
class PeerDoubt {
 public:
  bool Begin() {
    std::lock_guard lock(mutex_);
    if (under_way_ >= most_) return false;
    ++under_way_;
    return true;
  }
  void Over(bool elsewhere_was_first) {
    std::lock_guard lock(mutex_);
    --under_way_;
    most_ = elsewhere_was_first ? std::min(2 * most_, 1 << 20) : kFirst;
  }
  // It has said something.
  void Heard() {
    std::lock_guard lock(mutex_);
    most_ = kFirst;
  }

 private:
  static constexpr int kFirst = 2;
  std::mutex mutex_;
  int under_way_ = 0, most_ = kFirst;
};

// Any thread. Answers come on the stream's thread, no lock held.
class PeerClient final : public std::enable_shared_from_this<PeerClient> {
 public:
  struct Options {
    std::string home_id;
    std::string secret;  // home's, for all who take part
    std::string asker;   // our name
    std::string owner;   // theirs
    std::string address;
    rpc::Credentials credentials;
  };
  // Waiting may come first, and again and again (its id 0: not to this question alone); then one answer, or the error
  // of a stream that is not there (any more).
  using Answered = std::function<void(Result<v1::PeerReply>)>;

  // `timers` outlives it.
  PeerClient(Options options, vfs::TimerThread* timers) : options_(std::move(options)), timers_(timers) {}
  ~PeerClient();

  // The id of `question` is set here.
  uint64_t Ask(const v1::PeerRequest& question, Answered answered);
  // The stream is open and proved. Until it is, silence says nothing: that it cannot be opened is an answer.
  bool proved();
  // When something came from it last, whatever it was; monotonic. Signs of life stand behind content in its stream.
  int64_t heard() const { return heard_.load(std::memory_order_relaxed); }
  PeerDoubt& doubt() { return doubt_; }
  // Nobody waits for it any more: it is not answered.
  void Cancel(uint64_t id);
  // Whoever still waits gets kAborted. Not from within a callback of a stream.
  void Close();

 private:
  // One attempt. It outlives its stream.
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

  Result<std::shared_ptr<Link>> PrepareLocked();
  void Open(const std::shared_ptr<Link>& link);
  void OnMessage(Link* link, const std::string& message);
  void OnClosed(Link* link, const Error& reason);
  // Fails what was asked. The link goes on the timers' thread: a channel cannot end on a thread of its own.
  void DropLocked(const Error& reason, std::vector<Answered>* failed);

  const Options options_;
  vfs::TimerThread* const timers_;
  std::atomic<int64_t> heard_{0};
  PeerDoubt doubt_;
  std::mutex mutex_;
  std::shared_ptr<Link> link_;
  bool closed_ = false;
  uint64_t next_id_ = 1;
  struct Asked {
    v1::PeerRequest request;
    Answered answered;
    bool sent = false;
  };
  std::map<uint64_t, Asked> asked_;
};

}  // namespace vrun::node
