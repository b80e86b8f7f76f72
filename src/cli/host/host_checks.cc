// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/escape.h"
#include "cli/base/table.h"
#include "cli/base/values.h"
#include "cli/host/host_facts.h"

namespace vrun::cli {
namespace {

struct KernelVersion {
  int major = 0, minor = 0;
  bool AtLeast(int a, int b) const { return major > a || (major == a && minor >= b); }
};

KernelVersion ParseKernel(std::string_view release) {
  KernelVersion out;
  size_t dot = release.find('.');
  if (dot == std::string_view::npos) return out;
  auto major = ParseNumber(release.substr(0, dot), 1000);
  std::string_view rest = release.substr(dot + 1);
  auto minor = ParseNumber(rest.substr(0, rest.find_first_not_of("0123456789")), 10000);
  if (major && minor) out = {static_cast<int>(*major), static_cast<int>(*minor)};
  return out;
}

Finding Fine(std::string name, std::string text) { return {std::move(name), Level::kOk, std::move(text), ""}; }
Finding Fails(std::string name, std::string text, std::string what_to_do) {
  return {std::move(name), Level::kFail, std::move(text), std::move(what_to_do)};
}
Finding Warns(std::string name, std::string text, std::string what_to_do) {
  return {std::move(name), Level::kWarn, std::move(text), std::move(what_to_do)};
}

bool HasFilesystem(const HostFacts& f, std::string_view wanted) {
  std::string_view text = f.filesystems;
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.substr(line.find('\t') + 1) == wanted) return true;
  }
  return false;
}

bool HasWord(std::string_view text, std::string_view word) {
  std::string padded = " " + std::string(text) + " ";
  for (char& c : padded) {
    if (c == '\n') c = ' ';
  }
  return padded.find(" " + std::string(word) + " ") != std::string::npos;
}

// --- what a node needs

Finding CheckRoot(const HostFacts& f) {
  if (f.uid == 0) return Fine("root", "running as root");
  return Fails("root",
               "running as user " + std::to_string(f.uid) +
                   ", but a node needs root to make namespaces, mounts "
                   "and cgroups",
               "run `vctl up` as root or with sudo; to only submit jobs no root is needed");
}

Finding CheckKernel(const HostFacts& f) {
  KernelVersion v = ParseKernel(f.kernel);
  std::string text = "Linux " + Escape(f.kernel);
  if (!v.AtLeast(5, 11)) {
    return Fails("kernel", text + " is too old: overlayfs in user namespaces needs 5.11",
                 "boot a kernel of 5.11 or newer");
  }
  if (!v.AtLeast(6, 9)) {
    return Warns("kernel", text + " has no FUSE passthrough (6.9): large files are read through the file system server",
                 "nothing has to be done; a newer kernel is faster");
  }
  return Fine("kernel", text + ", with FUSE passthrough");
}

Finding CheckFuse(const HostFacts& f) {
  if (!HasFilesystem(f, "fuse") && !f.fuse_exists) {
    return Fails("fuse", "the kernel has no FUSE (/proc/filesystems does not list it, /dev/fuse does not exist)",
                 "run `modprobe fuse`, or boot a kernel with CONFIG_FUSE_FS");
  }
  if (!f.fuse_exists) {
    return Fails("fuse", "/dev/fuse does not exist",
                 "run `modprobe fuse`, or make it with `mknod -m 666 /dev/fuse c 10 229`; in a container add `--device "
                 "/dev/fuse`");
  }
  if (!f.fuse_open.ok) {
    std::string why = std::strerror(f.fuse_open.error_number);
    std::string what_to_do = f.fuse_open.error_number == ENODEV || f.fuse_open.error_number == ENXIO
                                 ? "run `modprobe fuse`"
                                 : "as root it opens; in a container allow the device with `--device /dev/fuse`";
    return Fails("fuse", "/dev/fuse cannot be opened: " + why, what_to_do);
  }
  return Fine("fuse", "/dev/fuse opens");
}

Finding CheckUserNamespaces(const HostFacts& f) {
  if (f.user_namespace.ok) return Fine("user-namespaces", "they can be made");
  std::string why = "user namespaces cannot be made: " + std::string(std::strerror(f.user_namespace.error_number));
  if (f.max_user_namespaces == 0) {
    return Fails("user-namespaces", why + " (user.max_user_namespaces is 0)",
                 "run `sysctl -w user.max_user_namespaces=15000`");
  }
  if (f.unprivileged_userns_clone == 0 && f.uid != 0) {
    return Fails("user-namespaces", why + " (kernel.unprivileged_userns_clone is 0)",
                 "run `sysctl -w kernel.unprivileged_userns_clone=1`");
  }
  if (f.user_namespace.error_number == EINVAL) {
    return Fails("user-namespaces", why, "boot a kernel with CONFIG_USER_NS");
  }
  return Fails("user-namespaces", why,
               "in a container run it with the capability SYS_ADMIN and without a seccomp filter; a security module "
               "(AppArmor) may forbid them too");
}

Finding CheckOverlay(const HostFacts& f) {
  if (HasFilesystem(f, "overlay")) return Fine("overlayfs", "the kernel has it");
  return Fails("overlayfs", "the kernel has no overlayfs (/proc/filesystems does not list it)",
               "run `modprobe overlay`, or boot a kernel with CONFIG_OVERLAY_FS");
}

// --- what improves or degrades it

Finding CheckCgroups(const HostFacts& f) {
  std::string missing;
  for (std::string_view c : {"cpu", "memory", "pids"}) {
    if (!HasWord(f.cgroup_v2_controllers, c) && !HasWord(f.cgroup_v1_controllers, c)) {
      missing += (missing.empty() ? "" : ", ") + std::string(c);
    }
  }
  if (f.cgroup_v2_mount.empty() && f.cgroup_v1_controllers.empty()) {
    return Warns("cgroups", "no cgroups are mounted: jobs have no limits of CPU and memory",
                 "run `mount -t cgroup2 none /sys/fs/cgroup`");
  }
  if (!missing.empty()) {
    return Warns("cgroups", "no controller for " + missing + ": those limits are not enforced",
                 "boot with `cgroup_no_v1=all`, or with cgroup_enable=memory where that is missing");
  }
  std::string kind = f.cgroup_v1_controllers.empty() ? "version 2"
                     : f.cgroup_v2_mount.empty()     ? "version 1"
                                                     : "versions 1 and 2";
  return Fine("cgroups", kind + " with cpu, memory and pids");
}

Finding CheckFanotify(const HostFacts& f) {
  if (f.fanotify.ok) return Fine("fanotify", "changes at home are seen through it");
  std::string why = std::strerror(f.fanotify.error_number);
  return Warns("fanotify", "not usable (" + why + "): changes at home are seen through inotify, one watch a directory",
               f.uid == 0 ? "a kernel of 5.9 or newer has it" : "as root it is used");
}

Finding CheckInotify(const HostFacts& f) {
  if (!f.inotify_watches) {
    return Warns("inotify", "fs.inotify.max_user_watches is not there", "boot a kernel with CONFIG_INOTIFY_USER");
  }
  std::string text = std::to_string(*f.inotify_watches) + " watches a user";
  if (f.fanotify.ok || *f.inotify_watches >= 100000) return Fine("inotify", text);
  return Warns("inotify", text + ": a root with more directories is scanned again before every run",
               "run `sysctl -w fs.inotify.max_user_watches=524288`");
}

Finding CheckDescriptors(const HostFacts& f) {
  std::string text = "up to " + std::to_string(f.max_open_files) + " open files";
  if (f.max_open_files >= 4096) return Fine("descriptors", text);
  return Warns("descriptors", text + ": few for a daemon that serves many jobs",
               "raise the hard limit, `ulimit -Hn 65536`");
}

Finding CheckDisk(const HostFacts& f) {
  constexpr uint64_t kLittle = uint64_t{2} << 30, kNothing = uint64_t{64} << 20;
  std::string text = FormatBytes(f.free_bytes) + " free in " + Escape(f.state_directory);
  if (f.free_bytes < kNothing) return Fails("disk", text, "make room there");
  if (f.free_bytes < kLittle) return Warns("disk", text + ": little for a cache", "make room there");
  return Fine("disk", text);
}

Finding CheckPrograms(const HostFacts& f) {
  if (f.vrund.empty()) {
    return Fails("programs", "vrund is neither beside this program nor in PATH", "install it beside vctl");
  }
  if (!f.vrund_task) return Fails("programs", "vrund-task is not beside " + Escape(f.vrund), "install it there");
  return Fine("programs", Escape(f.vrund));
}

Finding CheckConfig(const HostFacts& f) {
  if (!f.config_error.empty())
    return Fails("configuration", f.config_error, "correct the file, or remove it and run `vctl up`");
  if (!f.configured) return Warns("configuration", "there is no cluster yet", "run `vctl up`");
  return Fine("configuration", Escape(f.config_file));
}

Finding CheckPort(const HostFacts& f) {
  if (f.local_controller) return Fine("port", "the controller listens on " + Escape(f.controller));
  if (f.port_error.empty()) return Fine("port", "free");
  return Warns("port", f.port_error, "`vctl up` takes another one");
}

Finding CheckDaemons(const HostFacts& f) {
  if (!f.home_error.empty()) return Warns("home", f.home_error, "any vrun starts it again");
  if (!f.home_running) return Fine("home", "not running; any vrun starts it");
  return Fine("home", "running");
}

Finding CheckController(const HostFacts& f) {
  if (!f.configured) return Fine("controller", "none is configured");
  if (!f.home_running) return Fine("controller", Escape(f.controller) + "; home would know whether it answers");
  if (f.controller_connected) return Fine("controller", Escape(f.controller) + " answers");
  return Fails(
      "controller",
      Escape(f.controller) + " is not reached" + (f.controller_error.empty() ? "" : ": " + Escape(f.controller_error)),
      f.local_controller ? "look into its log"
                         : "start it with `vctl up`, or check the network and the address "
                           "in the configuration");
}

Finding CheckClock(const HostFacts& f) {
  constexpr int64_t kMuch = 30ll * 1000 * 1000;
  if (f.clock_skew_us && *f.clock_skew_us > kMuch) {
    return Warns("clock",
                 "the controller's clock is " + std::to_string(*f.clock_skew_us / 1000000) + " s ahead of ours",
                 "synchronise the clocks: certificates and times depend on them");
  }
  if (!f.clock_synchronised) {
    return Fine("clock", "nothing here keeps the clock synchronised; that matters only between machines");
  }
  return Fine("clock", "synchronised");
}

// The message comes from the controller and says what to do.
Finding CheckS3(const HostFacts& f) {
  const std::string where = "bucket " + Escape(f.s3_bucket) + " at " + Escape(f.s3_endpoint);
  if (!f.s3_problem.empty()) return Warns("s3", Escape(f.s3_problem), "runs go on without it; nodes fetch from home");
  if (!f.s3_checked) return Fine("s3", where + "; the controller is about to try it");
  return Fine("s3", where + " works");
}

}  // namespace

std::vector<Finding> CheckNodeEssentials(const HostFacts& f) {
  return {CheckRoot(f), CheckKernel(f), CheckFuse(f), CheckUserNamespaces(f), CheckOverlay(f)};
}

std::vector<Finding> CheckAll(const HostFacts& f) {
  std::vector<Finding> out = CheckNodeEssentials(f);
  out.push_back(CheckCgroups(f));
  bool only_submits = f.configured && !f.local_node && !f.local_controller;
  if (only_submits) {
    for (Finding& finding : out) {
      if (finding.level != Level::kFail) continue;
      finding.level = Level::kWarn;
      finding.what_to_do += " (only a node on this machine needs it; jobs can be submitted)";
    }
  }
  for (auto* check : {CheckFanotify, CheckInotify, CheckDescriptors, CheckDisk, CheckPrograms, CheckConfig, CheckPort,
                      CheckDaemons, CheckController, CheckClock}) {
    out.push_back(check(f));
  }
  if (!f.s3_bucket.empty()) out.push_back(CheckS3(f));
  return out;
}

}  // namespace vrun::cli
