// SPDX-License-Identifier: Apache-2.0
// What home signs when it sends content that may be passed on: the texts. A node that gets content from another node
// believes the signature of home, not the other node (docs/decisions/0006).
#pragma once

#include <string>
#include <string_view>

#include "base/hash/digest.h"
#include "tree/tree.h"

namespace vrun::store {

// "Units from `offset` on of this version of a file at this home have these digests", 32 bytes each, and, where it is
// not empty, the file has this object id (ObjectId::Encode).
std::string UnitsStatement(std::string_view home_id, const tree::FileVersion& version, uint64_t offset,
                           std::string_view digests, std::string_view object_id);

// The name of a frame of a trace: what is in it, in order.
class FrameNamer {
 public:
  void Add(const tree::FileVersion& version, uint64_t first_unit, uint64_t count);
  Digest Name() const { return Sha256(text_); }

 private:
  std::string text_ = "vrun frame 1";
};

// "The units of the frame of this name have these digests", 32 bytes each.
std::string FrameStatement(std::string_view home_id, const Digest& name, std::string_view digests);

}  // namespace vrun::store
