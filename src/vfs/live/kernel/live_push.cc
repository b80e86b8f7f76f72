// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/kernel/live_push.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"
#include "vfs/fuse/node_handle.h"
#include "vfs/push/warmer.h"

namespace vrun::vfs {
namespace {

// Limit of one call, unless the mount's read-ahead is larger (force_page_cache_ra in mm/readahead.c).
constexpr uint64_t kReadAheadBytes = 128 << 10;

class ByReadAhead final : public PushWay {
 public:
  ByReadAhead(Backend& backend, std::shared_ptr<const UniqueFd> directory)
      : backend_(backend), directory_(std::move(directory)) {}

  int Push(const PushPiece& piece, uint64_t offset, uint64_t length) override {
    if (!backend_.files().Get(piece.version, piece.known_id)->Has(offset, length)) return ENODATA;
    const UniqueFd file = OpenNode(directory_->get(), piece.nodeid);
    if (!file) return errno == ESTALE ? ENOENT : errno;
    for (uint64_t at = offset; at < offset + length; at += kReadAheadBytes) {
      const uint64_t n = std::min(kReadAheadBytes, offset + length - at);
      if (::readahead(file.get(), static_cast<off64_t>(at), n) != 0) return errno;
    }
    return 0;
  }

 private:
  Backend& backend_;
  const std::shared_ptr<const UniqueFd> directory_;
};

}  // namespace

Result<std::unique_ptr<LivePush>> LivePush::Start(Backend& backend, int mount) {
  UniqueFd directory(::openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return ErrnoError("open the root of a live view");
  return std::unique_ptr<LivePush>(new LivePush(backend, std::make_shared<const UniqueFd>(std::move(directory))));
}

LivePush::LivePush(Backend& backend, std::shared_ptr<const UniqueFd> directory)
    : backend_(backend),
      directory_(std::move(directory)),
      pusher_(backend, std::make_unique<ByReadAhead>(backend, directory_), {}) {
  backend_.traced().Listen(this);
}

LivePush::~LivePush() { backend_.traced().Unlisten(this); }

void LivePush::Told(std::span<const PushPiece> files) {
  std::vector<PushPiece> pieces;
  for (const PushPiece& file : files) {
    const auto ranges = backend_.traced().Of(file.version);
    if (ranges.empty()) continue;
    {
      const MutexLock lock(mutex_);
      files_[file.version] = file;
    }
    for (const TracedFiles::Range& range : ranges) pieces.push_back(PushPiece::Traced(file, range));
  }
  pusher_.Post(std::move(pieces));
}

void LivePush::TraceBegins(std::span<const TracedFiles::File> files) {
  std::vector<std::string> paths;
  for (const TracedFiles::File& file : files) paths.push_back(file.path);
  LookUp(paths);
}

void LivePush::LookUp(std::span<const std::string> paths) {
  if (backend_.options().warmer) backend_.options().warmer->LookUp(directory_->get(), paths);
}

void LivePush::TraceArrived(const tree::FileVersion& version, TracedFiles::Range range) {
  std::vector<PushPiece> pieces;
  {
    const MutexLock lock(mutex_);
    const auto it = files_.find(version);
    if (it == files_.end()) return;
    pieces.push_back(PushPiece::Traced(it->second, range));
  }
  pusher_.Post(std::move(pieces));
}

void LivePush::TracesOver() {
  const MutexLock lock(mutex_);
  files_.clear();
}

}  // namespace vrun::vfs
