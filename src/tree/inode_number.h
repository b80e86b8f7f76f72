// SPDX-License-Identifier: Apache-2.0
// Inode numbers as views show them, and as they come home again in a job's writes.
#pragma once

#include <cstdint>

namespace vrun::tree {

// A view is one mount with one st_dev. So the inode number of a file on another device than the root gets a mark of its
// device: in bits 32 to 59, where two of some hundred devices rarely collide. If the number itself exceeds 32 bits (XFS
// of several TB), in bits 52 to 59. The bits above belong to overlayfs (xino).
constexpr uint64_t ShownInode(uint64_t dev, uint64_t ino, uint64_t root_dev) {
  if (dev == root_dev) return ino;
  const uint64_t hash = dev * 0x9e3779b97f4a7c15u >> 36;
  return ino >> 32 == 0 ? ino | (hash | 1) << 32 : ino ^ ((hash & 0xff) | 1) << 52;
}

}  // namespace vrun::tree
