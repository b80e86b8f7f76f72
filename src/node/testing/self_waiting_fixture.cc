// SPDX-License-Identifier: Apache-2.0
#include "node/testing/self_waiting_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "base/files.h"
#include "base/log.h"
#include "node/fs/fs_keeper.h"
#include "node/fs/keeper_link.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/fuse/mount.h"

namespace vrun::node {
namespace {

struct Received {
  fuse_in_header header{};
  std::array<char, (1u << 20) + 8192> body{};
};

bool Read(int device, Received* request) {
  const ssize_t n = ::read(device, request, sizeof *request);
  return n >= static_cast<ssize_t>(sizeof(fuse_in_header));
}

template <typename Body>
void Answer(int device, uint64_t unique, const Body& body) {
  struct {
    fuse_out_header header;
    Body body;
  } out{};
  out.header.len = sizeof(fuse_out_header) + sizeof body;
  out.header.unique = unique;
  out.body = body;
  VRUN_CHECK(::write(device, &out, out.header.len) == static_cast<ssize_t>(out.header.len));
}

void Initialize(int device, Received* request) {
  VRUN_CHECK(Read(device, request) && request->header.opcode == FUSE_INIT);
  vfs::InitOut out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = vfs::kSpokenMinor;
  out.flags = FUSE_INIT_EXT;
  out.flags2 = static_cast<uint32_t>(vfs::kFuseHasResend >> 32);
  out.max_write = 4096;
  Answer(device, request->header.unique, out);
}

// The errno of a request for the root's attributes.
int Ask(const std::string& view) {
  struct stat st {};
  return ::stat(view.c_str(), &st) == 0 ? 0 : errno;
}

[[noreturn]] void DieWaiting(int device, const std::string& directory, Received* request) {
  const std::string view = directory + "/view";
  if (::fork() == 0) {
    const int error = Ask(view);
    (void)WriteFileAtomic(directory + "/answered", std::to_string(error), 0600);
    ::_exit(0);
  }
  std::thread([view] { Ask(view); }).detach();
  for (int waiting = 0; waiting < 2; ++waiting) VRUN_CHECK(Read(device, request));
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

}  // namespace

int SelfWaitingServer(const std::string& directory) {
  KeeperLink::Items left;
  auto keeper = KeeperLink::Start(UniqueFd(kServerKeeperFd), &left);
  VRUN_CHECK(keeper);
  static Received request;
  if (left.empty()) {
    auto device = vfs::OpenFuseDevice("/dev/fuse");
    VRUN_CHECK(device);
    const auto mount = vfs::FuseMount::Create(device->get(), directory + "/view", vfs::FuseMount::Access::kReadWrite);
    VRUN_CHECK(mount);
    Initialize(device->get(), &request);
    (*keeper)->Keep("view", {}, {device->get()});
    DieWaiting(device->get(), directory, &request);
  }
  const int device = left.at("view").fds.at(0).get();
  const fuse_out_header again{.len = sizeof again, .error = vfs::kNotifyResend, .unique = 0};
  VRUN_CHECK(::write(device, &again, sizeof again) == sizeof again);
  while (Read(device, &request)) {
    fuse_attr_out out{};
    out.attr.ino = FUSE_ROOT_ID;
    out.attr.mode = S_IFDIR | 0755;
    if (request.header.opcode == FUSE_GETATTR) Answer(device, request.header.unique, out);
  }
  return 0;
}

}  // namespace vrun::node
