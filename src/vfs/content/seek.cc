// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/seek.h"

#include <cerrno>
#include <utility>

#include "vfs/extents.h"
#include "vfs/fuse/fuse_abi.h"

namespace vrun::vfs {

void AnswerSeek(const std::shared_ptr<FileContent>& content, const FileContent::Place& place, bool sparse,
                uint64_t offset, uint32_t whence, Reply reply) {
  const auto answer = [size = content->size(), offset, whence](const Extents* extents, Reply& to) {
    if (const auto at = SeekIn(extents, size, offset, whence)) {
      to.Struct(fuse_lseek_out{*at});
    } else {
      to.Error(ENXIO);
    }
  };
  if (!sparse || offset >= content->size()) return answer(nullptr, reply);
  reply.Suspend();
  content->FindExtents(place, [answer, shared = std::make_shared<Reply>(std::move(reply))](const ExtentsPtr& extents) {
    answer(extents.get(), *shared);
  });
}

}  // namespace vrun::vfs
