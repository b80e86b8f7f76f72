// SPDX-License-Identifier: Apache-2.0
// The store's guarantees: what was put is read back, across restarts; damage on disk is never served.
#include "store/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/files.h"
#include "store/testing/store_testing.h"

namespace vrun::store {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class StoreTest : public StoreTestBase {};

TEST_F(StoreTest, SmallFileRoundTripAndRestart) {
  const std::string content = Bytes(10000, 1);
  const ObjectId id = FinalId(content);
  {
    auto store = Open();
    auto object = *store->Acquire(id, content.size());
    EXPECT_FALSE(object->Has(0, content.size()));
    EXPECT_THAT(object->MissingUnits(0, content.size()), ElementsAre(UnitRange{0, 1}));
    char byte;
    EXPECT_EQ(object->Read(0, &byte, 1).error().code(), Code::kNotFound);
    ASSERT_TRUE(PutAll(*object, content));
    EXPECT_TRUE(object->complete());
    EXPECT_TRUE(ReadAll(*object) == content);
  }
  auto store = Open();
  auto object = *store->Acquire(id, content.size());
  EXPECT_TRUE(object->Has(0, content.size()));
  EXPECT_TRUE(ReadAll(*object) == content);
  std::string part(100, '\0');
  ASSERT_EQ(*object->Read(9950, part.data(), 100), 50u);
  EXPECT_TRUE(part.substr(0, 50) == content.substr(9950));
  EXPECT_EQ(*object->Read(10000, part.data(), 100), 0u);
}

TEST_F(StoreTest, EmptyFileIsAlwaysComplete) {
  auto store = Open();
  auto object = *store->Acquire(FinalId(""), 0);
  char byte;
  EXPECT_TRUE(object->complete());
  EXPECT_EQ(*object->Read(0, &byte, 1), 0u);
  EXPECT_TRUE(object->Put(0, {}));
}

TEST_F(StoreTest, PartsOfALargeFile) {
  const std::string content = Bytes(5 * kUnitBytes + 123, 2);
  const ObjectId id = FinalId(content);
  auto store = Open();
  auto object = *store->Acquire(id, content.size());
  ASSERT_TRUE(PutUnits(*object, content, 1, 2));
  ASSERT_TRUE(PutUnits(*object, content, 5, 1));
  EXPECT_FALSE(object->complete());
  EXPECT_TRUE(object->Has(kUnitBytes, 2 * kUnitBytes));
  EXPECT_FALSE(object->Has(kUnitBytes - 1, 2));
  EXPECT_THAT(object->MissingUnits(0, content.size()), ElementsAre(UnitRange{0, 1}, UnitRange{3, 2}));
  EXPECT_THAT(object->MissingUnits(kUnitBytes, kUnitBytes), IsEmpty());
  std::string part(kUnitBytes, '\0');
  ASSERT_EQ(*object->Read(kUnitBytes + 10, part.data(), part.size()), part.size());
  EXPECT_TRUE(part == content.substr(kUnitBytes + 10, part.size()));
  EXPECT_EQ(object->Read(3 * kUnitBytes - 1, part.data(), 2).error().code(), Code::kNotFound);
  EXPECT_FALSE(object->OpenForPassthrough());
  ASSERT_TRUE(PutUnits(*object, content, 0, 6));
  EXPECT_TRUE(object->complete());
  EXPECT_TRUE(ReadAll(*object) == content);
  auto fd = object->OpenForPassthrough();
  ASSERT_TRUE(fd);
  std::string whole(content.size() + 10, '\0');
  EXPECT_EQ(*PreadUpTo(fd->get(), whole.data(), whole.size(), 0), content.size());
  EXPECT_TRUE(whole.substr(0, content.size()) == content);
  EXPECT_EQ(::fcntl(fd->get(), F_GETFL) & O_ACCMODE, O_RDONLY);
}

TEST_F(StoreTest, APartIsOpenedWithoutTheRest) {
  const std::string content = Bytes(6 * kUnitBytes + 123, 3);
  const ObjectId id = FinalId(content);
  auto store = Open();
  auto object = *store->Acquire(id, content.size());
  EXPECT_EQ(object->OpenPart(0, 1).error().code(), Code::kNotFound);
  ASSERT_TRUE(PutUnits(*object, content, 2, 3));
  const auto part = [&](uint64_t offset, uint64_t length) -> Result<std::string> {
    VRUN_ASSIGN(const UniqueFd fd, object->OpenPart(offset, length));
    std::string bytes(length, '\0');
    VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), bytes.data(), length, offset));
    bytes.resize(n);
    return bytes;
  };
  EXPECT_TRUE(*part(2 * kUnitBytes + 5, 2 * kUnitBytes) == content.substr(2 * kUnitBytes + 5, 2 * kUnitBytes));
  EXPECT_EQ(part(2 * kUnitBytes - 1, 2).error().code(), Code::kNotFound);
  EXPECT_EQ(part(5 * kUnitBytes - 1, 2).error().code(), Code::kNotFound);
  ASSERT_TRUE(PutUnits(*object, content, 6, 1));
  EXPECT_TRUE(*part(6 * kUnitBytes + 100, 100) == content.substr(6 * kUnitBytes + 100)) << "cut at the end";

  // Content written by another process is verified first: of two damaged units both are dropped at once.
  object.reset();
  store.reset();
  {
    const UniqueFd fd = *OpenFile(PathOf(id), O_RDWR);
    for (const uint64_t unit : {2, 4}) ASSERT_TRUE(PwriteAll(fd.get(), "damage", unit * kUnitBytes + 7));
  }
  store = Open();
  object = *store->Acquire(id, content.size());
  EXPECT_TRUE(*part(3 * kUnitBytes, kUnitBytes) == content.substr(3 * kUnitBytes, kUnitBytes));
  EXPECT_EQ(part(2 * kUnitBytes, 3 * kUnitBytes).error().code(), Code::kNotFound);
  EXPECT_THAT(object->MissingUnits(2 * kUnitBytes, 3 * kUnitBytes), ElementsAre(UnitRange{2, 1}, UnitRange{4, 1}));
}

TEST_F(StoreTest, AboveOneGibibyteTheUnitIsLarger) {
  const uint64_t size = (1ull << 30) + 5;
  auto store = Open();
  auto object = *store->Acquire(ProvisionalId("h", 1, 2, 3, size), size);
  const std::string unit = Bytes(kLargeUnitBytes, 3), tail = Bytes(5, 4);
  const PutUnit put{UnitDigest(unit), unit}, last{UnitDigest(tail), tail};
  ASSERT_TRUE(object->Put(3, {&put, 1}));
  ASSERT_TRUE(object->Put(UnitCount(size) - 1, {&last, 1}));
  std::string back(kLargeUnitBytes, '\0');
  ASSERT_TRUE(object->Read(3 * kLargeUnitBytes, back.data(), back.size()));
  EXPECT_TRUE(back == unit);
  ASSERT_EQ(*object->Read(1ull << 30, back.data(), back.size()), 5u);
  EXPECT_LT(store->stats().bytes, 1u << 20) << "the file on disk is sparse";
}

TEST_F(StoreTest, WhatDoesNotFitOrMatchIsRefused) {
  const std::string content = Bytes(3 * kUnitBytes, 5);
  auto store = Open();
  auto object = *store->Acquire(ProvisionalId("h", 1, 2, 3, content.size()), content.size());
  const std::string_view unit = std::string_view(content).substr(0, kUnitBytes);
  const PutUnit short_unit{UnitDigest(unit.substr(1)), unit.substr(1)};
  EXPECT_EQ(object->Put(0, {&short_unit, 1}).error().code(), Code::kInvalid);
  const PutUnit good{UnitDigest(unit), unit}, wrong{UnitDigest("x"), unit};
  EXPECT_EQ(object->Put(3, {&good, 1}).error().code(), Code::kInvalid);
  EXPECT_EQ(object->Put(UINT64_MAX, {&good, 1}).error().code(), Code::kInvalid);
  EXPECT_EQ(object->Put(0, {&wrong, 1}).error().code(), Code::kCorrupt);
  EXPECT_FALSE(object->Has(0, 1));
  EXPECT_FALSE(store->Acquire({IdAlgorithm::kBlake3Units, Blake3("a")}, 100)) << "one unit is named by its digest";
  EXPECT_FALSE(store->Acquire({IdAlgorithm::kBlake3, Blake3("a")}, 2u << 20));
  EXPECT_FALSE(store->Acquire(object->id(), UINT64_MAX));
  EXPECT_EQ(store->Acquire(object->id(), 7).error().code(), Code::kInvalid) << "in use with another size";
}

TEST_F(StoreTest, AFileThatChangedUnderOneVersionIsNoMixture) {
  const std::string content = Bytes(3 * kUnitBytes, 6), other = Bytes(3 * kUnitBytes, 7);
  auto store = Open();
  auto object = *store->Acquire(ProvisionalId("h", 1, 2, 3, content.size()), content.size());
  ASSERT_TRUE(PutUnits(*object, content, 0, 1));
  EXPECT_EQ(PutUnits(*object, other, 0, 2).error().code(), Code::kAborted);
  std::string back(kUnitBytes, '\0');
  ASSERT_TRUE(object->Read(0, back.data(), back.size()));
  EXPECT_TRUE(back == content.substr(0, kUnitBytes));
}

TEST_F(StoreTest, ContentThatIsNotWhatItsIdSaysIsThrownAway) {
  for (size_t size : {size_t{5000}, size_t{5 * kUnitBytes}, size_t{80 * kUnitBytes}}) {
    const std::string content = Bytes(size, 8), lie = Bytes(size, 9);
    auto store = Open();
    auto object = *store->Acquire(FinalId(content), size);
    Status put = PutAll(*object, lie);
    EXPECT_EQ(put.error().code(), Code::kCorrupt) << size;
    EXPECT_FALSE(object->Has(0, 1)) << size;
    EXPECT_TRUE(PutAll(*object, content)) << size;
    EXPECT_TRUE(ReadAll(*object) == content) << size;
  }
}

TEST_F(StoreTest, ALieUnderAFinalIdGivesWayToTheTruth) {
  const std::string content = Bytes(80 * kUnitBytes, 8), lie = Bytes(80 * kUnitBytes, 9);
  auto store = Open();
  auto object = *store->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutUnits(*object, lie, 3, 2));
  ASSERT_TRUE(PutAll(*object, content));
  EXPECT_TRUE(ReadAll(*object) == content);
}

TEST_F(StoreTest, ResolveGivesTheFinalNameForEver) {
  for (size_t size : {size_t{900}, size_t{4 * kUnitBytes + 1}, size_t{120 * kUnitBytes}}) {
    const std::string content = Bytes(size, 10);
    const ObjectId provisional = ProvisionalId("h", 1, 2, 3, size), final_id = FinalId(content);
    {
      auto store = Open();
      auto object = *store->Acquire(provisional, size);
      if (size > kUnitBytes) {
        ASSERT_TRUE(PutUnits(*object, content, 0, 2));
      }
      ASSERT_TRUE(object->Resolve(final_id));
      EXPECT_EQ(object->id(), final_id);
      ASSERT_TRUE(PutAll(*object, content));
      EXPECT_TRUE(ReadAll(*object) == content);
      EXPECT_EQ((*store->Acquire(provisional, size))->id(), final_id);
      EXPECT_TRUE(object->Resolve(final_id));
      EXPECT_EQ(object->Resolve({final_id.algorithm, Sha256("other")}).error().code(), Code::kInvalid);
    }
    auto store = Open();
    auto object = *store->Acquire(provisional, size);
    EXPECT_EQ(object->id(), final_id);
    EXPECT_TRUE(ReadAll(*object) == content);
    EXPECT_EQ(CountFiles(".0"), 0) << "nothing is left under the provisional name";
  }
}

TEST_F(StoreTest, ResolveMergesUnits) {
  const std::string content = Bytes(120 * kUnitBytes, 11);
  auto store = Open();
  auto known = *store->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutUnits(*known, content, 0, 60));
  auto object = *store->Acquire(ProvisionalId("h", 1, 2, 3, content.size()), content.size());
  ASSERT_TRUE(PutUnits(*object, content, 40, 80));
  ASSERT_TRUE(object->Resolve(FinalId(content)));
  EXPECT_TRUE(known->complete());
  EXPECT_TRUE(ReadAll(*object) == content);
  EXPECT_EQ(CountFiles(".0"), 0);
}

TEST_F(StoreTest, ResolveToAFalseNameKeepsNothing) {
  const std::string content = Bytes(120 * kUnitBytes, 11);
  auto store = Open();
  auto object = *store->Acquire(ProvisionalId("h", 1, 2, 3, content.size()), content.size());
  ASSERT_TRUE(PutAll(*object, content));
  const ObjectId lie{IdAlgorithm::kBlake3Units, Blake3("lie")};
  EXPECT_EQ(object->Resolve(lie).error().code(), Code::kCorrupt);
  EXPECT_FALSE((*store->Acquire(lie, content.size()))->Has(0, 1));
}

TEST_F(StoreTest, SmallProvisionalFileNamesItself) {
  const std::string content = Bytes(3000, 12);
  auto store = Open();
  auto object = *store->Acquire(ProvisionalId("h", 1, 2, 3, content.size()), content.size());
  ASSERT_TRUE(PutAll(*object, content));
  EXPECT_EQ(object->id(), FinalId(content));
  EXPECT_TRUE(ReadAll(*object) == content);
}

// Every way of damaging the files of a complete object. After a restart the damage is detected, only damaged parts are
// gone, and after a refill all is well.
TEST_F(StoreTest, DamageOnDiskIsNeverServed) {
  const auto flip = [](const std::string& path, uint64_t at) {
    auto fd = OpenFile(path, O_RDWR);
    char c;
    ASSERT_EQ(::pread(fd->get(), &c, 1, static_cast<off_t>(at)), 1);
    c = static_cast<char>(c ^ 0x10);
    ASSERT_EQ(::pwrite(fd->get(), &c, 1, static_cast<off_t>(at)), 1);
  };
  struct Damage {
    const char* what;
    std::function<void(const std::string& path)> apply;
  };
  const std::vector<Damage> damages = {
      {"bit flip", [&](const std::string& p) { flip(p, 100); }},
      {"bit flip late", [&](const std::string& p) { flip(p, fs::file_size(p) - 1); }},
      {"truncated", [](const std::string& p) { fs::resize_file(p, fs::file_size(p) / 2); }},
      {"emptied", [](const std::string& p) { fs::resize_file(p, 0); }},
      {"grown", [](const std::string& p) { fs::resize_file(p, fs::file_size(p) + 4096); }},
      {"zeroed",
       [](const std::string& p) {
         auto n = fs::file_size(p);
         fs::resize_file(p, 0);
         fs::resize_file(p, n);
       }},
      {"removed", [](const std::string& p) { fs::remove(p); }},
      {"replaced by a directory",
       [](const std::string& p) {
         fs::remove(p);
         fs::create_directory(p);
       }},
      {"replaced by a link",
       [](const std::string& p) {
         fs::remove(p);
         fs::create_symlink("/etc/passwd", p);
       }},
      {"foreign",
       [](const std::string& p) {
         fs::remove(p);
         std::ofstream(p) << "not ours at all";
       }},
  };
  for (size_t size : {size_t{20000}, size_t{9 * kUnitBytes + 7}, size_t{120 * kUnitBytes}}) {
    const std::string content = Bytes(size, 13);
    for (const auto& damage : damages) {
      for (const char* suffix : {"", ".map"}) {
        if (*suffix && size <= kUnitBytes) continue;
        SCOPED_TRACE(std::string(damage.what) + suffix + " " + std::to_string(size));
        {
          auto store = Open();
          ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), size), content));
        }
        damage.apply(PathOf(FinalId(content)) + suffix);
        auto store = Open();
        auto object = *store->Acquire(FinalId(content), size);
        ExpectOnlyTrue(*object, content);
        if (auto fd = object->OpenForPassthrough()) {
          std::string whole(size + 4096, '\0');
          whole.resize(*PreadUpTo(fd->get(), whole.data(), whole.size(), 0));
          EXPECT_TRUE(whole == content);
        }
        if (fs::is_directory(PathOf(FinalId(content)) + suffix)) {
          // An obstacle in the way: nothing can be written there, but nothing wrong is served and nothing crashes.
          object.reset();
          store.reset();
          fs::remove_all(PathOf(FinalId(content)) + suffix);
          continue;
        }
        ASSERT_TRUE(PutAll(*object, content));
        EXPECT_TRUE(ReadAll(*object) == content);
        EXPECT_TRUE(object->OpenForPassthrough());
      }
    }
  }
}

TEST_F(StoreTest, OnlyTheDamagedUnitIsLost) {
  const std::string content = Bytes(10 * kUnitBytes, 14);
  {
    auto store = Open();
    ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content));
  }
  auto fd = OpenFile(PathOf(FinalId(content)), O_RDWR);
  ASSERT_EQ(::pwrite(fd->get(), "damage", 6, 4 * kUnitBytes + 17), 6);
  auto store = Open();
  auto object = *store->Acquire(FinalId(content), content.size());
  std::string all(content.size(), '\0');
  EXPECT_EQ(object->Read(0, all.data(), all.size()).error().code(), Code::kNotFound);
  EXPECT_THAT(object->MissingUnits(0, content.size()), ElementsAre(UnitRange{4, 1}));
  EXPECT_EQ(store->stats().corrupt_units, 1u);
  ASSERT_TRUE(PutUnits(*object, content, 4, 1));
  EXPECT_TRUE(ReadAll(*object) == content);
  object.reset();
  store = Open();
  EXPECT_TRUE(ReadAll(**store->Acquire(FinalId(content), content.size())) == content) << "the repair is remembered";
}

TEST_F(StoreTest, SwappedFilesAreFoundOut) {
  const std::string a = Bytes(9 * kUnitBytes, 15), b = Bytes(9 * kUnitBytes, 16);
  for (bool with_map : {false, true}) {
    {
      auto store = Open();
      ASSERT_TRUE(PutAll(**store->Acquire(FinalId(a), a.size()), a));
      ASSERT_TRUE(PutAll(**store->Acquire(FinalId(b), b.size()), b));
    }
    const auto swap = [](const std::string& x, const std::string& y) {
      fs::rename(x, x + ".swap");
      fs::rename(y, x);
      fs::rename(x + ".swap", y);
    };
    swap(PathOf(FinalId(a)), PathOf(FinalId(b)));
    if (with_map) swap(PathOf(FinalId(a)) + ".map", PathOf(FinalId(b)) + ".map");
    auto store = Open();
    auto object = *store->Acquire(FinalId(a), a.size());
    EXPECT_FALSE(object->Has(0, 1));
    ExpectOnlyTrue(*object, a);
    ASSERT_TRUE(PutAll(*object, a));
    EXPECT_TRUE(ReadAll(*object) == a);
    fs::remove_all(directory_ + "/store");
  }
}

TEST_F(StoreTest, VerifyFindsAndDropsDamage) {
  const std::string small = Bytes(5000, 17), large = Bytes(9 * kUnitBytes, 18);
  auto store = Open();
  ASSERT_TRUE(PutAll(**store->Acquire(FinalId(small), small.size()), small));
  ASSERT_TRUE(PutAll(**store->Acquire(FinalId(large), large.size()), large));
  ASSERT_TRUE(store->PutBlob(Sha256("blob"), "blob"));
  auto report = store->Verify();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->objects, 3u);
  EXPECT_EQ(report->units, 11u);
  EXPECT_EQ(report->corrupt_units, 0u);
  fs::resize_file(PathOf(FinalId(small)), 4999);
  fs::resize_file(PathOf(FinalId(large)), 5 * kUnitBytes + 1);
  report = store->Verify();
  EXPECT_EQ(report->corrupt_units, 5u);
  EXPECT_EQ(store->Verify()->corrupt_units, 0u);
}

TEST_F(StoreTest, BlobsSurviveARestartAndDamageIsNotServed) {
  std::vector<std::string> blobs;
  for (int i = 0; i < 500; ++i) blobs.push_back(Bytes(static_cast<size_t>(i * 7 % 3000), 100 + i));
  {
    auto store = Open();
    for (const auto& b : blobs) ASSERT_TRUE(store->PutBlob(Sha256(b), b));
    for (const auto& b : blobs) EXPECT_TRUE(*store->GetBlob(Sha256(b)) == b);
    EXPECT_FALSE(store->GetBlob(Sha256("absent")));
  }
  auto store = Open();
  for (const auto& b : blobs) EXPECT_TRUE(*store->GetBlob(Sha256(b)) == b);
  store.reset();
  for (const auto& entry : fs::directory_iterator(directory_ + "/store/blobs")) {
    auto fd = OpenFile(entry.path(), O_RDWR);
    for (uint64_t at = 5000; at < fs::file_size(entry.path()); at += 50000)
      ASSERT_TRUE(PwriteAll(fd->get(), "XXXX", at));
    fs::resize_file(entry.path(), fs::file_size(entry.path()) - 3);
  }
  store = Open();
  for (const auto& b : blobs) {
    auto got = store->GetBlob(Sha256(b));
    if (got)
      EXPECT_TRUE(*got == b);
    else
      EXPECT_EQ(got.error().code(), Code::kNotFound);
    ASSERT_TRUE(store->PutBlob(Sha256(b), b));
    EXPECT_TRUE(*store->GetBlob(Sha256(b)) == b);
  }
}

TEST_F(StoreTest, StaysBelowItsLimitAndKeepsWhatIsInUse) {
  auto store = Open({.max_bytes = 40 * kUnitBytes, .min_free_bytes = 0});
  const std::string kept = Bytes(4 * kUnitBytes, 1000);
  auto pinned = *store->Acquire(FinalId(kept), kept.size());
  ASSERT_TRUE(PutAll(*pinned, kept));
  for (int i = 0; i < 100; ++i) {
    const std::string content = Bytes((static_cast<size_t>(i) % 5 + 1) * kUnitBytes / 2, i);
    auto object = *store->Acquire(FinalId(content), content.size());
    ASSERT_TRUE(PutAll(*object, content));
    EXPECT_TRUE(ReadAll(*object) == content);
    EXPECT_LE(store->stats().bytes, 40 * kUnitBytes);
  }
  EXPECT_GT(store->stats().evictions, 0u);
  EXPECT_TRUE(ReadAll(*pinned) == kept);
  EXPECT_LE(DiskUse(), 44 * kUnitBytes);

  // All in use: refused without damage.
  std::vector<std::shared_ptr<Object>> all;
  Status put;
  for (int i = 200; i < 300 && put; ++i) {
    const std::string content = Bytes(2 * kUnitBytes, i);
    all.push_back(*store->Acquire(FinalId(content), content.size()));
    put = PutAll(*all.back(), content);
  }
  EXPECT_EQ(put.error().code(), Code::kExhausted);
  EXPECT_TRUE(ReadAll(*pinned) == kept);
  all.clear();
  EXPECT_LE(*store->Prune(10 * kUnitBytes), 10 * kUnitBytes);
  EXPECT_TRUE(ReadAll(*pinned) == kept);
}

TEST_F(StoreTest, CountsAndBoundsWhatWasThereBefore) {
  {
    auto store = Open();
    for (int i = 0; i < 50; ++i) {
      const std::string content = Bytes(2 * kUnitBytes, i);
      ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content));
    }
  }
  auto store = Open({.max_bytes = 20 * kUnitBytes, .min_free_bytes = 0});
  store->WaitForScan();
  EXPECT_LE(store->stats().bytes, 20 * kUnitBytes);
  EXPECT_LE(DiskUse(), 24 * kUnitBytes);
  EXPECT_GT(store->stats().objects, 3u);
}

TEST_F(StoreTest, FewDescriptors) {
  auto store = Open({.max_open_files = 32});
  std::vector<std::pair<std::shared_ptr<Object>, std::string>> all;
  const int before = OpenDescriptors();
  for (int i = 0; i < 200; ++i) {
    std::string content = Bytes(2 * kUnitBytes, i);
    all.emplace_back(*store->Acquire(FinalId(content), content.size()), content);
    ASSERT_TRUE(PutAll(*all.back().first, content));
  }
  for (auto& [object, content] : all) EXPECT_TRUE(ReadAll(*object) == content);
  EXPECT_LE(OpenDescriptors() - before, 33);
}

TEST_F(StoreTest, AnEvictedObjectOfAnotherProcessIsNoHole) {
  // Two stores on one directory behave like two processes: all state is per Store.
  auto mine = Open({.max_open_files = 2}), theirs = Open();
  const std::string content = Bytes(8 * kUnitBytes, 20), other = Bytes(8 * kUnitBytes, 21);
  auto object = *mine->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutAll(*object, content));
  theirs->WaitForScan();
  ASSERT_TRUE(theirs->Acquire(FinalId(content), content.size()));
  ASSERT_TRUE((*theirs->Acquire(FinalId(content), content.size()))->Has(0, 1));
  ASSERT_TRUE(theirs->Prune(0));
  EXPECT_TRUE(ReadAll(*object) == content) << "the open descriptor still has it";
  // The other store recreates it with one unit; the LRU closes our descriptors.
  ASSERT_TRUE(PutUnits(**theirs->Acquire(FinalId(content), content.size()), content, 2, 1));
  ASSERT_TRUE(PutAll(**mine->Acquire(FinalId(other), other.size()), other));
  std::string all(content.size(), '\0');
  EXPECT_EQ(object->Read(0, all.data(), all.size()).error().code(), Code::kNotFound);
  EXPECT_THAT(object->MissingUnits(0, content.size()), ElementsAre(UnitRange{0, 2}, UnitRange{3, 5}));
  ASSERT_TRUE(PutAll(*object, content));
  EXPECT_TRUE(ReadAll(*object) == content);
  EXPECT_EQ(ReadAll(**theirs->Acquire(FinalId(content), content.size())).size(), content.size());
}

TEST_F(StoreTest, AgreesWithAMapOverRandomOperations) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::string> contents;
  for (int i = 0; i < 12; ++i) contents.push_back(Bytes(random() % (24 * kUnitBytes), 5000 + i));
  auto store = Open({.max_bytes = 100 * kUnitBytes, .min_free_bytes = 0, .max_open_files = 8});
  for (int step = 0; step < 1500; ++step) {
    const size_t n = random() % contents.size();
    const std::string& content = contents[n];
    const bool provisional = random() % 2;
    const ObjectId id = provisional ? ProvisionalId("h", n, 0, 0, content.size()) : FinalId(content);
    auto object = *store->Acquire(id, content.size());
    const uint64_t units = UnitCount(content.size());
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        if (units > 0) {
          const uint64_t first = random() % units;
          const uint64_t count = 1 + random() % (units - first);
          ASSERT_TRUE(PutUnits(*object, content, first, count));
        }
        break;
      case 3: ASSERT_TRUE(object->Resolve(FinalId(content))); break;
      case 4:
        if (random() % 20 == 0) {
          object.reset();
          store = Open({.max_bytes = 100 * kUnitBytes, .min_free_bytes = 0, .max_open_files = 8});
        }
        break;
      case 5:
        if (random() % 10 == 0) {
          ASSERT_TRUE(store->Prune(random() % (100 * kUnitBytes)));
        }
        break;
      default: {
        const uint64_t offset = random() % (content.size() + 10), length = random() % (3 * kUnitBytes);
        std::string buffer(length, '\0');
        const bool has = object->Has(offset, length);
        auto got = object->Read(offset, buffer.data(), length);
        ASSERT_EQ(got.has_value(), has);
        if (got) {
          buffer.resize(*got);
          ASSERT_TRUE(buffer == (offset < content.size() ? content.substr(offset, length) : ""));
        }
      }
    }
  }
  EXPECT_EQ(store->stats().corrupt_units, 0u);
  EXPECT_EQ(store->Verify()->corrupt_units, 0u);
}

TEST_F(StoreTest, ADirectoryThatCannotBeUsedIsOneClearError) {
  std::ofstream(directory_ + "/file") << "x";
  auto store = Store::Open({.directory = directory_ + "/file/store"});
  ASSERT_FALSE(store);
  EXPECT_THAT(store.error().message(), testing::HasSubstr("content cache"));
}

}  // namespace
}  // namespace vrun::store
