// SPDX-License-Identifier: Apache-2.0
#include "control/controller.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/event_loop.h"
#include "base/io/file_lock.h"
#include "base/log.h"
#include "control/api/api.h"
#include "control/door.h"
#include "control/notify/sender.h"
#include "control/service.h"
#include "control/store/postgres.h"
#include "control/store/sqlite.h"
#include "people/state_place.h"
#include "rpc/credentials.h"
#include "telemetry/telemetry.h"

namespace vrun::control {
namespace {

Result<UniqueFd> LockState(const std::string& directory) {
  VRUN_TRY(MakeDirs(directory, 0700));
  Result<UniqueFd> lock = LockFile(directory + "/lock");
  if (!lock && lock.error().code() == Code::kExists) {
    return Error(Code::kExists,
                 "controller: another one uses " + Escape(directory) + ": stop it or choose another directory");
  }
  return lock;
}

// HOST:0 uses the last port if it is free, because nodes and homes remember the address.
std::string AddressToTry(const ControllerOptions& options, const std::string& remembered) {
  size_t colon = options.listen.rfind(':');
  if (colon == std::string::npos || options.listen.substr(colon) != ":0") return options.listen;
  return remembered.substr(0, colon + 1) == options.listen.substr(0, colon + 1) ? remembered : options.listen;
}

Result<int> Serve(Service& service, const ControllerOptions& options, const rpc::Credentials& credentials) {
  const std::string address_file = options.state_directory + "/address";
  std::string remembered = ReadFile(address_file).value_or("");
  while (!remembered.empty() && remembered.back() == '\n') remembered.pop_back();
  std::string address = AddressToTry(options, remembered);
  Result<int> port = service.Start(address, credentials);
  if (!port && address != options.listen) {
    LogWarning("{}: another port is taken", port.error().message());
    port = service.Start(options.listen, credentials);
  }
  if (!port) return port;
  std::string in_use = options.listen.substr(0, options.listen.rfind(':') + 1) + std::to_string(*port);
  VRUN_TRY(WriteFileAtomic(address_file, in_use + "\n", 0644));
  LogInfo("listens on {}", in_use);
  return port;
}

// Null: it was not asked for.
Result<std::unique_ptr<Api>> ServeHttp(Service& service, EventLoop& loop, const ControllerOptions& options,
                                       const rpc::Credentials& credentials) {
  const std::string file = options.state_directory + "/http";
  (void)::unlink(file.c_str());
  if (options.http.empty()) return std::unique_ptr<Api>();
  VRUN_ASSIGN(std::unique_ptr<Api> api, Api::Start(&loop, &service, options.shared_directory + "/people", credentials,
                                                   {options.http, options.metrics_open, options.home_socket,
                                                    options.state_directory + "/what-if"}));
  const std::string in_use = options.http.substr(0, options.http.rfind(':') + 1) + std::to_string(api->port());
  VRUN_TRY(WriteFileAtomic(file, in_use + "\n", 0644));
  LogInfo("HTTP on {}", in_use);
  return api;
}

// Where this machine reaches it.
std::string AddressHere(const std::string& listen, int port) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  return (host == "0.0.0.0" || host == "[::]" ? "127.0.0.1" : host) + ":" + std::to_string(port);
}

// On an error the log has the reason and nothing changes.
void ReadConfigAgain(const std::string& path, const people::Members& members, Service* service) {
  Result<SchedulerConfig> config = ReadSchedulerConfig(path);
  members.Audit(
      {"", "controller", "here", "configure", Escape(path), config ? "ok" : "refused: " + config.error().message()});
  if (!config) return LogError("{}: the old configuration stays in use", config.error().message());
  LogInfo("{} teams and the places of {} nodes read from {}", config->teams.size(), config->places.size(),
          Escape(path));
  if (service != nullptr) service->Configure(*std::move(config));
}

constexpr int64_t kBeatMicros = 1'000'000;

// The store; with PostgreSQL it is there once no other controller has it.
struct OpenedStore {
  std::unique_ptr<Store> store;
  PostgresStore* postgres = nullptr;
};

Result<OpenedStore> OpenStore(const ControllerOptions& options, EventLoop& loop) {
  OpenedStore opened;
  if (options.database.empty()) {
    VRUN_ASSIGN(opened.store, SqliteStore::Open(options.state_directory + "/vrun.db"));
    return opened;
  }
  char host[HOST_NAME_MAX + 1] = "?";
  (void)::gethostname(host, sizeof host - 1);
  const PostgresOptions postgres{options.database, std::string(host) + " (" + options.listen + ")",
                                 options.shared_directory + "/vrun.db.key", [&loop] {
                                   loop.RunOnce(250);
                                   return loop.stopped();
                                 }};
  VRUN_ASSIGN(std::unique_ptr<PostgresStore> store, PostgresStore::Open(postgres));
  LogInfo("has the database; {} controllers had it before", store->term() - 1);
  opened.postgres = store.get();
  opened.store = std::move(store);
  return opened;
}

// Says every second that this controller lives. Once the database is lost, another one may have it: this one ends, also
// when the loop waits for an answer that does not come. Nodes and homes would stay with it otherwise.
class Heart {
 public:
  Heart(EventLoop* loop, PostgresStore* store) : loop_(loop), store_(store) {
    if (store_ == nullptr) return;
    Beat();
    watch_ = std::thread([this] { Watch(); });
  }
  ~Heart() {
    ended_ = true;
    if (watch_.joinable()) watch_.join();
  }
  const Status& status() const { return status_; }

 private:
  static constexpr int64_t kMostMicros = 2 * PostgresStore::kStaleMicros;

  void Beat() {
    status_ = store_->Beat();
    if (!status_) return loop_->Stop();
    beat_us_ = MonotonicMicros();
    loop_->After(kBeatMicros, [this] { Beat(); });
  }
  void Watch() {
    while (!ended_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (MonotonicMicros() - beat_us_ < kMostMicros) continue;
      LogError("the database has not answered for {} s: ends", kMostMicros / 1'000'000);
      ::_exit(1);
    }
  }

  EventLoop* const loop_;
  PostgresStore* const store_;
  Status status_;
  std::atomic<int64_t> beat_us_ = 0;
  std::atomic<bool> ended_ = false;
  std::thread watch_;
};

Status Run(const ControllerOptions& given, EventLoop& loop) {
  ControllerOptions options = given;
  if (options.shared_directory.empty()) options.shared_directory = options.state_directory;
  VRUN_ASSIGN(UniqueFd lock, LockState(options.state_directory));
  VRUN_ASSIGN(rpc::Credentials credentials, rpc::LoadCredentials(options.pki_directory, options.name));
  VRUN_TRY(MakeDirs(options.shared_directory, 0700));
  VRUN_TRY(people::SaveStatePlace(options.state_directory, {options.shared_directory, options.database}));
  const auto traces = telemetry::Export::TryBegin(options.traces, "vrun-controller", options.name, credentials.ca);
  for (int s : {SIGTERM, SIGINT}) VRUN_TRY(loop.OnSignal(s, [&loop](int) { loop.Stop(); }));
  const std::string directory = options.shared_directory + "/people";
  const bool is_new = !PathExists(directory);
  VRUN_TRY(MakeDirs(directory, 0700));
  const people::Members members(directory);
  Service* serving = nullptr;
  VRUN_TRY(loop.OnSignal(SIGHUP, [&](int) { ReadConfigAgain(options.scheduler_config, members, serving); }));

  VRUN_TRY(ReadSchedulerConfig(options.scheduler_config));  // a wrong one is told before it stands by
  Result<OpenedStore> opened = OpenStore(options, loop);
  if (!opened && loop.stopped()) return {};  // told to end while it stood by
  if (!opened) return opened.error();
  Store* const store = opened->store.get();
  const Heart heart(&loop, opened->postgres);
  VRUN_ASSIGN(SchedulerConfig scheduler, ReadSchedulerConfig(options.scheduler_config));
  const oidc::Settings oidc = scheduler.oidc;
  notify::NotifySettings notify = scheduler.notify;
  Clock clock;
  ContentTier tier(options.tier, options.shared_directory, &loop, &clock);
  Settings settings{options.heartbeat_micros, options.lease_micros, options.pools, &tier, std::move(scheduler)};
  settings.boot_id = ReadFile("/proc/sys/kernel/random/boot_id").value_or("");
  people::Persons persons(directory);
  settings.scheduler.in_group = [&persons](const std::string& user, const std::string& group) {
    return persons.InGroup(user, group);
  };
  settings.joined = [&members](const std::string& home) { return members.Has("home", home); };
  Service service(&loop, store, &clock, std::move(settings));
  service.UseMembers(&members, {options.authority, options.certificate_seconds});
  service.UsePersons(&persons, oidc);
  notify::Sender sender(std::move(notify),
                        [&service](uint64_t row, bool mail, bool sent) { service.Delivered(row, mail, sent); });
  service.UseSender(&sender);
  serving = &service;
  VRUN_ASSIGN(const int port, Serve(service, options, credentials));
  VRUN_ASSIGN(const std::unique_ptr<Api> api, ServeHttp(service, loop, options, credentials));
  std::unique_ptr<Door> door;
  if (!options.door.empty()) {
    // Whoever has started us waits for the cluster, not for its door.
    auto opened = Door::Open(&loop, &members, options.door, AddressHere(options.listen, port), credentials.ca);
    if (opened) {
      door = *std::move(opened);
    } else {
      LogWarning("door {}: {}", Escape(options.door), opened.error().message());
    }
  }
  // The log of a new cluster begins with what somebody does.
  if (!is_new) members.Audit({"", "controller", "here", "start", "version " VRUN_VERSION, "ok"});
  if (options.ready_fd >= 0) {
    (void)WriteAll(options.ready_fd, "ok\n");
    ::close(options.ready_fd);
  }
  loop.Run();
  if (!heart.status()) return heart.status().error().With("ends");
  LogInfo("stopping");
  return {};
}

}  // namespace

int ControllerMain(const ControllerOptions& options) {
  InitLog("controller");
  ::signal(SIGPIPE, SIG_IGN);
  EventLoop loop;
  Status status = Run(options, loop);
  if (status) return 0;
  LogError("{}", status.error().message());
  if (options.ready_fd >= 0) {
    (void)WriteAll(options.ready_fd, "error: " + status.error().message() + "\n");
    ::close(options.ready_fd);
  }
  return 1;
}

}  // namespace vrun::control
