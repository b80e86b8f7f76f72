// SPDX-License-Identifier: Apache-2.0
#include "cli/request/job_command.h"

#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::cli {
namespace {

// Sockets and sessions of this machine, variables of an outer job, and variables that the node sets itself.
constexpr std::string_view kNeverExported[] = {
    "SSH_AUTH_SOCK", "DISPLAY", "XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "HOSTNAME",      "_"};
constexpr std::string_view kNeverExportedPrefixes[] = {"DBUS_", "SLURM_", "VRUN_"};
// What programs need even with --export=NONE or a list.
constexpr std::string_view kAlwaysExported[] = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"};

std::string_view NameOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

bool In(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool BelongsHere(std::string_view name) {
  if (In(name, kNeverExported)) return true;
  return std::any_of(std::begin(kNeverExportedPrefixes), std::end(kNeverExportedPrefixes),
                     [&](std::string_view p) { return name.starts_with(p); });
}

void Set(std::vector<std::string>* environment, std::string entry) {
  for (std::string& e : *environment) {
    if (NameOf(e) == NameOf(entry)) {
      e = std::move(entry);
      return;
    }
  }
  environment->push_back(std::move(entry));
}

void AddLimits(v1::Command* command) {
  for (int resource : {RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_STACK, RLIMIT_CORE, RLIMIT_RSS, RLIMIT_NPROC,
                       RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_LOCKS, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE,
                       RLIMIT_NICE, RLIMIT_RTPRIO, RLIMIT_RTTIME}) {
    rlimit limit;
    if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) continue;
    v1::ResourceLimit* out = command->add_limits();
    out->set_resource(resource);
    out->set_soft(limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<uint64_t>::max() : limit.rlim_cur);
  }
}

Status AddIdentity(v1::Command* command) {
  v1::Identity* identity = command->mutable_identity();
  identity->set_uid(::geteuid());
  identity->set_gid(::getegid());
  int n = ::getgroups(0, nullptr);
  if (n < 0) return ErrnoError("getgroups");
  std::vector<gid_t> groups(static_cast<size_t>(n));
  n = ::getgroups(n, groups.data());
  if (n < 0) return ErrnoError("getgroups");
  for (int i = 0; i < n; ++i) identity->add_groups(groups[static_cast<size_t>(i)]);
  auto passwd = ReadFile("/etc/passwd", 16u << 20);
  User user =
      FindUser(::geteuid(), passwd ? *passwd : "", [](const char* name) -> const char* { return std::getenv(name); });
  identity->set_user_name(user.name);
  return {};
}

mode_t CurrentUmask() {
  mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}

}  // namespace

User FindUser(uid_t uid, std::string_view passwd, const std::function<const char*(const char*)>& env) {
  while (!passwd.empty()) {
    size_t end = passwd.find('\n');
    std::string_view line = passwd.substr(0, end);
    passwd = end == std::string_view::npos ? std::string_view() : passwd.substr(end + 1);
    std::string_view fields[6];
    size_t n = 0;
    for (; n < 6; ++n) {
      size_t colon = line.find(':');
      fields[n] = line.substr(0, colon);
      if (colon == std::string_view::npos) break;
      line.remove_prefix(colon + 1);
    }
    auto number = ParseNumber(fields[2], std::numeric_limits<uid_t>::max());
    if (n >= 5 && number && *number == uid && !fields[0].empty())
      return {std::string(fields[0]), std::string(fields[5])};
  }
  auto first_of = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names) {
      const char* value = env(name);
      if (value != nullptr && *value != 0) return value;
    }
    return "";
  };
  User user{first_of({"USER", "LOGNAME"}), first_of({"HOME"})};
  if (user.name.empty()) user.name = "uid" + std::to_string(uid);
  if (user.home.empty()) user.home = "/";
  return user;
}

std::vector<std::string> FilterEnvironment(const std::vector<std::string>& from, const RunOptions& options,
                                           std::string_view directory) {
  std::vector<std::string> out;
  for (const std::string& entry : from) {
    std::string_view name = NameOf(entry);
    bool wanted = options.export_mode == ExportMode::kAll ? !BelongsHere(name) : In(name, kAlwaysExported);
    if (wanted) out.push_back(entry);
  }
  for (const std::string& item : options.exported) {
    if (item.find('=') != std::string::npos) {
      Set(&out, item);
      continue;
    }
    // Named by the user: exported even if it belongs to this machine.
    for (const std::string& entry : from) {
      if (NameOf(entry) == item) Set(&out, entry);
    }
  }
  for (std::string& entry : out) {
    if (entry.starts_with("PWD=")) entry = "PWD=" + std::string(directory);
  }
  return out;
}

Result<std::string> CurrentDirectory() {
  struct stat here, named;
  const char* pwd = std::getenv("PWD");
  if (pwd != nullptr && pwd[0] == '/' && ::stat(".", &here) == 0 && ::stat(pwd, &named) == 0 &&
      here.st_dev == named.st_dev && here.st_ino == named.st_ino) {
    return std::string(pwd);
  }
  char buffer[PATH_MAX];
  if (::getcwd(buffer, sizeof buffer) == nullptr || buffer[0] != '/') {
    return Error(Code::kNotFound, "the current directory: it no longer exists: change to another one or use -D");
  }
  return std::string(buffer);
}

std::string InRoot(std::string_view path, std::string_view root) {
  if (root.size() > 1 && path.starts_with(root)) {
    if (path.size() == root.size()) return "/";
    if (path[root.size()] == '/') return std::string(path.substr(root.size()));
  }
  return std::string(path);
}

std::string Absolute(std::string_view path, std::string_view directory) {
  std::string joined = path.starts_with('/') ? std::string(path) : std::string(directory) + "/" + std::string(path);
  std::string out;
  for (size_t from = 0; from < joined.size();) {
    size_t slash = std::min(joined.find('/', from), joined.size());
    std::string_view part = std::string_view(joined).substr(from, slash - from);
    if (!part.empty() && part != ".") out += "/" + std::string(part);
    from = slash + 1;
  }
  return out.empty() ? "/" : out;
}

Result<v1::Command> CollectCommand(const RunOptions& options, const std::string& root) {
  v1::Command command = options.spec.command();
  for (const std::string& word : options.command) command.add_argv(word);
  std::string directory;
  if (options.directory.starts_with('/')) {
    directory = options.directory;
  } else {
    VRUN_ASSIGN(directory, CurrentDirectory());
    if (!options.directory.empty()) directory = Absolute(options.directory, directory);
  }
  directory = InRoot(directory, root);
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  for (std::string& entry : FilterEnvironment(environment, options, directory)) {
    command.add_environment(std::move(entry));
  }
  command.set_directory(std::move(directory));
  command.set_umask(CurrentUmask());
  if (!command.has_nice()) command.set_nice(::getpriority(PRIO_PROCESS, 0));
  AddLimits(&command);
  VRUN_TRY(AddIdentity(&command));
  return command;
}

Result<std::vector<std::string>> CollectLivePaths(const std::vector<std::string>& typed, std::string_view directory,
                                                  const std::string& root) {
  std::vector<std::string> out;
  const std::string above = root == "/" ? "" : root;
  for (const std::string& path : typed) {
    const auto bad = [&path](const std::string& why) {
      return Error(Code::kInvalid, "--live " + Escape(path) + ": " + why);
    };
    const std::string here = above + InRoot(Absolute(path, directory), root);
    char resolved[PATH_MAX];
    struct stat st;
    if (::realpath(here.c_str(), resolved) == nullptr || ::stat(resolved, &st) != 0) return bad(std::strerror(errno));
    if (!S_ISDIR(st.st_mode)) return bad("not a directory: name the one that it is in");
    const std::string inside = InRoot(resolved, root);
    if (inside == "/") return bad("that is everything: write --view=live");
    for (const std::string_view own : {"/dev", "/proc", "/run", "/sys", "/tmp"}) {
      if (inside == own || inside.starts_with(std::string(own) + "/")) {
        return bad("each job has a " + std::string(own) + " of its own");
      }
    }
    out.push_back(inside);
  }
  return out;
}

}  // namespace vrun::cli
