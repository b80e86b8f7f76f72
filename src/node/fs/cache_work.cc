// SPDX-License-Identifier: Apache-2.0
#include "node/fs/cache_work.h"

#include "base/clock.h"
#include "base/escape.h"

namespace vrun::node {
namespace {

constexpr int64_t kTellEvery = 200'000;

v1::CacheEvent Failed(const Error& error) {
  v1::CacheEvent event;
  event.mutable_error()->set_code(static_cast<int>(error.code()));
  event.mutable_error()->set_message(Escape(error.message()));
  return event;
}

void Describe(const store::Store::VerifyReport& report, v1::CacheProgress* progress) {
  progress->set_objects(report.objects);
  progress->set_total_objects(report.total_objects);
  progress->set_units(report.units);
  progress->set_bytes(report.bytes);
  progress->set_corrupt_units(report.corrupt_units);
}

}  // namespace

CacheWork::~CacheWork() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void CacheWork::Start(uint64_t id, const v1::CacheRequest& request, Tell tell) {
  if (request.has_stat()) {
    v1::CacheEvent event;
    event.mutable_report();
    return Finish(std::move(event), tell);
  }
  if (!request.has_verify() && !request.has_prune()) {
    return tell(
        Failed(Error(Code::kUnsupported, "cache: the node does not know this request: update vrun on the node")));
  }
  if (running_ != 0) return tell(Failed(Error(Code::kExists, "cache: it is being verified or pruned already: wait")));
  if (thread_.joinable()) thread_.join();
  running_ = id;
  stop_ = false;
  if (request.has_verify()) return Run([this, tell] { return Verify(tell); }, tell);
  Run([this, bytes = request.prune().to_bytes()] { return Prune(bytes); }, tell);
}

void CacheWork::Cancel(uint64_t id) {
  if (running_ == id) stop_ = true;
}

void CacheWork::Run(std::function<v1::CacheEvent()> work, Tell tell) {
  thread_ = std::thread([this, work = std::move(work), tell = std::move(tell)] {
    v1::CacheEvent event = work();
    loop_->Post([this, event = std::move(event), tell]() mutable {
      running_ = 0;
      Finish(std::move(event), tell);
    });
  });
}

v1::CacheEvent CacheWork::Verify(const Tell& tell) {
  int64_t told = MonotonicMicros();
  auto report = store_->Verify([&](const store::Store::VerifyReport& now) {
    if (MonotonicMicros() - told >= kTellEvery) {
      told = MonotonicMicros();
      v1::CacheEvent event;
      Describe(now, event.mutable_progress());
      loop_->Post([tell, event = std::move(event)] { tell(event); });
    }
    return !stop_;
  });
  if (!report) return Failed(report.error());
  v1::CacheEvent event;
  Describe(*report, event.mutable_report()->mutable_verified());
  return event;
}

v1::CacheEvent CacheWork::Prune(uint64_t bytes) {
  store_->WaitForScan();
  const uint64_t before = store_->stats().bytes;
  auto left = store_->Prune(bytes);
  if (!left) return Failed(left.error());
  v1::CacheEvent event;
  event.mutable_report()->set_freed_bytes(before > *left ? before - *left : 0);
  return event;
}

void CacheWork::Finish(v1::CacheEvent event, const Tell& tell) {
  if (event.has_report()) {
    const store::Stats now = store_->stats();
    v1::CacheStat* stat = event.mutable_report()->mutable_stat();
    stat->set_bytes(now.bytes);
    stat->set_limit_bytes(now.limit_bytes);
    stat->set_objects(now.objects);
    stat->set_hits(now.hits);
    stat->set_misses(now.misses);
    stat->set_corrupt_units(now.corrupt_units);
    stat->set_evictions(now.evictions);
    stat->set_failed_writes(now.failed_writes);
    stat->set_disk_free_bytes(now.disk_free_bytes);
    stat->set_min_free_bytes(now.min_free_bytes);
    complete_(stat);
  }
  tell(event);
}

}  // namespace vrun::node
