// SPDX-License-Identifier: Apache-2.0
#include "node/agent/node_caches.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "store/store.h"

namespace vrun::node {
namespace {

constexpr int64_t kTickMicros = 3'000'000;
constexpr int64_t kActiveMicros = 10 * 60 * 1'000'000LL;  // a cache used within this time is active

uint64_t LimitOf(const NodeCachesOptions& options) {
  if (options.limit_bytes > 0) return options.limit_bytes;
  struct statvfs fs;
  if (::statvfs(options.directory.c_str(), &fs) != 0) return 1ull << 30;
  return std::max<uint64_t>(fs.f_blocks * fs.f_frsize / 4, 64u << 20);
}

std::vector<std::string> Subdirectories(const std::string& path) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  while (const dirent* e = dir ? ::readdir(dir.get()) : nullptr) {
    if (e->d_name[0] != '.') names.emplace_back(e->d_name);
  }
  return names;
}

int64_t LastUsed(const std::string& directory) {
  struct stat st;
  return ::stat((directory + "/lock").c_str(), &st) == 0 ? st.st_mtime * 1'000'000LL : 0;
}

// A killed agent may have left its server running.
bool IsServed(const std::string& directory) {
  auto lock = OpenFile(directory + "/lock", O_RDONLY);
  return lock && ::flock(lock->get(), LOCK_EX | LOCK_NB) != 0;
}

struct Idle {
  std::string tenant;
  uint64_t bytes = 0;
  int64_t used = 0;
};

// Shrinks a cache without a server to `most` and to what the disk's watermark leaves.
uint64_t Shrink(const NodeCachesOptions& options, const std::string& tenant, uint64_t most) {
  store::Options store_options{.directory = options.directory + "/" + tenant, .max_bytes = most};
  if (options.min_free_bytes > 0) store_options.min_free_bytes = options.min_free_bytes;
  store_options.min_free_percent = options.min_free_percent;
  auto store = store::Store::Open(store_options);
  if (!store) {
    LogWarning("{}", Escape(store.error().message()));
    return 0;
  }
  return (*store)->Prune(most).value_or(0);
}

void Fail(const std::shared_ptr<HomeStream>& stream, const Error& error) {
  v1::CacheEvent event;
  event.mutable_error()->set_code(static_cast<int>(error.code()));
  event.mutable_error()->set_message(error.message());
  stream->Send(event.SerializeAsString());
  stream->Close();
}

}  // namespace

NodeCaches::NodeCaches(EventLoop* loop, NodeCachesOptions options, Hooks hooks)
    : loop_(loop), options_(std::move(options)), hooks_(std::move(hooks)), limit_(LimitOf(options_)) {
  timer_ = loop_->After(0, [this] { Tick(); });
}

NodeCaches::~NodeCaches() {
  loop_->Cancel(timer_);
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

uint64_t NodeCaches::bytes() const {
  uint64_t sum = 0;
  for (const auto& [tenant, known] : known_) sum += known.bytes;
  return sum;
}

uint64_t NodeCaches::LimitForNew() const {
  const uint64_t fair = limit_ / (hooks_.servers().size() + 1);
  const uint64_t held = bytes();
  return std::max(fair, limit_ > held ? limit_ - held : 0);
}

void NodeCaches::Tick() {
  timer_ = loop_->After(kTickMicros, [this] { Tick(); });
  const auto servers = hooks_.servers();
  std::erase_if(told_, [&](const auto& t) { return !servers.contains(t.first); });
  v1::CacheRequest stat;
  stat.mutable_stat();
  for (const auto& [tenant, server] : servers) {
    server->Cache(stat, [this, alive = std::weak_ptr<bool>(alive_), tenant = tenant](const v1::CacheEvent& event) {
      if (!alive.expired() && event.has_report()) Heard(tenant, event.report().stat());
    });
  }
  Share();
  Measure();
}

// A server counts from its own start, so what it tells may be less than before.
void NodeCaches::Count(const v1::CacheStat& before, const v1::CacheStat& now) {
  const bool same = now.hits() >= before.hits() && now.misses() >= before.misses();
  const auto add = [&](uint64_t* sum, uint64_t (v1::CacheStat::*of)() const) {
    const uint64_t then = same ? (before.*of)() : 0;
    *sum += (now.*of)() >= then ? (now.*of)() - then : (now.*of)();
  };
  add(&counted_.hits, &v1::CacheStat::hits);
  add(&counted_.misses, &v1::CacheStat::misses);
  add(&counted_.corrupt_units, &v1::CacheStat::corrupt_units);
  add(&counted_.evictions, &v1::CacheStat::evictions);
  add(&counted_.failed_writes, &v1::CacheStat::failed_writes);
  add(&counted_.fetched_bytes, &v1::CacheStat::fetched_bytes);
}

CacheFigures NodeCaches::Figures() const {
  CacheFigures figures = counted_;
  figures.bytes = bytes();
  figures.limit_bytes = limit_;
  return figures;
}

void NodeCaches::Heard(const std::string& tenant, const v1::CacheStat& stat) {
  Known& known = known_[tenant];
  known.bytes = stat.bytes();
  Count(known.told, stat);
  known.told = stat;
  const uint64_t touched = stat.hits() + stat.misses() + 1;
  if (std::exchange(known.touched, touched) != touched) known.used = WallMicros();
}

void NodeCaches::Share() {
  const auto servers = hooks_.servers();
  std::vector<CacheHolder> holders;
  for (const auto& [tenant, known] : known_) {
    const bool active = servers.contains(tenant) && WallMicros() - known.used < kActiveMicros;
    holders.push_back({tenant, known.bytes, active, known.used});
  }
  idle_most_.clear();
  for (const auto& [tenant, most] : ShareCache(limit_, holders)) {
    auto server = servers.find(tenant);
    if (server == servers.end()) {
      idle_most_[tenant] = most;
    } else if (std::exchange(told_[tenant], most) != most) {
      server->second->SetCacheLimit(most);
    }
  }
}

void NodeCaches::Measure() {
  if (measuring_) return;
  if (thread_.joinable()) thread_.join();
  const auto servers = hooks_.servers();
  std::vector<Idle> idle;
  for (const std::string& tenant : Subdirectories(options_.directory)) {
    if (servers.contains(tenant)) continue;
    auto known = known_.find(tenant);
    idle.push_back({tenant, known == known_.end() ? UINT64_MAX : known->second.bytes, 0});
  }
  if (idle.empty()) return;
  measuring_ = true;
  thread_ = std::thread([this, idle = std::move(idle), most = idle_most_]() mutable {
    bool low = false;
    {
      struct statvfs fs;
      const bool told = ::statvfs(options_.directory.c_str(), &fs) == 0;
      const uint64_t total = told ? fs.f_blocks * fs.f_frsize : 0;
      const uint64_t amount = options_.min_free_bytes > 0 ? options_.min_free_bytes : store::Options().min_free_bytes;
      const uint64_t keep = options_.min_free_percent > 0 ? total / 100 * options_.min_free_percent
                                                          : std::min<uint64_t>(amount, total / 10);
      low = told && fs.f_bavail * fs.f_frsize < keep;
    }
    for (Idle& cache : idle) {
      if (stop_) break;
      const std::string directory = options_.directory + "/" + cache.tenant;
      cache.used = LastUsed(directory);
      const bool first = cache.bytes == UINT64_MAX;
      auto limit = most.find(cache.tenant);
      const bool too_much = limit != most.end() && limit->second < cache.bytes;
      if ((first || too_much || low) && !IsServed(directory)) {
        cache.bytes = Shrink(options_, cache.tenant, too_much && !first ? limit->second : UINT64_MAX / 2);
      }
    }
    loop_->Post([this, alive = std::weak_ptr<bool>(alive_), idle = std::move(idle)] {
      if (alive.expired()) return;
      measuring_ = false;
      const auto servers = hooks_.servers();
      for (const Idle& cache : idle) {
        if (cache.bytes == UINT64_MAX || servers.contains(cache.tenant)) continue;
        known_[cache.tenant] = {cache.bytes, 0, cache.used, {}};
      }
    });
  });
}

void NodeCaches::Serve(const std::shared_ptr<HomeStream>& stream) {
  stream->SetEvents({.on_frame =
                         [this, alive = std::weak_ptr<bool>(alive_),
                          weak = std::weak_ptr<HomeStream>(stream)](const std::string& frame) {
                           auto s = weak.lock();
                           if (s && !alive.expired()) Answer(s, frame);
                         },
                     .on_closed = {}});
}

void NodeCaches::Answer(const std::shared_ptr<HomeStream>& stream, const std::string& frame) {
  v1::CacheRequest request;
  if (!request.ParseFromString(frame)) return Fail(stream, Error(Code::kInvalid, "cache: the request does not parse"));
  const Tenant tenant{stream->peer().name, request.home_id()};
  const auto servers = hooks_.servers();
  if (!servers.contains(tenant.Key()) && !PathExists(options_.directory + "/" + tenant.Key())) {
    // The tenant has never run anything here, so no server is started just to report that.
    v1::CacheEvent event;
    v1::CacheStat* stat = event.mutable_report()->mutable_stat();
    stat->set_limit_bytes(LimitForNew());
    stat->set_node_bytes(bytes());
    stat->set_node_limit_bytes(limit_);
    struct statvfs fs;
    if (::statvfs(options_.directory.c_str(), &fs) == 0) stat->set_disk_free_bytes(fs.f_bavail * fs.f_frsize);
    stream->Send(event.SerializeAsString());
    return stream->Close();
  }
  Error error(Code::kOk, "");
  FsClient* server = hooks_.server_of(tenant, &error);
  if (server == nullptr) return Fail(stream, error);
  const std::string key = tenant.Key();
  auto over = std::make_shared<bool>(false);
  const uint64_t id = server->Cache(
      request, [this, alive = std::weak_ptr<bool>(alive_), stream, key, over](const v1::CacheEvent& event) {
        if (alive.expired()) return;
        if (event.has_progress()) return stream->Send(event.SerializeAsString());
        *over = true;
        v1::CacheEvent last = event;
        if (last.has_report()) {
          Heard(key, last.report().stat());
          last.mutable_report()->mutable_stat()->set_node_bytes(bytes());
          last.mutable_report()->mutable_stat()->set_node_limit_bytes(limit_);
        }
        stream->Send(last.SerializeAsString());
        stream->Close();
      });
  stream->SetEvents({.on_frame = {}, .on_closed = [this, alive = std::weak_ptr<bool>(alive_), key, id, over] {
                       if (alive.expired() || *over) return;
                       const auto running = hooks_.servers();
                       if (auto it = running.find(key); it != running.end()) it->second->CancelCache(id);
                     }});
}

}  // namespace vrun::node
