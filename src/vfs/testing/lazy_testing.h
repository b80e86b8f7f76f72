// SPDX-License-Identifier: Apache-2.0
// A LazyRoot under a fake kernel, over a fake home, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "tree/codec.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/testing/fake_kernel.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

// A store whose disk is full.
class FullObject final : public store::Object {
 public:
  explicit FullObject(std::shared_ptr<store::Object> object) : object_(std::move(object)) {}
  store::ObjectId id() const override { return object_->id(); }
  uint64_t size() const override { return object_->size(); }
  bool Has(uint64_t offset, uint64_t length) override { return object_->Has(offset, length); }
  std::vector<store::UnitRange> MissingUnits(uint64_t offset, uint64_t length) override {
    return object_->MissingUnits(offset, length);
  }
  Result<size_t> Read(uint64_t offset, void* buffer, size_t n) override { return object_->Read(offset, buffer, n); }
  Status Put(uint64_t, std::span<const store::PutUnit>, bool) override {
    return Error(Code::kExhausted, "write to the store: No space left on device");
  }
  bool complete() override { return object_->complete(); }
  std::optional<uint64_t> VerifySome(uint64_t bytes) override { return object_->VerifySome(bytes); }
  Result<UniqueFd> OpenForPassthrough() override { return object_->OpenForPassthrough(); }
  Result<UniqueFd> OpenPart(uint64_t offset, uint64_t length) override { return object_->OpenPart(offset, length); }
  Status Resolve(const store::ObjectId& id) override { return object_->Resolve(id); }

 private:
  std::shared_ptr<store::Object> object_;
};

class FullStore final : public store::Store {
 public:
  explicit FullStore(store::Store& store) : store_(store) {}
  Result<std::shared_ptr<store::Object>> Acquire(const store::ObjectId& id, uint64_t size) override {
    VRUN_ASSIGN(auto object, store_.Acquire(id, size));
    return std::shared_ptr<store::Object>(std::make_shared<FullObject>(std::move(object)));
  }
  Result<std::string> GetBlob(const Digest& digest) override { return store_.GetBlob(digest); }
  Status PutBlob(const Digest&, std::string_view) override { return Error(Code::kExhausted, "full"); }
  store::Stats stats() const override { return store_.stats(); }
  Result<uint64_t> Prune(uint64_t bytes) override { return store_.Prune(bytes); }
  Result<uint64_t> Sweep(const std::function<bool(const store::ObjectId&)>& object_needed,
                         const std::function<bool(const Digest&)>& blob_needed) override {
    return store_.Sweep(object_needed, blob_needed);
  }
  void SetLimit(uint64_t) override {}
  void OnPressure(std::function<void()>) override {}
  bool GiveWay(int, uint64_t) override { return false; }
  Result<VerifyReport> Verify(const std::function<bool(const VerifyReport&)>& progress) override {
    return store_.Verify(progress);
  }
  void WaitForScan() override {}

 private:
  store::Store& store_;
};

class LazyRootTest : public testing::Test {
 protected:
  LazyRootTest() {
    auto opened = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    EXPECT_TRUE(opened) << opened.error().message();
    store_ = *std::move(opened);
  }
  ~LazyRootTest() override { Unmount(); }

  void Mount(const TreeMaker& maker) { Mount(source_.Add(maker)); }
  void Mount(const Digest& tree) {
    if (!backend_) backend_ = Backend::Create(backend_options_, &source_, use_store_ ? use_store_ : store_.get());
    auto root = FetchRootEntry(*backend_, tree);
    ASSERT_TRUE(root) << root.error().message();
    options_.on_content_lost = [this](const std::string& path, const std::string& reason) {
      MutexLock lock(lost_mutex_);
      lost_.push_back(path + ": " + reason);
    };
    kernel_ = std::make_shared<FakeKernel>();
    root_.emplace(*backend_, *kernel_, tree, *root, options_);
    dispatcher_.emplace(kernel_, &*root_, &backend_->timers());
    dispatcher_->Start(2);
    init_ = kernel_->Init(offer_);
  }
  void Unmount() {
    if (dispatcher_) dispatcher_->Stop();
    dispatcher_.reset();
    root_.reset();
  }
  // Simulates another node process: nothing in memory, the same store.
  void Restart() {
    Unmount();
    backend_.reset();
  }

  fuse_entry_out Find(const std::string& path) {
    fuse_entry_out out{};
    out.nodeid = 1;
    for (size_t at = 1; at <= path.size();) {
      const size_t slash = std::min(path.find('/', at), path.size());
      const auto answer = kernel_->Lookup(out.nodeid, path.substr(at, slash - at));
      EXPECT_EQ(answer.error, 0) << path;
      out = answer.As<fuse_entry_out>();
      if (out.nodeid == 0) return out;
      at = slash + 1;
    }
    return out;
  }
  std::string ReadAll(const std::string& path) {
    const auto entry = Find(path);
    std::string all;
    for (;;) {
      const auto answer = kernel_->Read(entry.nodeid, all.size(), 128 * kKiB);
      EXPECT_EQ(answer.error, 0) << path;
      if (answer.error != 0 || answer.body.empty()) return all;
      all += answer.body;
    }
  }
  // Polls for effects that cause no request of the kernel, so there is no event to wait for.
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }
  std::vector<std::string> lost() {
    MutexLock lock(lost_mutex_);
    return lost_;
  }

  TestDirectory directory_;
  std::unique_ptr<store::Store> store_;
  store::Store* use_store_ = nullptr;
  BackendOptions backend_options_{.home_id = "home", .home_deadline_micros = 20'000'000};
  FakeSource source_;
  std::shared_ptr<Backend> backend_;
  LazyRootOptions options_;
  uint64_t offer_ = ~0ull;
  std::shared_ptr<FakeKernel> kernel_;
  std::optional<LazyRoot> root_;
  std::optional<Dispatcher> dispatcher_;
  InitOut init_{};
  Mutex lost_mutex_;
  std::vector<std::string> lost_;
};

}  // namespace vrun::vfs
