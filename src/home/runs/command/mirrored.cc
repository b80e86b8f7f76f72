// SPDX-License-Identifier: Apache-2.0
#include "home/runs/command/mirrored.h"

#include <fcntl.h>
#include <poll.h>

#include <set>
#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr const char* kElsewhere = "copy it to a directory that is mirrored, such as your home directory";

// The job has its own of these with the same content, so nothing is missing.
bool SameInEveryJob(const std::string& path) {
  if (tree::IsBelow(path, "/dev")) return !tree::IsBelow(path, "/dev/shm");
  return tree::IsBelow(path, "/proc") || tree::IsBelow(path, "/sys");
}

}  // namespace

MirroredPlaces::MirroredPlaces(std::string root, std::string mountinfo)
    : root_(std::move(root)), path_(std::move(mountinfo)) {
  if (auto fd = OpenFile(path_, O_RDONLY)) mountinfo_ = *std::move(fd);
}

const tree::MountTable* MirroredPlaces::Mounts() {
  pollfd changed{mountinfo_.get(), POLLPRI, 0};
  if (!mounts_ || !mountinfo_ || ::poll(&changed, 1, 0) != 0) {
    const auto text = ReadFile(path_);
    auto table = text ? tree::MountTable::Parse(*text, root_) : Result<tree::MountTable>(text.error());
    if (!table) return nullptr;
    mounts_ = *std::move(table);
  }
  return &*mounts_;
}

std::optional<MirroredPlaces::Absence> MirroredPlaces::WhyNot(const std::string& path, const DenyRules* rules,
                                                              const std::vector<std::string>& exposed) {
  if (SameInEveryJob(path)) return std::nullopt;
  for (const char* place : {"/tmp", "/run", "/dev/shm"}) {
    if (!tree::IsBelow(path, place)) continue;
    return Absence{std::string(place) + " is not mirrored, the job has its own", kElsewhere, path == place};
  }
  if (rules != nullptr && rules->Denies(path, exposed)) {
    // No --expose opens our own directories.
    if (rules->Denies(path, {"/"}))
      return Absence{"it is vrun's own or withheld by the administrator, which no job sees", kElsewhere, false};
    return Absence{"it is private and not served to jobs", "`--expose " + Escape(path) + "` serves it to this one",
                   false};
  }
  const tree::MountTable* mounts = Mounts();
  if (mounts == nullptr) return std::nullopt;
  const tree::Mount* on = nullptr;
  for (const tree::Mount& mount : mounts->mounts()) {
    if (tree::IsBelow(path, mount.point) && (on == nullptr || mount.point.size() >= on->point.size())) on = &mount;
  }
  if (on == nullptr || on->included) return std::nullopt;
  return Absence{Escape(on->point) + " (" + Escape(on->type) + ") is not a local file system and not mirrored",
                 kElsewhere, path == on->point};
}

namespace {

class Checker {
 public:
  Checker(const v1::Run& run, MirroredPlaces* places, const DenyRules* rules)
      : run_(run), places_(places), rules_(rules), exposed_(run.expose().begin(), run.expose().end()) {}

  NamedCheck Check() {
    const v1::NamedPath* command = nullptr;
    std::optional<MirroredPlaces::Absence> command_absent;
    std::string instead;
    for (const v1::NamedPath& named : run_.named()) {
      auto absent = Absent(named);
      switch (named.role()) {
        case v1::NamedPath::CACHE:
          if (!absent) check_.cache = named.path();
          break;
        case v1::NamedPath::COMMAND:
          if (command == nullptr) {
            command = &named;
            command_absent = absent;
          } else if (!absent) {
            instead = named.path();
          }
          break;
        case v1::NamedPath::SCRIPT:
          if (absent) Refuse(Text("", named, *absent), false);
          break;
        case v1::NamedPath::DIRECTORY:
          if (absent) Directory(named, *absent);
          break;
        default:
          if (!absent || absent->itself) break;
          check_.notices.push_back(Text("", named, *absent));
          for (const std::string& path : std::set<std::string>{named.path(), named.leads_to()}) {
            if (rules_ != nullptr && !path.empty() && rules_->Denies(path, exposed_)) check_.hidden.push_back(path);
          }
      }
    }
    if (command != nullptr && command_absent) {
      if (instead.empty()) {
        Refuse(Text("", *command, *command_absent), true);
      } else {
        check_.notices.push_back(Escape(command->path()) + ": " + command_absent->why + ": " + Escape(instead) +
                                 " runs instead");
      }
    }
    return std::move(check_);
  }

 private:
  std::optional<MirroredPlaces::Absence> Absent(const v1::NamedPath& named) {
    auto absent = places_->WhyNot(named.path(), rules_, exposed_);
    if (!absent && !named.leads_to().empty() && named.leads_to() != named.path()) {
      absent = places_->WhyNot(named.leads_to(), rules_, exposed_);
    }
    return absent;
  }

  static std::string Text(const std::string& what, const v1::NamedPath& named, const MirroredPlaces::Absence& absent,
                          const std::string& todo = "") {
    std::string text = what + Escape(named.path());
    if (!named.leads_to().empty() && named.leads_to() != named.path()) text += " (" + Escape(named.leads_to()) + ")";
    return text + ": " + absent.why + ": " + (todo.empty() ? absent.todo : todo);
  }

  void Directory(const v1::NamedPath& named, const MirroredPlaces::Absence& absent) {
    const std::string text =
        Text("working directory ", named, absent, "run from another directory, or name one with -D");
    // The job has an empty directory of that name: nothing fails, but home's files are missing.
    if (absent.itself) return check_.notices.push_back(text);
    Refuse(text, false);
  }

  void Refuse(std::string text, bool not_found) {
    if (check_.refusal) return;
    check_.refusal.emplace(Code::kNotFound, std::move(text));
    check_.not_found = not_found;
  }

  const v1::Run& run_;
  MirroredPlaces* const places_;
  const DenyRules* const rules_;
  const std::vector<std::string> exposed_;
  NamedCheck check_;
};

}  // namespace

NamedCheck CheckNamed(const v1::Run& run, MirroredPlaces* places, const DenyRules* rules) {
  return Checker(run, places, rules).Check();
}

}  // namespace vrun::home
