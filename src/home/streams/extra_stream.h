// SPDX-License-Identifier: Apache-2.0
// Moves a descriptor above 2 that the command line names (/dev/fd/N) between the client's descriptor and numbered
// bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/io/event_loop.h"
#include "home/streams/stdio_pump.h"
#include "proto/common.pb.h"

namespace vrun::home {

// Loop thread only.
class ExtraStream : public StdioPump::Handler {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // Sends to the job, if there is one (still).
    virtual void SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof) = 0;
    virtual void Acknowledge(v1::StreamId stream, uint64_t offset) = 0;
    virtual void CloseOutput(v1::StreamId stream) = 0;
    virtual void OutputProgressed() = 0;
    // The descriptor could not be read or written. The rest of the stream is lost.
    virtual void OnExtraBroken(const std::string& what) = 0;
    virtual void OnExtraWritten() = 0;
  };
  ExtraStream(EventLoop* loop, Owner* owner, const v1::Descriptor& descriptor, UniqueFd fd, StreamProgressMap progress);

  const v1::Descriptor& descriptor() const { return descriptor_; }
  v1::StreamId stream() const { return static_cast<v1::StreamId>(descriptor_.number()); }
  StdioPump& pump() { return pump_; }

  void InputWanted(uint64_t offset);
  void Output(uint64_t offset, std::string data, bool eof);
  uint64_t wanted() const { return pump_.received(v1::STDOUT); }
  bool ended() const { return pump_.ended(v1::STDOUT); }

  // --- StdioPump::Handler ---
  void OnInput(uint64_t offset, std::string_view data, bool eof, bool peeked) override;
  void OnOutputWritten(v1::StreamId, uint64_t offset) override;
  void OnOutputEnded(v1::StreamId) override;
  void OnOutputBroken(v1::StreamId, const Error& reason) override;

 private:
  std::string Name() const { return "/dev/fd/" + std::to_string(descriptor_.number()); }

  Owner* const owner_;
  const v1::Descriptor descriptor_;
  StdioPump pump_;
};

}  // namespace vrun::home
