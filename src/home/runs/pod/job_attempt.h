// SPDX-License-Identifier: Apache-2.0
// One attempt of a job as home sees it: the connection to its node, and the progress of its output and writes. Created
// when the controller has placed the attempt, destroyed before the job waits for the next one.
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
#include "home/runs/pod/write_back.h"
#include "home/runs/run_files.h"
#include "proto/control.pb.h"

namespace vrun::home {

// Data of PodRun, which changes it. Loop thread only.
struct JobAttempt {
  static constexpr int64_t kFirstRetryMicros = 50'000;

  // State of the command's writes.
  enum class Writes {
    kNone,      // nothing has come yet
    kComing,    // operations arrive and are applied
    kSyncing,   // live view: all operations are here but not durable yet
    kFinished,  // at home, or kept on the node; failed_writes could not be applied
  };
  // stdout or stderr, in offsets of the job.
  struct Output {
    uint64_t received = 0;
    uint64_t acked = 0;  // written by the sink
    // the node has reported the end, the sink does not know it yet: another attempt may continue the stream
    bool end_is_held = false;
  };

  JobAttempt(EventLoop* l, const StreamBases& b) : loop(l), bases(b) {}
  ~JobAttempt() {
    StopRetry();
    EndContent();
  }
  JobAttempt(const JobAttempt&) = delete;
  JobAttempt& operator=(const JobAttempt&) = delete;

  void StopRetry() { loop->Cancel(std::exchange(retry_timer, 0)); }
  void EndContent() {
    if (content && writes == Writes::kFinished && paths_home && failed_writes == 0) content->AllHome();
    content.reset();
    expected.reset();
  }
  uint64_t fetched_bytes() const { return content ? content->sent_bytes() : 0; }
  bool preempted() const { return record && record->kind() == v1::ExitRecord::PREEMPTED_BY_JOB; }

  EventLoop* const loop;
  const StreamBases bases;  // where its streams begin in those of the job
  Output outputs[2];
  std::optional<v1::ExitRecord> record;

  Writes writes = Writes::kNone;
  uint64_t failed_writes = 0;
  bool paths_home = true;  // false: writes below its live paths are not durable yet
  int blocked_times = 0;   // times that home was full

  // Addresses of the file system server that reads from home.
  std::vector<std::string> content_addresses;
  std::unique_ptr<NodeLinks::ContentUse> content;
  std::unique_ptr<NodeLinks::ContentUse> expected;  // before that

  std::unique_ptr<WriteBack> write_back;

  // The connection. It may be lost and reopened at any time, in any state of the job.
  std::unique_ptr<TaskStream> task;
  bool attached = false;  // the node has answered on `task`
  size_t next_address = 0;
  EventLoop::TimerId retry_timer = 0;
  int64_t delay = kFirstRetryMicros;  // before the next try
  int64_t lost_since = 0;             // monotonic; 0: not lost
  bool told_lost = false;             // the user was told
  std::string last_error;
  std::string content_lost;    // what of its frozen root could not be read, for people; "": nothing
  std::optional<Error> fatal;  // why the node refuses the attempt
};

}  // namespace vrun::home
