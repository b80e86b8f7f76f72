// SPDX-License-Identifier: Apache-2.0
// LazyRoot: which files are open how, and passthrough.
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "vfs/lazy_testing.h"

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
  // The source's thread may still hold what it has delivered.
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
