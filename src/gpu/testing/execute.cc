// SPDX-License-Identifier: Apache-2.0
#include "gpu/testing/execute.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "base/files.h"
#include "gpu/inject/root_dir.h"

// Macros of <sys/sysmacros.h>, and names of the schema.
#undef major
#undef minor

namespace vrun::gpu {
namespace {

std::string Name(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

class Carrier {
 public:
  Carrier(const v1::GpuInjection& injection, const Execution& execution)
      : injection_(injection), execution_(execution) {}

  Status Run() {
    if (::unshare(CLONE_NEWNS) != 0) return ErrnoError("unshare");
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return ErrnoError("make private");
    if (::mount(execution_.root.c_str(), execution_.root.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      return ErrnoError("bind the root");
    }
    root_.Reset(::open(execution_.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (const char* own : {"/run", "/dev"}) VRUN_TRY(Tmpfs(own));
    for (const auto& device : injection_.devices()) VRUN_TRY(AddDevice(device));
    for (const auto& mount : injection_.mounts()) VRUN_TRY(AddMount(mount));
    for (const auto& file : injection_.files()) VRUN_TRY(AddFile(file));
    for (const auto& link : injection_.links()) {
      VRUN_TRY(MakeDirs(Outside(Parent(link.path())), 0755));
      if (::symlink(link.target().c_str(), Outside(link.path()).c_str()) != 0) return ErrnoError("symlink");
    }
    return {};
  }

  [[noreturn]] void Become() {
    std::map<std::string, std::string> environment;
    const auto set = [&](const std::string& variable, bool prepend) {
      const size_t equal = variable.find('=');
      std::string& value = environment[variable.substr(0, equal)];
      const std::string other = variable.substr(equal + 1);
      value = prepend && !value.empty() ? other + ":" + value : other;
    };
    for (const std::string& variable : execution_.environment) set(variable, false);
    for (const std::string& variable : injection_.environment()) set(variable, false);
    for (const std::string& variable : injection_.prepend()) set(variable, true);
    std::vector<std::string> words;
    for (const auto& [name, value] : environment) words.push_back(name + "=" + value);
    std::vector<char*> argv, variables;
    for (const std::string& word : execution_.argv) argv.push_back(const_cast<char*>(word.c_str()));
    for (const std::string& word : words) variables.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    variables.push_back(nullptr);
    if (::fchdir(root_.get()) != 0) ::perror("fchdir");
    if (::chroot(execution_.root.c_str()) != 0 || ::chdir("/") != 0) ::perror("chroot");
    ::execve(argv[0], argv.data(), variables.data());
    ::perror(argv[0]);
    ::_exit(127);
  }

 private:
  std::string Outside(const std::string& path) const { return execution_.root + path; }
  static std::string Parent(const std::string& path) { return path.substr(0, path.rfind('/')); }
  bool Own(const std::string& path) const {
    for (const std::string& below : own_) {
      if (path.starts_with(below + "/")) return true;
    }
    return false;
  }

  Status Tmpfs(const std::string& path) {
    Result<UniqueFd> target = OpenBelow(root_.get(), path);
    if (!target) return std::move(target).error();
    if (::mount("tmpfs", Name(target->get()).c_str(), "tmpfs", MS_NOSUID, "mode=0755") != 0) return ErrnoError("tmpfs");
    own_.insert(path);
    return {};
  }

  Status AddDevice(const v1::GpuInjection::Device& device) {
    const std::string path = Outside("/dev/" + device.path());
    VRUN_TRY(MakeDirs(Parent(path), 0755));
    if (::mknod(path.c_str(), S_IFCHR | device.mode(), makedev(device.major(), device.minor())) == 0) return {};
    // In a container: the name alone.
    return errno == EPERM ? WriteFileAtomic(path, "", device.mode()) : Status(ErrnoError("mknod"));
  }

  // The place that a mount or a file covers; an invalid descriptor: it is left out.
  Result<UniqueFd> Target(const std::string& path, bool directory, bool optional) {
    Result<UniqueFd> target = OpenBelow(root_.get(), path);
    if (target) return target;
    if (optional) return UniqueFd();
    if (execution_.live && !Own(path)) return Error(Code::kInvalid, path + ": cannot be made in a live root");
    VRUN_TRY(MakeDirs(Outside(directory ? path : Parent(path)), 0755));
    if (!directory) VRUN_TRY(WriteFileAtomic(Outside(path), "", 0644));
    return OpenBelow(root_.get(), path);
  }

  Status AddMount(const v1::GpuInjection::Mount& mount) {
    struct stat st {};
    if (!mount.source().empty() && ::stat(mount.source().c_str(), &st) != 0) return ErrnoError(mount.source());
    const bool directory = mount.source().empty() || S_ISDIR(st.st_mode);
    VRUN_ASSIGN(UniqueFd target, Target(mount.target(), directory, mount.optional()));
    if (!target) return {};
    if (mount.source().empty()) return Tmpfs(mount.target());
    return Bind(mount.source(), target.get(), mount.read_only());
  }

  static Status Bind(const std::string& source, int target, bool read_only) {
    const std::string name = Name(target);
    if (::mount(source.c_str(), name.c_str(), nullptr, MS_BIND, nullptr) != 0) return ErrnoError("bind " + source);
    // The descriptor still names what is covered; a path is needed to change the mount.
    VRUN_ASSIGN(const std::string path, PathOf(target));
    constexpr unsigned long kFlags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV;
    if (read_only && ::mount(nullptr, path.c_str(), nullptr, kFlags, nullptr) != 0) return ErrnoError("remount");
    return {};
  }

  Status AddFile(const v1::GpuInjection::File& file) {
    if (Own(file.path())) {
      VRUN_TRY(MakeDirs(Outside(Parent(file.path())), 0755));
      return WriteFileAtomic(Outside(file.path()), file.content(), file.mode());
    }
    VRUN_ASSIGN(UniqueFd target, Target(file.path(), false, file.optional()));
    if (!target) return {};
    const std::string source = execution_.scratch + "/file" + std::to_string(files_++);
    VRUN_TRY(WriteFileAtomic(source, file.content(), file.mode()));
    return Bind(source, target.get(), true);
  }

  const v1::GpuInjection& injection_;
  const Execution& execution_;
  UniqueFd root_;
  std::set<std::string> own_;
  int files_ = 0;
};

Result<Outcome> InChild(const std::function<void()>& child) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd in(ends[0]), out(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoError("fork");
  if (pid == 0) {
    ::alarm(20);
    ::dup2(out.get(), 1);
    ::dup2(out.get(), 2);
    child();
    ::_exit(126);
  }
  out.Reset();
  Outcome outcome;
  outcome.output.resize(1 << 20);
  const Result<size_t> n = ReadUpTo(in.get(), outcome.output.data(), outcome.output.size());
  outcome.output.resize(n ? *n : 0);
  ::waitpid(pid, &outcome.status, 0);
  return outcome;
}

}  // namespace

Result<Outcome> Execute(const v1::GpuInjection& injection, const Execution& execution) {
  return InChild([&] {
    Carrier carrier(injection, execution);
    if (const Status done = carrier.Run(); !done) {
      std::fprintf(stderr, "%s\n", done.error().message().c_str());
      return;
    }
    carrier.Become();
  });
}

Result<std::string> RunHere(const std::vector<std::string>& argv) {
  VRUN_ASSIGN(Outcome outcome, InChild([&] {
                std::vector<char*> words;
                for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
                words.push_back(nullptr);
                ::setenv("LC_ALL", "C", 1);
                ::execvp(words[0], words.data());
                ::perror(words[0]);
              }));
  if (outcome.status != 0) return Error(Code::kInternal, argv[0] + ": " + outcome.output);
  return outcome.output;
}

}  // namespace vrun::gpu
