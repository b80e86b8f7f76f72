// SPDX-License-Identifier: Apache-2.0
// The Applier of series that end (apply.h), as opposed to those of live views (apply_live_internal.h): what apply.cc
// (messages, versions, files, metadata) and apply_names.cc (all that names and renames something) have of it.
#pragma once

#include <sys/stat.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "home/apply/apply.h"
#include "home/apply/apply_files.h"
#include "home/apply/apply_flush.h"
#include "home/apply/apply_journal.h"
#include "home/apply/apply_paths.h"
#include "home/root/file_meta.h"
#include "home/root/safe_root.h"

namespace vrun::home {

class ApplierImpl final : public Applier {
 public:
  // `root_dev`: the device of the root itself.
  ApplierImpl(ApplyOptions options, SafeRoot root, uint64_t root_dev, ApplyJournal journal)
      : options_(std::move(options)),
        root_dev_(root_dev),
        journal_(std::move(journal)),
        paths_(&options_, &journal_, std::move(root)),
        prefix_(".vrun-" + std::to_string(options_.job) + "-") {
    // The numbers of an unnamed attempt may be those of another series.
    if (options_.attempt != 0) sequence_ = journal_.durable_before();
    for (const auto& own : journal_.own_changes()) own_ctime_[{own.device, own.inode}] = own.ctime_ns;
  }
  ~ApplierImpl() override { DropFile(); }

  Status Apply(const v1::WriteBack& message) override;
  uint64_t sequence() const override { return sequence_; }
  Result<uint64_t> Sync() override;
  Status Finish() override;
  uint64_t files() const override { return files_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  struct OpenFileState {
    Place place;
    std::string temporary;
    UniqueFd fd;
    uint64_t sequence = 0;
    uint64_t written_end = 0;
    v1::PutFile put;
    std::optional<v1::BaseVersion> base;
  };

  Status Dispatch(const v1::WriteBack& message);
  Status BeginFile(const v1::WriteBack& message);
  Status TakeData(const v1::WriteBack& message);
  Status EndFile();
  // The command has only appended to home's file, of which `file_` has all of it: that goes to the end of what home has
  // by now, if that begins as what the command saw. False: it does not, or may not be written to in place.
  Result<bool> AppendTail();
  void DropFile();
  Status MakeDirectory(const v1::WriteBack& message);
  Status MakeSymlink(const v1::WriteBack& message);
  Status MakeSpecial(const v1::WriteBack& message);
  Status MakeHardLink(const v1::WriteBack& message);
  Status Remove(const v1::WriteBack& message);
  Status Rename(const v1::WriteBack& message);
  Status SetMeta(const v1::WriteBack& message);

  bool IsInode(const struct stat& st, const v1::BaseVersion& base) const;
  bool Matches(const struct stat& st, const v1::BaseVersion& base, bool own_rename = false) const;
  // Whatever else of it the job has changed: nobody has written to it.
  bool HasContent(const struct stat& st, const v1::BaseVersion& base, int64_t mtime_ns) const {
    return IsInode(st, base) && static_cast<uint64_t>(st.st_size) == base.size() && ToNanos(st.st_mtim) == mtime_ns;
  }
  // A copy of what the command saw at `seen` becomes `to`. False: home has not all of it. (After a restart of this
  // process the copies are taken for somebody else's: what follows lands beside them.)
  Result<bool> Restore(const v1::WriteBack& message, const std::string& seen, Place& to, const v1::Meta* meta);
  // To be asked before and told after an operation that changes the ctime of an inode that keeps other names.
  UniqueFd Watch(const Place& place, const struct stat& st) const;
  void Remember(const UniqueFd& inode, bool new_times = false);

  std::string TemporaryName(uint64_t sequence) const { return prefix_ + "s-" + std::to_string(sequence); }
  template <typename Make>
  Status MakeTemporary(const Place& place, const std::string& name, Make make);
  Status Install(Place& place, const std::string& temporary, const v1::Meta* meta,
                 const std::optional<v1::BaseVersion>& base);
  Result<bool> Replace(Place& place, const std::string& from, const struct stat& from_st, const struct stat& current);
  Status InstallBeside(Place& place, const std::string& temporary, const v1::Meta* meta);
  Status FinishMeta(const Place& place, const std::string& name, const v1::Meta& meta, MetaFor use);
  Status MoveAcross(const Place& from, const Place& to, uint64_t sequence);

  void Touched(const Place& place, UniqueFd file = UniqueFd()) {
    flush_.Touched(place.parent.get(), std::move(file));
    if (options_.applied) options_.applied(place.path);
  }
  // The operation may have been applied by a process that died before it could say so.
  bool MayBeRepeated(const v1::WriteBack& message) const { return message.sequence() <= journal_.applied_before(); }
  // Or it died before it could note so, which is the first that it has not noted; of a machine that went down any.
  bool MayBeDone(const v1::WriteBack& message) const {
    const bool unsure = journal_.found() && (!journal_.same_boot() || sequence_ <= journal_.applied_before());
    return unsure || MayBeRepeated(message);
  }

  ApplyOptions options_;
  const uint64_t root_dev_;
  ApplyJournal journal_;
  ApplyPaths paths_;
  std::string prefix_;
  uint64_t sequence_ = 0;
  bool ignore_data_ = false;
  std::optional<OpenFileState> file_;
  // As we left them: inodes with several names, copies, and files of which the job has set the times.
  std::map<std::pair<dev_t, ino_t>, int64_t> own_ctime_;
  std::map<std::pair<dev_t, ino_t>, ino_t> restored_;  // copies, and what they are copies of
  std::set<std::string> kept_;                         // what was not removed
  uint64_t files_ = 0;
  uint64_t bytes_ = 0;
  ApplyFlush flush_;
};

// `make` gets the name and returns 0 or -1 with errno.
template <typename Make>
Status ApplierImpl::MakeTemporary(const Place& place, const std::string& name, Make make) {
  return MakeTemporaryName(place.parent.get(), name, place.path, [&] { return make(name.c_str()); });
}

inline std::optional<v1::BaseVersion> BaseOf(const v1::WriteBack& message) {
  if (!message.has_base()) return std::nullopt;
  return message.base();
}

}  // namespace vrun::home
