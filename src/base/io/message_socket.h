// SPDX-License-Identifier: Apache-2.0
// Messages with descriptors over a Unix stream socket: u32 length and u32 descriptor count (little endian), then the
// bytes. SCM_RIGHTS is attached to the first byte of its frame. Used between CLI and home, agent and task supervisor,
// agent and file system server.
//
// Not thread safe, except that one thread may send while another receives. At most 16 descriptors a frame and 64 MiB.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun {

inline constexpr size_t kMaxFrameBytes = 64u << 20;
inline constexpr size_t kMaxFrameFds = 64;  // the kernel allows 253

struct Frame {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

// Blocking send of one frame (waits with poll when the socket is non-blocking). fds are duplicated by the kernel.
Status SendFrame(int socket, std::string_view bytes, const std::vector<int>& fds = {});
// Blocking receive of one frame. kUnavailable at end of stream.
Result<Frame> ReceiveFrame(int socket);

// Incremental receiver for a non-blocking socket in an event loop.
class FrameReader {
 public:
  // Reads available bytes and passes each complete frame to `on_frame`. Returns false at end of stream, an error when
  // the peer broke the protocol.
  Result<bool> ReadAvailable(int socket, const std::function<void(Frame)>& on_frame);

 private:
  // Processes received bytes that follow header_ and body_.
  Status Take(std::string_view bytes, const std::function<void(Frame)>& on_frame);

  std::string header_;  // of the frame being read, as far as received
  std::string body_;    // has its final size once the header is complete
  size_t got_ = 0;      // bytes of body_ received
  std::vector<UniqueFd> fds_;
};

// Outgoing queue for a non-blocking socket in an event loop.
class FrameWriter {
 public:
  void Queue(std::string bytes, std::vector<UniqueFd> fds = {});
  // Writes as much as the socket takes. True when nothing is left. kUnavailable when the peer is gone.
  Result<bool> Flush(int socket);
  size_t queued_bytes() const { return queued_; }

 private:
  struct Item {
    std::string header, body;
    std::vector<UniqueFd> fds;
    size_t sent = 0;  // bytes of both
  };
  std::deque<Item> items_;
  size_t queued_ = 0;
};

// A listening socket at `path` (mode 0600 unless given). Replaces a stale socket file; kExists if somebody listens
// there.
Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode = 0600);
Result<UniqueFd> ConnectUnix(const std::string& path);
struct PeerCredentials {
  uint32_t uid, gid;
  int32_t pid;
};
Result<PeerCredentials> UnixPeer(int socket);

}  // namespace vrun
