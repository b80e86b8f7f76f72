// SPDX-License-Identifier: Apache-2.0
// The Applier of series that end (apply.h), as opposed to those of live views (apply_live_internal.h). apply.cc has
// messages, versions, files and metadata; apply_names.cc has the operations on names.
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
    // Without an attempt the numbers may belong to another series.
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
  // The command only appended to the file, and `file_` has all of the content: appends the tail to home's current file,
  // if that begins with what the command saw. False: it does not, or cannot be written in place.
  Result<bool> AppendTail();
  void Grew(struct stat* last, int file, size_t bytes) const;
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
  // Whether nobody has written to the content, whatever else of the file the job has changed.
  bool HasContent(const struct stat& st, const v1::BaseVersion& base, int64_t mtime_ns) const {
    return IsInode(st, base) && static_cast<uint64_t>(st.st_size) == base.size() && ToNanos(st.st_mtim) == mtime_ns;
  }
  // Makes `to` a copy of what the command saw at `seen`. False: home does not have all of it. (After a restart of this
  // process the copies count as foreign changes: later versions are stored beside them.)
  Result<bool> Restore(const v1::WriteBack& message, const std::string& seen, Place& to, const v1::Meta* meta);
  // Call Watch before, and Remember after, an operation that changes the ctime of an inode that keeps other names.
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
  // The operation may have been applied by a process that died before it acknowledged it.
  bool MayBeRepeated(const v1::WriteBack& message) const { return message.sequence() <= journal_.applied_before(); }
  // Also true if the process may have died before it noted the operation: that is the first operation not noted, or
  // after a machine crash any operation.
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
  // ctime as we left it, of inodes with several names, copies, and files whose times the job set.
  std::map<std::pair<dev_t, ino_t>, int64_t> own_ctime_;
  std::map<std::pair<dev_t, ino_t>, ino_t> restored_;  // copies -> originals
  std::set<std::string> kept_;                         // paths that were not removed
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
