// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_paths.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>

#include "base/escape.h"
#include "home/apply/apply_files.h"
#include "home/root/deny_list.h"

namespace vrun::home {
namespace {
constexpr int kMaxDetours = 256;
}  // namespace

std::string ApplyPaths::Actual(const std::string& asked) const {
  const auto& diversions = journal_->diversions();
  if (diversions.empty()) return asked;
  for (std::string_view prefix = asked; prefix.size() > 1; prefix = ParentOf(prefix)) {
    auto it = diversions.find(std::string(prefix));
    if (it != diversions.end()) return it->second + asked.substr(prefix.size());
  }
  return asked;
}

Status ApplyPaths::Refuse(const std::string& path) const {
  VRUN_TRY(scope_.Check(path));
  if (!options_->rules) return {};
  const auto rules = options_->rules();
  if (rules && !rules->Denies(path, options_->exposed)) return {};
  return Error(Code::kDenied,
               Escape(path) + ": jobs may not write here: the deny-list of this machine hides it from them");
}

bool ApplyPaths::HasHiddenBelow(const std::string& path) const {
  if (!options_->rules) return false;
  const auto rules = options_->rules();
  return !rules || rules->HidesBelow(path, options_->exposed);
}

Result<std::optional<Place>> ApplyPaths::Find(const std::string& asked) const {
  Place place;
  place.asked = asked;
  place.path = Actual(asked);
  VRUN_TRY(Refuse(place.path));
  auto parent = root_.OpenDirectory(ParentOf(place.path));
  if (!parent && (parent.error().error_number() == ENOENT || parent.error().error_number() == ENOTDIR)) {
    if (const auto now = used_.DirectoryNow(place.path, root_.fd())) {
      place.path = Actual(*now);
      VRUN_TRY(Refuse(place.path));
      parent = root_.OpenDirectory(ParentOf(place.path));
    }
  }
  if (!parent) {
    int error = parent.error().error_number();
    if (error == ENOENT || error == ENOTDIR) return std::nullopt;
    return std::move(parent).error();
  }
  place.parent = *std::move(parent);
  place.name = NameOf(place.path);
  return place;
}

Result<std::optional<Place>> ApplyPaths::FindOrRoot(const std::string& asked) const {
  if (asked != "/") return Find(asked);
  VRUN_TRY(Refuse("/"));
  Place place;
  place.asked = place.path = "/";
  place.name = ".";
  VRUN_ASSIGN(place.parent, OpenRoot());
  return place;
}

Result<Place> ApplyPaths::FindOrMakeParents(const std::string& asked) {
  // Each detour creates one directory beside an obstacle.
  for (int detour = 0; detour < kMaxDetours; ++detour) {
    VRUN_ASSIGN(auto place, Find(asked));
    if (place) return *std::move(place);
    const std::string now = used_.DirectoryNow(Actual(asked), root_.fd()).value_or(asked);
    VRUN_TRY(MakeParents(now, Actual(now)));
  }
  return Error(Code::kAborted, Escape(asked) + ": its directories change too fast at home");
}

void ApplyPaths::Use(const Place& place, const struct stat* file) {
  used_.UseDirectory(std::string(ParentOf(place.asked)), place.parent.get(), root_.fd());
  if (file != nullptr) used_.UseFile(place.asked, *file);
}

Result<std::optional<Place>> ApplyPaths::FindFileNow(const Place& place,
                                                     const std::optional<struct stat>& current) const {
  const auto name = used_.FileNow(place.asked, place.parent.get(), current);
  if (!name) return std::nullopt;
  Place now;
  now.asked = place.asked;
  now.name = *name;
  now.path = ChildOf(ParentOf(place.path), now.name);
  VRUN_TRY(Refuse(now.path));
  now.parent.Reset(::fcntl(place.parent.get(), F_DUPFD_CLOEXEC, 0));
  if (!now.parent) return ErrnoError("open the directory of " + Escape(now.path));
  return now;
}

// For a directory of the path that is gone at home or replaced by something else. A diversion keeps the parent and
// changes only the name, so the components of `asked` and `actual` correspond.
Status ApplyPaths::MakeParents(const std::string& asked, const std::string& actual) {
  VRUN_ASSIGN(UniqueFd at, root_.OpenDirectory("/"));
  bool told = false;
  size_t asked_end = asked.find('/', 1);
  for (size_t begin = 1;;) {
    size_t end = actual.find('/', begin);
    if (end == std::string::npos) return {};
    std::string name = actual.substr(begin, end - begin);
    std::string path = actual.substr(0, end);
    UniqueFd next(::openat(at.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next && errno == ENOENT) {
      int error = WithWritable(at.get(), [&] { return ::mkdirat(at.get(), name.c_str(), 0777); });
      if (error != 0 && error != EEXIST) return ErrnoError(error, "make " + Escape(path));
      if (error == 0 && !told) {
        Notice(Escape(path) + " was removed at home while job " + JobShown() +
               " ran: it was made again for what the job wrote there");
        told = true;
      }
      continue;
    }
    if (!next && errno == ENOTDIR) {
      for (int i = 0; i < kMaxBeside; ++i) {
        std::string beside = BesideName(name, i);
        int error = WithWritable(at.get(), [&] { return ::mkdirat(at.get(), beside.c_str(), 0777); });
        if (error == EEXIST) continue;
        if (error != 0) return ErrnoError(error, "make " + Escape(path));
        std::string put = ChildOf(ParentOf(path), beside);
        VRUN_TRY(journal_->Add(asked.substr(0, asked_end), put));
        NoticeChanged(path, "what the job wrote below is in " + Escape(put));
        return {};
      }
      return TooManyBeside(path);
    }
    if (!next) return ErrnoError("open " + Escape(path));
    at = std::move(next);
    begin = end + 1;
    asked_end = asked.find('/', asked_end + 1);
  }
}

std::string ApplyPaths::BesideName(const std::string& name, int attempt) const {
  std::string tail = ".vrun-" + JobShown();
  if (options_->pod > 0) tail += ".pod" + std::to_string(options_->pod);
  if (attempt > 0) tail += "." + std::to_string(attempt);
  return name.substr(0, NAME_MAX - tail.size()) + tail;
}

Error ApplyPaths::TooManyBeside(const std::string& path) {
  return Error(Code::kExists, Escape(path) + ": too many versions lie beside it: remove some");
}

std::string ApplyPaths::JobShown() const {
  return std::to_string(options_->shown_job ? options_->shown_job() : options_->job);
}

void ApplyPaths::Notice(const std::string& text) const {
  if (options_->notice) options_->notice(text);
}

// A live view goes through many jobs: each is told.
int ApplyPaths::LeftOut(const std::string& attribute) {
  if (const std::string job = JobShown(); job != told_) {
    left_out_.clear();
    told_ = job;
  }
  return ++left_out_[attribute];
}

void ApplyPaths::NoticeLeftOut(const std::string& path, const std::string& attribute) {
  constexpr int kMostTold = 10;
  const int told = LeftOut(attribute);
  if (told > kMostTold) return;
  Notice(Escape(Shown(path)) + " was written without the attribute " + attribute +
         (told == kMostTold ? "; more such files are not reported" : ""));
}

void ApplyPaths::NoticeOwner(const std::string& path, uint32_t uid, uint32_t gid) {
  constexpr const char* kWhy =
      " (job_writes in config.toml gives nobody's files to others outside of their directories)";
  const int times = LeftOut("owner");
  if (times == 1) {
    return Notice(Escape(Shown(path)) + " was written without the owner " + std::to_string(uid) + ":" +
                  std::to_string(gid) + kWhy);
  }
  for (int64_t told = 10; told <= times; told *= 10) {
    if (told == times) return Notice("left out: owner of " + std::to_string(times) + " files" + kWhy);
  }
}

std::string ApplyPaths::Shown(const std::string& path) const {
  for (const auto& [aside, shown] : aside_) {
    if (AtOrBelow(path, aside)) return shown + path.substr(aside.size());
  }
  return path;
}

void ApplyPaths::SetAside(const std::string& aside, const std::string& path) { aside_[aside] = Shown(path); }

void ApplyPaths::NoticeChanged(const std::string& path, const std::string& what) const {
  if (options_->conflict) options_->conflict(Shown(path));
  Notice(Escape(Shown(path)) + " changed at home while job " + JobShown() + " ran: " + what);
}

}  // namespace vrun::home
