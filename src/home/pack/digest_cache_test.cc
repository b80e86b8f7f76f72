// SPDX-License-Identifier: Apache-2.0
#include "home/pack/digest_cache.h"
#include "home/root/root_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/clock.h"
#include "base/files.h"
#include "base/thread/mutex.h"
#include "home/pack/background_hasher.h"
#include "home/pack/unit_digests.h"
#include "home/testing/content_testing.h"

namespace vrun::home {
namespace {

store::ObjectId IdOf(int n) { return {store::IdAlgorithm::kBlake3, Blake3(std::to_string(n))}; }
tree::FileVersion VersionNumber(int n) { return {1, static_cast<uint64_t>(n), 1'000'000, 7}; }
constexpr int64_t kLater = 10'000'000'000;

TEST(DigestCache, RemembersOverARestart) {
  TestDirectory dir;
  {
    DigestCache cache(dir / "digests");
    for (int i = 0; i < 100; ++i) cache.Remember(VersionNumber(i), IdOf(i), kLater);
  }
  DigestCache cache(dir / "digests");
  EXPECT_EQ(cache.size(), 100u);
  EXPECT_EQ(cache.Find(VersionNumber(42)), IdOf(42));
  EXPECT_FALSE(cache.Find(VersionNumber(100)));
}

TEST(DigestCache, AFreshlyChangedFileIsNotRemembered) {
  DigestCache cache("");
  cache.Remember(VersionNumber(1), IdOf(1), 1'000'000 + 1'000'000);
  EXPECT_FALSE(cache.Find(VersionNumber(1)));
}

TEST(DigestCache, ATornOrRottenRecordEndsWhatIsBelieved) {
  TestDirectory dir;
  std::string file = dir / "digests";
  {
    DigestCache cache(file);
    for (int i = 0; i < 10; ++i) cache.Remember(VersionNumber(i), IdOf(i), kLater);
  }
  std::string content = *ReadFile(file);
  // Torn anywhere: the complete records before are there, and new ones can be added.
  for (size_t cut = 0; cut <= content.size(); cut += 13) {
    ASSERT_TRUE(WriteFileAtomic(file, content.substr(0, cut), 0600));
    size_t whole = cut < 8 ? 0 : (cut - 8) / 72;
    {
      DigestCache cache(file);
      EXPECT_EQ(cache.size(), whole) << cut;
      cache.Remember(VersionNumber(99), IdOf(99), kLater);
    }
    DigestCache again(file);
    EXPECT_EQ(again.size(), whole + 1) << cut;
    EXPECT_EQ(again.Find(VersionNumber(99)), IdOf(99));
  }
  // A flipped bit.
  content[8 + 72 * 4 + 20] = static_cast<char>(content[8 + 72 * 4 + 20] ^ 1);
  ASSERT_TRUE(WriteFileAtomic(file, content, 0600));
  DigestCache cache(file);
  EXPECT_EQ(cache.size(), 4u);
}

TEST(DigestCache, IsBounded) {
  TestDirectory dir;
  {
    DigestCache cache(dir / "digests", 100);
    for (int i = 0; i < 1000; ++i) cache.Remember(VersionNumber(i), IdOf(i), kLater);
    EXPECT_LE(cache.size(), 100u);
    EXPECT_TRUE(cache.Find(VersionNumber(999)));
    EXPECT_FALSE(cache.Find(VersionNumber(0)));
  }
  EXPECT_LT(ReadFile(dir / "digests")->size(), 202u * 72);
  DigestCache cache(dir / "digests", 100);
  EXPECT_TRUE(cache.Find(VersionNumber(999)));
}

TEST(DigestCache, WorksWithoutADisk) {
  DigestCache cache("/proc/nowhere/digests");
  cache.Remember(VersionNumber(1), IdOf(1), kLater);
  EXPECT_TRUE(cache.Find(VersionNumber(1)));
}

TEST(BackgroundHasher, NamesALargeFile) {
  TestDirectory root;
  std::string big = RandomBytes(3'000'000, 6);
  root.Put("big", big);
  auto files = RootFiles::Open(root.path());
  ASSERT_TRUE(files);
  struct stat st;
  ASSERT_EQ(::stat((root / "big").c_str(), &st), 0);
  tree::FileVersion version{st.st_dev, st.st_ino, st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec, big.size()};
  Mutex mutex;
  CondVar wake;
  std::optional<store::ObjectId> known;
  BackgroundHasher hasher(
      &*files,
      [&](const tree::FileVersion& v, const store::ObjectId& id) {
        MutexLock lock(mutex);
        EXPECT_EQ(v, version);
        known = id;
        wake.notify_all();
      },
      std::chrono::milliseconds(0));
  hasher.Add("/big", version);
  MutexLock lock(mutex);
  ASSERT_TRUE(wake.wait_for(lock, std::chrono::seconds(30), [&] { return known.has_value(); }));
  UnitDigests units;
  std::vector<Digest> digests;
  for (size_t at = 0; at < big.size(); at += store::kUnitBytes)
    digests.push_back(store::UnitDigest(big.substr(at, store::kUnitBytes)));
  EXPECT_EQ(units.Add(version, 0, digests), *known);
}

}  // namespace
}  // namespace vrun::home
