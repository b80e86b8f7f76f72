// SPDX-License-Identifier: Apache-2.0
// Arbitrary directory objects, root entries, known ids and mount tables. The first byte selects the parser. Accepted
// input must be canonical: encoding it again gives the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tree/codec.h"
#include "tree/scan/mounts.h"
#include "tree/tree.h"

namespace vrun::tree {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void FuzzDirectory(std::string_view bytes) {
  auto parsed = Directory::Parse(std::string(bytes));
  if (!parsed) return Require(parsed.error().code() == Code::kCorrupt);
  const Directory& directory = **parsed;
  Require(directory.encoded() == bytes && directory.digest() == Sha256(bytes));
  std::vector<Entry> entries;
  for (size_t i = 0; i < directory.size(); ++i) {
    entries.push_back(directory.At(i));
    Require(directory.Find(directory.NameAt(i)) == i && entries.back().name == directory.NameAt(i));
    Require(directory.Child(i) == nullptr);
  }
  Require(Directory::Make(std::move(entries), nullptr)->encoded() == bytes);
}

void FuzzEntry(std::string_view bytes) {
  std::string_view rest = bytes;
  auto entry = DecodeEntry(&rest);
  if (!entry) return Require(rest == bytes);
  std::string again;
  EncodeEntry(*entry, &again);
  Require(again + std::string(rest) == bytes);
}

void FuzzRoot(std::string_view bytes) {
  auto root = DecodeRoot(bytes, Sha256(bytes));
  if (root) Require(EncodeRoot(*root) == bytes);
}

void FuzzKnownIds(std::string_view bytes) {
  auto ids = DecodeKnownIds(bytes, 1000);
  if (ids) Require(EncodeKnownIds(*ids) == bytes);
}

}  // namespace
}  // namespace vrun::tree

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::tree;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0: FuzzDirectory(bytes); break;
    case 1: FuzzEntry(bytes); break;
    case 2: FuzzRoot(bytes); break;
    case 3: FuzzKnownIds(bytes); break;
    default: (void)MountTable::Parse(bytes, "/home/u");
  }
  return 0;
}
