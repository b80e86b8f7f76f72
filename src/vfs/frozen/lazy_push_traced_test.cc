// SPDX-License-Identifier: Apache-2.0
// Content that a trace lists is in the kernel before it is asked for: with a fake kernel.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "store/store.h"
#include "vfs/content/file_cache.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/testing/fake_kernel.h"
#include "vfs/testing/vfs_testing.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kUnit = store::kUnitBytes;
constexpr size_t kSmallBytes = 2 * kUnit + 77, kLargeBytes = tree::kApartBytes + 3 * kUnit + 5;

class PushTracedTest : public testing::Test {
 protected:
  PushTracedTest() {
    auto opened = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    EXPECT_TRUE(opened) << opened.error().message();
    store_ = *std::move(opened);
    backend_ = Backend::Create({.home_id = "home", .home_deadline_micros = 20'000'000}, &source_, store_.get());
    maker_.File("/d/small", Noise(kSmallBytes, 1))
        .File("/d/other", Noise(500, 2))
        .File("/d/large", Noise(kLargeBytes, 3));
    const auto last = kLargeBytes / kUnit;
    table_.id = Sha256("table");
    table_.tree = tree_ = source_.Add(maker_);
    table_.files = {{"/d/small", maker_.At("/d/small").version(), {}},
                    {"/d/large", maker_.At("/d/large").version(), {}}};
    table_.frames = {{{0, 0, 2}, {1, 5, 1}}, {{0, 2, 1}}, {{1, last, 1}}};
    source_.SetTrace(table_);
  }
  ~PushTracedTest() override {
    source_.Hold(false);
    Unmount();
  }
  void Mount(bool passthrough) {
    Unmount();
    auto root = FetchRootEntry(*backend_, tree_);
    ASSERT_TRUE(root) << root.error().message();
    kernel_ = std::make_shared<FakeKernel>();
    root_.emplace(*backend_, *kernel_, tree_, *root, LazyRootOptions{.passthrough = passthrough});
    dispatcher_.emplace(kernel_, &*root_, &backend_->timers());
    dispatcher_->Start(1);
    kernel_->Init();
  }
  void Unmount() {
    if (dispatcher_) dispatcher_->Stop();
    dispatcher_.reset();
    root_.reset();
    pushed_.clear();
  }
  void List() {
    const uint64_t node = kernel_->Lookup(1, "d").As<fuse_entry_out>().nodeid;
    for (const auto& entry : kernel_->ReadDir(node, true)) nodes_[entry.name] = entry.entry.nodeid;
  }
  void Know(const std::string& name) {
    const uint64_t node = kernel_->Lookup(1, "d").As<fuse_entry_out>().nodeid;
    nodes_[name] = kernel_->Lookup(node, name).As<fuse_entry_out>().nodeid;
  }
  void BeginRun() { backend_->BeginRun({++job_, 1, "token"}); }
  std::optional<Recording> EndRun() { return backend_->EndRun(job_, 1); }

  static void WaitFor(const std::function<bool()>& condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(condition());
  }
  // Everything pushed so far to a file of this mount, by offset; compared with the file's content.
  const std::map<uint64_t, std::string>& Pushed(const std::string& name) {
    for (const auto& note : kernel_->TakeNotifications()) {
      fuse_notify_store_out out{};
      EXPECT_EQ(note.code, FUSE_NOTIFY_STORE);
      std::memcpy(&out, note.body.data(), sizeof out);
      EXPECT_EQ(out.size, note.stored().size());
      pushed_[note.node()][out.offset] = note.stored();  // content that arrives while it waits is pushed twice
      ++notifications_;
    }
    const std::string content = maker_.content(maker_.At("/d/" + name).version());
    for (const auto& [offset, bytes] : pushed_[nodes_.at(name)]) EXPECT_EQ(bytes, content.substr(offset, bytes.size()));
    return pushed_[nodes_.at(name)];
  }
  uint64_t PushedBytes(const std::string& name) {
    uint64_t bytes = 0;
    for (const auto& [offset, data] : Pushed(name)) bytes += data.size();
    return bytes;
  }

  TestDirectory directory_;
  std::unique_ptr<store::Store> store_;
  FakeSource source_;
  TreeMaker maker_;
  Digest tree_;
  TraceTable table_;
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<FakeKernel> kernel_;
  std::optional<LazyRoot> root_;
  std::optional<Dispatcher> dispatcher_;
  std::map<std::string, uint64_t> nodes_;
  std::map<uint64_t, std::map<uint64_t, std::string>> pushed_;
  int notifications_ = 0;
  uint64_t job_ = 0;
};

TEST_F(PushTracedTest, WhatIsHereIsPushedToWhomTheKernelKnows) {
  Mount(false);
  List();
  BeginRun();
  WaitFor([&] { return backend_->counters().units_fetched == 5; });
  EXPECT_EQ(PushedBytes("small"), 0u) << "listed before the run: nobody has asked for it in this one";
  for (const char* name : {"small", "large", "other"}) Know(name);
  WaitFor([&] { return PushedBytes("small") == kSmallBytes; });
  EXPECT_EQ(PushedBytes("large"), 0u) << "read through the view above";
  EXPECT_EQ(PushedBytes("other"), 0u) << "not of the trace";
}

TEST_F(PushTracedTest, WhatComesLaterIsPushedWhenItComes) {
  Mount(false);
  List();
  source_.Hold(true);
  BeginRun();
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Release(1);                // the table
  ASSERT_TRUE(source_.WaitHeld(3));  // its frames
  Know("small");
  EXPECT_EQ(PushedBytes("small"), 0u);
  source_.Release(1);
  WaitFor([&] { return PushedBytes("small") == 2 * kUnit; });
  source_.Release(2);
  WaitFor([&] { return PushedBytes("small") == kSmallBytes; });
}

TEST_F(PushTracedTest, WhereOpensAreSeenOnlyWhatIsOpenedIsPushedAndOnce) {
  Mount(true);
  BeginRun();
  WaitFor([&] { return backend_->counters().units_fetched == 5; });
  List();
  EXPECT_EQ(kernel_->Open(nodes_.at("large")).error, 0);
  WaitFor([&] { return Pushed("large").size() == 2; });
  EXPECT_EQ(Pushed("large").begin()->first, 5 * kUnit);
  EXPECT_EQ(Pushed("large").rbegin()->first + Pushed("large").rbegin()->second.size(), kLargeBytes);
  const int before = notifications_;
  EXPECT_EQ(kernel_->Open(nodes_.at("large")).error, 0);
  EXPECT_EQ(kernel_->Open(nodes_.at("small")).error, 0);
  WaitFor([&] { return PushedBytes("small") == kSmallBytes; });
  EXPECT_EQ(notifications_ - before, 2) << "those of the small file";
}

TEST_F(PushTracedTest, WhatWasPushedCountsAsUsed) {
  Mount(false);
  BeginRun();
  List();
  WaitFor([&] { return PushedBytes("small") == kSmallBytes; });
  // The record is made after the push.
  dispatcher_->Stop();
  root_->StopPushing();
  const auto recording = EndRun();
  ASSERT_TRUE(recording);
  ASSERT_EQ(recording->files.size(), 1u);
  EXPECT_EQ(recording->files[0].path, "/d/small");
  EXPECT_EQ(recording->counts[static_cast<size_t>(Origin::kTrace)].used_units, 3u);
}

TEST_F(PushTracedTest, ANameThatTheKernelHasNotTakenUpYetIsTriedAgain) {
  Mount(false);
  kernel_->RefuseStores(ENOENT, 2);
  BeginRun();
  WaitFor([&] { return backend_->counters().units_fetched == 5; });
  List();
  WaitFor([&] { return PushedBytes("small") == kSmallBytes; });
}

// The kernel requests the pages around the one that is read. It ignores EAGAIN for read-ahead.
TEST_F(PushTracedTest, NobodyWaitsForWhatIsAroundAPageThatIsHere) {
  Mount(true);
  BeginRun();
  WaitFor([&] { return backend_->counters().units_fetched == 5; });
  EndRun();
  List();
  const std::string content = maker_.content(maker_.At("/d/large").version());
  const uint64_t before = 5 * kUnit - 2 * FileContent::kPageBytes;  // unit 5 is here, unit 4 is not
  source_.Hold(true);
  EXPECT_EQ(kernel_->Read(nodes_.at("large"), before, kUnit).error, EAGAIN);
  EXPECT_EQ(kernel_->Read(nodes_.at("large"), 5 * kUnit, 4096).body, content.substr(5 * kUnit, 4096));
  // A read past the page cache would get the error.
  const uint64_t direct = kernel_->SendRead(nodes_.at("large"), 6 * kUnit - 4096, 8192, O_DIRECT);
  ASSERT_TRUE(source_.WaitHeld(1));
  const uint64_t folio = kernel_->SendRead(nodes_.at("large"), 4 * kUnit, 2 * kUnit);
  ASSERT_TRUE(source_.WaitHeld(2));
  // A repeated request is needed by somebody.
  const uint64_t again = kernel_->SendRead(nodes_.at("large"), before, kUnit);
  source_.Hold(false);
  EXPECT_EQ(kernel_->Wait(direct)->body, content.substr(6 * kUnit - 4096, 8192));
  EXPECT_EQ(kernel_->Wait(folio)->body, content.substr(4 * kUnit, 2 * kUnit));
  EXPECT_EQ(kernel_->Wait(again)->body, content.substr(before, kUnit));
}

TEST_F(PushTracedTest, WhenTheRunIsOverNothingIsPushed) {
  Mount(false);
  BeginRun();
  WaitFor([&] { return backend_->counters().units_fetched == 5; });
  EndRun();
  EXPECT_FALSE(backend_->traced().active());
  List();
  Unmount();
  EXPECT_TRUE(kernel_->TakeNotifications().empty());
}

}  // namespace
}  // namespace vrun::vfs
