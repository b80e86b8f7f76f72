// SPDX-License-Identifier: Apache-2.0
// Tokens, which people paste and strangers invent: what is read is what Text writes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "people/members.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto token = vrun::people::ParseToken(text);
  if (token && token->Text() != text) __builtin_trap();
  return 0;
}
