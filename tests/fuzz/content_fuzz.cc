// SPDX-License-Identifier: Apache-2.0
// A home that sends anything as content, and a root with any ELF files.
//
// Input: a byte that chooses, then Units, DirectoryObject or Resident as they come from the wire, or a file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/files.h"
#include "home/elf_file.h"
#include "node/content_decode.h"
#include "proto/content.pb.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

void Units(const std::string& bytes) {
  vrun::v1::Units units;
  if (!units.ParseFromString(bytes)) return;
  // Whatever comes, what was taken is what its digests say, and no more than was asked for.
  constexpr uint64_t kSize = 5 * vrun::store::kUnitBytes + 100;
  vrun::node::RangeAssembler range(kSize, vrun::store::kUnitBytes, kSize - vrun::store::kUnitBytes);
  if (!range.Add(units)) return;
  const bool complete = range.complete();
  uint64_t total = 0;
  for (const auto& unit : range.Take().units) {
    Check(vrun::Sha256(unit.data) == unit.digest);
    total += unit.data.size();
  }
  Check(total <= kSize - vrun::store::kUnitBytes && complete == (total == kSize - vrun::store::kUnitBytes));
}

void Directory(const std::string& bytes) {
  vrun::v1::DirectoryObject part;
  if (!part.ParseFromString(bytes)) return;
  vrun::node::DirectoryAssembler directory;
  auto object = directory.Add(part, nullptr);
  if (object && *object) Check((*object)->directory->digest().view() == part.digest());
}

void Hints(const std::string& bytes) {
  vrun::v1::Resident resident;
  if (!resident.ParseFromString(bytes)) return;
  auto files = vrun::node::DecodeResident(resident);
  if (!files) return;
  for (const auto& file : *files) {
    Check(file.path.starts_with('/'));
    uint64_t at = 0;
    for (const auto& [first, end] : file.ranges) {
      Check(at <= first && first < end && end <= file.version.size);
      at = end;
    }
  }
}

void Elf(const std::string& bytes) {
  static const int fd = ::memfd_create("elf", MFD_CLOEXEC);
  Check(::ftruncate(fd, 0) == 0 && vrun::PwriteAll(fd, bytes, 0));
  (void)vrun::home::ReadElfNeeds(fd);
  std::vector<std::pair<uint64_t, uint64_t>> ranges{{0, bytes.size()}};
  vrun::home::KeepTablesAndData(fd, vrun::store::kUnitBytes, &ranges);
  for (const auto& [first, end] : ranges) Check(first < end && end <= bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: Units(bytes); break;
    case 1: Directory(bytes); break;
    case 2: Hints(bytes); break;
    default: Elf(bytes);
  }
  return 0;
}
