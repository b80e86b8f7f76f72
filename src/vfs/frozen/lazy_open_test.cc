// SPDX-License-Identifier: Apache-2.0
// LazyRoot: how files are opened, and passthrough.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/files.h"
#include "vfs/testing/lazy_testing.h"

namespace vrun::vfs {
namespace {

TEST_F(LazyRootTest, CompleteLargeFilesArePassedThroughWithOneBackingId) {
  Mount(TreeMaker().File("/big", Noise(2 * kMiB, 1)).File("/small", Noise(100 * kKiB, 2)));
  const auto big = Find("/big");
  const auto first = kernel_->Open(big.nodeid).As<OpenOut>();
  EXPECT_EQ(first.open_flags & kOpenPassthrough, 0u);  // not here yet
  EXPECT_NE(first.open_flags & kOpenKeepCache, 0u);
  ReadAll("/big");
  const auto second = kernel_->Open(big.nodeid).As<OpenOut>();
  EXPECT_EQ(second.open_flags & kOpenPassthrough, 0u);  // the first is still open: never both ways at once
  kernel_->Release(big.nodeid, first.fh);
  kernel_->Release(big.nodeid, second.fh);
  const auto third = kernel_->Open(big.nodeid).As<OpenOut>();
  const auto fourth = kernel_->Open(big.nodeid).As<OpenOut>();
  EXPECT_NE(third.open_flags & kOpenPassthrough, 0u);
  EXPECT_EQ(third.open_flags & kOpenKeepCache, 0u);
  EXPECT_EQ(third.backing_id, fourth.backing_id);
  EXPECT_EQ(kernel_->open_backings(), 1);
  kernel_->Release(big.nodeid, third.fh);
  EXPECT_EQ(kernel_->open_backings(), 1);
  kernel_->Release(big.nodeid, fourth.fh);
  // The answer comes first (LazyRoot::Release).
  for (int i = 0; i < 5000 && kernel_->open_backings() > 0; ++i) ::usleep(1000);
  EXPECT_EQ(kernel_->open_backings(), 0);
  ReadAll("/small");
  EXPECT_EQ(kernel_->Open(Find("/small").nodeid).As<OpenOut>().open_flags & kOpenPassthrough, 0u);
  EXPECT_EQ(root_->passthrough_opens(), 2u);
}

TEST_F(LazyRootTest, WhatIsOpenIsNotEvictedAndWhatIsOnlyRememberedIs) {
  Mount(TreeMaker().File("/cached", Noise(kMiB, 1)).File("/through", Noise(kMiB, 2)).File("/read", Noise(kMiB, 3)));
  const auto cached = kernel_->Open(Find("/cached").nodeid).As<OpenOut>();
  for (const char* name : {"/cached", "/through", "/read"}) ReadAll(name);
  const auto through = kernel_->Open(Find("/through").nodeid).As<OpenOut>();
  ASSERT_NE(through.open_flags & kOpenPassthrough, 0u);
  uint64_t left = *store_->Prune(0);
  // The source's thread may still hold content that it has delivered.
  for (const int64_t end = MonotonicMicros() + 20'000'000; left >= 3 * kMiB && MonotonicMicros() < end;) {
    left = *store_->Prune(0);
  }
  EXPECT_GE(left, 2 * kMiB);
  EXPECT_LT(left, 3 * kMiB);
  const size_t asked = source_.CountAsked('f');
  ReadAll("/cached");
  ReadAll("/through");
  EXPECT_EQ(source_.CountAsked('f'), asked);
  kernel_->Release(Find("/cached").nodeid, cached.fh);
  kernel_->Release(Find("/through").nodeid, through.fh);
  uint64_t rest = *store_->Prune(0);
  for (const int64_t end = MonotonicMicros() + 20'000'000; rest >= kMiB && MonotonicMicros() < end;) {
    rest = *store_->Prune(0);
  }
  EXPECT_LT(rest, kMiB) << "closed again: nothing keeps them";
  EXPECT_EQ(ReadAll("/cached"), Noise(kMiB, 1)) << "and comes again when it is read";
}

TEST_F(LazyRootTest, LargeUnverifiedFilesAreVerifiedOffTheRequestThreads) {
  const Digest tree = source_.Add(TreeMaker().File("/big", Noise(9 * kMiB, 1)));
  Mount(tree);
  ReadAll("/big");
  Restart();
  store_.reset();
  store_ = *store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
  Mount(tree);
  const auto open = kernel_->Open(Find("/big").nodeid).As<OpenOut>();
  EXPECT_NE(open.open_flags & kOpenPassthrough, 0u);
  Unmount();
  backend_.reset();
}

// Damages files of the store while the store considers them verified.
class DamagedContentTest : public LazyRootTest {
 protected:
  std::string InStore(uint64_t size) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path() + "/store/objects")) {
      const bool map = entry.path().extension() == ".map";
      if (!map && entry.is_regular_file() && entry.file_size() == size) return entry.path();
    }
    ADD_FAILURE() << "no content of " << size << " bytes in the store";
    return "";
  }
  static std::string Content(const std::string& file) {
    auto content = ReadFile(file, 256 * kMiB);
    return content ? *std::move(content) : "";
  }
  // Waits for the next clock tick: a change within the tick of the write is not detected.
  void Damage(const std::string& file, uint64_t offset) {
    struct stat st {
    }, now{};
    ASSERT_EQ(::stat(file.c_str(), &st), 0);
    auto clock = OpenFile(directory_.path() + "/clock", O_WRONLY | O_CREAT, 0600);
    ASSERT_TRUE(clock);
    do {
      ASSERT_EQ(::futimens(clock->get(), nullptr), 0);
      ASSERT_EQ(::fstat(clock->get(), &now), 0);
    } while (std::pair(now.st_ctim.tv_sec, now.st_ctim.tv_nsec) <= std::pair(st.st_ctim.tv_sec, st.st_ctim.tv_nsec));
    auto fd = OpenFile(file, O_RDWR);
    ASSERT_TRUE(fd);
    ASSERT_TRUE(PwriteAll(fd->get(), "damage", offset));
  }
  OpenOut OpenThrough(const std::string& path) {
    const auto out = kernel_->Open(Find(path).nodeid).As<OpenOut>();
    EXPECT_NE(out.open_flags & kOpenPassthrough, 0u);
    return out;
  }
};

TEST_F(DamagedContentTest, WhatIsClosedIsReadThroughUsAndRight) {
  const std::string content = Noise(2 * kMiB, 1);
  Mount(TreeMaker().File("/f", content));
  ReadAll("/f");
  kernel_->Release(Find("/f").nodeid, OpenThrough("/f").fh);
  ASSERT_TRUE(Eventually([&] { return kernel_->open_backings() == 0; }));
  Damage(InStore(content.size()), kMiB);
  const auto open = kernel_->Open(Find("/f").nodeid).As<OpenOut>();
  EXPECT_EQ(open.open_flags & kOpenPassthrough, 0u);
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_EQ(store_->stats().corrupt_units, 1u);
  kernel_->Release(Find("/f").nodeid, open.fh);
  EXPECT_TRUE(Eventually([&] {
    const auto again = kernel_->Open(Find("/f").nodeid).As<OpenOut>();
    kernel_->Release(Find("/f").nodeid, again.fh);
    return (again.open_flags & kOpenPassthrough) != 0;
  }));
  EXPECT_TRUE(Content(InStore(content.size())) == content);
}

// All opens of an inode share one backing file: it is repaired before another user gets it.
TEST_F(DamagedContentTest, WhatIsOpenThroughIsMendedBeforeSomebodyElseOpensIt) {
  const std::string content = Noise(2 * kMiB, 2);
  Mount(TreeMaker().File("/f", content));
  ReadAll("/f");
  const auto first = OpenThrough("/f");
  const std::string file = InStore(content.size());
  for (const bool verified : {false, true}) {  // by `vctl cache verify`, which finds and drops it
    const uint64_t before = store_->stats().corrupt_units;
    Damage(file, kMiB);
    if (verified) {
      EXPECT_EQ(store_->Verify()->corrupt_units, 1u);
    }
    source_.ClearAsked();
    EXPECT_EQ(OpenThrough("/f").backing_id, first.backing_id);
    EXPECT_TRUE(Content(file) == content);
    EXPECT_EQ(source_.CountAsked('f'), 1u);
    EXPECT_EQ(store_->stats().corrupt_units, before + 1);
  }
  source_.ClearAsked();
  EXPECT_EQ(OpenThrough("/f").backing_id, first.backing_id);
  EXPECT_EQ(source_.CountAsked('f'), 0u);
}

TEST_F(DamagedContentTest, WhatIsOpenThroughAndCannotBeMendedIsAnError) {
  const std::string content = Noise(2 * kMiB, 3);
  Mount(TreeMaker().File("/f", content));
  ReadAll("/f");
  OpenThrough("/f");
  Damage(InStore(content.size()), kMiB);
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f') return Error(Code::kAborted, "it is another file now");
    return std::nullopt;
  });
  EXPECT_EQ(kernel_->Open(Find("/f").nodeid).error, EIO);
  EXPECT_EQ(lost().size(), 1u);
}

TEST_F(LazyRootTest, NobodyWaitsUntilAVeryLargeFileIsVerified) {
  const std::string content(65 * kMiB + 1, 'x');
  const Digest tree = source_.Add(TreeMaker().File("/big", content));
  Mount(tree);
  ReadAll("/big");
  Restart();
  store_.reset();
  store_ = *store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
  Mount(tree);
  const auto big = Find("/big");
  const auto first = kernel_->Open(big.nodeid).As<OpenOut>();
  EXPECT_EQ(first.open_flags & kOpenPassthrough, 0u);
  EXPECT_EQ(kernel_->Read(big.nodeid, 64 * kMiB, 4096).body, content.substr(0, 4096));
  kernel_->Release(big.nodeid, first.fh);
  EXPECT_TRUE(Eventually([&] {
    const auto open = kernel_->Open(big.nodeid).As<OpenOut>();
    kernel_->Release(big.nodeid, open.fh);
    return (open.open_flags & kOpenPassthrough) != 0;
  }));
  EXPECT_EQ(store_->stats().corrupt_units, 0u);
  Unmount();
  backend_.reset();
}

TEST_F(LazyRootTest, WithoutPassthroughOpenIsNeverAskedForAgain) {
  options_.passthrough = false;
  Mount(TreeMaker().File("/f", "x"));
  EXPECT_EQ(init_.max_stack_depth, 0u);
  EXPECT_EQ(kernel_->Open(Find("/f").nodeid).error, ENOSYS);
}

TEST_F(LazyRootTest, KernelWithoutPassthroughIsServedAsWell) {
  offer_ = ~kFusePassthrough;
  Mount(TreeMaker().File("/f", Noise(kMiB, 1)));
  EXPECT_EQ(kernel_->Open(Find("/f").nodeid).error, ENOSYS);
  EXPECT_EQ(ReadAll("/f"), Noise(kMiB, 1));
}

TEST_F(LazyRootTest, OpeningStartsTheFetchOfASmallFile) {
  Mount(TreeMaker().File("/f", Noise(kMiB, 1)));
  kernel_->Open(Find("/f").nodeid);
  EXPECT_EQ(source_.CountAsked('f'), 1u);
  ReadAll("/f");
  EXPECT_EQ(source_.CountAsked('f'), 1u);
}

}  // namespace
}  // namespace vrun::vfs
