// SPDX-License-Identifier: Apache-2.0
// The store under extreme conditions: kill -9 in the middle of a write, a full disk, many threads, several processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "store/testing/store_testing.h"

namespace vrun::store {
namespace {

class StoreChaosTest : public StoreTestBase {
 protected:
  static std::vector<std::string> Contents(int n) {
    std::vector<std::string> contents;
    for (int i = 0; i < n; ++i) {
      const size_t units[] = {0, 1, 3, 20};
      contents.push_back(Bytes(units[i % 4] * kUnitBytes + 1000 + static_cast<size_t>(i), 40000 + i));
    }
    return contents;
  }

  // The life of one process: puts, reads, resolves, prunes. Exits 1 on a wrong byte.
  static void Worker(Store& store, const std::vector<std::string>& contents, uint64_t seed, int steps) {
    std::mt19937_64 random(seed);
    for (int step = 0; step < steps || steps < 0; ++step) {
      const size_t n = random() % contents.size();
      const std::string& content = contents[n];
      const ObjectId id = random() % 2 ? FinalId(content) : ProvisionalId("h", n, 0, 0, content.size());
      auto object = store.Acquire(id, content.size());
      if (!object) ::_exit(2);
      const uint64_t units = UnitCount(content.size());
      const uint64_t first = random() % units, count = 1 + random() % (units - first);
      switch (random() % 8) {
        case 0:
        case 1:
        case 2: {
          Status put = PutUnits(**object, content, first, count);
          if (!put && put.error().code() != Code::kExhausted && put.error().code() != Code::kAborted) ::_exit(3);
          break;
        }
        case 3:
          if (random() % 4 == 0) (void)(*object)->Resolve(FinalId(content));
          break;
        case 4:
          if (random() % 16 == 0) (void)store.Prune(random() % (64 * kUnitBytes));
          (void)store.PutBlob(Sha256(content.substr(0, 500)), content.substr(0, 500));
          break;
        default: {
          std::string buffer(count * kUnitBytes, '\0');
          auto got = (*object)->Read(first * kUnitBytes, buffer.data(), buffer.size());
          if (!got) break;
          buffer.resize(*got);
          if (buffer != content.substr(first * kUnitBytes, count * kUnitBytes)) ::_exit(1);
        }
      }
    }
  }

  void ExpectAllTrue(const std::vector<std::string>& contents) {
    auto store = Open();
    for (size_t n = 0; n < contents.size(); ++n) {
      for (const ObjectId& id : {FinalId(contents[n]), ProvisionalId("h", n, 0, 0, contents[n].size())}) {
        ExpectOnlyTrue(**store->Acquire(id, contents[n].size()), contents[n]);
      }
      auto blob = store->GetBlob(Sha256(contents[n].substr(0, 500)));
      if (blob) {
        EXPECT_TRUE(*blob == contents[n].substr(0, 500));
      }
    }
    EXPECT_EQ(store->stats().corrupt_units, 0u) << "a kill leaves nothing that looks present and is wrong";
  }
};

TEST_F(StoreChaosTest, KilledAtAnyPointNothingWrongIsServed) {
  const auto contents = Contents(12);
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 40; ++round) {
    const uint64_t seed = random();
    SCOPED_TRACE(seed);
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = Open({.max_bytes = 80 * kUnitBytes, .min_free_bytes = 0, .max_open_files = 8});
      [[maybe_unused]] ssize_t n = ::write(ready[1], "x", 1);
      Worker(*store, contents, seed, -1);
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));  // the random time of the kill
    ::kill(child, SIGKILL);
    int status;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
    if (round % 4 == 3) ExpectAllTrue(contents);
  }
}

TEST_F(StoreChaosTest, SeveralProcessesOnOneDirectory) {
  const auto contents = Contents(12);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(60);
      auto store = Open({.max_bytes = 60 * kUnitBytes, .min_free_bytes = 0, .max_open_files = 8});
      Worker(*store, contents, std::random_device{}(), 600);
      const uint64_t corrupt = store->stats().corrupt_units;
      ::_exit(corrupt == 0 ? 0 : 4);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "1: a wrong byte, 3: a Put failed, 4: something corrupt was seen";
  }
  ExpectAllTrue(contents);
}

TEST_F(StoreChaosTest, ManyThreads) {
  const auto contents = Contents(10);
  auto store = Open({.max_bytes = 60 * kUnitBytes, .min_free_bytes = 0, .max_open_files = 8});
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] { Worker(*store, contents, static_cast<uint64_t>(i) * 77 + 5, 400); });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(store->stats().corrupt_units, 0u);
  EXPECT_EQ(store->Verify()->corrupt_units, 0u);
}

// A tmpfs of 2 MiB, mounted on the store's directory.
class FullDiskTest : public StoreChaosTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeDirs(directory_ + "/store", 0700));
    if (::mount("none", (directory_ + "/store").c_str(), "tmpfs", 0, "size=2m") != 0) {
      GTEST_SKIP() << "needs the right to mount";
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2((directory_ + "/store").c_str(), MNT_DETACH);
  }
  void Fill() {
    auto fd = OpenFile(directory_ + "/store/filler", O_WRONLY | O_CREAT, 0600);
    const std::string zeros(4096, '\0');
    while (::write(fd->get(), zeros.data(), zeros.size()) > 0) {
    }
  }
  bool mounted_ = false;
};

TEST_F(FullDiskTest, EvictsWhenTheDiskIsFullerThanTheLimitSays) {
  auto store = Open({.max_bytes = 1u << 30, .min_free_bytes = 0});
  for (int i = 0; i < 60; ++i) {
    const std::string content = Bytes(12 * kUnitBytes, i);
    auto object = *store->Acquire(FinalId(content), content.size());
    ASSERT_TRUE(PutAll(*object, content)) << i;
    ASSERT_TRUE(ReadAll(*object) == content);
  }
  EXPECT_GT(store->stats().evictions, 30u);
  EXPECT_EQ(store->stats().failed_writes, 0u);
}

TEST_F(FullDiskTest, WithNothingToEvictPutFailsAndNothingIsBroken) {
  auto store = Open({.max_bytes = 1u << 30, .min_free_bytes = 0});
  const std::string content = Bytes(4 * kUnitBytes, 1);
  auto object = *store->Acquire(FinalId(content), content.size());
  ASSERT_TRUE(PutUnits(*object, content, 0, 2));
  Fill();
  for (int i = 0; i < 20; ++i) {
    const std::string more = Bytes((i % 2 ? 1000 : 2 * kUnitBytes) + static_cast<size_t>(i), 100 + i);
    auto other = *store->Acquire(FinalId(more), more.size());
    EXPECT_EQ(PutAll(*other, more).error().code(), Code::kExhausted);
    EXPECT_FALSE(other->Has(0, 1));
    EXPECT_EQ(store->PutBlob(Sha256(more), more).error().code(), Code::kExhausted);
    EXPECT_FALSE(store->GetBlob(Sha256(more)));
  }
  EXPECT_EQ(PutUnits(*object, content, 2, 2).error().code(), Code::kExhausted);
  EXPECT_TRUE(object->Has(0, 2 * kUnitBytes));
  EXPECT_FALSE(object->Has(0, 3 * kUnitBytes));
  ExpectOnlyTrue(*object, content);
  EXPECT_GT(store->stats().failed_writes, 0u);
  ASSERT_EQ(::unlink((directory_ + "/store/filler").c_str()), 0);
  ASSERT_TRUE(PutAll(*object, content));
  EXPECT_TRUE(ReadAll(*object) == content);
  object.reset();
  store = Open();
  EXPECT_TRUE(ReadAll(**store->Acquire(FinalId(content), content.size())) == content);
  EXPECT_EQ(store->Verify()->corrupt_units, 0u);
}

TEST_F(FullDiskTest, TheWatermarkKeepsFreeSpace) {
  auto store = Open({.max_bytes = 1u << 30, .min_free_bytes = 1u << 30});  // limited to a tenth of the file system
  std::vector<std::shared_ptr<Object>> in_use;
  Status put;
  for (int i = 0; i < 60 && put; ++i) {
    const std::string content = Bytes(4 * kUnitBytes, i);
    in_use.push_back(*store->Acquire(FinalId(content), content.size()));
    put = PutAll(*in_use.back(), content);
  }
  EXPECT_EQ(put.error().code(), Code::kExhausted);
  const uint64_t watermark = store->stats().min_free_bytes;
  EXPECT_NEAR(static_cast<double>(watermark), (2 << 20) / 10, 4096);
  EXPECT_GE(store->stats().disk_free_bytes, watermark) << "refused while there was room on the disk";
  EXPECT_LT(store->stats().disk_free_bytes, watermark + 6 * kUnitBytes) << "and not before";
  in_use.clear();
  for (int i = 0; i < 60; ++i) {
    const std::string content = Bytes(4 * kUnitBytes, 1000 + i);
    EXPECT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content)) << "what is not in use makes room";
    EXPECT_GE(store->stats().disk_free_bytes, watermark);
  }
  EXPECT_EQ(store->stats().failed_writes, 1u);
}

TEST_F(FullDiskTest, TheWatermarkKeepsInodesFree) {
  ASSERT_EQ(::mount("none", (directory_ + "/store").c_str(), "tmpfs", MS_REMOUNT, "size=64m,nr_inodes=600"), 0);
  auto store = Open({.max_bytes = 1u << 30, .min_free_bytes = 1u << 30});
  const auto free = [this] {
    struct statvfs fs;
    return ::statvfs((directory_ + "/store").c_str(), &fs) == 0 ? fs.f_favail : 0;
  };
  for (int i = 0; i < 900; ++i) {
    const std::string content = Bytes(1500 + static_cast<size_t>(i), i);
    ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content)) << i;
    ASSERT_GE(free(), 60u - 2) << i;
  }
  for (int i = 0; i < 200; ++i) {  // two files each
    const std::string content = Bytes(2 * kUnitBytes, 5000 + i);
    ASSERT_TRUE(PutAll(**store->Acquire(FinalId(content), content.size()), content)) << i;
    ASSERT_GE(free(), 60u - 2) << i;
  }
  EXPECT_GT(store->stats().objects, 120u) << "no more than is needed went";
  EXPECT_EQ(store->stats().failed_writes, 0u);
}

}  // namespace
}  // namespace vrun::store
