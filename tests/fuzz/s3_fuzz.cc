// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes from an S3 store and from its configuration files: objects, error documents, key files, endpoints.
// The first byte selects the parser. An object that was not sealed with the key never opens, and neither does a sealed
// object that was changed.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/hash/blake3.h"
#include "s3/answer.h"
#include "s3/bucket.h"
#include "s3/extent.h"

namespace vrun::s3 {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

const std::string& Sealed() {
  static const std::string content(70'000, 'x');
  static const std::string object = [] {
    const std::string_view view = content;
    return SealExtent("key", "name",
                      {ExtentUnit{Blake3(view.substr(0, 65536)), view.substr(0, 65536)}, std::nullopt,
                       ExtentUnit{Blake3(view.substr(65536)), view.substr(65536)}});
  }();
  return object;
}

// Overwrites a part of one of our objects with these bytes, at the position in the first two.
void FuzzExtent(std::string_view bytes) {
  Require(!ExtentTable::Open("key", "name", 1 + bytes.size() % 64, bytes));
  if (bytes.size() < 3) return;
  std::string object = Sealed();
  const size_t at = (static_cast<uint8_t>(bytes[0]) * 256u + static_cast<uint8_t>(bytes[1])) % object.size();
  object.replace(at, std::min(bytes.size() - 2, object.size() - at), bytes.substr(2));
  auto table = ExtentTable::Open("key", "name", 3, object);
  Require(!table || object.substr(0, ExtentHeaderBytes(3)) == Sealed().substr(0, ExtentHeaderBytes(3)));
  if (!table) return;
  auto unit = table->OpenUnit(0, std::string_view(object).substr(table->OffsetOf(0), table->BytesOf(0)), 65536);
  Require(!unit || *unit == std::string(65536, 'x'));
}

void FuzzBucket(std::string_view bytes) {
  Bucket bucket{.endpoint = std::string(bytes), .name = "bucket"};
  if (!Normalize(&bucket)) return;
  const std::string once = bucket.endpoint;
  Require(Normalize(&bucket) && bucket.endpoint == once);
  Require(!bucket.host().empty() && bucket.base().find('@') == std::string::npos);
}

}  // namespace
}  // namespace vrun::s3

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::s3;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: FuzzExtent(bytes); break;
    case 1: FuzzBucket(bytes); break;
    case 2: (void)ParseKeys(bytes, "file"); break;
    case 3:
      Require(FromAnswer(300 + static_cast<long>(size % 300), bytes, "get").message().find('\n') == std::string::npos);
      break;
  }
  return 0;
}
