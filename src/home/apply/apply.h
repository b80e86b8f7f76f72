// SPDX-License-Identifier: Apache-2.0
// Applies what one job wrote to home's root, one operation at a time, with no more rights than this process has.
//
// Guarantees, whatever home has changed meanwhile (what happens then: conflict_policy.h)
//   * Each operation is applied whole or not at all. A file is written under a temporary name (.vrun-JOB-s-SEQUENCE)
//     and renamed, so a reader sees the old or the new file. A temporary left by a crash is removed when the operation
//     is sent again, which happens because it was not acknowledged.
//   * No operation leaves the root, follows a symbolic link, or touches a hidden path.
//   * The series may be repeated from any operation on, also to a new Applier after a crash: what is already applied is
//     recognised, and neither repeated nor treated as a conflict.
//   * Nothing is durable before Sync(): 20,000 small files cost one flush, not 20,000.
//
// Hard links: a file that is replaced gets a new inode, so its other names keep the old content, even if the command
// wrote in place. The command itself saw the same (the overlay breaks such links too), the file is never half written,
// and the stores of pnpm, ccache and git, whose files are linked into trees, are not changed by a job. (In a live view
// a write affects all names, also at home: v1::PutFile.linked.) A change of metadata alone is made in place and shows
// under all names. Links that the job made become links at home.
//
// One thread; may block on the disk (give it a worker thread's queue).
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "proto/task.pb.h"
#include "tree/tree.h"

namespace vrun::home {

struct ApplyContext;   // apply_context.h
class ApplyFlush;      // apply_flush.h
class ConflictPolicy;  // conflict_policy.h
class DenyRules;
struct IncomingFile;  // apply_context.h
struct Place;         // apply_paths.h

struct ApplyOptions {
  std::string root = "/";
  uint64_t job = 0;
  // From 1; 0: unknown. Each attempt is a separate series: a journal of another attempt is dropped.
  uint32_t attempt = 0;
  uint32_t pod = 0;  // of a gang, whose pods are separate series
  // The current deny rules: such paths are never written, removed, or moved along with a parent, even if they appeared
  // after the start. Null: none.
  std::function<std::shared_ptr<const DenyRules>()> rules;
  std::vector<std::string> exposed;  // exempt from `rules` and `judge`
  // kDenied: home does not serve this open file, whatever it is called (home/serve/private_files.h). No job may make it
  // look like one that is served. Null: all may be served.
  std::function<Status(int fd, const struct stat& st, std::string_view path)> judge = nullptr;
  // The series of a live view (live_policy.h): the last writer wins. `attempt` then is the view's number.
  bool live = false;
  // The job shown in notices and in names beside. Null: `job`. For a live view `job` is an internal number that no user
  // knows.
  std::function<uint64_t()> shown_job = nullptr;
  // One line for the user, without the prefix "vrun: ".
  std::function<void(const std::string&)> notice;
  // Home had changed this path, so it is not as the job left it; `notice` says what was done. Null: ignored.
  std::function<void(const std::string& path)> conflict;
  // Recreates, as `name` in an open directory, what the job's root had at `path` before it wrote, recursively. `made`
  // is called for each file (O_PATH) with the entry that it copies. Error: home no longer has all of it. Null: nothing
  // is known.
  std::function<Status(const std::string& path, int directory, const std::string& name,
                       const std::function<void(int fd, const tree::Entry& was)>& made)>
      restore;
  // The path (in the root) now has what the job put there, or was removed by the job. Null: ignored.
  std::function<void(const std::string& path)> applied;
  // We append to a file in place: its state before and after each step, and once before the first (both the same).
  // Null: ignored.
  std::function<void(const struct stat& before, const struct stat& after)> grew = nullptr;
  // A small file that records, across restarts of home, which files were put beside and how far the series was applied.
  // "": only in memory. Removed by Finish().
  std::string journal;
};

class Applier {
 public:
  // Opens the root and the journal.
  static Result<std::unique_ptr<Applier>> Open(ApplyOptions options);
  Applier(const Applier&) = delete;
  Applier& operator=(const Applier&) = delete;
  ~Applier();

  // Applies one message of the series. An error names the path and leaves it unchanged. The caller then decides whether
  // to continue with the next message (data of a failed PutFile is ignored) or to stop and leave the job's writes on
  // the node. kInvalid: the message itself is wrong. Messages at or below sequence() are ignored.
  Status Apply(const vrun::v1::WriteBack& message);

  // The last complete sequence, including all before it; never in the middle of a file. Right after Open: what the
  // journal knows to be durable (0 without an attempt), from where the node may continue.
  uint64_t sequence() const;

  // Makes everything up to sequence() durable and returns it: this may be acknowledged. Call periodically, and before
  // acknowledging WriteBackEnd.
  Result<uint64_t> Sync();

  // Ends the series: Sync, then removes the journal.
  Status Finish();

  // Sync in two steps, so that operations are applied while the disk is busy. BeginSync returns what to flush (on any
  // thread) for everything up to `sequence`; EndSync says whether the flush succeeded (if not, it must be flushed
  // again).
  struct Flushing {
    uint64_t sequence = 0;
    std::shared_ptr<ApplyFlush> flush;
  };
  Flushing BeginSync();
  void EndSync(const Flushing& begun, bool flushed);
  // Gives up refused operations up to `sequence`, which ends an operation. They count as applied, also after a restart
  // of home.
  void Settle(uint64_t sequence);

  // Live views: what was put in place since the last call, as it is now. TakeWantWhole: the PutFile that must be sent
  // again whole (WriteBackAck.want_whole); it was not applied, and nothing is applied until it comes. 0: none.
  std::vector<vrun::v1::Applied> TakeApplied();
  uint64_t TakeWantWhole() { return std::exchange(want_whole_, 0); }
  // Live views: exclusive operations since the last call that found their name taken (WriteBackAck.refused). After
  // Open: the last ones of an earlier process, which may not have told the node.
  std::vector<uint64_t> TakeRefused() { return std::exchange(taken_names_, {}); }

  // Applied in this process; for information.
  uint64_t files() const { return files_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Applier(std::unique_ptr<ApplyContext> context, std::unique_ptr<ConflictPolicy> policy);

  Status Dispatch(const vrun::v1::WriteBack& message);
  Status BeginFile(const vrun::v1::WriteBack& message);
  Status TakeData(const vrun::v1::WriteBack& message);
  Status EndFile(uint64_t sequence);
  void DropFile();
  // Asks for the whole file of that PutFile; nothing after it is applied before it comes.
  void WantWhole(uint64_t sequence) { refused_ = want_whole_ = sequence; }
  // An exclusive operation: makes the whole thing under a temporary name, and gives it its name if that is free.
  Status Claim(const vrun::v1::WriteBack& message);
  Status MakeClaimed(const vrun::v1::WriteBack& message, const Place& place, const std::string& temporary);
  Status MakeSymlink(const vrun::v1::WriteBack& message);
  Status MakeSpecial(const vrun::v1::WriteBack& message);
  Status MakeNamed(const vrun::v1::WriteBack& message, const vrun::v1::Meta& meta,
                   const std::function<int(int directory, const char* name)>& make);
  Status MakeDirectory(const vrun::v1::WriteBack& message);
  Status MakeHardLink(const vrun::v1::WriteBack& message);
  Status LinkAs(const Place& source, const struct stat& source_st, const Place& place, const std::string& temporary);
  Status CopyAs(const Place& source, const Place& place, const std::string& temporary);
  Status Remove(const vrun::v1::WriteBack& message);
  Status Rename(const vrun::v1::WriteBack& message);
  Status SetMeta(const vrun::v1::WriteBack& message);
  Status TakeLoss(const vrun::v1::WriteBack& message);

  const std::unique_ptr<ApplyContext> context_;
  const std::unique_ptr<ConflictPolicy> policy_;
  std::unique_ptr<IncomingFile> file_;  // whose content is being received
  bool ignore_data_ = false;
  uint64_t refused_ = 0;  // nothing after this sequence is applied until it is sent again
  uint64_t want_whole_ = 0;
  std::vector<uint64_t> taken_names_;
  std::string given_up_;  // path of a file that the node has already reported as given up
  uint64_t files_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace vrun::home
