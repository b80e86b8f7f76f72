// SPDX-License-Identifier: Apache-2.0
#include "node/fs/fs_server.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/event_loop.h"
#include "base/log.h"
#include "node/fs/agent_link.h"
#include "node/fs/cache_work.h"
#include "node/fs/fs_keeper.h"
#include "node/fs/handover.h"
#include "node/fs/source_chain.h"
#include "node/fs/tenant_store.h"
#include "node/uid_ranges.h"
#include "node/views/live_views.h"
#include "node/views/tree_bursts.h"
#include "node/views/view_pool.h"
#include "people/members.h"
#include "proto/fsctl.pb.h"
#include "rpc/credentials.h"
#include "rpc/rpc.h"
#include "vfs/frozen/frozen_view.h"
#include "vfs/push/warmer.h"
#include "vfs/trace/recorder.h"

namespace vrun::node {
namespace {

// Data that the kernel reads around a touched page is fetched, recorded in the trace, and fetched again by the next
// node. With 128 KiB a cold import sends a tenth more over the wire and reads a fifth more.
constexpr uint32_t kReadAheadKb = 16;
constexpr uint64_t kShutOutTicks = 10;  // seconds between two looks at who was shut out

class FsServer {
 public:
  FsServer(const FsServerOptions& options, std::shared_ptr<vfs::Warmer> warmer)
      : options_(options),
        ids_(options.uid_base),
        warmer_(std::move(warmer)),
        agent_(&loop_, UniqueFd(options.listener)),
        shut_out_(options.pki_directory) {}

  Status Start();
  int Run();
  void TellError(const Error& error) { agent_.TellError(error); }

 private:
  Status OpenStore();
  Status Listen();
  // Restores what the previous server left with the keeper.
  void TakeOver(Handover::Left left);
  void TakeOverView(const v1::HandoverView& kept, vfs::ViewHandle handle);
  void HandOver(const std::string& why);
  void SaveRuns();
  vfs::ViewOptions OptionsOf(bool apart, const std::string& directory, ViewPool::LostCallback lost) const;
  ViewPool* PoolOf(bool apart) { return apart ? apart_views_.get() : views_.get(); }
  void OnAttach(uint64_t id, const v1::AgentAttach& attach);
  Status StartSources();
  void OnRequest(const v1::FsRequest& request);
  void OpenView(uint64_t id, const v1::OpenView& open);
  void OpenLiveView(uint64_t id, const v1::OpenView& open);
  void PublishView(uint64_t id, uint64_t lease);
  ViewPool::Hooks HooksOf(bool apart);
  LiveViews::Hooks LiveHooks();
  void TellLost(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases);
  void CloseView(uint64_t lease);
  size_t leases() const { return views_->leases() + live_views_->leases(); }
  // `partial`: the kernel already caches some of the root.
  void BeginRun(const v1::AllowToken& run, bool partial);
  void EndRun(uint64_t job, uint32_t attempt);
  void Tick();
  void EndShutOut();
  void AgentIsGone();

  // Reloads the ids of the tenant's user, which the views need.
  void LearnIds();

  const FsServerOptions options_;
  IdMap ids_;
  const std::shared_ptr<vfs::Warmer> warmer_;  // null: none
  EventLoop loop_;
  AgentLink agent_;
  const people::Members shut_out_;
  std::string shut_out_now_;  // serialized, as it was last seen
  uint64_t ticks_ = 0;
  std::unique_ptr<Handover> kept_;
  int port_ = 0;  // the port that home knows; 0: none yet
  int exit_code_ = 0;
  std::string store_directory_, views_directory_;
  std::string address_;  // where home and other nodes reach this server

  TenantStore store_;
  std::unique_ptr<CacheWork> cache_;
  std::unique_ptr<SourceChain> sources_;
  std::unique_ptr<TreeBursts> bursts_;
  std::unique_ptr<rpc::Server> server_;
  // Pool of whole trees, where lookups and opens need no request; and pool of apart trees, where large files use
  // passthrough and extended attributes are served. An overlay puts the second above the first.
  std::unique_ptr<ViewPool> views_, apart_views_;
  std::unique_ptr<LiveViews> live_views_;

  struct OpenRun {
    v1::AllowToken allowed;
    vfs::RunId id;
    RunTraffic before;
  };
  std::map<std::pair<uint64_t, uint32_t>, OpenRun> runs_;  // runs whose commands are running
};

Status FsServer::OpenStore() {
  if (options_.tenant.empty() || options_.tenant.find('/') != std::string::npos) {
    return Error(Code::kInvalid, "file system server: no tenant");
  }
  store_directory_ = options_.store_directory + "/" + options_.tenant;
  store::Options options{.directory = store_directory_, .max_bytes = options_.cache_bytes};
  if (options_.cache_min_free_bytes > 0) options.min_free_bytes = options_.cache_min_free_bytes;
  options.min_free_percent = options_.cache_min_free_percent;
  VRUN_ASSIGN(store_, OpenTenantStore(std::move(options)));
  cache_ = std::make_unique<CacheWork>(&loop_, store_.store.get(),
                                       [this](v1::CacheStat* stat) { sources_->Describe(stat); });
  return {};
}

Status FsServer::Listen() {
  VRUN_ASSIGN(rpc::Credentials credentials, rpc::LoadCredentials(options_.pki_directory, options_.node_name));
  server_ = rpc::Server::Create(credentials);
  server_->Admit([here = shut_out_](const rpc::Peer& peer) { return here.Admit(peer.role, peer.name); });
  sources_->Register(server_.get(), options_.tenant);
  if (port_ == 0 && kept_->has_keeper()) {
    const auto reserved = kept_->ReservePort(options_.listen_host);
    port_ = reserved.value_or(0);
    if (!reserved) {
      LogWarning("cannot reserve a port: {}: after a crash home may not be able to reconnect",
                 Escape(reserved.error().message()));
    }
  }
  auto port = server_->Start(options_.listen_host + ":" + std::to_string(port_));
  if (!port && port_ != 0) {
    LogError("cannot listen on port {}, which home knows, because another process uses it: {}", port_,
             port.error().message());
    port = server_->Start(options_.listen_host + ":0");
  }
  if (!port) return std::move(port).error();
  port_ = *port;
  kept_->SavePort(port_);
  address_ = options_.listen_host + ":" + std::to_string(port_);
  return {};
}

Status FsServer::Start() {
  if (!agent_.listens()) return Error(Code::kInvalid, "file system server: no socket for the agent");
  if (options_.keeper >= 0) ::fcntl(options_.keeper, F_SETFD, FD_CLOEXEC);
  Handover::Left left;
  VRUN_ASSIGN(kept_, Handover::Start(UniqueFd(options_.keeper), &left));
  if (!kept_->has_keeper()) {
    if (::unshare(CLONE_NEWNS) != 0) return ErrnoError("file system server: a mount namespace of its own");
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return ErrnoError("make all mounts private");
  }
  VRUN_TRY(loop_.OnSignal(SIGTERM, [this](int) { loop_.Stop(); }));
  VRUN_TRY(loop_.OnSignal(SIGINT, [this](int) { loop_.Stop(); }));
  VRUN_TRY(loop_.OnSignal(SIGHUP, [this](int) { HandOver("it was asked to"); }));
  ::signal(SIGPIPE, SIG_IGN);
  LearnIds();
  VRUN_TRY(OpenStore());
  views_directory_ = options_.views_directory + "/" + options_.tenant;
  VRUN_TRY(MakeDirs(views_directory_, 0700));

  sources_ =
      std::make_unique<SourceChain>(options_.home_id, [this] { loop_.Post([this] { sources_->HomeIsBack(); }); });
  // Listen on the port that home knows, and know its runs before it can connect.
  port_ = left.port;
  for (const v1::AllowToken& run : left.runs) {
    sources_->home().AllowToken(run.home_id(), run.token(), run.job(), run.attempt());
  }
  VRUN_TRY(Listen());
  VRUN_TRY(StartSources());
  views_ = std::make_unique<ViewPool>(&loop_, views_directory_, HooksOf(false));
  apart_views_ = std::make_unique<ViewPool>(&loop_, views_directory_ + "/apart", HooksOf(true));
  live_views_ = std::make_unique<LiveViews>(&loop_, &sources_->home(), sources_->backend(), views_directory_ + "/live",
                                            LiveViews::Options{ids_, options_.features.no_open, options_.features.push,
                                                               kReadAheadKb, options_.features.readdirplus},
                                            LiveHooks());
  TakeOver(std::move(left));
  live_views_->Sweep();
  VRUN_TRY(agent_.Start({[this](const v1::FsRequest& request) { OnRequest(request); }, [this] { AgentIsGone(); }}));
  Tick();
  return {};
}

void FsServer::TakeOver(Handover::Left left) {
  for (const v1::AllowToken& run : left.runs) BeginRun(run, true);
  if (kept_->has_keeper()) {
    kept_->UnmountStrays(views_directory_, false);
    kept_->UnmountStrays(views_directory_ + "/apart", true);
  }
  int leases = 0;
  for (Handover::View& view : left.views) {
    leases += view.what.leases_size();
    TakeOverView(view.what, std::move(view.handle));
  }
  for (Handover::LiveView& live : left.live) {
    leases += live.what.leases_size();
    live_views_->Adopt(live.what.view(), {live.what.leases().begin(), live.what.leases().end()},
                       std::move(live.handle));
  }
  const size_t views = left.views.size() + left.live.size();
  if (views > 0) LogInfo("takes over {} views, with {} leases", views, leases);
}

void FsServer::TakeOverView(const v1::HandoverView& kept, vfs::ViewHandle handle) {
  ViewPool* pool = PoolOf(kept.apart());
  const auto tree = handle.Tree();
  if (!tree) {
    const std::string reason = tree.error().message();
    if (kept.leases_size() > 0) LogError("view {}: {}", kept.slot(), Escape(reason));
    kept_->DropView(kept.apart(), kept.slot());
    ::umount2(pool->DirectoryOf(kept.slot()).c_str(), MNT_DETACH);
    return;
  }
  // Shared, because a std::function is copied.
  const auto shared = std::make_shared<vfs::ViewHandle>(std::move(handle));
  pool->Adopt(kept.slot(), *tree, {kept.leases().begin(), kept.leases().end()},
              [this, shared, apart = kept.apart()](const std::string& directory, ViewPool::LostCallback lost) {
                auto view = vfs::FrozenView::TakeOver(sources_->backend(), std::move(*shared),
                                                      OptionsOf(apart, directory, std::move(lost)));
                if (!view) ::umount2(directory.c_str(), MNT_DETACH);
                return view;
              });
}

void FsServer::HandOver(const std::string& why) {
  if (!kept_->complete()) {
    LogWarning("does not hand over, though {}: {}", why,
               kept_->has_keeper() ? "its views would end with it" : "it has no keeper");
    return;
  }
  LogInfo("hands over: {}", why);
  exit_code_ = kHandOver;
  loop_.Stop();
}

void FsServer::SaveRuns() {
  std::vector<v1::AllowToken> runs;
  for (const auto& [key, run] : runs_) runs.push_back(run.allowed);
  kept_->SaveRuns(runs);
}

vfs::ViewOptions FsServer::OptionsOf(bool apart, const std::string& directory, ViewPool::LostCallback lost) const {
  vfs::ViewOptions view{.directory = directory, .ids = ids_};
  view.read_ahead_kb = kReadAheadKb;
  view.passthrough = apart && options_.features.passthrough;
  view.xattrs = apart;
  view.posix_acls = apart;  // otherwise the overlay above serves them and checks the mode alone
  view.push = options_.features.push;
  view.list_attributes = options_.features.readdirplus;
  view.no_open = options_.features.no_open;
  view.on_content_lost = std::move(lost);
  return view;
}

Status FsServer::StartSources() {
  VRUN_ASSIGN(rpc::Credentials credentials, rpc::LoadCredentials(options_.pki_directory, options_.node_name));
  SourceChain::Presign presign;
  if (options_.s3) {
    presign = [this](const v1::PresignRequest& request) {
      loop_.Post([this, request] {
        v1::FsReply reply;
        *reply.mutable_presign() = request;
        agent_.Reply(reply);
      });
    };
  }
  vfs::BackendOptions backend;
  if (options_.features.cpu_latency) {
    backend.cpu_latency.emplace();
    backend.cpu_latency->bearable_micros = vfs::CpuLatency::BearableMicros();
  }
  backend.warmer = warmer_;
  sources_->Start({.home_id = options_.home_id,
                   .name = options_.node_name,
                   .address = address_,
                   .pool = options_.pool,
                   .credentials = std::move(credentials)},
                  std::move(backend), store_.store.get(), std::move(presign));
  bursts_ = std::make_unique<TreeBursts>(&loop_, &sources_->home(), sources_->backend().get(), store_directory_);
  return {};
}

ViewPool::Hooks FsServer::HooksOf(bool apart) {
  ViewPool::Hooks hooks;
  hooks.mount = [this, apart](const Digest& tree, const std::string& directory, ViewPool::LostCallback lost) {
    return vfs::FrozenView::Mount(sources_->backend(), tree, OptionsOf(apart, directory, std::move(lost)));
  };
  hooks.keep = [this, apart](uint64_t slot, const vfs::FrozenView* view, const std::set<uint64_t>& leases) {
    kept_->SaveView(apart, slot, view, leases);
  };
  hooks.drop = [this, apart](uint64_t slot) { kept_->DropView(apart, slot); };
  hooks.before_advance = [this](const Digest& tree) {
    // Only a few directories changed. With all of them here, advancing costs one round trip instead of one per level.
    bursts_->Wait(tree);
  };
  hooks.lost = [this](const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases) {
    TellLost(path, reason, leases);
  };
  return hooks;
}

LiveViews::Hooks FsServer::LiveHooks() {
  LiveViews::Hooks hooks;
  hooks.lost = [this](const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases) {
    TellLost(path, reason, leases);
  };
  hooks.keep = [this](uint64_t id, const vfs::LiveView* view, const std::set<uint64_t>& leases) {
    kept_->SaveLiveView(id, view, leases);
  };
  hooks.drop = [this](uint64_t id) { kept_->DropLive(id); };
  hooks.told = [this](const Digest& tree) { bursts_->Told(tree); };
  return hooks;
}

void FsServer::TellLost(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases) {
  v1::FsReply reply;
  reply.mutable_content_lost()->set_path(path);
  reply.mutable_content_lost()->set_reason(reason);
  reply.mutable_content_lost()->mutable_leases()->Add(leases.begin(), leases.end());
  agent_.Reply(reply);
}

// The agent writes these files when the controller tells it.
void FsServer::EndShutOut() {
  const auto list = shut_out_.ShutOutList();
  if (!list) return;
  std::string now = list->SerializeAsString();
  if (now == shut_out_now_) return;
  shut_out_now_ = std::move(now);
  server_->EndCalls([here = shut_out_](const rpc::Peer& peer) { return here.IsRevoked(peer.role, peer.name); });
}

void FsServer::Tick() {
  if (++ticks_ % kShutOutTicks == 0) EndShutOut();
  sources_->SetReads(leases() > 0);
  sources_->Tick(MonotonicMicros());
  loop_.After(1'000'000, [this] { Tick(); });
}

int FsServer::Run() {
  loop_.Run();
  return exit_code_;
}

void FsServer::AgentIsGone() {
  if (leases() == 0) return loop_.Stop();
  LogInfo("the agent is gone, but its tasks still run: still serving {} of their views", leases());
}

void FsServer::OnAttach(uint64_t id, const v1::AgentAttach& attach) {
  const std::set<uint64_t> leases(attach.leases().begin(), attach.leases().end());
  views_->CloseAllBut(leases);
  apart_views_->CloseAllBut(leases);
  live_views_->CloseAllBut(leases);
  std::set<std::pair<uint64_t, uint32_t>> listed;
  for (const v1::AllowToken& run : attach.runs()) listed.emplace(run.job(), run.attempt());
  std::vector<std::pair<uint64_t, uint32_t>> over;
  for (const auto& [key, run] : runs_) {
    if (!listed.contains(key)) over.push_back(key);
  }
  for (const auto& [job, attempt] : over) EndRun(job, attempt);
  for (const v1::AllowToken& run : attach.runs()) {
    const auto known = runs_.find({run.job(), run.attempt()});
    if (known != runs_.end() && known->second.allowed.token() == run.token()) continue;
    // Of two pods of one attempt, each has its own token.
    sources_->home().AllowToken(run.home_id(), run.token(), run.job(), run.attempt());
    BeginRun(run, true);
  }
  SaveRuns();
  v1::FsReply reply;
  reply.set_id(id);
  reply.mutable_listening()->add_addresses(options_.listen_host + ":" + std::to_string(port_));
  agent_.Reply(reply);
  struct stat mine {
  }, theirs{};
  if (attach.program().empty() || ::stat("/proc/self/exe", &mine) != 0 ||
      ::stat(attach.program().c_str(), &theirs) != 0) {
    return;
  }
  const auto written = [](const struct stat& st) { return std::pair(st.st_mtim.tv_sec, st.st_mtim.tv_nsec); };
  if (mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino && written(mine) == written(theirs)) return;
  kept_->SetProgram(attach.program());
  HandOver("the agent is another version");
}

void FsServer::OnRequest(const v1::FsRequest& request) {
  const uint64_t id = request.id();
  v1::FsReply reply;
  reply.set_id(id);
  switch (request.what_case()) {
    case v1::FsRequest::kAttach: return OnAttach(id, request.attach());
    case v1::FsRequest::kStop: return loop_.Stop();
    case v1::FsRequest::kOpenView: return OpenView(id, request.open_view());
    case v1::FsRequest::kPublishView: return PublishView(id, request.publish_view().lease());
    case v1::FsRequest::kCloseView:
      CloseView(request.close_view().lease());
      reply.mutable_view_closed();
      return agent_.Reply(reply);
    case v1::FsRequest::kAllowToken: {
      const v1::AllowToken& allow = request.allow_token();
      sources_->home().AllowToken(allow.home_id(), allow.token(), allow.job(), allow.attempt());
      BeginRun(allow, views_->views() > 0 || apart_views_->views() > 0 || !live_views_->empty());
      SaveRuns();
      reply.mutable_allowed();
      return agent_.Reply(reply);
    }
    case v1::FsRequest::kEndRun:
      EndRun(request.end_run().job(), request.end_run().attempt());
      SaveRuns();
      reply.mutable_allowed();
      return agent_.Reply(reply);
    case v1::FsRequest::kCache:
      return cache_->Start(id, request.cache(), [this, id, asker = agent_.connection()](const v1::CacheEvent& event) {
        if (asker != agent_.connection()) return;
        v1::FsReply answer;
        answer.set_id(id);
        *answer.mutable_cache() = event;
        agent_.Reply(answer);
      });
    case v1::FsRequest::kCancelCache: return cache_->Cancel(request.cancel_cache());
    case v1::FsRequest::kPresigned: return sources_->Presigned(request.presigned());
    case v1::FsRequest::kSetCacheLimit: return store_.store->SetLimit(request.set_cache_limit().bytes());
    case v1::FsRequest::WHAT_NOT_SET: break;
  }
  agent_.ReplyError(id, Error(Code::kUnsupported, "file system server: unknown request: restart the node"));
}

void FsServer::BeginRun(const v1::AllowToken& run, bool partial) {
  if (runs_.size() >= vfs::Recorder::kMaxRuns) runs_.erase(runs_.begin());
  const vfs::RunId id{run.job(), run.attempt(), run.token()};
  if (!runs_.emplace(std::pair(run.job(), run.attempt()), OpenRun{run, id, sources_->Traffic()}).second) return;
  sources_->backend()->BeginRun(id, partial);
}

void FsServer::EndRun(uint64_t job, uint32_t attempt) {
  const auto it = runs_.find({job, attempt});
  if (it == runs_.end()) return;
  const OpenRun run = std::move(it->second);
  runs_.erase(it);
  const auto recording = sources_->backend()->EndRun(job, attempt);
  if (!recording) return;
  sources_->RunEnded();
  const RunTraffic now = sources_->Traffic();
  sources_->home().PutTrace(run.id, *recording,
                            {.home_bytes = now.home_bytes - run.before.home_bytes,
                             .peer_bytes = now.peer_bytes - run.before.peer_bytes,
                             .s3_bytes = now.s3_bytes - std::min(now.s3_bytes, run.before.s3_bytes),
                             .link_busy_micros = now.link_busy_micros - run.before.link_busy_micros});
}

void FsServer::CloseView(uint64_t lease) {
  views_->Close(lease);
  apart_views_->Close(lease);
  live_views_->Close(lease);
  sources_->SetReads(leases() > 0);
}

void FsServer::LearnIds() {
  if (options_.uid_ranges.empty()) return;
  const auto ranges = UidRanges::Load(options_.uid_ranges);
  const UidRanges::Range* range = ranges ? ranges->Find(options_.tenant) : nullptr;
  if (range != nullptr && range->base == ids_.base()) ids_.SetHigh(range->high);
}

void FsServer::OpenLiveView(uint64_t id, const v1::OpenView& open) {
  const auto tree = Digest::FromBytes(open.tree());
  if (!tree) return agent_.ReplyError(id, Error(Code::kInvalid, "open a live view: not a tree"));
  if (!live_views_->followed()) bursts_->Start(*tree, false);  // later trees are announced to the live view
  live_views_->Open(*tree, open.serial(), open.lease(),
                    [this, id, lease = open.lease(), asker = agent_.connection()](Result<LiveViews::Opened> opened) {
                      if (asker != agent_.connection()) return;
                      if (!opened) {
                        live_views_->Close(lease);
                        return agent_.ReplyError(id, opened.error());
                      }
                      v1::FsReply reply;
                      reply.set_id(id);
                      reply.mutable_view_opened()->set_view(opened->view);
                      std::vector<UniqueFd> fds;
                      fds.push_back(std::move(opened->mount));
                      agent_.Reply(reply, std::move(fds));
                    });
}

void FsServer::PublishView(uint64_t id, uint64_t lease) {
  live_views_->Publish(lease, [this, id, asker = agent_.connection()](const Result<LiveViews::Published>& published) {
    if (asker != agent_.connection()) return;
    if (!published) return agent_.ReplyError(id, published.error());
    v1::FsReply reply;
    reply.set_id(id);
    reply.mutable_view_published()->set_view(published->view);
    reply.mutable_view_published()->set_sequence(published->sequence);
    agent_.Reply(reply);
  });
}

void FsServer::OpenView(uint64_t id, const v1::OpenView& open) {
  sources_->SetReads(true);
  LearnIds();
  if (open.live()) return OpenLiveView(id, open);
  const auto tree = Digest::FromBytes(open.tree());
  const auto apart = Digest::FromBytes(open.apart());
  if (!tree || (!apart && !open.apart().empty())) {
    return agent_.ReplyError(id, Error(Code::kInvalid, "open a view: not a tree"));
  }
  struct Mounts {
    std::vector<UniqueFd> fds;
    std::optional<Error> error;
    size_t left = 0;
  };
  auto mounts = std::make_shared<Mounts>();
  mounts->left = apart ? 2 : 1;
  mounts->fds.resize(mounts->left);
  const auto opened = [this, id, lease = open.lease(), mounts, asker = agent_.connection()](size_t which,
                                                                                            Result<UniqueFd> mount) {
    if (mount) {
      mounts->fds[which] = std::move(*mount);
    } else if (!mounts->error) {
      mounts->error = std::move(mount).error();
    }
    if (--mounts->left > 0) return;
    if (asker != agent_.connection()) return;  // the asker is gone; the next agent sends its list of leases
    if (mounts->error) {
      views_->Close(lease);
      apart_views_->Close(lease);
      return agent_.ReplyError(id, *mounts->error);
    }
    v1::FsReply reply;
    reply.set_id(id);
    reply.mutable_view_opened();
    agent_.Reply(reply, std::move(mounts->fds));
  };
  bursts_->Start(*tree, false);
  if (apart) bursts_->Start(*apart, true);
  views_->Open(*tree, open.lease(), [opened](Result<UniqueFd> mount) { opened(0, std::move(mount)); });
  if (!apart) return;
  apart_views_->Open(*apart, open.lease(), [opened](Result<UniqueFd> mount) { opened(1, std::move(mount)); });
}

}  // namespace

int FsServerMain(const FsServerOptions& options) {
  InitLog("fs");
  std::shared_ptr<vfs::Warmer> warmer;
  if (options.features.push) {
    if (auto started = vfs::Warmer::Start()) warmer = *std::move(started);
  }
  auto* server = new FsServer(options, std::move(warmer));
  if (Status started = server->Start(); !started) {
    LogError("file system server: {}", Escape(started.error().message()));
    server->TellError(started.error());
    ::_exit(1);
  }
  // Skips destructors: a thread may wait up to a minute for a home that is away, and everything to release (mounts,
  // sockets, locks) is released with the process. The disk state is always consistent.
  ::_exit(server->Run());
}

}  // namespace vrun::node
