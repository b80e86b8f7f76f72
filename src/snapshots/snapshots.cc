// SPDX-License-Identifier: Apache-2.0
#include "snapshots/snapshots.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/files.h"
#include "base/io/event_loop.h"
#include "base/io/file_lock.h"
#include "base/log.h"
#include "home/links/home_id.h"
#include "rpc/credentials.h"
#include "snapshots/snapshot_service.h"

namespace vrun::snapshots {
namespace {

void Tell(int fd, const std::string& line) {
  if (fd < 0) return;
  (void)WriteAll(fd, line + "\n");
  ::close(fd);
}

Status Run(const SnapshotsOptions& options) {
  VRUN_TRY(MakeDirs(options.state_directory, 0700));
  const Result<UniqueFd> lock = LockFile(options.state_directory + "/lock");
  if (!lock && lock.error().code() == Code::kExists) {
    return Error(Code::kExists, "snapshot store: another one uses " + Escape(options.state_directory) +
                                    ": stop it or choose another directory");
  }
  if (!lock) return lock.error();
  VRUN_ASSIGN(const rpc::Credentials credentials, rpc::LoadCredentials(options.pki_directory, "snapshots"));
  EventLoop loop;
  for (int s : {SIGTERM, SIGINT}) VRUN_TRY(loop.OnSignal(s, [&loop](int) { loop.Stop(); }));
  Service service(&loop, options.state_directory, home::LoadHomeId(options.state_directory), credentials,
                  {options.s3_bucket, options.controller, options.disk_bytes});
  VRUN_ASSIGN(const int port, service.Start(options.listen));
  LogInfo("listens on port {}", port);
  if (!options.s3_bucket.empty()) LogInfo("snapshots are kept in the S3 bucket {} too", Escape(options.s3_bucket));
  Tell(options.ready_fd, "ok");
  loop.Run();
  LogInfo("stopping");
  // Skips destructors: a thread may wait up to a minute for a home that is away. The disk state is always consistent.
  ::_exit(0);
}

}  // namespace

int SnapshotsMain(const SnapshotsOptions& options) {
  InitLog("snapshots");
  if (options.ready_fd >= 0) ::fcntl(options.ready_fd, F_SETFD, FD_CLOEXEC);
  ::signal(SIGPIPE, SIG_IGN);
  const Status ran = Run(options);
  LogError("{}", ran.error().message());
  Tell(options.ready_fd, "error: " + ran.error().message());
  return 1;
}

}  // namespace vrun::snapshots
