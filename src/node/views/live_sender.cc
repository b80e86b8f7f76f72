// SPDX-License-Identifier: Apache-2.0
#include "node/views/live_sender.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "node/source/content_source.h"
#include "proto/content.pb.h"

namespace vrun::node {
namespace {

constexpr std::chrono::milliseconds kFull{1};
constexpr std::chrono::seconds kSendAgain{1};  // after home refused, or content could not be read
constexpr int kMostPatience = 20;              // times the first wait

}  // namespace

struct LiveSender::Shared {
  Mutex mutex;
  CondVar changed;
  bool stop VRUN_GUARDED_BY(mutex) = false;
  bool asked VRUN_GUARDED_BY(mutex) = false;    // BeginWrites is in progress
  uint64_t request VRUN_GUARDED_BY(mutex) = 0;  // its id
  uint64_t begin VRUN_GUARDED_BY(mutex) = 0;    // begin of the series that home accepts; 0: none
  bool ready VRUN_GUARDED_BY(mutex) = true;     // the stream may have a message
  // Content in this series. What home has not processed is in its memory.
  uint64_t window VRUN_GUARDED_BY(mutex) = 0;  // 0: home sets no limit
  uint64_t sent VRUN_GUARDED_BY(mutex) = 0;
  uint64_t taken VRUN_GUARDED_BY(mutex) = 0;
  int64_t active VRUN_GUARDED_BY(mutex) = MonotonicMicros();  // last time that something was sent or received
  int patience VRUN_GUARDED_BY(mutex) = 1;
  // Held while the stream is called. Lock before `mutex`. Results of Next belong to the series that began with the last
  // Resume.
  Mutex hearing;
  vfs::LiveStream* stream VRUN_GUARDED_BY(hearing) = nullptr;  // null before the start and after the sender is gone

  void Heard(const v1::LiveAck& ack) {
    MutexLock hear(hearing);
    if (stream == nullptr) return;
    if (ack.begin() != 0) stream->SetTakesClaims(ack.claims());
    stream->Acknowledge(ack.ack());
    if (ack.begin() != 0) stream->Resume(ack.ack().sequence());
    MutexLock lock(mutex);
    active = MonotonicMicros();
    if (ack.begin() != 0) {
      begin = ack.begin();
      window = ack.window();
      sent = taken = 0;
    } else {
      patience = 1;
    }
    taken = std::max(taken, ack.taken());
    ready = true;
    changed.notify_all();
  }

  bool MaySend() const VRUN_REQUIRES(mutex) {
    return begin != 0 && ready && (window == 0 || sent - std::min(sent, taken) < window);
  }
};

LiveSender::LiveSender(ContentSource* home, uint64_t view, int64_t patience_micros)
    : home_(home), view_(view), patience_micros_(patience_micros), shared_(std::make_shared<Shared>()) {}

std::function<void()> LiveSender::ReadyCallback() const {
  return [shared = shared_] {
    MutexLock lock(shared->mutex);
    shared->ready = true;
    shared->changed.notify_all();
  };
}

void LiveSender::Start(vfs::LiveStream* stream) {
  {
    MutexLock hear(shared_->hearing);
    shared_->stream = stream;
  }
  thread_ = std::thread([this] { Run(); });
}

LiveSender::~LiveSender() {
  uint64_t request = 0;
  {
    MutexLock lock(shared_->mutex);
    shared_->stop = true;
    request = shared_->asked ? shared_->request : 0;
    shared_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  home_->Unwatch(request);
  MutexLock hear(shared_->hearing);
  shared_->stream = nullptr;
}

void LiveSender::Begin() {
  {
    MutexLock lock(shared_->mutex);
    shared_->asked = true;
    shared_->begin = 0;
  }
  ContentSource::Writes writes;
  writes.heard = [shared = shared_](const v1::LiveAck& ack) { shared->Heard(ack); };
  writes.over = [shared = shared_](const Error& error) {
    LogInfo("live view: home does not accept writes: {}", Escape(error.message()));
    MutexLock lock(shared->mutex);
    shared->asked = false;
  };
  const uint64_t id = home_->BeginWrites(view_, std::move(writes));
  MutexLock lock(shared_->mutex);
  shared_->request = id;
}

void LiveSender::Run() {
  ::pthread_setname_np(::pthread_self(), "live-sender");
  Shared& s = *shared_;
  Message message;
  MutexLock lock(s.mutex);
  while (!s.stop) {
    if (!s.asked) {
      lock.unlock();
      Begin();
      lock.lock();
    }
    const auto may_go_on = [&]() VRUN_REQUIRES(s.mutex) {
      return s.begin != 0 && (!message.bytes.empty() || s.MaySend());
    };
    if (!may_go_on()) {
      s.changed.wait_for(lock, kSendAgain, [&]() VRUN_REQUIRES(s.mutex) { return s.stop || may_go_on(); });
      if (!s.stop && !may_go_on()) AskAgainIfQuiet(&lock);
      continue;
    }
    lock.unlock();
    const auto taken = message.bytes.empty() ? Take(&message) : Taken::kMessage;
    const auto sent =
        taken == Taken::kMessage ? home_->SendWrite(message.request, message.bytes) : ContentSource::Sent::kSent;
    if (sent != ContentSource::Sent::kFull) message.bytes.clear();
    lock.lock();
    if (sent == ContentSource::Sent::kSent && taken == Taken::kMessage) s.active = MonotonicMicros();
    // What was lost with the old stream is sent again from where home says, which it may have said already.
    if (sent == ContentSource::Sent::kAway && s.begin == message.begin) s.begin = 0;
    if (sent == ContentSource::Sent::kFull)
      s.changed.wait_for(lock, kFull, [&]() VRUN_REQUIRES(s.mutex) { return s.stop; });
    if (taken == Taken::kFailed) s.changed.wait_for(lock, kSendAgain, [&]() VRUN_REQUIRES(s.mutex) { return s.stop; });
  }
}

// Everything is sent and home acknowledges nothing. If home waits too, because a message got lost, this restarts both.
// If it is only slow, it receives some messages twice.
// The analysis does not know which mutex `lock` holds.
void LiveSender::AskAgainIfQuiet(MutexLock* lock) VRUN_NO_THREAD_SAFETY_ANALYSIS {
  Shared& s = *shared_;
  if (!s.asked || MonotonicMicros() - s.active < patience_micros_ * s.patience) return;
  s.active = MonotonicMicros();
  const uint64_t request = s.request;
  lock->unlock();
  uint64_t outstanding = 0;
  {
    MutexLock hear(s.hearing);
    outstanding = s.stream->stats().operations;
  }
  if (outstanding > 0) home_->Unwatch(request);
  lock->lock();
  if (outstanding == 0) return;
  LogInfo("live view: home has not acknowledged {} operations: asking it where to continue", outstanding);
  s.patience = std::min(2 * s.patience, kMostPatience);
  s.asked = false;
}

LiveSender::Taken LiveSender::Take(Message* message) {
  Shared& s = *shared_;
  MutexLock hear(s.hearing);
  v1::ContentRequest out;
  {
    MutexLock lock(s.mutex);
    message->request = s.request;
    message->begin = s.begin;
    out.mutable_write()->set_begin(s.begin);
    s.ready = false;
  }
  auto written = s.stream->Next();
  if (written && !*written) return Taken::kNothing;
  {
    MutexLock lock(s.mutex);
    s.ready = true;
    if (written) s.sent += (*written)->file_data().data().size();
  }
  if (!written) {
    LogWarning("live view: {}", Escape(written.error().message()));
    return Taken::kFailed;
  }
  out.mutable_write()->set_view(view_);
  *out.mutable_write()->mutable_write() = *std::move(*written);
  message->bytes = out.SerializeAsString();
  return Taken::kMessage;
}

}  // namespace vrun::node
