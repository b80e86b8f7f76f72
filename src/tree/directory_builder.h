// SPDX-License-Identifier: Apache-2.0
// Collects the encoded entries of one directory and builds the Directory. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tree/codec_internal.h"
#include "tree/tree.h"

namespace vrun::tree {

class DirectoryBuilder {
 public:
  using NamedDirectory = std::pair<std::string, DirectoryPtr>;

  // In any order. Of two entries with the same name the first stays. False: the object would exceed its limit
  // (codec.h).
  [[nodiscard]] bool Add(const Entry& entry);
  // Adds an entry of another Directory, as returned by EncodedAt.
  [[nodiscard]] bool AddEncoded(std::string_view encoded);
  [[nodiscard]] bool Append(DirectoryBuilder other);
  // Drops the entries of these names, in any order.
  void Remove(std::vector<std::string> names);
  size_t size() const { return items_.size(); }

  // `children`: sub-directories by name, in any order; their digests are stored in their entries. A child without an
  // entry is dropped. Directory entries without a child here keep the digest with which they were added.
  DirectoryPtr Finish(std::vector<NamedDirectory> children) &&;

 private:
  friend class Directory;
  // Holds the first eight bytes of the name as a number: most comparisons need no other memory.
  struct Item {
    uint64_t prefix;
    uint32_t offset;
    uint32_t length;
  };
  bool Push(size_t offset);
  bool Less(const Item& a, const Item& b) const;
  static void AddTotals(const Peek& entry, Directory* directory);
  std::shared_ptr<Directory> Assemble(std::vector<NamedDirectory> children) &&;

  std::string bytes_;
  std::vector<Item> items_;
};

}  // namespace vrun::tree
