// SPDX-License-Identifier: Apache-2.0
// The watcher for ordinary users: one inotify watch per directory of the root.
#include <dirent.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>

#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "home/root/watch/watch_events.h"
#include "tree/scan/listing.h"

namespace vrun::home {
namespace {

constexpr uint32_t kInotifyEvents =
    IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_ONLYDIR;

class InotifyWatcher final : public EventWatcher {
 public:
  InotifyWatcher(const WatchOptions& options, std::string reason)
      : EventWatcher(options), reason_(std::move(reason)), lazy_(options.lazy) {}
  ~InotifyWatcher() override { StopThread(); }

  Status Open() {
    VRUN_TRY(Prepare());
    VRUN_TRY(Build());
    StartThread();
    return {};
  }

  // The lock is not held for long, since barriers need it.
  void Cover(const std::string& path, bool below) override {
    std::vector<Place> todo;
    {
      MutexLock lock(mutex_);
      if (blind_ || !lazy_) return;
      int above = -1, at = root_wd_;
      std::string last;
      for (std::string_view rest = path; !rest.empty();) {
        const size_t end = std::min(rest.find('/'), rest.size());
        last = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        if (last.empty()) continue;
        above = at;
        if (!ChildOf(above, last)) AddOrGiveUp({above, last}, nullptr);
        const auto child = blind_ ? std::nullopt : ChildOf(above, last);
        if (!child) return;
        at = *child;
      }
      if (!below) return CheckBound();
      todo.emplace_back(above, last);
    }
    while (!todo.empty()) {
      {
        MutexLock lock(mutex_);
        for (int i = 0; i < kCoveredAtOnce && !todo.empty(); ++i) {
          const Place place = std::move(todo.back());
          todo.pop_back();
          if (blind_ || !lazy_) return;
          AddOrGiveUp(place, &todo);
        }
        CheckBound();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  std::string_view kind() const override { return gave_up_ ? "rescan" : "inotify"; }
  std::string reason() const override {
    MutexLock lock(mutex_);
    return reason_;
  }

 private:
  // A watched directory. Stored flat, by watch descriptor, since a tree may be deeper than the stack.
  struct Dir {
    int parent = -1;  // watch of the parent, -1 for the root
    std::string name;
    std::map<std::string, int> children;  // watched sub-directories
    std::vector<std::string> aliases;     // other places where the same directory is mounted
  };

  using Place = std::pair<int, std::string>;  // watch of the parent, -1 for the root; name in it
  static constexpr int kCoveredAtOnce = 64;

  int queue() const override { return queue_.get(); }

  std::optional<int> ChildOf(int above, const std::string& name) const {
    const auto dir = dirs_.find(above);
    if (dir == dirs_.end()) return std::nullopt;
    const auto child = dir->second.children.find(name);
    return child == dir->second.children.end() ? std::nullopt : std::optional(child->second);
  }

  void AddOrGiveUp(const Place& place, std::vector<Place>* below) {
    if (auto status = Add(place.first, place.second, below); !status) GiveUp(status.error());
  }

  // A directory that is mounted at two places is watched as one, with everything below: no longer lazily.
  void CheckBound() {
    if (!blind_ && lazy_ && std::exchange(bound_, false)) Overflow();
  }

  Status Build() {
    queue_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (!queue_) return ErrnoError("inotify_init");
    dirs_.clear();
    root_wd_ = cookie_wd_ = -1;
    if (cookie_) {
      cookie_wd_ = ::inotify_add_watch(queue_.get(), cookie_.directory().c_str(), IN_MODIFY | IN_ATTRIB | IN_ONLYDIR);
      if (cookie_wd_ < 0) return LimitError("watch " + Escape(cookie_.directory()));
    }
    return lazy_ ? Add(-1, "", nullptr) : AddTree(-1, "");
  }

  Error LimitError(const std::string& what) {
    if (errno != ENOSPC) return ErrnoError(what);
    return Error(Code::kExhausted,
                 what + ": the user's limit of inotify watches is reached: raise fs.inotify.max_user_watches");
  }

  std::string PathOf(int wd) const {
    std::vector<const std::string*> names;
    size_t length = 0;
    for (auto at = dirs_.find(wd); at != dirs_.end() && at->second.parent >= 0; at = dirs_.find(at->second.parent)) {
      names.push_back(&at->second.name);
      length += at->second.name.size() + 1;
    }
    if (names.empty()) return "/";
    std::string path;
    path.reserve(length);
    for (auto name = names.rbegin(); name != names.rend(); ++name) (path += '/') += **name;
    return path;
  }

  // Watches a directory and everything below.
  Status AddTree(int parent, const std::string& name) {
    std::vector<Place> todo{{parent, name}};
    while (!todo.empty()) {
      const Place place = std::move(todo.back());
      todo.pop_back();
      VRUN_TRY(Add(place.first, place.second, &todo));
    }
    return {};
  }

  // Watches a directory; adds those in it to `below`, unless that is null. The watch is set before the listing, so a
  // new sub-directory is either listed or announced. Missing or unreadable directories are skipped: the parent reports
  // when that changes.
  Status Add(int parent, const std::string& name, std::vector<Place>* below) {
    if (parent >= 0 && !dirs_.contains(parent)) return {};
    const std::string path = parent < 0 ? "/" : tree::JoinPath(PathOf(parent), name);
    if (parent >= 0 && (rules_.Excludes(path) || mounts_.Excluded(path))) return {};
    const int opened = tree::OpenDirectory(root_fd_.get(), path);
    if (opened < 0) {
      if (tree::OutOfResources(-opened)) return ErrnoError(-opened, "watch " + Escape(path));
      return {};
    }
    const UniqueFd fd(opened);
    if (options_.simulate_watch_limit != 0 && dirs_.size() >= options_.simulate_watch_limit) {
      errno = ENOSPC;
      return LimitError("watch " + Escape(path));
    }
    const int wd =
        ::inotify_add_watch(queue_.get(), ("/proc/self/fd/" + std::to_string(fd.get())).c_str(), kInotifyEvents);
    if (wd < 0) {
      if (errno == ENOSPC || tree::OutOfResources(errno)) return LimitError("watch " + Escape(path));
      return {};
    }
    tree::Names names;
    if (!Register(wd, parent, name, path, fd.get()) || below == nullptr || names.Read(fd.get()) != 0) return {};
    for (size_t i = 0; i < names.size(); ++i) {
      if (IsDirectory(fd.get(), names, i)) below->emplace_back(wd, names.at(i));
    }
    return {};
  }

  static bool IsDirectory(int fd, const tree::Names& names, size_t i) {
    if (names.type(i) != DT_UNKNOWN) return names.type(i) == DT_DIR;
    struct stat st;
    return ::fstatat(fd, names.at(i), &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0 && S_ISDIR(st.st_mode);
  }

  // Assigns the watch to its place. False: the place is already watched with everything below, or is a second name for
  // it.
  bool Register(int wd, int parent, const std::string& name, const std::string& path, int fd) {
    if (auto known = dirs_.find(wd); known != dirs_.end()) {
      if (known->second.parent == parent && known->second.name == name)
        return true;  // list it again: it may have reappeared
      struct stat here, there;
      const int other = tree::OpenDirectory(root_fd_.get(), PathOf(wd));
      const UniqueFd other_fd(std::max(-1, other));
      if (other_fd && ::fstat(fd, &here) == 0 && ::fstat(other_fd.get(), &there) == 0 && here.st_ino == there.st_ino &&
          here.st_dev == there.st_dev) {
        // A bind mount: one inode, one watch, two places. The same happens for everything below.
        bound_ = true;
        auto& aliases = known->second.aliases;
        if (std::find(aliases.begin(), aliases.end(), path) == aliases.end()) aliases.push_back(path);
        AliasBelow(wd, path);
        return false;
      }
      Forget(wd, /*keep_watch=*/wd);  // it was moved here, and that event is still unread
    }
    if (parent >= 0) {
      auto above = dirs_.find(parent);
      if (above == dirs_.end()) {
        ::inotify_rm_watch(queue_.get(), wd);
        return false;
      }
      auto [child, inserted] = above->second.children.emplace(name, wd);
      if (!inserted) {
        const int replaced = std::exchange(child->second, wd);
        dirs_.at(replaced).parent = -2;  // so that it does not remove our place too
        Forget(replaced, -1);
      }
    } else {
      root_wd_ = wd;
    }
    dirs_[wd] = Dir{parent, name, {}, {}};
    return true;
  }

  void AliasBelow(int wd, const std::string& path) {
    std::vector<std::pair<int, std::string>> todo{{wd, path}};
    while (!todo.empty()) {
      auto [at, alias] = std::move(todo.back());
      todo.pop_back();
      for (const auto& [name, child] : dirs_.at(at).children) {
        const std::string below = tree::JoinPath(alias, name);
        auto& aliases = dirs_.at(child).aliases;
        if (std::find(aliases.begin(), aliases.end(), below) == aliases.end()) aliases.push_back(below);
        todo.emplace_back(child, below);
      }
    }
  }

  // Drops a directory and everything below it.
  void Forget(int wd, int keep_watch) {
    auto top = dirs_.find(wd);
    if (top == dirs_.end()) return;
    if (auto above = dirs_.find(top->second.parent); above != dirs_.end())
      above->second.children.erase(top->second.name);
    std::vector<int> todo{wd};
    while (!todo.empty()) {
      const int at = todo.back();
      todo.pop_back();
      auto dir = dirs_.find(at);
      if (dir == dirs_.end()) continue;
      for (const auto& [name, child] : dir->second.children) todo.push_back(child);
      dirs_.erase(dir);
      if (at != keep_watch) ::inotify_rm_watch(queue_.get(), at);
    }
  }

  void GiveUp(const Error& error) {
    LogWarning("watch: no change events, each command reads the whole root again: {}", error.message());
    reason_ = error.message();
    gave_up_ = true;
    blind_ = true;
    queue_.Reset();
    dirs_.clear();
    Wake();
  }

  void Overflow() {
    LogInfo("watch: events were lost; watching the root from the start");
    lazy_ = false;
    log_.Everything();
    if (auto status = Build(); !status) return GiveUp(status.error());
    // Our thread waits on the old queue, and the cookie's event was lost with it.
    Wake();
    SawCookie();
  }

  void MountsChanged(const tree::MountTable& old_table) override {
    // Watches below a mount point belong to the directories under the mount.
    auto again = [this](const tree::Mount& mount) {
      if (mount.point == "/") return;
      const size_t slash = mount.point.rfind('/');
      const int parent = FindDir(slash == 0 ? "/" : mount.point.substr(0, slash));
      if (parent < 0) return;
      const std::string name = mount.point.substr(slash + 1);
      auto child = dirs_.at(parent).children.find(name);
      if (child != dirs_.at(parent).children.end()) Forget(child->second, -1);
      if (auto status = AddTree(parent, name); !status) GiveUp(status.error());
    };
    for (const tree::Mount& mount : old_table.mounts()) {
      if (!blind_ && !Contains(mounts_, mount)) again(mount);
    }
    for (const tree::Mount& mount : mounts_.mounts()) {
      if (!blind_ && !Contains(old_table, mount)) again(mount);
    }
  }

  static bool Contains(const tree::MountTable& table, const tree::Mount& mount) {
    return std::find(table.mounts().begin(), table.mounts().end(), mount) != table.mounts().end();
  }

  int FindDir(std::string_view path) const {
    int wd = root_wd_;
    while (!path.empty()) {
      const size_t end = std::min(path.find('/'), path.size());
      const std::string component(path.substr(0, end));
      path.remove_prefix(std::min(end + 1, path.size()));
      if (component.empty()) continue;
      auto dir = dirs_.find(wd);
      if (dir == dirs_.end()) return -1;
      auto child = dir->second.children.find(component);
      if (child == dir->second.children.end()) return -1;
      wd = child->second;
    }
    return wd;
  }

  bool ReadBatch() override {
    const ssize_t n = ::read(queue_.get(), buffer_, sizeof buffer_);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) log_.Everything();
      return errno == EINTR;
    }
    for (ssize_t at = 0; at < n && !blind_;) {
      const auto* event = reinterpret_cast<const struct inotify_event*>(buffer_ + at);
      at += static_cast<ssize_t>(sizeof *event + event->len);
      if ((event->mask & IN_Q_OVERFLOW) || OverflowIsDue()) {
        Overflow();
        return false;  // the rest of the batch is about removed watches
      }
      OnEvent(*event);
    }
    return n > 0;
  }

  void OnEvent(const struct inotify_event& event) {
    const std::string name(event.len > 0 ? event.name : "");
    if (!name.empty() && name == cookie_.name()) return SawCookie();
    auto dir = dirs_.find(event.wd);
    if (dir == dirs_.end()) return;
    if (event.mask & IN_IGNORED) return Forget(event.wd, event.wd);
    std::vector<std::string> paths = dir->second.aliases;
    paths.push_back(PathOf(event.wd));
    const bool directory = event.mask & IN_ISDIR;
    const bool fresh = directory && (event.mask & (IN_CREATE | IN_MOVED_TO));
    for (const std::string& path : paths) {
      if (event.mask & IN_UNMOUNT) {
        log_.Recursive(path);
      } else if (name.empty()) {
        log_.Own(path);
      } else {
        log_.Name(path, name);
        if (fresh) log_.Recursive(tree::JoinPath(path, name));
      }
    }
    if (!directory || name.empty()) return;
    auto child = dir->second.children.find(name);
    const bool watched = child != dir->second.children.end();
    if (watched && (event.mask & (IN_MOVED_FROM | IN_DELETE))) Forget(child->second, -1);
    // After a change of permissions it may be readable now.
    if (fresh || ((event.mask & IN_ATTRIB) && !watched)) {
      if (auto status = AddTree(event.wd, name); !status) GiveUp(status.error());
    }
  }

  std::string reason_;  // set together with gave_up_, under mutex_
  std::atomic<bool> gave_up_ = false;
  bool lazy_;           // guarded by mutex_, as bound_
  bool bound_ = false;  // a directory has a second place
  UniqueFd queue_;
  int root_wd_ = -1;
  int cookie_wd_ = -1;
  std::unordered_map<int, Dir> dirs_;
  alignas(struct inotify_event) char buffer_[65536];
};

}  // namespace

Result<std::unique_ptr<Watcher>> StartInotify(const WatchOptions& options, std::string reason) {
  auto watcher = std::make_unique<InotifyWatcher>(options, std::move(reason));
  if (auto status = watcher->Open(); !status) return std::move(status).error();
  return std::unique_ptr<Watcher>(std::move(watcher));
}

}  // namespace vrun::home
