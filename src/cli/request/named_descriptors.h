// SPDX-License-Identifier: Apache-2.0
// Descriptors named in a command's words: the shell's `cat <(echo hi)` is `cat /dev/fd/63`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::cli {

struct NamedDescriptor {
  int number = 0;       // above 2, and open since this process was started
  bool output = false;  // open for writing
  std::string word;     // the word that names it
};

// The named descriptors that can be passed to the command: pipes and files that are open in one direction. kInvalid: a
// word is the name of another kind of open descriptor (or ends in it: --file=/dev/fd/9), or there are more than 16.
// Descriptors that are not open are ignored; the command will report them.
Result<std::vector<NamedDescriptor>> FindNamedDescriptors(std::span<const std::string> words);

}  // namespace vrun::cli
