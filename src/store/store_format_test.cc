// SPDX-License-Identifier: Apache-2.0
// The unit map format, the eviction order, the alias file: properties that hold without disk trouble.
#include <gtest/gtest.h>

#include <random>

#include "store/eviction.h"
#include "store/format/unit_map.h"
#include "store/object_base.h"
#include "store/testing/names_testing.h"

namespace vrun::store {
namespace {

ObjectId Id(int n) { return {IdAlgorithm::kBlake3, Blake3(std::to_string(n))}; }

TEST(ObjectId, IsThatOfTheUnits) {
  const std::string content(3 * kUnitBytes + 7, 'x');
  EXPECT_EQ(FinalId(""), (ObjectId{IdAlgorithm::kBlake3, Blake3("")}));
  EXPECT_EQ(FinalId("abc"), (ObjectId{IdAlgorithm::kBlake3, Blake3("abc")}));
  EXPECT_EQ(FinalId(content.substr(0, kUnitBytes)).algorithm, IdAlgorithm::kBlake3);
  std::string digests;
  for (int i = 0; i < 4; ++i) digests += UnitDigest(UnitOf(content, i)).view();
  EXPECT_EQ(FinalId(content), (ObjectId{IdAlgorithm::kBlake3Units, Blake3(digests)}));
}

TEST(ObjectId, WhatIsNoAlgorithmOfOursIsNoId) {
  for (int number = 0; number < 256; ++number) {
    const std::string raw = static_cast<char>(number) + std::string(32, 'd');
    const auto id = ObjectId::Decode(raw);
    ASSERT_EQ(id.has_value(), number == 0 || number == 3 || number == 4) << number;
    EXPECT_TRUE(!id || id->Encode() == raw);
  }
  EXPECT_FALSE(ObjectId::Decode(FinalId("x").Encode() + "y"));
  EXPECT_FALSE(ObjectId::Decode(""));
}

TEST(UnitMap, HeaderRoundTrip) {
  MapHeader header{.id = Id(1), .size = 3u << 20, .nonce = NewMapNonce(), .content_inode = 77};
  const std::string bytes = EncodeMapHeader(header);
  ASSERT_EQ(bytes.size(), kMapHeaderBytes);
  auto decoded = DecodeMapHeader(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->id, header.id);
  EXPECT_EQ(decoded->size, header.size);
  EXPECT_EQ(decoded->nonce, header.nonce);
  EXPECT_EQ(decoded->content_inode, 77u);
}

TEST(UnitMap, NoDamagedHeaderPasses) {
  const std::string good = EncodeMapHeader({.id = Id(1), .size = 100000, .nonce = NewMapNonce(), .content_inode = 1});
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(DecodeMapHeader(bad)) << bit;
  }
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(DecodeMapHeader(good.substr(0, n)));
}

TEST(UnitMap, NoDamagedOrForeignRecordPasses) {
  const MapNonce nonce = NewMapNonce();
  std::string good;
  EncodeMapRecord(nonce, {true, 12, Sha256("x")}, &good);
  ASSERT_EQ(good.size(), kMapRecordBytes);
  auto record = DecodeMapRecord(nonce, good);
  ASSERT_TRUE(record);
  EXPECT_TRUE(record->present);
  EXPECT_EQ(record->unit, 12u);
  EXPECT_EQ(record->digest, Sha256("x"));
  EXPECT_FALSE(DecodeMapRecord(NewMapNonce(), good));
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(DecodeMapRecord(nonce, bad)) << bit;
  }
}

TEST(EvictionIndex, OldestGoesFirstAndWhatIsUsedTwiceStays) {
  EvictionIndex index(1000);
  for (int i = 0; i < 4; ++i) index.SetBytes(index.Use(Id(i)), 100);
  index.Use(Id(0));  // used again: protected
  std::vector<ObjectId> order;
  EvictionIndex::Entry victim;
  while (index.TakeVictim(&victim)) order.push_back(victim.id);
  EXPECT_EQ(order, (std::vector<ObjectId>{Id(1), Id(2), Id(3), Id(0)}));
  EXPECT_EQ(index.bytes(), 0u);
}

TEST(EvictionIndex, OneWalkOverEverythingDoesNotPushOutTheWorkingSet) {
  EvictionIndex index(500);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 5; ++i) {
      auto& entry = index.Use(Id(i));
      if (entry.bytes == 0) index.SetBytes(entry, 100);
    }
  }
  for (int i = 100; i < 1000; ++i) {
    index.SetBytes(index.Use(Id(i)), 100);
    EvictionIndex::Entry victim;
    while (index.bytes() > 1000) ASSERT_TRUE(index.TakeVictim(&victim));
  }
  for (int i = 0; i < 5; ++i) EXPECT_NE(index.Find(Id(i)), nullptr) << i;
}

TEST(EvictionIndex, ProtectedSegmentIsBounded) {
  EvictionIndex index(300);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 6; ++i) {
      auto& entry = index.Use(Id(i));
      if (entry.bytes == 0) index.SetBytes(entry, 100);
    }
  }
  int is_protected = 0;
  for (int i = 0; i < 6; ++i) is_protected += index.Find(Id(i))->is_protected;
  EXPECT_EQ(is_protected, 3);
}

TEST(EvictionIndex, ScannedObjectsAreOlderThanUsedOnes) {
  EvictionIndex index(1000);
  index.SetBytes(index.Use(Id(1)), 10);
  index.AddOldest(Id(2), 10);
  index.AddOldest(Id(3), 10);
  index.AddOldest(Id(1), 99);  // already known: its size stays
  EvictionIndex::Entry victim;
  ASSERT_TRUE(index.TakeVictim(&victim));
  EXPECT_EQ(victim.id, Id(3));
  ASSERT_TRUE(index.TakeVictim(&victim));
  EXPECT_EQ(victim.id, Id(2));
  EXPECT_EQ(index.bytes(), 10u);
}

TEST(ObjectId, EncodingAndProvisionalIds) {
  EXPECT_EQ(ObjectId::Decode(Id(3).Encode()), Id(3));
  EXPECT_FALSE(ObjectId::Decode("short"));
  EXPECT_FALSE(ObjectId::Decode(std::string(33, '\x7')));
  const ObjectId a = ProvisionalId("u@h", 1, 2, 3, 4);
  EXPECT_EQ(a, ProvisionalId("u@h", 1, 2, 3, 4));
  EXPECT_NE(a, ProvisionalId("u@i", 1, 2, 3, 4));
  EXPECT_NE(a, ProvisionalId("u@h", 1, 2, 4, 3));
}

}  // namespace
}  // namespace vrun::store
