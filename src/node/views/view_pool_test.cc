// SPDX-License-Identifier: Apache-2.0
// Which views are mounted, shared, advanced and closed; the test's views only count.
#include "node/views/view_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>

#include "base/clock.h"
#include "base/files.h"
#include "base/thread/mutex.h"

namespace vrun::node {
namespace {

struct Counts {
  std::atomic<int> mounts{0}, advances{0}, alive{0};
  std::atomic<bool> fail{false};
};

class FakeView final : public vfs::FrozenView {
 public:
  FakeView(Counts* counts, const Digest& tree, std::string directory)
      : counts_(counts), tree_(tree), directory_(std::move(directory)) {
    ++counts_->mounts;
    ++counts_->alive;
  }
  ~FakeView() override { --counts_->alive; }
  Result<UniqueFd> CloneMount() const override { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  Result<vfs::ViewHandle> Handle() const override { return Error(Code::kUnsupported, "a view that is only counted"); }
  Status Advance(const Digest& tree) override {
    ++counts_->advances;
    if (counts_->fail) return Error(Code::kUnavailable, "home is away");
    MutexLock lock(mu_);
    tree_ = tree;
    return {};
  }
  Digest tree() const override {
    MutexLock lock(mu_);
    return tree_;
  }
  const std::string& directory() const override { return directory_; }
  vfs::ViewStats stats() const override { return {}; }

 private:
  Counts* counts_;
  mutable Mutex mu_;
  Digest tree_;
  std::string directory_;
};

class ViewPoolTest : public testing::Test {
 protected:
  ViewPoolTest() {
    const char* tmp = ::getenv("TMPDIR");
    directory_ = std::string(tmp ? tmp : "/var/tmp") + "/vrun-views-test.XXXXXX";
    VRUN_CHECK(::mkdtemp(directory_.data()) != nullptr);
    ViewPool::Hooks hooks;
    hooks.mount = [this](const Digest& tree, const std::string& directory,
                         ViewPool::LostCallback lost) -> Result<std::unique_ptr<vfs::FrozenView>> {
      if (counts_.fail) return Error(Code::kUnavailable, "home is away");
      EXPECT_TRUE(PathExists(directory));
      MutexLock lock(mu_);
      lost_ = std::move(lost);
      return std::unique_ptr<vfs::FrozenView>(std::make_unique<FakeView>(&counts_, tree, directory));
    };
    hooks.lost = [this](const std::string& path, const std::string&, const std::vector<uint64_t>& leases) {
      lost_path_ = path;
      lost_leases_ = leases;
    };
    hooks.keep = [this](uint64_t slot, const vfs::FrozenView*, const std::set<uint64_t>& leases) {
      kept_[slot] = leases;
    };
    hooks.drop = [this](uint64_t slot) { kept_.erase(slot); };
    pool_ = std::make_unique<ViewPool>(&loop_, directory_, std::move(hooks));
  }
  ~ViewPoolTest() override {
    pool_.reset();
    (void)RemoveTree(directory_);
  }
  void Open(const std::string& tree, uint64_t lease) {
    pool_->Open(Sha256(tree), lease, [this](Result<UniqueFd> mount) {
      ++answers_;
      if (mount)
        ++opened_;
      else
        error_ = mount.error().code();
    });
  }
  void RunUntil(const std::function<bool()>& condition) {
    const int64_t deadline = MonotonicMicros() + 10'000'000;
    while (!condition() && MonotonicMicros() < deadline) loop_.RunOnce(20);
    EXPECT_TRUE(condition());
  }
  void WaitFor(int answers) {
    RunUntil([&] { return answers_ >= answers; });
  }

  std::string directory_;
  EventLoop loop_;
  Counts counts_;
  Mutex mu_;
  ViewPool::LostCallback lost_;
  std::string lost_path_;
  std::vector<uint64_t> lost_leases_;
  std::map<uint64_t, std::set<uint64_t>> kept_;
  int answers_ = 0, opened_ = 0;
  Code error_ = Code::kOk;
  std::unique_ptr<ViewPool> pool_;
};

TEST_F(ViewPoolTest, WhatIsKeptIsKnownBeforeAnybodyIsTold) {
  std::set<uint64_t> kept_at_answer;
  pool_->Open(Sha256("a"), 1, [&](const Result<UniqueFd>&) { ++answers_, kept_at_answer = kept_.begin()->second; });
  WaitFor(1);
  EXPECT_EQ(kept_at_answer, std::set<uint64_t>{1});
  Open("a", 2);
  Open("b", 3);
  WaitFor(3);
  EXPECT_EQ(kept_.size(), 2u);
  pool_->CloseAllBut({2});
  EXPECT_EQ(pool_->leases(), 1u);
  EXPECT_EQ(kept_.begin()->second, std::set<uint64_t>{2});
  pool_->Close(2);
  EXPECT_EQ(kept_.size(), 1u) << "one idle view stays";
}

TEST_F(ViewPoolTest, AnAdoptedViewIsOneLikeAnyOther) {
  const auto take_over = [this](const std::string& directory,
                                ViewPool::LostCallback) -> Result<std::unique_ptr<vfs::FrozenView>> {
    if (counts_.fail) return Error(Code::kCorrupt, "not to be had");
    return std::unique_ptr<vfs::FrozenView>(std::make_unique<FakeView>(&counts_, Sha256("a"), directory));
  };
  pool_->Adopt(7, Sha256("a"), {1, 2}, take_over);
  Open("a", 3);  // waits for it
  WaitFor(1);
  EXPECT_EQ(counts_.mounts, 1);
  EXPECT_EQ(kept_.at(7), (std::set<uint64_t>{1, 2, 3}));
  Open("b", 4);
  WaitFor(2);
  EXPECT_TRUE(kept_.contains(8)) << "slots do not collide";
  counts_.fail = true;
  pool_->Adopt(9, Sha256("c"), {5}, take_over);
  RunUntil([&] { return lost_path_ == "/"; });
  EXPECT_EQ(lost_leases_, std::vector<uint64_t>{5});
  EXPECT_FALSE(kept_.contains(9));
  EXPECT_EQ(pool_->leases(), 4u);
}

TEST_F(ViewPoolTest, TheSameTreeIsOneView) {
  for (uint64_t lease = 1; lease <= 5; ++lease) Open("a", lease);
  WaitFor(5);
  EXPECT_EQ(opened_, 5);
  EXPECT_EQ(counts_.mounts, 1);
  Open("a", 6);
  EXPECT_EQ(opened_, 6) << "a mounted tree is given at once";
  Open("a", 6);
  EXPECT_EQ(error_, Code::kExists);
}

TEST_F(ViewPoolTest, AnIdleViewIsAdvancedABusyOneIsNot) {
  Open("a", 1);
  WaitFor(1);
  Open("b", 2);
  WaitFor(2);
  EXPECT_EQ(counts_.mounts, 2);
  pool_->Close(1);
  Open("c", 3);
  WaitFor(3);
  EXPECT_EQ(counts_.mounts, 2);
  EXPECT_EQ(counts_.advances, 1);
  pool_->Close(2);
  pool_->Close(3);
  EXPECT_EQ(pool_->views(), 1u) << "one warm view is kept";
  RunUntil([&] { return counts_.alive == 1; });
  Open("c", 4);
  WaitFor(4);
  EXPECT_EQ(counts_.mounts, 2);
  EXPECT_EQ(opened_, 4);
}

TEST_F(ViewPoolTest, FailuresAreToldAndLeaveTheWarmViewUsable) {
  counts_.fail = true;
  Open("a", 1);
  WaitFor(1);
  EXPECT_EQ(error_, Code::kUnavailable);
  EXPECT_EQ(pool_->views(), 0u);
  counts_.fail = false;
  Open("a", 1);
  WaitFor(2);
  pool_->Close(1);
  counts_.fail = true;
  Open("b", 2);
  WaitFor(3);
  EXPECT_EQ(opened_, 1);
  Open("a", 3);
  EXPECT_EQ(opened_, 2) << "the view serves its old tree still";
}

TEST_F(ViewPoolTest, CloseBeforeItIsOpenIsNoLeak) {
  Open("a", 1);
  pool_->Close(1);
  EXPECT_EQ(answers_, 1) << "who closed is told so, and does not wait for ever";
  RunUntil([&] { return counts_.alive == 1; });
  Open("b", 2);
  WaitFor(2);
  EXPECT_EQ(pool_->leases(), 1u);
  EXPECT_EQ(answers_, 2);
}

TEST_F(ViewPoolTest, ALostFileNamesTheLeasesOfItsView) {
  Open("a", 1);
  Open("a", 2);
  WaitFor(2);
  {
    MutexLock lock(mu_);
    lost_("/f", "changed");
  }
  RunUntil([&] { return !lost_path_.empty(); });
  EXPECT_EQ(lost_path_, "/f");
  EXPECT_EQ(lost_leases_, (std::vector<uint64_t>{1, 2}));
}

}  // namespace
}  // namespace vrun::node
