// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/backend.h"

#include "store/store.h"
#include "vfs/content/burst.h"
#include "vfs/content/directory_cache.h"
#include "vfs/content/file_cache.h"
#include "vfs/content/prefetch.h"
#include "vfs/content/verifier.h"
#include "vfs/content/withheld.h"
#include "vfs/content/write_behind.h"
#include "vfs/timer_thread.h"
#include "vfs/trace/recorder.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

std::shared_ptr<Backend> Backend::Create(BackendOptions options, Source* source, store::Store* store) {
  return std::shared_ptr<Backend>(new Backend(std::move(options), source, store));
}

Backend::Backend(BackendOptions options, Source* source, store::Store* store)
    : options_(std::move(options)),
      source_(source),
      store_(store),
      timers_(std::make_unique<TimerThread>()),
      cpu_latency_(options_.cpu_latency ? CpuLatency::Open(*options_.cpu_latency, timers_.get()) : nullptr),
      directories_(std::make_unique<DirectoryCache>(*this)),
      files_(std::make_unique<FileCache>(*this)),
      prefetcher_(std::make_unique<Prefetcher>(*this)),
      recorder_(std::make_unique<Recorder>()),
      traced_(std::make_unique<TracedFiles>()),
      bursts_(std::make_unique<Bursts>(*this)),
      write_behind_(std::make_unique<WriteBehind>(options_.write_behind_bytes)),
      verifier_(std::make_unique<Verifier>()),
      withheld_(std::make_unique<Withheld>()) {
  store_->OnPressure([this] { files_->ReleaseIdle(); });
}

Backend::~Backend() {
  store_->OnPressure(nullptr);
  timers_->Stop();
  bursts_->Close();
  directories_->Close();
  files_->Close();
  prefetcher_->Close();
  verifier_.reset();
  // Late answers from home use it; from here on they find nothing.
  write_behind_.reset();
}

void Backend::Preload(std::vector<FetchedDirectory> directories) {
  auto kept = std::make_shared<std::vector<tree::DirectoryPtr>>();
  kept->reserve(directories.size());
  for (FetchedDirectory& directory : directories) {
    if (!directory.directory) continue;
    kept->push_back(directory.directory);
    directories_->Insert(std::move(directory));
  }
  timers_->After(0, [this, kept] {
    for (const tree::DirectoryPtr& directory : *kept) {
      if (!store_->PutBlob(directory->digest(), directory->encoded())) ++counters_.store_write_failures;
    }
  });
}

void Backend::Offer(const tree::FileVersion& version, FetchedRange content) {
  std::vector<Digest> digests;
  std::string all;
  for (FetchedUnit& unit : content.units) {
    digests.push_back(unit.digest);
    all += unit.data;
  }
  const auto buffer = std::make_shared<const std::string>(std::move(all));
  files_->Get(version, content.object_id)->Arrived(0, digests, *buffer, Origin::kAhead, buffer);
}

void Backend::BeginRun(const RunId& run, bool partial) {
  recorder_->Begin(run.job, run.attempt, partial);
  bursts_->Start(run);
}

std::optional<Recording> Backend::EndRun(uint64_t job, uint32_t attempt) {
  bursts_->Stop(job, attempt);
  auto recording = recorder_->End(job, attempt);
  if (!recorder_->active()) prefetcher_->Stop();
  return recording;
}

bool Backend::HasDirectory(const Digest& digest) { return directories_->Has(digest); }

void Backend::HomeIsBack() { timers_->Expedite(); }

}  // namespace vrun::vfs
