// SPDX-License-Identifier: Apache-2.0
#include "home/home.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/message_socket.h"
#include "base/log.h"
#include "home/clients/admin_queries.h"
#include "home/clients/cache_queries.h"
#include "home/clients/client_server.h"
#include "home/clients/home_metrics.h"
#include "home/clients/kept_queries.h"
#include "home/clients/log_query.h"
#include "home/clients/queries.h"
#include "home/frozen/file_lease.h"
#include "home/frozen/frozen_files.h"
#include "home/frozen/frozen_roots.h"
#include "home/links/controller_client.h"
#include "home/links/home_id.h"
#include "home/links/node_links.h"
#include "home/links/shut_out.h"
#include "home/pack/digest_cache.h"
#include "home/root/root_files.h"
#include "home/root/root_tree.h"
#include "home/root/tree_follower.h"
#include "home/root/tree_table.h"
#include "home/runs/away_jobs.h"
#include "home/runs/gang/gang_run.h"
#include "home/runs/job_roots.h"
#include "home/runs/launch.h"
#include "home/runs/pod/pod_run.h"
#include "home/runs/run_files.h"
#include "home/runs/runs.h"
#include "home/runs/snapshot_client.h"
#include "home/runs/withheld.h"
#include "home/serve/content_server.h"
#include "home/serve/live_writes.h"
#include "home/serve/private_files.h"
#include "home/streams/log_spool.h"
#include "http/metrics_server.h"
#include "identity/renewal.h"
#include "jobs/gang.h"
#include "rpc/credentials.h"
#include "telemetry/telemetry.h"

namespace vrun::home {
namespace {

// Where a node on this machine stores its cache and tasks; never part of a root.
constexpr const char* kNodeState = "/var/lib/vrun";
constexpr std::chrono::milliseconds kEndingPause{20};
constexpr int64_t kLookAgainMicros = 60'000'000;  // between two tries to renew a certificate that has ended
constexpr int64_t kEndingMicros = 8'000'000;      // how long the previous home may take to exit

void TellReady(int fd, const std::string& line) {
  if (fd < 0) return;
  (void)WriteAll(fd, line + "\n");
  ::close(fd);
}

// A state directory that cannot be written (read-only or full) is replaced by one beside the socket: runs work, but
// nothing survives a reboot.
Status PreparePlaces(Places* places) {
  Status made = MakePlaces(*places, ::geteuid());
  if (made && ::access(places->state_dir.c_str(), W_OK) == 0) return {};
  VRUN_TRY(MakeDirs(places->socket_dir, 0700));
  VRUN_TRY(CheckSocketDirectory(*places, ::geteuid()));
  std::string other = places->socket_dir + "/state";
  VRUN_TRY(MakeDirs(other, 0700));
  LogWarning("{}: cannot be written{}{}: state is kept in {} instead", Escape(places->state_dir), made ? "" : ": ",
             made ? "" : made.error().message(), Escape(other));
  places->state_dir = other;
  return {};
}

FrozenFiles::Options FrozenOptions(const Places& places, const TreeTable& trees) {
  FrozenFiles::Options options;
  options.now = [&trees] { return trees.current(); };
  options.kept.directory = places.state_dir + "/frozen/content";
  return options;
}

// A run uses a few descriptors, a pinned connection some more, a frozen root one per file.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // Root may raise it to the kernel's limit per process.
  rlimit most{0, 0};
  most.rlim_cur = most.rlim_max =
      std::strtoull(ReadFile("/proc/sys/fs/nr_open", 32).value_or("0").c_str(), nullptr, 10);
  if (most.rlim_max > limit.rlim_max && ::setrlimit(RLIMIT_NOFILE, &most) == 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// One home per user: the lock is on the socket's directory, so it covers everybody who could reach the same socket. An
// exiting home has the lock but no socket: it copies the files that it only holds open.
Result<UniqueFd> Lock(const Places& places) {
  VRUN_ASSIGN(UniqueFd lock, OpenFile(places.socket_dir + "/home.lock", O_RDWR | O_CREAT, 0600));
  for (const int64_t began = MonotonicMicros();; std::this_thread::sleep_for(kEndingPause)) {
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
    if (errno != EWOULDBLOCK) return ErrnoError("lock " + Escape(places.socket_dir) + "/home.lock");
    if (ConnectUnix(places.socket)) {
      return Error(Code::kExists, "another home daemon runs already: " + Escape(places.socket));
    }
    if (MonotonicMicros() - began > kEndingMicros) {
      return Error(Code::kExists, "the previous home daemon does not exit: " + Escape(places.socket));
    }
  }
}

// What --expose cannot open: our own state, and each file of secrets named in the configuration.
std::vector<std::string> OwnPlaces(const Places& places, const Config& config) {
  std::vector<std::string> own = {places.config_dir, places.state_dir, places.socket_dir, places.pki_dir, kNodeState};
  if (!config.credentials.empty()) own.push_back(config.credentials);
  for (const std::string* file : {&config.s3_credentials, &config.traces_headers}) {
    if (!file->empty()) own.push_back(*file);
  }
  if (const char* directory = ::getenv("VRUN_DIR"); directory != nullptr && directory[0] == '/') {
    own.push_back(directory);
  }
  return own;
}

// Of the administrator of this machine: what no --expose opens (home/root/secrets/own_list.h).
constexpr const char* kAdminList = "/etc/vrun/private";

DenyList::Options DenyOptions(const std::string& root, const Places& places, const Config& config) {
  DenyList::Options deny;
  deny.root = root;
  if (const char* home = ::getenv("HOME"); home != nullptr && home[0] == '/') deny.homes.push_back(home);
  if (const passwd* me = ::getpwuid(::geteuid()); me != nullptr && me->pw_dir != nullptr && me->pw_dir[0] == '/') {
    deny.homes.push_back(me->pw_dir);
  }
  if (::geteuid() == 0) {
    deny.homes.push_back("/root");
    deny.home_parents.push_back("/home");
  }
  deny.own = OwnPlaces(places, config);
  deny.admin_list = kAdminList;
  deny.user_list = places.config_dir + "/private";
  if (config.job_writes == "any") deny.writes = JobWrites::kAny;
  if (config.job_writes == "own") deny.writes = JobWrites::kOwn;
  return deny;
}

// For tests: VRUN_SCAN_PAUSE milliseconds before each piece of the first scan.
std::chrono::milliseconds ScanPause() {
  const char* pause = ::getenv("VRUN_SCAN_PAUSE");
  return std::chrono::milliseconds(pause != nullptr ? std::strtol(pause, nullptr, 10) : 0);
}

Launch::Defaults DefaultsOf(const Config& config) { return {.pool = config.pool, .live = config.view == "live"}; }

// The configuration is read again when its file or the certificate has changed: `vctl up` may run after the start of
// home.
class ClusterConfig {
 public:
  ClusterConfig(const Places& places, Launch::Defaults* defaults, RootTree* tree, ControllerClient* controller,
                NodeLinks* nodes, SnapshotClient* snapshots, EventLoop* loop)
      : loop_(loop),
        places_(places),
        defaults_(defaults),
        tree_(tree),
        controller_(controller),
        nodes_(nodes),
        snapshots_(snapshots),
        shut_out_(loop, controller, nodes) {}

  // When home's certificate ends; microseconds since 1970; 0: it has none.
  int64_t certificate_ends_us() const { return ends_us_; }
  void Refresh() {
    std::string now = Stamp(places_.config_file) + Stamp(certificate_);
    if (now == stamp_ && !EndedWhileAsleep()) return;
    auto config = ReadConfig(places_.config_file);
    if (!config) {
      stamp_ = now;
      bool none = config.error().code() == Code::kNotFound;
      return controller_->UseNone(
          none ? Error(Code::kNotFound,
                       "no cluster is configured: `vctl up` makes one on this machine, `vctl login TOKEN` joins one")
               : config.error());
    }
    *defaults_ = DefaultsOf(*config);
    tree_->DenyOwn(OwnPlaces(places_, *config));
    certificate_ = config->credentials + "/" + config->credentials_name + ".pem";
    stamp_ = Stamp(places_.config_file) + Stamp(certificate_);
    if (config->controller.empty()) {
      return controller_->UseNone(
          Error(Code::kNotFound,
                "no cluster is configured: `vctl up` makes one on this machine, `vctl login TOKEN` joins one"));
    }
    const identity::Place place{config->credentials, config->credentials_name, config->controller};
    if (Status renewed = identity::RenewIfEnded(place); !renewed) LogWarning("{}", renewed.error().message());
    renewal_.emplace(loop_, place);
    stamp_ = Stamp(places_.config_file) + Stamp(certificate_);
    auto credentials = rpc::LoadCredentials(config->credentials, config->credentials_name);
    if (!credentials) {
      return controller_->UseNone(
          Error(credentials.error().code(), credentials.error().message() + ": `vctl login` joins the cluster again"));
    }
    telemetry::UseCluster(credentials->ca);
    nodes_->UseCredentials(*credentials);
    snapshots_->Use(config->snapshots, *credentials);
    controller_->Use(config->controller, *credentials);
    shut_out_.Use(config->credentials);
    const auto life = rpc::LifetimeOf(credentials->certificate);
    ends_us_ = life ? life->until_us : 0;
    LogInfo("controller {}", Escape(config->controller));
  }

 private:
  // Timers do not run while the machine sleeps, and whoever wakes it wants to work.
  bool EndedWhileAsleep() {
    if (ends_us_ == 0 || WallMicros() < ends_us_) return false;
    return MonotonicMicros() - std::exchange(looked_us_, MonotonicMicros()) > kLookAgainMicros;
  }

  static std::string Stamp(const std::string& path) {
    struct stat st;
    if (path.empty() || ::stat(path.c_str(), &st) != 0) return "-;";
    return std::to_string(st.st_ino) + "." + std::to_string(st.st_mtim.tv_sec) + "." +
           std::to_string(st.st_mtim.tv_nsec) + "." + std::to_string(st.st_size) + ";";
  }

  EventLoop* const loop_;
  const Places places_;
  Launch::Defaults* const defaults_;
  RootTree* const tree_;
  ControllerClient* const controller_;
  NodeLinks* const nodes_;
  SnapshotClient* const snapshots_;
  ShutOutFollower shut_out_;
  std::optional<identity::Renewal> renewal_;
  int64_t ends_us_ = 0;
  int64_t looked_us_ = 0;  // monotonic
  std::string certificate_;
  std::string stamp_ = "never";
};

Result<std::string> RealRoot(const std::string& path) {
  char resolved[PATH_MAX];
  if (path.empty() || path[0] != '/') return Error(Code::kInvalid, "root " + Escape(path) + ": not an absolute path");
  if (::realpath(path.c_str(), resolved) == nullptr) return ErrnoError("root " + Escape(path));
  return std::string(resolved);
}

constexpr int64_t kAgeMicros = 60'000'000;

// All parts of a home, in order of dependency.
class Home {
 public:
  Home(EventLoop* loop, const Places& places, const Config& config, const std::string& root, RootFiles files,
       std::shared_ptr<SharedMappings> mappings)
      : loop_(loop),
        home_id_(LoadHomeId(places.state_dir)),
        private_files_(&trees_, places.state_dir + "/private-files"),
        root_files_(std::move(files)),
        files_(&root_files_, FrozenOptions(places, trees_)),
        digests_(places.state_dir + "/digests"),
        live_writes_({root, places.state_dir + "/apply", [this] { return trees_.rules(); }, nullptr, Judge()}),
        content_(&trees_, &files_, &digests_, 3, places.state_dir + "/traces", home_id_, places.state_dir + "/peers"),
        tree_(loop,
              {.root = root,
               .deny = DenyOptions(root, places, config),
               .cookie_directory = places.state_dir + "/watch",
               .mappings = std::move(mappings),
               .on_rules =
                   [this](const DenyRules& rules, bool first) {
                     private_files_.Remember(rules, !first);
                     content_.hidden().Set(rules.Missable(HiddenNames::kMost));
                   },
               .pause = ScanPause()},
              &trees_),
        follower_(loop, &tree_, &content_.tree_board()),
        frozen_(loop, &tree_, &trees_, &files_, places.state_dir + "/frozen"),
        controller_(loop, home_id_),
        spool_(loop, places.state_dir + "/spool"),
        nodes_(loop, &content_, home_id_),
        snapshots_(loop, &content_, &tree_, &trees_, home_id_),
        defaults_(DefaultsOf(config)),
        cluster_(places, &defaults_, &tree_, &controller_, &nodes_, &snapshots_, loop),
        roots_(&tree_, &trees_, &frozen_, &files_, &content_.tree_board(), Judge()),
        run_files_(root, places.state_dir),
        withheld_(loop, &controller_, &nodes_, &run_files_),
        away_(loop, &controller_, &roots_, &snapshots_, &run_files_),
        runs_(loop, &controller_, &roots_, &content_.traces(), &spool_, &run_files_, &away_,
              RunMakers(config.conflicts == "error")),
        queries_(loop, &controller_, &nodes_, &roots_, &runs_, &away_, &withheld_, &content_, root),
        admin_(&controller_, &defaults_),
        clients_(loop, &runs_, &queries_, &admin_, [this] { cluster_.Refresh(); }),
        metrics_address_(config.home_metrics) {
    root_files_.SetJudge(Judge());
    content_.SetLiveWrites(&live_writes_);
    live_writes_.OnLook([this] { content_.tree_board().Look(); });
    content_.SetStale([this](const std::string& path) { tree_.LookAt(path); });
    trees_.SetWant([this](const std::string& path) { tree_.LookAt(path); });
    content_.tree_board().SetMark([this] { return live_writes_.Applied(); });
    PassQueries();
    AgeLent();
  }

  Status Start(const std::string& socket) {
    cluster_.Refresh();
    VRUN_TRY(clients_.Listen(socket));
    // Before anything is served, and as early as possible, so that little can change before.
    frozen_.Recall();
    tree_.Start();
    runs_.Recover();
    ServeMetrics();
    return {};
  }

  ~Home() {
    live_writes_.OnLook(nullptr);
    files_.Close();  // copies files that are only held open, while they are still claimed
  }

  void End() {
    clients_.Stop();
    runs_.HomeEnds();
    // One more turn of the loop: the last messages are still being sent to the clients.
    loop_->Post([loop = loop_] { loop->Stop(); });
  }

 private:
  // Work does not depend on it.
  void ServeMetrics() {
    if (metrics_address_.empty()) return;
    auto server = http::ServeMetrics(metrics_address_, loop_, [this] { return MetricsText(Figures()); });
    if (!server) return LogWarning("home_metrics: {}", server.error().message());
    metrics_ = std::move(*server);
  }

  HomeFigures Figures() {
    HomeFigures figures{.connected = controller_.connected(), .runs = runs_.running(), .root = roots_.facts()};
    if (const auto now = roots_.current()) figures.entries = now->entries;
    figures.served_bytes = content_.served_bytes();
    figures.metadata_requests = content_.metadata_requests();
    figures.certificate_ends_us = cluster_.certificate_ends_us();
    return figures;
  }

  Runs::Makers RunMakers(bool conflicts_fail) {
    return {.job_run = [this, conflicts_fail](JobRun::Plan plan, JobRun::Sink* sink) -> std::unique_ptr<JobRun> {
              auto pod = [this, conflicts_fail](JobRun::Plan of_pod, JobRun::Sink* to) {
                return std::make_unique<PodRun>(loop_, &controller_, &nodes_, &snapshots_, &roots_, &live_writes_,
                                                &content_.traces(), &run_files_, conflicts_fail, std::move(of_pod), to);
              };
              if (!IsGang(plan.gang)) return pod(std::move(plan), sink);
              return std::make_unique<GangRun>(loop_, &controller_, &roots_, &run_files_, pod, std::move(plan), sink);
            },
            .launch =
                [this](const v1::Run& run, Launch::Events events) {
                  return std::make_shared<Launch>(loop_, &controller_, &tree_, &snapshots_, defaults_, run,
                                                  std::move(events));
                }};
  }

  void PassQueries() {
    using Client = Queries::Client;
    queries_.Pass(v1::Query::kShutdown, [this](const Client& client, const v1::Query&) {
      v1::HomeMessage done;
      done.mutable_done();
      client->Send(done);
      client->Close();
      End();
    });
    queries_.Pass(v1::Query::kChange,
                  [this](const Client& client, const v1::Query& query) { admin_.Change(client, query.change()); });
    queries_.Pass(v1::Query::kDrain,
                  [this](const Client& client, const v1::Query& query) { admin_.Drain(client, query.drain()); });
    queries_.Pass(v1::Query::kMaintenance, [this](const Client& client, const v1::Query& query) {
      admin_.Maintain(client, query.maintenance());
    });
    queries_.Pass(v1::Query::kWhoAmI, [this](const Client& client, const v1::Query&) {
      admin_.WhoAmI(client, cluster_.certificate_ends_us());
    });
    queries_.Pass(v1::Query::kSnapshot, [this](const Client& client, const v1::Query& query) {
      snapshots_.Answer(client, query.snapshot());
    });
    queries_.Pass(v1::Query::kCache, [this](const Client& client, const v1::Query& query) {
      AnswerCacheQuery(loop_, &controller_, &nodes_, client, query.cache());
    });
    queries_.Pass(v1::Query::kKept, [this](const Client& client, const v1::Query& query) {
      AnswerKeptQuery(loop_, &controller_, &nodes_, &roots_, &run_files_, client, query.kept());
    });
    queries_.Pass(v1::Query::kReadLog, [this](const Client& client, const v1::Query& query) {
      AnswerLogQuery(loop_, &controller_, &spool_, &runs_, client, query.read_log());
    });
  }

  // Of open files, by any thread.
  RootFiles::Judge Judge() {
    return [this](int fd, const struct stat& st, std::string_view path) { return private_files_.Check(fd, st, path); };
  }

  void AgeLent() {
    content_.lent().Age(MonotonicMicros());
    loop_->After(kAgeMicros, [this] { AgeLent(); });
  }

  EventLoop* const loop_;
  const std::string home_id_;
  TreeTable trees_;
  PrivateFiles private_files_;
  RootFiles root_files_;
  FrozenFiles files_;  // current and old content of the root
  DigestCache digests_;
  LiveWrites live_writes_;
  ContentServer content_;
  RootTree tree_;
  TreeFollower follower_;
  FrozenRoots frozen_;
  ControllerClient controller_;
  LogSpool spool_;
  NodeLinks nodes_;
  SnapshotClient snapshots_;
  Launch::Defaults defaults_;
  ClusterConfig cluster_;
  const JobRoots roots_;
  const RunFiles run_files_;
  Withheld withheld_;
  AwayJobs away_;
  Runs runs_;
  Queries queries_;
  AdminQueries admin_;
  ClientServer clients_;
  const std::string metrics_address_;
  std::unique_ptr<http::Server> metrics_;  // destroyed first
};

Status Run(const HomeOptions& options) {
  VRUN_ASSIGN(Places places, FindPlaces());
  VRUN_TRY(PreparePlaces(&places));
  VRUN_ASSIGN(UniqueFd lock, Lock(places));
  Config config;
  auto read = ReadConfig(places.config_file);
  if (read)
    config = *read;
  else if (read.error().code() != Code::kNotFound)
    return read.error();
  VRUN_ASSIGN(std::string root, RealRoot(options.root.empty() ? config.root : options.root));
  const auto mappings = std::make_shared<SharedMappings>(root);
  VRUN_ASSIGN(RootFiles files, RootFiles::Open(root, mappings));

  RaiseDescriptorLimit();
  ::signal(SIGPIPE, SIG_IGN);
  BlockLeaseSignals();
  EventLoop loop;
  std::optional<Home> home;
  // Before any thread starts, because threads inherit the mask.
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    VRUN_TRY(loop.OnSignal(signal, [&home](int s) {
      LogInfo("signal {}: home ends, jobs go on", s);
      home->End();
    }));
  }
  const auto traces = telemetry::Export::TryBegin({config.traces_endpoint, config.traces_headers, config.traces_ratio},
                                                  "vrun-home", config.credentials_name, "");
  home.emplace(&loop, places, config, root, std::move(files), mappings);
  VRUN_TRY(home->Start(places.socket));
  LogInfo("home of {} at {}, root {}", ::geteuid(), Escape(places.socket), Escape(root));
  TellReady(options.ready_fd, "ok");
  loop.Run();
  // Runs deferred calls, which need the parts of home.
  for (int i = 0; i < 4; ++i) loop.RunOnce(0);
  home.reset();
  LogInfo("home has ended");
  return {};
}

}  // namespace

int HomeMain(const HomeOptions& options) {
  InitLog("home");
  if (options.ready_fd >= 0) ::fcntl(options.ready_fd, F_SETFD, FD_CLOEXEC);
  Status ran = Run(options);
  if (ran) return 0;
  LogError("{}", ran.error().message());
  // After "ok" the descriptor is already closed; an error can only come before.
  TellReady(options.ready_fd, "error: " + ran.error().message());
  return 1;
}

}  // namespace vrun::home
