// SPDX-License-Identifier: Apache-2.0
#include "base/io/message_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/escape.h"

namespace vrun {
namespace {

constexpr size_t kHeader = 8;

void AppendU32(std::string* out, size_t n) {
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<char>(n >> (8 * i)));
}

size_t U32(std::string_view s) {
  size_t n = 0;
  for (size_t i = 0; i < 4; ++i) n |= static_cast<size_t>(static_cast<uint8_t>(s[i])) << (8 * i);
  return n;
}

std::string Header(size_t body, size_t fds) {
  std::string h;
  AppendU32(&h, body);
  AppendU32(&h, fds);
  return h;
}

struct FrameSizes {
  size_t body, fds;
};

Result<FrameSizes> ParseHeader(std::string_view header) {
  FrameSizes sizes{U32(header), U32(header.substr(4))};
  if (sizes.body > kMaxFrameBytes || sizes.fds > kMaxFrameFds) {
    return Error(Code::kCorrupt,
                 "frame of " + std::to_string(sizes.body) + " bytes and " + std::to_string(sizes.fds) + " descriptors");
  }
  return sizes;
}

// Takes the first n descriptors, which arrive in order with the first byte of their frame.
Result<std::vector<UniqueFd>> TakeFds(std::vector<UniqueFd>* from, size_t n) {
  if (from->size() < n) return Error(Code::kCorrupt, "a frame came without its descriptors");
  std::vector<UniqueFd> out;
  for (size_t i = 0; i < n; ++i) out.push_back(std::move((*from)[i]));
  from->erase(from->begin(), from->begin() + static_cast<ptrdiff_t>(n));
  return out;
}

// One sendmsg; the descriptors are sent with the first byte.
ssize_t SendSome(int socket, iovec* parts, size_t count, const std::vector<int>& fds, int flags) {
  msghdr m{};
  m.msg_iov = parts;
  m.msg_iovlen = count;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  if (!fds.empty()) {
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  ssize_t n;
  do {
    n = ::sendmsg(socket, &m, flags | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n;
}

// One recvmsg; appends descriptors to *fds.
ssize_t ReceiveSome(int socket, iovec* parts, size_t count, std::vector<UniqueFd>* fds, int flags) {
  msghdr m{};
  m.msg_iov = parts;
  m.msg_iovlen = count;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  ssize_t r;
  do {
    r = ::recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);
  } while (r < 0 && errno == EINTR);
  if (r < 0) return r;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds->emplace_back(fd);
    }
  }
  return r;
}

Status ReceiveExactly(int socket, char* buffer, size_t n, std::vector<UniqueFd>* fds) {
  while (n > 0) {
    iovec part{buffer, n};
    ssize_t r = ReceiveSome(socket, &part, 1, fds, 0);
    if (r == 0) return Error(Code::kUnavailable, "the other side closed the connection");
    if (r < 0) {
      if (errno == EAGAIN) {
        pollfd p{socket, POLLIN, 0};
        ::poll(&p, 1, -1);
        continue;
      }
      return ErrnoError("receive");
    }
    buffer += r;
    n -= static_cast<size_t>(r);
  }
  return {};
}

Result<sockaddr_un> Address(const std::string& path) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof a.sun_path) {
    return Error(Code::kInvalid, "socket path " + Escape(path) + ": longer than 107 bytes: choose a shorter directory");
  }
  std::memcpy(a.sun_path, path.data(), path.size());
  return a;
}

}  // namespace

Status SendFrame(int socket, std::string_view bytes, const std::vector<int>& fds) {
  if (bytes.size() > kMaxFrameBytes || fds.size() > kMaxFrameFds) {
    return Error(Code::kInvalid, "frame too large: " + std::to_string(bytes.size()) + " bytes");
  }
  std::string data = Header(bytes.size(), fds.size());
  data.append(bytes);
  size_t sent = 0;
  while (sent < data.size()) {
    iovec part{data.data() + sent, data.size() - sent};
    ssize_t n = SendSome(socket, &part, 1, sent == 0 ? fds : std::vector<int>{}, 0);
    if (n < 0) {
      if (errno == EAGAIN) {
        pollfd p{socket, POLLOUT, 0};
        ::poll(&p, 1, -1);
        continue;
      }
      return ErrnoError("send");
    }
    sent += static_cast<size_t>(n);
  }
  return {};
}

Result<Frame> ReceiveFrame(int socket) {
  Frame frame;
  char header[kHeader];
  VRUN_TRY(ReceiveExactly(socket, header, sizeof header, &frame.fds));
  VRUN_ASSIGN(FrameSizes sizes, ParseHeader({header, sizeof header}));
  frame.bytes.resize(sizes.body);
  VRUN_TRY(ReceiveExactly(socket, frame.bytes.data(), sizes.body, &frame.fds));
  if (frame.fds.size() != sizes.fds) return Error(Code::kCorrupt, "a frame came without its descriptors");
  return frame;
}

Result<bool> FrameReader::ReadAvailable(int socket, const std::function<void(Frame)>& on_frame) {
  // Reads until the socket is empty or a fair share was read, so that one busy peer does not starve the loop.
  constexpr size_t kChunk = 64 * 1024;
  constexpr size_t kShare = 2u << 20;
  char next[kChunk];  // receives data behind the current frame
  for (size_t taken = 0; taken < kShare;) {
    // The rest of a large frame is received directly in place.
    iovec parts[2] = {{body_.data() + got_, body_.size() - got_}, {next, kChunk}};
    const ssize_t r = ReceiveSome(socket, parts, 2, &fds_, MSG_DONTWAIT);
    if (r < 0 && errno == EAGAIN) return true;
    if (r == 0 || (r < 0 && errno == ECONNRESET)) return false;
    if (r < 0) return ErrnoError("receive");
    const size_t n = static_cast<size_t>(r), direct = std::min(n, parts[0].iov_len);
    taken += n;
    got_ += direct;
    VRUN_TRY(Take(std::string_view(next, n - direct), on_frame));
    if (n < parts[0].iov_len + kChunk && fds_.empty() && header_.empty()) return true;
  }
  return true;
}

Status FrameReader::Take(std::string_view bytes, const std::function<void(Frame)>& on_frame) {
  for (;;) {
    if (header_.size() < kHeader) {
      const size_t n = std::min(kHeader - header_.size(), bytes.size());
      header_.append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      if (header_.size() < kHeader) return {};
      VRUN_ASSIGN(const FrameSizes sizes, ParseHeader(header_));
      body_.resize(sizes.body);
      got_ = 0;
    }
    const size_t n = std::min(body_.size() - got_, bytes.size());
    std::memcpy(body_.data() + got_, bytes.data(), n);
    got_ += n;
    bytes.remove_prefix(n);
    if (got_ < body_.size()) return {};
    VRUN_ASSIGN(const FrameSizes sizes, ParseHeader(header_));
    Frame frame;
    VRUN_ASSIGN(frame.fds, TakeFds(&fds_, sizes.fds));
    frame.bytes = std::exchange(body_, {});
    header_.clear();
    got_ = 0;
    on_frame(std::move(frame));
  }
}

void FrameWriter::Queue(std::string bytes, std::vector<UniqueFd> fds) {
  Item item{Header(bytes.size(), fds.size()), std::move(bytes), std::move(fds)};
  queued_ += item.header.size() + item.body.size();
  items_.push_back(std::move(item));
}

Result<bool> FrameWriter::Flush(int socket) {
  while (!items_.empty()) {
    Item& item = items_.front();
    std::vector<int> raw;
    if (item.sent == 0) {
      for (const UniqueFd& fd : item.fds) raw.push_back(fd.get());
    }
    const size_t header = std::min(item.sent, item.header.size()), body = item.sent - header;
    iovec parts[2] = {{item.header.data() + header, item.header.size() - header},
                      {item.body.data() + body, item.body.size() - body}};
    ssize_t n = SendSome(socket, parts, 2, raw, MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN) return false;
      return ErrnoError("send");
    }
    item.sent += static_cast<size_t>(n);
    queued_ -= static_cast<size_t>(n);
    item.fds.clear();
    if (item.sent == item.header.size() + item.body.size()) items_.pop_front();
  }
  return true;
}

Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode) {
  VRUN_ASSIGN(sockaddr_un address, Address(path));
  if (ConnectUnix(path)) return Error(Code::kExists, Escape(path) + ": another process listens there");
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("socket");
  ::unlink(path.c_str());
  mode_t old = ::umask(0177);
  int rc = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  int e = errno;
  ::umask(old);
  if (rc != 0) return ErrnoError(e, "bind " + Escape(path));
  if (::chmod(path.c_str(), mode) != 0) return ErrnoError("chmod " + Escape(path));
  if (::listen(fd.get(), 128) != 0) return ErrnoError("listen " + Escape(path));
  return fd;
}

Result<UniqueFd> ConnectUnix(const std::string& path) {
  VRUN_ASSIGN(sockaddr_un address, Address(path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("socket");
  int rc;
  do {
    rc = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return ErrnoError("connect " + Escape(path));
  return fd;
}

Result<PeerCredentials> UnixPeer(int socket) {
  ucred c{};
  socklen_t n = sizeof c;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &c, &n) != 0) return ErrnoError("SO_PEERCRED");
  return PeerCredentials{c.uid, c.gid, c.pid};
}

}  // namespace vrun
