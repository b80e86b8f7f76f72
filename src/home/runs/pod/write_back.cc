// SPDX-License-Identifier: Apache-2.0
#include "home/runs/pod/write_back.h"

#include "base/escape.h"
#include "base/files.h"

namespace vrun::home {
namespace {

// The node keeps at most 256 operations or 8 MiB unacknowledged: we acknowledge at half of that, so that it never
// waits.
constexpr size_t kSyncOperations = 128;
constexpr uint64_t kSyncBytes = 4u << 20;
constexpr int64_t kIdleSyncMicros = 20'000;
constexpr uint64_t kMaxTold = 10;

// Errors that go away when somebody frees space.
bool MayPass(const Error& error) {
  switch (error.error_number()) {
    case ENOSPC:
    case EDQUOT:
    case ENFILE:
    case EMFILE:
    case ENOMEM: return true;
    default: return error.error_number() == 0 && error.code() == Code::kExhausted;
  }
}

}  // namespace

WriteBack::WriteBack(EventLoop* loop, ApplyOptions options, Events events)
    : loop_(loop), options_(std::move(options)), events_(std::move(events)) {
  options_.notice = [this](const std::string& text) { OnLoop([this, text] { events_.on_notice(text); }); };
  options_.conflict = [this](const std::string& path) { OnLoop([this, path] { events_.on_conflict(path); }); };
}

WriteBack::~WriteBack() {
  *alive_ = false;
  loop_->Cancel(idle_sync_);
  if (worker_) worker_->Stop();
}

template <typename F>
void WriteBack::OnLoop(F f) {
  loop_->Post([alive = alive_, f = std::move(f)]() mutable {
    if (*alive) f();
  });
}

Status WriteBack::OpenApplier() {
  if (applier_) return {};
  VRUN_ASSIGN(applier_, Applier::Open(options_));
  return {};
}

uint64_t WriteBack::sequence() {
  // While the worker is active, only it uses the applier; a reconnection asks when it is idle, or accepts repetition.
  if (!worker_ && !options_.journal.empty() && PathExists(options_.journal)) (void)OpenApplier();
  if (queued_.load() > 0 || !applier_) return 0;
  return applier_->sequence();
}

void WriteBack::Apply(v1::WriteBack message) {
  if (!worker_) worker_ = std::make_unique<WorkQueue>("apply");
  queued_.fetch_add(1);
  worker_->Post([this, message = std::move(message), generation = generation_.load()] {
    if (generation == generation_.load()) ApplyOne(message);
    if (queued_.fetch_sub(1) != 1 || unsynced_ == 0) return;
    // A pause: acknowledge what was applied so far, but do not flush for each operation of a slow series.
    OnLoop([this] {
      if (idle_sync_ != 0) return;
      idle_sync_ = loop_->After(kIdleSyncMicros, [this] {
        idle_sync_ = 0;
        queued_.fetch_add(1);
        worker_->Post([this] {
          if (unsynced_ > 0) SyncAndAcknowledge();
          queued_.fetch_sub(1);
        });
      });
    });
  });
}

void WriteBack::End() {
  if (!worker_ && !applier_) {
    // Nothing was written, as in most runs.
    OnLoop([this] { events_.on_finished(0); });
    return;
  }
  if (!worker_) worker_ = std::make_unique<WorkQueue>("apply");
  queued_.fetch_add(1);
  worker_->Post([this, generation = generation_.load()] {
    if (generation == generation_.load()) FinishAll();
    queued_.fetch_sub(1);
  });
}

void WriteBack::Restart(bool patient) {
  generation_.fetch_add(1);
  if (!worker_) return;
  queued_.fetch_add(1);
  worker_->Post([this, patient] {
    blocked_ = false;
    patient_ = patient;
    failed_file_ = 0;
    // A new applier starts at the journal's position, without the partial file of the old one.
    applier_.reset();
    (void)OpenApplier();
    last_ = applier_ ? applier_->sequence() : 0;
    queued_.fetch_sub(1);
  });
}

void WriteBack::ApplyOne(const v1::WriteBack& message) {
  if (blocked_) return;
  if (message.has_file_data() && failed_file_ != 0) {
    last_ = message.sequence();
    ++unsynced_;
    if (message.file_data().last()) failed_file_ = 0;
    if (unsynced_ >= kSyncOperations) SyncAndAcknowledge();
    return;
  }
  Status applied = OpenApplier();
  if (applied) applied = applier_->Apply(message);
  last_ = message.sequence();
  if (!applied) {
    if (patient_ && MayPass(applied.error())) {
      blocked_ = true;
      OnLoop([this, error = applied.error()] { events_.on_blocked(error); });
      return;
    }
    if (message.has_put_file() || (message.has_file_data() && !message.file_data().last()))
      failed_file_ = message.sequence();
    Failed(message.sequence(), applied.error());
  }
  ++unsynced_;
  unsynced_bytes_ += message.file_data().data().size();
  if (unsynced_ >= kSyncOperations || unsynced_bytes_ >= kSyncBytes) SyncAndAcknowledge();
}

void WriteBack::Failed(uint64_t, const Error& error) {
  ++failed_;
  if (failed_ <= kMaxTold) OnLoop([this, text = error.message()] { events_.on_notice(text); });
}

void WriteBack::SyncAndAcknowledge() {
  if (blocked_ || !applier_) return;
  unsynced_ = 0;
  unsynced_bytes_ = 0;
  auto synced = applier_->Sync();
  uint64_t acknowledge = synced ? *synced : 0;
  if (!synced) Failed(last_, synced.error());
  // After a failure the series continues; the node keeps all of it until it is released, which then does not happen.
  if (failed_ > 0) acknowledge = last_;
  if (acknowledge > 0) OnLoop([this, acknowledge] { events_.on_acknowledge(acknowledge); });
}

void WriteBack::FinishAll() {
  if (blocked_) return;
  Status opened = OpenApplier();
  // The journal stays until the node was told: it may send everything again, to another process.
  Status finished = opened;
  if (opened) {
    if (auto synced = applier_->Sync(); !synced) finished = synced.error();
  }
  if (!finished) Failed(last_, finished.error());
  if (failed_ > kMaxTold) {
    OnLoop([this, more = failed_ - kMaxTold] {
      events_.on_notice(std::to_string(more) + " more of the command's writes could not be applied");
    });
  }
  OnLoop([this, failed = failed_] { events_.on_finished(failed); });
}

}  // namespace vrun::home
