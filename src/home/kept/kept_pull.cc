// SPDX-License-Identifier: Apache-2.0
#include "home/kept/kept_pull.h"

#include <utility>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::home {
namespace {

constexpr uint64_t kTellBytes = 1u << 20;
constexpr uint64_t kMaxTold = 10;

bool IsFull(const Error& error) { return error.error_number() == ENOSPC || error.error_number() == EDQUOT; }

}  // namespace

KeptPull::KeptPull(EventLoop* loop, ApplyOptions options, bool elsewhere, Events events)
    : loop_(loop), options_(std::move(options)), elsewhere_(elsewhere), events_(std::move(events)) {
  options_.notice = [this](const std::string& text) { OnLoop([this, text] { events_.on_notice(text); }); };
  if (events_.on_conflict == nullptr) return;
  options_.conflict = [this](const std::string& path) { OnLoop([this, path] { events_.on_conflict(path); }); };
}

KeptPull::~KeptPull() {
  *alive_ = false;
  worker_.Stop();
}

template <typename F>
void KeptPull::OnLoop(F f) {
  loop_->Post([alive = alive_, f = std::move(f)]() mutable {
    if (*alive) f();
  });
}

void KeptPull::Write(v1::WriteBack message) {
  worker_.Post([this, message = std::move(message)]() mutable { One(std::move(message)); });
}

void KeptPull::End() {
  worker_.Post([this] { Finish(); });
}

void KeptPull::One(v1::WriteBack message) {
  if (stopped_) return;
  const uint64_t size = message.ByteSizeLong();
  const uint64_t content = message.file_data().data().size();
  if (Status applied = Apply(&message); !applied) {
    if (IsFull(applied.error())) {
      stopped_ = true;
      return OnLoop([this, error = applied.error()] { events_.on_finished(error); });
    }
    Failed(applied.error());
  }
  taken_ += size;
  content_ += content;
  if (taken_ - told_taken_ < kTellBytes) return;
  told_taken_ = taken_;
  OnLoop([this, taken = taken_, content = content_] { events_.on_taken(taken, content); });
}

void KeptPull::Failed(const Error& error) {
  if (++failed_ <= kMaxTold) OnLoop([this, text = error.message()] { events_.on_notice(text); });
}

Status KeptPull::Apply(v1::WriteBack* message) {
  if (!applier_) {
    if (elsewhere_) VRUN_TRY(MakeDirs(options_.root, 0755));
    VRUN_ASSIGN(applier_, Applier::Open(options_));
  }
  if (elsewhere_) {
    bool wanted = true;
    VRUN_TRY(Place(message, &wanted));
    if (!wanted) return {};
  }
  return applier_->Apply(*message);
}

// The target directory is empty: there is nothing to replace, and even parent directories are missing.
Status KeptPull::Place(v1::WriteBack* message, bool* wanted) {
  if (message->has_file_data()) {
    *wanted = !skip_data_;
    return {};
  }
  skip_data_ = true;
  message->clear_base();
  if (message->has_set_meta()) {
    *wanted = made_.contains(message->path());
    return {};
  }
  if (message->has_remove() || message->has_rename()) {
    ++left_out_;
    *wanted = false;
    return {};
  }
  VRUN_TRY(MakeDirs(options_.root + message->path().substr(0, message->path().rfind('/')), 0755));
  skip_data_ = false;
  if (message->has_make_directory()) made_.insert(message->path());
  return {};
}

void KeptPull::Finish() {
  if (stopped_) return;
  Status finished = applier_ ? applier_->Finish() : Status();
  if (!finished) Failed(finished.error());
  OnLoop([this, failed = failed_, left_out = left_out_] {
    if (failed > kMaxTold) events_.on_notice(std::to_string(failed - kMaxTold) + " more could not be written");
    if (left_out > 0) {
      events_.on_notice(
          std::to_string(left_out) +
          " removals and renames of home's own files were skipped: they do not apply to another directory");
    }
    events_.on_finished(failed);
  });
}

}  // namespace vrun::home
