// SPDX-License-Identifier: Apache-2.0
// What an Applier and its ConflictPolicy share: where the series stands, the ways to home's names, and the steps that
// both take.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/apply/apply.h"
#include "home/apply/apply_files.h"
#include "home/apply/apply_flush.h"
#include "home/apply/apply_journal.h"
#include "home/apply/apply_paths.h"
#include "home/root/deny_list.h"
#include "home/root/file_meta.h"
#include "home/root/safe_root.h"

namespace vrun::home {

inline std::optional<v1::BaseVersion> BaseOf(const v1::WriteBack& message) {
  return message.has_base() ? std::optional<v1::BaseVersion>(message.base()) : std::nullopt;
}

// A file whose content is being received.
struct IncomingFile {
  Place place;
  std::string temporary;  // "": written in place
  UniqueFd fd;
  uint64_t sequence = 0;
  uint64_t end = 0;  // end of what was written
  v1::PutFile put;
  std::optional<v1::BaseVersion> base;
};

struct ApplyContext {
  ApplyContext(ApplyOptions apply_options, SafeRoot root, ApplyJournal apply_journal)
      : options(std::move(apply_options)),
        journal(std::move(apply_journal)),
        paths(&options, &journal, std::move(root)),
        prefix(".vrun-" + std::to_string(options.job) + "-") {}
  ApplyContext(const ApplyContext&) = delete;
  ApplyContext& operator=(const ApplyContext&) = delete;

  // The pods of a gang write at the same time, each with its own sequence. No sequence reaches 2^40.
  std::string TemporaryName(uint64_t of) const {
    return prefix + "s-" + std::to_string((uint64_t{options.pod} << 40) | of);
  }
  Status MakeTemporaryFile(IncomingFile* file) const;
  // The name is (in the case of `name`: will be) that of `place`. A file that home has removed meanwhile is not an
  // error.
  Status FinishMeta(const Place& place, const std::string& name, const v1::Meta& meta, MetaFor use);
  // kDenied: home withholds this file from jobs, which could make it look like another one: by its mode, by a part of
  // its content, or by a copy of it.
  Status CheckWithheld(const Place& place, const struct stat& st) const;
  // Before a file of home comes into another directory, by a link or a move: whether it may come as it is.
  bool MayBring(const struct stat& file, int directory) const;
  // After a move that brought `moved` to this path: it belongs to whom it may there. `replaced`: what was there.
  Status LeaveForeignOwner(const std::string& asked, const struct stat& moved,
                           const std::optional<struct stat>& replaced);
  // The copy of a file, under a name in this directory, belongs to this user.
  Status TakeCopy(const Place& place, const std::string& name);
  // The operation changed this name; `file`: its new content, if any.
  void Touched(const Place& place, UniqueFd file = UniqueFd());
  // Holds a file with several names, before an operation that takes one of them or changes its ctime.
  static UniqueFd Hold(const Place& place, const struct stat& st);
  // A move between file systems of home, which the job saw as one: copy, then remove the original. For the operation
  // `of`. Without `replace` it fails if the name is taken.
  Status MoveAcross(const Place& from, const Place& to, uint64_t of, bool replace);

  const ApplyOptions options;
  ApplyJournal journal;
  ApplyPaths paths;
  ApplyFlush flush;
  const std::string prefix;  // of temporary names of this job, also of the node's
  uint64_t sequence = 0;     // the last complete one
  std::vector<v1::Applied> applied;

 private:
  JobWrites allowed() const;
  // Editors and rsync give a file its owner first and then the name of the file that it replaces, whose owner it may
  // have. By inode; those that were left out lately.
  std::map<ino_t, std::pair<uid_t, gid_t>> wanted_owners_;
};

}  // namespace vrun::home
