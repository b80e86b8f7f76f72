// SPDX-License-Identifier: Apache-2.0
#include "cli/host/host_facts.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/fanotify.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/daemon_process.h"
#include "cli/base/home_connection.h"
#include "cli/base/values.h"
#include "cli/host/local_cluster.h"

namespace vrun::cli {
namespace {

constexpr int kDefaultPort = 7420;

std::string Text(const char* file) {
  auto text = ReadFile(file, 1u << 20);
  return text ? *text : "";
}

std::optional<int64_t> Sysctl(const char* file) {
  std::string text = Text(file);
  auto n = ParseNumber(std::string_view(text).substr(0, text.find_first_not_of("0123456789")), INT64_MAX);
  if (!n) return std::nullopt;
  return static_cast<int64_t>(*n);
}

Attempt TryUserNamespace() {
  pid_t child = ::fork();
  if (child < 0) return {false, errno};
  if (child == 0) ::_exit(::unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) return {false, EIO};
  return {WEXITSTATUS(status) == 0, WEXITSTATUS(status)};
}

// Like home does it: events with names of directory entries, for a whole file system.
Attempt TryFanotify() {
  UniqueFd fd(::fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_REPORT_DFID_NAME, O_RDONLY));
  if (!fd) return {false, errno};
  int rc = ::fanotify_mark(fd.get(), FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CREATE | FAN_ONDIR, AT_FDCWD, "/");
  return {rc == 0, rc == 0 ? 0 : errno};
}

void GatherCgroups(HostFacts* f) {
  std::string mounts = Text("/proc/self/mounts");
  std::string_view rest = mounts;
  while (!rest.empty()) {
    size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    std::string_view fields[4];
    for (std::string_view& field : fields) {
      size_t blank = line.find(' ');
      field = line.substr(0, blank);
      line = blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    }
    if (fields[2] == "cgroup2" && f->cgroup_v2_mount.empty()) {
      f->cgroup_v2_mount = fields[1];
      f->cgroup_v2_controllers = Text((f->cgroup_v2_mount + "/cgroup.controllers").c_str());
    } else if (fields[2] == "cgroup") {
      std::string options(fields[3]);
      std::replace(options.begin(), options.end(), ',', ' ');
      f->cgroup_v1_controllers += (f->cgroup_v1_controllers.empty() ? "" : " ") + options;
    }
  }
}

void GatherDisk(const std::string& wanted, HostFacts* f) {
  // The nearest existing ancestor, because the directory may not exist yet.
  std::string dir = wanted;
  struct statvfs st;
  while (::statvfs(dir.c_str(), &st) != 0 && dir.size() > 1) {
    size_t slash = dir.rfind('/');
    dir = slash == 0 ? "/" : dir.substr(0, slash);
  }
  f->state_directory = dir;
  if (::statvfs(dir.c_str(), &st) == 0) f->free_bytes = static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
}

void GatherHome(const Places& places, HostFacts* f) {
  HomeConnection home(places);
  auto socket = home.Connect();
  if (!socket) {
    if (PathExists(places.socket)) f->home_error = socket.error().message();
    return;
  }
  v1::Query query;
  query.mutable_status();
  auto answer = Ask(home, query, false);
  if (!answer) {
    f->home_error = answer.error().message();
    return;
  }
  f->home_running = true;
  f->controller_connected = answer->status().controller_connected();
  f->controller_error = answer->status().controller_error();
  const v1::S3State& s3 = answer->status().s3();
  f->s3_bucket = s3.bucket();
  f->s3_endpoint = s3.endpoint();
  f->s3_problem = s3.problem();
  f->s3_checked = s3.checked_us() != 0;
  if (!f->controller_connected) return;
  query.mutable_list_nodes();
  auto nodes = Ask(home, query, false);
  if (!nodes || !nodes->has_nodes()) return;
  for (const v1::NodeInfo& node : nodes->nodes().nodes()) {
    if (node.last_seen_us() == 0) continue;
    int64_t ahead = node.last_seen_us() - WallMicros();
    f->clock_skew_us = std::max(f->clock_skew_us.value_or(ahead), ahead);
  }
}

}  // namespace

HostFacts GatherEssentials() {
  HostFacts f;
  f.uid = ::geteuid();
  utsname names;
  if (::uname(&names) == 0) f.kernel = names.release;
  f.fuse_exists = PathExists("/dev/fuse");
  UniqueFd fuse(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  f.fuse_open = {static_cast<bool>(fuse), fuse ? 0 : errno};
  f.user_namespace = TryUserNamespace();
  f.unprivileged_userns_clone = Sysctl("/proc/sys/kernel/unprivileged_userns_clone");
  f.max_user_namespaces = Sysctl("/proc/sys/user/max_user_namespaces");
  f.filesystems = Text("/proc/filesystems");
  return f;
}

HostFacts GatherFacts(const Places& places) {
  HostFacts f = GatherEssentials();
  GatherCgroups(&f);
  f.fanotify = TryFanotify();
  f.inotify_watches = Sysctl("/proc/sys/fs/inotify/max_user_watches");
  rlimit files;
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) f.max_open_files = files.rlim_max;
  GatherDisk(places.state_dir, &f);
  if (auto vrund = FindProgram("vrund")) {
    f.vrund = *vrund;
    f.vrund_task = ::access((vrund->substr(0, vrund->rfind('/')) + "/vrund-task").c_str(), X_OK) == 0;
  }
  f.config_file = places.config_file;
  auto config = ReadConfig(places.config_file);
  if (config) {
    f.controller = config->controller;
    f.configured = !f.controller.empty();
  } else if (config.error().code() != Code::kNotFound) {
    f.config_error = config.error().message();
  }
  ClusterFiles cluster(places);
  f.local_controller = cluster.Running("controller").has_value();
  f.local_node = cluster.Running("node").has_value();
  if (!f.local_controller) {
    Status port = CheckPortFree({"127.0.0.1", kDefaultPort});
    if (!port) f.port_error = port.error().message();
  }
  GatherHome(places, &f);
  timex clock{};
  f.clock_synchronised = ::adjtimex(&clock) >= 0 && (clock.status & STA_UNSYNC) == 0;
  return f;
}

}  // namespace vrun::cli
