// SPDX-License-Identifier: Apache-2.0
#include "home/root/deny_list.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "base/escape.h"
#include "home/root/secrets/own_list.h"
#include "tree/rules.h"
#include "tree/scan/mounts.h"

namespace vrun::home {
namespace {

using tree::IsBelow;
using tree::JoinPath;

// Relative to a home directory.
constexpr std::string_view kDenied[] = {
    // clouds and clusters
    ".aws", ".azure", ".boto", ".config/doctl", ".config/gcloud", ".config/rclone", ".kube", ".oci", ".passwd-s3fs",
    ".s3cfg", ".terraform.d/credentials.tfrc.json", ".vault-token",
    // registries, hubs and forges
    ".cache/huggingface/stored_tokens", ".cache/huggingface/token", ".cargo/credentials", ".cargo/credentials.toml",
    ".config/containers/auth.json", ".config/gh", ".config/git/credentials", ".config/glab-cli", ".config/hub",
    ".config/kaggle", ".config/pypoetry/auth.toml", ".docker/config.json", ".gem/credentials", ".git-credentials",
    ".huggingface/token", ".kaggle", ".netrc", ".pypirc", "_netrc",
    // databases
    ".my.cnf", ".mylogin.cnf", ".pgpass",
    // keyrings
    ".age", ".config/sops", ".gnome2/keyrings", ".gnupg", ".local/share/keyrings", ".local/share/kwalletd",
    ".password-store",
    // browser profiles
    ".mozilla", ".librewolf", ".config/google-chrome", ".config/google-chrome-beta", ".config/google-chrome-unstable",
    ".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge", ".config/vivaldi", ".config/opera",
    "snap/firefox", "snap/chromium", ".var/app/org.mozilla.firefox", ".var/app/com.google.Chrome"};

// The machine's own.
constexpr std::string_view kSystem[] = {"/etc/shadow",       "/etc/shadow-",
                                        "/etc/gshadow",      "/etc/gshadow-",
                                        "/etc/krb5.keytab",  "/etc/munge/munge.key",
                                        "/etc/ssl/private",  "/etc/letsencrypt",
                                        "/etc/wireguard",    "/etc/NetworkManager/system-connections",
                                        "/etc/kubernetes",   "/etc/rancher",
                                        "/etc/vrun",         "/var/lib/kubelet",
                                        "/var/lib/tailscale"};
constexpr std::string_view kSsh = "/etc/ssh";

// What ssh asks for by default.
constexpr std::string_view kSshKeys[] = {"id_rsa",        "id_ecdsa", "id_ecdsa_sk", "id_ed25519",
                                         "id_ed25519_sk", "id_xmss",  "id_dsa"};

bool HostKeyName(std::string_view name) { return name.starts_with("ssh_host_") && name.ends_with("_key"); }

// Linked() looks at so many files of a denied directory: keys are few, a browser's cache is not a key.
constexpr int kMostLooked = 2000;

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
  constexpr std::string_view kOfUser = ".ssh/";
  if (relative.starts_with(kOfUser)) {
    std::string_view name = relative.substr(kOfUser.size());
    name = name.substr(0, name.find('/'));
    if (DeniedSshName(name)) return kOfUser.size() + name.size();
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

// Calls add(name) for each other name in the root that bind mounts give to `path`, or to a part of it.
template <typename Add>
void ForEachAlias(const std::vector<tree::Mount>& mounts, const std::string& path, Add add) {
  const tree::Mount* on = nullptr;
  for (const tree::Mount& m : mounts) {
    if (IsBelow(path, m.point) && (on == nullptr || m.point.size() >= on->point.size())) on = &m;
  }
  if (on == nullptr) return;
  const auto join = [](const std::string& directory, std::string_view below) {
    return below.empty() ? directory : JoinPath(directory, below);
  };
  // The mount's own point has nothing below.
  const std::string inside = join(on->fs_root, path == on->point ? std::string_view() : Below(path, on->point));
  for (const tree::Mount& m : mounts) {
    if (&m == on || m.dev != on->dev) continue;
    if (IsBelow(inside, m.fs_root)) {
      add(join(m.point, inside == m.fs_root ? std::string_view() : Below(inside, m.fs_root)));
    } else if (IsBelow(m.fs_root, inside)) {
      add(m.point);
    }
  }
}

void AddUnique(std::vector<std::string>* list, std::string item) {
  if (std::find(list->begin(), list->end(), item) == list->end()) list->push_back(std::move(item));
}

// Calls each(path, st) for the regular files at these paths, and, if wanted, for those below the directories among
// them.
void ForEachIn(const std::string& root, const std::vector<std::string>& paths, bool directories,
               const std::function<void(const std::string& path, const struct stat& st)>& each) {
  for (const std::string& path : paths) {
    struct stat st;
    const std::string top = OnHost(root, path);
    if (::lstat(top.c_str(), &st) != 0) continue;
    if (S_ISREG(st.st_mode)) each(top, st);
    if (!directories || !S_ISDIR(st.st_mode)) continue;
    int left = kMostLooked;
    std::vector<std::string> level = {top};
    while (!level.empty() && left > 0) {
      const std::string directory = std::move(level.back());
      level.pop_back();
      for (const std::string& name : ListNames(directory)) {
        std::string child = JoinPath(directory, name);
        if (--left < 0 || ::lstat(child.c_str(), &st) != 0) continue;
        if (S_ISREG(st.st_mode)) each(child, st);
        if (S_ISDIR(st.st_mode)) level.push_back(std::move(child));
      }
    }
  }
}

constexpr std::string_view kPrivate = ": a private key or credential: not served (see --expose)";

}  // namespace

Error PrivateFile(std::string_view path) { return Error(Code::kDenied, Escape(path) + std::string(kPrivate)); }

bool IsPrivateFile(const Error& error) { return error.code() == Code::kDenied && error.message().ends_with(kPrivate); }

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
  const std::string_view key = Below(path, kSsh);
  if (HostKeyName(key)) {
    *denied = path;
    return true;
  }
  for (const auto* list : {&targets_, &listed_}) {
    for (const std::string& item : *list) {
      if (!IsBelow(path, item)) continue;
      *denied = path.substr(0, item.size());
      return true;
    }
  }
  return false;
}

bool DenyRules::Opened(std::string_view path) const {
  return std::any_of(opened_.begin(), opened_.end(), [&](const std::string& o) { return IsBelow(path, o); });
}

bool DenyRules::Denies(std::string_view path, const std::vector<std::string>& exposed) const {
  for (const std::string& own : own_) {
    if (IsBelow(path, own)) return true;
  }
  std::string_view denied;
  if (!DeniedByPattern(path, &denied) || Opened(path)) return false;
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
  for (const auto* list : {&own_, &targets_, &listed_}) {
    if (std::any_of(list->begin(), list->end(), there)) return true;
  }
  if (IsBelow(kSsh, path)) {
    for (const std::string& name : ListNames(OnHost(root_, kSsh))) {
      if (there(JoinPath(kSsh, name))) return true;
    }
  }
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
  std::vector<std::string> served = exposed;
  served.insert(served.end(), opened_.begin(), opened_.end());
  for (const std::string& path : hidden_) {
    std::vector<std::string> inside;
    bool open = false;
    for (const std::string& e : served) {
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

std::vector<std::string> DenyRules::Missable(size_t most) const {
  const auto in = [](const std::vector<std::string>& places, const std::string& path) {
    return std::any_of(places.begin(), places.end(), [&](const std::string& p) { return IsBelow(path, p); });
  };
  std::vector<std::string> names;
  const auto add = [&](const std::string& path) {
    const bool others = (in(homes_, path) || in(home_parents_, path)) && !in(own_homes_, path);
    if (names.size() < most && !others && !in(own_, path)) names.push_back(path);
  };
  for (const std::string& home : own_homes_) {
    for (const std::string_view key : kSshKeys) {
      const std::string path = JoinPath(JoinPath(home, ".ssh"), key);
      if (std::find(hidden_.begin(), hidden_.end(), path) == hidden_.end()) add(path);
    }
  }
  for (const std::string& path : hidden_) add(path);
  return names;
}

bool DenyRules::Misses(const std::string& path) const {
  return Denies(path) && ::faccessat(AT_FDCWD, OnHost(root_, path).c_str(), R_OK, AT_EACCESS) == 0;
}

std::vector<FileId> DenyRules::Linked() const {
  std::vector<FileId> linked;
  ForEachIn(root_, hidden_, /*directories=*/true, [&](const std::string&, const struct stat& st) {
    if (st.st_nlink > 1) linked.push_back({st.st_dev, st.st_ino});
  });
  return linked;
}

void DenyRules::ForEachPrivate(bool directories,
                               const std::function<void(const std::string& path, const struct stat& st)>& each) const {
  ForEachIn(root_, built_in_, directories, each);
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
  rules->writes_ = options_.writes;
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
  rules->own_homes_ = homes;
  const size_t own_count = homes.size();
  for (const std::string& parent : options_.home_parents) {
    for (const std::string& name : ListNames(OnHost(root, parent))) AddUnique(&homes, JoinPath(parent, name));
  }
  const auto mounts = tree::MountTable::Read(root);
  const auto also = [&](const std::string& path, const auto& add) {
    if (mounts) ForEachAlias(mounts->mounts(), path, add);
  };
  for (size_t i = homes.size(); i-- > 0;) {
    const auto add = [&](const std::string& other) {
      if (other.empty() || other == "/" || other == homes[i]) return;
      AddUnique(&rules->homes_, other);
      AddUnique(&homes, other);
      if (i < own_count) AddUnique(&rules->own_homes_, other);
    };
    const std::string home = homes[i];
    add(Resolve(root, home));
    also(home, add);
  }
  const OwnList admin = ReadOwnList(options_.admin_list, homes), user = ReadOwnList(options_.user_list, homes);
  for (const std::string& path : admin.withheld) AddUnique(&rules->own_, path);
  for (const auto* list : {&admin, &user}) {
    for (const std::string& path : list->opened) AddUnique(&rules->opened_, path);
  }
  const auto hide = [&](std::string path) {
    struct stat st;
    if (::lstat(OnHost(root, path).c_str(), &st) == 0) {
      std::string real = Resolve(root, path);
      // A parent may be a symlink too, so check not only this name. Never hide a whole home directory.
      bool whole_home = std::any_of(homes.begin(), homes.end(), [&](const std::string& h) { return IsBelow(h, real); });
      const auto target = [&](const std::string& other) {
        AddUnique(&rules->targets_, other);
        AddUnique(&rules->hidden_, other);
      };
      if (!real.empty() && real != path && !whole_home) target(real);
      also(path, target);
    }
    AddUnique(&rules->hidden_, std::move(path));
  };
  for (const std::string& home : homes) {
    for (std::string_view item : kDenied) hide(JoinPath(home, item));
    std::string ssh = JoinPath(home, ".ssh");
    for (const std::string& name : ListNames(OnHost(root, ssh))) {
      if (DeniedSshName(name)) hide(JoinPath(ssh, name));
    }
  }
  for (const std::string_view item : kSystem) {
    const std::string path(item);
    AddUnique(&rules->listed_, path);
    hide(path);
  }
  for (const std::string& name : ListNames(OnHost(root, kSsh))) {
    if (HostKeyName(name)) hide(JoinPath(kSsh, name));
  }
  rules->built_in_ = rules->hidden_;
  for (const std::string& path : user.withheld) {
    AddUnique(&rules->listed_, path);
    hide(path);
  }
  return rules;
}

bool DenyList::Concerns(const tree::DirtySet& dirty) const {
  if (dirty.everything() || !dirty.recursive.empty()) return true;
  auto concerned = [&](const std::string& directory) {
    if (directory == kSsh) return true;
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
