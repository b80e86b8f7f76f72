// SPDX-License-Identifier: Apache-2.0
#include "home/streams/stdio_pump.h"

#include <linux/kcmp.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace vrun::home {
namespace {

constexpr size_t kRing = StreamProgress::kStdinWindow;
constexpr size_t kReadBytes = 256 * 1024;
constexpr size_t kWriteBytes = 1u << 20;
constexpr uint64_t kReportBytes = 256 * 1024;
constexpr uint64_t kLookBytes = 4u << 20;
constexpr int64_t kForegroundRetryMicros = 200'000;
constexpr int64_t kTurnRetryMicros = 100'000;

bool SameDescription(int a, int b) { return ::syscall(SYS_kcmp, ::getpid(), ::getpid(), KCMP_FILE, a, b) == 0; }

v1::StreamId StreamOf(size_t index) { return index == 1 ? v1::STDERR : v1::STDOUT; }

}  // namespace

StdioPump::StdioPump(EventLoop* loop, Handler* handler, UniqueFd in, UniqueFd out, UniqueFd err,
                     StreamProgressMap progress)
    : loop_(loop), handler_(handler), progress_(std::move(progress)) {
  input_.fd = ClientFd::Adopt(std::move(in), ClientFd::Direction::kRead);
  input_.read = progress_->stdin_read.load();
  input_.acked = std::min(progress_->stdin_acked.load(), input_.read);
  input_.eof = progress_->stdin_eof.load() != 0;
  input_.peeked = std::min<uint64_t>(progress_->stdin_peeked.load(), input_.read);
  AddChannel(std::move(out), 0);
  AddChannel(std::move(err), 1);
  for (size_t i = 0; i < 2; ++i) {
    uint64_t from = i == 0 ? progress_->stdout_written.load() : progress_->stderr_written.load();
    outputs_[i].received = outputs_[i].written = outputs_[i].reported = from;
  }
}

StdioPump::~StdioPump() { Close(); }

void StdioPump::AddChannel(UniqueFd fd, size_t index) {
  ClientFd adopted = ClientFd::Adopt(std::move(fd), ClientFd::Direction::kWrite);
  if (index == 1 && channels_[0]->fd.ino == adopted.ino && channels_[0]->fd.dev == adopted.dev &&
      channels_[0]->fd.access == adopted.access && adopted.access != ClientFd::Access::kSocket) {
    // A regular file opened twice has two offsets: then each stream needs its own description.
    if (!adopted.regular || SameDescription(channels_[0]->fd.fd.get(), adopted.fd.get())) {
      outputs_[1].channel = channels_[0].get();
      return;
    }
  }
  channels_[index] = std::make_unique<Channel>();
  channels_[index]->fd = std::move(adopted);
  outputs_[index].channel = channels_[index].get();
}

void StdioPump::Append(std::string_view text) {
  const Output& output = outputs_[Index(v1::STDERR)];
  if (output.channel == nullptr || (output.broken && !output.channel->full)) return;
  (void)!::write(output.channel->fd.fd.get(), text.data(), text.size());
}

void StdioPump::Close() {
  if (closed_) return;
  closed_ = true;
  UnwatchInput();
  loop_->Cancel(input_.parked);
  if (std::exchange(input_.turn, false)) turns_->GiveBack(input_.fd);
  input_.io.reset();
  input_.fd.fd.Reset();
  for (auto& channel : channels_) {
    if (!channel) continue;
    Unwatch(channel.get());
    channel->io.reset();
    channel->fd.fd.Reset();
    channel->queue.clear();
  }
}

// --- output ---

Status StdioPump::Write(v1::StreamId stream, uint64_t offset, std::string data, bool eof) {
  Output& output = outputs_[Index(stream)];
  if (closed_ || output.eof_received) return {};
  if (offset > output.received) return Error(Code::kCorrupt, "the output has a gap");
  uint64_t known = output.received - offset;
  if (known >= data.size()) {
    data.clear();
    if (!eof) {
      Report(stream, true);
      return {};
    }
  } else if (known > 0) {
    data.erase(0, known);
  }
  if (!data.empty()) EraseProgressLine();
  output.received += data.size();
  output.eof_received = eof;
  Channel* channel = output.channel;
  channel->queue.push_back({stream, std::move(data), 0, eof});
  if (!channel->busy) Work(channel);
  return {};
}

bool StdioPump::drained() const {
  return closed_ ||
         std::all_of(channels_.begin(), channels_.end(), [](const auto& c) { return !c || c->queue.empty(); });
}

void StdioPump::SkipTo(v1::StreamId stream, uint64_t offset) {
  Output& output = outputs_[Index(stream)];
  if (offset <= output.received) return;
  output.received = output.written = output.reported = offset;
  SetWritten(stream, offset);
}

// The client may have drawn its progress line; the command's first byte must not follow it on the same line.
void StdioPump::EraseProgressLine() {
  if (std::exchange(line_taken_, true)) return;
  if (progress_->line.exchange(ProgressLine::kOutput) != ProgressLine::kDrawn) return;
  Channel* channel = outputs_[1].channel;
  channel->queue.push_back({v1::STDERR, "\r\x1b[K", 0, false, true});
  if (!channel->busy) Work(channel);
}

void StdioPump::SetWritten(v1::StreamId stream, uint64_t offset) {
  (stream == v1::STDERR ? progress_->stderr_written : progress_->stdout_written).store(offset);
}

void StdioPump::ReleaseOutput() {
  if (!std::exchange(held_, false)) return;
  for (auto& channel : channels_) {
    if (channel && !channel->busy && !closed_) Work(channel.get());
  }
}

void StdioPump::Work(Channel* channel) {
  if (held_) return;
  while (!channel->queue.empty() && !channel->busy) {
    Chunk& chunk = channel->queue.front();
    if (outputs_[Index(chunk.stream)].broken) chunk.done = chunk.data.size();
    if (chunk.done == chunk.data.size()) {
      FinishChunk(channel);
      if (closed_) return;
      continue;
    }
    if (chunk.done == 0 && NearlyFull(channel, chunk.data.size())) {
      channel->full = true;
      Break(channel, ErrnoError(ENOSPC, "the disk is nearly full"));
      if (closed_) return;
      continue;
    }
    if (channel->fd.access == ClientFd::Access::kThread) {
      if (!channel->io) channel->io = std::make_unique<BlockingIo>(loop_, channel->fd.fd.get(), channel->fd.regular);
      channel->busy = true;
      // The thread gets the bytes; only the count stays.
      std::string data = std::move(chunk.data);
      chunk.data.assign(1, '\0');  // not finished yet
      chunk.done = 0;
      uint64_t size = data.size();
      channel->io->Write(std::move(data), [this, channel, size](size_t written, Status status) {
        channel->busy = false;
        Chunk& front = channel->queue.front();
        front.data.clear();
        Wrote(channel, written);
        if (!status) {
          if (!front.ours) outputs_[Index(front.stream)].written += size - written;
          Break(channel, status.error());
        }
        if (!closed_) Work(channel);
      });
      return;
    }
    auto n = channel->fd.Write(chunk.data.data() + chunk.done, std::min(chunk.data.size() - chunk.done, kWriteBytes));
    if (n) {
      chunk.done += *n;
      Wrote(channel, *n);
    } else if (n.error().error_number() == EAGAIN) {
      channel->busy = true;
      Watch(channel, EPOLLOUT);
    } else {
      Break(channel, n.error());
    }
    if (closed_) return;
  }
}

bool StdioPump::NearlyFull(Channel* channel, size_t bytes) const {
  if (leave_free_ == 0 || !channel->fd.regular) return false;
  channel->unlooked += bytes;
  if (channel->unlooked < kLookBytes) return false;
  channel->unlooked = 0;
  struct statvfs s;
  if (::fstatvfs(channel->fd.fd.get(), &s) != 0 || s.f_blocks == 0) return false;
  const uint64_t block = s.f_frsize, all = s.f_blocks * block;
  return s.f_bavail * block < std::min(leave_free_, all / 10);
}

void StdioPump::Wrote(Channel* channel, size_t n) {
  if (n == 0) return;
  if (channel->queue.front().ours) return;
  v1::StreamId stream = channel->queue.front().stream;
  Output& output = outputs_[Index(stream)];
  output.written += n;
  SetWritten(stream, output.written);
  Report(stream, false);
}

void StdioPump::FinishChunk(Channel* channel) {
  Chunk chunk = std::move(channel->queue.front());
  channel->queue.pop_front();
  Output& output = outputs_[Index(chunk.stream)];
  if (output.broken) {
    bool more = std::any_of(channel->queue.begin(), channel->queue.end(),
                            [&](const Chunk& c) { return c.stream == chunk.stream; });
    if (!more) output.written = output.received;
  }
  Report(chunk.stream, channel->queue.empty());
  // Also the other stream, if it uses the same file: its last chunk was not the last one of the queue.
  for (size_t i = 0; i < 2 && !closed_ && channel->queue.empty(); ++i) {
    const Output& other = outputs_[i];
    if (other.channel == channel && other.written != other.reported) Report(StreamOf(i), true);
  }
  if (!chunk.eof || closed_) return;
  Report(chunk.stream, true);
  output.ended = true;
  handler_->OnOutputEnded(chunk.stream);
}

void StdioPump::Report(v1::StreamId stream, bool now) {
  Output& output = outputs_[Index(stream)];
  if (output.written == output.reported && !now) return;
  if (!now && output.written - output.reported < kReportBytes) return;
  if (output.written == 0) return;
  output.reported = output.written;
  handler_->OnOutputWritten(stream, output.written);
}

void StdioPump::Break(Channel* channel, const Error& reason) {
  Unwatch(channel);
  channel->busy = false;
  for (size_t i = 0; i < 2; ++i) {
    Output& output = outputs_[i];
    if (output.channel != channel || output.broken || output.ended) continue;
    output.broken = true;
    handler_->OnOutputBroken(StreamOf(i), reason);
    if (closed_) return;
  }
  // Work drops the queue, stream by stream, so that the ends come in order.
  for (Chunk& chunk : channel->queue) chunk.done = chunk.data.size();
}

void StdioPump::Watch(Channel* channel, uint32_t events) {
  if (channel->registered) {
    loop_->Modify(channel->fd.fd.get(), events);
    return;
  }
  Status added = loop_->Add(channel->fd.fd.get(), events, [this, channel](uint32_t happened) {
    channel->busy = false;
    if ((happened & (EPOLLERR | EPOLLHUP)) != 0) {
      // The write reports the error; if it succeeds, the reader is gone.
      Break(channel, ErrnoError(EPIPE, "write"));
    } else {
      loop_->Modify(channel->fd.fd.get(), 0);
    }
    if (!closed_) Work(channel);
  });
  if (added) {
    channel->registered = true;
    return;
  }
  // It returned EAGAIN and cannot be polled: use blocking calls on a thread.
  channel->fd.access = ClientFd::Access::kThread;
  channel->busy = false;
}

void StdioPump::Unwatch(Channel* channel) {
  if (channel->registered) loop_->Remove(channel->fd.fd.get());
  channel->registered = false;
}

// --- input ---

size_t StdioPump::Window() const {
  uint64_t kept = input_.read - input_.acked;
  return kept >= kRing ? 0 : kRing - static_cast<size_t>(kept);
}

Status StdioPump::StartInput(uint64_t offset) {
  if (closed_ || input_.over) return {};
  if (offset > input_.read || input_.read - offset > kRing) {
    return Error(Code::kCorrupt, "stdin: the bytes that the command waits for are gone");
  }
  input_.acked = offset;
  progress_->stdin_acked.store(offset);
  // Passes input again from the ring, in pieces that do not wrap.
  const char* ring = reinterpret_cast<const char*>(progress_->stdin_window);
  for (uint64_t at = offset; at < input_.read;) {
    size_t begin = at % kRing;
    size_t n = std::min<uint64_t>({input_.read - at, kRing - begin, kReadBytes});
    handler_->OnInput(at, {ring + begin, n}, false, input_.peeked > 0);
    if (closed_) return {};
    at += n;
  }
  input_.enabled = true;
  if (turns_ != nullptr && input_.read == input_.peeked) input_.look = CanPeek(input_.fd);
  if (input_.peeked > 0 && !input_.turn) input_.turn = turns_ != nullptr && turns_->Take(input_.fd);
  if (input_.eof) {
    handler_->OnInput(input_.read, {}, true, input_.peeked > 0);
    return {};
  }
  ReadMore();
  return {};
}

void StdioPump::PauseInput() {
  input_.enabled = false;
  UnwatchInput();
}

void StdioPump::InputAcked(uint64_t offset) {
  if (closed_ || offset > input_.read) return;
  if (offset > input_.read - input_.peeked) {
    // The command reads: from now on read as much as the window allows.
    input_.look = false;
    if (input_.peeked > 0) TakeLookedAt(input_.peeked);
    if (closed_) return;
  }
  if (offset <= input_.acked) return ReadMore();
  input_.acked = offset;
  progress_->stdin_acked.store(offset);
  ReadMore();
}

void StdioPump::EndInput(std::optional<uint64_t> taken) {
  if (closed_ || input_.over) return;
  input_.over = true;
  input_.taken = taken;
  input_.enabled = false;
  UnwatchInput();
  if (input_.fd.regular && input_.reading) return;  // its end calls GiveBackInput
  if (input_.peeked > 0) {
    const uint64_t before = input_.read - input_.peeked;
    const uint64_t end = std::clamp(taken.value_or(before), before, input_.read);
    TakeLookedAt(end - before);
  } else if (!input_.fd.regular && taken && *taken < input_.read) {
    handler_->OnInputUnused(input_.read - *taken);
  }
  if (closed_) return;
  GiveBackInput(0);
  input_.io.reset();
}

// As if the command had read the file itself: other processes that share it continue behind what the command read.
void StdioPump::GiveBackInput(size_t just_read) {
  uint64_t untaken = input_.read - std::min(input_.taken.value_or(input_.acked), input_.read) + just_read;
  if (input_.fd.regular && untaken > 0) ::lseek(input_.fd.fd.get(), -static_cast<off_t>(untaken), SEEK_CUR);
}

void StdioPump::Foreground() {
  if (input_.parked == 0) return;
  loop_->Cancel(input_.parked);
  input_.parked = 0;
  ReadMore();
}

void StdioPump::UnwatchInput() {
  if (input_.registered) loop_->Remove(input_.fd.fd.get());
  input_.registered = false;
}

// Starts the next read if enabled, with room in the window, and none in progress.
void StdioPump::ReadMore() {
  if (closed_ || !input_.enabled || input_.eof || input_.reading || input_.parked != 0) return;
  if (Window() == 0 || input_.peeked > 0) return UnwatchInput();
  switch (input_.fd.access) {
    case ClientFd::Access::kNull: return InputEnded();
    case ClientFd::Access::kThread: {
      if (!input_.io) input_.io = std::make_unique<BlockingIo>(loop_, input_.fd.fd.get(), input_.fd.regular);
      input_.reading = true;
      input_.io->Read(std::min(Window(), kReadBytes), [this](Result<std::string> data) {
        input_.reading = false;
        if (input_.over) return GiveBackInput(data ? data->size() : 0);
        if (!data || data->empty()) return InputEnded();
        char* ring = reinterpret_cast<char*>(progress_->stdin_window);
        size_t begin = input_.read % kRing;
        size_t first = std::min(data->size(), kRing - begin);
        std::memcpy(ring + begin, data->data(), first);
        std::memcpy(ring, data->data() + first, data->size() - first);
        TookInput(data->size());
        ReadMore();
      });
      return;
    }
    default: break;
  }
  if (input_.registered) return;
  Status added = loop_->Add(input_.fd.fd.get(), EPOLLIN, [this](uint32_t) { ReadPolled(); });
  if (added) {
    input_.registered = true;
    return;
  }
  input_.fd.access = ClientFd::Access::kThread;
  ReadMore();
}

void StdioPump::ReadPolled() {
  if (input_.fd.terminal && may_read_ && !may_read_()) {
    // The shell reads this terminal now.
    return RetryInput(kForegroundRetryMicros);
  }
  if (input_.look) return LookAhead();
  size_t window = Window();
  if (window == 0) return UnwatchInput();
  char* ring = reinterpret_cast<char*>(progress_->stdin_window);
  size_t begin = input_.read % kRing;
  size_t room = std::min({window, kReadBytes, kRing - begin});
  // Everything available as one message, however small the pieces in which it was written.
  size_t took = 0;
  bool ended = false;
  while (took < room) {
    auto n = input_.fd.Read(ring + begin + took, room - took);
    if (!n && n.error().error_number() == EAGAIN) break;
    ended = !n || *n == 0;
    if (ended) break;
    took += *n;
    // Each line of a terminal is one read, and so is an end behind it.
    if (input_.fd.terminal) break;
  }
  if (took > 0) TookInput(took);
  if (ended && !closed_) return InputEnded();
  if (!closed_ && Window() == 0) UnwatchInput();
}

void StdioPump::RetryInput(int64_t delay_micros) {
  UnwatchInput();
  input_.parked = loop_->After(delay_micros, [this] {
    input_.parked = 0;
    ReadMore();
  });
}

// Copies what is available and leaves it in the pipe until the command reads.
void StdioPump::LookAhead() {
  if (!input_.turn) {
    input_.turn = turns_->Take(input_.fd);
    if (!input_.turn) return RetryInput(kTurnRetryMicros);
  }
  char* ring = reinterpret_cast<char*>(progress_->stdin_window);
  const size_t begin = input_.read % kRing;
  const auto looked = Peek(input_.fd, ring + begin, std::min(Window(), kRing - begin));
  if (!looked && looked.error().error_number() == EAGAIN) return;
  if (!looked || looked->bytes == 0) {
    input_.look = false;
    turns_->GiveBack(input_.fd);
    input_.turn = false;
    // The read reports the error.
    if (!looked) return ReadPolled();
    return InputEnded();
  }
  UnwatchInput();
  input_.peeked = looked->bytes;
  input_.eof = looked->ended;
  progress_->stdin_peeked.store(static_cast<uint32_t>(input_.peeked));
  if (input_.eof) progress_->stdin_eof.store(1);
  TookInput(looked->bytes);
}

void StdioPump::TakeLookedAt(uint64_t n) {
  const char* ring = reinterpret_cast<const char*>(progress_->stdin_window);
  uint64_t at = input_.read - input_.peeked;
  bool same = true;
  for (uint64_t end = at + n; at < end && same;) {
    const size_t begin = at % kRing;
    const size_t piece = std::min<uint64_t>(end - at, kRing - begin);
    same = TakePeeked(input_.fd, {ring + begin, piece});
    at += piece;
  }
  input_.peeked = 0;
  progress_->stdin_peeked.store(0);
  if (std::exchange(input_.turn, false)) turns_->GiveBack(input_.fd);
  if (!same) handler_->OnInputTakenTwice();
}

void StdioPump::TookInput(size_t n) {
  uint64_t at = input_.read;
  input_.read += n;
  progress_->stdin_read.store(input_.read);
  const char* ring = reinterpret_cast<const char*>(progress_->stdin_window);
  // The connection may be lost while the thread reads: StartInput passes the data on later.
  while (at < input_.read && input_.enabled && !closed_) {
    size_t begin = at % kRing;
    size_t piece = std::min<uint64_t>(input_.read - at, kRing - begin);
    const bool last = at + piece == input_.read;
    handler_->OnInput(at, {ring + begin, piece}, last && input_.peeked > 0 && input_.eof, input_.peeked > 0);
    at += piece;
  }
}

void StdioPump::InputEnded() {
  input_.eof = true;
  progress_->stdin_eof.store(1);
  UnwatchInput();
  if (input_.enabled) handler_->OnInput(input_.read, {}, true, false);
}

}  // namespace vrun::home
