// SPDX-License-Identifier: Apache-2.0
// The few descriptors that the store keeps open, least recently used first out.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/unique_fd.h"

namespace vrun::store {

// Of one object. Whoever holds the pointer may go on using the descriptors after the LRU has let go of them.
struct ObjectFiles {
  UniqueFd content;                // read and write
  UniqueFd map;                    // read and write
  std::array<uint8_t, 16> life{};  // nonce of the map
};
using ObjectFilesPtr = std::shared_ptr<const ObjectFiles>;

class OpenFiles {
 public:
  explicit OpenFiles(size_t max_objects) : max_objects_(max_objects < 1 ? 1 : max_objects) {}

  // A key that no other object of this process has.
  uint64_t NewKey();
  // Null when they are not open.
  ObjectFilesPtr Get(uint64_t key);
  void Insert(uint64_t key, ObjectFilesPtr files);
  void Erase(uint64_t key);
  // For whoever needs descriptors more.
  void CloseAll();
  size_t size() const;

 private:
  using Item = std::pair<uint64_t, ObjectFilesPtr>;
  mutable std::mutex mu_;
  const size_t max_objects_;
  uint64_t next_key_ = 1;
  std::list<Item> lru_;  // front: most recently used
  std::unordered_map<uint64_t, std::list<Item>::iterator> index_;
};

}  // namespace vrun::store
