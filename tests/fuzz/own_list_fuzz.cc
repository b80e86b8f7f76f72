// SPDX-License-Identifier: Apache-2.0
// A person's list of private files: whatever it holds, what comes of it are absolute paths other than "/".
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "home/root/secrets/own_list.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto list = vrun::home::ParseOwnList({reinterpret_cast<const char*>(data), size}, {"/root", "/home/ann"});
  for (const auto* paths : {&list.withheld, &list.opened}) {
    for (const std::string& path : *paths) {
      if (path.size() < 2 || path.front() != '/' || path.back() == '/') __builtin_trap();
    }
  }
  return 0;
}
