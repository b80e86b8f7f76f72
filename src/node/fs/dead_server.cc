// SPDX-License-Identifier: Apache-2.0
#include "node/fs/dead_server.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "vfs/fuse/fuse_abi.h"

namespace vrun::node {
namespace {

// At least a header and max_write, which the kernel limits to 1 MiB: a larger request would fail for its caller.
constexpr size_t kRequestBytes = (1u << 20) + (64u << 10);
constexpr uint32_t kPageBytes = 4096;

// The descriptor may be one of a file in the dead server's own views: asking for its attributes would wait for that
// server, so what the kernel has of them must do.
bool IsFuse(int device) {
  struct statx st {};
  return ::statx(device, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) == 0 && S_ISCHR(st.stx_mode) &&
         st.stx_rdev_major == 10 && st.stx_rdev_minor == 229;
}

std::vector<uint32_t> ThreadsOf(pid_t pid) {
  std::vector<uint32_t> threads;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/" + std::to_string(pid) + "/task", error), end;
       !error && it != end; it.increment(error)) {
    threads.push_back(static_cast<uint32_t>(std::strtoul(it->path().filename().c_str(), nullptr, 10)));
  }
  return threads;
}

// Returns 0 or an errno. The device takes a message whole or not at all.
int Write(int device, const void* message, size_t n) {
  ssize_t written = 0;
  do written = ::write(device, message, n);
  while (written < 0 && errno == EINTR);
  return written < 0 ? errno : 0;
}

// The errno to answer with; 0: not to be answered. `body`: what follows the header.
int AnswerTo(const fuse_in_header& in, std::string_view body, bool own, Answering answering) {
  switch (in.opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: return 0;
    default: break;
  }
  if (own) return EINTR;
  if (answering == Answering::kItself) return 0;
  switch (in.opcode) {
    case FUSE_READ: {
      // A read of several pages is read-ahead. Its error goes to nobody: whoever needs a page asks for it alone
      // (FileContent::Declines).
      fuse_read_in read{};
      if (body.size() < sizeof read) return 0;
      std::memcpy(&read, body.data(), sizeof read);
      if (read.size > kPageBytes && !(std::has_single_bit(read.size) && read.offset % read.size == 0)) return EAGAIN;
      return answering == Answering::kReads ? EINTR : 0;
    }
    // The kernel walks the path again, once, with all names looked up anew.
    case FUSE_LOOKUP:
    case FUSE_CREATE:
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_SYMLINK:
    case FUSE_LINK:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_RENAME:
    case FUSE_RENAME2: return ESTALE;
    default: return 0;
  }
}

}  // namespace

bool HasLostFirstThread(pid_t pid) {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat").value_or("");
  const size_t name_end = stat.rfind(") ");
  return name_end != stat.npos && stat.compare(name_end + 2, 1, "Z") == 0 && ThreadsOf(pid).size() > 1;
}

int AnswerForDead(int device, pid_t dead, Answering answering) {
  if (!IsFuse(device)) return 0;
  const std::vector<uint32_t> threads = ThreadsOf(dead);
  fuse_out_header again{};
  again.len = sizeof again;
  again.error = vfs::kNotifyResend;
  if (threads.empty() || Write(device, &again, sizeof again) != 0) return 0;
  const auto request = std::make_unique_for_overwrite<char[]>(kRequestBytes);
  int answered = 0;
  for (pollfd pending{device, POLLIN, 0}; ::poll(&pending, 1, 0) == 1 && (pending.revents & POLLIN) != 0;) {
    const ssize_t n = ::read(device, request.get(), kRequestBytes);
    if (n < 0 && (errno == EINTR || errno == ENOENT)) continue;  // ENOENT: it was given up meanwhile
    fuse_in_header in{};
    if (n < static_cast<ssize_t>(sizeof in)) break;
    std::memcpy(&in, request.get(), sizeof in);
    const std::string_view body(request.get() + sizeof in, static_cast<size_t>(n) - sizeof in);
    const bool own = std::find(threads.begin(), threads.end(), in.pid) != threads.end();
    const int error = AnswerTo(in, body, own, answering);
    if (error == 0) continue;
    const fuse_out_header out{.len = sizeof out, .error = -error, .unique = in.unique};
    if (Write(device, &out, sizeof out) == 0) ++answered;
  }
  return answered;
}

}  // namespace vrun::node
