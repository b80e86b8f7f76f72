// SPDX-License-Identifier: Apache-2.0
// Common parts of both kinds of objects: the id, and forwarding to another object once a provisional name is resolved.
#pragma once

#include <memory>

#include "base/thread/mutex.h"
#include "store/core.h"
#include "store/store.h"

namespace vrun::store {

inline Error NotHere() { return Error(Code::kNotFound, "store: content is not in the cache"); }

class ObjectBase : public Object {
 public:
  ObjectBase(std::shared_ptr<Core> core, const ObjectId& id, uint64_t size)
      : core_(std::move(core)), id_(id), size_(size) {}

  ObjectId id() const final;
  uint64_t size() const final { return size_; }
  bool Has(uint64_t offset, uint64_t length) final;
  std::vector<UnitRange> MissingUnits(uint64_t offset, uint64_t length) final;
  Result<size_t> Read(uint64_t offset, void* buffer, size_t n) final;
  Status Put(uint64_t first_unit, std::span<const PutUnit> units, bool verified) final;
  bool complete() final;
  std::optional<uint64_t> VerifySome(uint64_t bytes) final;
  Result<UniqueFd> OpenForPassthrough() final;
  Result<UniqueFd> OpenPart(uint64_t offset, uint64_t length) final;
  Status Resolve(const ObjectId& final_id) final;

  // Rereads everything on disk, even if verified before; drops what is corrupt.
  virtual void VerifyAll(Store::VerifyReport* report) = 0;

 protected:
  uint64_t unit_bytes() const { return UnitBytes(size_); }
  uint64_t unit_count() const { return UnitCount(size_); }
  uint64_t LengthOf(uint64_t unit) const { return std::min(unit_bytes(), size_ - unit * unit_bytes()); }
  // The units that [offset, offset+length) touches, up to the end of the file.
  UnitRange Touched(uint64_t offset, uint64_t length) const;

  // The implementations. Arguments are already checked: ranges lie inside the file, each unit has its length and,
  // unless the caller vouched for it, matches its digest.
  virtual std::vector<UnitRange> DoMissing(UnitRange units) = 0;
  virtual Result<size_t> DoRead(uint64_t offset, char* buffer, size_t n) = 0;
  virtual Status DoPut(uint64_t first_unit, std::span<const PutUnit> units) = 0;
  virtual std::optional<uint64_t> DoVerifySome(uint64_t bytes) = 0;
  virtual Result<UniqueFd> DoOpenForPassthrough() = 0;
  virtual Result<UniqueFd> DoOpenPart(UnitRange units) = 0;
  // Moves the content to `target`, which has the same size and a final id.
  virtual Status MoveInto(const std::shared_ptr<ObjectBase>& target) = 0;

  // Forwards every later call to `target`.
  void StandFor(std::shared_ptr<ObjectBase> target);

  const std::shared_ptr<Core> core_;
  const ObjectId id_;
  const uint64_t size_;

 private:
  std::shared_ptr<ObjectBase> target() const;

  mutable Mutex target_mu_;
  std::shared_ptr<ObjectBase> target_ VRUN_GUARDED_BY(target_mu_);
};

}  // namespace vrun::store
