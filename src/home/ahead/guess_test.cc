// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/guess.h"

#include <elf.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstring>
#include <map>
#include <set>

#include "base/files.h"
#include "home/ahead/elf_file.h"
#include "home/pack/residency.h"
#include "home/testing/content_testing.h"

namespace vrun::home {
namespace {

// The paths and ranges of the answer.
using Hints = std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>>;
Hints HintsOf(const std::vector<v1::ContentReply>& parts) {
  Hints hints;
  EXPECT_TRUE(parts.size() == 1 && parts[0].has_resident()) << parts[0].error().message();
  for (const auto& file : parts[0].resident().file()) {
    auto& ranges = hints[file.path()];
    for (int i = 0; i + 1 < file.range_size(); i += 2) ranges.emplace_back(file.range(i), file.range(i + 1));
  }
  return hints;
}

TEST_F(ContentTest, WhatIsInThePageCacheIsOffered) {
  const uint64_t unit = store::kUnitBytes;
  // A library: its tables, then its code, then its data.
  std::string library = RandomBytes(3 << 20, 1);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 3;
  const Elf64_Phdr segments[] = {
      {.p_type = PT_LOAD, .p_flags = PF_R, .p_offset = 0, .p_filesz = 8 * unit},
      {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = 8 * unit, .p_filesz = 20 * unit},
      {.p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_offset = 28 * unit, .p_filesz = 20 * unit}};
  std::memcpy(library.data(), &header, sizeof header);
  std::memcpy(library.data() + sizeof header, segments, sizeof segments);
  root_.Put("root/.ssh/large.py", library);
  root_.Put("root/.ssh/small.py", "small");
  root_.Put("root/.ssh/other.c", "another kind");
  root_.Put("root/.ssh/cold.py", "cold");
  root_.Put("root/.ssh/id_key.py", "-----BEGIN OPENSSH PRIVATE KEY-----\n");
  Serve();
  if (!ResidentRanges(OpenFile(root_ / "root/.ssh/small.py", O_RDONLY)->get(), 5, unit))
    GTEST_SKIP() << "the kernel does not tell";
  for (const char* name : {"root/.ssh/large.py", "root/.ssh/cold.py"}) {
    auto fd = OpenFile(root_ / name, O_RDONLY);
    ASSERT_EQ(::fsync(fd->get()), 0);
    ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_RANDOM), 0);
    if (!ResidentRanges(fd->get(), 3 << 20, unit)->empty()) GTEST_SKIP() << "this file system keeps its pages";
    char c;
    for (uint64_t u : {5, 12, 30}) {
      ASSERT_GE(::pread(fd->get(), &c, 1, static_cast<off_t>(u * unit + 7)), 0);
    }
  }
  Hints hints = HintsOf(Ask(ResidentRequest("/root/.ssh/large.py", true)));
  EXPECT_THAT(hints["/root/.ssh/large.py"],
              testing::ElementsAre(std::pair(5 * unit, 6 * unit), std::pair(30 * unit, 31 * unit)));
  EXPECT_TRUE(hints.contains("/root/.ssh/small.py"));
  EXPECT_FALSE(hints.contains("/root/.ssh/cold.py"));
  EXPECT_FALSE(hints.contains("/root/.ssh/other.c"));
  EXPECT_FALSE(hints.contains("/root/.ssh/id_key.py")) << "the deny list holds for hints, too";
  EXPECT_TRUE(HintsOf(Ask(ResidentRequest("/root/.ssh/large.py", true))).empty()) << "one offer is enough";
  EXPECT_EQ(ErrorOf(Ask(ResidentRequest("/root/.ssh/id_key.py", false))), Code::kDenied);
}

TEST_F(ContentTest, WhatWasUsedOfAPackageIsOfferedWithItsFirstModule) {
  const std::vector<std::string> used = {"lib/pkg/__init__.py", "lib/pkg/__pycache__/__init__.cpython-311.pyc",
                                         "lib/pkg/deep/er/__pycache__/m.cpython-311.pyc", "lib/pkg/deep/table.json"};
  for (const std::string& path : used) root_.Put(path, path);
  for (const char* path : {"lib/pkg/deep/__init__.py", "lib/pkg/deep/er/__init__.py"}) root_.Put(path, path);
  root_.Put("lib/pkg/deep/cold.py", "nobody read this");
  root_.Put("lib/pkg/images/one.png", "data, not a package");
  root_.Put("lib/pkg/site-packages/other/__init__.py", "another package");
  root_.Put("lib/beside.py", "another module");
  Serve();
  auto cold = OpenFile(root_ / "lib/pkg/deep/cold.py", O_RDONLY);
  ASSERT_EQ(::fsync(cold->get()), 0);
  ASSERT_EQ(::posix_fadvise(cold->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const auto resident = ResidentRanges(cold->get(), 16, 16);
  if (!resident || !resident->empty()) GTEST_SKIP() << "this file system keeps its pages, or the kernel does not tell";
  std::set<std::string> offered;
  for (const auto& [path, ranges] :
       HintsOf(Ask(ResidentRequest("/lib/pkg/__pycache__/__init__.cpython-311.pyc", true)))) {
    offered.insert(path);
  }
  EXPECT_EQ(offered,
            (std::set<std::string>{"/lib/pkg/__init__.py", "/lib/pkg/deep/__init__.py", "/lib/pkg/deep/er/__init__.py",
                                   "/lib/pkg/deep/er/__pycache__/m.cpython-311.pyc", "/lib/pkg/deep/table.json"}));
}

// A machine after a reboot: nothing is in its page cache, so that tells nothing.
TEST_F(ContentTest, WhereThePageCacheIsColdWhatBelongsTogetherIsOffered) {
  const auto program = ReadFile("/bin/true", 64 << 20);
  ASSERT_TRUE(program && program->size() < store::kWholeFileLimit);
  std::string large = *program;  // an extension module that is not sent whole
  large.resize(3 << 20, 'x');
  root_.Put("lib/pkg/__init__.py", "a");
  root_.Put("lib/pkg/paired.py", "b");
  root_.Put("lib/pkg/plain.py", "c");
  root_.Put("lib/pkg/_ext.so", large);
  root_.Put("lib/pkg/__pycache__/__init__.cpython-311.pyc", "d");
  root_.Put("lib/pkg/__pycache__/paired.cpython-311.pyc", "e");
  root_.Put("usr/lib/libc.so.6", *program);
  for (int i = 0; i < 12; ++i) root_.Put("data/f" + std::to_string(i), "g");
  root_.Put("data/notes", "h");
  root_.Put("data/big1", std::string(200 << 10, 'i'));
  Serve();
  const auto forget = [&](const std::string& path) {
    auto fd = OpenFile(root_ / path, O_RDONLY);
    EXPECT_EQ(::fsync(fd->get()), 0);
    EXPECT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    const auto resident = ResidentRanges(fd->get(), 4096, 4096);
    return resident && resident->empty();
  };
  std::vector<std::string> all = {"lib/pkg/__init__.py",
                                  "lib/pkg/paired.py",
                                  "lib/pkg/plain.py",
                                  "lib/pkg/_ext.so",
                                  "lib/pkg/__pycache__/__init__.cpython-311.pyc",
                                  "lib/pkg/__pycache__/paired.cpython-311.pyc",
                                  "data/notes",
                                  "data/big1"};
  for (int i = 0; i < 12; ++i) all.push_back("data/f" + std::to_string(i));
  for (const std::string& path : all) {
    if (!forget(path)) GTEST_SKIP() << "this file system keeps its pages, or the kernel does not tell";
  }
  // Its reader requests it at the same time, perhaps first: that is not a use by local programs.
  const std::string touched = "/lib/pkg/__pycache__/__init__.cpython-311.pyc";
  EXPECT_EQ(Content(Ask(RangeRequest(touched, VersionOf(touched), 0, 1))), "d");
  std::set<std::string> offered, whole;
  const auto parts = Ask(ResidentRequest(touched, true));
  for (const auto& [path, ranges] : HintsOf(parts)) {
    offered.insert(path);
    if (!ranges.empty()) whole.insert(path);
  }
  EXPECT_EQ(offered, (std::set<std::string>{"/lib/pkg/plain.py", "/lib/pkg/_ext.so", "/usr/lib/libc.so.6",
                                            "/lib/pkg/__pycache__/paired.cpython-311.pyc"}))
      << "each module as it is read";
  EXPECT_FALSE(whole.contains("/lib/pkg/_ext.so"));
  for (const auto& file : parts[0].resident().file()) {
    EXPECT_EQ(file.loader_size() > 0, file.path().find(".so") != std::string::npos) << file.path();
  }

  // Names that differ only in a number are of one kind.
  offered.clear();
  for (const auto& [path, ranges] : HintsOf(Ask(ResidentRequest("/data/f3", true)))) offered.insert(path);
  EXPECT_EQ(offered.size(), 11u);
  EXPECT_TRUE(offered.contains("/data/f0") && offered.contains("/data/f11"));
}

// Read-ahead makes unused pages resident.
TEST_F(ContentTest, OnlyPagesThatWereUsedCountAsUsed) {
  constexpr uint64_t kSize = 4u << 20, kUnit = 64u << 10;
  root_.Put("lib", RandomBytes(kSize, 1));
  auto fd = OpenFile(root_ / "lib", O_RDONLY);
  ASSERT_EQ(::fsync(fd->get()), 0);
  ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  ASSERT_EQ(::readahead(fd->get(), 0, kSize), 0);
  const auto none = UsedRanges(fd->get(), kSize, kUnit);
  if (!none) GTEST_SKIP() << "needs root and Linux 6.3";
  if (!none->empty()) GTEST_SKIP() << "this file system keeps its pages";
  // A process that maps it, and ends.
  const pid_t child = ::fork();
  if (child == 0) {
    auto* map = static_cast<volatile char*>(::mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE, fd->get(), 0));
    for (const uint64_t unit : {3, 40}) (void)map[unit * kUnit + 5000];
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const std::pair<uint64_t, uint64_t> first{3 * kUnit, 4 * kUnit}, second{40 * kUnit, 41 * kUnit};
  for (int look = 0; look < 3; ++look) {
    EXPECT_THAT(*UsedRanges(fd->get(), kSize, kUnit), testing::ElementsAre(first, second)) << "look " << look;
  }
  // Truncated while we look: no signal.
  ASSERT_EQ(::truncate((root_ / "lib").c_str(), 4096), 0);
  (void)UsedRanges(fd->get(), kSize, kUnit);
}

// The first look is before the developer's own run; what was sent and hashed in between tells nothing.
TEST_F(ContentTest, TheFirstLookThatSeesUseIsKept) {
  std::string library = RandomBytes(4 << 20, 4);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  const Elf64_Phdr segment = {.p_type = PT_LOAD, .p_flags = PF_R, .p_offset = 0, .p_filesz = 4 << 20};
  std::memcpy(library.data(), &header, sizeof header);
  std::memcpy(library.data() + sizeof header, &segment, sizeof segment);
  root_.Put("lib", library);
  auto fd = OpenFile(root_ / "lib", O_RDONLY);
  ASSERT_EQ(::fsync(fd->get()), 0);
  ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_RANDOM), 0);
  const tree::FileVersion version = VersionOf("/lib");
  const auto resident = ResidentRanges(fd->get(), version.size, store::kUnitBytes);
  if (!resident || !resident->empty()) GTEST_SKIP() << "this file system keeps its pages, or the kernel does not tell";
  FirstLooks looks;
  EXPECT_TRUE(looks.Of(fd->get(), version).empty());
  EXPECT_TRUE(ResidentRanges(fd->get(), version.size, store::kUnitBytes)->empty()) << "looking leaves nothing behind";
  char c;
  ASSERT_EQ(::pread(fd->get(), &c, 1, 100 * static_cast<off_t>(store::kUnitBytes)), 1);
  const ByteRanges used = {{100 * store::kUnitBytes, 101 * store::kUnitBytes}};
  EXPECT_EQ(looks.Of(fd->get(), version), used);
  ASSERT_TRUE(PreadUpTo(fd->get(), library.data(), library.size(), 0));  // as when serving it
  EXPECT_EQ(looks.Of(fd->get(), version), used);
}

TEST_F(ContentTest, OurOwnReadingIsNotTakenForSomebodys) {
  root_.Put("f", RandomBytes(1 << 20, 2));
  auto fd = OpenFile(root_ / "f", O_RDONLY);
  ASSERT_EQ(::fsync(fd->get()), 0);
  ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  auto before = ResidentRanges(fd->get(), 1 << 20, store::kUnitBytes);
  if (!before || !before->empty()) GTEST_SKIP() << "this file system keeps its pages, or the kernel does not tell";
  {
    ResidencyGuard kept(fd->get(), 0, 1 << 20);
    std::string all(1 << 20, '\0');
    ASSERT_TRUE(PreadUpTo(fd->get(), all.data(), all.size(), 0));
  }
  EXPECT_TRUE(ResidentRanges(fd->get(), 1 << 20, store::kUnitBytes)->empty());
}

TEST_F(ContentTest, TheLibrariesThatAProgramLoadsAreOffered) {
  auto program = ReadFile("/bin/true", 64 << 20);
  ASSERT_TRUE(program);
  const ElfNeeds needs = ReadElfNeeds(OpenFile("/bin/true", O_RDONLY)->get());
  ASSERT_THAT(needs.libraries, testing::Contains("libc.so.6"));
  root_.Put("usr/bin/true", *program);
  root_.Put("usr/lib/real-libc", *program);  // needs itself: a cycle
  ASSERT_EQ(::symlink("usr/lib", (root_ / "lib").c_str()), 0);
  ASSERT_EQ(::symlink("real-libc", (root_ / "usr/lib/libc.so.6").c_str()), 0);
  Serve();
  Hints hints = HintsOf(Ask(ResidentRequest("/usr/bin/true", false)));
  EXPECT_EQ(hints.size(), 1u);
  EXPECT_TRUE(hints.contains("/usr/lib/real-libc"));
}

// A library, even a small one, comes in parts: first what the loader reads of each, before the tables of any.
TEST_F(ContentTest, WhatALoaderReadsFirstIsTold) {
  const auto program = ReadFile("/bin/true", 64 << 20);
  ASSERT_TRUE(program && program->size() > store::kUnitBytes);
  const auto fd = OpenFile("/bin/true", O_RDONLY);
  const ElfNeeds needs = ReadElfNeeds(fd->get());
  Elf64_Ehdr header;
  std::memcpy(&header, program->data(), sizeof header);
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  std::memcpy(segments.data(), program->data() + header.e_phoff, segments.size() * sizeof(Elf64_Phdr));
  root_.Put("usr/lib/libx.so.1", *program);
  root_.Put("usr/lib/libc.so.6", *program);
  Serve();
  const auto parts = Ask(ResidentRequest("/usr/lib/libx.so.1", false));
  EXPECT_EQ(HintsOf(parts).size(), 2u) << "the library itself, and what it loads";
  int told = 0;
  for (const auto& file : parts[0].resident().file()) {
    if (file.path() != "/usr/lib/libc.so.6") continue;
    std::vector<std::pair<uint64_t, uint64_t>> loader;
    for (int i = 0; i + 1 < file.loader_size(); i += 2) loader.emplace_back(file.loader(i), file.loader(i + 1));
    const auto has = [&](uint64_t at) {
      return std::any_of(loader.begin(), loader.end(),
                         [at](auto range) { return at >= range.first && at < range.second; });
    };
    uint64_t last = 0;
    for (const auto& [first, end] : loader) {
      EXPECT_TRUE(first >= last && first < end && first % store::kUnitBytes == 0);
      EXPECT_TRUE(end % store::kUnitBytes == 0 || end == program->size());
      last = end;
    }
    EXPECT_TRUE(has(0));
    for (const Elf64_Phdr& s : segments) {
      const bool dynamic = s.p_type == PT_DYNAMIC, ends = s.p_type == PT_LOAD && s.p_memsz > s.p_filesz;
      if (!dynamic && !ends) continue;
      ++told;
      EXPECT_TRUE(has(s.p_offset + s.p_filesz - 1) && (!dynamic || has(s.p_offset)));
    }
  }
  EXPECT_EQ(told, 2);
}

TEST_F(ContentTest, DamagedElfFilesNeedNothing) {
  auto program = ReadFile("/bin/true", 64 << 20);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = *program;
    for (int k = 0; k < 20; ++k) damaged[random() % (i % 2 ? 1024 : damaged.size())] = static_cast<char>(random());
    if (i % 5 == 0) damaged.resize(random() % damaged.size());
    root_.Put("f", damaged);
    auto fd = OpenFile(root_ / "f", O_RDONLY);
    EXPECT_LT(ReadElfNeeds(fd->get()).read.size(), 2048u);
    std::vector<std::pair<uint64_t, uint64_t>> ranges{{0, damaged.size()}};
    KeepTablesAndData(fd->get(), store::kUnitBytes, &ranges);
    for (const auto& [first, end] : ranges) EXPECT_TRUE(first < end && end <= damaged.size());
  }
}

}  // namespace
}  // namespace vrun::home
