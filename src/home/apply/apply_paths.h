// SPDX-License-Identifier: Apache-2.0
// From a path as a job names it to a name in an open directory at home: refuses what is hidden, follows what was put
// beside, and makes directories again that home has lost. Part of Applier.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/apply/apply.h"
#include "home/apply/apply_journal.h"
#include "home/apply/used_places.h"
#include "home/root/safe_root.h"

namespace vrun::home {

// How many names beside one that is taken are tried.
inline constexpr int kMaxBeside = 1000;

// A name that could be resolved: an open parent (O_PATH) and the name in it.
struct Place {
  std::string asked;  // as the job has it
  std::string path;   // at home
  std::string name;
  UniqueFd parent;
};

class ApplyPaths {
 public:
  // Options and journal must outlive it.
  ApplyPaths(const ApplyOptions* options, ApplyJournal* journal, SafeRoot root)
      : options_(options), journal_(journal), root_(std::move(root)) {}

  std::string Actual(const std::string& asked) const;
  Status RefuseHidden(const std::string& path) const;
  bool HasHiddenBelow(const std::string& path) const;
  // nullopt: a parent is not there, or is no directory.
  Result<std::optional<Place>> Find(const std::string& asked) const;
  // Also "/", which is "." in itself.
  Result<std::optional<Place>> FindOrRoot(const std::string& asked) const;
  Result<Place> FindOrMakeParents(const std::string& asked);
  // Of a live view: what it writes to is found where home has put it meanwhile.
  void Use(const Place& place, const struct stat* file = nullptr);
  void Forget(const std::string& asked) { used_.Forget(asked); }
  // The place where the file of that name is now, which was written to before; nullopt: it is there (`current` is what
  // has the name), or it is gone.
  Result<std::optional<Place>> FindFileNow(const Place& place, const std::optional<struct stat>& current) const;
  Result<UniqueFd> OpenRoot() const { return root_.OpenDirectory("/"); }
  // NAME.vrun-JOB, then NAME.vrun-JOB.1 and so on, cut to what a name may have.
  std::string BesideName(const std::string& name, int attempt) const;

  std::string JobShown() const;
  void Notice(const std::string& text) const;
  void NoticeChanged(const std::string& path, const std::string& what) const;
  // Home's file system does not take the attribute. A few times of each.
  void NoticeLeftOut(const std::string& path, const std::string& attribute);
  // What is at `aside`, or was, is told of as what it was to the job: at `path`.
  void SetAside(const std::string& aside, const std::string& path);

 private:
  Status MakeParents(const std::string& asked, const std::string& actual);

  const ApplyOptions* options_;
  ApplyJournal* journal_;
  SafeRoot root_;
  UsedPlaces used_;
  std::map<std::string, std::string> aside_;
  std::map<std::string, int> left_out_;  // attribute: how often it was told
  std::string Shown(const std::string& path) const;
};

}  // namespace vrun::home
