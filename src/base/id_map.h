// SPDX-License-Identifier: Apache-2.0
// Home's uids and gids as a node has them: every tenant has ids of its own there.
//
//   home                           node
//   0 .. 65535                     base + id
//   an id of the table (kHighIds)  HighBase + its place in the table
//   any other                      base + 65534 ("nobody"), and that is 65534 at home
//
// The table has what the tenant's user is above 65535, as a directory service gives it out (uid, gid, groups): user
// namespaces map no more than 340 ranges. It only grows, and is the same for uids and gids.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace vrun {

// Any thread. Copies share the table.
class IdMap {
 public:
  static constexpr uint32_t kIds = 65536;
  static constexpr uint32_t kNobody = 65534;
  static constexpr size_t kHighIds = 339;  // Linux: UID_GID_MAP_MAX_EXTENTS of 340, less that of `base`

  IdMap(uint32_t base = 0);  // NOLINT(google-explicit-constructor): without a table it is no more than its base
  IdMap(uint32_t base, std::vector<uint32_t> high);

  uint32_t base() const { return base_; }
  // Of the node, the first of those for the table. The ranges of bases that differ in bits 16..29 are apart, and above
  // all of them.
  uint32_t high_base() const { return 0x80000000u + (base_ >> 16 & 0x3fff) * 512; }

  uint32_t ToNode(uint32_t home) const { return home < kIds ? base_ + home : HighToNode(home); }
  uint32_t ToHome(uint32_t node) const {
    return node >= base_ && node - base_ < kIds ? node - base_ : HighToHome(node);
  }

  // For all copies. At most kHighIds; what was in it must stay where it was.
  void SetHigh(std::vector<uint32_t> high);
  std::vector<uint32_t> high() const;

 private:
  struct Table;
  uint32_t HighToNode(uint32_t home) const;
  uint32_t HighToHome(uint32_t node) const;

  uint32_t base_;
  std::shared_ptr<Table> table_;
};

}  // namespace vrun
