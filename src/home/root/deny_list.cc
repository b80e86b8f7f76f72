// SPDX-License-Identifier: Apache-2.0
#include "home/root/deny_list.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include "tree/rules.h"

namespace vrun::home {
namespace {

using tree::IsBelow;
using tree::JoinPath;

// Relative to a home directory.
constexpr std::array<std::string_view, 22> kDenied = {
    ".aws", ".kube", ".config/gcloud", ".docker/config.json",
    // keyrings
    ".gnupg", ".local/share/keyrings", ".local/share/kwalletd", ".gnome2/keyrings",
    // browser profiles
    ".mozilla", ".librewolf", ".config/google-chrome", ".config/google-chrome-beta", ".config/google-chrome-unstable",
    ".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge", ".config/vivaldi", ".config/opera",
    "snap/firefox", "snap/chromium", ".var/app/org.mozilla.firefox", ".var/app/com.google.Chrome"};

bool DeniedSshName(std::string_view name) {
  if (name.ends_with(".pem")) return true;
  return name.starts_with("id_") && !name.ends_with(".pub");
}

// The part of `path` below `directory`, without the slash between; "" if it is not below.
std::string_view Below(std::string_view path, std::string_view directory) {
  if (directory == "/") return path.substr(1);
  if (path.size() <= directory.size() + 1 || !path.starts_with(directory) || path[directory.size()] != '/') return {};
  return path.substr(directory.size() + 1);
}

std::vector<std::string> ListNames(const std::string& directory) {
  std::vector<std::string> names;
  DIR* d = ::opendir(directory.c_str());
  if (d == nullptr) return names;
  while (const dirent* e = ::readdir(d)) {
    std::string_view name = e->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(d);
  return names;
}

// Length of the denied part of `relative` (to a home directory); 0: not denied.
size_t DeniedPrefix(std::string_view relative) {
  for (std::string_view item : kDenied) {
    if (IsBelow(relative, item)) return item.size();
  }
  constexpr std::string_view kSsh = ".ssh/";
  if (relative.starts_with(kSsh)) {
    std::string_view name = relative.substr(kSsh.size());
    name = name.substr(0, name.find('/'));
    if (DeniedSshName(name)) return kSsh.size() + name.size();
  }
  return 0;
}

std::string OnHost(const std::string& root, std::string_view path) {
  if (root == "/") return std::string(path);
  return root + std::string(path);
}

// The path in the root of what a name of this machine resolves to; "" if that is outside or missing. In a chroot-like
// root, absolute symlinks are resolved against the machine; openat2, by which content is served, does not follow them
// at all.
std::string Resolve(const std::string& root, const std::string& path) {
  char resolved[PATH_MAX];
  if (::realpath(OnHost(root, path).c_str(), resolved) == nullptr) return {};
  std::string_view r = resolved;
  if (root == "/") return std::string(r);
  std::string_view below = Below(r, root);
  return below.empty() ? std::string() : "/" + std::string(below);
}

void AddUnique(std::vector<std::string>* list, std::string item) {
  if (std::find(list->begin(), list->end(), item) == list->end()) list->push_back(std::move(item));
}

}  // namespace

bool DenyRules::DeniedByPattern(std::string_view path, std::string_view* denied) const {
  auto at_home = [&](std::string_view home) {
    std::string_view relative = Below(path, home);
    if (relative.empty()) return false;
    size_t n = DeniedPrefix(relative);
    if (n == 0) return false;
    *denied = path.substr(0, path.size() - relative.size() + n);
    return true;
  };
  for (const std::string& home : homes_) {
    if (at_home(home)) return true;
  }
  for (const std::string& parent : home_parents_) {
    std::string_view relative = Below(path, parent);
    if (relative.empty()) continue;
    size_t slash = relative.find('/');
    if (slash != std::string_view::npos && at_home(path.substr(0, path.size() - relative.size() + slash))) return true;
  }
  for (const std::string& target : targets_) {
    if (IsBelow(path, target)) {
      *denied = path.substr(0, target.size());
      return true;
    }
  }
  return false;
}

bool DenyRules::Denies(std::string_view path, const std::vector<std::string>& exposed) const {
  for (const std::string& own : own_) {
    if (IsBelow(path, own)) return true;
  }
  std::string_view denied;
  if (!DeniedByPattern(path, &denied)) return false;
  for (const std::string& e : exposed) {
    if (IsBelow(path, e)) return false;
  }
  return true;
}

bool DenyRules::IsThere(const std::string& path, const std::vector<std::string>& exposed) const {
  struct stat st;
  return Denies(path, exposed) && ::lstat(OnHost(root_, path).c_str(), &st) == 0;
}

bool DenyRules::HidesInHome(const std::string& home, std::string_view path,
                            const std::vector<std::string>& exposed) const {
  for (std::string_view item : kDenied) {
    const std::string name = JoinPath(home, item);
    if (IsBelow(name, path) && IsThere(name, exposed)) return true;
  }
  const std::string ssh = JoinPath(home, ".ssh");
  if (!IsBelow(ssh, path)) return false;
  const std::vector<std::string> names = ListNames(OnHost(root_, ssh));
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return DeniedSshName(name) && Denies(JoinPath(ssh, name), exposed);
  });
}

bool DenyRules::HidesBelow(std::string_view path, const std::vector<std::string>& exposed) const {
  if (IsThere(std::string(path), exposed)) return true;
  const auto there = [&](const std::string& name) { return IsBelow(name, path) && IsThere(name, exposed); };
  if (std::any_of(own_.begin(), own_.end(), there) || std::any_of(targets_.begin(), targets_.end(), there)) return true;
  const auto in_home = [&](const std::string& home) { return HidesInHome(home, path, exposed); };
  if (std::any_of(homes_.begin(), homes_.end(), in_home)) return true;
  for (const std::string& parent : home_parents_) {
    const std::string_view inside = Below(path, parent);
    if (!inside.empty()) {
      if (in_home(JoinPath(parent, inside.substr(0, inside.find('/'))))) return true;
    } else if (IsBelow(parent, path)) {
      for (const std::string& name : ListNames(OnHost(root_, parent))) {
        if (in_home(JoinPath(parent, name))) return true;
      }
    }
  }
  return false;
}

std::vector<std::string> DenyRules::Hidden(const std::vector<std::string>& exposed) const {
  std::vector<std::string> hidden = own_;
  for (const std::string& path : hidden_) {
    std::vector<std::string> inside;
    bool open = false;
    for (const std::string& e : exposed) {
      if (IsBelow(path, e))
        open = true;
      else if (IsBelow(e, path))
        inside.push_back(e);
    }
    if (open) continue;
    if (inside.empty()) {
      hidden.push_back(path);
      continue;
    }
    // Something inside a denied directory is exposed: the directory is shown, but only what leads there.
    std::vector<std::string> level = {path};
    while (!level.empty()) {
      std::string directory = std::move(level.back());
      level.pop_back();
      for (const std::string& name : ListNames(OnHost(root_, directory))) {
        std::string child = JoinPath(directory, name);
        bool leads = false;
        bool is_it = false;
        for (const std::string& e : inside) {
          is_it |= IsBelow(child, e);
          leads |= IsBelow(e, child);
        }
        if (is_it) continue;
        if (leads)
          level.push_back(std::move(child));
        else
          hidden.push_back(std::move(child));
      }
    }
  }
  return hidden;
}

DenyList::DenyList(Options options)
    : options_([&] {
        Options o = std::move(options);
        o.root = tree::CleanPath(o.root);
        for (std::string& p : o.homes) p = tree::CleanPath(p);
        for (std::string& p : o.home_parents) p = tree::CleanPath(p);
        return o;
      }()) {}

bool DenyList::SetOwn(std::vector<std::string> own) {
  if (own == options_.own) return false;
  options_.own = std::move(own);
  return true;
}

std::shared_ptr<const DenyRules> DenyList::Current() const {
  auto rules = std::make_shared<DenyRules>();
  const std::string& root = options_.root;
  rules->root_ = root;
  for (const std::string& own : options_.own) {
    // Both by the given name and by its resolved path.
    char resolved[PATH_MAX];
    std::vector<std::string> names = {tree::CleanPath(own)};
    if (::realpath(own.c_str(), resolved) != nullptr) names.emplace_back(resolved);
    for (const std::string& name : names) {
      if (root == "/") {
        if (name != "/") AddUnique(&rules->own_, name);
      } else if (std::string_view below = Below(name, root); !below.empty()) {
        AddUnique(&rules->own_, "/" + std::string(below));
      }
    }
  }
  rules->home_parents_ = options_.home_parents;
  for (const std::string& home : options_.homes) {
    if (home != "/") AddUnique(&rules->homes_, home);
  }
  std::vector<std::string> homes = rules->homes_;
  for (const std::string& parent : options_.home_parents) {
    for (const std::string& name : ListNames(OnHost(root, parent))) AddUnique(&homes, JoinPath(parent, name));
  }
  for (size_t i = homes.size(); i-- > 0;) {
    std::string real = Resolve(root, homes[i]);
    if (real.empty() || real == "/" || real == homes[i]) continue;
    AddUnique(&rules->homes_, real);
    AddUnique(&homes, real);
  }
  for (const std::string& home : homes) {
    auto hide = [&](std::string path) {
      struct stat st;
      if (::lstat(OnHost(root, path).c_str(), &st) == 0) {
        std::string real = Resolve(root, path);
        // A parent may be a symlink too, so check not only this name. Never hide a whole home directory.
        bool whole_home =
            std::any_of(homes.begin(), homes.end(), [&](const std::string& h) { return IsBelow(h, real); });
        if (!real.empty() && real != path && !whole_home) {
          AddUnique(&rules->targets_, real);
          AddUnique(&rules->hidden_, real);
        }
      }
      AddUnique(&rules->hidden_, std::move(path));
    };
    for (std::string_view item : kDenied) hide(JoinPath(home, item));
    std::string ssh = JoinPath(home, ".ssh");
    for (const std::string& name : ListNames(OnHost(root, ssh))) {
      if (DeniedSshName(name)) hide(JoinPath(ssh, name));
    }
  }
  return rules;
}

bool DenyList::Concerns(const tree::DirtySet& dirty) const {
  if (dirty.everything() || !dirty.recursive.empty()) return true;
  auto concerned = [&](const std::string& directory) {
    for (const std::string& parent : options_.home_parents) {
      if (IsBelow(directory, parent)) {
        // /home, /home/u, /home/u/.ssh, /home/u/.config ...: near the top only.
        std::string_view below = Below(directory, parent);
        if (below.find('/') == std::string_view::npos) return true;
        std::string_view inside = below.substr(below.find('/') + 1);
        if (inside.front() == '.' || inside.starts_with("snap")) return true;
      }
    }
    for (const std::string& home : options_.homes) {
      if (directory == home) return true;
      std::string_view inside = Below(directory, home);
      if (!inside.empty() && (inside.front() == '.' || inside.starts_with("snap"))) return true;
    }
    return false;
  };
  return std::any_of(dirty.directories.begin(), dirty.directories.end(), concerned) ||
         std::any_of(dirty.names.begin(), dirty.names.end(), [&](const auto& d) { return concerned(d.first); });
}

}  // namespace vrun::home
