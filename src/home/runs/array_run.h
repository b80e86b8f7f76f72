// SPDX-License-Identifier: Apache-2.0
// One array of batch jobs. The controller makes its elements into jobs as there is room for them, and tells their
// numbers; each then runs as a batch job of its own (AttachedRun). Until then an element costs nothing here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/io/event_loop.h"
#include "home/links/controller_client.h"
#include "home/runs/job_run.h"
#include "home/runs/run_files.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only.
class ArrayRun {
 public:
  // What its elements have in common.
  struct Elements {
    JobRun::Plan plan;              // without job and placement
    DetachedFiles files;            // the paths contain %A and %a
    std::optional<v1::Run> traced;  // as RunFiles::RememberTraced; none: not traced
  };
  struct Events {
    // The element is a job now. Told once.
    std::function<void(uint64_t job, uint32_t index)> on_element;
    // All elements have ended. Last; must not destroy the ArrayRun at once.
    std::function<void()> on_ended;
  };
  // None is owned; all outlive it.
  ArrayRun(EventLoop* loop, ControllerClient* controller, const RunFiles* files, uint64_t array, Elements elements,
           Events events);
  ~ArrayRun();

  void Start();

  uint64_t array() const { return array_; }
  const Elements& elements() const { return elements_; }
  // An earlier home has begun this element. It may have ended since.
  bool BegunEarlier(uint64_t job) const { return job <= begun_earlier_; }

 private:
  void OpenWatch();
  void OnEvent(const v1::JobEvent& event);
  void OnClosed(const Error& why);
  void End();

  EventLoop* const loop_;
  ControllerClient* const controller_;
  const RunFiles* const files_;
  const uint64_t array_;
  const Elements elements_;
  const Events events_;
  // Elements get ascending numbers. The highest one that an earlier home, and that this one was told.
  const uint64_t begun_earlier_;
  uint64_t told_ = 0;
  bool first_event_ = false;  // of this watch: it repeats elements that have not ended
  bool ended_ = false;
  std::unique_ptr<WatchStream> watch_;
  EventLoop::TimerId retry_ = 0;
};

}  // namespace vrun::home
