// SPDX-License-Identifier: Apache-2.0
// The file system server's end of its agent: requests come, replies go. The newest connection counts: an agent that
// starts again has no other way to say that the old one is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/frame_socket.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::v1 {
class FsReply;
class FsRequest;
}  // namespace vrun::v1

namespace vrun::node {

// Loop thread only.
class AgentLink {
 public:
  struct Events {
    std::function<void(const v1::FsRequest&)> request;
    std::function<void()> gone;  // nobody is connected any more
  };

  // `loop` outlives it; `listener`: a Unix socket that listens.
  AgentLink(EventLoop* loop, UniqueFd listener);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  bool listens() const { return static_cast<bool>(listener_); }
  // Takes connections from now on.
  Status Start(Events events);
  // Before Start, of a server that cannot: says so to the agent, which has connected by now or does so within a second.
  void TellError(const Error& error);

  // Of connections, the serial number: what was asked on an earlier one is not answered on this.
  uint64_t connection() const { return connection_; }
  // To whoever is connected; nobody: dropped.
  void Reply(const v1::FsReply& reply, std::vector<UniqueFd> fds = {});
  void ReplyError(uint64_t id, const Error& error);

 private:
  void OnConnect();
  void OnReady(uint32_t events);
  void Gone();

  EventLoop* const loop_;
  UniqueFd listener_;
  Events events_;
  UniqueFd control_;  // to the agent, when there is one
  uint64_t connection_ = 0;
  FrameReader reader_;
  FrameWriter writer_;
  bool writing_ = false;
};

}  // namespace vrun::node
