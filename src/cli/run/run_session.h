// SPDX-License-Identifier: Apache-2.0
// The protocol of an attached run: passes our descriptors to home, forwards signals and window sizes, and handles the
// end.
//
// Home itself reads and writes the descriptors. This side only waits and is not time-critical: on a signal or a message
// it makes a few system calls.
#pragma once

#include <signal.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/io/message_socket.h"
#include "base/io/stream_progress.h"
#include "cli/base/home_connection.h"
#include "cli/base/terminal.h"
#include "cli/run/progress_line.h"

namespace vrun::cli {

struct RunOutcome {
  int exit_status = 0;
  uint64_t job = 0;                      // 0: no job was created
  std::optional<v1::Finished> finished;  // home's report of the end
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  std::string reason;         // one line without "vrun: "; "" when the status says enough
  int64_t sent_after_us = 0;  // from the start of Go until the request is sent
};

class RunSession {
 public:
  struct Options {
    v1::Run request;
    int stdio[3] = {0, 1, 2};      // open descriptors, not owned
    std::vector<int> descriptors;  // in the order of the command's descriptors
    bool quiet = false;
    bool local_terminal = false;  // stdin is a terminal that becomes raw when home asks for it
    bool updating_line = false;   // stderr is a terminal that can show an updating line
    // Treat every SIGHUP as a hang-up for request.scheduling.on_disconnect, not only that of a closed terminal.
    bool hangup_disconnects = false;
    int64_t resume_limit_us = 600ll * 1000 * 1000;
  };

  RunSession(const HomeConnection& home, Options options);
  ~RunSession();

  // Runs the protocol to its end. Before the request is sent, signals act as on any program; after that they are
  // forwarded. Messages to people go to stderr, except the outcome's reason.
  RunOutcome Go();

 private:
  Status Prepare();
  void BlockSignals();
  Status Send(const v1::ClientMessage& message);
  Status SendRequest();
  void SendSignal(int number, bool background = false);
  void SendSize();

  void Loop();
  int64_t Tick();  // microseconds until the next call is needed, -1: none
  void ReadSocket();
  void ReadSignals();
  void OnMessage(const v1::HomeMessage& message);
  void OnProgress(const v1::Progress& progress);
  void OnFinished(const v1::Finished& finished);
  void OnError(const v1::Error& error);
  void OnStarted();
  void OnLost(const std::string& why);
  void Reconnect();

  void OnSignal(int number);
  void SetTerminal();
  void OnInterrupt();
  void StopWaiting();
  void CancelWaiting(int number);
  void StopAndContinue(bool by_key);
  void GoOn();
  bool TerminalIsGone() const;
  void Disconnect();
  void End(int status, v1::JobState state, std::string reason);
  std::string JobText() const;

  const HomeConnection& home_;
  Options options_;
  UniqueFd memory_;
  std::vector<UniqueFd> more_memory_;  // of options_.descriptors
  std::optional<StreamProgressMap> shared_;
  std::optional<ProgressLineWriter> line_;
  RawTerminal terminal_;
  UniqueFd signal_fd_;
  sigset_t handled_;
  sigset_t old_mask_;
  bool blocked_ = false;
  bool was_terminal_[3] = {false, false, false};  // of options_.stdio

  UniqueFd socket_;
  FrameReader reader_;
  uint64_t job_ = 0;
  bool started_ = false;  // the command has started
  bool remote_raw_ = false;
  std::optional<RunOutcome> outcome_;
  int64_t began_ = 0;
  int64_t sent_after_ = 0;

  int cancel_signal_ = 0;  // sent while the job waited
  int64_t cancel_until_ = 0;
  int interrupts_ = 0;  // position in the sequence 1-2-3
  int64_t last_interrupt_ = 0;
  int64_t completing_since_ = 0;  // 0: needs no message
  bool completing_ = false;       // the command has ended, but its writes are not home yet

  int64_t lost_at_ = 0;  // 0: connected
  int64_t next_try_ = 0;
  int64_t backoff_ = 0;
  int losses_without_job_ = 0;
  bool loss_told_ = false;
  std::string last_failure_;
  std::deque<v1::ClientMessage> unsent_;  // signals that came while home was disconnected
};

}  // namespace vrun::cli
