// SPDX-License-Identifier: Apache-2.0
// For live views: puts content that a trace lists into the kernel's page cache as soon as the content is here and the
// kernel knows the file (push_traced.cc explains why). The names are looked up when the run begins (warmer.h).
//
// A live view is written to, also through mappings, and its server hears of mapped writes late. So it must not
// overwrite pages in the kernel: it could overwrite what a job has just written. Instead it reads them: readahead(2) on
// its own mount requests pages that the kernel does not have, and the kernel orders those reads and writes.
//
// A server may use its own mount only if it never waits for itself: a thread that does cannot be killed, nor can its
// process. Opening by handle and closing send no request here; readahead(2) waits only while too many requests are
// under way, and a signal ends that. The root is opened once, before the view has users; that may send a request if the
// kernel has not yet learned that it need not.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "tree/tree.h"
#include "vfs/push/pusher.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

class Backend;

// Thread safety: any thread.
class LivePush final : public TracedFiles::Listener {
 public:
  // `mount`: a mount without open requests whose server runs. `backend` must outlive it.
  static Result<std::unique_ptr<LivePush>> Start(Backend& backend, int mount);
  // Destroy it after the connection has ended.
  ~LivePush();
  LivePush(const LivePush&) = delete;
  LivePush& operator=(const LivePush&) = delete;

  // Whether calling Told has any use now.
  bool active() const { return backend_.traced().active(); }
  // The kernel has been told of these files: node id, version, object id.
  void Told(std::span<const PushPiece> files);
  // Makes the kernel look up these absolute paths, if possible. Does not wait.
  void LookUp(std::span<const std::string> paths);
  uint64_t pushed() const { return pusher_.pushed(); }

  void TraceBegins(std::span<const TracedFiles::File> files) override;
  void TraceArrived(const tree::FileVersion& version, TracedFiles::Range range) override;
  void TracesOver() override;

 private:
  LivePush(Backend& backend, std::shared_ptr<const UniqueFd> directory);

  Backend& backend_;
  const std::shared_ptr<const UniqueFd> directory_;
  Mutex mutex_;
  std::unordered_map<tree::FileVersion, PushPiece, tree::FileVersionHash> files_
      VRUN_GUARDED_BY(mutex_);  // files of the traces that the kernel knows
  Pusher pusher_;
};

}  // namespace vrun::vfs
