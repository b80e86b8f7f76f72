// SPDX-License-Identifier: Apache-2.0
// Maps home's uids and gids to a node's: each tenant has its own ids there.
//
//   home                           node
//   0 .. 65535                     base + id
//   an id of the table (kHighIds)  HighBase + its place in the table
//   any other                      base + 65534 ("nobody"), and that is 65534 at home
//
// The table has the ids above 65535 of the tenant's user, as assigned by a directory service (uid, gid, groups). It is
// limited because user namespaces map at most 340 ranges. It only grows, and is the same for uids and gids.
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
  static constexpr size_t kHighIds = 339;  // Linux: UID_GID_MAP_MAX_EXTENTS of 340, minus the range of `base`

  IdMap(uint32_t base = 0);  // NOLINT(google-explicit-constructor): without a table it is no more than its base
  IdMap(uint32_t base, std::vector<uint32_t> high);

  uint32_t base() const { return base_; }
  // The first host id for the table. These ranges lie above all bases, and do not overlap for bases that differ in bits
  // 16..29.
  uint32_t high_base() const { return 0x80000000u + (base_ >> 16 & 0x3fff) * 512; }

  uint32_t ToNode(uint32_t home) const { return home < kIds ? base_ + home : HighToNode(home); }
  uint32_t ToHome(uint32_t node) const {
    return node >= base_ && node - base_ < kIds ? node - base_ : HighToHome(node);
  }

  // Applies to all copies. At most kHighIds; existing entries must keep their place.
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
