// SPDX-License-Identifier: Apache-2.0
// The texts that home signs for content that may be passed on. A node that gets content from another node trusts home's
// signature, not that node (docs/decisions/0006).
#pragma once

#include <string>
#include <string_view>

#include "base/hash/digest.h"
#include "tree/tree.h"

namespace vrun::store {

// "Units from `offset` on of this version of a file at this home have these digests", 32 bytes each, and, unless it is
// empty, the file has this object id (ObjectId::Encode).
std::string UnitsStatement(std::string_view home_id, const tree::FileVersion& version, uint64_t offset,
                           std::string_view digests, std::string_view object_id);

// Computes the name of a frame of a trace from its contents, in order.
class FrameNamer {
 public:
  void Add(const tree::FileVersion& version, uint64_t first_unit, uint64_t count);
  Digest Name() const { return Sha256(text_); }

 private:
  std::string text_ = "vrun frame 1";
};

// "The units of the frame with this name have these digests", 32 bytes each.
std::string FrameStatement(std::string_view home_id, const Digest& name, std::string_view digests);

}  // namespace vrun::store
