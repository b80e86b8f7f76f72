// SPDX-License-Identifier: Apache-2.0
// The policy of the series of a live view (src/vfs/live/data/live_stream.h): its jobs' changes to the root, in order,
// with a short delay. live_policy.cc has names, live_content.cc has content.
//
//   * The last writer wins, as on any shared file system: whatever has the name is replaced or removed, whoever wrote
//     it. Only a thing of another kind (a directory against a file) is put aside as NAME.vrun-JOB, which a notice
//     reports.
//   * A file may be sent as a patch (v1::Over) against what this series or the given version put there. If home has
//     anything else, the whole file is requested (Applier::TakeWantWhole).
//   * What the job wrote to an existing file goes into that file itself, as on any shared file system: processes that
//     have it open see it, and data that others append is not lost. A file that the job created or replaced gets a new
//     inode, whole or not at all.
//   * After a crash of the process, the next one begins after the last applied operation; after a crash of the machine,
//     after the last durable one. So home always has a state that the job once had.
#pragma once

#include <sys/stat.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "home/apply/apply_append.h"
#include "home/apply/conflict_policy.h"

namespace vrun::home {

class LivePolicy final : public ConflictPolicy {
 public:
  explicit LivePolicy(ApplyContext* context);

  Result<bool> Begin(const v1::WriteBack& message, IncomingFile* file) override;
  Status Write(const IncomingFile& file, const v1::FileData& data) override;
  Result<bool> Put(uint64_t sequence, IncomingFile* file) override;

  Status Install(const std::string& temporary, const v1::Meta* meta, const std::optional<v1::BaseVersion>& base,
                 Place* place) override;
  Result<bool> MakeDirectory(const v1::WriteBack& message, Place* place) override;
  Result<bool> MayRemove(const v1::WriteBack& message, const Place& place, const struct stat& current) override;
  Status Rename(const v1::WriteBack& message, const std::optional<Place>& from,
                const std::optional<struct stat>& source, Place to) override;
  Result<bool> MaySetMeta(const v1::WriteBack& message, const Place& place, const struct stat& current) override;

  bool IsOwn(const struct stat& st) const override;

  void Made(const Place& place, uint64_t sequence) override { Done(place, sequence, nullptr); }
  void Linked(const Place& place, uint64_t sequence, const UniqueFd& /*held*/, const struct stat& before,
              bool copied) override {
    Done(place, sequence, &before, copied);
  }
  void Removed(uint64_t sequence, const UniqueFd& held, const struct stat& before) override {
    LostName(held, sequence, before, /*other=*/false);
  }
  void MetaSet(const v1::WriteBack& message, const Place& place, const UniqueFd& held,
               const struct stat& before) override;

 private:
  // Data is appended in place. `begin` is the end of the file as the node saw it, where its data begins (the first data
  // may be empty). If others have written to the file, the data goes behind theirs.
  struct Growing {
    Appender appender;
    bool made = false;  // created by us
    std::optional<uint64_t> begin;
    uint64_t appended = 0;  // bytes after `begin` that are applied
    // After our last write; and whether nobody else has changed the file.
    uint64_t size = 0;
    int64_t ctime_ns = 0;
    bool alone = true;
  };
  // A patch into home's own file, which has this ctime: the ranges that the temporary has.
  struct Patch {
    int64_t ctime_ns = 0;
    std::vector<std::pair<uint64_t, uint64_t>> ranges;  // offset, length
  };

  // --- content ---

  // Whether `st` is the file that the node means: the given version, or one of ours.
  bool IsMeant(const v1::WriteBack& message, const struct stat& st) const;
  // Whether the node's appended data may go behind the changes that somebody at home made to the file.
  bool MayMerge(const v1::WriteBack& message, const struct stat& st) const;
  Result<bool> BeginAppend(const v1::WriteBack& message, IncomingFile* file);
  Result<bool> BeginPatch(const v1::WriteBack& message, IncomingFile* file);
  // Data to append, at the node's offset; may be empty, at its end.
  Status Grow(const IncomingFile& file, std::string_view data, uint64_t offset);
  Status Append(const IncomingFile& file, std::string_view data, uint64_t offset);
  // Home's file, if it is the one the job wrote to and it may be written in place.
  UniqueFd OpenInPlace(const IncomingFile& file) const;
  // Writes the content of the temporary into home's own file. False: not possible.
  Result<bool> WriteThrough(IncomingFile* file);

  // --- names ---

  // Frees the name for a directory (or for anything else).
  Status MakeWay(const Place& place, bool for_directory);
  Status Exchange(const v1::WriteBack& message, const Place& from, const Place& to);

  // --- the job's own changes ---

  void NoteOwn(const struct stat& st, int64_t ctime_ns);
  // The operation put this file in place (`before` null), or changed only names and attributes. `copied`: it may be
  // another inode. Nothing is reported for a file that somebody else has written or replaced meanwhile: it is not the
  // job's any more, and the next tree has it.
  void Done(const Place& place, uint64_t sequence, const struct stat* before, bool copied = false, bool other = false);
  void Tell(const struct stat& now, uint64_t sequence, const struct stat* before, bool other);
  // `held`: a file that has lost one of several names.
  void LostName(const UniqueFd& held, uint64_t sequence, const struct stat& before, bool other);

  std::optional<Growing> growing_;
  std::optional<Patch> patch_;
  using Inode = std::pair<uint64_t, uint64_t>;  // device, number
  // Files as we left them: ctime (0: somebody else has changed the file too). If somebody changed only names or
  // attributes, size and mtime still match and the file still counts as ours.
  struct Own {
    int64_t ctime_ns = 0;
    uint64_t size = 0;
    int64_t mtime_ns = -1;  // -1: not known
  };
  std::map<Inode, Own> own_;
  // Files whose names and attributes we changed but whose content is not ours: ctime before and after.
  std::map<Inode, std::pair<int64_t, int64_t>> carried_;
};

// Whether nobody has written to the file since. Compares what only a write changes, not ctime, which any change alters.
bool HasContentOf(const struct stat& before, const struct stat& now);

}  // namespace vrun::home
