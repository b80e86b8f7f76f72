// SPDX-License-Identifier: Apache-2.0
// Which files are pushed into the kernel, with a fake kernel. (With a real one: view_test.cc.)
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "store/store.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/testing/fake_kernel.h"
#include "vfs/testing/vfs_testing.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

std::string NameOf(int i) { return "f" + std::to_string(1000 + i); }

class PushTest : public testing::Test {
 protected:
  static constexpr int kFiles = 100;

  PushTest() {
    auto opened = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    EXPECT_TRUE(opened) << opened.error().message();
    store_ = *std::move(opened);
    backend_ = Backend::Create({.home_id = "home", .home_deadline_micros = 20'000'000}, &source_, store_.get());
    for (int i = 0; i < kFiles; ++i) maker_.File("/d/" + NameOf(i), Noise(Size(i), static_cast<uint64_t>(i)));
  }
  ~PushTest() override { Unmount(); }

  static size_t Size(int i) { return i % 7 == 3 ? 1 : static_cast<size_t>(100 + i * 331); }

  void Mount() {
    Unmount();
    const Digest tree = source_.Add(maker_);
    auto root = FetchRootEntry(*backend_, tree);
    ASSERT_TRUE(root) << root.error().message();
    kernel_ = std::make_shared<FakeKernel>();
    root_.emplace(*backend_, *kernel_, tree, *root, options_);
    dispatcher_.emplace(kernel_, &*root_, &backend_->timers());
    dispatcher_->Start(threads_);
    kernel_->Init();
  }
  void Unmount() {
    if (dispatcher_) dispatcher_->Stop();
    dispatcher_.reset();
    root_.reset();
  }
  // A view with a store that has everything (or all but the file `without`) and a kernel that knows all names.
  void MountWarm(int without = -1) {
    options_.push = false;
    Mount();
    List();
    for (int i = 0; i < kFiles; ++i) {
      if (i != without) Read(i);
    }
    options_.push = true;
    Mount();
    List();
  }
  void List() {
    directory_node_ = kernel_->Lookup(1, "d").As<fuse_entry_out>().nodeid;
    nodes_.clear();
    for (const auto& entry : kernel_->ReadDir(directory_node_, true)) {
      if (entry.entry.nodeid != 0) nodes_[entry.name] = entry.entry.nodeid;
    }
  }
  uint64_t Node(int i) { return nodes_.at(NameOf(i)); }
  void Read(int i) {
    const auto answer = kernel_->Read(Node(i), 0, 128 * 1024);
    EXPECT_EQ(answer.error, 0);
    EXPECT_EQ(answer.body, Noise(Size(i), static_cast<uint64_t>(i)));
  }
  // Waits for this many pushed files; returns them by node.
  std::map<uint64_t, FakeKernel::Notification> Pushed(size_t n) {
    std::map<uint64_t, FakeKernel::Notification> pushed;
    for (int i = 0; i < 10'000 && pushed.size() < n; ++i) {
      for (auto& note : kernel_->TakeNotifications()) {
        EXPECT_EQ(note.code, FUSE_NOTIFY_STORE);
        EXPECT_TRUE(pushed.emplace(note.node(), note).second) << "twice";
      }
      if (pushed.size() < n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(pushed.size(), n);
    return pushed;
  }

  TestDirectory directory_;
  std::unique_ptr<store::Store> store_;
  FakeSource source_;
  TreeMaker maker_;
  unsigned threads_ = 2;
  LazyRootOptions options_{.passthrough = false};
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<FakeKernel> kernel_;
  std::optional<LazyRoot> root_;
  std::optional<Dispatcher> dispatcher_;
  uint64_t directory_node_ = 0;
  std::map<std::string, uint64_t> nodes_;
};

TEST_F(PushTest, TheFilesBehindOneThatIsReadComeByThemselves) {
  MountWarm();
  // Windows of 4, 8, 16 and 32 files, starting four files ahead of the reader.
  std::map<uint64_t, FakeKernel::Notification> pushed;
  for (int i = 0; i < 4; ++i) {
    Read(i);
    pushed.merge(Pushed(4u << i));
  }
  for (int i = 4; i < 64; ++i) {
    ASSERT_EQ(pushed.count(Node(i)), 1u) << i;
    const auto& note = pushed.at(Node(i));
    fuse_notify_store_out out{};
    std::memcpy(&out, note.body.data(), sizeof out);
    EXPECT_EQ(out.offset, 0u);
    EXPECT_EQ(out.size, Size(i));
    EXPECT_TRUE(note.stored() == Noise(Size(i), static_cast<uint64_t>(i))) << i;
  }
  // A push is counted after it has been made.
  for (int i = 0; i < 10'000 && root_->pushed() < 60; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(root_->pushed(), 60u);
}

TEST_F(PushTest, WhatTheStoreLacksIsNotFetchedForIt) {
  MountWarm(6);
  source_.ClearAsked();
  Read(0);
  const auto pushed = Pushed(3);
  EXPECT_EQ(pushed.count(Node(6)), 0u);
  EXPECT_EQ(source_.CountAsked('f') + source_.CountAsked('a'), 0u);
  Read(6);
}

TEST_F(PushTest, NamesThatTheKernelDoesNotKnowAreLeftAlone) {
  MountWarm();
  Mount();
  directory_node_ = kernel_->Lookup(1, "d").As<fuse_entry_out>().nodeid;
  for (const int i : {0, 50, 51}) {
    nodes_[NameOf(i)] = kernel_->Lookup(directory_node_, NameOf(i)).As<fuse_entry_out>().nodeid;
  }
  Read(0);
  const auto pushed = Pushed(2);
  EXPECT_EQ(pushed.count(Node(50)) + pushed.count(Node(51)), 2u);
}

TEST_F(PushTest, ReadersAreAnsweredWhileAPushWaits) {
  threads_ = 1;  // so an answered request has also finished the work after the previous answer
  MountWarm();
  kernel_->HoldStores(true);
  Read(0);
  ASSERT_TRUE(kernel_->WaitHeldStores(1));
  for (int i = 1; i < kFiles; ++i) Read(i);
  kernel_->GetAttr(Node(0));
  // All have been read meanwhile: only the blocked one is still to be pushed.
  kernel_->HoldStores(false);
  Pushed(1);
  Unmount();
  EXPECT_TRUE(kernel_->TakeNotifications().empty());
}

TEST_F(PushTest, AReaderWhoCatchesUpIsLeftAlone) {
  threads_ = 1;  // so an answered request has also finished the work after the previous answer
  MountWarm();
  kernel_->HoldStores(true);
  Read(0);
  ASSERT_TRUE(kernel_->WaitHeldStores(1));
  // File 4 is being pushed; 5, 6 and 7 wait, and are read next.
  Read(4);
  kernel_->GetAttr(Node(4));
  kernel_->HoldStores(false);
  const auto pushed = Pushed(1 + 8);
  for (int i = 5; i < 8; ++i) EXPECT_EQ(pushed.count(Node(i)), 0u) << i;
}

TEST_F(PushTest, WhatTheKernelForgetsIsNotPushed) {
  MountWarm();
  kernel_->HoldStores(true);
  Read(0);
  ASSERT_TRUE(kernel_->WaitHeldStores(1));
  for (int i = 5; i < 8; ++i) kernel_->Forget(Node(i), kernel_->lookups(Node(i)));
  // Forgets have no answer, and a later request may be answered while the other thread still handles them: poll.
  while (root_->inodes() > kFiles + 2 - 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kernel_->HoldStores(false);
  const auto pushed = Pushed(1);
  EXPECT_EQ(pushed.count(Node(4)), 1u);
  Unmount();
  EXPECT_TRUE(kernel_->TakeNotifications().empty());
}

TEST_F(PushTest, GoingAwayWhileAPushWaitsDoesNotHang) {
  MountWarm();
  kernel_->HoldStores(true);
  Read(0);
  ASSERT_TRUE(kernel_->WaitHeldStores(1));
  Unmount();
}

TEST_F(PushTest, AKernelThatRefusesIsNotAskedAgain) {
  MountWarm();
  kernel_->RefuseStores(EINVAL);
  for (int i = 0; i < kFiles; ++i) Read(i);
  Unmount();
  Mount();
  List();
  // ENOENT for one node does not mean that the kernel refuses pushes.
  kernel_->RefuseStores(ENOENT);
  Read(0);
  kernel_->HoldStores(true);
  Read(1);
  ASSERT_TRUE(kernel_->WaitHeldStores(1));
  kernel_->RefuseStores(0);
  kernel_->HoldStores(false);
  Read(2);
  while (root_->pushed() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(PushTest, WhatCameDuringARunIsLeftToItsTrace) {
  MountWarm(5);
  backend_->recorder().Begin(1, 1);
  backend_->recorder().Fetched(maker_.At("/d/" + NameOf(4)).version(), 0, 1, 100, Origin::kAhead);
  Read(0);
  const auto pushed = Pushed(2);  // of 4, 5, 6 and 7
  EXPECT_EQ(pushed.count(Node(4)), 0u);
  backend_->recorder().End(1, 1);
}

TEST_F(PushTest, AnEditedFileIsPushedAsItIsNow) {
  MountWarm();
  for (int i = 0; i < 4; ++i) {
    Read(i);
    Pushed(4u << i);
  }
  maker_.Edit("/d/" + NameOf(70), "new");
  ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker_)));
  kernel_->TakeNotifications();
  const uint64_t before = Node(70);
  nodes_[NameOf(70)] = kernel_->Lookup(directory_node_, NameOf(70)).As<fuse_entry_out>().nodeid;
  EXPECT_NE(Node(70), before);
  EXPECT_EQ(kernel_->Read(Node(70), 0, 4096).body, "new");
  Read(64);
  while (root_->pushed() < 60 + 30) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& note : kernel_->TakeNotifications()) EXPECT_NE(note.node(), before);
}

}  // namespace
}  // namespace vrun::vfs
