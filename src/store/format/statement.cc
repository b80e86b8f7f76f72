// SPDX-License-Identifier: Apache-2.0
#include "store/format/statement.h"

namespace vrun::store {
namespace {

void Add(uint64_t n, std::string* text) {
  for (int i = 0; i < 8; ++i) text->push_back(static_cast<char>(n >> (8 * i)));
}

// Adds the length too, so that no two statements have the same text.
void Add(std::string_view bytes, std::string* text) {
  Add(uint64_t{bytes.size()}, text);
  *text += bytes;
}

}  // namespace

std::string UnitsStatement(std::string_view home_id, const tree::FileVersion& version, uint64_t offset,
                           std::string_view digests, std::string_view object_id) {
  std::string text = "vrun units 1\n";
  Add(home_id, &text);
  Add(version.dev, &text);
  Add(version.ino, &text);
  Add(static_cast<uint64_t>(version.ctime_ns), &text);
  Add(version.size, &text);
  Add(offset, &text);
  Add(digests, &text);
  Add(object_id, &text);
  return text;
}

void FrameNamer::Add(const tree::FileVersion& version, uint64_t first_unit, uint64_t count) {
  store::Add(version.dev, &text_);
  store::Add(version.ino, &text_);
  store::Add(static_cast<uint64_t>(version.ctime_ns), &text_);
  store::Add(version.size, &text_);
  store::Add(first_unit, &text_);
  store::Add(count, &text_);
}

std::string FrameStatement(std::string_view home_id, const Digest& name, std::string_view digests) {
  std::string text = "vrun frame 1\n";
  Add(home_id, &text);
  Add(name.view(), &text);
  Add(digests, &text);
  return text;
}

}  // namespace vrun::store
