// SPDX-License-Identifier: Apache-2.0
// Applies to the root what jobs write in the live views of all nodes. Each view has an Applier and a thread that live
// as long as the view, across streams and jobs.
//
//   content stream ──Write──▶ queue ──▶ Applier ──flush──▶ LiveAck ──▶ content stream
//
// Each stream begins a new series (Join), and so does each retry after home was full. Messages of an older series are
// dropped; the node sends again what is not acknowledged. A flush runs soon after a write, for processes waiting in
// fsync, but flushes take at most half of the time.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/content.pb.h"

namespace vrun::home {

class ApplyFlush;  // apply_flush.h
class DenyRules;

// Any thread. Callbacks run on threads of this class without locks held. Callbacks of Listen and WhenDurable do not run
// after destruction.
class LiveWrites {
 public:
  struct Options {
    std::string root = "/";
    std::string journals;  // directory with one file per view; "": journals do not survive this process
    std::function<std::shared_ptr<const DenyRules>()> rules;  // see ApplyOptions
    std::function<Status(ApplyFlush*)> flush = nullptr;       // for tests: replaces ApplyFlush::Flush
    std::function<Status(int fd, const struct stat& st, std::string_view path)> judge = nullptr;  // see ApplyOptions
  };
  using Send = std::function<void(const v1::LiveAck&)>;

  explicit LiveWrites(Options options);
  // Waits for running operations.
  ~LiveWrites();

  // kDenied: the view belongs to another node. A view belongs to the node that was first named, as long as it and this
  // process live. "": not known. kExhausted: the node has begun too many.
  Status Bind(uint64_t view, const std::string& node);
  // While a view rests no write is applied: there is no job in it, and home has what the last one wrote. What comes
  // waits for the next job. The view must be known.
  void Rest(uint64_t view, bool rests);
  // A stream starts to deliver the writes of `view` and replaces the previous stream of that view. `send` gets the
  // acknowledgements; the first says where to begin. `send` must not block.
  uint64_t Join(uint64_t view, Send send);
  // `joined`: the return value of Join; an outdated one or 0 is ignored. `send` may run once more.
  void Leave(uint64_t view, uint64_t joined);
  // `begin`: from the last LiveAck that had one; messages with another value are dropped.
  void Write(uint64_t view, uint64_t begin, v1::WriteBack message);
  // `look` is called when the root is to be examined without a change in it: operations have failed for good, so the
  // root differs from what views show, or an exclusive one was applied, for which a program waits. Null unsets it, and
  // no call runs after the return.
  void OnLook(std::function<void()> look);
  // The view has ended and home has all its writes. Blocks.
  void End(uint64_t view);

  // For each view: all writes up to this sequence are in the root.
  std::map<uint64_t, uint64_t> Applied() const;

  // Calls `done`, perhaps at once, when all writes of the view up to `sequence` are durable at home or have failed for
  // good.
  void WhenDurable(uint64_t view, uint64_t sequence, std::function<void()> done);
  // Counters of a view at one moment, in this process. A caller that saves the marks of all views before it starts a
  // job can later tell which failures and lines came after that, in whichever view the job ran.
  struct Mark {
    uint64_t failed = 0;  // operations that failed for good
    uint64_t told = 0;    // lines for the user
  };
  std::map<uint64_t, Mark> Marks() const;
  // Operations that failed for good, in this process.
  uint64_t Failed(uint64_t view) const;
  // `job` is about to run in a live view that is not known yet. Lines of a view without a listener name this job.
  void Expect(uint64_t job);
  // Subscribes to lines for the user: conflicts, failures, a full disk at home. Before it returns it delivers the
  // stored lines after number `told`. `job` runs in the view: lines name the latest listening job.
  uint64_t Listen(uint64_t view, uint64_t job, uint64_t told, std::function<void(const std::string&)> notice);
  void Unlisten(uint64_t view, uint64_t id);

 private:
  class View;
  struct Looker {
    Mutex mutex;
    std::function<void()> look VRUN_GUARDED_BY(mutex);  // which is held while it runs
  };
  std::shared_ptr<View> Find(uint64_t view) const;
  std::shared_ptr<View> Make(uint64_t view);

  const Options options_;
  const std::shared_ptr<std::atomic<uint64_t>> expected_ = std::make_shared<std::atomic<uint64_t>>(0);
  const std::shared_ptr<Looker> looker_ = std::make_shared<Looker>();
  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<View>> views_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::home
