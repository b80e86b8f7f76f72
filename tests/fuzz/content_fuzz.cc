// SPDX-License-Identifier: Apache-2.0
// A home that sends arbitrary content, and a root with arbitrary ELF files.
//
// Input: a byte that selects, then Units, DirectoryObject or DirectoryPack, Resident or one of the trace messages as on
// the wire, a file, or a list of mappings. If the byte's upper bit is set, the digests of the content are corrected
// here, because otherwise nothing would pass the first of them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/files.h"
#include "base/hash/blake3.h"
#include "home/ahead/elf_file.h"
#include "home/ahead/trace.h"
#include "home/ahead/trace_store.h"
#include "home/root/shared_mappings.h"
#include "node/source/content_decode.h"
#include "proto/content.pb.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

std::string DigestsOf(std::string_view data) {
  std::string digests;
  for (size_t at = 0; at < data.size(); at += vrun::store::kUnitBytes) {
    digests += vrun::Blake3(data.substr(at, vrun::store::kUnitBytes)).view();
  }
  return digests;
}

void Units(const std::string& bytes, bool right) {
  vrun::v1::Units units;
  if (!units.ParseFromString(bytes)) return;
  for (auto& piece : *units.mutable_piece()) {
    if (right) piece.set_digests(DigestsOf(piece.data()));
  }
  // Whatever comes, accepted content matches its digests, and is no more than was requested.
  constexpr uint64_t kSize = 5 * vrun::store::kUnitBytes + 100;
  vrun::node::RangeAssembler range(kSize, vrun::store::kUnitBytes, kSize - vrun::store::kUnitBytes);
  if (!range.Add(units)) return;
  const bool complete = range.complete();
  uint64_t total = 0;
  for (const auto& unit : range.Take().units) {
    Check(vrun::Blake3(unit.data) == unit.digest);
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

void Pack(const std::string& bytes) {
  vrun::v1::DirectoryPack pack;
  if (!pack.ParseFromString(bytes)) return;
  auto objects = vrun::node::DecodePack(pack);
  Check(!objects || objects->size() == static_cast<size_t>(pack.raw_bytes_size()));
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

void Mappings(const std::string& bytes) {
  for (const auto& file : vrun::home::MappedFilesIn(bytes)) {
    Check(file.path.starts_with('/') && file.path.find('\n') == file.path.npos);
  }
}

void Traces(const std::string& bytes, bool right) {
  // Like a node reads a table and a frame, and home a record from a node or from its own disk.
  vrun::v1::TraceTable told;
  if (told.ParseFromString(bytes)) {
    if (auto table = vrun::node::DecodeTraceTable(told)) {
      for (const auto& frame : table->frames) {
        Check(!frame.empty());
        uint64_t units = 0;
        for (const auto& range : frame) {
          Check(range.file < table->files.size() && range.count > 0);
          Check(range.first + range.count <= vrun::store::UnitCount(table->files[range.file].version.size));
          units += range.count;
        }
        Check(units * vrun::store::kUnitBytes <= vrun::node::kMaxFrameBytes);
      }
    }
  }
  vrun::v1::TraceFrame frame;
  if (frame.ParseFromString(bytes)) {
    if (right) frame.set_digests(DigestsOf(frame.data()));
    vrun::vfs::TraceTable table;
    table.files.push_back({"/a", {1, 2, 3, 2 * vrun::store::kUnitBytes + 100}, {}});
    table.frames = {{{0, 2, 1}}, {{0, 0, 3}}};
    if (auto taken = vrun::node::DecodeTraceFrame(frame, table, frame.index())) {
      uint64_t at = 0;
      for (const auto& digest : taken->digests) {
        const std::string unit = taken->data.substr(at, taken->index == 0 ? 100 : vrun::store::kUnitBytes);
        Check(vrun::Blake3(unit) == digest);
        at += unit.size();
      }
      Check(at == taken->data.size());
    }
  }
  vrun::v1::TraceRecord record;
  if (record.ParseFromString(bytes)) {
    if (auto trace = vrun::home::ReadTrace(record)) {
      Check(trace->units() <= vrun::home::Trace::kMaxUnits);
      const auto merged = vrun::home::MergeTraces(*trace, *trace);
      Check(merged.units() <= trace->units());
      auto again = vrun::home::ReadTrace(vrun::home::WriteTrace(merged));
      Check(again && again->ranges == merged.ranges);
    }
  }
  (void)vrun::home::TraceStore::Decode(bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool right = (data[0] & 0x80) != 0;
  switch ((data[0] & 0x7f) % 6) {
    case 0: Units(bytes, right); break;
    case 1:
      Directory(bytes);
      Pack(bytes);
      break;
    case 2: Hints(bytes); break;
    case 3: Elf(bytes); break;
    case 5: Mappings(bytes); break;
    default: Traces(bytes, right);
  }
  return 0;
}
