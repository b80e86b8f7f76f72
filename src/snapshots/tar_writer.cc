// SPDX-License-Identifier: Apache-2.0
#include "snapshots/tar_writer.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/escape.h"

namespace vrun::snapshots {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kBuffer = 1u << 20;
constexpr size_t kHole = 4096;  // smaller holes are written as zeros

struct UstarHeader {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6], version[2],
      user[32], group[32], major[8], minor[8], prefix[155], padding[12];
};
static_assert(sizeof(UstarHeader) == kBlock);

// False if it does not fit; then a pax record carries it.
template <size_t N>
bool Octal(char (&field)[N], uint64_t value) {
  char text[32];
  const int n =
      std::snprintf(text, sizeof text, "%0*llo", static_cast<int>(N - 1), static_cast<unsigned long long>(value));
  const bool fits = n == static_cast<int>(N - 1);
  std::memcpy(field, fits ? text : std::string(N - 1, '0').c_str(), N);
  return fits;
}

template <size_t N>
bool Text(char (&field)[N], const std::string& text) {
  std::memcpy(field, text.data(), std::min(N, text.size()));
  return text.size() <= N;
}

// "LENGTH KEY=VALUE\n"; the length includes its own digits.
std::string PaxRecord(const std::string& key, const std::string& value) {
  const size_t rest = key.size() + value.size() + 3;
  size_t length = rest + 1;
  while (length != rest + std::to_string(length).size()) length = rest + std::to_string(length).size();
  return std::to_string(length) + " " + key + "=" + value + "\n";
}

std::string Seconds(int64_t ns) {
  // Floor, so that the fraction is also positive before 1970.
  int64_t s = ns / 1'000'000'000, rest = ns % 1'000'000'000;
  if (rest < 0) {
    --s;
    rest += 1'000'000'000;
  }
  if (s < 0 && rest > 0) {  // "-1.25" counts away from zero
    ++s;
    rest = 1'000'000'000 - rest;
  }
  char text[64];
  std::snprintf(text, sizeof text, "%s%lld.%09lld", s == 0 && ns < 0 ? "-" : "", static_cast<long long>(s),
                static_cast<long long>(rest));
  return text;
}

bool Zeros(const char* data, size_t n) { return n == 0 || (data[0] == 0 && std::memcmp(data, data + 1, n - 1) == 0); }

// The non-zero parts of a file, in whole blocks of kHole.
Result<std::vector<std::pair<uint64_t, uint64_t>>> DataOf(uint64_t size, const TarWriter::Reader& read) {
  std::vector<std::pair<uint64_t, uint64_t>> data;
  std::string buffer(kBuffer, '\0');
  for (uint64_t offset = 0; offset < size;) {
    VRUN_ASSIGN(const size_t n, read(offset, buffer.data(), std::min<uint64_t>(buffer.size(), size - offset)));
    if (n == 0) return Error(Code::kCorrupt, "the file ends before its size");
    for (size_t at = 0; at < n; at += kHole) {
      const size_t length = std::min(kHole, n - at);
      if (Zeros(buffer.data() + at, length)) continue;
      if (!data.empty() && data.back().first + data.back().second == offset + at) {
        data.back().second += length;
      } else {
        data.emplace_back(offset + at, length);
      }
    }
    offset += n;
  }
  return data;
}

}  // namespace

Status TarWriter::Add(const std::string& path, const tree::Entry& entry, const Reader& read) {
  const std::string name = path.substr(1);
  if (name.empty() || S_ISSOCK(entry.mode)) return {};
  if (!entry.is_directory() && entry.nlink > 1) {
    const auto [first, fresh] = linked_.emplace(std::pair(entry.dev, entry.ino), name);
    if (!fresh) return Header('1', name, first->second, entry, 0, {});
  }
  if (entry.is_directory()) return Header('5', name + "/", "", entry, 0, {});
  if (entry.is_symlink()) return Header('2', name, entry.target, entry, 0, {});
  if (S_ISCHR(entry.mode)) return Header('3', name, "", entry, 0, {});
  if (S_ISBLK(entry.mode)) return Header('4', name, "", entry, 0, {});
  if (S_ISFIFO(entry.mode)) return Header('6', name, "", entry, 0, {});
  const Status added = AddFile(name, entry, read);
  if (!added) return added.error().With(Escape(path));
  return {};
}

Status TarWriter::AddFile(const std::string& name, const tree::Entry& entry, const Reader& read) {
  if (entry.size > 0 && entry.blocks * 512 < entry.size) {
    VRUN_ASSIGN(const auto data, DataOf(entry.size, read));
    uint64_t bytes = 0;
    for (const auto& part : data) bytes += part.second;
    if (bytes < entry.size) return AddSparse(name, entry, read, data);
  }
  VRUN_TRY(Header('0', name, "", entry, entry.size, {}));
  VRUN_TRY(Copy(read, 0, entry.size));
  return Pad(entry.size);
}

// "GNU.sparse" version 1.0: the map is in front of the data, in decimal lines, padded to a block.
Status TarWriter::AddSparse(const std::string& name, const tree::Entry& entry, const Reader& read,
                            const std::vector<std::pair<uint64_t, uint64_t>>& data) {
  std::string map;
  uint64_t bytes = 0;
  std::vector<std::pair<uint64_t, uint64_t>> parts = data;
  // A part of zero bytes marks the end of the file.
  if (parts.empty() || parts.back().first + parts.back().second < entry.size) parts.emplace_back(entry.size, 0);
  map += std::to_string(parts.size()) + "\n";
  for (const auto& [offset, length] : parts) {
    map += std::to_string(offset) + "\n" + std::to_string(length) + "\n";
    bytes += length;
  }
  map.resize((map.size() + kBlock - 1) / kBlock * kBlock, '\0');
  const size_t slash = name.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : name.substr(0, slash + 1);
  const std::string base = slash == std::string::npos ? name : name.substr(slash + 1);
  VRUN_TRY(Header('0', directory + "GNUSparseFile.0/" + base, "", entry, map.size() + bytes,
                  {{"GNU.sparse.major", "1"},
                   {"GNU.sparse.minor", "0"},
                   {"GNU.sparse.name", name},
                   {"GNU.sparse.realsize", std::to_string(entry.size)}}));
  VRUN_TRY(sink_(map));
  for (const auto& [offset, length] : parts) VRUN_TRY(Copy(read, offset, length));
  return Pad(bytes);
}

Status TarWriter::Header(char type, const std::string& name, const std::string& link, const tree::Entry& entry,
                         uint64_t size, std::map<std::string, std::string> pax) {
  UstarHeader header{};
  if (!Text(header.name, name)) pax["path"] = name;
  if (!Text(header.link, link)) pax["linkpath"] = link;
  Octal(header.mode, entry.mode & 07777);
  if (!Octal(header.uid, entry.uid)) pax["uid"] = std::to_string(entry.uid);
  if (!Octal(header.gid, entry.gid)) pax["gid"] = std::to_string(entry.gid);
  if (!Octal(header.size, size)) pax["size"] = std::to_string(size);
  const bool whole = entry.mtime_ns >= 0 && entry.mtime_ns % 1'000'000'000 == 0;
  const bool fits = Octal(header.mtime, static_cast<uint64_t>(std::max<int64_t>(entry.mtime_ns, 0)) / 1'000'000'000);
  if (!whole || !fits) pax["mtime"] = Seconds(entry.mtime_ns);
  if (type == '3' || type == '4') {
    Octal(header.major, ::major(entry.rdev));
    Octal(header.minor, ::minor(entry.rdev));
  }
  // A link shares the attributes of its target.
  for (const auto& [key, value] : entry.xattrs) {
    if (type != '1') pax["SCHILY.xattr." + key] = value;
  }
  header.type = type;
  std::memcpy(header.magic, "ustar", 6);
  std::memcpy(header.version, "00", 2);
  if (!pax.empty()) {
    std::string records;
    for (const auto& [key, value] : pax) records += PaxRecord(key, value);
    tree::Entry plain;
    plain.mode = 0644;
    VRUN_TRY(Header('x', "PaxHeaders/" + name.substr(0, 80), "", plain, records.size(), {}));
    VRUN_TRY(sink_(records));
    VRUN_TRY(Pad(records.size()));
  }
  std::memset(header.checksum, ' ', sizeof header.checksum);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  unsigned sum = 0;
  for (size_t i = 0; i < sizeof header; ++i) sum += bytes[i];
  std::snprintf(header.checksum, sizeof header.checksum, "%06o", sum);
  return sink_({reinterpret_cast<const char*>(&header), sizeof header});
}

Status TarWriter::Copy(const Reader& read, uint64_t offset, uint64_t length) {
  std::string buffer(std::min<uint64_t>(kBuffer, length), '\0');
  while (length > 0) {
    VRUN_ASSIGN(const size_t n, read(offset, buffer.data(), std::min<uint64_t>(buffer.size(), length)));
    if (n == 0) return Error(Code::kCorrupt, "the file ends before its size");
    VRUN_TRY(sink_(std::string_view(buffer).substr(0, n)));
    offset += n;
    length -= n;
  }
  return {};
}

Status TarWriter::Pad(uint64_t size) {
  const size_t rest = size % kBlock;
  return rest == 0 ? Status() : sink_(std::string(kBlock - rest, '\0'));
}

Status TarWriter::Finish() { return sink_(std::string(2 * kBlock, '\0')); }

}  // namespace vrun::snapshots
