// SPDX-License-Identifier: Apache-2.0
#include "cli/host/local_cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/login.h"
#include "cli/base/values.h"
#include "cli/host/host_facts.h"
#include "cli/request/job_command.h"
#include "people/members.h"

namespace vrun::cli {
namespace {

constexpr int kDefaultPort = 7420;
constexpr int kNodeGraceMs = 20000;
constexpr int kDaemonGraceMs = 10000;
constexpr int64_t kConnectPatience = 10 * 1000 * 1000;

std::string FirstLine(const std::string& file) {
  auto text = ReadFile(file, 65536);
  if (!text) return "";
  return text->substr(0, text->find('\n'));
}

// A word that is allowed in a certificate.
std::string CertificateName(std::string_view text, std::string_view otherwise) {
  std::string out;
  for (char c : text) {
    bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              std::string_view("._-+").find(c) != std::string_view::npos;
    out.push_back(ok ? c : '-');
  }
  return out.empty() ? std::string(otherwise) : out;
}

std::string UserName() {
  auto passwd = ReadFile("/etc/passwd", 16u << 20);
  return CertificateName(
      FindUser(::geteuid(), passwd ? *passwd : "", [](const char* n) -> const char* { return std::getenv(n); }).name,
      "user");
}

std::string Text(const HostPort& a) {
  bool v6 = a.host.find(':') != std::string::npos;
  return (v6 ? "[" + a.host + "]" : a.host) + ":" + std::to_string(a.port);
}

// Binds a socket without listening. Returns the port.
Result<int> BindOnce(const HostPort& address) {
  sockaddr_storage storage{};
  socklen_t length = 0;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(address.port));
    length = sizeof *v4;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(address.port));
    length = sizeof *v6;
  } else {
    return Error(Code::kInvalid, "listen on " + Escape(Text(address)) +
                                     ": not a numeric address: "
                                     "write 127.0.0.1:PORT or 0.0.0.0:PORT");
  }
  UniqueFd fd(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("socket");
  int on = 1;  // like the server: connections in TIME_WAIT do not block the port
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0) {
    int e = errno;
    std::string what_to_do =
        e == EADDRINUSE ? ": choose another port with --listen HOST:PORT" : ": choose another address";
    return Error(e == EADDRINUSE ? Code::kExists : CodeFromErrno(e),
                 "listen on " + Escape(Text(address)) + ": " + std::strerror(e) + what_to_do);
  }
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) return ErrnoError("getsockname");
  return ntohs(storage.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
}

class Up {
 public:
  Up(const HomeConnection& home, const UpOptions& options, void (*tell)(const std::string&))
      : home_(home), places_(home.places()), files_(places_), options_(options), tell_(tell) {}

  Result<UpReport> Go() {
    VRUN_TRY(CheckPrivileges());
    VRUN_TRY(MakePlaces(places_, ::geteuid()));
    VRUN_TRY(MakeDirs(files_.dir(), 0700));
    VRUN_ASSIGN(UniqueFd lock, LockFile(files_.lock(), true));
    VRUN_ASSIGN(vrund_, FindProgram("vrund"));
    auto config = ReadConfig(places_.config_file);
    if (config) {
      config_ = *std::move(config);
    } else if (config.error().code() != Code::kNotFound) {
      return std::move(config).error();
    }
    // Must not overwrite the address of a remote cluster to which the user submits.
    if (!config_.controller.empty() && !PathExists(files_.listen_file())) {
      return Error(Code::kExists, "vctl up: " + Escape(places_.config_file) + " names the controller " +
                                      Escape(config_.controller) +
                                      ", which was not started here: remove the file, or set "
                                      "VRUN_DIR to another directory");
    }
    if (!options_.root.empty()) config_.root = options_.root;
    VRUN_TRY(MakeCertificates());
    VRUN_TRY(StartController());
    VRUN_TRY(StartSnapshots());
    VRUN_TRY(WriteConfiguration());
    VRUN_TRY(StartHome());
    if (options_.node) VRUN_TRY(StartNode());
    VRUN_TRY(WaitConnected());
    report_.controller = config_.controller;
    report_.http = FirstLine(files_.http_file());
    report_.root = config_.root;
    return std::move(report_);
  }

 private:
  // Call before anything is changed.
  Status CheckPrivileges() {
    if (!options_.node) return {};
    if (::geteuid() != 0) {
      return Error(Code::kDenied,
                   "vctl up: a node needs root (namespaces, mounts, cgroups): run it as root, or "
                   "`vctl up --no-node` and add a node on another host");
    }
    for (const Finding& f : CheckNodeEssentials(GatherEssentials())) {
      if (f.level == Level::kFail) {
        return Error(Code::kUnsupported, "vctl up: " + f.text + ": " + f.what_to_do);
      }
    }
    return {};
  }

  Status Pki(std::vector<std::string> words) {
    words.insert(words.begin(), {vrund_, "pki"});
    Status status = RunHelper(words);
    if (!status) return std::move(status).error().With("certificates");
    return {};
  }

  Status Issue(const std::string& role, const std::string& name) {
    return Pki(
        {"issue", "--ca", places_.pki_dir, "--dir", places_.pki_dir + "/" + role, "--role", role, "--name", name});
  }

  Status MakeCertificates() {
    home_name_ = UserName() + "@" + people::MachineName();
    VRUN_TRY(MakeDirs(places_.pki_dir, 0700));
    VRUN_TRY(Pki({"ca", "--dir", places_.pki_dir}));
    VRUN_TRY(Issue("controller", "controller"));
    VRUN_TRY(Issue("snapshots", "snapshots"));
    VRUN_TRY(Issue("home", home_name_));
    if (options_.node) VRUN_TRY(Issue("node", people::MachineName()));
    return {};
  }

  Result<HostPort> ChooseListen() {
    std::string wanted = options_.listen.empty() ? FirstLine(files_.listen_file()) : options_.listen;
    if (!wanted.empty()) {
      VRUN_ASSIGN(HostPort address, ParseHostPort(wanted, true));
      VRUN_ASSIGN(address.port, BindOnce(address));
      return address;
    }
    HostPort address{"127.0.0.1", kDefaultPort};
    if (BindOnce(address)) return address;
    address.port = 0;
    VRUN_ASSIGN(address.port, BindOnce(address));
    return address;
  }

  // The address at which the controller serves HTTP, and will the next time; "": it does not.
  Result<std::string> ChooseHttp() {
    if (options_.http == "none") return std::string();
    if (options_.http.empty()) return FirstLine(files_.http_file());
    VRUN_ASSIGN(HostPort address, ParseHostPort(options_.http, true));
    auto port = BindOnce(address);
    if (!port) return std::move(port).error().With("--http");
    address.port = *port;
    return Text(address);
  }

  Status StartController() {
    if (auto running = files_.Running("controller")) {
      std::string listens = FirstLine(files_.listen_file());
      if (!options_.listen.empty() && options_.listen != listens) {
        return Error(Code::kExists, "controller: it listens on " + Escape(listens) +
                                        " already: `vctl down` first to "
                                        "change that");
      }
      const std::string serves = FirstLine(files_.http_file());
      if (!options_.http.empty() && options_.http != (serves.empty() ? "none" : serves)) {
        return Error(Code::kExists, "controller: it runs already and serves HTTP at " +
                                        (serves.empty() ? "no address" : Escape(serves)) +
                                        ": `vctl down` first to change that");
      }
      VRUN_ASSIGN(HostPort address, ParseHostPort(listens));
      config_.controller = DialAddress(address);
      report_.daemons.push_back({"controller", listens, running->pid, false});
      return {};
    }
    VRUN_ASSIGN(HostPort address, ChooseListen());
    std::string listen = Text(address);
    DaemonSpec spec;
    spec.name = "controller";
    spec.arguments = {"controller",
                      "--listen",
                      listen,
                      "--state-dir",
                      places_.state_dir + "/controller",
                      "--pki",
                      places_.pki_dir + "/controller",
                      "--authority",
                      places_.pki_dir,
                      "--scheduler-config",
                      places_.config_dir + "/scheduler.toml"};
    VRUN_ASSIGN(const std::string http, ChooseHttp());
    AddTraces(&spec.arguments);
    if (!http.empty()) spec.arguments.insert(spec.arguments.end(), {"--http", http, "--home-socket", places_.socket});
    // Others trust only a door that root has opened.
    if (const std::string door = DoorPath(); !door.empty() && ::geteuid() == 0) {
      spec.arguments.insert(spec.arguments.end(), {"--door", door});
    }
    if (!config_.s3_bucket.empty()) {
      spec.arguments.insert(spec.arguments.end(),
                            {"--s3-bucket", config_.s3_bucket, "--s3-credentials", config_.s3_credentials});
      const auto given = [&](const char* option, const std::string& value) {
        if (!value.empty()) spec.arguments.insert(spec.arguments.end(), {option, value});
      };
      given("--s3-endpoint", config_.s3_endpoint);
      given("--s3-region", config_.s3_region);
      given("--s3-ca", config_.s3_ca);
      if (config_.s3_style == "host") spec.arguments.push_back("--s3-host-style");
    }
    VRUN_TRY(Start(std::move(spec), listen));
    VRUN_TRY(WriteFileAtomic(files_.listen_file(), listen + "\n", 0600));
    VRUN_TRY(WriteFileAtomic(files_.http_file(), http + "\n", 0600));
    config_.controller = DialAddress(address);
    return {};
  }

  // On the controller's host, at any port: who can reach the controller can reach this too.
  Status StartSnapshots() {
    const std::string controller = FirstLine(files_.listen_file());
    if (auto running = files_.Running("snapshots")) {
      report_.daemons.push_back({"snapshots", FirstLine(files_.snapshots_listen_file()), running->pid, false});
      return {};
    }
    auto before = ParseHostPort(FirstLine(files_.snapshots_listen_file()));
    if (!before || !BindOnce(*before)) {
      VRUN_ASSIGN(before, ParseHostPort(controller.substr(0, controller.rfind(':')) + ":0", true));
      VRUN_ASSIGN(before->port, BindOnce(*before));
    }
    const std::string listen = Text(*before);
    DaemonSpec spec;
    spec.name = "snapshots";
    spec.arguments = {"snapshots",
                      "--listen",
                      listen,
                      "--state-dir",
                      places_.state_dir + "/snapshots",
                      "--pki",
                      places_.pki_dir + "/snapshots"};
    if (config_.s3_snapshots == "on") {
      spec.arguments.insert(spec.arguments.end(),
                            {"--s3-bucket", config_.s3_bucket, "--controller", config_.controller});
      if (!config_.snapshots_size.empty()) {
        VRUN_ASSIGN(std::string size, Bytes("snapshots_size", config_.snapshots_size));
        spec.arguments.insert(spec.arguments.end(), {"--disk-bytes", size});
      }
    }
    VRUN_TRY(Start(std::move(spec), listen));
    VRUN_TRY(WriteFileAtomic(files_.snapshots_listen_file(), listen + "\n", 0600));
    config_.snapshots = DialAddress(*before);
    return {};
  }

  Status Start(DaemonSpec spec, const std::string& where) {
    spec.program = vrund_;
    spec.log_file = places_.log_dir + "/" + spec.name + ".log";
    VRUN_ASSIGN(ProcessId process, StartDaemon(spec));
    VRUN_TRY(WritePidFile(files_.pid_file(spec.name), process));
    tell_(spec.name + ": started, " + Escape(where) + ", pid " + std::to_string(process.pid));
    report_.daemons.push_back({spec.name, where, process.pid, true});
    return {};
  }

  Status WriteConfiguration() {
    config_.credentials = places_.pki_dir + "/home";
    config_.credentials_name = home_name_;
    std::string text = FormatConfig(config_);
    auto old = ReadFile(places_.config_file, 1u << 20);
    auto same = old ? ParseConfig(*old, places_.config_file) : Result<Config>(Error(Code::kNotFound, ""));
    // A file with the same settings is left alone, whatever its comments.
    if (same && FormatConfig(*same) == text) return {};
    return WriteConfig(places_.config_file, config_);
  }

  Status StartHome() {
    bool there = home_.Connect().has_value();
    VRUN_ASSIGN(UniqueFd socket, home_.ConnectOrStart());
    VRUN_ASSIGN(PeerCredentials peer, UnixPeer(socket.get()));
    v1::Query query;
    query.mutable_status();
    VRUN_ASSIGN(v1::HomeMessage answer, Ask(home_, query, false));
    if (answer.has_status() && answer.status().root() != config_.root) {
      return Error(Code::kExists, "home: serves " + Escape(answer.status().root()) + ", not " + Escape(config_.root) +
                                      ": `vctl down` first to change that");
    }
    if (!there) tell_("home: started, " + Escape(config_.root) + ", pid " + std::to_string(peer.pid));
    report_.daemons.push_back({"home", config_.root, peer.pid, !there});
    return {};
  }

  Status StartNode() {
    std::string before = FirstLine(files_.node_dir_file());
    std::string dir = !options_.node_directory.empty() ? options_.node_directory : before;
    if (dir.empty()) {
      const char* own = std::getenv("VRUN_DIR");
      dir = own != nullptr && *own != 0 ? places_.config_dir + "/node" : "/var/lib/vrun/node";
    }
    if (auto running = files_.Running("node")) {
      if (dir != before) {
        return Error(Code::kExists,
                     "node: it keeps its state in " + Escape(before) + ": `vctl down` first to change that");
      }
      report_.daemons.push_back({"node", before, running->pid, false});
      return {};
    }
    VRUN_TRY(MakeDirs(dir, 0755));
    VRUN_TRY(WriteFileAtomic(files_.node_dir_file(), dir + "\n", 0600));
    DaemonSpec spec;
    spec.name = "node";
    spec.arguments = {"node",
                      "--controller",
                      config_.controller,
                      "--name",
                      people::MachineName(),
                      "--pool",
                      config_.pool,
                      "--state-dir",
                      dir,
                      "--pki",
                      places_.pki_dir + "/node",
                      "--listen",
                      "127.0.0.1"};
    VRUN_TRY(AddBounds(&spec.arguments));
    AddTraces(&spec.arguments);
    for (const auto& [name, value] : {std::pair("passthrough", &config_.fuse_passthrough),
                                      {"push", &config_.fuse_push},
                                      {"readdirplus", &config_.fuse_readdirplus},
                                      {"no_open", &config_.fuse_no_open},
                                      {"cpu_latency", &config_.fuse_cpu_latency}}) {
      if (!value->empty()) spec.arguments.insert(spec.arguments.end(), {"--fuse", std::string(name) + "=" + *value});
    }
    return Start(std::move(spec), dir);
  }

  void AddTraces(std::vector<std::string>* arguments) const {
    for (const auto& [name, value] : {std::pair("--traces-endpoint", &config_.traces_endpoint),
                                      {"--traces-headers", &config_.traces_headers},
                                      {"--traces-ratio", &config_.traces_ratio}}) {
      if (!value->empty()) arguments->insert(arguments->end(), {name, *value});
    }
  }

  // Parses the bytes of a setting.
  Result<std::string> Bytes(const char* name, const std::string& value) const {
    auto parsed = ParseMemory(value);
    if (!parsed) return std::move(parsed).error().With(Escape(places_.config_file) + ": " + name);
    return std::to_string(*parsed);
  }

  Status AddBounds(std::vector<std::string>* arguments) const {
    if (!config_.cache_size.empty()) {
      VRUN_ASSIGN(std::string size, Bytes("cache_size", config_.cache_size));
      arguments->insert(arguments->end(), {"--cache-bytes", size});
    }
    const std::string& free = config_.cache_min_free;
    if (free.ends_with('%')) {
      auto percent = ParseNumber(std::string_view(free).substr(0, free.size() - 1), 90);
      if (!percent) return std::move(percent).error().With(Escape(places_.config_file) + ": cache_min_free");
      arguments->insert(arguments->end(), {"--cache-min-free-percent", std::to_string(*percent)});
    } else if (!free.empty()) {
      VRUN_ASSIGN(std::string amount, Bytes("cache_min_free", free));
      arguments->insert(arguments->end(), {"--cache-min-free-bytes", amount});
    }
    if (!config_.kept_size.empty()) {
      VRUN_ASSIGN(std::string size, Bytes("kept_size", config_.kept_size));
      arguments->insert(arguments->end(), {"--kept-bytes", size});
    }
    if (!config_.node_metrics.empty()) arguments->insert(arguments->end(), {"--metrics", config_.node_metrics});
    if (!config_.kept_days.empty()) {
      auto days = ParseNumber(config_.kept_days, 36500);
      if (days && *days == 0) days = Error(Code::kInvalid, "0: at least one day");
      if (!days) return std::move(days).error().With(Escape(places_.config_file) + ": kept_days");
      arguments->insert(arguments->end(), {"--kept-days", std::to_string(*days)});
    }
    return {};
  }

  // Home connects to the controller in the background; a run before that would fail.
  Status WaitConnected() {
    v1::Query query;
    query.mutable_status();
    std::string why;
    for (int64_t end = MonotonicMicros() + kConnectPatience; MonotonicMicros() < end;) {
      VRUN_ASSIGN(v1::HomeMessage answer, Ask(home_, query, true));
      if (answer.status().controller_connected()) return {};
      why = answer.status().controller_error();
      ::poll(nullptr, 0, 50);
    }
    return Error(Code::kUnavailable, "home: does not reach the controller at " + Escape(config_.controller) + ": " +
                                         (why.empty() ? "no answer" : Escape(why)) + ": look into " +
                                         Escape(places_.log_dir));
  }

  const HomeConnection& home_;
  const Places& places_;
  ClusterFiles files_;
  const UpOptions& options_;
  void (*tell_)(const std::string&);
  std::string vrund_, home_name_;
  Config config_;
  UpReport report_;
};

Status StopDaemon(const ClusterFiles& files, const std::string& name, int grace_ms, DownReport* report,
                  void (*tell)(const std::string&)) {
  if (auto running = files.Running(name)) {
    Status stopped = StopProcess(*running, grace_ms);
    if (!stopped) return std::move(stopped).error().With(name);
    tell(name + ": stopped");
    report->stopped.push_back(name);
  }
  ::unlink(files.pid_file(name).c_str());
  return {};
}

// Asks the process that answers on the socket to end, and waits for its pid.
Status StopHome(const HomeConnection& home, DownReport* report, void (*tell)(const std::string&)) {
  auto socket = home.Connect();
  if (!socket) return {};
  VRUN_ASSIGN(PeerCredentials peer, UnixPeer(socket->get()));
  auto process = IdentifyProcess(peer.pid);
  v1::ClientMessage message;
  message.mutable_query()->mutable_shutdown();
  (void)SendMessage(socket->get(), message);
  // It closes the connection when it ends, or answers first; in both cases we then wait for the process.
  pollfd p{socket->get(), POLLIN, 0};
  ::poll(&p, 1, kDaemonGraceMs);
  if (process) {
    Status stopped = StopProcess(*process, kDaemonGraceMs);
    if (!stopped) return std::move(stopped).error().With("home");
  }
  tell("home: stopped");
  report->stopped.push_back("home");
  return {};
}

Status UnmountBelow(const std::string& directory, DownReport* report, void (*tell)(const std::string&)) {
  if (directory.size() < 2 || ::geteuid() != 0) return {};
  VRUN_ASSIGN(std::string mounts, ReadFile("/proc/self/mountinfo"));
  for (const std::string& mount : MountsBelow(mounts, directory)) {
    if (::umount2(mount.c_str(), MNT_DETACH) != 0) return ErrnoError("unmount " + Escape(mount));
    tell("unmounted " + Escape(mount));
    report->unmounted.push_back(mount);
  }
  return {};
}

}  // namespace

bool UpReport::anything_started() const {
  return std::any_of(daemons.begin(), daemons.end(), [](const UpDaemon& d) { return d.started; });
}

std::optional<ProcessId> ClusterFiles::Running(const std::string& daemon) const {
  auto process = ReadPidFile(pid_file(daemon));
  if (!process || !IsAlive(*process)) return std::nullopt;
  return *process;
}

Result<UpReport> BringUp(const HomeConnection& home, const UpOptions& options, void (*tell)(const std::string&)) {
  return Up(home, options, tell).Go();
}

Result<DownReport> BringDown(const HomeConnection& home, bool all, void (*tell)(const std::string&)) {
  DownReport report;
  ClusterFiles files(home.places());
  if (!PathExists(files.dir()) && !home.Connect()) return report;
  VRUN_TRY(MakeDirs(files.dir(), 0700));
  VRUN_ASSIGN(UniqueFd lock, LockFile(files.lock(), true));
  v1::Query query;
  query.mutable_status();
  auto status = home.Connect() ? Ask(home, query, false) : Error(Code::kNotFound, "home");
  if (status && status->status().running_jobs() > 0 && !all) {
    return Error(Code::kAborted, "vctl down: " + std::to_string(status->status().running_jobs()) +
                                     " jobs run: wait for them, or end them with `vctl down --all`");
  }
  VRUN_TRY(StopDaemon(files, "node", kNodeGraceMs, &report, tell));
  VRUN_TRY(UnmountBelow(FirstLine(files.node_dir_file()), &report, tell));
  VRUN_TRY(StopHome(home, &report, tell));
  VRUN_TRY(StopDaemon(files, "snapshots", kDaemonGraceMs, &report, tell));
  VRUN_TRY(StopDaemon(files, "controller", kDaemonGraceMs, &report, tell));
  return report;
}

std::vector<std::string> MountsBelow(std::string_view mountinfo, const std::string& directory) {
  std::vector<std::string> out;
  while (!mountinfo.empty()) {
    size_t end = mountinfo.find('\n');
    std::string_view line = mountinfo.substr(0, end);
    mountinfo = end == std::string_view::npos ? std::string_view() : mountinfo.substr(end + 1);
    std::string_view field;
    for (int i = 0; i < 5; ++i) {
      size_t blank = line.find(' ');
      field = line.substr(0, blank);
      line = blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    }
    std::string path;  // with blanks and backslashes in octal
    for (size_t i = 0; i < field.size(); ++i) {
      if (field[i] == '\\' && i + 3 < field.size()) {
        path.push_back(static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0')));
        i += 3;
      } else {
        path.push_back(field[i]);
      }
    }
    if (path.starts_with(directory + "/")) out.push_back(std::move(path));
  }
  std::reverse(out.begin(), out.end());  // later mounts lie on earlier ones
  return out;
}

std::string DialAddress(const HostPort& listen) {
  HostPort out = listen;
  if (out.host == "0.0.0.0") out.host = "127.0.0.1";
  if (out.host == "::") out.host = "::1";
  return Text(out);
}

Status CheckPortFree(const HostPort& address) {
  auto port = BindOnce(address);
  if (!port) return std::move(port).error();
  return {};
}

}  // namespace vrun::cli
