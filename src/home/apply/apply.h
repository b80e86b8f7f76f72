// SPDX-License-Identifier: Apache-2.0
// Applies what one job wrote to home's root, one operation at a time, with no more rights than this process has.
//
// Guarantees
//   * Each operation is applied whole or not at all; a file is written under a temporary name (.vrun-JOB-s-SEQUENCE)
//   and
//     renamed, so that a reader sees the old or the new file. A temporary that a crash leaves goes when the operation
//     is sent again, which it is, because it was never acknowledged.
//   * What the command has only appended to a file goes to the end of home's file, in place, whatever others have
//   appended
//     to it meanwhile.
//   * What else changed at home since the command saw it stays: the job's version lands beside it as NAME.vrun-JOB (.1,
//   .2,
//   ...
//     when taken) and `notice` says so; a changed file is not removed or renamed, which is said too, and what the job
//     renamed or linked it to becomes a copy of what the job saw, where home still knows that.
//   * No operation leaves the root, follows a symbolic link, or touches a hidden path.
//   * The series may be sent again from any operation on, also to a new Applier after a crash: what is there already is
//     recognised and neither repeated nor taken for a conflict.
//   * Nothing is durable before Sync(): 20,000 small files cost one flush, not 20,000.
//
// Hard links: a file that is replaced gets a new inode, so its other names keep the old content, even where the command
// wrote in place. That is what the command itself saw (the overlay breaks such links, too), it is never half a file,
// and it keeps the stores of pnpm, ccache and git, whose files are linked into trees, from being changed by a job. (In
// a live view a write goes to all names, and it does at home, too: v1::PutFile.linked.) A change of metadata alone is
// made in place and shows under all names, and links that the job made are links at home.
//
// One thread; may block on the disk (give it a worker thread's queue).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/task.pb.h"
#include "tree/tree.h"

namespace vrun::home {

class ApplyFlush;  // apply_flush.h
class DenyRules;

struct ApplyOptions {
  std::string root = "/";
  uint64_t job = 0;
  // From 1; 0: unknown. The writes of another attempt are another series: a journal of one is dropped.
  uint32_t attempt = 0;
  // What is kept from jobs, as it is now, whatever was there when this began: never written, removed, or moved along
  // with a parent. Null: nothing.
  std::function<std::shared_ptr<const DenyRules>()> rules;
  std::vector<std::string> exposed;  // not by those
  // The series of a live view (apply_live.h): the last writer wins. `attempt` then names the view.
  bool live = false;
  // The job that notices and names beside others show. Null: `job`. A live view has a number of its own for `job`,
  // which no user knows.
  std::function<uint64_t()> shown_job = nullptr;
  // One line of text for the user, without "vrun: " in front.
  std::function<void(const std::string&)> notice;
  // Home had changed what is at this path, and it is not as the job left it; `notice` says what became of it. Null:
  // nobody wants to know.
  std::function<void(const std::string& path)> conflict;
  // Makes again, as `name` in an open directory, what the job's root had at `path` before it wrote, with all below;
  // `made` is told of each file (O_PATH) and what it is a copy of. An error: home does not have all of it any more.
  // Null: nothing is known.
  std::function<Status(const std::string& path, int directory, const std::string& name,
                       const std::function<void(int fd, const tree::Entry& was)>& made)>
      restore;
  // At this path (in the root) is now what the job put there, or nothing any more. Null: nobody wants to know.
  std::function<void(const std::string& path)> applied;
  // A small file that remembers across restarts of home what was put beside and how far the series was applied. "":
  // only in memory. Removed by Finish().
  std::string journal;
};

class Applier {
 public:
  // Opens root and journal.
  static Result<std::unique_ptr<Applier>> Open(ApplyOptions options);
  virtual ~Applier() = default;

  // Applies one message of the series. An error names the path and leaves it as it was; the caller decides whether to
  // go on with the next message (data that belongs to a failed PutFile is then ignored) or to stop and keep the job's
  // writes where they are. kInvalid: the message itself is wrong. Messages at or below sequence() are ignored.
  virtual Status Apply(const vrun::v1::WriteBack& message) = 0;

  // The last sequence that is complete, including all before it: never in the midst of a file. Right after Open: what
  // the journal knows to be durable (0 without an attempt), so that the node may go on there.
  virtual uint64_t sequence() const = 0;

  // Makes everything up to sequence() durable and returns it: what may be acknowledged now. Call at intervals and
  // before WriteBackEnd is acknowledged.
  virtual Result<uint64_t> Sync() = 0;

  // Ends the series: Sync, then the journal goes.
  virtual Status Finish() = 0;

  // Of a live view: Sync in two steps, so that more is applied while the disk is busy. What is up to `sequence` is to
  // be flushed, on any thread; then that it was, or was not (and is to be flushed again).
  struct Flushing {
    uint64_t sequence = 0;
    std::shared_ptr<ApplyFlush> flush;
  };
  virtual Flushing BeginSync() { return {}; }
  // Of a live view: what is up to `sequence`, at the end of an operation, is given up where it was refused, and counts
  // as applied, after a restart of home as well.
  virtual void Settle(uint64_t /*sequence*/) {}
  virtual void EndSync(const Flushing& /*begun*/, bool /*flushed*/) {}

  // Of a live view, since the last call: what was put in place, as it is now. And the PutFile that is to come again
  // whole (WriteBackAck.want_whole): it was not applied, and nothing is until it comes. 0: none.
  virtual std::vector<vrun::v1::Applied> TakeApplied() { return {}; }
  virtual uint64_t TakeWantWhole() { return 0; }

  // Applied in this process, for the user's information.
  virtual uint64_t files() const = 0;
  virtual uint64_t bytes() const = 0;
};

}  // namespace vrun::home
