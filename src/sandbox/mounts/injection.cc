// SPDX-License-Identifier: Apache-2.0
#include "sandbox/mounts/injection.h"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <string_view>

#include "base/command_path.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun::sandbox {
namespace {

constexpr std::string_view kProc = "/proc/";

bool IsBelow(std::string_view path, std::string_view directory) {
  return path.size() > directory.size() && path.substr(0, directory.size()) == directory &&
         path[directory.size()] == '/';
}

Status CheckPath(const std::string& path) {
  if (path.size() > 1 && path[0] == '/' && path.back() != '/' && path.find('\0') == std::string::npos &&
      (path + "/").find("/../") == std::string::npos && path.find("//") == std::string::npos) {
    return {};
  }
  return Error(Code::kInvalid, "a path that is added to the root: " + Escape(path) + ": not a plain absolute path");
}

// A file or directory of the node. Its own links may be followed, because only its root can change them.
Result<UniqueFd> OpenSource(const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_NO_MAGICLINKS;
  UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how)));
  if (!fd) return ErrnoError("open " + Escape(path) + " of the node");
  return fd;
}

class Injector {
 public:
  Injector(const InjectionPlaces& places, std::vector<PreparedMount>* mounts, std::vector<ProcMount>* proc_mounts)
      : places_(places), mounts_(mounts), proc_mounts_(proc_mounts) {
    own_.push_back({"/dev", places.dev});
    own_.push_back({"/run", places.run});
  }

  Status AddDevice(const Injection::Device& device);
  Status AddMount(const Injection::Mount& mount);
  Status AddFile(const Injection::File& file);
  Status AddLink(const Injection::Link& link);
  Status Finish();

 private:
  // A file system that is only the sandbox's: no link in it was made by anybody else.
  struct Own {
    std::string path;
    int fd;
  };
  struct Place {
    int directory;
    std::string path;  // relative to it
    bool own;
  };
  Place PlaceOf(const std::string& path) const;
  bool MayCreate(const Place& place) const { return place.own || places_.may_create; }
  Result<UniqueFd> Open(const Place& place, int flags) const;
  Result<UniqueFd> OpenParent(const Place& place, std::string* name) const;
  Result<UniqueFd> MakeDirectory(const Place& place) const;
  Status MakeFile(const Place& place, const std::string& content, uint32_t mode) const;
  // An empty descriptor: the target does not exist and is optional.
  Result<UniqueFd> Target(const std::string& path, bool directory, bool optional) const;
  Result<UniqueFd> EmptyFileSystem(const std::string& target, bool read_only);

  const InjectionPlaces& places_;
  std::vector<PreparedMount>* mounts_;
  std::vector<ProcMount>* proc_mounts_;
  std::vector<Own> own_;
  std::vector<UniqueFd> kept_;  // the mounts that own_ refers to
  std::vector<int> read_only_;  // tmpfs that become so at the end
  int next_file_ = 0;
};

Injector::Place Injector::PlaceOf(const std::string& path) const {
  const Own* best = nullptr;
  for (const Own& own : own_) {
    if (IsBelow(path, own.path) && (best == nullptr || own.path.size() > best->path.size())) best = &own;
  }
  if (best == nullptr) return {places_.root, path.substr(1), false};
  return {best->fd, path.substr(best->path.size() + 1), true};
}

Result<UniqueFd> Injector::Open(const Place& place, int flags) const {
  if (!place.own) return OpenInRoot(place.directory, place.path, flags);
  return OpenInRoot(place.directory, place.path, flags, RESOLVE_NO_SYMLINKS);
}

// The directory that has the last name of the path; missing ones are made.
Result<UniqueFd> Injector::OpenParent(const Place& place, std::string* name) const {
  const size_t slash = place.path.rfind('/');
  *name = slash == std::string::npos ? place.path : place.path.substr(slash + 1);
  if (slash == std::string::npos) return OpenInRoot(place.directory, ".", O_DIRECTORY);
  return MakeDirectory({place.directory, place.path.substr(0, slash), place.own});
}

Result<UniqueFd> Injector::MakeDirectory(const Place& place) const {
  Result<UniqueFd> there = Open(place, O_DIRECTORY);
  if (there || there.error().error_number() != ENOENT) return there;
  std::string name;
  VRUN_ASSIGN(const UniqueFd parent, OpenParent(place, &name));
  struct stat before;
  if (::fstat(parent.get(), &before) != 0) return ErrnoError("stat a directory of the root");
  if (::mkdirat(parent.get(), name.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoError("mkdir " + Escape(name));
  if (::fchownat(parent.get(), name.c_str(), places_.owner, places_.owner, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoError("chown " + Escape(name));
  }
  // Not a change by the command.
  const timespec times[2] = {before.st_atim, before.st_mtim};
  if (!place.own) static_cast<void>(::utimensat(parent.get(), "", times, AT_EMPTY_PATH));
  return Open(place, O_DIRECTORY);
}

Status Injector::MakeFile(const Place& place, const std::string& content, uint32_t mode) const {
  std::string name;
  VRUN_ASSIGN(const UniqueFd parent, OpenParent(place, &name));
  struct stat before;
  if (::fstat(parent.get(), &before) != 0) return ErrnoError("stat a directory of the root");
  const UniqueFd file(::openat(parent.get(), name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return ErrnoError("create " + Escape(place.path));
  if (::fchmod(file.get(), mode & 0777) != 0 || ::fchown(file.get(), places_.owner, places_.owner) != 0) {
    return ErrnoError("chown " + Escape(place.path));
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  if (!place.own) static_cast<void>(::utimensat(parent.get(), "", times, AT_EMPTY_PATH));
  return WriteAll(file.get(), content);
}

Result<UniqueFd> Injector::Target(const std::string& path, bool directory, bool optional) const {
  const Place place = PlaceOf(path);
  Result<UniqueFd> target = Open(place, 0);
  if (!target && target.error().error_number() == ENOENT && !optional) {
    if (!MayCreate(place)) {
      return Error(Code::kNotFound, Escape(path) + ": the root has none, and a live root gets none: make it at home");
    }
    if (directory) return MakeDirectory(place);
    VRUN_TRY(MakeFile(place, "", 0644));
    target = Open(place, 0);
  }
  if (!target && optional) return UniqueFd();
  if (!target) return target;
  struct stat st;
  if (::fstat(target->get(), &st) != 0) return ErrnoError("stat " + Escape(path));
  if (S_ISDIR(st.st_mode) == directory) return target;
  if (optional) return UniqueFd();
  return Error(Code::kInvalid, Escape(path) + " of the root: " + (directory ? "not a directory" : "a directory"));
}

Status Injector::AddDevice(const Injection::Device& device) {
  const Place place{places_.dev, device.path, true};
  std::string name;
  VRUN_ASSIGN(const UniqueFd parent, OpenParent(place, &name));
  if (::mknodat(parent.get(), name.c_str(), S_IFCHR | 0600, makedev(device.major, device.minor)) == 0) {
    // Not only at its making: the umask is inherited.
    if (::fchownat(parent.get(), name.c_str(), places_.owner, places_.owner, AT_SYMLINK_NOFOLLOW) != 0 ||
        ::fchmodat(parent.get(), name.c_str(), device.mode & 0777, 0) != 0) {
      return ErrnoError("chown /dev/" + Escape(device.path));
    }
    return {};
  }
  if (errno != EPERM) return ErrnoError("mknod /dev/" + Escape(device.path));
  // Where host root may not make nodes (in a container): the host's own.
  VRUN_ASSIGN(const UniqueFd source, OpenSource("/dev/" + device.path));
  struct stat st;
  if (::fstat(source.get(), &st) != 0) return ErrnoError("stat /dev/" + Escape(device.path));
  if (!S_ISCHR(st.st_mode) || st.st_rdev != makedev(device.major, device.minor)) {
    return Error(Code::kInvalid, "/dev/" + Escape(device.path) + " of the node is another device than expected");
  }
  VRUN_TRY(MakeFile(place, "", 0600));
  VRUN_ASSIGN(UniqueFd target, Open(place, 0));
  VRUN_ASSIGN(UniqueFd mount, CloneMount(source.get(), "", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC));
  mounts_->push_back({std::move(mount), std::move(target)});
  return {};
}

Result<UniqueFd> Injector::EmptyFileSystem(const std::string& target, bool read_only) {
  const std::string owner = std::to_string(places_.owner);
  VRUN_ASSIGN(UniqueFd mount, NewMount("tmpfs", {{"mode", "0755"}, {"uid", owner}, {"gid", owner}, {"size", "16m"}},
                                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  kept_.emplace_back(::fcntl(mount.get(), F_DUPFD_CLOEXEC, 3));
  own_.push_back({target, kept_.back().get()});
  if (read_only) read_only_.push_back(kept_.back().get());
  return mount;
}

Status Injector::AddMount(const Injection::Mount& in) {
  UniqueFd mount;
  bool directory = true;
  if (in.source.empty()) {
    VRUN_ASSIGN(mount, EmptyFileSystem(in.target, in.read_only));
  } else {
    VRUN_ASSIGN(const UniqueFd source, OpenSource(in.source));
    struct stat st;
    if (::fstat(source.get(), &st) != 0) return ErrnoError("stat " + Escape(in.source));
    directory = S_ISDIR(st.st_mode);
    VRUN_ASSIGN(mount, CloneMount(source.get(), "",
                                  MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (in.read_only ? MOUNT_ATTR_RDONLY : 0u)));
  }
  if (in.target.starts_with(kProc)) {
    proc_mounts_->push_back({std::move(mount), in.target.substr(kProc.size())});
    return {};
  }
  VRUN_ASSIGN(UniqueFd target, Target(in.target, directory, in.optional));
  if (target) mounts_->push_back({std::move(mount), std::move(target)});
  return {};
}

Status Injector::AddFile(const Injection::File& file) {
  const Place place = PlaceOf(file.path);
  if (place.own) return MakeFile(place, file.content, file.mode);
  UniqueFd target;
  if (!file.path.starts_with(kProc)) {
    VRUN_ASSIGN(target, Target(file.path, false, file.optional));
    if (!target) return {};
  }
  const std::string name = "added." + std::to_string(next_file_++);  // in the task directory
  VRUN_ASSIGN(const UniqueFd source, OpenFile(name, O_CREAT | O_TRUNC | O_WRONLY, 0600));
  VRUN_TRY(WriteAll(source.get(), file.content));
  if (::fchmod(source.get(), file.mode & 0777) != 0 || ::fchown(source.get(), places_.owner, places_.owner) != 0) {
    return ErrnoError("chown " + name);
  }
  VRUN_ASSIGN(UniqueFd mount, CloneMount(AT_FDCWD, name, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  if (target) {
    mounts_->push_back({std::move(mount), std::move(target)});
  } else {
    proc_mounts_->push_back({std::move(mount), file.path.substr(kProc.size())});
  }
  return {};
}

Status Injector::AddLink(const Injection::Link& link) {
  const Place place = PlaceOf(link.path);
  if (!MayCreate(place)) return {};
  std::string name;
  VRUN_ASSIGN(const UniqueFd parent, OpenParent(place, &name));
  struct stat before;
  if (::fstat(parent.get(), &before) != 0) return ErrnoError("stat a directory of the root");
  if (::symlinkat(link.target.c_str(), parent.get(), name.c_str()) != 0) {
    return errno == EEXIST ? Status() : Status(ErrnoError("symlink " + Escape(link.path)));
  }
  if (::fchownat(parent.get(), name.c_str(), places_.owner, places_.owner, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoError("chown " + Escape(link.path));
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  if (!place.own) static_cast<void>(::utimensat(parent.get(), "", times, AT_EMPTY_PATH));
  return {};
}

Status Injector::Finish() {
  for (const int mount : read_only_) VRUN_TRY(AddAttributes(mount, MOUNT_ATTR_RDONLY));
  return {};
}

}  // namespace

Status CheckInjection(const Injection& injection) {
  for (const auto& device : injection.devices) VRUN_TRY(CheckPath("/" + device.path));
  for (const auto& mount : injection.mounts) {
    VRUN_TRY(CheckPath(mount.target));
    if (!mount.source.empty()) VRUN_TRY(CheckPath(mount.source));
  }
  for (const auto& file : injection.files) VRUN_TRY(CheckPath(file.path));
  for (const auto& link : injection.links) {
    VRUN_TRY(CheckPath(link.path));
    if (link.target.empty() || link.target.find('\0') != std::string::npos) {
      return Error(Code::kInvalid, "a link that is added to the root: " + Escape(link.path) + ": no target");
    }
  }
  return {};
}

Status Inject(const Injection& injection, const InjectionPlaces& places, std::vector<PreparedMount>* mounts,
              std::vector<ProcMount>* proc_mounts) {
  VRUN_TRY(CheckInjection(injection));
  Injector injector(places, mounts, proc_mounts);
  for (const auto& device : injection.devices) VRUN_TRY(injector.AddDevice(device));
  for (const auto& mount : injection.mounts) VRUN_TRY(injector.AddMount(mount));
  for (const auto& file : injection.files) VRUN_TRY(injector.AddFile(file));
  for (const auto& link : injection.links) VRUN_TRY(injector.AddLink(link));
  return injector.Finish();
}

std::vector<std::string> InjectedInRoot(const Injection& injection) {
  std::vector<std::string> paths;
  const auto add = [&](const std::string& path) {
    if (!IsOwnPlace(path)) paths.push_back(path);
  };
  for (const auto& mount : injection.mounts) add(mount.target);
  for (const auto& file : injection.files) add(file.path);
  for (const auto& link : injection.links) add(link.path);
  return paths;
}

}  // namespace vrun::sandbox
