// SPDX-License-Identifier: Apache-2.0
#include "node/fs/dead_server.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "vfs/fuse/fuse_abi.h"

namespace vrun::node {
namespace {

// At least a header and max_write, which the kernel limits to 1 MiB: a larger request would fail for its caller.
constexpr size_t kRequestBytes = (1u << 20) + (64u << 10);

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

}  // namespace

bool HasLostFirstThread(pid_t pid) {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat").value_or("");
  const size_t name_end = stat.rfind(") ");
  return name_end != stat.npos && stat.compare(name_end + 2, 1, "Z") == 0 && ThreadsOf(pid).size() > 1;
}

int AnswerForDead(int device, pid_t dead) {
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
    const bool awaited = in.opcode != FUSE_FORGET && in.opcode != FUSE_BATCH_FORGET && in.opcode != FUSE_INTERRUPT;
    if (!awaited || std::find(threads.begin(), threads.end(), in.pid) == threads.end()) continue;
    const fuse_out_header out{.len = sizeof out, .error = -EINTR, .unique = in.unique};
    if (Write(device, &out, sizeof out) == 0) ++answered;
  }
  return answered;
}

}  // namespace vrun::node
