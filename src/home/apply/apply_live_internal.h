// SPDX-License-Identifier: Apache-2.0
// The applier of apply_live.h. apply_live.cc has files and what all operations share; apply_live_names.cc has the rest.
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
      // Applied by a process that died, but perhaps not flushed.
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
      flush_.TouchedEverything();  // covers more than necessary, but loses nothing
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
    std::string temporary;  // "": written in place
    UniqueFd fd;
    uint64_t sequence = 0;
    uint64_t end = 0;  // end of what was written
    vrun::v1::PutFile put;
    // Appending in place: `begin` is the end of the file as the node saw it, where its data begins (the first data may
    // be empty). If others have written to the file, the data goes behind theirs.
    std::optional<Appender> appender;
    bool made = false;  // created by us
    std::optional<uint64_t> begin;
    uint64_t appended = 0;  // bytes after `begin` that are applied
    // Writing in place: size and ctime after our last write, and whether nobody else has changed the file.
    uint64_t size = 0;
    int64_t ctime_ns = 0;
    bool alone = true;
    // A patch into home's own file: the ranges that the temporary has.
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
  // Data to append, at the node's offset; may be empty, at its end.
  Status AppendData(std::string_view data, uint64_t offset);
  void DropFile();
  // Whether the node's appended data may go behind the changes that somebody at home made to the file.
  bool MayMerge(const vrun::v1::WriteBack& message, const struct stat& st) const;
  static void BeforeOwnChange(OpenFileState* file);
  static void AfterOwnChange(OpenFileState* file);
  // Home's file, if it is the one the job wrote to and it may be written in place.
  UniqueFd OpenInPlace(const OpenFileState& file) const;
  // Writes the content of the temporary into home's own file. False: not possible.
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
  // Frees the name for a directory (or for anything else).
  Status MakeWay(const Place& place, bool for_directory);
  Status Install(const Place& place, const std::string& temporary);
  Status FinishMeta(const Place& place, const std::string& name, const vrun::v1::Meta& meta, MetaFor use);
  // The operation put this file in place (`before` null), or changed only names and attributes. `copied`: it may be
  // another inode. Nothing is reported for a file that somebody else has written or replaced meanwhile: it is not the
  // job's any more, and the next tree has it.
  void Done(const Place& place, uint64_t sequence, const struct stat* before, bool copied = false, bool other = false);
  void Tell(const struct stat& now, uint64_t sequence, const struct stat* before, bool other);
  // Holds a file that is about to lose one of several names; pass the result to LostName afterwards.
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
  uint64_t refused_ = 0;  // nothing after this sequence is applied until it is sent again
  uint64_t want_whole_ = 0;
  bool ignore_data_ = false;
  std::optional<OpenFileState> file_;
  using Inode = std::pair<uint64_t, uint64_t>;  // device, number
  // Files as we left them: ctime (0: somebody else has changed the file too). If somebody changed only names or
  // attributes, size and mtime still match and the file still counts as ours.
  struct Own {
    int64_t ctime_ns = 0;
    uint64_t size = 0;
    int64_t mtime_ns = -1;  // -1: not known
  };
  std::map<Inode, Own> own_;
  std::string given_up_;  // path of a file that the node has already reported as given up
  // Files whose names and attributes we changed but whose content is not ours: ctime before and after.
  std::map<Inode, std::pair<int64_t, int64_t>> carried_;
  std::vector<vrun::v1::Applied> applied_;
  ApplyFlush flush_;
  uint64_t files_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace vrun::home
