// SPDX-License-Identifier: Apache-2.0
// Damage to already verified content while the store is in use: must be detected before it is served, dropped and
// counted.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/files.h"
#include "store/testing/store_testing.h"

namespace vrun::store {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

using Change = std::function<void(const std::string& path)>;

class StoreDamageTest : public StoreTestBase {
 protected:
  static std::pair<int64_t, int64_t> Changed(const std::string& path) {
    struct stat st {};
    EXPECT_EQ(::stat(path.c_str(), &st), 0) << path;
    return {st.st_ctim.tv_sec, st.st_ctim.tv_nsec};
  }
  // Not within the clock tick of the file's last write, where the change would not be detected.
  void AfterATick(const std::string& path, const Change& change) {
    const auto written = Changed(path);
    const std::string clock = directory_ + "/clock";
    auto fd = OpenFile(clock, O_WRONLY | O_CREAT, 0600);
    ASSERT_TRUE(fd);
    do {
      ASSERT_EQ(::futimens(fd->get(), nullptr), 0);
    } while (Changed(clock) <= written);
    change(path);
  }
  static void Overwrite(const std::string& path, uint64_t offset, std::string_view bytes) {
    auto fd = OpenFile(path, O_RDWR);
    ASSERT_TRUE(fd);
    ASSERT_TRUE(PwriteAll(fd->get(), bytes, offset));
  }
  // In one step: a scan of the store that finds a map without its content takes it for the remains of a crash.
  static void Exchange(const std::string& a, const std::string& b) {
    ASSERT_EQ(::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE), 0) << std::strerror(errno);
  }
  static std::string ContentOf(const UniqueFd& fd, size_t size) {
    std::string all(size + 4096, '\0');
    all.resize(*PreadUpTo(fd.get(), all.data(), all.size(), 0));
    return all;
  }
};

TEST_F(StoreDamageTest, WhatIsDamagedWhileTheStoreRunsIsNeverServed) {
  struct Damage {
    const char* what;
    Change apply;
    bool counted = true;
  };
  const std::vector<Damage> damages = {
      {"a bit flipped",
       [](const std::string& p) {
         const std::string unit = ReadFile(p, 1 << 22)->substr(4 * kUnitBytes, 1);
         Overwrite(p, 4 * kUnitBytes, std::string(1, static_cast<char>(unit[0] ^ 1)));
       }},
      {"truncated", [](const std::string& p) { fs::resize_file(p, fs::file_size(p) / 2); }},
      {"its last byte cut off", [](const std::string& p) { fs::resize_file(p, fs::file_size(p) - 1); }},
      {"zeroed", [](const std::string& p) { Overwrite(p, 0, std::string(fs::file_size(p), '\0')); }},
      {"two units exchanged",
       [](const std::string& p) {
         const std::string all = *ReadFile(p, 1 << 22);
         Overwrite(p, 0, all.substr(kUnitBytes, kUnitBytes));
         Overwrite(p, kUnitBytes, all.substr(0, kUnitBytes));
       }},
      {"grown", [](const std::string& p) { fs::resize_file(p, fs::file_size(p) + 4096); }, false},
      {"rewritten by rename",
       [](const std::string& p) {
         std::string all = *ReadFile(p, 1 << 22);
         all[100] = static_cast<char>(all[100] ^ 1);
         ASSERT_TRUE(WriteFileAtomic(p, all, 0600));
       }},
  };
  int seed = 0;
  for (size_t size : {size_t{5 * kUnitBytes + 7}, size_t{120 * kUnitBytes}}) {
    for (const Damage& damage : damages) {
      for (const bool through : {false, true}) {
        SCOPED_TRACE(std::string(damage.what) + " " + std::to_string(size) + (through ? " through" : ""));
        const std::string content = Bytes(size, ++seed);
        auto store = Open();
        auto object = *store->Acquire(FinalId(content), size);
        ASSERT_TRUE(PutAll(*object, content));
        ASSERT_TRUE(ReadAll(*object) == content);
        ASSERT_TRUE(object->OpenForPassthrough());
        AfterATick(PathOf(FinalId(content)), damage.apply);
        if (!through) {
          ExpectOnlyTrue(*object, content);
        }
        if (auto fd = object->OpenForPassthrough()) {
          EXPECT_TRUE(ContentOf(*fd, size) == content);
        }
        EXPECT_EQ(store->stats().corrupt_units > 0, damage.counted);
        ASSERT_TRUE(PutAll(*object, content));
        EXPECT_TRUE(ReadAll(*object) == content);
        auto fd = object->OpenForPassthrough();
        ASSERT_TRUE(fd);
        EXPECT_TRUE(ContentOf(*fd, size) == content);
        EXPECT_EQ(object->VerifySome(0), 0u);
      }
    }
  }
}

TEST_F(StoreDamageTest, OnlyTheDamagedUnitIsLost) {
  const std::string content = Bytes(10 * kUnitBytes, 1);
  auto store = Open();
  auto object = *store->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutAll(*object, content));
  AfterATick(PathOf(FinalId(content)), [](const std::string& p) { Overwrite(p, 4 * kUnitBytes + 17, "damage"); });
  std::string all(content.size(), '\0');
  EXPECT_EQ(object->Read(0, all.data(), all.size()).error().code(), Code::kNotFound);
  EXPECT_THAT(object->MissingUnits(0, content.size()), ElementsAre(UnitRange{4, 1}));
  EXPECT_EQ(store->stats().corrupt_units, 1u);
  ASSERT_TRUE(PutUnits(*object, content, 4, 1));
  EXPECT_TRUE(ReadAll(*object) == content);
}

// A descriptor that the kernel uses since before the damage sees the repair.
TEST_F(StoreDamageTest, ARepairIsInPlace) {
  const std::string content = Bytes(10 * kUnitBytes, 2);
  auto store = Open();
  auto object = *store->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutAll(*object, content));
  auto before = object->OpenForPassthrough();
  ASSERT_TRUE(before);
  AfterATick(PathOf(FinalId(content)), [](const std::string& p) { Overwrite(p, 4 * kUnitBytes + 17, "damage"); });
  EXPECT_EQ(store->Verify()->corrupt_units, 1u);
  EXPECT_EQ(object->VerifySome(0), std::nullopt);
  ASSERT_TRUE(PutUnits(*object, content, 4, 1));
  EXPECT_TRUE(ContentOf(*before, content.size()) == content);
}

TEST_F(StoreDamageTest, ExchangedByRenameIsCounted) {
  const std::string a = Bytes(9 * kUnitBytes, 3), b = Bytes(9 * kUnitBytes, 4);
  for (const bool restart : {false, true}) {
    for (const bool verify : {false, true}) {
      SCOPED_TRACE(testing::Message() << "restart " << restart << ", verify " << verify);
      auto store = Open();
      ASSERT_TRUE(PutAll(**store->Acquire(FinalId(a), a.size()), a));
      ASSERT_TRUE(PutAll(**store->Acquire(FinalId(b), b.size()), b));
      AfterATick(PathOf(FinalId(a)), [&](const std::string& p) {
        AfterATick(PathOf(FinalId(b)), [&](const std::string&) { Exchange(p, PathOf(FinalId(b))); });
      });
      if (restart) {
        store.reset();
        store = Open();
      }
      if (verify) {
        EXPECT_EQ(store->Verify()->corrupt_units, 18u);
        EXPECT_EQ(store->Verify()->corrupt_units, 0u);
      }
      for (const std::string& content : {a, b}) {
        auto object = *store->Acquire(FinalId(content), content.size());
        EXPECT_TRUE(ReadAll(*object).empty());
        ASSERT_TRUE(PutAll(*object, content));
        EXPECT_TRUE(ReadAll(*object) == content);
      }
      EXPECT_EQ(store->stats().corrupt_units, 18u);
    }
  }
}

TEST_F(StoreDamageTest, OurOwnWritesAreNotVerifiedAgain) {
  const std::string content = Bytes(40 * kUnitBytes, 5);
  auto store = Open();
  const ObjectId provisional = ProvisionalId("h", 1, 2, 3, content.size());
  auto object = *store->Acquire(provisional, content.size());
  std::string unit(kUnitBytes, '\0');
  for (uint64_t u = 0; u < 40; ++u) {
    ASSERT_TRUE(PutUnits(*object, content, u, 1));
    ASSERT_TRUE(object->Read(u / 2 * kUnitBytes, unit.data(), unit.size()));
  }
  EXPECT_EQ(object->VerifySome(0), 0u);
  ASSERT_TRUE(object->Resolve(FinalId(content)));
  EXPECT_EQ(object->VerifySome(0), 0u) << "another name is no damage";
  EXPECT_TRUE(object->OpenForPassthrough());
}

TEST_F(StoreDamageTest, WhatAnotherProcessWroteIsVerifiedAndRight) {
  const std::string content = Bytes(40 * kUnitBytes, 6);
  auto mine = Open({.min_free_bytes = 0, .refresh_micros = 0}),
       theirs = Open({.min_free_bytes = 0, .refresh_micros = 0});
  auto object = *mine->Acquire(FinalId(content), content.size());
  auto other = *theirs->Acquire(FinalId(content), content.size());
  for (uint64_t u = 0; u < 40; ++u) {
    ASSERT_TRUE(PutUnits(u % 2 == 0 ? *object : *other, content, u, 1));
    ExpectOnlyTrue(u % 2 == 0 ? *other : *object, content);
  }
  EXPECT_EQ(object->VerifySome(content.size()), 0u);
  EXPECT_EQ(other->VerifySome(content.size()), 0u);
  EXPECT_TRUE(object->OpenForPassthrough());
  EXPECT_EQ(mine->stats().corrupt_units + theirs->stats().corrupt_units, 0u);
}

TEST_F(StoreDamageTest, AfterARestartItIsVerifiedPieceByPiece) {
  const std::string content = Bytes(10 * kUnitBytes, 7);
  {
    auto store = Open();
    auto object = *store->Acquire(FinalId(content), content.size());
    EXPECT_EQ(object->VerifySome(0), std::nullopt);
    ASSERT_TRUE(PutAll(*object, content));
    EXPECT_EQ(object->VerifySome(0), 0u);
  }
  auto store = Open();
  auto object = *store->Acquire(FinalId(content), content.size());
  EXPECT_EQ(object->VerifySome(0), content.size());
  std::string unit(kUnitBytes, '\0');
  ASSERT_TRUE(object->Read(5 * kUnitBytes, unit.data(), unit.size()));
  EXPECT_EQ(object->VerifySome(0), content.size() - kUnitBytes);
  EXPECT_EQ(object->VerifySome(3 * kUnitBytes), content.size() - 4 * kUnitBytes);
  EXPECT_EQ(object->VerifySome(content.size()), 0u);
  EXPECT_TRUE(object->OpenForPassthrough());
}

TEST_F(StoreDamageTest, ADirectoryThatIsGoneStopsNoEviction) {
  auto store = Open({.max_bytes = 40 * kUnitBytes, .min_free_bytes = 0});
  const auto put = [&](int seed) {
    const std::string content = Bytes(kUnitBytes, seed);
    const auto object = *store->Acquire(FinalId(content), content.size());
    ASSERT_TRUE(PutAll(*object, content));
    EXPECT_TRUE(ReadAll(*object) == content);
  };
  for (int i = 0; i < 30; ++i) put(i);
  for (const int i : {0, 1}) fs::remove_all(fs::path(PathOf(FinalId(Bytes(kUnitBytes, i)))).parent_path());
  for (int i = 30; i < 100; ++i) put(i);
  EXPECT_LE(store->stats().bytes, 40 * kUnitBytes);
  EXPECT_GE(store->stats().evictions, 60u);
  EXPECT_EQ(*store->Prune(0), 0u);
  EXPECT_EQ(CountFiles(""), 0);
}

// Simulates a disk that became read-only with an immutable file.
TEST_F(StoreDamageTest, WhatCannotBeRemovedIsNotServedAndCountedOnce) {
  const std::string content = Bytes(5000, 1), other = Bytes(5000, 2);
  auto store = Open({.max_bytes = 40 * kUnitBytes, .min_free_bytes = 0});
  const auto object = *store->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutAll(*object, content));
  const std::string path = PathOf(FinalId(content));
  AfterATick(path, [](const std::string& file) { Overwrite(file, 100, "damage"); });
  const auto set_immutable = [&](bool on) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    int flags = 0;
    if (!fd || ::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
    flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    return ::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags) == 0;
  };
  if (!set_immutable(true)) GTEST_SKIP() << "no immutable files here";
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ReadAll(*object).empty());
    EXPECT_FALSE(PutAll(*object, content)) << "it stays in memory then";
  }
  EXPECT_EQ(store->stats().corrupt_units, 1u);
  EXPECT_TRUE(PutAll(**store->Acquire(FinalId(other), other.size()), other));
  EXPECT_EQ(*store->Prune(0), 0u) << "the other one goes although that one cannot";
  EXPECT_EQ(CountFiles(""), 1);
  ASSERT_TRUE(set_immutable(false));
  EXPECT_TRUE(PutAll(*object, content));
  EXPECT_TRUE(ReadAll(*object) == content);
}

TEST_F(StoreDamageTest, NobodyWaitsForAFifo) {
  const std::string small = Bytes(5000, 1), large = Bytes(9 * kUnitBytes, 2), mapped = Bytes(9 * kUnitBytes, 3);
  for (const bool again : {false, true}) {
    auto store = Open();
    for (const std::string& content : {small, large, mapped}) {
      ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content));
    }
    ASSERT_TRUE(store->PutBlob(Sha256("blob"), "blob"));
    for (const std::string& path : {PathOf(FinalId(small)), PathOf(FinalId(large)), PathOf(FinalId(mapped)) + ".map"}) {
      ASSERT_EQ(::unlink(path.c_str()), 0);
      ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    }
    if (again) {
      store.reset();
      for (const auto& entry : fs::directory_iterator(directory_ + "/store/blobs")) {
        fs::remove(entry.path());
        ASSERT_EQ(::mkfifo(entry.path().c_str(), 0600), 0);
      }
      store = Open();
    }
    EXPECT_TRUE(store->Verify());
    for (const std::string& content : {small, large, mapped}) {
      const auto object = *store->Acquire(FinalId(content), content.size());
      const std::string there = ReadAll(*object);
      EXPECT_TRUE(there.empty() || there == content) << "what was open is there still";
      EXPECT_TRUE(PutAll(*object, content));
      EXPECT_TRUE(ReadAll(*object) == content);
    }
  }
}

TEST_F(StoreDamageTest, WhatIsThereInPlaceOfItsDirectoriesGoes) {
  const std::string small = Bytes(5000, 1), large = Bytes(9 * kUnitBytes, 2);
  const std::string store_directory = directory_ + "/store", objects = store_directory + "/objects";
  const auto puts = [&](store::Store& store) {
    for (const std::string& content : {small, large}) {
      const auto object = *store.Acquire(FinalId(content), content.size());
      if (ReadAll(*object) != content) {
        EXPECT_TRUE(PutAll(*object, content));
      }
      EXPECT_TRUE(ReadAll(*object) == content);
    }
    EXPECT_TRUE(store.PutBlob(Sha256("blob"), "blob"));
    EXPECT_EQ(*store.GetBlob(Sha256("blob")), "blob");
    EXPECT_TRUE(PathExists(PathOf(FinalId(small)))) << "of the large one the descriptors are there";
  };
  const std::vector<std::function<void()>> damages = {
      [&] { fs::remove_all(objects); },
      [&] {
        for (const auto& entry : fs::directory_iterator(store_directory)) fs::remove_all(entry.path());
      },
      [&] { fs::remove_all(store_directory); },
      [&] {
        fs::remove_all(objects);
        std::ofstream(objects) << "a file";
      },
      [&] {
        fs::remove_all(objects);
        fs::create_symlink("nowhere", objects);
      },
      [&] {
        const fs::path shard = fs::path(PathOf(FinalId(small))).parent_path();
        fs::remove_all(shard);
        fs::create_symlink(shard, shard);
      },
  };
  for (const auto& damage : damages) {
    {
      auto store = Open();
      puts(*store);
      damage();
      puts(*store);
      EXPECT_EQ(store->stats().failed_writes, 0u);
    }
    damage();
    puts(*Open());
  }
}

TEST_F(StoreDamageTest, AMapThatSaysWhatCannotBeIsCountedAndGoes) {
  const std::string content = Bytes(9 * kUnitBytes, 2);
  {
    auto store = Open();
    ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content));
  }
  const std::string path = PathOf(FinalId(content));
  Overwrite(path + ".map", 0, std::string(64, 'x'));
  fs::resize_file(path, 100);
  auto store = Open();
  const auto report = store->Verify();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->corrupt_units, 1u);
  EXPECT_EQ(CountFiles(""), 0);
}

TEST_F(StoreDamageTest, ADirectoryInTheWayGoes) {
  const std::string content = Bytes(5000, 1);
  const std::string path = PathOf(FinalId(content)), aliases = directory_ + "/store/aliases";
  {
    auto store = Open();
    ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content));
  }
  for (const std::string& file : {path, aliases}) {
    fs::remove(file);
    fs::create_directories(file + "/inside");
  }
  auto store = Open();
  const auto object = *store->Acquire(FinalId(content), content.size());
  EXPECT_TRUE(ReadAll(*object).empty());
  EXPECT_TRUE(PutAll(*object, content));
  EXPECT_TRUE(ReadAll(*object) == content);
}

}  // namespace
}  // namespace vrun::store
