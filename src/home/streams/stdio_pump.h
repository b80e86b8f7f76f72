// SPDX-License-Identifier: Apache-2.0
// Moves the three streams of an attached run between the client's descriptors and numbered bytes.
//
// The client's terminal, pipes and files behave as if the command had them itself: their flags do not change, regular
// files keep their shared offset and O_APPEND, a slow reader stops the command instead of filling memory, and no more
// of stdin is read than the window allows. The first bytes of a pipe are only peeked at until the command reads: a
// command that reads nothing leaves them to the next reader.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/io/event_loop.h"
#include "base/io/stream_progress.h"
#include "base/result.h"
#include "home/streams/blocking_io.h"
#include "home/streams/client_fd.h"
#include "home/streams/pipe_peek.h"
#include "proto/task.pb.h"

namespace vrun::home {

// Loop thread only. Callbacks run on the loop, never inside a call to the pump, except inside Write.
class StdioPump {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Bytes of stdin from `offset` on; with eof none follow. `peeked`: they are still in the pipe; call InputAcked when
    // the command begins to read.
    virtual void OnInput(uint64_t offset, std::string_view data, bool eof, bool peeked) = 0;
    // The command stopped reading before these bytes, which were already consumed from the client's descriptor.
    virtual void OnInputUnused(uint64_t) {}
    // Somebody else consumed the peeked bytes meanwhile: both got them.
    virtual void OnInputTakenTwice() {}
    // Everything below `offset` was written to the descriptor. Called in pauses or when enough has accumulated, not for
    // each write.
    virtual void OnOutputWritten(v1::StreamId stream, uint64_t offset) = 0;
    // The stream's end was passed on, after all its bytes.
    virtual void OnOutputEnded(v1::StreamId stream) = 0;
    // The reader is gone (EPIPE), or it cannot be written (a full disk): the rest is dropped and counts as written.
    virtual void OnOutputBroken(v1::StreamId stream, const Error& reason) = 0;
  };

  // Takes the descriptors. `progress` says where the streams begin (not at 0 for a resumed run) and is kept up to date.
  StdioPump(EventLoop* loop, Handler* handler, UniqueFd in, UniqueFd out, UniqueFd err, StreamProgressMap progress);
  ~StdioPump();
  StdioPump(const StdioPump&) = delete;
  StdioPump& operator=(const StdioPump&) = delete;

  // --- input ---
  // The job wants stdin from `offset` on: passes unacknowledged input again from there, then continues reading.
  // kCorrupt if those bytes are gone.
  Status StartInput(uint64_t offset);
  // The connection is lost: nothing is read until StartInput.
  void PauseInput();
  void InputAcked(uint64_t offset);
  // The command reads no more and has read everything below `taken` (default: what was acknowledged). The shared offset
  // of a regular file is set back to there; peeked bytes above it stay in the pipe.
  void EndInput(std::optional<uint64_t> taken = std::nullopt);
  // Call before StartInput: runs take turns to peek at the first bytes of a pipe. Without it they are consumed.
  void SetPipeTurns(PipeTurns* turns) { turns_ = turns; }
  const ClientFd& input() const { return input_.fd; }
  // For a terminal: called before each read, to ask whether the client is in the foreground and not stopped. If not,
  // reading waits, and is retried every 200 ms or at Foreground().
  void SetTerminalGate(std::function<bool()> may_read) { may_read_ = std::move(may_read); }
  void Foreground();

  // --- output (STDOUT or STDERR) ---
  // Nothing is written until ReleaseOutput, because the client's terminal is not ready.
  void HoldOutput() { held_ = true; }
  void ReleaseOutput();
  // Bytes below the present offset are dropped as repetitions. kCorrupt: there is a gap.
  Status Write(v1::StreamId stream, uint64_t offset, std::string data, bool eof);
  // Continues at a higher offset: the bytes between are lost. Nothing may be queued.
  void SkipTo(v1::StreamId stream, uint64_t offset);
  uint64_t written(v1::StreamId stream) const { return outputs_[Index(stream)].written; }
  bool ended(v1::StreamId stream) const { return outputs_[Index(stream)].ended; }
  uint64_t received(v1::StreamId stream) const { return outputs_[Index(stream)].received; }
  // Nothing is queued for the descriptors.
  bool drained() const;

  // Output files of a batch job: their stream breaks (ENOSPC) before their file system has less free than `bytes`, or a
  // tenth of it if that is less. Looked at every 4 MiB.
  void LeaveFree(uint64_t bytes) { leave_free_ = bytes; }

  // Appends a text of ours to the target of stderr, if it takes it at once. Call when drained().
  void Append(std::string_view text);
  // Closes all descriptors; no callback follows.
  void Close();

 private:
  struct Chunk {
    v1::StreamId stream;
    std::string data;
    size_t done = 0;
    bool eof = false;
    bool ours = false;  // not part of the stream: erases the client's progress line
  };
  // One output file. stdout and stderr share a channel if they are the same file, so that their bytes keep their order.
  struct Channel {
    ClientFd fd;
    std::deque<Chunk> queue;
    std::unique_ptr<BlockingIo> io;  // kThread
    bool busy = false;               // waiting for EPOLLOUT or for the thread
    bool registered = false;
    uint64_t unlooked = 0;  // bytes since the last look at the free space
    bool full = false;      // it broke because of LeaveFree: there is room for a line of ours
  };
  struct Output {
    Channel* channel = nullptr;
    uint64_t received = 0;
    uint64_t written = 0;
    uint64_t reported = 0;
    bool eof_received = false;
    bool broken = false;
    bool ended = false;
  };
  struct Input {
    ClientFd fd;
    std::unique_ptr<BlockingIo> io;
    uint64_t read = 0;
    uint64_t acked = 0;
    bool enabled = false;
    bool eof = false;   // the end was read
    bool over = false;  // the command reads no more
    bool registered = false;
    bool reading = false;           // the thread is reading
    bool look = false;              // nothing was consumed yet, and peeking is possible
    uint64_t peeked = 0;            // the last bytes of `read` that are still in the descriptor
    bool turn = false;              // we have the turn in turns_
    std::optional<uint64_t> taken;  // what the command read, once it reads no more
    EventLoop::TimerId parked = 0;
  };

  static size_t Index(v1::StreamId stream) { return stream == v1::STDERR ? 1 : 0; }
  void AddChannel(UniqueFd fd, size_t index);
  void Work(Channel* channel);
  void Wrote(Channel* channel, size_t n);
  void SetWritten(v1::StreamId stream, uint64_t offset);
  void EraseProgressLine();
  void FinishChunk(Channel* channel);
  bool NearlyFull(Channel* channel, size_t bytes) const;
  void Break(Channel* channel, const Error& reason);
  void Report(v1::StreamId stream, bool now);
  void Watch(Channel* channel, uint32_t events);
  void Unwatch(Channel* channel);

  void ReadMore();
  void ReadPolled();
  void TookInput(size_t n);
  void InputEnded();
  void GiveBackInput(size_t just_read);
  void LookAhead();
  void TakeLookedAt(uint64_t n);
  void RetryInput(int64_t delay_micros);
  void UnwatchInput();
  size_t Window() const;

  EventLoop* const loop_;
  Handler* const handler_;
  StreamProgressMap progress_;
  std::function<bool()> may_read_;
  PipeTurns* turns_ = nullptr;
  Input input_;
  std::array<std::unique_ptr<Channel>, 2> channels_;
  std::array<Output, 2> outputs_;
  uint64_t leave_free_ = 0;
  bool line_taken_ = false;
  bool held_ = false;
  bool closed_ = false;
};

}  // namespace vrun::home
