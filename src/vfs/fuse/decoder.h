// SPDX-License-Identifier: Apache-2.0
// The body of one FUSE packet, read front to back. nullopt where the packet is too short.
#pragma once

#include <cstring>
#include <optional>
#include <string_view>

namespace vrun::vfs {

struct Decoder {
  std::string_view rest;

  template <typename T>
  std::optional<T> Take() {
    if (rest.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, rest.data(), sizeof value);
    rest.remove_prefix(sizeof value);
    return value;
  }
  // A name, terminated by NUL inside the packet.
  std::optional<std::string_view> TakeName() {
    const size_t end = rest.find('\0');
    if (end == std::string_view::npos || end == 0) return std::nullopt;
    const std::string_view name = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return name;
  }
};

}  // namespace vrun::vfs
