// SPDX-License-Identifier: Apache-2.0
// A collection whose snapshots are kept by a real S3 server. The test signs like the controller.
#include "snapshots/vault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <atomic>
#include <filesystem>
#include <map>

#include "base/clock.h"
#include "s3/s3_testing.h"
#include "snapshots/testing/collection_testing.h"

namespace vrun::snapshots {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class VaultTest : public CollectionTest {
 protected:
  void SetUp() override {
    server_s3_ = s3::TestServer::Start();
    if (!server_s3_) GTEST_SKIP() << "no S3 server: tools/install-deps --test installs node and its packages";
    vault_ = VaultPlace{"testbucket", "anna@laptop", [this](const v1::VaultPresign& r) { return Sign(r); }, 0};
    CollectionTest::SetUp();
  }

  Result<v1::PresignReply> Sign(const v1::VaultPresign& request) {
    if (away_) return Error(Code::kUnavailable, "the controller is away");
    const bool put = request.method() == v1::VaultPresign::PUT;
    if (request.method() == v1::VaultPresign::GET) ++gets_;
    if (put && puts_left_-- <= 0) return Error(Code::kUnavailable, "the controller has gone");
    const char* const methods[] = {"", "GET", "PUT", "DELETE"};
    const s3::Bucket bucket = server_s3_->bucket();
    const s3::Presigner presigner(s3::TestServer::keys(), bucket.host(), bucket.region, WallMicros(), 900);
    v1::PresignReply reply;
    const std::string directory = "snapshots/" + s3::Hex(request.owner()) + "/";
    for (const std::string& name : request.name()) {
      reply.add_key(s3::Hex(name));
      reply.add_signature(presigner.Sign(methods[request.method()], bucket.PathOf(directory + s3::Hex(name))));
    }
    reply.set_base(bucket.base() + bucket.PathOf(directory));
    reply.set_query(presigner.query());
    reply.set_seal(std::string(32, 's'));
    return reply;
  }
  // As if the snapshot store's host had been replaced.
  void LoseTheDisk() {
    Disconnect();
    collection_.reset();
    for (const auto& entry : std::filesystem::directory_iterator(disk_.path())) std::filesystem::remove_all(entry);
    store_id_ += "-of-another-host";
    OpenCollection();
  }
  // Objects put under this name arrive, but the answer is lost; "": stop.
  void LoseAnswersTo(const std::string& object) const {
    const std::string file = server_s3_->directory() + "/lose-answers-to";
    if (object.empty())
      std::filesystem::remove(file);
    else
      ASSERT_TRUE(WriteFileAtomic(file, s3::Hex(object), 0600));
  }
  // The server's files that hold an object, with their sizes.
  std::map<std::string, uint64_t> Objects(const std::string& kind = "") const {
    std::map<std::string, uint64_t> all;
    for (const auto& file : std::filesystem::recursive_directory_iterator(server_s3_->directory())) {
      const std::string path = file.path();
      if (path.ends_with("_object") && path.find("/" + s3::Hex(kind)) != std::string::npos)
        all[path] = file.file_size();
    }
    return all;
  }
  uint64_t BucketBytes() const {
    uint64_t bytes = 0;
    for (const auto& [path, size] : Objects()) bytes += size;
    return bytes;
  }

  std::unique_ptr<s3::TestServer> server_s3_;
  std::atomic<bool> away_ = false;
  std::atomic<int> puts_left_ = 1 << 30;
  std::atomic<int> gets_ = 0;
};

TEST_F(VaultTest, ALostDiskIsNoLoss) {
  const std::string large = Random(9'500'000, 1), middle = Random(300'000, 2);
  Write("bin/large", large);
  Write("bin/middle", middle);
  Write("etc/small", "small\n");
  Write("etc/empty", "");
  // A directory whose object has several pieces.
  for (int i = 0; i < 3000; ++i) Write("many/" + std::string(150, 'n') + std::to_string(i), i == 7 ? "seven" : "");
  const v1::SnapshotInfo info = Made("one");
  EXPECT_EQ(info.bucket(), "testbucket");
  std::filesystem::remove_all(root_.path() + "/bin");
  LoseTheDisk();
  Disconnect();
  ASSERT_EQ(collection_->List().size(), 1u);
  EXPECT_EQ(collection_->List()[0].SerializeAsString(), info.SerializeAsString())
      << "the id too, by which nodes know its content";
  EXPECT_LT(DiskBytes(), 1'000'000u) << "content comes when it is read";
  EXPECT_EQ(*Read("one", "/bin/large"), large);
  EXPECT_EQ(*Read("one", "/bin/middle"), middle);
  EXPECT_EQ(*Read("one", "/etc/small"), "small\n");
  EXPECT_EQ(*Read("one", "/etc/empty"), "");
  EXPECT_EQ(*Read("one", "/many/" + std::string(150, 'n') + "7"), "seven");
  // Now from the disk.
  away_ = true;
  OpenCollection();
  Disconnect();
  EXPECT_EQ(*Read("one", "/bin/large"), large);
}

TEST_F(VaultTest, AnUnnamedSnapshotIsUsedBeforeItIsThere) {
  const std::string large = Random(9'500'000, 1);
  Write("bin/large", large);
  Write("etc/small", "small\n");
  Write("etc/lost", "as announced");
  const tree::TreePtr tree = Scan();
  pins_.push_back(trees_.Add(tree, {}));
  v1::CreateSnapshot request;
  request.set_name(".away-1");
  request.set_home_id(kHomeId);
  request.set_tree(std::string(tree->id.view()));
  const auto announced = collection_->Announce(request);
  ASSERT_TRUE(announced) << announced.error().message();
  EXPECT_EQ(announced->reference().id(), "");
  const auto read = [&](const std::string& path, uint64_t offset, uint64_t length) -> Result<std::string> {
    VRUN_ASSIGN(const auto snapshot, collection_->Find(announced->reference()));
    VRUN_ASSIGN(const tree::Entry entry, tree::Lookup(*snapshot->tree, path));
    VRUN_ASSIGN(const UniqueFd fd, snapshot->realm->files().OpenPart(path, entry.version(), offset, length));
    std::string bytes(std::min(length, entry.size - offset), '\0');
    VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), bytes.data(), bytes.size(), offset));
    bytes.resize(n);
    return bytes;
  };
  EXPECT_EQ(*read("/etc/small", 0, 100), "small\n");
  EXPECT_EQ(*read("/bin/large", 8'000'000, 1000), large.substr(8'000'000, 1000));
  EXPECT_TRUE(collection_->List().empty());
  Write("etc/lost", "and then changed");
  const auto created = collection_->Create(request, nullptr);
  ASSERT_TRUE(created) << created.error().message();
  EXPECT_THAT(created->changed, ElementsAre("/etc/lost"));
  EXPECT_NE(created->info.reference().id(), "");
  // Without home, and by the reference that the job was submitted with.
  LoseTheDisk();
  Disconnect();
  EXPECT_EQ(*read("/bin/large", 0, large.size()), large);
  EXPECT_FALSE(read("/etc/lost", 0, 100)) << "never something else";
  ASSERT_TRUE(collection_->Delete({".away-1"}));
  EXPECT_EQ(collection_->Find(announced->reference()).error().code(), Code::kNotFound);
}

TEST_F(VaultTest, APartOfALargeFileComesWithoutTheRest) {
  const std::string large = Random(60'000'000, 1);
  Write("large", large);
  Made("one");
  LoseTheDisk();
  Disconnect();
  gets_ = 0;
  // Scattered reads: one pack each.
  for (const uint64_t offset : {50'000'000, 11'000'000, 30'000'000}) {
    EXPECT_EQ(*ReadPart("one", "/large", offset, 1000), large.substr(offset, 1000));
  }
  EXPECT_EQ(gets_, 3);
  EXPECT_EQ(ReadPart("one", "/large", 59'999'000, 5000)->size(), 1000u) << "cut at its end";
  EXPECT_EQ(*ReadPart("one", "/large", 50'001'000, 1000), large.substr(50'001'000, 1000));
  EXPECT_EQ(gets_, 4) << "what was beside it is here";
  // A mere guess does not fetch it.
  const auto snapshot = *collection_->Find("one");
  const auto entry = tree::Lookup(*snapshot->tree, "/large");
  EXPECT_EQ(snapshot->realm->files().OpenAtHand("/large", entry->version()).error().code(), Code::kUnavailable);
  EXPECT_EQ(gets_, 4);
  // A sequential reader gets read-ahead, and nothing is fetched twice.
  for (uint64_t at = 0; at < large.size(); at += 1 << 20) {
    ASSERT_EQ(*ReadPart("one", "/large", at, 1 << 20), large.substr(at, 1 << 20)) << at;
  }
  EXPECT_EQ(static_cast<size_t>(gets_), Objects("pack ").size() - 1) << "all packs of content";
  EXPECT_EQ(*Read("one", "/large"), large);
}

TEST_F(VaultTest, AnObjectThatHadTheNameBeforeIsNone) {
  // The second attempt reuses the first one's numbers, for other content of the same sizes.
  Write("large", Random(6'000'000, 1));
  puts_left_ = 3;
  ASSERT_FALSE(Create("one", Scan()));
  puts_left_ = 1 << 30;
  std::map<std::string, std::string> first;
  for (const auto& [path, size] : Objects("pack ")) first[path] = *ReadFile(path, 8 << 20);
  ASSERT_GE(first.size(), 2u);
  Write("large", Random(6'000'000, 2));
  Made("one");
  for (const auto& [path, bytes] : first) {
    ASSERT_EQ(ReadFile(path, 8 << 20)->size(), bytes.size());
    if (bytes.size() < 1'000'000) continue;  // contains directories
    ASSERT_TRUE(WriteFileAtomic(path, bytes, 0600));
  }
  LoseTheDisk();
  const auto read = ReadPart("one", "/large", 100, 1000);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Code::kCorrupt) << read.error().message();
}

TEST_F(VaultTest, TheNextSnapshotAddsWhatIsNew) {
  Write("large", Random(6'000'000, 3));
  Made("one");
  const uint64_t before = BucketBytes();
  Write("new", Random(50'000, 4));
  EXPECT_EQ(Made("two").sent_bytes(), 50'000u);
  EXPECT_LT(BucketBytes() - before, 80'000u);
  // What the bucket has is not requested from home again after the disk has lost it.
  LoseTheDisk();
  EXPECT_EQ(Made("three").sent_bytes(), 0u);
  EXPECT_THAT(Differences("two", "three"), IsEmpty());
}

TEST_F(VaultTest, NothingReadableIsInTheBucket) {
  Write("secret/name-of-a-file", std::string(100'000, 'x') + "the words of the file");
  Made("one");
  ASSERT_EQ(Objects().size(), 4u) << "directories, content, index, catalog";
  for (const auto& [path, size] : Objects()) {
    const std::string bytes = *ReadFile(path);
    for (const char* word : {"name-of-a-file", "the words", "xxxxxxxx", kHomeId})
      EXPECT_EQ(bytes.find(word), std::string::npos) << path << ": " << word;
  }
}

TEST_F(VaultTest, TheDiskMayBeSmaller) {
  for (int i = 0; i < 20; ++i) Write(std::to_string(i), Random(400'000, static_cast<uint32_t>(i)));
  Made("one");
  vault_->disk_bytes = 2'000'000;
  OpenCollection();
  EXPECT_GT(DiskBytes(), 8'000'000u);
  collection_->Housekeep();
  EXPECT_LT(DiskBytes(), 2'000'000u);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(*Read("one", "/" + std::to_string(i)), Random(400'000, static_cast<uint32_t>(i)));
  collection_->Housekeep();
  EXPECT_LT(DiskBytes(), 2'000'000u);
}

TEST_F(VaultTest, WhatACaptureLeftMayGoFromTheDisk) {
  vault_->disk_bytes = 100'000;
  OpenCollection();
  Write("large", Random(400'000, 1));
  Write("busy", "1");
  const auto tree = Scan();
  Write("busy", "changed since");
  EXPECT_THAT(Create("one", tree)->changed, ElementsAre("/busy"));
  collection_->Housekeep();
  EXPECT_LT(DiskBytes(), 100'000u);
  Made("one");
  EXPECT_EQ(*Read("one", "/large"), Random(400'000, 1));
}

// On a disk of 16 MB without a configured limit.
TEST_F(VaultTest, AFullDiskGivesWayToReadersAndToTheNextSnapshot) {
  Disconnect();
  collection_.reset();
  if (::mount("none", disk_.path().c_str(), "tmpfs", 0, "size=16m") != 0) GTEST_SKIP() << "needs the right to mount";
  OpenCollection();
  Write("first", Random(9'000'000, 1));
  Made("one");
  std::filesystem::remove(root_.path() + "/first");
  // An attempt that leaves its content on the disk, unsynced, and further content for which there is no room.
  Write("second", Random(6'000'000, 2));
  Write("busy", "1");
  const auto tree = Scan();
  Write("busy", "changed since");
  EXPECT_THAT(Create("two", tree)->changed, ElementsAre("/busy"));
  Write("third", Random(7'000'000, 3));
  Made("two");
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(*Read("one", "/first"), Random(9'000'000, 1));
    EXPECT_EQ(*Read("two", "/second"), Random(6'000'000, 2));
    EXPECT_EQ(*Read("two", "/third"), Random(7'000'000, 3));
  }
  Made("three");
  ASSERT_TRUE(collection_->Delete({"one", "two"}));
  EXPECT_EQ(*Read("three", "/third"), Random(7'000'000, 3));
  Disconnect();
  collection_.reset();
  ::umount2(disk_.path().c_str(), MNT_DETACH);
}

TEST_F(VaultTest, ManySmallSnapshotsStayFewObjectsToOpen) {
  Write("shared/large", Random(1'000'000, 3));
  for (int i = 0; i < 40; ++i) {
    Write("own/" + std::to_string(i), Random(2000, static_cast<uint32_t>(i)));
    Made("s" + std::to_string(i));
  }
  EXPECT_LT(Objects("index ").size(), 33u);
  LoseTheDisk();
  ASSERT_EQ(collection_->List().size(), 40u);
  for (int i : {0, 20, 39})
    EXPECT_EQ(*Read("s39", "/own/" + std::to_string(i)), Random(2000, static_cast<uint32_t>(i)));
  EXPECT_EQ(Read("s20", "/own/21").error().code(), Code::kNotFound);
  ASSERT_TRUE(collection_->Delete({"s0", "s1", "s2"}));
  LoseTheDisk();
  EXPECT_EQ(*Read("s3", "/own/0"), Random(2000, 0));
  EXPECT_EQ(*Read("s3", "/shared/large"), Random(1'000'000, 3));
}

TEST_F(VaultTest, WhatTheDiskAloneHasStaysThere) {
  vault_->disk_bytes = 100'000;
  const auto vault = std::exchange(vault_, std::nullopt);
  OpenCollection();
  Write("file", Random(400'000, 1));
  Made("one");
  vault_ = vault;
  puts_left_ = 0;
  OpenCollection();
  collection_->Housekeep();
  EXPECT_GT(DiskBytes(), 400'000u);
  EXPECT_EQ(collection_->List()[0].bucket(), "");
  EXPECT_EQ(*Read("one", "/file"), Random(400'000, 1));
}

TEST_F(VaultTest, SnapshotsFromBeforeMoveThere) {
  const auto vault = std::exchange(vault_, std::nullopt);
  OpenCollection();
  Write("file", Random(400'000, 1));
  Made("one");
  EXPECT_THAT(Objects(), IsEmpty());
  vault_ = vault;
  OpenCollection();
  EXPECT_EQ(collection_->List()[0].bucket(), "testbucket");
  LoseTheDisk();
  EXPECT_EQ(*Read("one", "/file"), Random(400'000, 1));
}

TEST_F(VaultTest, WhatIsDeletedLeavesTheBucketAndNothingElseDoes) {
  Write("shared", Random(3'000'000, 5));
  for (int i = 0; i < 30; ++i) Write("first/" + std::to_string(i), Random(200'000, static_cast<uint32_t>(i)));
  Write("first/kept", "kept");
  Made("one");
  for (int i = 0; i < 30; ++i) std::filesystem::remove(root_.path() + "/first/" + std::to_string(i));
  Made("two");
  const auto freed = collection_->Delete({"one"});
  ASSERT_TRUE(freed) << freed.error().message();
  EXPECT_LT(BucketBytes(), 4'300'000u) << "a pack goes when less than half of it is needed";
  EXPECT_EQ(Objects("catalog").size(), 1u);
  LoseTheDisk();
  ASSERT_EQ(collection_->List().size(), 1u);
  EXPECT_EQ(*Read("two", "/shared"), Random(3'000'000, 5));
  EXPECT_EQ(*Read("two", "/first/kept"), "kept");
  // The still needed part of a removed pack may be deleted too; then only the catalog is left.
  ASSERT_TRUE(collection_->Delete({"two"}));
  EXPECT_EQ(Objects().size(), 1u);
  Write("again", "again");
  Made("three");
  LoseTheDisk();
  EXPECT_EQ(*Read("three", "/again"), "again");
}

TEST_F(VaultTest, AStoreThatIsAwayIsSaidAndCostsNothing) {
  Write("file", "content");
  Made("one");
  away_ = true;
  OpenCollection();
  EXPECT_EQ(*Read("one", "/file"), "content") << "the disk has it";
  Write("more", "m");
  const auto refused = Create("two", Scan());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("the S3 store that keeps the snapshots: the controller is away"));
  EXPECT_FALSE(collection_->Delete({"one"}));
  EXPECT_EQ(*Read("one", "/file"), "content") << "nothing was deleted";
  away_ = false;
  collection_->Housekeep();
  EXPECT_EQ(Made("two").bucket(), "testbucket");
}

TEST_F(VaultTest, ADiskThatWasLostWhileTheStoreIsAwayIsFilledWhenItIsBack) {
  Write("file", "content");
  Made("one");
  away_ = true;
  LoseTheDisk();
  EXPECT_THAT(collection_->List(), IsEmpty());
  away_ = false;
  collection_->Housekeep();
  EXPECT_EQ(*Read("one", "/file"), "content");
}

TEST_F(VaultTest, WhatFailsInTheMiddleIsAsIfItHadNotBegun) {
  Write("old", Random(1'000'000, 1));
  Made("one");
  for (int i = 0; i < 10; ++i) Write(std::to_string(i), Random(3'000'000, static_cast<uint32_t>(i + 10)));
  // Fails after this number of stored objects: packs, the index, the catalog.
  for (const int puts : {1, 5, 8, 9}) {
    puts_left_ = puts;
    const auto refused = Create("two", Scan());
    ASSERT_FALSE(refused) << puts;
    EXPECT_THAT(refused.error().message(), HasSubstr("the controller has gone"));
    puts_left_ = 1 << 30;
    LoseTheDisk();
    ASSERT_EQ(collection_->List().size(), 1u);
    EXPECT_EQ(*Read("one", "/old"), Random(1'000'000, 1));
  }
  const uint64_t before = BucketBytes();
  Made("two");
  EXPECT_LT(BucketBytes(), before + 10'000'000) << "what was left behind is written over";
  LoseTheDisk();
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(*Read("two", "/" + std::to_string(i)), Random(3'000'000, static_cast<uint32_t>(i + 10)));
}

TEST_F(VaultTest, AChangeWhoseAnswerWasLostIsKnownBeforeTheNext) {
  Write("shared", Random(3'000'000, 1));
  Made("one");
  LoseAnswersTo("catalog");
  ASSERT_FALSE(collection_->Delete({"one"}));
  LoseAnswersTo("");
  // It was deleted: the next one cannot reuse its content.
  Write("new", "new");
  Made("two");
  LoseTheDisk();
  ASSERT_EQ(collection_->List().size(), 1u);
  EXPECT_EQ(*Read("two", "/shared"), Random(3'000'000, 1));
  // And it was created: what it needs stays when another one is deleted.
  Write("more", Random(2'000'000, 2));
  LoseAnswersTo("catalog");
  ASSERT_FALSE(Create("three", Scan()));
  LoseAnswersTo("");
  ASSERT_TRUE(collection_->Delete({"two"}));
  LoseTheDisk();
  ASSERT_EQ(collection_->List().size(), 1u);
  EXPECT_EQ(*Read("three", "/more"), Random(2'000'000, 2));
  EXPECT_EQ(*Read("three", "/shared"), Random(3'000'000, 1));
}

TEST_F(VaultTest, WhileTheStoreIsNotReachedNobodyIsToldThatThereIsNone) {
  Write("file", "content");
  Made("one");
  away_ = true;
  LoseTheDisk();
  EXPECT_EQ(collection_->Find("one").error().code(), Code::kUnavailable);
  EXPECT_FALSE(collection_->Readable());
  away_ = false;
  collection_->Housekeep();
  EXPECT_TRUE(collection_->Find("one"));
  EXPECT_EQ(collection_->Find("other").error().code(), Code::kNotFound);
}

TEST_F(VaultTest, DamageInTheBucketIsAnErrorAndNoWrongByte) {
  for (int i = 0; i < 4; ++i) Write(std::to_string(i), Random(3'500'000, static_cast<uint32_t>(i)));
  Made("one");
  // Exchanges two packs, truncates one, flips a bit in one.
  std::vector<std::string> packs;
  for (const auto& [path, size] : Objects("pack ")) {
    if (size > 3'000'000) packs.push_back(path);
  }
  ASSERT_GE(packs.size(), 3u);
  const std::string first = *ReadFile(packs[0], 8 << 20);
  std::string flipped = *ReadFile(packs[2], 8 << 20);
  flipped[flipped.size() / 2] ^= 1;
  ASSERT_TRUE(WriteFileAtomic(packs[1], first, 0600));
  ASSERT_TRUE(WriteFileAtomic(packs[0], first.substr(0, 100'000), 0600));
  ASSERT_TRUE(WriteFileAtomic(packs[2], flipped, 0600));
  LoseTheDisk();
  int damaged = 0;
  for (int i = 0; i < 4; ++i) {
    const auto read = Read("one", "/" + std::to_string(i));
    if (read) {
      EXPECT_EQ(*read, Random(3'500'000, static_cast<uint32_t>(i)));
      continue;
    }
    ++damaged;
    EXPECT_EQ(read.error().code(), Code::kCorrupt) << read.error().message();
  }
  EXPECT_GE(damaged, 3);
}

TEST_F(VaultTest, ADamagedCatalogIsSaidAndNothingIsWrittenOver) {
  Write("file", "content");
  Made("one");
  const std::string catalog = Objects("catalog").begin()->first, whole = *ReadFile(catalog);
  ASSERT_TRUE(WriteFileAtomic(catalog, whole.substr(0, whole.size() / 2), 0600));
  OpenCollection();
  Write("more", "more");
  const auto refused = Create("two", Scan());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kCorrupt);
  ASSERT_TRUE(WriteFileAtomic(catalog, whole, 0600));
  Made("two");
}

TEST_F(VaultTest, WhatAnotherStoreHasDeletedIsGone) {
  Write("file", "content");
  Made("one");
  Write("more", "more");
  Made("two");
  {
    home::TestDirectory elsewhere;
    auto other = Collection::Open(&loop_, elsewhere.path(), "other", authority_.Make("snapshots", "snapshots"), vault_);
    ASSERT_TRUE(other);
    ASSERT_TRUE((*other)->Load());
    ASSERT_TRUE((*other)->Delete({"one"}));
  }
  OpenCollection();
  ASSERT_EQ(collection_->List().size(), 1u);
  EXPECT_EQ(*Read("two", "/file"), "content");
}

TEST_F(VaultTest, WhatIsLostOnTheDiskComesBack) {
  Write("file", Random(700'000, 8));
  Made("one");
  for (const auto& file : std::filesystem::recursive_directory_iterator(disk_.path() + "/store/objects")) {
    if (!file.is_regular_file() || file.path().extension() == ".map") continue;
    const UniqueFd fd(::open(file.path().c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(PwriteAll(fd.get(), "damage", 20'000));
  }
  ASSERT_TRUE(WriteFileAtomic(disk_.path() + "/snapshots/one", "rubbish", 0600));
  OpenCollection();
  EXPECT_EQ(*Read("one", "/file"), Random(700'000, 8));
}

}  // namespace
}  // namespace vrun::snapshots
