// SPDX-License-Identifier: Apache-2.0
#include "store/object_base.h"

#include <algorithm>

namespace vrun::store {

std::shared_ptr<ObjectBase> ObjectBase::target() const {
  if (id_.algorithm != IdAlgorithm::kProvisional) return nullptr;
  MutexLock lock(target_mu_);
  return target_;
}

void ObjectBase::StandFor(std::shared_ptr<ObjectBase> target) {
  MutexLock lock(target_mu_);
  target_ = std::move(target);
}

ObjectId ObjectBase::id() const {
  auto t = target();
  return t ? t->id_ : id_;
}

UnitRange ObjectBase::Touched(uint64_t offset, uint64_t length) const {
  if (offset >= size_ || length == 0) return {};
  const uint64_t end = length > size_ - offset ? size_ : offset + length;
  const uint64_t first = offset / unit_bytes();
  return {first, (end - 1) / unit_bytes() - first + 1};
}

bool ObjectBase::Has(uint64_t offset, uint64_t length) {
  if (auto t = target()) return t->Has(offset, length);
  const UnitRange units = Touched(offset, length);
  return units.count == 0 || DoMissing(units).empty();
}

bool ObjectBase::complete() { return Has(0, size_); }

std::vector<UnitRange> ObjectBase::MissingUnits(uint64_t offset, uint64_t length) {
  if (auto t = target()) return t->MissingUnits(offset, length);
  const UnitRange units = Touched(offset, length);
  if (units.count == 0) return {};
  auto missing = DoMissing(units);
  for (const UnitRange& range : missing) core_->misses += range.count;
  return missing;
}

Result<size_t> ObjectBase::Read(uint64_t offset, void* buffer, size_t n) {
  if (auto t = target()) return t->Read(offset, buffer, n);
  if (offset >= size_ || n == 0) return size_t{0};
  n = static_cast<size_t>(std::min<uint64_t>(n, size_ - offset));
  auto result = DoRead(offset, static_cast<char*>(buffer), n);
  if (result) core_->hits += Touched(offset, n).count;
  return result;
}

Status ObjectBase::Put(uint64_t first_unit, std::span<const PutUnit> units, bool verified) {
  if (auto t = target()) return t->Put(first_unit, units, verified);
  const Error invalid(Code::kInvalid, "store: units that do not fit the file");
  if (first_unit > unit_count() || units.size() > unit_count() - first_unit) return invalid;
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].data.size() != LengthOf(first_unit + i)) return invalid;
    if (!verified && UnitDigest(units[i].data) != units[i].digest) {
      return Error(Code::kCorrupt, "store: content does not match its digest");
    }
  }
  if (units.empty()) return {};
  Status status = DoPut(first_unit, units);
  // Another thread's Resolve may come between the target check and the work.
  if (auto t = target(); t && !status) return t->Put(first_unit, units, true);
  return status;
}

std::optional<uint64_t> ObjectBase::VerifySome(uint64_t bytes) {
  if (auto t = target()) return t->VerifySome(bytes);
  return DoVerifySome(bytes);
}

Result<UniqueFd> ObjectBase::OpenForPassthrough() {
  if (auto t = target()) return t->OpenForPassthrough();
  return DoOpenForPassthrough();
}

Result<UniqueFd> ObjectBase::OpenPart(uint64_t offset, uint64_t length) {
  if (auto t = target()) return t->OpenPart(offset, length);
  return DoOpenPart(Touched(offset, length));
}

Status ObjectBase::Resolve(const ObjectId& final_id) {
  const ObjectId now = id();
  if (now == final_id) return {};
  if (now.algorithm != IdAlgorithm::kProvisional || final_id.algorithm == IdAlgorithm::kProvisional) {
    return Error(Code::kInvalid, "store: the content has another name already");
  }
  VRUN_ASSIGN(std::shared_ptr<ObjectBase> final_object, core_->Acquire(final_id, size_));
  Status moved = MoveInto(final_object);
  // A full disk loses cached units, but not the name.
  if (!moved && moved.error().code() != Code::kExhausted) return moved;
  StandFor(final_object);
  core_->SetAlias(id_, final_id);
  return moved;
}

}  // namespace vrun::store
