// SPDX-License-Identifier: Apache-2.0
#include "cli/host/environments.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/daemon_process.h"

namespace vrun::cli {
namespace {

// The kernel's limit is 500, but every failing lookup searches all layers.
constexpr size_t kMaxLayers = 100;
constexpr int kKillMs = 10'000;

std::vector<std::string> Names(const std::string& directory) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory.c_str()), ::closedir);
  while (dirent* e = dir ? ::readdir(dir.get()) : nullptr) {
    const std::string name = e->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool TryLock(const UniqueFd& file, int how) { return ::flock(file.get(), how | LOCK_NB) == 0; }

Result<Environment> Parse(const std::string& name, const std::string& text) {
  Environment environment;
  environment.name = name;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = line.substr(0, equals), value = line.substr(equals + 1);
    if (key == "from") environment.from = value;
    if (key == "created_us") environment.created_us = std::strtoll(value.c_str(), nullptr, 10);
    if (key == "upper") environment.upper = std::strtoull(value.c_str(), nullptr, 10);
    if (key == "layer") environment.layers.push_back(std::strtoull(value.c_str(), nullptr, 10));
  }
  if (environment.upper == 0 || environment.layers.empty()) {
    return Error(Code::kCorrupt, "environment " + Escape(name) + ": its record is damaged");
  }
  return environment;
}

uint64_t DiskBytes(const std::string& directory) {
  uint64_t bytes = 0;
  for (const std::string& name : Names(directory)) {
    struct stat st;
    const std::string path = directory + "/" + name;
    if (::lstat(path.c_str(), &st) != 0) continue;
    bytes += static_cast<uint64_t>(st.st_blocks) * 512;
    if (S_ISDIR(st.st_mode)) bytes += DiskBytes(path);
  }
  return bytes;
}

}  // namespace

Result<Environments> Environments::Open(std::string directory) {
  if (::geteuid() != 0) {
    return Error(Code::kDenied, "environments need root to mount them: run `vctl env` as root on the storage host");
  }
  Environments out(std::move(directory));
  for (const char* sub : {"/envs", "/layers"}) VRUN_TRY(MakeDirs(out.directory_ + sub, 0700));
  return out;
}

Status Environments::CheckName(const std::string& name) {
  const auto fine = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  if (name.empty() || name.size() > 64 || !std::isalnum(static_cast<unsigned char>(name[0])) ||
      !std::all_of(name.begin(), name.end(), fine)) {
    return Error(Code::kInvalid,
                 Escape(name) + ": no name: up to 64 letters, digits, '.', '_' and '-', a letter or digit first");
  }
  return {};
}

// --- queries

Result<Environment> Environments::Find(const std::string& name) const {
  VRUN_TRY(CheckName(name));
  auto text = ReadFile(PathOf(name) + "/env");
  if (!text && text.error().code() == Code::kNotFound) {
    return Error(Code::kNotFound, Escape(name) + ": there is no such environment: `vctl env list` lists them");
  }
  if (!text) return std::move(text).error();
  VRUN_ASSIGN(Environment environment, Parse(name, *text));
  VRUN_ASSIGN(UniqueFd lock, OpenFile(PathOf(name) + "/lock", O_RDWR));
  environment.in_use = !TryLock(lock, LOCK_EX);
  return environment;
}

Result<std::vector<Environment>> Environments::List() const {
  std::vector<Environment> out;
  for (const std::string& name : Names(directory_ + "/envs")) {
    VRUN_ASSIGN(Environment environment, Find(name));
    out.push_back(std::move(environment));
  }
  return out;
}

uint64_t Environments::OwnBytes(const Environment& environment) const {
  return DiskBytes(LayerPath(environment.upper));
}

// --- locks

Result<UniqueFd> Environments::Lock() const { return LockFile(directory_ + "/lock", true); }

Result<UniqueFd> Environments::Use(const std::string& name) const {
  VRUN_ASSIGN(Environment environment, Find(name));
  VRUN_ASSIGN(UniqueFd lock, OpenFile(PathOf(name) + "/lock", O_RDWR));
  while (::flock(lock.get(), LOCK_SH) != 0) {
    if (errno != EINTR) return ErrnoError("lock " + Escape(name));
  }
  // It may have been deleted while we waited for the lock.
  struct stat ours, there;
  if (::fstat(lock.get(), &ours) != 0 || ::stat((PathOf(name) + "/lock").c_str(), &there) != 0 ||
      ours.st_ino != there.st_ino) {
    return Error(Code::kNotFound, Escape(name) + ": the environment was deleted just now");
  }
  return lock;
}

Result<UniqueFd> Environments::Alone(const std::string& name, bool force) const {
  VRUN_ASSIGN(UniqueFd lock, OpenFile(PathOf(name) + "/lock", O_RDWR));
  auto init = ReadPidFile(PathOf(name) + "/init");
  if (force && init && IsAlive(*init)) VRUN_TRY(StopProcess(*init, 0));
  // Killed processes take a moment to end, and so does an environment whose last shell has just ended.
  for (int64_t end = MonotonicMicros() + (force ? kKillMs : 1000) * 1000; !TryLock(lock, LOCK_EX);
       ::poll(nullptr, 0, 20)) {
    if (MonotonicMicros() > end) {
      return Error(Code::kExists, Escape(name) + ": the environment is in use: end its shells first");
    }
  }
  // No process can enter any more; the mounts disappear with the process that holds them.
  init = ReadPidFile(PathOf(name) + "/init");
  if (init && IsAlive(*init)) VRUN_TRY(StopProcess(*init, 0));
  return lock;
}

// --- changes

Status Environments::Free(const std::string& name) const {
  VRUN_TRY(CheckName(name));
  if (!PathExists(PathOf(name))) return {};
  return Error(Code::kExists, Escape(name) + ": there is an environment of that name: choose another, or delete it");
}

uint64_t Environments::NextLayer() const {
  uint64_t last = 0;
  for (const std::string& name : Names(directory_ + "/layers")) {
    last = std::max<uint64_t>(last, std::strtoull(name.c_str(), nullptr, 10));
  }
  return last + 1;
}

// The root directory of an overlay has the attributes of the upper's root.
Result<uint64_t> Environments::NewUpper(uint64_t below) const {
  const uint64_t layer = NextLayer();
  const std::string path = LayerPath(layer);
  struct stat st;
  if (::stat(LayerPath(below).c_str(), &st) != 0) return ErrnoError(LayerPath(below));
  if (::mkdir(path.c_str(), 0700) != 0) return ErrnoError("make " + Escape(path));
  if (::chown(path.c_str(), st.st_uid, st.st_gid) != 0 || ::chmod(path.c_str(), st.st_mode & 07777) != 0) {
    return ErrnoError("make " + Escape(path));
  }
  return layer;
}

Status Environments::Write(const std::string& path, const Environment& environment) const {
  std::string text = "from=" + Escape(environment.from) + "\ncreated_us=" + std::to_string(environment.created_us) +
                     "\nupper=" + std::to_string(environment.upper) + "\n";
  for (uint64_t layer : environment.layers) text += "layer=" + std::to_string(layer) + "\n";
  return WriteFileAtomic(path, text, 0600);
}

// Atomic, by rename.
Status Environments::Publish(Environment environment) const {
  environment.created_us = WallMicros();
  const std::string made = directory_ + "/envs-" + environment.name;
  VRUN_TRY(RemoveTree(made));
  for (const char* sub : {"/work", "/home"}) VRUN_TRY(MakeDirs(made + sub, 0700));
  VRUN_ASSIGN(UniqueFd lock, OpenFile(made + "/lock", O_RDWR | O_CREAT, 0600));
  VRUN_TRY(Write(made + "/env", environment));
  if (::rename(made.c_str(), PathOf(environment.name).c_str()) != 0)
    return ErrnoError("make " + Escape(environment.name));
  return {};
}

Status Environments::Create(const std::string& name, const std::string& from,
                            const std::function<Status(const std::string&)>& fill) {
  VRUN_TRY(Free(name));
  const std::string making = directory_ + "/.new-" + std::to_string(::getpid());
  UniqueFd held;
  {
    VRUN_ASSIGN(UniqueFd lock, Lock());
    Sweep();
    VRUN_TRY(RemoveTree(making));
    VRUN_TRY(MakeDirs(making + "/tree", 0755));
    VRUN_ASSIGN(held, LockFile(making + "/lock", true));
  }
  Status done = fill(making + "/tree");
  // A setuid program of the environment must not be reachable for everybody on this host.
  if (done && ::chmod(making.c_str(), 0700) != 0) done = ErrnoError("make " + Escape(name));
  if (done) {
    VRUN_ASSIGN(UniqueFd lock, Lock());
    done = Free(name);
    Environment environment;
    environment.name = name;
    environment.from = from;
    environment.layers = {NextLayer()};
    if (done && ::rename((making + "/tree").c_str(), LayerPath(environment.layers[0]).c_str()) != 0) {
      done = ErrnoError("make " + Escape(name));
    }
    if (done) {
      auto upper = NewUpper(environment.layers[0]);
      if (upper) {
        environment.upper = *upper;
        done = Publish(environment);
      } else {
        done = upper.error();
      }
    }
    if (!done) Sweep();
  }
  if (Status removed = RemoveTree(making); done && !removed) return removed;
  return done;
}

Status Environments::Clone(const std::string& source, const std::string& name) {
  VRUN_ASSIGN(UniqueFd lock, Lock());
  VRUN_ASSIGN(Environment from, Find(source));
  VRUN_TRY(Free(name));
  VRUN_ASSIGN(UniqueFd alone, Alone(source, false));
  if (!Names(LayerPath(from.upper)).empty()) {
    if (from.layers.size() >= kMaxLayers) {
      return Error(Code::kExhausted, Escape(source) + ": it was cloned and changed " + std::to_string(kMaxLayers) +
                                         " times: make a new one from a tar of it");
    }
    // The source first: one more layer does not change its content, even if we end here.
    VRUN_ASSIGN(uint64_t upper, NewUpper(from.upper));
    from.layers.insert(from.layers.begin(), std::exchange(from.upper, upper));
    VRUN_TRY(Write(PathOf(source) + "/env", from));
  }
  Environment made = from;
  made.name = name;
  made.from = "clone " + source;
  VRUN_ASSIGN(made.upper, NewUpper(from.layers[0]));
  return Publish(std::move(made));
}

Status Environments::Delete(const std::string& name, bool force) {
  VRUN_ASSIGN(UniqueFd lock, Lock());
  VRUN_ASSIGN(Environment environment, Find(name));
  VRUN_ASSIGN(UniqueFd alone, Alone(name, force));
  // Its record first: without the record the environment does not exist, and the rest can be swept at any time.
  const std::string gone = directory_ + "/envs-" + name;
  VRUN_TRY(RemoveTree(gone));
  if (::rename(PathOf(name).c_str(), gone.c_str()) != 0) return ErrnoError("delete " + Escape(name));
  Sweep();
  return {};
}

// Removes remains of an interrupted command, and unused layers.
void Environments::Sweep() const {
  std::set<uint64_t> needed;
  for (const std::string& name : Names(directory_ + "/envs")) {
    auto environment = Find(name);
    if (!environment) return;  // a damaged record may refer to any of them
    needed.insert(environment->upper);
    needed.insert(environment->layers.begin(), environment->layers.end());
  }
  for (const std::string& name : Names(directory_)) {
    const std::string path = directory_ + "/" + name;
    if (name.starts_with("envs-")) (void)RemoveTree(path);
    if (!name.starts_with(".new-")) continue;
    auto held = LockFile(path + "/lock", false);
    if (held) (void)RemoveTree(path);
  }
  for (const std::string& name : Names(directory_ + "/layers")) {
    const uint64_t layer = std::strtoull(name.c_str(), nullptr, 10);
    if (!needed.contains(layer)) (void)RemoveTree(directory_ + "/layers/" + name);
  }
}

}  // namespace vrun::cli
