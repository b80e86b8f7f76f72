// SPDX-License-Identifier: Apache-2.0
// Resolves a job's path to a name in an open directory at home: refuses hidden paths, follows diversions to names
// beside, and recreates directories that home has lost. Part of Applier.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/apply/apply.h"
#include "home/apply/apply_journal.h"
#include "home/root/safe_root.h"
#include "home/root/used_places.h"
#include "home/scope/write_scope.h"

namespace vrun::home {

// How many alternative names are tried when a name is taken.
inline constexpr int kMaxBeside = 1000;

// A resolved name: an open parent (O_PATH) and the name in it.
struct Place {
  std::string asked;  // path in the job
  std::string path;   // path at home
  std::string name;
  UniqueFd parent;
};

class ApplyPaths {
 public:
  // Options and journal must outlive it.
  ApplyPaths(const ApplyOptions* options, ApplyJournal* journal, SafeRoot root)
      : options_(options), journal_(journal), root_(std::move(root)), scope_(options->root), owners_(options->root) {}

  std::string Actual(const std::string& asked) const;
  // kDenied: no job writes there.
  Status Refuse(const std::string& path) const;
  bool HasHiddenBelow(const std::string& path) const;
  // nullopt: a parent is missing or is not a directory.
  Result<std::optional<Place>> Find(const std::string& asked) const;
  // Also accepts "/", which becomes "." in itself.
  Result<std::optional<Place>> FindOrRoot(const std::string& asked) const;
  Result<Place> FindOrMakeParents(const std::string& asked);
  // Live views: remembers the place, so that it is found after home has moved it.
  void Use(const Place& place, const struct stat* file = nullptr);
  void Forget(const std::string& asked) { used_.Forget(asked); }
  // Where the file of that name, which was written before, is now. nullopt: it has not moved (`current` is what has the
  // name), or it is gone.
  Result<std::optional<Place>> FindFileNow(const Place& place, const std::optional<struct stat>& current) const;
  Result<UniqueFd> OpenRoot() const { return root_.OpenDirectory("/"); }
  // NAME.vrun-JOB, then NAME.vrun-JOB.1 and so on, shortened to the limit of a name.
  std::string BesideName(const std::string& name, int attempt) const;
  // kMaxBeside of them are taken.
  static Error TooManyBeside(const std::string& path);

  std::string JobShown() const;
  void Notice(const std::string& text) const;
  void NoticeChanged(const std::string& path, const std::string& what) const;
  // Reports an attribute that home's file system does not accept; only a few times per attribute.
  void NoticeLeftOut(const std::string& path, const std::string& attribute);
  // Reports a file that did not get the owner or the group that the job gave it: the first of a job, and then how many.
  void NoticeOwner(const std::string& path, uint32_t uid, uint32_t gid);
  const Owners& owners() const { return owners_; }
  // Reports what is (or was) at `aside` under `path`, the path that the job knows.
  void SetAside(const std::string& aside, const std::string& path);

 private:
  Status MakeParents(const std::string& asked, const std::string& actual);

  const ApplyOptions* options_;
  ApplyJournal* journal_;
  SafeRoot root_;
  UsedPlaces used_;
  mutable WriteScope scope_;
  const Owners owners_;
  std::map<std::string, std::string> aside_;
  std::map<std::string, int> left_out_;  // attribute -> times, for the job `told_`
  std::string told_;
  int LeftOut(const std::string& attribute);
  std::string Shown(const std::string& path) const;
};

}  // namespace vrun::home
