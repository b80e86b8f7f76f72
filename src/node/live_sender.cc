// SPDX-License-Identifier: Apache-2.0
#include "node/live_sender.h"

#include <pthread.h>

#include <chrono>
#include <string>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "node/content_source.h"
#include "proto/content.pb.h"

namespace vrun::node {
namespace {

constexpr std::chrono::milliseconds kFull{1};
constexpr std::chrono::seconds kAgain{1};  // after home could not, or content could not be read

}  // namespace

struct LiveSender::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool asked = false;    // BeginWrites is under way
  uint64_t request = 0;  // its id
  uint64_t begin = 0;    // of the series that home takes; 0: none
  bool ready = true;     // the stream may have something
  // The stream is called. Before `mutex`. What Next gives belongs to the series that began with the last Resume.
  std::mutex hearing;
  vfs::LiveStream* stream = nullptr;  // guarded by `hearing`; null before the start, and once the sender is gone

  void Heard(const v1::LiveAck& ack) {
    std::lock_guard hear(hearing);
    if (stream == nullptr) return;
    stream->Acknowledge(ack.ack());
    if (ack.begin() == 0) return;
    stream->Resume(ack.ack().sequence());
    std::lock_guard lock(mutex);
    begin = ack.begin();
    ready = true;
    changed.notify_all();
  }
};

LiveSender::LiveSender(ContentSource* home, uint64_t view)
    : home_(home), view_(view), shared_(std::make_shared<Shared>()) {}

std::function<void()> LiveSender::ReadyCallback() const {
  return [shared = shared_] {
    std::lock_guard lock(shared->mutex);
    shared->ready = true;
    shared->changed.notify_all();
  };
}

void LiveSender::Start(vfs::LiveStream* stream) {
  {
    std::lock_guard hear(shared_->hearing);
    shared_->stream = stream;
  }
  thread_ = std::thread([this] { Run(); });
}

LiveSender::~LiveSender() {
  uint64_t request = 0;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    request = shared_->asked ? shared_->request : 0;
    shared_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  home_->Unwatch(request);
  std::lock_guard hear(shared_->hearing);
  shared_->stream = nullptr;
}

void LiveSender::Begin() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->asked = true;
    shared_->begin = 0;
  }
  ContentSource::Writes writes;
  writes.heard = [shared = shared_](const v1::LiveAck& ack) { shared->Heard(ack); };
  writes.over = [shared = shared_](const Error& error) {
    LogInfo("live view: home does not take what is written: {}", Escape(error.message()));
    std::lock_guard lock(shared->mutex);
    shared->asked = false;
  };
  const uint64_t id = home_->BeginWrites(view_, std::move(writes));
  std::lock_guard lock(shared_->mutex);
  shared_->request = id;
}

void LiveSender::Run() {
  ::pthread_setname_np(::pthread_self(), "live-sender");
  Shared& s = *shared_;
  std::string message;
  uint64_t request = 0;
  std::unique_lock lock(s.mutex);
  while (!s.stop) {
    if (!s.asked) {
      lock.unlock();
      Begin();
      lock.lock();
    }
    if (s.begin == 0 || (!s.ready && message.empty())) {
      s.changed.wait_for(lock, kAgain, [&] { return s.stop || (s.begin != 0 && (s.ready || !message.empty())); });
      continue;
    }
    lock.unlock();
    const auto taken = message.empty() ? Take(&message, &request) : Taken::kMessage;
    const auto sent = taken == Taken::kMessage ? home_->SendWrite(request, message) : ContentSource::Sent::kSent;
    if (sent != ContentSource::Sent::kFull) message.clear();
    lock.lock();
    // What was lost with the stream comes again: home says from where.
    if (sent == ContentSource::Sent::kAway && s.request == request) s.begin = 0;
    if (sent == ContentSource::Sent::kFull) s.changed.wait_for(lock, kFull, [&] { return s.stop; });
    if (taken == Taken::kFailed) s.changed.wait_for(lock, kAgain, [&] { return s.stop; });
  }
}

LiveSender::Taken LiveSender::Take(std::string* message, uint64_t* request) {
  Shared& s = *shared_;
  std::lock_guard hear(s.hearing);
  v1::ContentRequest out;
  {
    std::lock_guard lock(s.mutex);
    *request = s.request;
    out.mutable_write()->set_begin(s.begin);
    s.ready = false;
  }
  auto written = s.stream->Next();
  if (written && !*written) return Taken::kNothing;
  {
    std::lock_guard lock(s.mutex);
    s.ready = true;
  }
  if (!written) {
    LogWarning("live view: {}", Escape(written.error().message()));
    return Taken::kFailed;
  }
  out.mutable_write()->set_view(view_);
  *out.mutable_write()->mutable_write() = *std::move(*written);
  *message = out.SerializeAsString();
  return Taken::kMessage;
}

}  // namespace vrun::node
