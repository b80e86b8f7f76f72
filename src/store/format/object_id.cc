// SPDX-License-Identifier: Apache-2.0
#include "store/format/object_id.h"

#include "base/result.h"

namespace vrun::store {
namespace {

void AppendU64(uint64_t v, std::string* out) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(v >> (8 * i)));
}

}  // namespace

ObjectId ContentId(uint64_t size, std::span<const Digest> units) {
  VRUN_CHECK(units.size() == UnitCount(size));
  if (units.empty()) return {IdAlgorithm::kBlake3, Blake3("")};
  if (units.size() == 1) return {IdAlgorithm::kBlake3, units[0]};
  static_assert(sizeof(Digest) == sizeof(Digest::bytes));
  const std::string_view all(reinterpret_cast<const char*>(units.data()), units.size_bytes());
  return {IdAlgorithm::kBlake3Units, Blake3(all)};
}

ObjectId ProvisionalId(std::string_view home_id, uint64_t dev, uint64_t ino, int64_t ctime_ns, uint64_t size) {
  // The length prefix separates a home id from the numbers.
  std::string text = "vrun-provisional-1";
  AppendU64(home_id.size(), &text);
  text.append(home_id);
  AppendU64(dev, &text);
  AppendU64(ino, &text);
  AppendU64(static_cast<uint64_t>(ctime_ns), &text);
  AppendU64(size, &text);
  return {IdAlgorithm::kProvisional, Sha256(text)};
}

}  // namespace vrun::store
