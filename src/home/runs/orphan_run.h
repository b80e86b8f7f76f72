// SPDX-License-Identifier: Apache-2.0
// A run without descriptors: its client has left, or died with an earlier home. The output goes to the log; a client
// that reconnects gets it from there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "home/runs/job_run.h"
#include "home/streams/log_spool.h"

namespace vrun::home {

class ControllerClient;

// Loop thread only.
class OrphanRun : public JobRun::Sink {
 public:
  struct Options {
    // A client may reconnect for the output: what the log does not accept stays on the node for 10 minutes. Otherwise
    // it is dropped.
    bool hold = false;
    // The terminal is gone: send SIGHUP after this time; 0: never.
    int64_t hangup_micros = 0;
    uint64_t stdout_offset = 0;
    uint64_t stderr_offset = 0;
  };
  OrphanRun(EventLoop* loop, ControllerClient* controller, LogSpool* spool, uint64_t job, Options options,
            std::function<void(const Outcome&)> on_ended);
  ~OrphanRun() override;
  // Call first.
  void Bind(JobRun* run) { run_ = run; }

  void OnProgress(v1::JobState, const std::string&, const std::string&) override {}
  void OnNotice(const std::string& text) override;
  void OnStarted() override {}
  void OnInputWanted(v1::StreamId, uint64_t) override {}
  void OnInputAcked(v1::StreamId, uint64_t, bool, std::optional<uint64_t>) override {}
  void OnDisconnected() override {}
  void OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) override;
  uint64_t OutputWanted(v1::StreamId stream) override { return streams_[stream == v1::STDERR].received; }
  bool OutputEnded(v1::StreamId stream) override {
    const Stream& s = streams_[stream == v1::STDERR];
    return s.ended && s.held == 0;
  }
  void OnEnded(const Outcome& outcome) override;

 private:
  struct Stream {
    uint64_t received = 0;
    uint64_t held = 0;  // nonzero: the log did not accept what is below this offset
    bool ended = false;
  };
  void Kept(v1::StreamId stream, uint64_t end, bool eof, bool kept);
  void LetGo();

  EventLoop* const loop_;
  ControllerClient* const controller_;
  LogSpool* const spool_;
  const uint64_t job_;
  Options options_;
  const std::function<void(const Outcome&)> on_ended_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  JobRun* run_ = nullptr;
  Stream streams_[2];
  std::map<v1::StreamId, uint64_t> more_;  // bytes received of descriptors above 2
  EventLoop::TimerId hangup_ = 0;
  EventLoop::TimerId let_go_ = 0;
};

}  // namespace vrun::home
