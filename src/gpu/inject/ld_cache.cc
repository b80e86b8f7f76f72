// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/ld_cache.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

namespace vrun::gpu {
namespace {

constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::string_view kNewMagic = "glibc-ld.so.cache1.1";
constexpr size_t kMostName = 255, kMostPath = 4096;
// Entries may share strings, so a small file could describe very much text.
constexpr size_t kMostText = 64u << 20;

struct OldHeader {
  char magic[12];  // kOldMagic and a byte of padding
  uint32_t count;
};
struct OldEntry {
  int32_t flags;
  uint32_t key, value;
};
struct NewHeader {
  char magic[20];
  uint32_t count;
  uint32_t strings_size;
  uint8_t flags;  // the lowest two bits: byte order
  uint8_t padding[3];
  uint32_t extensions;  // offset; 0: none
  uint32_t unused[3];
};
struct NewEntry {
  int32_t flags;
  uint32_t key, value;
  uint32_t os_version;
  uint64_t hwcap;
};
struct ExtensionHeader {
  uint32_t magic;
  uint32_t count;
};
struct ExtensionSection {
  uint32_t tag;
  uint32_t flags;
  uint32_t offset;
  uint32_t size;
};
static_assert(sizeof(OldHeader) == 16 && sizeof(OldEntry) == 12 && sizeof(NewHeader) == 48 && sizeof(NewEntry) == 24);

constexpr uint8_t kByteOrderMask = 3, kNoByteOrder = 0, kLittleEndian = 2;
constexpr uint32_t kExtensionMagic = 0xeaa42174;
constexpr uint32_t kGeneratorTag = 0, kHwcapsTag = 1;
constexpr uint32_t kMostSections = 64;
constexpr uint64_t kHwcapExtension = uint64_t{1} << 62;
constexpr uint64_t kIsaLevelMask = uint64_t{0x3ff} << 32;

bool HasSubdirectory(uint64_t hwcap) { return (hwcap & ~kIsaLevelMask) >> 32 == kHwcapExtension >> 32; }

Error Damaged(std::string_view what) { return Error(Code::kCorrupt, "ld.so.cache: " + std::string(what)); }

template <typename T>
bool ReadAt(std::string_view bytes, size_t offset, T* value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(value, bytes.data() + offset, sizeof(T));
  return true;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  Result<LdCache> Read() {
    if (bytes_.size() > kMostLdCacheBytes) return Damaged("too large");
    if (bytes_.starts_with(kNewMagic)) return ReadNew(0);
    OldHeader header;
    if (!bytes_.starts_with(kOldMagic) || !ReadAt(bytes_, 0, &header)) return Damaged("not a cache");
    if ((bytes_.size() - sizeof header) / sizeof(OldEntry) < header.count) return Damaged("cut off");
    const size_t end = sizeof header + header.count * sizeof(OldEntry);
    const size_t aligned = (end + 7) & ~size_t{7};
    if (aligned < bytes_.size() && bytes_.substr(aligned).starts_with(kNewMagic)) return ReadNew(aligned);
    return ReadOld(header.count, end);
  }

 private:
  Result<LdCache> ReadOld(uint32_t count, size_t strings) {
    LdCache cache;
    for (uint32_t i = 0; i < count; ++i) {
      OldEntry entry;
      ReadAt(bytes_, sizeof(OldHeader) + i * sizeof entry, &entry);
      VRUN_TRY(Add({.flags = entry.flags}, strings + size_t{entry.key}, strings + size_t{entry.value}, &cache));
    }
    return cache;
  }

  // Offsets of strings count from the header of the new format, all others from the beginning of the file.
  Result<LdCache> ReadNew(size_t base) {
    NewHeader header;
    if (!ReadAt(bytes_, base, &header)) return Damaged("cut off");
    const uint8_t order = header.flags & kByteOrderMask;
    if (order != kNoByteOrder && order != kLittleEndian) return Damaged("of another byte order");
    if ((bytes_.size() - base - sizeof header) / sizeof(NewEntry) < header.count) return Damaged("cut off");
    LdCache cache;
    if (header.extensions != 0) VRUN_TRY(ReadExtensions(header.extensions, &cache));
    cache.entries.reserve(header.count);
    for (uint32_t i = 0; i < header.count; ++i) {
      NewEntry in;
      ReadAt(bytes_, base + sizeof header + i * sizeof in, &in);
      LdCacheEntry entry{.flags = in.flags, .os_version = in.os_version, .hwcap = in.hwcap};
      if (HasSubdirectory(in.hwcap)) {
        const auto index = static_cast<uint32_t>(in.hwcap);
        // The loader ignores such an entry too.
        if (index >= subdirectories_.size() || subdirectories_[index].empty()) continue;
        entry.subdirectory = subdirectories_[index];
        entry.hwcap = in.hwcap & ~uint64_t{UINT32_MAX};
      }
      VRUN_TRY(Add(entry, base + in.key, base + in.value, &cache));
    }
    return cache;
  }

  Status ReadExtensions(size_t offset, LdCache* cache) {
    ExtensionHeader header;
    if (!ReadAt(bytes_, offset, &header) || header.magic != kExtensionMagic) return Damaged("bad extensions");
    if (header.count > kMostSections) return Damaged("too many extensions");
    for (uint32_t i = 0; i < header.count; ++i) {
      ExtensionSection section;
      if (!ReadAt(bytes_, offset + sizeof header + i * sizeof section, &section)) return Damaged("bad extensions");
      if (section.offset > bytes_.size() || bytes_.size() - section.offset < section.size) {
        return Damaged("bad extensions");
      }
      if (section.tag == kGeneratorTag) cache->generator = bytes_.substr(section.offset, section.size);
      if (section.tag == kHwcapsTag) VRUN_TRY(ReadSubdirectories(section.offset, section.size / sizeof(uint32_t)));
    }
    return {};
  }

  Status ReadSubdirectories(size_t offset, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      uint32_t at = 0;
      ReadAt(bytes_, offset + i * sizeof at, &at);
      VRUN_ASSIGN(std::string_view name, String(at, kMostName));
      subdirectories_.push_back(name);
    }
    return {};
  }

  Status Add(LdCacheEntry entry, size_t key, size_t value, LdCache* cache) {
    VRUN_ASSIGN(entry.name, String(key, kMostName));
    VRUN_ASSIGN(entry.path, String(value, kMostPath));
    cache->entries.push_back(entry);
    return {};
  }

  Result<std::string_view> String(size_t offset, size_t most) {
    if (offset >= bytes_.size()) return Damaged("a string is outside of the file");
    const std::string_view rest = bytes_.substr(offset, most + 1);
    const size_t end = rest.find('\0');
    if (end == std::string_view::npos) return Damaged("a string is too long");
    text_ += end;
    if (text_ > kMostText) return Damaged("too much text");
    return rest.substr(0, end);
  }

  const std::string_view bytes_;
  std::vector<std::string_view> subdirectories_;
  size_t text_ = 0;
};

// ldconfig's order (compare() of elf/cache.c). The loader stops at the first entry that fits and has no subdirectory.
bool Before(const LdCacheEntry& a, const LdCacheEntry& b) {
  if (const int names = CompareLdCacheNames(a.name, b.name); names != 0) return names > 0;
  if (a.flags != b.flags) return a.flags > b.flags;
  if (a.subdirectory.empty() != b.subdirectory.empty()) return !a.subdirectory.empty();
  return a.subdirectory < b.subdirectory;
}

class Writer {
 public:
  std::string Write(LdCache cache) {
    std::stable_sort(cache.entries.begin(), cache.entries.end(), Before);
    for (const LdCacheEntry& entry : cache.entries) {
      if (!entry.subdirectory.empty()) subdirectories_.emplace(entry.subdirectory, 0);
    }
    uint32_t index = 0;
    for (auto& [name, number] : subdirectories_) number = index++;
    strings_at_ = sizeof(NewHeader) + cache.entries.size() * sizeof(NewEntry);
    std::string entries;
    for (const LdCacheEntry& entry : cache.entries) Append(&entries, Encode(entry));
    std::vector<uint32_t> names;
    for (const auto& [name, number] : subdirectories_) names.push_back(String(name));

    NewHeader header{};
    std::memcpy(header.magic, kNewMagic.data(), sizeof header.magic);
    header.count = static_cast<uint32_t>(cache.entries.size());
    header.strings_size = static_cast<uint32_t>(strings_.size());
    header.flags = kLittleEndian;
    strings_.resize((strings_at_ + strings_.size() + 3) / 4 * 4 - strings_at_);
    header.extensions = static_cast<uint32_t>(strings_at_ + strings_.size());
    std::string bytes;
    Append(&bytes, header);
    bytes += entries;
    bytes += strings_;
    AppendExtensions(names, cache.generator, &bytes);
    return bytes;
  }

 private:
  template <typename T>
  static void Append(std::string* bytes, const T& value) {
    bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  NewEntry Encode(const LdCacheEntry& entry) {
    NewEntry out{.flags = entry.flags, .os_version = entry.os_version, .hwcap = entry.hwcap};
    out.value = String(entry.path);
    // A name is nearly always the end of its path.
    out.key = entry.path.ends_with(entry.name)
                  ? out.value + static_cast<uint32_t>(entry.path.size() - entry.name.size())
                  : String(entry.name);
    if (!entry.subdirectory.empty()) out.hwcap |= subdirectories_.at(entry.subdirectory);
    return out;
  }

  uint32_t String(std::string_view text) {
    const auto [known, fresh] = offsets_.emplace(text, static_cast<uint32_t>(strings_at_ + strings_.size()));
    if (fresh) strings_.append(text).push_back('\0');
    return known->second;
  }

  // Sections whose meaning is unknown are left out: they may contain offsets of strings, which have moved.
  static void AppendExtensions(const std::vector<uint32_t>& subdirectories, std::string_view generator,
                               std::string* bytes) {
    const uint32_t count = (generator.empty() ? 0 : 1) + (subdirectories.empty() ? 0 : 1);
    auto offset = static_cast<uint32_t>(bytes->size() + sizeof(ExtensionHeader) + count * sizeof(ExtensionSection));
    Append(bytes, ExtensionHeader{kExtensionMagic, count});
    const auto names_size = static_cast<uint32_t>(subdirectories.size() * sizeof(uint32_t));
    if (!generator.empty()) {
      Append(bytes, ExtensionSection{kGeneratorTag, 0, offset + names_size, static_cast<uint32_t>(generator.size())});
    }
    if (!subdirectories.empty()) Append(bytes, ExtensionSection{kHwcapsTag, 0, offset, names_size});
    for (const uint32_t name : subdirectories) Append(bytes, name);
    bytes->append(generator);
  }

  std::map<std::string_view, uint32_t> subdirectories_;  // -> index; the loader searches by name
  std::unordered_map<std::string_view, uint32_t> offsets_;
  size_t strings_at_ = 0;
  std::string strings_;
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Consumes a number. It wraps around as in the loader.
uint32_t TakeNumber(std::string_view* text) {
  uint32_t value = 0;
  while (!text->empty() && IsDigit(text->front())) {
    value = value * 10 + static_cast<uint32_t>(text->front() - '0');
    text->remove_prefix(1);
  }
  return value;
}

constexpr char kMuslDefault[] = "/lib:/usr/local/lib:/usr/lib";

}  // namespace

Result<LdCache> ParseLdCache(std::string_view bytes) { return Reader(bytes).Read(); }

std::string FormatLdCache(LdCache cache) { return Writer().Write(std::move(cache)); }

void SetLdCacheEntry(LdCache* cache, std::string_view name, std::string_view path) {
  constexpr int32_t kAnyElf = 1;  // the loader takes it for every machine
  std::erase_if(cache->entries, [&](const LdCacheEntry& entry) {
    return (entry.flags == kLdCacheLibrary || entry.flags == kAnyElf) && entry.name == name;
  });
  cache->entries.push_back({.name = name, .path = path, .flags = kLdCacheLibrary});
}

int CompareLdCacheNames(std::string_view a, std::string_view b) {
  while (!a.empty()) {
    const char left = a.front(), right = b.empty() ? '\0' : b.front();
    if (IsDigit(left) && IsDigit(right)) {
      const auto x = static_cast<int32_t>(TakeNumber(&a)), y = static_cast<int32_t>(TakeNumber(&b));
      if (x != y) return x < y ? -1 : 1;
      continue;
    }
    if (IsDigit(left)) return 1;
    if (IsDigit(right)) return -1;
    if (left != right) return left < right ? -1 : 1;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  // As the loader, which compares with the end of the string, and whose characters may be negative.
  return b.empty() ? 0 : b.front() > '\0' ? -1 : 1;
}

std::vector<std::string> MuslDirectories(const std::optional<std::string>& file) {
  std::vector<std::string> directories;
  std::string word;
  for (const char c : (file ? *file : std::string(kMuslDefault)) + "\n") {
    if (c != ':' && c != '\n') {
      word.push_back(c);
      continue;
    }
    if (!word.empty()) directories.push_back(std::move(word));
    word.clear();
  }
  return directories;
}

std::string MuslPathWith(const std::optional<std::string>& file, std::string_view directory) {
  std::string text(directory);
  for (const std::string& other : MuslDirectories(file)) {
    if (other != directory) text += "\n" + other;
  }
  return text + "\n";
}

}  // namespace vrun::gpu
