// SPDX-License-Identifier: Apache-2.0
// The submission of an array: from the client's request to the answer with its number. What its elements will see is
// kept as for one batch job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/io/event_loop.h"
#include "home/ahead/traces.h"
#include "home/runs/array_run.h"
#include "home/runs/job_roots.h"
#include "home/runs/launch.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only.
class ArrayLaunch {
 public:
  struct Events {
    std::function<std::shared_ptr<Launch>(const v1::Run& run, Launch::Events events)> make_launch;
    // Calls back when what RunFiles remembers by now is on the disk.
    std::function<void(std::function<void()> done)> when_recorded;
    // The array exists durably. True: it runs already (the client sent its request again after a crash of home).
    std::function<bool(uint64_t array)> on_accepted;
    std::function<void(uint64_t array, ArrayRun::Elements elements)> on_ready;
    // Last; must not destroy the ArrayLaunch at once.
    std::function<void()> on_over;
  };
  // None but the client is owned; all outlive it.
  ArrayLaunch(EventLoop* loop, const JobRoots* roots, Traces* traces, const RunFiles* files,
              std::shared_ptr<ClientConnection> client, const v1::Run& run, Events events);
  ~ArrayLaunch();

  void Start();
  // Home exits; the array continues.
  void HomeEnds();

 private:
  void Accepted(uint64_t array);
  void Ready(tree::TreePtr tree, const v1::SubmitRequest& request);
  void Failed(const Error& error);
  // Tells the client the number, once what the elements will see survives a crash of home; at the latest after a while.
  void Answer();
  void AnswerIfKept();
  DetachedFiles FilesOf() const;

  EventLoop* const loop_;
  const JobRoots* const roots_;
  Traces* const traces_;
  const RunFiles* const files_;
  std::shared_ptr<ClientConnection> client_;
  const v1::Run run_;
  const Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<Launch> launch_;
  uint64_t array_ = 0;
  bool ready_ = false;
  bool record_kept_ = false, root_kept_ = false;  // as in AttachedRun
  bool over_ = false;
  EventLoop::TimerId answer_ = 0;
};

}  // namespace vrun::home
