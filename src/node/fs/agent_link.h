// SPDX-License-Identifier: Apache-2.0
// The file system server's side of its agent connection: receives requests, sends replies. A new connection replaces
// the old one, because a restarted agent has no other way to say that the old one is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/message_socket.h"
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
    std::function<void()> gone;  // no agent is connected any more
  };

  // `loop` must outlive it; `listener`: a listening Unix socket.
  AgentLink(EventLoop* loop, UniqueFd listener);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  bool listens() const { return static_cast<bool>(listener_); }
  // Starts to accept connections.
  Status Start(Events events);
  // Reports a startup failure to the agent, instead of Start. The agent is connected already or connects within a
  // second.
  void TellError(const Error& error);

  // The serial number of the current connection. Requests of an earlier connection must not be answered on this one.
  uint64_t connection() const { return connection_; }
  // Sends to the connected agent; dropped when there is none.
  void Reply(const v1::FsReply& reply, std::vector<UniqueFd> fds = {});
  void ReplyError(uint64_t id, const Error& error);

 private:
  void OnConnect();
  void OnReady(uint32_t events);
  void Gone();

  EventLoop* const loop_;
  UniqueFd listener_;
  Events events_;
  UniqueFd control_;  // connection to the agent, if any
  uint64_t connection_ = 0;
  FrameReader reader_;
  FrameWriter writer_;
  bool writing_ = false;
};

}  // namespace vrun::node
