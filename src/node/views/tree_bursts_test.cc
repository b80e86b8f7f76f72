// SPDX-License-Identifier: Apache-2.0
// Which directories a node requests from a home that remembers its last tree, does not remember it, or is an older
// version.
#include "node/views/tree_bursts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "node/source/content_source.h"
#include "proto/content.pb.h"
#include "store/store.h"
#include "tree/codec.h"
#include "tree/diff.h"
#include "tree/testing/test_directory.h"
#include "vfs/content/backend.h"

namespace vrun::node {
namespace {

constexpr char kHome[] = "u@h";

// A root with directories /d0, /d1 ..., each with a directory "sub" that contains a file with that time.
tree::TreePtr MakeTree(const std::vector<int64_t>& times) {
  const auto entry = [](const std::string& name, uint32_t mode, int64_t time) {
    tree::Entry e;
    e.name = name;
    e.mode = mode;
    e.ino = 1 + static_cast<uint64_t>(time);
    e.mtime_ns = e.ctime_ns = time;
    return e;
  };
  const auto above = [&](const std::string& name, const tree::DirectoryPtr& child) {
    tree::Entry e;
    e.name = name;
    e.mode = S_IFDIR | 0755;
    return tree::Directory::Make({e}, [&](std::string_view) { return child; });
  };
  std::vector<tree::Entry> entries;
  std::map<std::string, tree::DirectoryPtr, std::less<>> children;
  for (size_t i = 0; i < times.size(); ++i) {
    const std::string name = "d" + std::to_string(i);
    const auto file = entry("file" + std::to_string(i), S_IFREG | 0644, times[i]);
    children[name] = above("sub", tree::Directory::Make({file}, [](std::string_view) { return nullptr; }));
    tree::Entry directory;
    directory.name = name;
    directory.mode = S_IFDIR | 0755;
    entries.push_back(directory);
  }
  tree::Entry root;
  root.mode = S_IFDIR | 0755;
  return tree::AssembleTree(
      root, tree::Directory::Make(entries, [&](std::string_view name) { return children.find(name)->second; }));
}

class TreeBurstsTest : public testing::Test {
 protected:
  // Home's end. It answers on the loop, because the caller holds a lock.
  class NodeEnd final : public rpc::Stream {
   public:
    explicit NodeEnd(TreeBurstsTest* test) : test_(test) {}
    void Send(std::string message) override {
      test_->loop_.Post([test = test_, message] { test->Answer(message); });
    }
    void SendUrgent(std::string message) override { Send(std::move(message)); }
    size_t queued_bytes() const override { return 0; }
    void Finish() override {}
    void Cancel(Error) override {}

   private:
    TreeBurstsTest* const test_;
  };

  void SetUp() override {
    source_ = std::make_unique<ContentSource>(ContentSourceOptions{.home_id = kHome});
    handler_ = *source_->Accept(std::make_unique<NodeEnd>(this));
    source_->AllowToken(kHome, "secret", 7, 1);
    v1::ContentReply reply;
    reply.mutable_hello()->set_home_id(kHome);
    reply.mutable_hello()->set_token("secret");
    reply.mutable_hello()->set_job(7);
    reply.mutable_hello()->set_attempt(1);
    Say(reply);
    auto store = store::Store::Open({.directory = directory_ / "store", .min_free_bytes = 0});
    ASSERT_TRUE(store);
    store_ = *std::move(store);
    backend_ = vfs::Backend::Create({.home_id = kHome}, source_.get(), store_.get());
    Restart();
  }
  void TearDown() override {
    bursts_.reset();
    backend_.reset();
    source_.reset();
  }
  void Restart() { bursts_ = std::make_unique<TreeBursts>(&loop_, source_.get(), backend_.get(), directory_.path()); }

  // Adds a tree to home; a view mounted on it would have its root.
  Digest Has(const std::vector<int64_t>& times) {
    const tree::TreePtr tree = MakeTree(times);
    trees_[tree->id] = tree;
    EXPECT_TRUE(store_->PutBlob(tree->id, tree::EncodeRoot(tree->root)));
    return tree->id;
  }
  bool Soon(const std::function<bool()>& holds) {
    const int64_t end = MonotonicMicros() + 20'000'000;
    while (!holds() && MonotonicMicros() < end) loop_.RunOnce(5);
    return holds();
  }
  // Requests all of it; true once all of it is here, and known to be.
  bool Bring(const Digest& tree) {
    bursts_->Start(tree, false);
    return Soon([&] { return ReadFile(directory_ / "last-tree").value_or("") == tree.view(); }) && All(tree);
  }
  bool All(const Digest& tree) {
    const auto all = tree::NewDirectories(nullptr, trees_.at(tree)->directory);
    return std::all_of(all.begin(), all.end(),
                       [&](const auto& item) { return backend_->HasDirectory(item.directory->digest()); });
  }
  // Requests to home, and directories sent by it, since the last call.
  struct Traffic {
    int trees = 0;
    std::vector<std::string> paths;
    size_t sent = 0;
  };
  Traffic Take() {
    std::sort(traffic_.paths.begin(), traffic_.paths.end());
    return std::exchange(traffic_, {});
  }

  void Say(const v1::ContentReply& reply) { handler_->OnMessage(reply.SerializeAsString()); }
  void Answer(const std::string& message) {
    v1::ContentRequest request;
    ASSERT_TRUE(request.ParseFromString(message));
    v1::ContentReply reply;
    reply.set_id(request.id());
    const auto send = [&](const tree::Directory& d, bool last) {
      auto* object = reply.mutable_directory();
      object->set_digest(std::string(d.digest().view()));
      object->set_encoded(std::string(d.encoded()));
      object->set_raw_bytes(d.encoded().size());
      object->set_total_bytes(d.encoded().size());
      reply.set_last(last);
      ++traffic_.sent;
      Say(reply);
    };
    const auto fail = [&](Code code) {
      reply.mutable_error()->set_code(static_cast<int>(code));
      reply.set_last(true);
      Say(reply);
    };
    if (request.has_get_directory()) {
      const auto& get = request.get_directory();
      traffic_.paths.push_back(get.path());
      const auto directory = tree::LookupDirectory(*trees_.at(*Digest::FromBytes(get.tree())), get.path());
      if (!directory || (*directory)->digest().view() != get.digest()) return fail(Code::kAborted);
      send(**directory, true);
    } else if (request.has_get_tree()) {
      const auto& get = request.get_tree();
      ++traffic_.trees;
      tree::TreePtr base;
      if (const auto have = Digest::FromBytes(get.have()); have && remembers_ && trees_.contains(*have))
        base = trees_.at(*have);
      if (!get.have().empty() && !base && get.walks() && !older_) return fail(Code::kNotFound);
      const auto objects =
          tree::NewDirectories(base ? base->directory : nullptr, trees_.at(*Digest::FromBytes(get.tree()))->directory);
      for (size_t i = 0; i < objects.size(); ++i) send(*objects[i].directory, i + 1 == objects.size());
    } else {
      fail(Code::kUnsupported);
    }
  }

  tree::TestDirectory directory_;
  EventLoop loop_;
  std::map<Digest, tree::TreePtr> trees_;
  bool remembers_ = true;  // what the node had
  bool older_ = false;     // home is older, and sends everything
  Traffic traffic_;
  rpc::Stream::Handler* handler_ = nullptr;
  std::unique_ptr<ContentSource> source_;
  std::unique_ptr<store::Store> store_;
  std::shared_ptr<vfs::Backend> backend_;
  std::unique_ptr<TreeBursts> bursts_;
};

TEST_F(TreeBurstsTest, AllOfItOnceThenWhatChanged) {
  ASSERT_TRUE(Bring(Has({1, 1, 1})));
  Traffic traffic = Take();
  EXPECT_EQ(traffic.sent, 1u + 3 + 3);
  ASSERT_TRUE(Bring(Has({1, 2, 1})));
  traffic = Take();
  EXPECT_EQ(traffic.trees, 1);
  EXPECT_EQ(traffic.sent, 3u);
  EXPECT_TRUE(traffic.paths.empty());
}

TEST_F(TreeBurstsTest, OnlyWhatChangedTravelsAlsoWhereHomeHasForgotten) {
  ASSERT_TRUE(Bring(Has({1, 1, 1, 1})));
  Take();
  remembers_ = false;
  ASSERT_TRUE(Bring(Has({1, 2, 1, 3, 4})));
  Traffic traffic = Take();
  EXPECT_EQ(traffic.paths, (std::vector<std::string>{"/", "/d1", "/d1/sub", "/d3", "/d3/sub", "/d4", "/d4/sub"}));
  EXPECT_EQ(traffic.sent, traffic.paths.size());
  // A restarted server knows what was here.
  Restart();
  ASSERT_TRUE(Bring(Has({1, 2, 1, 3, 5})));
  EXPECT_EQ(Take().paths, (std::vector<std::string>{"/", "/d4", "/d4/sub"}));
  // After a change back, everything is here.
  ASSERT_TRUE(Bring(Has({1, 1, 1, 1})));
  EXPECT_EQ(Take().sent, 0u);
}

TEST_F(TreeBurstsTest, AnOlderHomeSendsAllOfIt) {
  ASSERT_TRUE(Bring(Has({1, 1, 1})));
  Take();
  remembers_ = false;
  older_ = true;
  ASSERT_TRUE(Bring(Has({1, 2, 1})));
  const Traffic traffic = Take();
  EXPECT_EQ(traffic.sent, 1u + 3 + 3);
  EXPECT_EQ(traffic.trees, 1);
}

TEST_F(TreeBurstsTest, WhereMostHasChangedAllOfItComesAtOnce) {
  std::vector<int64_t> times(1200, 1);
  ASSERT_TRUE(Bring(Has(times)));
  Take();
  remembers_ = false;
  for (int64_t& time : times) time = 2;
  ASSERT_TRUE(Bring(Has(times)));
  const Traffic traffic = Take();
  EXPECT_EQ(traffic.paths, std::vector<std::string>{"/"});
  EXPECT_EQ(traffic.trees, 2);
}

TEST_F(TreeBurstsTest, WhatALiveViewWasToldOfIsKnown) {
  const Digest first = Has({1, 1, 1}), second = Has({1, 2, 1}), third = Has({1, 3, 1});
  ASSERT_TRUE(Bring(first));
  Take();
  std::vector<vfs::FetchedDirectory> told;
  for (const auto& item : tree::NewDirectories(trees_[first]->directory, trees_[second]->directory)) {
    told.push_back({*tree::Directory::Parse(std::string(item.directory->encoded())), {}});
  }
  backend_->Preload(std::move(told));
  bursts_->Told(second);
  ASSERT_TRUE(Soon([&] { return ReadFile(directory_ / "last-tree").value_or("") == second.view(); }));
  Traffic traffic = Take();
  EXPECT_EQ(traffic.sent, 0u);
  EXPECT_EQ(traffic.trees, 0);
  trees_.erase(first);
  ASSERT_TRUE(Bring(third));
  EXPECT_EQ(Take().sent, 3u) << "by what it was told of";
}

TEST_F(TreeBurstsTest, OfWhatALiveViewWasToldWhatItLacksIsAskedFor) {
  ASSERT_TRUE(Bring(Has({1, 1, 1})));
  Take();
  // Home did not know what was here, and only sent the tree's id.
  const Digest second = Has({1, 1, 2});
  bursts_->Told(second);
  ASSERT_TRUE(Soon([&] { return ReadFile(directory_ / "last-tree").value_or("") == second.view(); }));
  EXPECT_TRUE(All(second));
  const Traffic traffic = Take();
  EXPECT_EQ(traffic.paths, (std::vector<std::string>{"/", "/d2", "/d2/sub"}));
  EXPECT_EQ(traffic.trees, 0);
}

}  // namespace
}  // namespace vrun::node
