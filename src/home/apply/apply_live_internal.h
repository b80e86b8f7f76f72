// SPDX-License-Identifier: Apache-2.0
// The applier of apply_live.h: apply_live.cc has what all operations share, and files; apply_live_names.cc the rest.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "home/apply/apply.h"
#include "home/apply/apply_append.h"
#include "home/apply/apply_files.h"
#include "home/apply/apply_flush.h"
#include "home/apply/apply_journal.h"
#include "home/apply/apply_paths.h"
#include "home/root/file_meta.h"
#include "home/root/safe_root.h"

namespace vrun::home {

class LiveApplier final : public Applier {
 public:
  LiveApplier(ApplyOptions options, SafeRoot root, ApplyJournal journal)
      : options_(std::move(options)),
        journal_(std::move(journal)),
        paths_(&options_, &journal_, std::move(root)),
        prefix_(".vrun-" + std::to_string(options_.job) + "-s-") {
    for (const auto& own : journal_.own_changes()) own_[{own.device, own.inode}] = {own.ctime_ns, 0, -1};
    if (journal_.same_boot() && journal_.applied_before() > journal_.durable_before()) {
      // Done by a process that died, but perhaps not flushed.
      sequence_ = journal_.applied_before();
      flush_.TouchedEverything();
      (void)Sync();
    } else {
      sequence_ = journal_.durable_before();
    }
  }
  ~LiveApplier() override { DropFile(); }

  Status Apply(const vrun::v1::WriteBack& message) override;
  uint64_t sequence() const override { return sequence_; }
  Result<uint64_t> Sync() override {
    VRUN_TRY(flush_.Flush());
    journal_.SetDurable(sequence_);
    return sequence_;
  }
  void Settle(uint64_t sequence) override {
    if (sequence <= sequence_) return;
    sequence_ = sequence;
    journal_.SetApplied(sequence_);
  }
  Flushing BeginSync() override {
    return {sequence_, std::make_shared<ApplyFlush>(std::exchange(flush_, ApplyFlush()))};
  }
  void EndSync(const Flushing& begun, bool flushed) override {
    if (flushed) {
      journal_.SetDurable(begun.sequence);
    } else {
      flush_.TouchedEverything();  // more than it was, and nothing is forgotten
    }
  }
  Status Finish() override {
    DropFile();
    VRUN_TRY(Sync());
    journal_.Remove();
    return {};
  }
  std::vector<vrun::v1::Applied> TakeApplied() override { return std::exchange(applied_, {}); }
  uint64_t TakeWantWhole() override { return std::exchange(want_whole_, 0); }
  uint64_t files() const override { return files_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  struct OpenFileState {
    Place place;
    std::string temporary;  // "": it is written in place
    UniqueFd fd;
    uint64_t sequence = 0;
    uint64_t end = 0;  // of what was written
    vrun::v1::PutFile put;
    // Of one that is appended to in place: where the node takes its end to be, which is where its data begins (the
    // first may be empty). Where others have written to it, too, that goes behind theirs.
    std::optional<Appender> appender;
    bool made = false;  // by us
    std::optional<uint64_t> begin;
    uint64_t appended = 0;  // what follows it is there so far
    // Of one that is written to in place: its size and ctime as we left it, and whether nobody else has changed it.
    uint64_t size = 0;
    int64_t ctime_ns = 0;
    bool alone = true;
    // Of a patch that goes into home's file itself: what the temporary has of it.
    bool patch = false;
    std::vector<std::pair<uint64_t, uint64_t>> ranges;  // offset, length
  };

  Status Dispatch(const vrun::v1::WriteBack& message);
  Status BeginFile(const vrun::v1::WriteBack& message);
  Status MakeTemporaryFile(OpenFileState* file);
  Status BeginOver(const vrun::v1::WriteBack& message, OpenFileState* file, bool* refused);
  Status BeginAppend(const vrun::v1::WriteBack& message, const std::function<bool(const struct stat&)>& is_meant,
                     OpenFileState* file, bool* refused);
  Status TakeData(const vrun::v1::WriteBack& message);
  Status EndFile(uint64_t sequence);
  // Data of a file that is appended to, at an offset as the node has it; also none, at its end.
  Status AppendData(std::string_view data, uint64_t offset);
  void DropFile();
  // Whether what the node appended to a file that somebody at home has changed too may go behind that.
  bool MayMerge(const vrun::v1::WriteBack& message, const struct stat& st) const;
  static void BeforeOwnChange(OpenFileState* file);
  static void AfterOwnChange(OpenFileState* file);
  // Home's file, if that is the one to which the job wrote, and may be written to in place.
  UniqueFd OpenInPlace(const OpenFileState& file) const;
  // The content of the temporary goes into home's file itself. False: it cannot.
  Result<bool> WriteThrough(OpenFileState* file);
  Status MakeDirectory(const vrun::v1::WriteBack& message);
  Status MakeNamed(const vrun::v1::WriteBack& message, const vrun::v1::Meta& meta,
                   const std::function<int(int, const char*)>& make);
  Status MakeHardLink(const vrun::v1::WriteBack& message);
  Status Remove(const vrun::v1::WriteBack& message);
  Status Rename(const vrun::v1::WriteBack& message);
  Status Exchange(const vrun::v1::WriteBack& message, const Place& from, const Place& to);
  Status SetMeta(const vrun::v1::WriteBack& message);

  bool IsOwn(const struct stat& st) const;
  void NoteOwn(const struct stat& st, int64_t ctime_ns);
  // The name is free for a directory (or for anything else) to take.
  Status MakeWay(const Place& place, bool for_directory);
  Status Install(const Place& place, const std::string& temporary);
  Status FinishMeta(const Place& place, const std::string& name, const vrun::v1::Meta& meta, MetaFor use);
  // The operation put what has this name in place (`before` null), or changed no more than its names and attributes;
  // `copied`: where it cannot be the same inode. Nothing is told of a file that somebody else has written to or
  // replaced meanwhile: what is there now is not the job's, and the next tree has it.
  void Done(const Place& place, uint64_t sequence, const struct stat* before, bool copied = false, bool other = false);
  void Tell(const struct stat& now, uint64_t sequence, const struct stat* before, bool other);
  // A file that is about to lose one of several names; to be given to LostName afterwards.
  static UniqueFd Hold(const Place& place, const std::optional<struct stat>& st);
  void LostName(const UniqueFd& file, uint64_t sequence, const std::optional<struct stat>& before, bool other);
  std::string TemporaryName(uint64_t sequence) const { return prefix_ + std::to_string(sequence); }
  void DropTemporary(const Place& place, const std::string& name) {
    (void)WithWritable(place.parent.get(), [&] { return ::unlinkat(place.parent.get(), name.c_str(), 0); });
  }

  ApplyOptions options_;
  ApplyJournal journal_;
  ApplyPaths paths_;
  const std::string prefix_;
  uint64_t sequence_ = 0;
  uint64_t refused_ = 0;  // nothing after it is applied until it has come again
  uint64_t want_whole_ = 0;
  bool ignore_data_ = false;
  std::optional<OpenFileState> file_;
  using Inode = std::pair<uint64_t, uint64_t>;  // device, number
  // Files as we left them: ctime (0: somebody else has changed it, too).
  // Whose name or attributes somebody has changed since is still ours: size and time of the content tell.
  struct Own {
    int64_t ctime_ns = 0;
    uint64_t size = 0;
    int64_t mtime_ns = -1;  // -1: not known
  };
  std::map<Inode, Own> own_;
  std::string given_up_;  // path of a file of which the node has said so once
  // Content that is not ours, under names and attributes that are: ctime before and after.
  std::map<Inode, std::pair<int64_t, int64_t>> carried_;
  std::vector<vrun::v1::Applied> applied_;
  ApplyFlush flush_;
  uint64_t files_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace vrun::home
