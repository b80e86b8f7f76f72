// SPDX-License-Identifier: Apache-2.0
// Includes the parts of FileContent for content that the kernel reads directly.
#include "vfs/content/verifier.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "store/store.h"
#include "vfs/content/file_cache.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kPieceBytes = 16 << 20;

}  // namespace

void Verifier::Verify(const std::shared_ptr<FileContent>& content, Done done) {
  FileContent* const key = content.get();
  {
    MutexLock lock(mutex_);
    Job& job = jobs_[key];
    if (done) job.done.push_back(std::move(done));
    if (job.content) return;
    job.content = content;
    job.left = content->size();
  }
  queue_.Post([this, key] { VerifyPiece(key); });
}

void Verifier::VerifyPiece(FileContent* content) {
  const std::optional<uint64_t> unverified = content->VerifySome(kPieceBytes);
  Job over;  // released after the lock
  {
    MutexLock lock(mutex_);
    const auto it = jobs_.find(content);
    Job& job = it->second;
    job.left -= std::min(job.left, kPieceBytes);
    if (unverified.value_or(0) > 0 && job.left > 0) {
      queue_.Post([this, content] { VerifyPiece(content); });
      return;
    }
    over = std::move(job);
    jobs_.erase(it);
  }
  for (const Done& done : over.done) done(unverified == uint64_t{0});
}

std::optional<uint64_t> FileContent::VerifySome(uint64_t bytes) {
  std::shared_ptr<store::Object> object;
  {
    MutexLock lock(mutex_);
    if (mixed_) return std::nullopt;
    object = ObjectLocked();
  }
  return object ? object->VerifySome(bytes) : std::nullopt;
}

Result<UniqueFd> FileContent::OpenForPassthrough() {
  std::shared_ptr<store::Object> object;
  {
    MutexLock lock(mutex_);
    object = ObjectLocked();
  }
  if (!object) return Error(Code::kNotFound, "open for passthrough: not in the store");
  return object->OpenForPassthrough();
}

}  // namespace vrun::vfs
