// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/frozen_roots.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>

#include "home/root/root_files.h"
#include "home/root/root_tree.h"
#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

constexpr uint64_t kJob = 7;

class FrozenRootsTest : public testing::Test {
 protected:
  // One process of home.
  struct Home {
    EventLoop loop;
    TreeTable table;
    RootFiles root_files;
    FrozenFiles files;
    RootTree tree;
    FrozenRoots roots;

    Home(const std::string& root, const std::string& state)
        : root_files(*RootFiles::Open(root)),
          files(&root_files, {.kept = {.directory = state + "/frozen/content", .min_free_bytes = 0}}),
          tree(&loop, Tree(root, state), &table),
          roots(&loop, &tree, &table, &files, state + "/frozen") {
      roots.Recall();
      tree.Start();
    }
    ~Home() { files.Close(); }
    static RootTree::Options Tree(const std::string& root, const std::string& state) {
      RootTree::Options options;
      options.root = root;
      options.deny.root = root;
      options.cookie_directory = state + "/watch";
      options.backend = WatchOptions::Backend::kRescan;
      return options;
    }
    tree::TreePtr Wait(const std::function<void(std::function<void(Result<tree::TreePtr>)>)>& ask) {
      std::optional<Result<tree::TreePtr>> got;
      ask([&](Result<tree::TreePtr> tree) { got = std::move(tree); });
      while (!got) loop.RunOnce(1000);
      EXPECT_TRUE(*got) << got->error().message();
      return got->has_value() ? **got : nullptr;
    }
    tree::TreePtr Now() {
      return Wait([&](auto done) { tree.Current({}, done); });
    }
    tree::TreePtr Next() {
      return Wait([&](auto done) { roots.Next(kJob, done); });
    }
  };

  void SetUp() override {
    BlockLeaseSignals();
    Start();
  }
  void Start() { home_.emplace(root_.path(), state_.path()); }
  std::string Frozen(const tree::Tree& tree, const std::string& path) const {
    auto entry = tree::Lookup(tree, path);
    if (!entry) return "!no name";
    auto fd = home_->files.OpenVersion(path, entry->version());
    if (!fd) return "!" + fd.error().message();
    std::string content(entry->size, 0);
    auto n = PreadUpTo(fd->get(), content.data(), content.size(), 0);
    return n && *n == entry->size && home_->files.Check(fd->get(), path, entry->version()) ? content : "!changed";
  }
  void Freeze() {
    home_->roots.Add(kJob, home_->Now(), {}, {"/p"});
    home_->files.Settle();
  }

  TestDirectory root_, state_;
  std::optional<Home> home_;
};

TEST_F(FrozenRootsTest, ATreeOutlivesHomeAndWhatHappensThere) {
  root_.Put("p/a", "old a");
  root_.Put("p/sub/b", "old b");
  Freeze();
  const Digest id = home_->roots.Find(kJob)->tree->id;
  root_.Put("p/a", "new");
  std::filesystem::remove_all(root_ / "p/sub");
  for (int restarts = 0; restarts < 2; ++restarts) {
    home_.reset();
    Start();
    home_->files.Settle();
    auto found = home_->roots.Find(kJob);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(found->tree->id, id);
    EXPECT_TRUE(home_->table.Find(id));  // nodes may request it
    EXPECT_EQ(Frozen(*found->tree, "/p/a"), "old a");
    EXPECT_EQ(Frozen(*found->tree, "/p/sub/b"), "old b");
  }
}

TEST_F(FrozenRootsTest, ElementsOfAnArrayShareItsTreeButNotWhatTheyWrite) {
  constexpr uint64_t kFirst = 8, kSecond = 9;
  root_.Put("p/a", "old a");
  Freeze();
  for (const uint64_t element : {kFirst, kSecond}) home_->roots.Share(element, kJob);
  EXPECT_EQ(home_->roots.Find(kFirst)->tree, home_->roots.Find(kSecond)->tree);
  root_.Put("p/a", "new");
  home_->roots.Forget(kJob);  // all others have ended
  const auto wrote = home_->roots.Recorder(kFirst);
  root_.Put("p/b", "the first one's b");
  wrote("/p/b");
  home_.reset();
  Start();
  home_->files.Settle();
  EXPECT_FALSE(home_->roots.Find(kJob));
  const tree::TreePtr next = home_->Wait([&](auto done) { home_->roots.Next(kFirst, done); });
  const tree::TreePtr other = home_->Wait([&](auto done) { home_->roots.Next(kSecond, done); });
  EXPECT_EQ(Frozen(*next, "/p/a"), "old a");
  EXPECT_EQ(Frozen(*next, "/p/b"), "the first one's b");
  EXPECT_EQ(Frozen(*other, "/p/a"), "old a");
  EXPECT_EQ(Frozen(*other, "/p/b"), "!no name");
}

TEST_F(FrozenRootsTest, TheNextAttemptSeesWhatTheJobWroteAndNothingElse) {
  root_.Put("p/a", "old a");
  root_.Put("p/b", "old b");
  root_.Put("p/c", "old c");
  Freeze();
  // The job: p/b, p/out/x. Somebody at home: the rest.
  const auto wrote = home_->roots.Recorder(kJob);
  root_.Put("p/b", "the job's b");
  wrote("/p/b");
  root_.Put("p/out/x", "the job's x");
  wrote("/p/out");
  wrote("/p/out/x");
  root_.Put("p/a", "home's");
  ASSERT_EQ(::unlink((root_ / "p/c").c_str()), 0);
  wrote("/p/c");
  root_.Put("p/new", "home's");
  const auto check = [&](const tree::Tree& tree) {
    EXPECT_EQ(Frozen(tree, "/p/a"), "old a");
    EXPECT_EQ(Frozen(tree, "/p/b"), "the job's b");
    EXPECT_EQ(Frozen(tree, "/p/c"), "!no name");
    EXPECT_EQ(Frozen(tree, "/p/out/x"), "the job's x");
    EXPECT_EQ(Frozen(tree, "/p/new"), "!no name");
  };
  const tree::TreePtr next = home_->Next();
  ASSERT_TRUE(next);
  home_->files.Settle();
  // Its own writes stay as well.
  root_.Put("p/b", "home's by now");
  check(*next);
  EXPECT_EQ(home_->Next()->id, next->id);
  home_.reset();
  Start();
  home_->files.Settle();
  check(*home_->Next());
}

TEST_F(FrozenRootsTest, WhatWasWrittenIsKnownToTheHomeThatComesNext) {
  root_.Put("p/a", "old a");
  root_.Put("p/b", "old b");
  Freeze();
  home_->roots.Recorder(kJob)("/p/b");
  root_.Put("p/a", "new a");
  root_.Put("p/b", "new b");
  home_.reset();
  Start();
  const tree::TreePtr next = home_->Next();
  home_->files.Settle();
  EXPECT_EQ(Frozen(*next, "/p/a"), "old a");
  EXPECT_EQ(Frozen(*next, "/p/b"), "new b");
}

TEST_F(FrozenRootsTest, ARunThatMayBeShortCostsLittleUntilItIsNot) {
  root_.Put("p/a", "old");
  root_.Put("q/b", "old");
  const auto waits_for = [&](const std::function<bool()>& done) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done() && std::chrono::steady_clock::now() < until) home_->loop.RunOnce(20);
    return done();
  };
  home_->roots.AddShort(8, home_->Now(), {}, {"/p"});
  home_->roots.AddShort(kJob, home_->Now(), {}, {"/p"});
  home_->roots.Forget(8);
  home_->files.Settle();
  EXPECT_EQ(home_->files.stats().held, 1u) << "what is first";
  EXPECT_FALSE(PathExists(state_ / "frozen/jobs/7"));
  EXPECT_TRUE(waits_for([&] { return home_->files.stats().held == 2; }));
  EXPECT_TRUE(waits_for([&] { return PathExists(state_ / "frozen/jobs/7"); }));
  EXPECT_FALSE(PathExists(state_ / "frozen/jobs/8"));
  home_.reset();
  root_.Put("q/b", "new");
  Start();
  EXPECT_TRUE(home_->roots.Find(kJob));
  EXPECT_FALSE(home_->roots.Find(8));
}

TEST_F(FrozenRootsTest, NothingIsLeftOfAJobThatIsOver) {
  root_.Put("p/a", "old");
  Freeze();
  home_->roots.Add(8, home_->Now(), {}, {});
  root_.Put("p/a", "new");
  home_->roots.Forget(kJob);
  home_->roots.Forget(8);
  EXPECT_FALSE(home_->roots.Find(kJob));
  home_->files.Settle();
  EXPECT_EQ(home_->files.stats().held, 0u);
  EXPECT_EQ(home_->files.stats().kept.files, 0u);
  home_.reset();
  EXPECT_FALSE(PathExists(state_ / "frozen/store"));
  EXPECT_TRUE(std::filesystem::is_empty(state_ / "frozen/jobs"));
  // A job whose end this home was told after its start.
  Start();
  Freeze();
  home_.reset();
  Start();
  ASSERT_TRUE(home_->roots.Find(kJob));
  home_->roots.Retain({1, 2});
  EXPECT_FALSE(home_->roots.Find(kJob));
}

TEST_F(FrozenRootsTest, ADamagedTreeIsLostAndSaysSo) {
  root_.Put("p/a", "old");
  Freeze();
  home_.reset();
  std::filesystem::remove_all(state_ / "frozen/store");
  Start();
  auto found = home_->roots.Find(kJob);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message().find("submit it again"), std::string::npos);
}

TEST(ProjectOf, IsTheRepositoryAroundTheDirectory) {
  TestDirectory root;
  root.Put("home/p/.git/HEAD", "");
  root.Put("home/p/src/deep/f", "");
  root.Put("home/q/f", "");
  tree::ScanOptions scan;
  scan.root = root.path();
  const tree::TreePtr tree = *tree::Scan(scan);
  EXPECT_EQ(ProjectOf(*tree, "/home/p/src/deep"), "/home/p");
  EXPECT_EQ(ProjectOf(*tree, "/home/p"), "/home/p");
  EXPECT_EQ(ProjectOf(*tree, "/home/q"), "/home/q");
  EXPECT_EQ(ProjectOf(*tree, "/"), "/");
}

}  // namespace
}  // namespace vrun::home
