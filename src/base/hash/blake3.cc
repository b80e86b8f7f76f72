// SPDX-License-Identifier: Apache-2.0
#include "base/hash/blake3.h"

#include <blake3.h>

namespace vrun {

Digest Blake3(std::string_view data) {
  blake3_hasher hasher;
  ::blake3_hasher_init(&hasher);
  ::blake3_hasher_update(&hasher, data.data(), data.size());
  Digest d;
  ::blake3_hasher_finalize(&hasher, d.bytes.data(), d.bytes.size());
  return d;
}

struct Blake3Sum::State {
  blake3_hasher hasher;
};

Blake3Sum::Blake3Sum() : state_(std::make_unique<State>()) { ::blake3_hasher_init(&state_->hasher); }
Blake3Sum::~Blake3Sum() = default;

void Blake3Sum::Add(std::string_view data) { ::blake3_hasher_update(&state_->hasher, data.data(), data.size()); }

Digest Blake3Sum::Sum() const {
  Digest d;
  ::blake3_hasher_finalize(&state_->hasher, d.bytes.data(), d.bytes.size());
  return d;
}

}  // namespace vrun
