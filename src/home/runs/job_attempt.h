// SPDX-License-Identifier: Apache-2.0
// One attempt of a job as home sees it: the connection to its node, and how far its output and its writes are. It is
// made when the controller has placed the attempt, and destroyed before the job waits for the next one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "home/links/node_links.h"
#include "home/runs/run_files.h"
#include "home/runs/write_back.h"
#include "proto/control.pb.h"

namespace vrun::home {

// Data of JobRun, which moves it on. Loop thread only.
struct JobAttempt {
  static constexpr int64_t kFirstRetryMicros = 50'000;

  // What the command has written.
  enum class Writes {
    kNone,      // nothing has come yet
    kComing,    // operations arrive and are applied
    kSyncing,   // of a live view: all operations are here and have to become durable
    kFinished,  // home, or kept on the node; failed_writes could not be applied
  };
  // stdout or stderr. Offsets are those of the job.
  struct Output {
    uint64_t received = 0;
    uint64_t acked = 0;        // passed on by the sink
    bool end_is_held = false;  // the node has told the end, the sink has not: another attempt may continue the stream
  };

  JobAttempt(EventLoop* l, const StreamBases& b) : loop(l), bases(b) {}
  ~JobAttempt() { StopRetry(); }
  JobAttempt(const JobAttempt&) = delete;
  JobAttempt& operator=(const JobAttempt&) = delete;

  void StopRetry() { loop->Cancel(std::exchange(retry_timer, 0)); }
  uint64_t fetched_bytes() const { return content ? content->sent_bytes() : 0; }
  bool preempted() const { return record && record->kind() == v1::ExitRecord::PREEMPTED_BY_JOB; }

  EventLoop* const loop;
  const StreamBases bases;  // where its streams begin in those of the job
  Output outputs[2];
  std::optional<v1::ExitRecord> record;

  Writes writes = Writes::kNone;
  uint64_t failed_writes = 0;
  int blocked_times = 0;  // home had no room for them

  // What the node reads from home.
  std::vector<std::string> content_addresses;
  std::unique_ptr<NodeLinks::ContentUse> content;

  std::unique_ptr<WriteBack> write_back;

  // The connection. It may be lost and opened again at any time, whatever the state of the job.
  std::unique_ptr<TaskStream> task;
  bool attached = false;  // the node has answered on `task`
  size_t next_address = 0;
  EventLoop::TimerId retry_timer = 0;
  int64_t delay = kFirstRetryMicros;  // before the next try
  int64_t lost_since = 0;             // monotonic; 0: it is not lost
  bool told_lost = false;             // the user knows
  std::string last_error;
  std::optional<Error> fatal;  // why the node refuses the attempt
};

}  // namespace vrun::home
