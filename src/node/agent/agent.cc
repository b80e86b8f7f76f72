// SPDX-License-Identifier: Apache-2.0
#include "node/agent/agent.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/cpu_list.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/event_loop.h"
#include "base/io/file_lock.h"
#include "base/io/work_queue.h"
#include "base/log.h"
#include "gpu/amd.h"
#include "http/metrics_server.h"
#include "identity/renewal.h"
#include "node/agent/attempt.h"
#include "node/agent/controller_link.h"
#include "node/agent/cpu_shares.h"
#include "node/agent/kept_server.h"
#include "node/agent/node_caches.h"
#include "node/agent/node_facts.h"
#include "node/fs/kept_store.h"
#include "node/gang/gang.h"
#include "node/gpus/node_gpus.h"
#include "node/metrics/node_metrics.h"
#include "node/uid_ranges.h"
#include "people/members.h"
#include "rpc/rpc.h"
#include "telemetry/telemetry.h"

namespace vrun::node {
namespace {

// Checks what every task needs to start; `vctl doctor` reports more.
Status CheckHost() {
  if (::geteuid() != 0)
    return Error(Code::kDenied, "a node needs root, to make namespaces, mounts and cgroups: start it as root");
  if (!OpenFile("/dev/fuse", O_RDWR)) {
    return ErrnoError("/dev/fuse")
        .With("a node needs FUSE: run `modprobe fuse`; in a container add `--device /dev/fuse`");
  }
  return {};
}

// ext4 without a journal gives no inode away for minutes after it was deleted, and to find a free one it looks at all
// of these in the group of the new file's directory: with a few hundred tasks that have ended that is a millisecond for
// each file of the next one. Below a directory with this flag each task gets a group of its own.
void SpreadTasks(const std::string& directory) {
  struct stat st;
  const auto fd = OpenFile(directory, O_RDONLY | O_DIRECTORY);
  if (!fd || ::fstat(fd->get(), &st) != 0) return;
  const std::string number = std::to_string(major(st.st_dev)) + ":" + std::to_string(minor(st.st_dev));
  char device[PATH_MAX];
  const ssize_t n = ::readlink(("/sys/dev/block/" + number).c_str(), device, sizeof device);
  if (n <= 0) return;
  const std::string path(device, static_cast<size_t>(n));
  const auto journal = ReadFile("/sys/fs/ext4" + path.substr(path.rfind('/')) + "/journal_task", 64);
  if (!journal || *journal != "<none>\n") return;
  int flags = 0;
  if (::ioctl(fd->get(), FS_IOC_GETFLAGS, &flags) != 0 || (flags & FS_TOPDIR_FL) != 0) return;
  flags |= FS_TOPDIR_FL;
  if (::ioctl(fd->get(), FS_IOC_SETFLAGS, &flags) != 0) LogDebug("{}: cannot be marked", Escape(directory));
}

std::vector<std::string> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (dir == nullptr) return names;
  while (dirent* e = ::readdir(dir.get())) {
    if (e->d_name[0] != '.') names.push_back(e->d_name);
  }
  return names;
}

v1::Resources MachineResources(const AgentOptions& o) {
  v1::Resources r;
  const auto count = static_cast<uint32_t>(AllowedCpus().size());
  r.set_milli_cpus(o.milli_cpus > 0 ? o.milli_cpus : count * 1000);
  struct sysinfo info {};
  ::sysinfo(&info);
  r.set_memory_bytes(o.memory_bytes > 0 ? o.memory_bytes : static_cast<uint64_t>(info.totalram) * info.mem_unit);
  r.set_gpus(static_cast<uint32_t>(std::max(o.gpus, 0)));  // if they were given; otherwise FindGpus knows
  r.set_gpu_type(o.gpu_type);
  return r;
}

// The host's names, so that a job can resolve them whatever its root's /etc/hosts contains. Uses the address where
// homes reach the node, if it belongs to this host.
std::string HostsLines(const AgentOptions& o) {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "";
  in_addr v4{};
  in6_addr v6{};
  const std::string& listen = o.listen_host;
  const bool usable = (::inet_pton(AF_INET, listen.c_str(), &v4) == 1 && v4.s_addr != INADDR_ANY) ||
                      (::inet_pton(AF_INET6, listen.c_str(), &v6) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&v6));
  std::string line = (usable ? listen : "127.0.1.1") + "\t" + name;
  if (o.name != name) line += " " + o.name;
  return line + "\n";
}

// When the first process here was started, in ticks since the boot (proc(5), stat, field 22). "": not known.
std::string FirstProcessStart() {
  const std::string stat = ReadFile("/proc/1/stat").value_or("");
  size_t at = stat.rfind(')');  // the name before it may have spaces
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? "" : stat.substr(at + 1, stat.find(' ', at + 1) - at - 1);
}

// Changes at every boot of the host, and where the host is a container, at every start of it: attempts recorded under
// another boot id are certainly over.
uint64_t BootId() {
  const std::string text = ReadFile("/proc/sys/kernel/random/boot_id").value_or("") + FirstProcessStart();
  uint64_t id = 0;
  for (char c : text) id = id * 1099511628211u ^ static_cast<uint8_t>(c);
  return id;
}

class Agent : public AttemptHost {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        shut_out_(options.pki_directory),
        tasks_directory_(options.state_directory + "/tasks"),
        reports_directory_(options.state_directory + "/reports"),
        kept_(options.state_directory + "/kept", {options.kept_bytes, options.kept_days}, WallMicros),
        hosts_(HostsLines(options)) {}

  Status Start();
  void Run() {
    loop_.Run();
    // Supervisors of attempts whose ends are being written are released.
    reports_.Drain();
    loop_.RunOnce(0);
  }

  EventLoop* loop() override { return &loop_; }
  FsClient* FsServer(const Tenant& tenant, Error* error) override;
  Result<UidRanges::Range> Uids(const Tenant& tenant, const std::vector<uint32_t>& ids) override {
    return uid_ranges_.RangeFor(tenant.Key(), ids);
  }
  Result<std::unique_ptr<SupervisorLink>> TakeSupervisor() override;
  uint64_t NextLease() override { return next_lease_++; }
  CpuList GiveCpus(const AttemptKey& key, uint32_t milli_cpus) override { return cpus_.Give(key, milli_cpus); }
  void FreeCpus(const AttemptKey& key) override { cpus_.Free(key); }
  Result<v1::Isolation> Isolate(const v1::Resources& resources, std::vector<uint32_t> ports) override;
  void Report(const v1::AttemptReport& report, std::function<void()> kept = nullptr) override;
  void Over(const AttemptKey& key) override;
  void Pass(const v1::JobWord& word) override;
  void Pass(const v1::ExecInPod& exec) override;
  const std::string& node_name() const override { return options_.name; }
  const std::string& hosts() const override { return hosts_; }
  const std::string& pool() const override { return options_.pool; }
  const std::string& tasks_directory() const override { return tasks_directory_; }
  KeptStore* kept() override { return &kept_; }
  void KeptMore() override { kept_server_->Expire(); }
  bool PrepareGpus(const v1::StartAttempt& order, std::function<void(Result<v1::GpuInjection>)> done) override {
    if (order.placement().gpu_mask() == 0 || (gpus_ == nullptr && !amd_)) return false;
    if (gpus_ != nullptr) {
      gpus_->Prepare(order, std::move(done));
    } else {
      loop_.Post([done = std::move(done), list = GiveAmd(order.placement().gpu_mask())] { done(list); });
    }
    return true;
  }
  void ReleaseGpus(const AttemptKey& key) override {
    if (gpus_ != nullptr) gpus_->Release(key);
  }

 private:
  Result<int> Listen();
  void FindGpus();
  Result<v1::GpuInjection> GiveAmd(uint32_t mask) const;
  // Of the device root.
  std::string Below(const std::string& path) const {
    return options_.device_root == "/" ? path : options_.device_root + path;
  }
  // The node's resources; adds what is known of its GPUs.
  v1::Resources DescribeGpus(v1::NodeFacts* facts) const;
  v1::Register Describe();
  NodeFigures Figures() const;
  void KeepUsages(const v1::GpuUsages& usages);
  void Presign(const std::string& tenant, v1::PresignRequest request);
  void OnPresigned(v1::PresignReply reply);
  void OnController(const v1::ControllerMessage& message);
  void OnShutOut(const v1::ShutOut& list);
  void OnStart(const v1::StartAttempt& order);
  void OnExec(const v1::ExecInPod& exec);
  void OnHomeStream(std::shared_ptr<HomeStream> stream);
  void Keep(const std::shared_ptr<HomeStream>& stream);
  void OnAttach(const std::shared_ptr<HomeStream>& stream, const std::string& frame);
  void Recover();
  void RecoverTask(const std::string& name);
  void RecoverFsServer(const std::string& socket_name);
  FsClient::Events FsEvents(const std::string& tenant_key);
  void Stop(bool kill_tasks);
  std::string ReportPath(const AttemptKey& key) const { return reports_directory_ + "/" + key.Name(); }

  const AgentOptions options_;
  const people::Members shut_out_;  // by the controller
  const std::string tasks_directory_;
  const std::string reports_directory_;
  KeptStore kept_;
  EventLoop loop_;
  const std::string hosts_;
  CpuShares cpus_{AllowedCpus()};
  UniqueFd lock_;
  UidRanges uid_ranges_;
  std::vector<std::string> addresses_;
  uint64_t next_lease_ = 1;

  std::map<std::string, std::unique_ptr<FsClient>> fs_servers_;  // by tenant key
  bool has_s3_ = false;                                          // the pool has an S3 store
  std::map<std::string, uint64_t> last_job_;                     // by tenant key
  // Presign requests of file system servers: our id -> the tenant and its own id.
  std::map<uint64_t, std::pair<std::string, uint64_t>> presigns_;
  uint64_t next_presign_ = 1;
  std::unique_ptr<NodeCaches> caches_;
  std::unique_ptr<KeptServer> kept_server_;
  v1::NodeFacts facts_;
  v1::GpuReport gpu_report_;                   // the latest; empty: none yet
  std::map<AttemptKey, v1::GpuUsage> usages_;  // the latest of the pods that are here
  std::unique_ptr<NodeGpus> gpus_;             // null: no driver of NVIDIA, or the number was given (--gpus)
  std::optional<gpu::Inventory> amd_;          // only without gpus_
  std::unique_ptr<SupervisorLink> spare_;
  std::vector<std::unique_ptr<SupervisorLink>> released_;  // of an earlier agent; they end
  std::map<AttemptKey, std::unique_ptr<Attempt>> attempts_;
  std::map<AttemptKey, v1::AttemptReport> ended_;  // not yet acknowledged by the controller
  std::set<std::shared_ptr<HomeStream>> streams_;
  // Homes that attached before the controller's order arrived; the order of the two is not defined.
  // Attempts whose homes were faster than the controller, by the name of the certificate too: nobody's attach takes the
  // place of another's.
  std::map<std::pair<AttemptKey, std::string>, std::pair<std::shared_ptr<HomeStream>, v1::Attach>> early_;
  std::unique_ptr<ControllerLink> controller_;
  std::optional<identity::Renewal> renewal_;
  std::unique_ptr<http::Server> metrics_;
  std::unique_ptr<telemetry::Export> traces_;
  std::unique_ptr<rpc::Server> server_;  // destroyed first but for reports_: its streams post to the members above
  WorkQueue reports_{"reports", 4};
};

Status Agent::Start() {
  VRUN_TRY(CheckHost());
  for (const char* sub : {"/tasks", "/kept", "/reports", "/store", "/views", "/fs"}) {
    VRUN_TRY(MakeDirs(options_.state_directory + sub, 0700));
  }
  SpreadTasks(tasks_directory_);
  Result<UniqueFd> lock = LockFile(options_.state_directory + "/lock");
  if (!lock && lock.error().code() == Code::kExists) {
    return Error(Code::kExists, Escape(options_.state_directory) + ": another node agent uses it");
  }
  VRUN_ASSIGN(lock_, std::move(lock));
  VRUN_ASSIGN(uid_ranges_, UidRanges::Load(options_.state_directory + "/uid_ranges"));
  VRUN_ASSIGN(rpc::Credentials credentials, rpc::LoadCredentials(options_.pki_directory, options_.name));
  traces_ = telemetry::Export::TryBegin(options_.traces, "vrun-node", options_.name, credentials.ca);

  for (int s : {SIGTERM, SIGINT}) VRUN_TRY(loop_.OnSignal(s, [this](int) { Stop(true); }));
  VRUN_TRY(loop_.OnSignal(SIGHUP, [this](int) { Stop(false); }));
  // After the signals are blocked: it starts threads, which must not get them.
  FindGpus();
  v1::NodeFacts found;
  VRUN_ASSIGN(facts_, DescribeNode(options_.facts, DescribeGpus(&found).gpus()));
  // The driver knows more than the NUMA nodes that DescribeNode goes by.
  if (found.gpus_size() > 0 && options_.facts.gpu_groups.empty()) facts_.clear_gpu_groups();

  NodeCaches::Hooks hooks;
  hooks.servers = [this] {
    std::map<std::string, FsClient*> servers;
    for (auto& [key, server] : fs_servers_) {
      if (server->alive()) servers[key] = server.get();
    }
    return servers;
  };
  hooks.server_of = [this](const Tenant& tenant, Error* error) { return FsServer(tenant, error); };
  caches_ =
      std::make_unique<NodeCaches>(&loop_,
                                   NodeCachesOptions{options_.state_directory + "/store", options_.cache_bytes,
                                                     options_.cache_min_free_bytes, options_.cache_min_free_percent},
                                   std::move(hooks));

  kept_server_ = std::make_unique<KeptServer>(&loop_, &kept_, options_.name);

  server_ = rpc::Server::Create(credentials);
  server_->Admit([here = shut_out_](const rpc::Peer& peer) { return here.Admit(peer.role, peer.name); });
  server_->Streaming(
      "/vrun.v1.Node/Task",
      [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
        if (peer.role != "home" && peer.role != "snapshots") {
          return Error(Code::kDenied, "only a home may attach to a task");
        }
        auto home = std::make_shared<HomeStream>(&loop_, peer, std::move(stream));
        loop_.Post([this, home] { OnHomeStream(home); });
        return home.get();
      });
  server_->Streaming(
      "/vrun.v1.Node/Cache",
      [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
        if (peer.role != "home") return Error(Code::kDenied, "only a home may manage a cache");
        auto home = std::make_shared<HomeStream>(&loop_, peer, std::move(stream));
        loop_.Post([this, home] {
          Keep(home);
          caches_->Serve(home);
        });
        return home.get();
      });
  server_->Streaming(
      "/vrun.v1.Node/Kept",
      [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
        if (peer.role != "home") return Error(Code::kDenied, "only a home may ask for kept writes");
        auto home = std::make_shared<HomeStream>(&loop_, peer, std::move(stream));
        loop_.Post([this, home] {
          Keep(home);
          kept_server_->Serve(home);
        });
        return home.get();
      });
  VRUN_ASSIGN(const int port, Listen());
  addresses_ = {options_.listen_host + ":" + std::to_string(port)};

  Recover();
  VRUN_ASSIGN(controller_,
              ControllerLink::Start(&loop_, options_.controller, credentials,
                                    {.describe = [this] { return Describe(); },
                                     .on_message = [this](const v1::ControllerMessage& m) { OnController(m); },
                                     .on_registered =
                                         [fd = options_.ready_fd, told = false]() mutable {
                                           if (fd < 0 || std::exchange(told, true)) return;
                                           [[maybe_unused]] ssize_t n = ::write(fd, "ok\n", 3);
                                           ::close(fd);
                                         }}));
  if (!options_.metrics.empty()) {
    VRUN_ASSIGN(metrics_, http::ServeMetrics(options_.metrics, &loop_, [this] { return MetricsText(Figures()); }));
    LogInfo("figures for Prometheus are at port {}", metrics_->port());
  }
  renewal_.emplace(&loop_, identity::Place{options_.pki_directory, options_.name, options_.controller});
  if (Result<std::unique_ptr<SupervisorLink>> spare = SupervisorLink::Start(&loop_)) spare_ = std::move(*spare);
  LogInfo("node {} listens on {}", options_.name, addresses_[0]);
  return {};
}

void Agent::FindGpus() {
  if (options_.gpus >= 0) return;
  const NodeGpusOptions options{options_.driver_root, options_.device_root, options_.state_directory,
                                options_.dcgm_job_directory, options_.gpu_interval_ms * 1000ll};
  Result<std::unique_ptr<NodeGpus>> gpus = NodeGpus::Start(&loop_, options,
                                                           {.on_report =
                                                                [this](const v1::GpuReport& report) {
                                                                  gpu_report_ = report;
                                                                  v1::AgentMessage message;
                                                                  *message.mutable_gpus() = report;
                                                                  if (controller_) controller_->Send(message);
                                                                },
                                                            .on_usages =
                                                                [this](const v1::GpuUsages& usages) {
                                                                  KeepUsages(usages);
                                                                  v1::AgentMessage message;
                                                                  *message.mutable_gpu_usages() = usages;
                                                                  if (controller_) controller_->Send(message);
                                                                }});
  if (gpus) {
    gpus_ = std::move(*gpus);
    return;
  }
  if (Result<gpu::Inventory> amd = gpu::TakeAmdInventory(Below("/sys"))) {
    LogInfo("GPUs: {} of type {}", amd->gpus.size(), Escape(amd->Type()));
    amd_ = std::move(*amd);
  } else if (gpus.error().code() != Code::kNotFound || options_.driver_root != "/") {
    LogError("GPUs: no job gets one: {}", gpus.error().message());
  }
}

Result<v1::GpuInjection> Agent::GiveAmd(uint32_t mask) const {
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < gpu::kMostGpus; ++i) {
    if ((mask >> i & 1) != 0) numbers.push_back(i);
  }
  return gpu::MakeAmdInjection(*amd_, numbers, ReadFile(Below("/proc/devices")).value_or(""));
}

v1::Resources Agent::DescribeGpus(v1::NodeFacts* facts) const {
  v1::Resources total = MachineResources(options_);
  if (gpus_ != nullptr) gpus_->Describe(&total, facts);
  if (amd_) amd_->Describe(&total, facts);
  return total;
}

Result<v1::Isolation> Agent::Isolate(const v1::Resources& resources, std::vector<uint32_t> ports) {
  if (Result<std::string> own = ReadFile(options_.state_directory + "/port")) {
    ports.push_back(static_cast<uint32_t>(std::strtoul(own->c_str(), nullptr, 10)));
  }
  if (options_.listen_port > 0) ports.push_back(static_cast<uint32_t>(options_.listen_port));
  if (metrics_) ports.push_back(static_cast<uint32_t>(metrics_->port()));
  VRUN_ASSIGN(v1::Isolation isolation, IsolationOf(options_.isolation, options_.controller, ports));
  v1::NodeFacts unused;
  const v1::Resources machine = DescribeGpus(&unused);
  isolation.set_default_memory_bytes(DefaultMemory(machine.memory_bytes(), resources.milli_cpus(),
                                                   machine.milli_cpus() / 1000, resources.gpus(), machine.gpus()));
  return isolation;
}

// Reuses the previous agent's port unless one is configured: homes with running jobs know it.
Result<int> Agent::Listen() {
  const std::string path = options_.state_directory + "/port", host = options_.listen_host + ":";
  if (options_.listen_port != 0) return server_->Start(host + std::to_string(options_.listen_port));
  const long before = std::strtol(ReadFile(path).value_or("").c_str(), nullptr, 10);
  if (before > 0 && before < 65536) {
    if (auto same = server_->Start(host + std::to_string(before))) return same;
  }
  VRUN_ASSIGN(const int port, server_->Start(host + "0"));
  if (const Status written = WriteFileAtomic(path, std::to_string(port), 0600); !written) {
    LogWarning("the next agent will listen elsewhere: {}", written.error().message());
  }
  return port;
}

FsClient* Agent::FsServer(const Tenant& tenant, Error* error) {
  const std::string key = tenant.Key();
  auto it = fs_servers_.find(key);
  if (it != fs_servers_.end() && it->second->alive()) return it->second.get();
  const Result<UidRanges::Range> uids = Uids(tenant, {});
  if (!uids) {
    *error = uids.error();
    return nullptr;
  }
  FsServerSettings settings{tenant.home_id,
                            key,
                            options_.state_directory + "/fs",
                            uids->base,
                            options_.state_directory + "/uid_ranges",
                            options_.state_directory + "/store",
                            options_.state_directory + "/views",
                            options_.listen_host,
                            options_.pki_directory,
                            options_.name,
                            options_.pool,
                            caches_->LimitForNew(),
                            options_.cache_min_free_bytes,
                            options_.cache_min_free_percent,
                            options_.fuse,
                            has_s3_};
  Result<std::unique_ptr<FsClient>> client = FsClient::Start(&loop_, settings, FsEvents(key));
  if (!client) {
    *error = client.error();
    return nullptr;
  }
  return (fs_servers_[key] = std::move(*client)).get();
}

FsClient::Events Agent::FsEvents(const std::string& tenant_key) {
  FsClient::Events events;
  events.on_presign = [this, tenant_key](const v1::PresignRequest& request) { Presign(tenant_key, request); };
  events.on_content_lost = [this](const std::string& path, const std::string& reason,
                                  const std::vector<uint64_t>& leases) {
    const std::string name = Escape(path) + ": ";
    for (auto& [key, attempt] : attempts_) {
      for (uint64_t lease : leases) {
        if (attempt->HoldsLease(lease)) attempt->Notice(reason.starts_with(name) ? reason : name + reason, true);
      }
    }
  };
  events.on_closed = [this, tenant_key] {
    LogError("the file system server of tenant {} ended, and its keeper", tenant_key);
    for (auto& [key, attempt] : attempts_) {
      if (attempt->tenant().Key() == tenant_key) attempt->FsServerDied();
    }
    loop_.Post([this, tenant_key] {
      auto it = fs_servers_.find(tenant_key);
      if (it != fs_servers_.end() && !it->second->alive()) fs_servers_.erase(it);
    });
  };
  return events;
}

Result<std::unique_ptr<SupervisorLink>> Agent::TakeSupervisor() {
  std::unique_ptr<SupervisorLink> taken = std::move(spare_);
  // Started after this turn of the loop, so that it does not delay the task that needs the current one.
  loop_.After(20'000, [this] {
    if (spare_) return;
    if (Result<std::unique_ptr<SupervisorLink>> next = SupervisorLink::Start(&loop_)) spare_ = std::move(*next);
  });
  if (taken && taken->alive()) return taken;  // it may have been killed while it waited
  return SupervisorLink::Start(&loop_);
}

void Agent::Report(const v1::AttemptReport& report, std::function<void()> kept) {
  v1::AgentMessage message;
  *message.mutable_report() = report;
  if (report.state() <= v1::COMPLETING) {
    if (controller_) controller_->Send(std::move(message));
    return;
  }
  const AttemptKey key = AttemptKey::Of(report);
  ended_[key] = report;
  const auto attempt = attempts_.find(key);
  const bool has_gpus =
      gpus_ != nullptr && attempt != attempts_.end() && attempt->second->order().placement().gpu_mask() != 0;
  const auto tell = [this, key, message, has_gpus, kept = std::move(kept)] {
    if (!ended_.contains(key)) ::unlink(ReportPath(key).c_str());  // the controller has learned it in another way
    if (kept) kept();
    const auto send = [this, message] {
      if (controller_) controller_->Send(message);
    };
    // The end comes after the last word on its GPUs, and when they can be given away.
    has_gpus ? gpus_->AfterAll(send) : send();
  };
  // On disk before the task's own record is deleted with its directory. Others need not wait for that.
  reports_.Post([this, key, bytes = report.SerializeAsString(), tell] {
    Status written = WriteFileAtomic(ReportPath(key), bytes, 0600);
    if (!written) LogError("job {}: its end is only in memory: {}", key.job, written.error().message());
    loop_.Post(tell);
  });
}

void Agent::Over(const AttemptKey& key) {
  loop_.Post([this, key] {
    auto it = attempts_.find(key);
    if (it != attempts_.end() && it->second->state() == Attempt::State::kOver) attempts_.erase(it);
  });
}

void Agent::Pass(const v1::JobWord& word) {
  v1::AgentMessage message;
  *message.mutable_word() = word;
  if (controller_) controller_->Send(message);
}

// Pods on this node reach each other also while the controller is away.
void Agent::Pass(const v1::ExecInPod& exec) {
  const AttemptKey to{exec.job(), exec.attempt(), exec.ended() ? exec.from_pod() : exec.pod()};
  if (const auto it = attempts_.find(to); it != attempts_.end()) return it->second->Exec(exec);
  if (controller_ && controller_->registered()) {
    v1::AgentMessage message;
    *message.mutable_exec() = exec;
    return controller_->Send(message);
  }
  const auto from = attempts_.find({exec.job(), exec.attempt(), exec.from_pod()});
  if (exec.ended() || from == attempts_.end()) return;
  v1::ExecInPod answer = AnswerTo(exec);
  answer.set_problem("the controller cannot be reached from node " + options_.name + ": try again");
  from->second->Exec(answer);
}

void Agent::KeepUsages(const v1::GpuUsages& usages) {
  for (const v1::GpuUsage& usage : usages.usages()) usages_[AttemptKey::Of(usage)] = usage;
  std::erase_if(usages_, [this](const auto& u) { return !attempts_.contains(u.first); });
}

NodeFigures Agent::Figures() const {
  NodeFigures figures{.node = options_.name, .pool = options_.pool};
  figures.connected = controller_ && controller_->registered();
  v1::NodeFacts facts;
  figures.total = DescribeGpus(&facts);
  for (const auto& [key, attempt] : attempts_) {
    switch (attempt->state()) {
      case Attempt::State::kWaiting: ++figures.pods["waiting"]; break;
      case Attempt::State::kOpening: ++figures.pods["starting"]; break;
      case Attempt::State::kRunning: ++figures.pods["running"]; break;
      default: ++figures.pods["ended"]; continue;
    }
    const v1::Resources& given = attempt->order().spec().resources();
    figures.milli_cpus_given += given.milli_cpus();
    figures.memory_given_bytes += given.memory_bytes();
    if (const auto usage = usages_.find(key); usage != usages_.end()) figures.usages.push_back(usage->second);
  }
  for (const auto& [key, server] : fs_servers_) figures.file_system_servers += server->alive() ? 1 : 0;
  figures.unsent_ends = ended_.size();
  figures.cache = caches_->Figures();
  figures.drain = gpu_report_.drain();
  const auto& gpus = gpu_report_.gpus_size() > 0 ? gpu_report_.gpus() : facts.gpus();
  for (const v1::Gpu& gpu : gpus) figures.gpu_faults.push_back(gpu.problem());
  return figures;
}

v1::Register Agent::Describe() {
  v1::Register r;
  r.set_node(options_.name);
  r.set_pool(options_.pool);
  *r.mutable_facts() = facts_;
  *r.mutable_total() = DescribeGpus(r.mutable_facts());
  for (const std::string& a : addresses_) r.add_addresses(a);
  r.set_version(VRUN_VERSION);
  r.set_boot_id(BootId());
  r.set_knows_shut_out(true);
  for (auto& [key, attempt] : attempts_) {
    if (!ended_.contains(key)) *r.add_attempts() = attempt->report();
  }
  for (auto& [key, report] : ended_) *r.add_attempts() = report;
  return r;
}

// Forwards a request of a file system server, for content of its own tenant only: the agent fills in the job.
void Agent::Presign(const std::string& tenant, v1::PresignRequest request) {
  const auto job = last_job_.find(tenant);
  if (job == last_job_.end() || !controller_ || !controller_->registered()) {
    // Refused at once: readers are waiting and can ask home instead.
    v1::PresignReply refusal;
    refusal.set_id(request.id());
    refusal.mutable_error()->set_code(static_cast<int>(Code::kUnavailable));
    refusal.mutable_error()->set_message("S3: the controller is away");
    const auto server = fs_servers_.find(tenant);
    if (server != fs_servers_.end()) server->second->Presigned(refusal);
    return;
  }
  constexpr size_t kMaxPresigns = 1024;
  if (presigns_.size() >= kMaxPresigns) presigns_.erase(presigns_.begin());
  presigns_[next_presign_] = {tenant, request.id()};
  request.set_id(next_presign_++);
  request.set_job(job->second);
  v1::AgentMessage message;
  *message.mutable_presign() = std::move(request);
  controller_->Send(std::move(message));
}

void Agent::OnPresigned(v1::PresignReply reply) {
  const auto asked = presigns_.extract(reply.id());
  if (asked.empty()) return;
  reply.set_id(asked.mapped().second);
  const auto server = fs_servers_.find(asked.mapped().first);
  if (server != fs_servers_.end() && server->second->alive()) server->second->Presigned(reply);
}

// The file system servers look at the same files.
void Agent::OnShutOut(const v1::ShutOut& list) {
  const Result<bool> changed = shut_out_.Follow(list);
  if (!changed) return LogError("who was shut out: {}", changed.error().message());
  if (!*changed) return;
  LogInfo("{} users and {} nodes are shut out", list.homes_size(), list.nodes_size());
  server_->EndCalls([here = shut_out_](const rpc::Peer& peer) { return here.IsRevoked(peer.role, peer.name); });
}

void Agent::OnController(const v1::ControllerMessage& message) {
  switch (message.body_case()) {
    case v1::ControllerMessage::kRegistered: has_s3_ = message.registered().s3(); return;
    case v1::ControllerMessage::kPresigned: return OnPresigned(message.presigned());
    case v1::ControllerMessage::kStart: return OnStart(message.start());
    case v1::ControllerMessage::kStop: {
      const auto it = attempts_.find(AttemptKey::Of(message.stop()));
      if (it != attempts_.end()) it->second->Stop(message.stop());
      return;
    }
    case v1::ControllerMessage::kGo: {
      const auto it = attempts_.find(AttemptKey::Of(message.go()));
      if (it != attempts_.end()) it->second->Go();
      return;
    }
    case v1::ControllerMessage::kMembers: {
      const auto it = attempts_.find(AttemptKey::Of(message.members()));
      if (it != attempts_.end()) it->second->SetMembers(message.members());
      return;
    }
    case v1::ControllerMessage::kExec: return OnExec(message.exec());
    case v1::ControllerMessage::kShutOut: return OnShutOut(message.shut_out());
    case v1::ControllerMessage::kReportAck: {
      const AttemptKey key = AttemptKey::Of(message.report_ack());
      auto it = ended_.find(key);
      if (it == ended_.end() || it->second.state() != message.report_ack().state()) return;
      ended_.erase(it);
      ::unlink(ReportPath(key).c_str());
      return;
    }
    default: return;
  }
}

// To a pod of this node, for or from a pod of another.
void Agent::OnExec(const v1::ExecInPod& exec) {
  const AttemptKey to{exec.job(), exec.attempt(), exec.ended() ? exec.from_pod() : exec.pod()};
  if (const auto it = attempts_.find(to); it != attempts_.end()) return it->second->Exec(exec);
  if (exec.ended()) return;
  v1::ExecInPod answer = AnswerTo(exec);
  answer.set_problem("pod " + std::to_string(to.pod) + " of the job is not on node " + options_.name);
  Pass(answer);
}

void Agent::OnStart(const v1::StartAttempt& order) {
  const AttemptKey key = AttemptKey::Of(order.placement());
  // The controller repeats orders after a reconnection: report the known state again, but never start twice.
  if (auto it = ended_.find(key); it != ended_.end()) return Report(it->second);
  if (auto it = attempts_.find(key); it != attempts_.end()) return Report(it->second->report());
  last_job_[Tenant::Of(order).Key()] = key.job;
  Attempt* attempt = (attempts_[key] = std::make_unique<Attempt>(this, order)).get();
  if (auto early = early_.extract({key, order.user()})) attempt->Attach(early.mapped().first, early.mapped().second);
}

void Agent::OnHomeStream(std::shared_ptr<HomeStream> stream) {
  Keep(stream);
  std::weak_ptr<HomeStream> weak = stream;
  stream->SetEvents({.on_frame =
                         [this, weak](std::string frame) {
                           if (auto s = weak.lock()) OnAttach(s, frame);
                         },
                     .on_closed = {}});
}

void Agent::Keep(const std::shared_ptr<HomeStream>& stream) {
  // Removes closed streams: the table holds the only reference to an unattached one.
  std::erase_if(streams_, [](const auto& s) { return !s->open(); });
  streams_.insert(stream);
}

void Agent::OnAttach(const std::shared_ptr<HomeStream>& stream, const std::string& frame) {
  v1::TaskUp up;
  if (!up.ParseFromString(frame) || !up.has_attach()) {
    return stream->Fail(Error(Code::kInvalid, "the first message of a task stream is not Attach"));
  }
  const AttemptKey key = AttemptKey::Of(up.attach());
  const bool stands_in = stream->peer().role == "snapshots";
  if (auto it = attempts_.find(key); it != attempts_.end()) {
    return stands_in ? it->second->AttachStandIn(stream, up.attach()) : it->second->Attach(stream, up.attach());
  }
  if (stands_in) return stream->Fail(Error(Code::kNotFound, "the job is not on this node"));
  if (ended_.contains(key)) return stream->Fail(Error(Code::kNotFound, "the job is over on this node"));
  const std::pair<AttemptKey, std::string> mine(key, stream->peer().name);
  early_[mine] = {stream, up.attach()};
  loop_.After(10'000'000, [this, key, mine, stream] {
    auto it = early_.find(mine);
    if (it == early_.end() || it->second.first != stream) return;
    early_.erase(it);
    stream->Fail(Error(Code::kNotFound, "job " + std::to_string(key.job) + " is not on node " + options_.name));
  });
}

// After a restart: adopts the supervisors that are alive, repeats unacknowledged ends, and reports tasks that died with
// the host as lost.
void Agent::Recover() {
  for (const std::string& name : ListDirectory(reports_directory_)) {
    v1::AttemptReport report;
    Result<std::string> bytes = ReadFile(reports_directory_ + "/" + name);
    if (bytes && report.ParseFromString(*bytes)) ended_[AttemptKey::Of(report)] = report;
  }
  for (const std::string& name : ListDirectory(tasks_directory_)) RecoverTask(name);
  for (const std::string& name : ListDirectory(options_.state_directory + "/fs")) RecoverFsServer(name);
  if (gpus_ == nullptr) return;
  std::vector<v1::StartAttempt> alive;
  for (const auto& [key, attempt] : attempts_) alive.push_back(attempt->order());
  gpus_->Recover(alive);
}

// Connects to the file system server of an earlier agent whose tasks were adopted, and tells it which of them continue.
void Agent::RecoverFsServer(const std::string& socket_name) {
  const std::string path = options_.state_directory + "/fs/" + socket_name;
  const std::string key = socket_name.substr(0, socket_name.find('.'));
  std::set<uint64_t> leases;
  std::vector<FsRun> runs;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->tenant().Key() != key) continue;
    for (const uint64_t lease : attempt->Leases()) leases.insert(lease);
    runs.push_back(attempt->fs_run());
  }
  auto client = FsClient::Adopt(&loop_, path, leases, runs, FsEvents(key));
  if (client) {
    LogInfo("the file system server of tenant {}: taken up again, {} leases", key, leases.size());
    fs_servers_[key] = std::move(*client);
    return;
  }
  ::unlink(path.c_str());
  if (leases.empty()) return;
  LogError("the file system server of tenant {} is gone: {}", key, client.error().message());
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->tenant().Key() == key) attempt->FsServerDied();
  }
}

void Agent::RecoverTask(const std::string& name) {
  std::string directory = tasks_directory_ + "/" + name;
  v1::StartAttempt order;
  Result<std::string> bytes = ReadFile(directory + "/order");
  if (!bytes || !order.ParseFromString(*bytes)) {
    // No supervisor ever got its spec, so it contains nothing of a user.
    LogWarning("task {}: no order: removed", Escape(name));
    if (Status removed = RemoveTree(directory); !removed) LogError("{}", removed.error().message());
    return;
  }
  const AttemptKey key = AttemptKey::Of(order.placement());
  Result<std::unique_ptr<SupervisorLink>> link = SupervisorLink::Adopt(&loop_, directory + "/sock");
  if (link && ended_.contains(key)) {
    // Home has released it; the earlier agent ended before it could pass that on.
    v1::TaskUp up;
    up.mutable_release();
    (*link)->Send(up.SerializeAsString());
    released_.push_back(std::move(*link));
    return;
  }
  if (link) {
    // Lines: lease, live view and processors; the lease of live paths; addresses. An older agent has put the latter two
    // into files of their own.
    std::string leased = ReadFile(directory + "/lease").value_or("0");
    if (leased.find('\n') == std::string::npos) {
      leased += "\n" + ReadFile(directory + "/paths-lease").value_or("0") + "\n";
      leased += ReadFile(directory + "/content").value_or("");
    }
    std::vector<std::string> lines;
    for (size_t at = 0, end; (end = leased.find('\n', at)) != std::string::npos; at = end + 1) {
      lines.push_back(leased.substr(at, end - at));
    }
    while (lines.size() < 2) lines.push_back("0");
    std::vector<std::string> addresses(lines.begin() + 2, lines.end());
    LogInfo("job {} attempt {} pod {}: taken up again", key.job, key.attempt, key.pod);
    last_job_[Tenant::Of(order).Key()] = key.job;
    char* rest = nullptr;
    const uint64_t lease = std::strtoull(lines[0].c_str(), &rest, 10);
    const uint64_t live_view = std::strtoull(rest, &rest, 10);
    if (const auto cpus = ParseCpuList(rest + (*rest == ' ' ? 1 : 0))) {
      cpus_.Restore(key, order.spec().resources().milli_cpus(), *cpus);
    }
    const uint64_t paths_lease = std::strtoull(lines[1].c_str(), nullptr, 10);
    next_lease_ = std::max({next_lease_, lease + 1, paths_lease + 1});
    attempts_[key] =
        std::make_unique<Attempt>(this, order, std::move(*link), std::move(addresses), lease, live_view, paths_lease);
    return;
  }
  if (ended_.contains(key)) return;  // its writes never reached home; the directory keeps them
  v1::AttemptReport report;
  report.set_job(key.job);
  report.set_attempt(key.attempt);
  report.set_pod(key.pod);
  report.set_epoch(order.placement().epoch());
  report.set_state(v1::FAILED);
  v1::ExitRecord* record = report.mutable_exit();
  Result<std::string> journal = ReadFile(directory + "/journal");
  if (!journal || !record->ParseFromString(*journal) || record->kind() == v1::ExitRecord::KIND_UNSPECIFIED) {
    record->Clear();
    record->set_job(key.job);
    record->set_attempt(key.attempt);
    record->set_pod(key.pod);
    record->set_kind(v1::ExitRecord::START_FAILED);
    record->set_reason("the node's agent and the task's supervisor were both killed");
    record->set_node(options_.name);
    record->set_ended_us(WallMicros());
  }
  const std::string kept = WritesKeptIn(directory, options_.name);
  if (!kept.empty()) {
    const std::string text = "the host ended before all writes were home: " + kept;
    LogError("job {}: {}", key.job, text);
    record->set_reason(record->reason().empty() ? text : record->reason() + "; " + text);
    // Not a success, although the command exited with 0.
    if (record->kind() == v1::ExitRecord::EXITED && record->exit_code() == 0) record->set_exit_code(125);
  }
  if (!kept.empty()) return Report(report);
  Report(report, [directory] {
    if (Status removed = RemoveTree(directory); !removed) LogError("{}", removed.error().message());
  });
}

void Agent::Stop(bool kill_tasks) {
  LogInfo("stopping");
  server_.reset();
  if (kill_tasks) {
    // On SIGTERM a supervisor kills its cgroup, writes its record and exits; the sandbox dies with it in any case.
    for (auto& [key, attempt] : attempts_) attempt->Abandon();
    for (auto& [home, fs] : fs_servers_) fs->Stop();
    if (gpus_ != nullptr) gpus_->Stop();
  }
  loop_.Stop();
}

}  // namespace

int AgentMain(const AgentOptions& options) {
  InitLog("node");
  ::signal(SIGPIPE, SIG_IGN);
  // A node short of memory should kill jobs, not its daemons. A sandbox takes this back for its processes.
  static_cast<void>(WriteKernelFile("/proc/self/oom_score_adj", "-900"));
  for (const std::string& refused : options.isolation.refuse) {
    if (Result<v1::Isolation::Destination> parsed = ParseRefused(refused); !parsed) {
      LogError("--refuse {}", parsed.error().message());
      if (options.ready_fd >= 0) {
        static_cast<void>(WriteAll(options.ready_fd, "error: --refuse " + parsed.error().message() + "\n"));
        ::close(options.ready_fd);
      }
      return 1;
    }
  }
  auto agent = std::make_unique<Agent>(options);
  if (Status started = agent->Start(); !started) {
    LogError("{}", started.error().message());
    if (options.ready_fd >= 0) {
      Status told = WriteAll(options.ready_fd, "error: " + started.error().message() + "\n");
      ::close(options.ready_fd);
    }
    return 1;
  }
  agent->Run();
  return 0;
}

}  // namespace vrun::node
