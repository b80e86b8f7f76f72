// SPDX-License-Identifier: Apache-2.0
// Live views: what a trace says will be read is in the kernel's page cache as soon as it is here and the kernel knows
// the file (push_traced.cc says why), which it is made to when the run begins (warmer.h).
//
// A live view is written to, also through mappings, of which its server hears late, so it must not tell the kernel what
// a file's pages hold: it would overwrite what a job has just written. So it reads them: readahead(2) on its own mount
// asks for pages that the kernel does not have, and the order of those reads and of writes is the kernel's business.
//
// May a server use its own mount? Only without waiting for itself, for a thread that waits so cannot be killed, and
// with it the process. Opening by handle and closing cost no request here; readahead(2) waits only while too many
// requests are under way, and a signal ends that. The root is opened once, before the view has users, which may be a
// request where the kernel has not learned yet that it need not ask.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "base/result.h"
#include "tree/tree.h"
#include "vfs/push/pusher.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

class Backend;

// Thread safety: any thread.
class LivePush final : public TracedFiles::Listener {
 public:
  // `mount` is a mount without opens whose server runs. `backend` must outlive it.
  static Result<std::unique_ptr<LivePush>> Start(Backend& backend, int mount);
  // After the connection has ended.
  ~LivePush();
  LivePush(const LivePush&) = delete;
  LivePush& operator=(const LivePush&) = delete;

  // Whether Told has any use now.
  bool active() const { return backend_.traced().active(); }
  // The kernel has been told of these: node id, version, id.
  void Told(std::span<const PushPiece> files);
  // Has the kernel ask for these, absolute, if it can be done. Does not wait.
  void LookUp(std::span<const std::string> paths);
  uint64_t pushed() const { return pusher_.pushed(); }

  void TraceBegins(std::span<const TracedFiles::File> files) override;
  void TraceArrived(const tree::FileVersion& version, TracedFiles::Range range) override;
  void TracesOver() override;

 private:
  LivePush(Backend& backend, std::shared_ptr<const UniqueFd> directory);

  Backend& backend_;
  const std::shared_ptr<const UniqueFd> directory_;
  std::mutex mutex_;
  std::unordered_map<tree::FileVersion, PushPiece, tree::FileVersionHash>
      files_;  // that the kernel knows, of the traces
  Pusher pusher_;
};

}  // namespace vrun::vfs
