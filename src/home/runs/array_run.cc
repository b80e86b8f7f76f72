// SPDX-License-Identifier: Apache-2.0
#include "home/runs/array_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "jobs/ending.h"

namespace vrun::home {
namespace {

constexpr int64_t kRetryMicros = 500'000;

}  // namespace

ArrayRun::ArrayRun(EventLoop* loop, ControllerClient* controller, const RunFiles* files, uint64_t array,
                   Elements elements, Events events)
    : loop_(loop),
      controller_(controller),
      files_(files),
      array_(array),
      elements_(std::move(elements)),
      events_(std::move(events)),
      begun_earlier_(files->RecallBegun(array)) {}

ArrayRun::~ArrayRun() { loop_->Cancel(retry_); }

void ArrayRun::Start() { OpenWatch(); }

void ArrayRun::OpenWatch() {
  first_event_ = true;
  watch_ = controller_->Watch(array_, 0,
                              {.on_message = [this](v1::JobEvent event) { OnEvent(event); },
                               .on_closed = [this](const Error& why) { OnClosed(why); }});
  if (!watch_) OnClosed(Error(Code::kUnavailable, "no controller"));
}

void ArrayRun::OnClosed(const Error& why) {
  watch_.reset();
  if (ended_) return;
  if (why.code() == Code::kNotFound) return End();
  retry_ = loop_->After(kRetryMicros, [this] {
    retry_ = 0;
    OpenWatch();
  });
}

void ArrayRun::OnEvent(const v1::JobEvent& event) {
  if (ended_) return;
  std::vector<v1::ArrayElement> started(event.started().begin(), event.started().end());
  if (std::exchange(first_event_, false)) {
    std::erase_if(started, [this](const v1::ArrayElement& element) { return element.job() <= told_; });
  }
  std::sort(started.begin(), started.end(),
            [](const v1::ArrayElement& a, const v1::ArrayElement& b) { return a.job() < b.job(); });
  for (const v1::ArrayElement& element : started) events_.on_element(element.job(), element.index());
  if (!started.empty() && started.back().job() > told_) {
    told_ = started.back().job();
    // After their own files, which a later home looks for first.
    if (told_ > begun_earlier_) files_->RememberBegun(array_, told_);
  }
  if (IsEnd(event.state())) End();
}

void ArrayRun::End() {
  ended_ = true;
  LogInfo("array {}: ended", array_);
  events_.on_ended();
}

}  // namespace vrun::home
