// SPDX-License-Identifier: Apache-2.0
// How the store keeps within its bounds: limits, the watermark, pressure, few descriptors; and complete verification.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "store/testing/store_testing.h"

namespace vrun::store {
namespace {

class StoreNeverEvictsTest : public StoreTestBase {
 protected:
  ObjectId Put(Store& store, int seed, size_t bytes = 8 * kUnitBytes) {
    const std::string content = Bytes(bytes, seed);
    const ObjectId id = FinalId(content);
    EXPECT_TRUE(PutAll(**store.Acquire(id, content.size()), content));
    return id;
  }
  static bool Holds(Store& store, const ObjectId& id, size_t bytes = 8 * kUnitBytes) {
    return (*store.Acquire(id, bytes))->Has(0, bytes);
  }
};

TEST_F(StoreNeverEvictsTest, ANewLimitCountsFromNowOn) {
  auto store = Open({.max_bytes = 1u << 30, .min_free_bytes = 0});
  for (int i = 0; i < 40; ++i) Put(*store, i);
  const uint64_t before = store->stats().bytes;
  store->SetLimit(before / 2);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (store->stats().bytes > before / 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(store->stats().limit_bytes, before / 2);
  for (int i = 40; i < 80; ++i) Put(*store, i);
  EXPECT_LE(store->stats().bytes, before / 2);
  EXPECT_GT(store->stats().bytes, before / 4);
}

TEST_F(StoreNeverEvictsTest, WhatIsKeptWithoutNeedGivesWayUnderPressure) {
  auto store = Open({.max_bytes = 1u << 20, .min_free_bytes = 0});
  std::vector<std::shared_ptr<Object>> kept;
  int asked = 0;
  store->OnPressure([&] {
    ++asked;
    kept.clear();
  });
  for (int i = 0; i < 30; ++i) {
    const std::string content = Bytes(8 * kUnitBytes, i);
    kept.push_back(*store->Acquire(FinalId(content), content.size()));
    std::shared_ptr<Object> object = kept.back();
    ASSERT_TRUE(PutAll(*object, content)) << i;
  }
  EXPECT_GT(asked, 0);
  EXPECT_LE(store->stats().bytes, 1u << 20);
  EXPECT_EQ(store->stats().failed_writes, 0u);
}

TEST_F(StoreNeverEvictsTest, VerifyTellsHowFarItIsAndCanBeStopped) {
  auto store = Open();
  for (int i = 0; i < 5; ++i) Put(*store, i);
  const std::string small = Bytes(1000, 9);
  ASSERT_TRUE(PutAll(**store->Acquire(FinalId(small), small.size()), small));
  std::vector<Store::VerifyReport> seen;
  auto report = store->Verify([&](const Store::VerifyReport& r) {
    seen.push_back(r);
    return true;
  });
  ASSERT_TRUE(report);
  ASSERT_EQ(seen.size(), 6u);
  EXPECT_EQ(seen[2].objects, 3u);
  EXPECT_EQ(seen[2].total_objects, 6u);
  EXPECT_EQ(report->units, 41u);
  EXPECT_EQ(report->bytes, 40 * kUnitBytes + 1000);
  EXPECT_EQ(report->corrupt_units, 0u);
  int calls = 0;
  auto stopped = store->Verify([&](const Store::VerifyReport&) { return ++calls < 2; });
  EXPECT_EQ(stopped.error().code(), Code::kAborted);
  EXPECT_EQ(calls, 2);
}

TEST_F(StoreNeverEvictsTest, LookingAtEverythingIsNoUse) {
  auto store = Open({.max_bytes = 3u << 20, .min_free_bytes = 0});
  const ObjectId first = Put(*store, 0), second = Put(*store, 1);
  EXPECT_TRUE(Holds(*store, second));  // used again: protected
  ASSERT_TRUE(store->Verify());
  for (int i = 2; i < 40; ++i) Put(*store, i);
  EXPECT_FALSE(Holds(*store, first)) << "verified, but never used again";
  EXPECT_TRUE(Holds(*store, second));
}

TEST_F(StoreNeverEvictsTest, WithoutDescriptorsTheOpenOnesAreGivenUp) {
  auto store = Open();
  std::vector<std::shared_ptr<Object>> objects;
  for (int i = 0; i < 60; ++i) {
    const std::string content = Bytes(8 * kUnitBytes, i);
    objects.push_back(*store->Acquire(FinalId(content), content.size()));
    ASSERT_TRUE(PutAll(*objects.back(), content));
  }
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit now{static_cast<rlim_t>(OpenDescriptors()), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  bool all = true;
  for (int i = 60; i < 120; ++i) {
    const std::string content = Bytes(i % 2 ? 1000 : 8 * kUnitBytes, i);
    auto object = *store->Acquire(FinalId(content), content.size());
    all = all && PutAll(*object, content) && ReadAll(*object) == content;
  }
  for (int i = 0; i < 60; ++i) all = all && ReadAll(*objects[static_cast<size_t>(i)]) == Bytes(8 * kUnitBytes, i);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(all);
  EXPECT_EQ(store->stats().failed_writes, 0u);
}

TEST_F(StoreNeverEvictsTest, WithNoDescriptorAtAllNothingIsTakenForLost) {
  auto store = Open();
  const std::string content = Bytes(8 * kUnitBytes, 1);
  ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content));
  store = Open();
  store->WaitForScan();
  auto object = *store->Acquire(FinalId(content), content.size());
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string read = ReadAll(*object);
  const uint64_t held = *store->Prune(0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(read, "");
  EXPECT_GT(held, content.size());
  EXPECT_TRUE(ReadAll(*object) == content);
}

class WatermarkTest : public StoreNeverEvictsTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeDirs(directory_ + "/store", 0700));
    if (::mount("none", (directory_ + "/store").c_str(), "tmpfs", 0, "size=8m") != 0) {
      GTEST_SKIP() << "needs the right to mount";
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2((directory_ + "/store").c_str(), MNT_DETACH);
  }
  // Another user fills the disk.
  void Fill(uint64_t bytes) {
    ASSERT_TRUE(WriteFileAtomic(directory_ + "/store/filler", std::string(bytes, 'x'), 0600));
  }
  static void WaitForFree(const Store& store, uint64_t bytes) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (store.stats().disk_free_bytes < bytes) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "still only " << store.stats().disk_free_bytes;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  bool mounted_ = false;
};

TEST_F(WatermarkTest, TheStoreGivesWayToOthers) {
  auto store =
      Open({.max_bytes = 1u << 30, .min_free_bytes = 0, .min_free_percent = 25, .free_space_check_micros = 10'000});
  for (int i = 0; i < 32; ++i) Put(*store, i);
  const uint64_t before = store->stats().bytes;
  EXPECT_NEAR(static_cast<double>(store->stats().min_free_bytes), 2 << 20, 1 << 16);
  Fill(3u << 20);
  WaitForFree(*store, store->stats().min_free_bytes);
  EXPECT_LT(store->stats().bytes, before);
  EXPECT_GT(store->stats().bytes, 0u) << "no more than is needed";
  EXPECT_GT(store->stats().evictions, 0u);
}

TEST_F(WatermarkTest, WhatIsInUseStaysWhateverOthersDo) {
  auto store =
      Open({.max_bytes = 1u << 30, .min_free_bytes = 0, .min_free_percent = 50, .free_space_check_micros = 10'000});
  const std::string content = Bytes(8 * kUnitBytes, 1000);
  auto object = *store->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutAll(*object, content));
  const ObjectId other = Put(*store, 1);
  Fill(6u << 20);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (Holds(*store, other) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_FALSE(Holds(*store, other));
  EXPECT_TRUE(ReadAll(*object) == content);
}

TEST_F(WatermarkTest, WhoeverCannotDoWithoutIsGivenWay) {
  auto store = Open({.max_bytes = 1u << 30, .min_free_bytes = 0});
  for (int i = 0; i < 32; ++i) Put(*store, i);
  const uint64_t before = store->stats().bytes;
  EXPECT_TRUE(store->GiveWay(ENOSPC, 1u << 20));
  EXPECT_LE(store->stats().bytes + (1u << 20), before);
  EXPECT_GT(store->stats().bytes, 0u) << "no more than is needed";
  EXPECT_TRUE(store->GiveWay(EMFILE, 0));
  EXPECT_FALSE(store->GiveWay(EIO, 1u << 20));
  ASSERT_TRUE(store->Prune(0));
  EXPECT_FALSE(store->GiveWay(ENOSPC, 1u << 20)) << "there is nothing left";
}

TEST_F(StoreNeverEvictsTest, AStoreThatKeepsAllEvictsNothing) {
  auto store = Open({.max_bytes = 1u << 20, .min_free_bytes = UINT64_MAX, .min_free_percent = 99, .never_evict = true});
  std::vector<ObjectId> all;
  for (int i = 0; i < 40; ++i) all.push_back(Put(*store, i));
  const std::string blob = Bytes(3000, 99);
  ASSERT_TRUE(store->PutBlob(Sha256(blob), blob));
  store->SetLimit(1);
  EXPECT_FALSE(store->GiveWay(ENOSPC, 1u << 20));
  for (const ObjectId& id : all) EXPECT_TRUE(Holds(*store, id));
  EXPECT_EQ(store->stats().evictions, 0u);
  // Only on request.
  ASSERT_TRUE(store->Prune(0));
  for (const ObjectId& id : all) EXPECT_FALSE(Holds(*store, id));
  EXPECT_EQ(*store->GetBlob(Sha256(blob)), blob);
}

TEST_F(StoreNeverEvictsTest, WhatHasANameOfSha256GoesFromACacheOnly) {
  const std::string old = std::string(64, 'a'), content = directory_ + "/store/objects/aa/" + old + ".2";
  for (const bool never_evict : {true, false}) {
    Open({.never_evict = never_evict})->WaitForScan();
    for (const std::string& path : {content, content + ".map"}) ASSERT_TRUE(WriteFileAtomic(path, "from before", 0600));
    Open({.never_evict = never_evict})->WaitForScan();
    EXPECT_EQ(PathExists(content), never_evict);
    EXPECT_EQ(PathExists(content + ".map"), never_evict);
  }
}

TEST_F(StoreNeverEvictsTest, SweepLeavesWhatIsNeededAndNothingElse) {
  auto store = Open({.never_evict = true});
  const ObjectId large = Put(*store, 1), small = Put(*store, 2, 100), other = Put(*store, 3),
                 little = Put(*store, 4, 50);
  const std::string needed = Bytes(5000, 5), useless = Bytes(100'000, 6);
  ASSERT_TRUE(store->PutBlob(Sha256(needed), needed));
  ASSERT_TRUE(store->PutBlob(Sha256(useless), useless));
  auto freed = store->Sweep([&](const ObjectId& id) { return id == large || id == small; },
                            [&](const Digest& blob) { return blob == Sha256(needed); });
  ASSERT_TRUE(freed) << freed.error().message();
  EXPECT_GE(*freed, 8 * kUnitBytes + 100'000);
  for (int start = 0; start < 2; ++start) {
    EXPECT_TRUE(Holds(*store, large));
    EXPECT_TRUE(Holds(*store, small, 100));
    EXPECT_FALSE(Holds(*store, other));
    EXPECT_FALSE(Holds(*store, little, 50));
    EXPECT_EQ(*store->GetBlob(Sha256(needed)), needed);
    EXPECT_FALSE(store->GetBlob(Sha256(useless)));
    store.reset();
    store = Open({.never_evict = true});
  }
  // Evicted content can be stored again.
  Put(*store, 3);
  EXPECT_TRUE(Holds(*store, other));
  ASSERT_TRUE(store->PutBlob(Sha256(useless), useless));
  EXPECT_EQ(*store->GetBlob(Sha256(useless)), useless);
}

}  // namespace
}  // namespace vrun::store
