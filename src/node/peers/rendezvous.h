// SPDX-License-Identifier: Apache-2.0
// Assigns each piece of content to one of several nodes: highest random weight (Thaler and Ravishankar 1998). All nodes
// compute the same result from the same list. A node that joins or leaves moves only its own share. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/hash/digest.h"
#include "store/format/object_id.h"
#include "tree/tree.h"

namespace vrun::node {

// Neighbouring units with one owner: a whole small file, else 256 KiB. Large enough that a request is cheap, small
// enough that a reader's window comes from several nodes at once.
inline uint64_t GroupUnits(uint64_t file_size) {
  if (file_size <= store::kWholeFileLimit) return store::kWholeFileLimit / store::kUnitBytes;
  return (256u << 10) / store::UnitBytes(file_size);
}

// The finalizer of splitmix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of x.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The key of one group of one version of a file.
inline uint64_t GroupKey(const tree::FileVersion& version, uint64_t group) {
  uint64_t h = Mix(version.dev);
  h = Mix(h ^ version.ino);
  h = Mix(h ^ static_cast<uint64_t>(version.ctime_ns));
  h = Mix(h ^ version.size);
  return Mix(h ^ group);
}

// A member's seed, made of properties that stay the same when home restarts.
inline uint64_t MemberSeed(std::string_view name, std::string_view address) {
  const Digest digest = Sha256(std::string(name) + '\n' + std::string(address));
  return DigestHash()(digest);
}

// The member with the highest weight owns the key.
inline uint64_t Weight(uint64_t key, uint64_t seed) { return Mix(key ^ seed); }

}  // namespace vrun::node
