// SPDX-License-Identifier: Apache-2.0
// The encoding of a live view's journal. The same machine writes and reads it: native byte order. Part of live_journal.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "vfs/live/data/live_journal.h"

namespace vrun::vfs {

uint32_t Crc32c(std::string_view data, uint32_t seed);

template <typename T>
void PutNumber(std::string* out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Takes values off the front; returns false and takes nothing if they are not all there.
class Taker {
 public:
  explicit Taker(std::string_view data) : data_(data) {}
  template <typename T>
  bool Number(T* value) {
    static_assert(std::is_arithmetic_v<T>);
    if (data_.size() < sizeof *value) return false;
    std::memcpy(value, data_.data(), sizeof *value);
    data_.remove_prefix(sizeof *value);
    return true;
  }
  bool Bool(bool* value) {
    uint8_t byte = 0;
    if (!Number(&byte) || byte > 1) return false;
    *value = byte == 1;
    return true;
  }
  bool Text(std::string* value) {
    uint32_t length = 0;
    const std::string_view before = data_;
    if (!Number(&length) || data_.size() < length) {
      data_ = before;
      return false;
    }
    value->assign(data_.substr(0, length));
    data_.remove_prefix(length);
    return true;
  }
  bool empty() const { return data_.empty(); }
  size_t size() const { return data_.size(); }

 private:
  std::string_view data_;
};

// Applies a frame to `state`. False: the frame does not parse.
bool ApplyFrame(std::string_view body, LiveState* state);

}  // namespace vrun::vfs
