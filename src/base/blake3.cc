// SPDX-License-Identifier: Apache-2.0
#include "base/blake3.h"

#include <blake3.h>

namespace vrun {

struct Blake3Stream::Impl {
  blake3_hasher hasher;
};

Blake3Stream::Blake3Stream() : impl_(std::make_unique<Impl>()) { ::blake3_hasher_init(&impl_->hasher); }
Blake3Stream::~Blake3Stream() = default;
Blake3Stream::Blake3Stream(Blake3Stream&&) noexcept = default;
Blake3Stream& Blake3Stream::operator=(Blake3Stream&&) noexcept = default;

void Blake3Stream::Update(std::string_view data) { ::blake3_hasher_update(&impl_->hasher, data.data(), data.size()); }

Digest Blake3Stream::Finish() const {
  Digest d;
  ::blake3_hasher_finalize(&impl_->hasher, d.bytes.data(), d.bytes.size());
  return d;
}

Digest Blake3(std::string_view data) {
  blake3_hasher hasher;
  ::blake3_hasher_init(&hasher);
  ::blake3_hasher_update(&hasher, data.data(), data.size());
  Digest d;
  ::blake3_hasher_finalize(&hasher, d.bytes.data(), d.bytes.size());
  return d;
}

}  // namespace vrun
