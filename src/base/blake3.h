// SPDX-License-Identifier: Apache-2.0
// BLAKE3 digests (https://github.com/BLAKE3-team/BLAKE3-specs): the names of file content, docs/decisions/0026.
//
// Computed by the reference implementation in C and assembler, with the widest instructions that the CPU has.
#pragma once

#include <memory>
#include <string_view>

#include "base/digest.h"

namespace vrun {

Digest Blake3(std::string_view data);

// Incremental hashing. One thread at a time.
class Blake3Stream {
 public:
  Blake3Stream();
  ~Blake3Stream();
  Blake3Stream(Blake3Stream&&) noexcept;
  Blake3Stream& operator=(Blake3Stream&&) noexcept;
  void Update(std::string_view data);
  // Of all that came so far; more may come.
  Digest Finish() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vrun
