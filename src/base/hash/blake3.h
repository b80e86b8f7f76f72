// SPDX-License-Identifier: Apache-2.0
// BLAKE3 digests (https://github.com/BLAKE3-team/BLAKE3-specs): the names of file content, docs/decisions/0026.
//
// Computed by the reference implementation in C and assembler, with the CPU's widest instructions.
#pragma once

#include <memory>
#include <string_view>

#include "base/hash/digest.h"

namespace vrun {

Digest Blake3(std::string_view data);

// The digest of what comes in parts. One thread.
class Blake3Sum {
 public:
  Blake3Sum();
  ~Blake3Sum();
  void Add(std::string_view data);
  Digest Sum() const;  // of all that was added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vrun
