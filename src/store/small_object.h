// SPDX-License-Identifier: Apache-2.0
// A file of at most one unit: one file on disk, named by the digest of its content. It appears by rename, so it is
// whole or absent, and it is verified on every read (the kernel reads it once). While its digest is unknown nothing is
// on disk; the first Put sets the final name.
#pragma once

#include "base/thread/mutex.h"
#include "store/object_base.h"

namespace vrun::store {

class SmallObject final : public ObjectBase {
 public:
  using ObjectBase::ObjectBase;

  void VerifyAll(Store::VerifyReport* report) override;

 private:
  std::vector<UnitRange> DoMissing(UnitRange units) override;
  Result<size_t> DoRead(uint64_t offset, char* buffer, size_t n) override;
  Status DoPut(uint64_t first_unit, std::span<const PutUnit> units) override;
  std::optional<uint64_t> DoVerifySome(uint64_t bytes) override;
  Result<UniqueFd> DoOpenForPassthrough() override;
  Result<UniqueFd> DoOpenPart(UnitRange) override { return DoOpenForPassthrough(); }
  Status MoveInto(const std::shared_ptr<ObjectBase>& target) override;

  Status WriteFile(std::string_view data);
  // Opens the file and reads all of it into `buffer` (size() bytes). kNotFound when absent, or corrupt (then dropped).
  Result<UniqueFd> ReadVerified(char* buffer);
  void Drop();

  Mutex mu_;
  bool present_ VRUN_GUARDED_BY(mu_) = false;  // was on disk; another process may have evicted it since
  bool bad_ VRUN_GUARDED_BY(mu_) = false;  // the file is damaged and cannot be removed (a disk that became read-only)
};

}  // namespace vrun::store
