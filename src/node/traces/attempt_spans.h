// SPDX-License-Identifier: Apache-2.0
// The node's spans of one pod of an attempt (docs/guide/monitoring.md, Traces), below the controller's `attempt`:
//
//   prepare                  from the controller's order until the command runs
//   ├── attach               until home has attached
//   ├── mount                of the root
//   ├── gpus                 beside it
//   ├── sandbox              until the supervisor has made it
//   └── wait for gang        until all pods are ready
//   run                      of the command
//
// Does nothing while no collector is configured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/control.pb.h"
#include "telemetry/telemetry.h"

namespace vrun::node {

// The agent's loop.
class AttemptSpans {
 public:
  static constexpr const char* kAttach = "attach";
  static constexpr const char* kMount = "mount";
  static constexpr const char* kGpus = "gpus";
  static constexpr const char* kSandbox = "sandbox";
  static constexpr const char* kGang = "wait for gang";

  // `adopted`: by a later agent, which does not know when it began.
  AttemptSpans(const v1::StartAttempt& order, bool adopted);

  // The step before ends.
  void Step(const char* step);
  void GpusBegin();
  void GpusEnd();
  void Runs();
  // The command has ended, or it was never started.
  void Ended(const v1::ExitRecord& record);

  // The program's own spans are below `run`. Replaces what its environment says of its caller.
  void PutInto(v1::Command* command) const;
  // What a later agent must know of the environment; "" if that is nothing.
  const std::string& caller() const { return caller_; }

 private:
  telemetry::Span Make(std::string_view name, int64_t start_us, int64_t end_us) const;
  void EndStep(int64_t now);

  std::string caller_;                        // TRACEPARENT, as an entry of the environment
  std::optional<telemetry::JobTrace> trace_;  // none: nothing is sent
  uint32_t attempt_ = 0;
  uint32_t pod_ = 0;
  int64_t began_us_ = 0;  // 0: not known, or it is over
  const char* step_ = nullptr;
  int64_t step_us_ = 0;
  int64_t gpus_us_ = 0;
};

}  // namespace vrun::node
