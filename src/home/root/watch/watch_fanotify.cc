// SPDX-License-Identifier: Apache-2.0
// The watcher for root: file system marks. Events identify the directory by file handle, which is resolved to a path
// here. Since Linux 5.17 they also identify the file: a file opened by a name that it has lost since still causes
// events under that name.
#include <fcntl.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "home/root/watch/watch_events.h"

namespace vrun::home {
namespace {

constexpr uint64_t kEvents =
    FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO | FAN_MODIFY | FAN_CLOSE_WRITE | FAN_ATTRIB | FAN_ONDIR;
constexpr size_t kMaxCached = 65536;
constexpr size_t kMaxSurvivors = 4096;

std::string FsidOf(const struct statfs& st) {
  static_assert(sizeof st.f_fsid == 8);
  return std::string(reinterpret_cast<const char*>(&st.f_fsid), sizeof st.f_fsid);
}

class FanotifyWatcher final : public EventWatcher {
 public:
  explicit FanotifyWatcher(const WatchOptions& options) : EventWatcher(options) {}
  ~FanotifyWatcher() override { StopThread(); }

  Status Open() {
    VRUN_TRY(Prepare());
    constexpr unsigned kFlags =
        FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS;
    for (const unsigned report : {FAN_REPORT_DFID_NAME_TARGET, FAN_REPORT_DFID_NAME}) {
      group_.Reset(::fanotify_init(kFlags | report, O_RDONLY | O_CLOEXEC | O_LARGEFILE));
      if (group_ || errno != EINVAL) break;
    }
    if (!group_) return ErrnoError("fanotify_init");
    VRUN_TRY(CanOpenHandles());
    for (const tree::Mount& mount : mounts_.mounts()) {
      if (Watched(mount)) VRUN_TRY(Mark(mount));
    }
    MarkCookie();
    StartThread();
    return {};
  }

  std::string_view kind() const override { return "fanotify"; }
  std::string reason() const override { return {}; }

 private:
  // A mount point of a file system.
  struct View {
    std::string point;  // in the root
    std::string host_point;
  };

  int queue() const override { return group_.get(); }

  // open_by_handle_at needs CAP_DAC_READ_SEARCH in the initial user namespace, which root in a container rarely has.
  Status CanOpenHandles() {
    alignas(struct file_handle) char buffer[sizeof(struct file_handle) + MAX_HANDLE_SZ] = {};
    auto* handle = reinterpret_cast<struct file_handle*>(buffer);
    handle->handle_bytes = MAX_HANDLE_SZ;
    int mount_id;
    if (::name_to_handle_at(root_fd_.get(), "", handle, &mount_id, AT_EMPTY_PATH) != 0)
      return ErrnoError("name_to_handle_at");
    const UniqueFd fd(::open_by_handle_at(root_fd_.get(), handle, O_PATH | O_CLOEXEC));
    if (!fd) return ErrnoError("open_by_handle_at");
    return {};
  }

  Status Mark(const tree::Mount& mount) {
    struct statfs st;
    if (::statfs(mount.host_point.c_str(), &st) != 0) return ErrnoError("statfs " + Escape(mount.host_point));
    const std::string fsid = FsidOf(st);
    if (!mount.read_only) {
      if (::fanotify_mark(group_.get(), FAN_MARK_ADD | FAN_MARK_FILESYSTEM, kEvents, AT_FDCWD,
                          mount.host_point.c_str()) != 0) {
        return ErrnoError("watch the " + Escape(mount.type) + " file system at " + Escape(mount.host_point));
      }
    }
    views_[fsid].push_back({mount.point, mount.host_point});
    return {};
  }

  // Its file system may not be part of the root.
  void MarkCookie() {
    if (!cookie_) return;
    struct statfs st;
    if (::statfs(cookie_.directory().c_str(), &st) == 0 && views_.contains(FsidOf(st))) return;
    if (::fanotify_mark(group_.get(), FAN_MARK_ADD | FAN_MARK_ONLYDIR, FAN_MODIFY | FAN_ATTRIB | FAN_EVENT_ON_CHILD,
                        AT_FDCWD, cookie_.directory().c_str()) != 0) {
      LogWarning("watch: no cookie in {}: {}", Escape(cookie_.directory()), std::strerror(errno));
      cookie_.Disable();
    }
  }

  void MountsChanged(const tree::MountTable&) override {
    views_.clear();
    cache_.clear();
    survivors_.clear();
    unwatched_.clear();
    for (const tree::Mount& mount : mounts_.mounts()) {
      if (!Watched(mount)) continue;
      if (auto status = Mark(mount); !status) {
        LogWarning("watch: {}; each command reads this file system again", status.error().message());
        unwatched_.push_back(mount.point);
      }
    }
  }

  bool ReadBatch() override {
    for (const std::string& point : unwatched_) log_.Recursive(point);
    const ssize_t n = ::read(group_.get(), buffer_, sizeof buffer_);
    if (n < 0) {
      // Any error except "empty" or a signal means that an event was lost.
      if (errno != EAGAIN && errno != EINTR) log_.Everything();
      return errno == EINTR;
    }
    // Events are not aligned.
    std::string_view all(buffer_, static_cast<size_t>(n));
    struct fanotify_event_metadata event;
    while (all.size() >= sizeof event) {
      std::memcpy(&event, all.data(), sizeof event);
      if (event.event_len < sizeof event || event.metadata_len < sizeof event || event.metadata_len > event.event_len ||
          event.event_len > all.size()) {
        break;
      }
      if (event.vers != FANOTIFY_METADATA_VERSION || (event.mask & FAN_Q_OVERFLOW) || OverflowIsDue()) {
        cache_.clear();
        log_.Everything();
      } else {
        OnEvent(event.mask, all.substr(0, event.event_len).substr(event.metadata_len));
      }
      all.remove_prefix(event.event_len);
    }
    return n > 0;
  }

  void OnEvent(uint64_t mask, std::string_view records) {
    struct fanotify_event_info_header header;
    std::string_view name, target;
    while (records.size() >= sizeof header) {
      std::memcpy(&header, records.data(), sizeof header);
      if (header.len < sizeof header || header.len > records.size()) break;
      if (header.info_type == FAN_EVENT_INFO_TYPE_DFID_NAME) name = records.substr(0, header.len);
      if (header.info_type == FAN_EVENT_INFO_TYPE_FID) target = records.substr(0, header.len);
      records.remove_prefix(header.len);
    }
    if (!name.empty()) OnName(mask, name);
    if (!target.empty() && (mask & FAN_ONDIR) == 0) OnTarget(target, name.empty());
  }

  // fanotify_event_info_fid without a name. `lost`: the file may have lost a name (a changed link count is reported
  // without a name, and so are later changes under the lost name).
  void OnTarget(std::string_view info, bool lost) {
    if (!lost && survivors_.empty()) return;
    const std::string key(info.substr(sizeof(struct fanotify_event_info_header)));
    auto known = survivors_.find(key);
    if (known == survivors_.end()) {
      const uint64_t ino = lost ? InodeOf(key) : 0;
      if (ino == 0) return;
      if (survivors_.size() >= kMaxSurvivors) survivors_.clear();
      known = survivors_.emplace(key, ino).first;
    }
    log_.Inode(known->second);
  }

  // The inode of a file, given by fsid and handle, that still has a name; 0: none.
  uint64_t InodeOf(const std::string& key) {
    const auto views = views_.find(key.substr(0, 8));
    struct stat st {};
    if (views == views_.end()) return 0;
    const UniqueFd fd = OpenByHandle(views->second.front(), std::string_view(key).substr(8));
    return fd && ::fstat(fd.get(), &st) == 0 && st.st_nlink > 0 ? st.st_ino : 0;
  }

  // Invalid, with errno: the file is gone or not accessible. The mount is opened each time, since an open descriptor
  // would prevent unmounting.
  static UniqueFd OpenByHandle(const View& view, std::string_view handle_bytes) {
    alignas(struct file_handle) char buffer[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    if (handle_bytes.size() < sizeof(struct file_handle) || handle_bytes.size() > sizeof buffer) {
      errno = EINVAL;
      return UniqueFd();
    }
    std::memcpy(buffer, handle_bytes.data(), handle_bytes.size());
    const UniqueFd mount(::open(view.host_point.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!mount) errno = ENOENT;  // then none of it is in the tree
    if (!mount) return UniqueFd();
    return UniqueFd(
        ::open_by_handle_at(mount.get(), reinterpret_cast<struct file_handle*>(buffer), O_PATH | O_CLOEXEC));
  }

  // fanotify_event_info_fid: header, fsid (8 bytes), file_handle (bytes, type, handle), name.
  void OnName(uint64_t mask, std::string_view info) {
    constexpr size_t kHandleAt = sizeof(struct fanotify_event_info_header) + 8;
    if (info.size() < kHandleAt + sizeof(struct file_handle)) return log_.Everything();
    uint32_t handle_bytes;
    std::memcpy(&handle_bytes, info.data() + kHandleAt, sizeof handle_bytes);
    const size_t name_at = kHandleAt + sizeof(struct file_handle) + handle_bytes;
    if (handle_bytes > MAX_HANDLE_SZ || name_at > info.size()) return log_.Everything();
    std::string_view name = info.substr(name_at);
    name = name.substr(0, name.find('\0'));
    if (cookie_ && name == cookie_.name()) return SawCookie();

    const bool directory = mask & FAN_ONDIR;
    // A moved directory changes all paths below it. (The handle of a removed one is not reused.)
    if (directory && (mask & (FAN_MOVED_FROM | FAN_MOVED_TO))) cache_.clear();
    const bool fresh = directory && (mask & (FAN_CREATE | FAN_MOVED_TO));
    constexpr size_t kKeyAt = sizeof(struct fanotify_event_info_header);
    for (const std::string& path : Resolve(info.substr(kKeyAt, name_at - kKeyAt))) {
      if (name.empty() || name == ".") {
        log_.Own(path);
        continue;
      }
      log_.Name(path, name);
      if (fresh) log_.Recursive(tree::JoinPath(path, name));
    }
  }

  // The paths in the root of a directory, given by fsid and handle; empty if it is outside, excluded or gone. A wrong
  // path (the directory is covered by a mount, or outside of what a bind mount shows) does no harm: the rescan reads
  // what is there, and one useless look is cheaper than checking each time.
  const std::vector<std::string>& Resolve(std::string_view key) {
    std::string text(key);
    if (auto cached = cache_.find(text); cached != cache_.end()) return cached->second;
    if (cache_.size() >= kMaxCached) cache_.clear();
    std::vector<std::string> paths;
    if (auto views = views_.find(text.substr(0, 8)); views != views_.end()) {
      for (const View& view : views->second) ResolveIn(view, key.substr(8), &paths);
    }
    return cache_.emplace(std::move(text), std::move(paths)).first->second;
  }

  void ResolveIn(const View& view, std::string_view handle_bytes, std::vector<std::string>* paths) {
    const UniqueFd fd = OpenByHandle(view, handle_bytes);
    if (!fd) {
      // ESTALE: removed, which its parent's event reported. Otherwise we cannot tell what changed.
      if (errno != ESTALE && errno != ENOENT) log_.Everything();
      return;
    }
    char link[64], target[PATH_MAX];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd.get());
    const ssize_t n = ::readlink(link, target, sizeof target);
    if (n < 0 || static_cast<size_t>(n) == sizeof target) return log_.Everything();
    const std::string path(target, static_cast<size_t>(n));
    if (!tree::IsBelow(path, view.host_point)) return;
    const std::string below = path.substr(view.host_point == "/" ? 0 : view.host_point.size());
    std::string in_root = tree::CleanPath(view.point + "/" + below);
    if (!rules_.Excludes(in_root)) paths->push_back(std::move(in_root));
  }

  UniqueFd group_;
  std::unordered_map<std::string, std::vector<View>> views_;         // by fsid
  std::unordered_map<std::string, std::vector<std::string>> cache_;  // fsid and handle -> paths in the root
  std::unordered_map<std::string, uint64_t> survivors_;  // fsid and handle -> inode number, for files that lost a name
  std::vector<std::string> unwatched_;
  alignas(struct fanotify_event_metadata) char buffer_[65536];
};

}  // namespace

Result<std::unique_ptr<Watcher>> StartFanotify(const WatchOptions& options) {
  auto watcher = std::make_unique<FanotifyWatcher>(options);
  if (auto status = watcher->Open(); !status) return std::move(status).error();
  return std::unique_ptr<Watcher>(std::move(watcher));
}

}  // namespace vrun::home
