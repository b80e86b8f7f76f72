// SPDX-License-Identifier: Apache-2.0
// Messages with descriptors over a Unix stream socket: u32 length and u32 descriptor count (little endian),
// then the bytes; SCM_RIGHTS rides on the first byte of its frame. Between CLI and home, agent and task supervisor,
// agent and file system server.
//
// Not thread safe, except that one thread may send while another receives. At most 16 descriptors a frame and 64 MiB.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun {

inline constexpr size_t kMaxFrameBytes = 64u << 20;
inline constexpr size_t kMaxFrameFds = 16;

struct Frame {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

// Blocking send of one frame (waits with poll when the socket is non-blocking). fds are duplicated by the kernel.
Status SendFrame(int socket, std::string_view bytes, const std::vector<int>& fds = {});
// Blocking receive. kUnavailable at end of stream.
Result<Frame> ReceiveFrame(int socket);

// Incremental receiver for a non-blocking socket in an event loop.
class FrameReader {
 public:
  // Reads what is there and hands each whole frame to `on_frame`. Returns false at end of stream, an error when the
  // peer broke the protocol.
  Result<bool> ReadAvailable(int socket, const std::function<void(Frame)>& on_frame);

 private:
  std::string buffer_;
  std::vector<UniqueFd> fds_;
};

// Outgoing queue for a non-blocking socket in an event loop.
class FrameWriter {
 public:
  void Queue(std::string_view bytes, std::vector<UniqueFd> fds = {});
  // Writes what the socket takes. True when nothing is left. kUnavailable when the peer is gone.
  Result<bool> Flush(int socket);
  size_t queued_bytes() const { return queued_; }

 private:
  struct Item {
    std::string data;
    std::vector<UniqueFd> fds;
    size_t sent = 0;
  };
  std::vector<Item> items_;
  size_t first_ = 0;
  size_t queued_ = 0;
};

// A listening socket at `path` (mode 0600 unless given); a stale file is replaced, a live one is kExists.
Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode = 0600);
Result<UniqueFd> ConnectUnix(const std::string& path);
struct PeerCredentials {
  uint32_t uid, gid;
  int32_t pid;
};
Result<PeerCredentials> UnixPeer(int socket);

}  // namespace vrun
