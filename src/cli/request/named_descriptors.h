// SPDX-License-Identifier: Apache-2.0
// Descriptors that a command's words name: the shell's `cat <(echo hi)` is `cat /dev/fd/63`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::cli {

struct NamedDescriptor {
  int number = 0;       // above 2, and open in this process since it was started
  bool output = false;  // open for writing
  std::string word;     // that names it
};

// Those that can be handed to the command: pipes and files that are open in one direction. kInvalid: a word is nothing
// but the name of another open one (or ends in it: --file=/dev/fd/9), or there are more than 16. What is not open is
// left to the command to complain about.
Result<std::vector<NamedDescriptor>> FindNamedDescriptors(std::span<const std::string> words);

}  // namespace vrun::cli
