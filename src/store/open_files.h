// SPDX-License-Identifier: Apache-2.0
// An LRU of the few descriptors that the store keeps open.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::store {

// The files of one object. Whoever holds the pointer may use the descriptors even after the LRU dropped them.
struct ObjectFiles {
  UniqueFd content;                // read and write
  UniqueFd map;                    // read and write
  std::array<uint8_t, 16> life{};  // nonce of the map
};
using ObjectFilesPtr = std::shared_ptr<const ObjectFiles>;

class OpenFiles {
 public:
  explicit OpenFiles(size_t max_objects) : max_objects_(max_objects < 1 ? 1 : max_objects) {}

  // A key unique in this process.
  uint64_t NewKey();
  // Null when they are not open.
  ObjectFilesPtr Get(uint64_t key);
  void Insert(uint64_t key, ObjectFilesPtr files);
  void Erase(uint64_t key);
  // Frees descriptors for other uses.
  void CloseAll();
  size_t size() const;

 private:
  using Item = std::pair<uint64_t, ObjectFilesPtr>;
  mutable Mutex mu_;
  const size_t max_objects_;
  uint64_t next_key_ VRUN_GUARDED_BY(mu_) = 1;
  std::list<Item> lru_ VRUN_GUARDED_BY(mu_);  // front: most recently used
  std::unordered_map<uint64_t, std::list<Item>::iterator> index_ VRUN_GUARDED_BY(mu_);
};

}  // namespace vrun::store
