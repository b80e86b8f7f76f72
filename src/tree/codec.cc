// SPDX-License-Identifier: Apache-2.0
#include "tree/codec.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "base/escape.h"
#include "tree/codec_internal.h"

namespace vrun::tree {
namespace {

// Reads the fields of one entry in order; the first invalid one makes all later reads fail.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view rest() const { return bytes_; }
  const char* failure() const { return failure_; }
  bool ok() const { return failure_ == nullptr; }
  void Fail(const char* why) {
    if (ok()) failure_ = why;
    bytes_ = {};
  }

  uint64_t Varint(uint64_t max) {
    uint64_t value = 0;
    size_t i = 0;
    for (; i < bytes_.size() && i < 10; ++i) {
      const auto byte = static_cast<uint8_t>(bytes_[i]);
      if (i == 9 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte & 0x80) continue;
      if (byte == 0 && i > 0) {
        Fail("a number is not in its shortest form");
        return 0;
      }
      if (value > max) {
        Fail("a number is out of bounds");
        return 0;
      }
      bytes_.remove_prefix(i + 1);
      return value;
    }
    Fail(i >= 9 ? "a number is too long" : "it ends early");
    return 0;
  }

  int64_t Zigzag() {
    const uint64_t v = Varint(std::numeric_limits<uint64_t>::max());
    return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1);
  }

  std::string_view Bytes(size_t n) {
    if (n > bytes_.size()) {
      Fail("it ends early");
      return {};
    }
    std::string_view out = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return out;
  }

  std::string_view Sized(size_t min, size_t max) {
    const uint64_t n = Varint(std::numeric_limits<uint64_t>::max());
    if (ok() && (n < min || n > max)) Fail("a length is out of bounds");
    return Bytes(static_cast<size_t>(n));
  }

 private:
  std::string_view bytes_;
  const char* failure_ = nullptr;
};

constexpr uint64_t kU32 = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kU64 = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kI64 = std::numeric_limits<int64_t>::max();

void ReadIdentity(Reader& r, Entry& e) {
  e.ctime_ns = r.Zigzag();
  e.dev = r.Varint(kU64);
  e.ino = r.Varint(kU64);
  e.nlink = static_cast<uint32_t>(r.Varint(kU32));
}

void ReadTail(Reader& r, Entry& e) {
  switch (e.mode & S_IFMT) {
    case S_IFDIR:
      if (auto digest = Digest::FromBytes(r.Bytes(32))) e.child = *digest;
      e.nlink = 0;
      e.dev = r.Varint(kU64);
      e.ino = r.Varint(kU64);
      break;
    case S_IFREG:
      e.size = r.Varint(kI64);
      e.blocks = r.Varint(kI64);
      ReadIdentity(r, e);
      break;
    case S_IFLNK:
      e.target = r.Sized(1, kMaxTargetBytes);
      if (e.target.find('\0') != std::string::npos) r.Fail("a link's target holds a NUL");
      e.size = e.target.size();
      ReadIdentity(r, e);
      break;
    case S_IFCHR:
    case S_IFBLK:
      e.rdev = r.Varint(kU64);
      ReadIdentity(r, e);
      break;
    case S_IFIFO:
    case S_IFSOCK:
      e.rdev = r.Varint(0);
      ReadIdentity(r, e);
      break;
    default: r.Fail("it is of no known type");
  }
}

void ReadXattrs(Reader& r, Entry& e) {
  const uint64_t count = r.Varint(kMaxXattrs);
  for (uint64_t i = 0; i < count && r.ok(); ++i) {
    std::string_view name = r.Sized(1, kMaxNameBytes);
    std::string_view value = r.Sized(0, kMaxXattrValueBytes);
    if (!r.ok()) return;
    if (!CarriedXattr(name)) return r.Fail("an xattr has a name that no tree carries");
    if (i > 0 && name <= e.xattrs.back().first) return r.Fail("its xattrs are not in order");
    e.xattrs.emplace_back(name, value);
  }
}

Entry ReadEntryBytes(Reader& r, bool root) {
  Entry e;
  std::string_view name = r.Sized(root ? 0 : 1, root ? 0 : kMaxNameBytes);
  if (!root && r.ok() && !ValidName(name)) r.Fail("it has a name that no file can have");
  e.name = name;
  e.mode = static_cast<uint32_t>(r.Varint(0177777));
  e.uid = static_cast<uint32_t>(r.Varint(kU32));
  e.gid = static_cast<uint32_t>(r.Varint(kU32));
  e.mtime_ns = r.Zigzag();
  if (r.ok()) ReadTail(r, e);
  if (r.ok()) ReadXattrs(r, e);
  return e;
}

void PutVarint(uint64_t v, std::string* out) {
  char buffer[10];
  size_t n = 0;
  while (v >= 0x80) {
    buffer[n++] = static_cast<char>(v | 0x80);
    v >>= 7;
  }
  buffer[n++] = static_cast<char>(v);
  out->append(buffer, n);
}

void PutZigzag(int64_t v, std::string* out) {
  PutVarint(static_cast<uint64_t>(v) << 1 ^ static_cast<uint64_t>(v >> 63), out);
}

void PutSized(std::string_view bytes, std::string* out) {
  PutVarint(bytes.size(), out);
  out->append(bytes);
}

void PutIdentity(const Entry& e, std::string* out) {
  PutZigzag(e.ctime_ns, out);
  PutVarint(e.dev, out);
  PutVarint(e.ino, out);
  PutVarint(e.nlink, out);
}

Error CorruptEntry(std::string_view name, const char* why) {
  return Error(Code::kCorrupt, "directory object: entry \"" + Escape(name) + "\": " + why);
}

}  // namespace

bool ValidName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

bool CarriedXattr(std::string_view name) {
  if (name.find('\0') != std::string_view::npos) return false;
  return (name.starts_with("user.") && name.size() > 5) || name == "security.capability" ||
         name == "system.posix_acl_access" || name == "system.posix_acl_default";
}

void EncodeEntry(const Entry& e, std::string* out) {
  PutSized(e.name, out);
  PutVarint(e.mode, out);
  PutVarint(e.uid, out);
  PutVarint(e.gid, out);
  PutZigzag(e.mtime_ns, out);
  switch (e.mode & S_IFMT) {
    case S_IFDIR:
      out->append(e.child.view());
      PutVarint(e.dev, out);
      PutVarint(e.ino, out);
      break;
    case S_IFREG:
      PutVarint(e.size, out);
      PutVarint(e.blocks, out);
      PutIdentity(e, out);
      break;
    case S_IFLNK:
      PutSized(e.target, out);
      PutIdentity(e, out);
      break;
    default: PutVarint(e.rdev, out); PutIdentity(e, out);
  }
  PutVarint(e.xattrs.size(), out);
  for (const auto& [name, value] : e.xattrs) {
    PutSized(name, out);
    PutSized(value, out);
  }
}

Result<Entry> DecodeEntry(std::string_view* bytes) {
  Reader reader(*bytes);
  Entry entry = ReadEntryBytes(reader, /*root=*/false);
  if (!reader.ok()) return CorruptEntry(entry.name, reader.failure());
  *bytes = reader.rest();
  return entry;
}

std::string EncodeRoot(const Entry& root) {
  std::string out;
  EncodeEntry(root, &out);
  return out;
}

Result<Entry> DecodeRoot(std::string_view bytes, const Digest& id) {
  if (Sha256(bytes) != id) return Error(Code::kCorrupt, "root entry: its digest is not the tree's id");
  Reader reader(bytes);
  Entry root = ReadEntryBytes(reader, /*root=*/true);
  if (!reader.ok()) return Error(Code::kCorrupt, std::string("root entry: ") + reader.failure());
  if (!root.is_directory()) return Error(Code::kCorrupt, "root entry: it is no directory");
  if (!reader.rest().empty()) return Error(Code::kCorrupt, "root entry: bytes follow it");
  return root;
}

Result<uint64_t> DecodeCount(std::string_view* bytes) {
  if (!bytes->starts_with(kDirectoryMagic))
    return Error(Code::kCorrupt, "directory object: it does not start with VRD1");
  Reader reader(bytes->substr(kDirectoryMagic.size()));
  const uint64_t count = reader.Varint(kU32);
  // The shortest entry has 10 bytes: an impossible count must not make us allocate memory.
  if (reader.ok() && count > reader.rest().size() / 10) reader.Fail("its count of entries is out of bounds");
  if (!reader.ok()) return Error(Code::kCorrupt, std::string("directory object: ") + reader.failure());
  *bytes = reader.rest();
  return count;
}

void EncodeCount(uint64_t count, std::string* out) {
  out->append(kDirectoryMagic);
  PutVarint(count, out);
}

Peek PeekEntry(std::string_view entry) {
  // Trusted bytes: made by EncodeEntry or checked by DecodeEntry.
  const char* p = entry.data();
  auto varint = [&p] {
    uint64_t value = 0;
    int shift = 0;
    for (;; shift += 7) {
      const auto byte = static_cast<uint8_t>(*p++);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return value;
    }
  };
  Peek peek;
  p += varint();
  peek.mode = static_cast<uint32_t>(varint());
  varint();
  varint();
  varint();
  switch (peek.mode & S_IFMT) {
    case S_IFDIR:
      peek.digest_at = static_cast<size_t>(p - entry.data());
      p += sizeof Digest::bytes;
      varint();
      varint();
      peek.xattrs = varint() != 0;
      return peek;
    case S_IFREG:
      peek.size = varint();
      varint();
      break;
    case S_IFLNK: p += varint(); break;
    default: varint();
  }
  varint();
  peek.dev = varint();
  peek.ino = varint();
  peek.nlink = static_cast<uint32_t>(varint());
  peek.xattrs = varint() != 0;
  return peek;
}

std::string_view PeekName(const char* entry) {
  const auto first = static_cast<uint8_t>(*entry);
  // At most 255: one or two bytes.
  if (first < 0x80) return {entry + 1, first};
  return {entry + 2, static_cast<size_t>(first & 0x7f) | static_cast<size_t>(static_cast<uint8_t>(entry[1])) << 7};
}

std::string EncodeKnownIds(const std::vector<KnownId>& ids) {
  std::string out;
  uint64_t next = 0;
  for (const KnownId& known : ids) {
    VRUN_CHECK(known.index >= next && known.id.size() == kObjectIdBytes);
    PutVarint(known.index - next, &out);
    out += known.id;
    next = static_cast<uint64_t>(known.index) + 1;
  }
  return out;
}

Result<std::vector<KnownId>> DecodeKnownIds(std::string_view bytes, size_t entries) {
  std::vector<KnownId> ids;
  Reader reader(bytes);
  uint64_t next = 0;
  while (!reader.rest().empty()) {
    const uint64_t index = next + reader.Varint(kU32);
    std::string_view id = reader.Bytes(kObjectIdBytes);
    if (reader.ok() && index >= entries) reader.Fail("an index is out of bounds");
    if (!reader.ok()) break;
    ids.push_back({static_cast<uint32_t>(index), std::string(id)});
    next = index + 1;
  }
  if (!reader.ok()) return Error(Code::kCorrupt, std::string("known object ids: ") + reader.failure());
  return ids;
}

}  // namespace vrun::tree
