// SPDX-License-Identifier: Apache-2.0
// What jobs write in the live views of all nodes, on its way into the root: for each view an Applier and a thread of
// its own, which live as long as the view does, over all streams and jobs.
//
//   content stream ──Write──▶ queue ──▶ Applier ──flush──▶ LiveAck ──▶ content stream
//
// A series begins with each stream (Join), and anew when home was full: what was sent of the one before is dropped, and
// the node sends again what is not acknowledged. Flushes are for whoever waits in fsync: soon, but for no more than
// half of the time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/content.pb.h"

namespace vrun::home {

class ApplyFlush;  // apply_flush.h
class DenyRules;

// Any thread. Callbacks run on threads of this, no lock held; those of Listen and WhenDurable not after destruction.
class LiveWrites {
 public:
  struct Options {
    std::string root = "/";
    std::string journals;  // directory of a file for each view; "": none survives this process
    std::function<std::shared_ptr<const DenyRules>()> rules;  // as of ApplyOptions
    std::function<Status(ApplyFlush*)> flush = nullptr;       // for tests: in place of ApplyFlush::Flush
  };
  using Send = std::function<void(const v1::LiveAck&)>;

  explicit LiveWrites(Options options);
  // Waits for the operations under way.
  ~LiveWrites();

  // A stream brings the writes of `view`, and replaces the one before. `send` gets the acknowledgements, the first one
  // with where to begin; it must not block.
  uint64_t Join(uint64_t view, Send send);
  // `joined`: what Join returned; another one's, or 0, is fine. `send` may run once more.
  void Leave(uint64_t view, uint64_t joined);
  // `begin`: of the last LiveAck that had one; what has another one is dropped.
  void Write(uint64_t view, uint64_t begin, v1::WriteBack message);
  // `refused` is called when operations have failed for good: the root is not as the views show it. Null: not any more,
  // when it returns.
  void OnRefused(std::function<void()> refused);
  // Home has everything of it, and nothing more will come. Blocks.
  void End(uint64_t view);

  // Of each view, the sequence up to which everything is in the root.
  std::map<uint64_t, uint64_t> Applied() const;

  // Once home has everything of the view up to that sequence, durably, but for what failed. Perhaps at once.
  void WhenDurable(uint64_t view, uint64_t sequence, std::function<void()> done);
  // What a view has come to by a moment, in this process. Whoever takes all marks before he starts something knows
  // later what came after, in whichever view that was.
  struct Mark {
    uint64_t failed = 0;  // operations that failed for good
    uint64_t told = 0;    // lines for the user
  };
  std::map<uint64_t, Mark> Marks() const;
  // Operations that failed for good, in this process.
  uint64_t Failed(uint64_t view) const;
  // `job` is about to run in a live view, nobody knows yet in which. Lines of a view without a listener name it.
  void Expect(uint64_t job);
  // Lines for the user: conflicts, failures, that home is full. First, before it returns, those after `told` that are
  // still known. `job` runs in the view: lines name the latest such job that has not left.
  uint64_t Listen(uint64_t view, uint64_t job, uint64_t told, std::function<void(const std::string&)> notice);
  void Unlisten(uint64_t view, uint64_t id);

 private:
  class View;
  struct Refusals {
    std::mutex mutex;
    std::function<void()> tell;  // guarded by mutex, which is held while it runs
  };
  std::shared_ptr<View> Find(uint64_t view) const;
  std::shared_ptr<View> Make(uint64_t view);

  const Options options_;
  const std::shared_ptr<std::atomic<uint64_t>> expected_ = std::make_shared<std::atomic<uint64_t>>(0);
  const std::shared_ptr<Refusals> refusals_ = std::make_shared<Refusals>();
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<View>> views_;  // guarded by mutex_
};

}  // namespace vrun::home
