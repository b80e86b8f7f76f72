// SPDX-License-Identifier: Apache-2.0
#include "vfs/lazy_root.h"

#include <gtest/gtest.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include "base/clock.h"
#include "store/store.h"
#include "tree/codec.h"
#include "vfs/fake_kernel.h"
#include "vfs/vfs_testing.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

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
  Result<UniqueFd> OpenForPassthrough() override { return object_->OpenForPassthrough(); }
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
      std::lock_guard lock(lost_mutex_);
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
  // Another node process: nothing in memory, the store as it is.
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
  // What happens without a request of the kernel's has no event to wait for.
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }
  std::vector<std::string> lost() {
    std::lock_guard lock(lost_mutex_);
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
  std::mutex lost_mutex_;
  std::vector<std::string> lost_;
};

TEST_F(LazyRootTest, NamesAndAttributesAreHomes) {
  options_.uid_base = 100000;
  TreeMaker maker;
  maker.File("/etc/passwd", "root:x", 0640).Symlink("/bin", "usr/bin").Dir("/home", 0711);
  maker.At("/etc/passwd").uid = 0;
  maker.At("/etc/passwd").gid = 3'000'000;
  maker.At("/etc/passwd").mtime_ns = -1;
  maker.At("/etc/passwd").blocks = 0;
  tree::Entry device;
  device.mode = S_IFCHR | 0666;
  device.rdev = makedev(259, 300000);
  device.dev = 77;
  device.ino = 9;
  maker.Put("/null", device);
  Mount(maker);

  const auto passwd = Find("/etc/passwd");
  EXPECT_EQ(passwd.entry_valid, kForeverSeconds);
  EXPECT_EQ(passwd.attr_valid, kForeverSeconds);
  EXPECT_EQ(passwd.attr.mode, uint32_t{S_IFREG | 0640});
  EXPECT_EQ(passwd.attr.uid, 100000u);
  EXPECT_EQ(passwd.attr.gid, 165534u);
  EXPECT_EQ(passwd.attr.size, 6u);
  EXPECT_EQ(passwd.attr.blocks, 0u);
  EXPECT_EQ(static_cast<int64_t>(passwd.attr.mtime), -1);
  EXPECT_EQ(passwd.attr.mtimensec, 999'999'999u);
  EXPECT_EQ(passwd.attr.ino, maker.At("/etc/passwd").ino);
  EXPECT_EQ(kernel_->GetAttr(passwd.nodeid).As<fuse_attr_out>().attr.uid, 100000u);

  EXPECT_EQ(Find("/home").attr.mode, uint32_t{S_IFDIR | 0711});
  const auto link = Find("/bin");
  EXPECT_EQ(kernel_->Call(FUSE_READLINK, link.nodeid, "").body, "usr/bin");
  EXPECT_EQ(kernel_->Call(FUSE_READLINK, passwd.nodeid, "").error, EINVAL);

  const auto null = Find("/null");
  EXPECT_EQ(null.attr.rdev, (300000u & 0xff) | 259u << 8 | (300000u & ~0xffu) << 12);
  EXPECT_NE(null.attr.ino, 9u);  // another file system of home: its numbers must not meet ours
  EXPECT_EQ(null.attr.ino & 0xffffffff, 9u);
  EXPECT_EQ(kernel_->GetAttr(1).As<fuse_attr_out>().attr.ino, 2u);
}

TEST_F(LazyRootTest, AbsentNamesAreRememberedForEver) {
  Mount(TreeMaker().File("/a", "1"));
  const auto none = Find("/nothing");
  EXPECT_EQ(none.nodeid, 0u);
  EXPECT_EQ(none.entry_valid, kForeverSeconds);
}

TEST_F(LazyRootTest, DirectoriesAreFetchedOnceAndKeptAcrossRestarts) {
  const TreeMaker maker = TreeMaker().File("/d/e/f", "1").File("/d/g", "2");
  const Digest tree = source_.Add(maker);
  Mount(tree);
  Find("/d/e/f");
  Find("/d/g");
  EXPECT_EQ(source_.CountAsked('d'), 3u);
  EXPECT_EQ(source_.asked().back().path, "/d/e");
  Restart();
  source_.ClearAsked();
  Mount(tree);
  Find("/d/e/f");
  EXPECT_EQ(source_.asked().size(), 0u);  // the root entry too
}

TEST_F(LazyRootTest, PreloadedDirectoriesAreNotAskedFor) {
  const TreeMaker maker = TreeMaker().File("/d/e/f", "1");
  const auto snapshot = maker.Make();
  Mount(source_.Add(maker));
  source_.ClearAsked();
  std::vector<FetchedDirectory> burst;
  burst.push_back({snapshot->directory, {}});
  burst.push_back({snapshot->directory->Child(0), {}});
  burst.push_back({snapshot->directory->Child(0)->Child(0), {}});
  const Digest inner = burst[2].directory->digest();
  backend_->Preload(std::move(burst));
  EXPECT_TRUE(backend_->HasDirectory(inner));
  Find("/d/e/f");
  EXPECT_EQ(source_.CountAsked('d'), 0u);
}

TEST_F(LazyRootTest, ConcurrentLookupsOfOneDirectoryAreOneFetch) {
  Mount(TreeMaker().File("/d/a", "1").File("/d/b", "2"));
  const auto d = Find("/d");
  source_.Hold(true);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(kernel_->SendLookup(d.nodeid, i % 2 != 0 ? "a" : "b"));
  ASSERT_TRUE(source_.WaitHeld(1));
  kernel_->Call(FUSE_STATFS, 1, "");  // the workers are free while home thinks
  source_.Hold(false);
  for (const uint64_t id : ids) EXPECT_NE(kernel_->Wait(id)->As<fuse_entry_out>().nodeid, 0u);
  EXPECT_EQ(source_.CountAsked('d'), 2u);
}

TEST_F(LazyRootTest, ListingsAreCompleteInBothForms) {
  TreeMaker maker;
  std::set<std::string> names = {".", ".."};
  for (int i = 0; i < 500; ++i) {
    const std::string name = "file \n\xff" + std::to_string(i) + std::string(i % 200, 'x');
    maker.File("/d/" + name, "x");
    names.insert(name);
  }
  maker.Dir("/empty");
  Mount(maker);
  const auto d = Find("/d");
  for (const bool plus : {false, true}) {
    std::set<std::string> seen;
    for (const auto& entry : kernel_->ReadDir(d.nodeid, plus)) {
      EXPECT_TRUE(seen.insert(entry.name).second) << entry.name;
      if (entry.name == "." || entry.name == "..") {
        EXPECT_EQ(entry.entry.nodeid, 0u);
        EXPECT_EQ(entry.type, 4u);
        continue;
      }
      EXPECT_EQ(entry.type, 8u);
      EXPECT_EQ(entry.ino, maker.At("/d/" + entry.name).ino);
      if (plus) {
        EXPECT_NE(entry.entry.nodeid, 0u);
        EXPECT_EQ(entry.entry.attr.size, 1u);
        EXPECT_EQ(kernel_->lookups(entry.entry.nodeid), 1u);
      }
    }
    EXPECT_EQ(seen, names);
  }
  EXPECT_EQ(root_->inodes(), 502u);
  EXPECT_EQ(kernel_->ReadDir(Find("/empty").nodeid, true).size(), 2u);
}

TEST_F(LazyRootTest, ForgettingEverythingLeavesTheRoot) {
  TreeMaker maker;
  maker.File("/a/b/c", "1").File("/a/d", "2").HardLink("/a/e", "/a/d");
  Mount(maker);
  Find("/a/b/c");
  Find("/a/d");
  Find("/a/e");
  kernel_->ReadDir(Find("/a").nodeid, true);
  EXPECT_EQ(root_->inodes(), 5u);
  kernel_->ForgetAll();
  kernel_->Call(FUSE_STATFS, 1, "");
  while (root_->inodes() != 1) std::this_thread::yield();
  EXPECT_EQ(ReadAll("/a/b/c"), "1");  // and all is found again
}

TEST_F(LazyRootTest, ParentsForgottenBeforeTheirChildrenStayUntilThose) {
  Mount(TreeMaker().File("/a/b/c", "content"));
  const auto a = Find("/a");
  const auto b = kernel_->Lookup(a.nodeid, "b").As<fuse_entry_out>();
  const auto c = kernel_->Lookup(b.nodeid, "c").As<fuse_entry_out>();
  kernel_->Forget(a.nodeid, 1);
  kernel_->Forget(b.nodeid, 1);
  EXPECT_EQ(kernel_->Read(c.nodeid, 0, 100).body, "content");
  kernel_->Forget(c.nodeid, 1);
  while (root_->inodes() != 1) std::this_thread::yield();
  EXPECT_EQ(kernel_->GetAttr(c.nodeid).error, ESTALE);
}

TEST_F(LazyRootTest, LookupsNobodyTookAreNotCounted) {
  Mount(TreeMaker().File("/d/a", "1"));
  const auto d = Find("/d");
  source_.Hold(true);
  const uint64_t id = kernel_->SendLookup(d.nodeid, "a");
  ASSERT_TRUE(source_.WaitHeld(1));
  kernel_->Withdraw(id);
  source_.Hold(false);
  const auto a = Find("/d/a");  // after the withdrawn one: its answer came first
  kernel_->Forget(a.nodeid, 1);
  kernel_->Forget(d.nodeid, 2);
  while (root_->inodes() != 1) std::this_thread::yield();
}

TEST_F(LazyRootTest, HardLinksAreOneNode) {
  TreeMaker maker;
  maker.File("/a", "same").HardLink("/d/b", "/a").File("/c", "same");
  Mount(maker);
  const auto a = Find("/a");
  const auto b = Find("/d/b");
  EXPECT_EQ(a.nodeid, b.nodeid);
  EXPECT_EQ(a.attr.nlink, 2u);
  EXPECT_NE(a.nodeid, Find("/c").nodeid);
  kernel_->Forget(a.nodeid, 1);
  EXPECT_EQ(kernel_->Read(b.nodeid, 0, 10).body, "same");
}

TEST_F(LazyRootTest, SmallFilesComeWholeAndOnce) {
  const std::string content = Noise(900 * kKiB, 1);
  Mount(TreeMaker().File("/f", content).File("/empty", ""));
  const auto f = Find("/f");
  source_.Hold(true);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 9; ++i) ids.push_back(kernel_->SendRead(f.nodeid, i * 100 * kKiB, 100 * kKiB));
  ASSERT_TRUE(source_.WaitHeld(1));
  source_.Hold(false);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(kernel_->Wait(ids[i])->body, content.substr(i * 100 * kKiB, 100 * kKiB));
  }
  EXPECT_EQ(source_.CountAsked('f'), 1u);
  EXPECT_EQ(kernel_->Read(f.nodeid, 900 * kKiB - 5, 4096).body, content.substr(content.size() - 5));
  EXPECT_EQ(kernel_->Read(f.nodeid, 900 * kKiB, 4096).body, "");
  EXPECT_EQ(kernel_->Read(f.nodeid, UINT64_MAX - 10, 4096).body, "");
  EXPECT_EQ(ReadAll("/empty"), "");
  EXPECT_EQ(source_.CountAsked('f'), 1u);
  EXPECT_EQ(backend_->counters().units_fetched, (900 * kKiB + store::kUnitBytes - 1) / store::kUnitBytes);
}

TEST_F(LazyRootTest, ASmallFileReadFromItsEndComesWholeToo) {
  const std::string content = Noise(900 * kKiB, 3);
  Mount(TreeMaker().File("/f", content));
  const auto f = Find("/f");
  EXPECT_EQ(kernel_->Read(f.nodeid, 800 * kKiB, 4096).body, content.substr(800 * kKiB, 4096));
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_EQ(source_.CountAsked('f'), 1u);
}

TEST_F(LazyRootTest, LargeFilesComeInPieces) {
  const std::string content = Noise(10 * kMiB + 777, 2);
  Mount(TreeMaker().File("/f", content));
  const auto f = Find("/f");
  struct Case {
    uint64_t offset;
    uint32_t length;
    uint64_t from, wanted, around;  // asked for on demand; in all, with what lies around
  };
  for (const Case& c : {Case{5 * kMiB + 100, 4096, 5 * kMiB, store::kUnitBytes, 256 * kKiB},
                        Case{kMiB - 1, 2, kMiB - store::kUnitBytes, 2 * store::kUnitBytes, 512 * kKiB},
                        Case{10 * kMiB + 700, 4096, 10 * kMiB, 777, 777}}) {
    source_.ClearAsked();
    const uint64_t before = backend_->counters().bytes_fetched;
    EXPECT_EQ(kernel_->Read(f.nodeid, c.offset, c.length).body, content.substr(c.offset, c.length));
    EXPECT_TRUE(Eventually([&] { return backend_->counters().bytes_fetched == before + c.around; }));
    for (const auto& asked : source_.asked()) {
      if (asked.what != 'f') continue;
      EXPECT_EQ(asked.offset, c.from);
      EXPECT_EQ(asked.length, c.wanted);
    }
    EXPECT_EQ(source_.CountAsked('f'), 1u);
  }
  EXPECT_TRUE(ReadAll("/f") == content);
}

TEST_F(LazyRootTest, SequentialReadersGetLargerPieces) {
  const std::string content = Noise(40 * kMiB, 3);
  Mount(TreeMaker().File("/f", content));
  EXPECT_TRUE(ReadAll("/f") == content);
  uint64_t largest = 0;
  uint64_t total = 0;
  for (const auto& asked : source_.asked()) {
    if (asked.what != 'f') continue;
    largest = std::max(largest, asked.length);
    total += asked.length;
  }
  EXPECT_EQ(largest, 4 * kMiB);
  EXPECT_EQ(total, content.size());         // nothing twice
  EXPECT_LT(source_.CountAsked('f'), 30u);  // of 640 units
}

TEST_F(LazyRootTest, WhatHomeTouchedComesBeforeItIsAskedFor) {
  const std::string large = Noise(3 * kMiB, 30), small = Noise(10 * kKiB, 31);
  TreeMaker maker;
  maker.File("/d/large", large).File("/d/small", small).File("/lib/needed", small + "x");
  source_.SetResident("/d/large",
                      {{"/d/large", maker.At("/d/large").version(), {}, {{0, 256 * kKiB}, {2 * kMiB, 3 * kMiB}}},
                       {"/d/small", maker.At("/d/small").version(), {}, {{0, small.size()}}},
                       {"/lib/needed", maker.At("/lib/needed").version(), {}, {{0, small.size() + 1}}}});
  Mount(maker);
  const auto f = Find("/d/large");
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 4096).body, large.substr(0, 4096));
  EXPECT_TRUE(
      Eventually([&] { return backend_->counters().bytes_fetched == 256 * kKiB + kMiB + 2 * small.size() + 1; }));
  source_.ClearAsked();
  EXPECT_EQ(kernel_->Read(f.nodeid, 2 * kMiB, 4096).body, large.substr(2 * kMiB, 4096));
  EXPECT_EQ(ReadAll("/d/small"), small);
  EXPECT_EQ(ReadAll("/lib/needed"), small + "x");
  EXPECT_EQ(source_.CountAsked('f') + source_.CountAsked('a'), 0u);
  EXPECT_TRUE(ReadAll("/d/large") == large);
  EXPECT_EQ(source_.CountAsked('e'), 0u);  // once a file is enough
}

TEST_F(LazyRootTest, WhatDoesNotComeAheadIsNoErrorAndComesOnDemand) {
  const std::string content = Noise(3 * kMiB, 32);
  TreeMaker maker;
  maker.File("/f", content).File("/gone", "x");
  tree::FileVersion gone = maker.At("/gone").version();
  ++gone.ctime_ns;
  source_.SetResident(
      "/f", {{"/f", maker.At("/f").version(), {}, {{kMiB, 2 * kMiB}}}, {"/gone", gone, {}, {{0, gone.size}}}});
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'a') return Error(Code::kAborted, "no");
    return std::nullopt;
  });
  Mount(maker);
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_EQ(ReadAll("/gone"), "x");
  EXPECT_TRUE(lost().empty());
}

TEST_F(LazyRootTest, AViewGoesWhileMuchIsStillToComeAhead) {
  const std::string content = Noise(20 * kMiB, 33);
  TreeMaker maker;
  maker.File("/f", content);
  source_.SetResident("/f", {{"/f", maker.At("/f").version(), {}, {{0, content.size()}}}});
  Mount(maker);
  EXPECT_EQ(kernel_->Read(Find("/f").nodeid, 0, 10).body, content.substr(0, 10));
  Restart();
}

TEST_F(LazyRootTest, KnownContentIsNotFetchedAgainUnderAnotherName) {
  const std::string content = Noise(300 * kKiB, 4);
  source_.TellIds(true);
  Mount(TreeMaker().File("/a", content).File("/b", content));
  EXPECT_EQ(ReadAll("/a"), content);
  EXPECT_EQ(ReadAll("/b"), content);
  EXPECT_EQ(source_.CountAsked('f'), 1u);
}

TEST_F(LazyRootTest, ContentSurvivesRestarts) {
  const std::string content = Noise(3 * kMiB, 5);
  const Digest tree = source_.Add(TreeMaker().File("/a", content));
  Mount(tree);
  EXPECT_EQ(ReadAll("/a"), content);
  Restart();
  source_.ClearAsked();
  Mount(tree);
  EXPECT_EQ(ReadAll("/a"), content);
  EXPECT_EQ(source_.asked().size(), 0u);
  EXPECT_GT(backend_->counters().units_from_store, 0u);
}

TEST_F(LazyRootTest, AFullDiskIsServedThroughMemory) {
  FullStore full(*store_);
  use_store_ = &full;
  backend_options_.unstored_memory_bytes = 2 * kMiB;
  const std::string content = Noise(9 * kMiB, 6);
  const std::string small = Noise(500 * kKiB, 7);
  Mount(TreeMaker().File("/f", content).File("/small", small));
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_EQ(ReadAll("/small"), small);
  EXPECT_TRUE(ReadAll("/f") == content);
  EXPECT_GT(backend_->counters().store_write_failures, 0u);
  EXPECT_EQ(lost().size(), 0u);
  Unmount();
  backend_.reset();
}

TEST_F(LazyRootTest, AChangedFileIsEioAndReportedOnce) {
  Mount(TreeMaker().File("/d/f", Noise(5000, 1)).File("/d/g", "fine"));
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.path == "/d/f" && asked.what == 'f') return Error(Code::kAborted, "read f: it has changed");
    return std::nullopt;
  });
  const auto f = Find("/d/f");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(kernel_->Read(f.nodeid, 0, 100).error, EIO);
  EXPECT_EQ(lost(), std::vector<std::string>{"/d/f: read f: it has changed"});
  EXPECT_EQ(source_.CountAsked('f'), 1u);  // it will not come back
  EXPECT_EQ(ReadAll("/d/g"), "fine");
}

TEST_F(LazyRootTest, WhatHomeMayNotReadIsEacces) {
  Mount(TreeMaker().File("/f", "secret"));
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f') return Error(Code::kDenied, "no");
    return std::nullopt;
  });
  const auto f = Find("/f");
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 100).error, EACCES);
  EXPECT_EQ(lost().size(), 0u);
  source_.FailWith(nullptr);
  EXPECT_EQ(ReadAll("/f"), "secret");  // not for ever
}

TEST_F(LazyRootTest, HomeAwayIsWaitedFor) {
  Mount(TreeMaker().File("/d/f", "here"));
  std::atomic<int> failures{0};
  source_.FailWith([&](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'r' || failures.fetch_add(1) % 3 == 2) return std::nullopt;
    return Error(Code::kUnavailable, "home is away");
  });
  EXPECT_EQ(ReadAll("/d/f"), "here");
  EXPECT_GT(backend_->counters().fetch_retries, 0u);
  EXPECT_EQ(lost().size(), 0u);
}

TEST_F(LazyRootTest, HomeBackEndsTheWaitAtOnce) {
  backend_options_.home_deadline_micros = 3600ll * 1'000'000;
  Mount(TreeMaker().File("/f", "here"));
  const auto f = Find("/f");
  std::atomic<bool> away{true};
  source_.FailWith([&](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f' && away) return Error(Code::kUnavailable, "home is away");
    return std::nullopt;
  });
  const uint64_t id = kernel_->SendRead(f.nodeid, 0, 10);
  while (source_.CountAsked('f') < 3) std::this_thread::yield();
  away = false;
  backend_->HomeIsBack();
  EXPECT_EQ(kernel_->Wait(id)->body, "here");
}

TEST_F(LazyRootTest, HomeAwayForTooLongIsEio) {
  backend_options_.home_deadline_micros = 300'000;
  Mount(TreeMaker().File("/d/f", "here"));
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.what == 'f') return Error(Code::kUnavailable, "home is away");
    return std::nullopt;
  });
  const auto f = Find("/d/f");
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).error, EIO);
  EXPECT_EQ(lost().size(), 0u);  // it may come back
  source_.FailWith(nullptr);
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).body, "here");
}

TEST_F(LazyRootTest, AHomeThatNeverAnswersIsEioAtTheDeadline) {
  backend_options_.home_deadline_micros = 300'000;
  Mount(TreeMaker().File("/d/f", "here").File("/e/f", "1"));
  const auto f = Find("/d/f");
  const auto e = Find("/e");
  source_.Hold(true);
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).error, EIO);
  EXPECT_EQ(kernel_->Lookup(e.nodeid, "f").error, EIO);
  source_.Hold(false);
  EXPECT_EQ(kernel_->Read(f.nodeid, 0, 10).body, "here");
}

TEST_F(LazyRootTest, AHostileHomeIsNeverBelieved) {
  const std::string content = Noise(200 * kKiB, 1);
  const std::vector<std::function<void(FetchedRange*)>> lies = {
      [](FetchedRange* r) { r->offset += 65536; },
      [](FetchedRange* r) { r->units.pop_back(); },
      [](FetchedRange* r) { r->units.clear(); },
      [](FetchedRange* r) { r->units.push_back(r->units[0]); },
      [](FetchedRange* r) { r->units[0].data.pop_back(); },
      [](FetchedRange* r) { r->units[3].data += "more"; },
      [](FetchedRange* r) {
        r->object_id = store::ObjectId{store::IdAlgorithm::kSha256, Sha256("other")};
      },
  };
  TreeMaker maker;
  for (size_t i = 0; i < lies.size(); ++i) maker.File("/f" + std::to_string(i), content);
  Mount(maker);
  for (size_t i = 0; i < lies.size(); ++i) {
    source_.Tamper(lies[i]);
    const auto f = Find("/f" + std::to_string(i));
    EXPECT_EQ(kernel_->Read(f.nodeid, 0, 4096).error, EIO) << i;
  }
  EXPECT_EQ(lost().size(), lies.size());
}

TEST_F(LazyRootTest, AnotherDirectoryThanAskedForIsRefused) {
  // A tree whose directory object nobody has.
  auto broken = std::make_shared<tree::Snapshot>(*TreeMaker().Dir("/gone").Make());
  broken->root.child = Sha256("nothing");
  broken->id = Sha256(tree::EncodeRoot(broken->root));
  source_.Add(tree::SnapshotPtr(broken));
  Mount(broken->id);
  EXPECT_EQ(kernel_->Lookup(1, "gone").error, EIO);
  EXPECT_EQ(lost().size(), 1u);
}

TEST_F(LazyRootTest, InterruptedReadersLeaveAndTheFetchGoesOn) {
  Mount(TreeMaker().File("/f", "content"));
  const auto f = Find("/f");
  source_.Hold(true);
  const uint64_t first = kernel_->SendRead(f.nodeid, 0, 100);
  const uint64_t second = kernel_->SendRead(f.nodeid, 0, 100);
  ASSERT_TRUE(source_.WaitHeld(1));
  kernel_->Interrupt(first);
  EXPECT_EQ(kernel_->Wait(first)->error, EINTR);
  source_.Hold(false);
  EXPECT_EQ(kernel_->Wait(second)->body, "content");
}

TEST_F(LazyRootTest, AViewGoesWhileHomeStillOwesAnswers) {
  const Digest tree = source_.Add(TreeMaker().File("/d/f", "content").File("/f", "x"));
  Mount(tree);
  const auto d = Find("/d");
  const auto f = Find("/f");
  source_.Hold(true);
  kernel_->SendRead(f.nodeid, 0, 100);
  kernel_->SendLookup(d.nodeid, "f");
  ASSERT_TRUE(source_.WaitHeld(2));
  Unmount();
  source_.Hold(false);
  Mount(tree);
  EXPECT_EQ(ReadAll("/d/f"), "content");
  source_.Hold(true);
  const auto g = Find("/f");
  kernel_->SendRead(g.nodeid, 0, 100);
  Unmount();
  backend_.reset();  // and so may the backend
  source_.Hold(false);
}

TEST_F(LazyRootTest, ASourceThatAnswersInlineIsFine) {
  source_.AnswerInline(true);
  const std::string content = Noise(5 * kMiB, 9);
  Mount(TreeMaker().File("/d/f", content));
  EXPECT_EQ(ReadAll("/d/f"), content);
}

TEST_F(LazyRootTest, XattrsAreServedWithIdsMoved) {
  options_.uid_base = 100000;
  TreeMaker maker;
  maker.File("/f", "x").File("/plain", "y");
  struct {
    posix_acl_xattr_header header{POSIX_ACL_XATTR_VERSION};
    posix_acl_xattr_entry entries[3] = {{ACL_USER_OBJ, 6, ~0u}, {ACL_USER, 4, 1000}, {ACL_GROUP, 4, 50}};
  } acl;
  const std::string v2("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 20);
  maker.At("/f").xattrs = {{"security.capability", v2},
                           {"system.posix_acl_access", {reinterpret_cast<char*>(&acl), sizeof acl}},
                           {"user.note", "hello"}};
  Mount(maker);
  const auto f = Find("/f");
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.note", 0).As<fuse_getxattr_out>().size, 5u);
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.note", 100).body, "hello");
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.note", 4).error, ERANGE);
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "user.none", 4).error, ENODATA);
  EXPECT_EQ(kernel_->Xattr(f.nodeid, "trusted.overlay.opaque", 4).error, ENODATA);
  EXPECT_EQ(kernel_->ListXattr(f.nodeid, 1000).body,
            std::string("security.capability\0system.posix_acl_access\0user.note\0", 54));
  EXPECT_EQ(kernel_->ListXattr(f.nodeid, 5).error, ERANGE);
  const std::string moved = kernel_->Xattr(f.nodeid, "system.posix_acl_access", 1000).body;
  posix_acl_xattr_entry entry;
  std::memcpy(&entry, moved.data() + sizeof acl.header + sizeof entry, sizeof entry);
  EXPECT_EQ(entry.e_id, 101000u);
  const std::string v3 = kernel_->Xattr(f.nodeid, "security.capability", 1000).body;
  ASSERT_EQ(v3.size(), 24u);
  EXPECT_EQ(v3[3], 3);
  EXPECT_EQ(v3.substr(4, 16), v2.substr(4));
  uint32_t rootid;
  std::memcpy(&rootid, v3.data() + 20, 4);
  EXPECT_EQ(rootid, 100000u);
  EXPECT_EQ(kernel_->Xattr(Find("/plain").nodeid, "security.capability", 24).error, ENODATA);
}

TEST_F(LazyRootTest, WithoutXattrsTheKernelStopsAsking) {
  options_.xattrs = false;
  TreeMaker maker;
  maker.File("/f", "x");
  maker.At("/f").xattrs = {{"user.note", "hello"}};
  Mount(maker);
  EXPECT_EQ(kernel_->Xattr(Find("/f").nodeid, "user.note", 100).error, ENOSYS);
  const auto listed = kernel_->ListXattr(Find("/f").nodeid, 100);
  EXPECT_EQ(listed.error, 0) << "an empty list is no error";
  EXPECT_EQ(listed.body, "");
}

// --- passthrough -----------------------------------------------------------------------------------------------------

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

// --- Advance ---------------------------------------------------------------------------------------------------------

std::multiset<std::string> Summary(const std::vector<FakeKernel::Notification>& notes) {
  std::multiset<std::string> out;
  for (const auto& note : notes) {
    if (note.code == FUSE_NOTIFY_INVAL_ENTRY) {
      out.insert("entry " + std::to_string(note.node()) + " " + note.name());
    } else {
      fuse_notify_inval_inode_out inode{};
      std::memcpy(&inode, note.body.data(), sizeof inode);
      out.insert((inode.off < 0 ? "attributes " : "listing ") + std::to_string(inode.ino));
    }
  }
  return out;
}

TEST_F(LazyRootTest, AdvanceInvalidatesWhatChangedAndNothingElse) {
  TreeMaker maker;
  maker.File("/p/edited", "old").File("/p/same", "same").File("/p/gone", "g").File("/q/deep/x", "x").Dir("/p/sub");
  Mount(maker);
  const auto p = Find("/p");
  const auto edited = Find("/p/edited");
  const auto same = Find("/p/same");
  const auto gone = Find("/p/gone");
  const auto q = Find("/q");
  const auto deep = Find("/q/deep");
  EXPECT_EQ(ReadAll("/p/edited"), "old");
  EXPECT_EQ(Find("/p/new").nodeid, 0u);
  EXPECT_EQ(kernel_->lookups(same.nodeid), 1u);

  maker.Edit("/p/edited", "new!").Remove("/p/gone").File("/p/new", "n").File("/p/aaa", "first");
  ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
  const std::string in = " " + std::to_string(p.nodeid) + " ";
  EXPECT_EQ(Summary(kernel_->TakeNotifications()),
            (std::multiset<std::string>{"entry" + in + "aaa", "entry" + in + "edited", "entry" + in + "gone",
                                        "entry" + in + "new", "listing 1", "listing " + std::to_string(p.nodeid)}));

  EXPECT_EQ(Find("/p").nodeid, p.nodeid);
  EXPECT_EQ(Find("/p/same").nodeid, same.nodeid);
  EXPECT_EQ(Find("/q/deep").nodeid, deep.nodeid);
  EXPECT_NE(Find("/p/edited").nodeid, edited.nodeid);  // old pages never under the new version
  EXPECT_EQ(ReadAll("/p/edited"), "new!");
  EXPECT_EQ(ReadAll("/p/same"), "same");
  EXPECT_EQ(ReadAll("/p/new"), "n");
  EXPECT_EQ(Find("/p/gone").nodeid, 0u);
  EXPECT_EQ(kernel_->GetAttr(gone.nodeid).error, ESTALE);
  (void)q;

  kernel_->ForgetAll();
  while (root_->inodes() != 1) std::this_thread::yield();
}

TEST_F(LazyRootTest, AdvanceSeesAttributesTypesAndRoot) {
  TreeMaker maker;
  maker.Dir("/d").File("/d/f", "x").File("/was_file", "x").Dir("/was_dir").File("/was_dir/inside", "i");
  Mount(maker);
  const auto d = Find("/d");
  const auto f = Find("/d/f");
  Find("/was_file");
  Find("/was_dir/inside");
  maker.At("/d").mode = S_IFDIR | 0700;
  maker.Remove("/was_file").Remove("/was_dir").File("/was_dir", "now a file").File("/was_file/in", "now a directory");
  ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
  EXPECT_EQ(Summary(kernel_->TakeNotifications()),
            (std::multiset<std::string>{"entry 1 was_dir", "entry 1 was_file", "listing 1",
                                        "attributes " + std::to_string(d.nodeid)}));
  EXPECT_EQ(kernel_->GetAttr(d.nodeid).As<fuse_attr_out>().attr.mode, uint32_t{S_IFDIR | 0700});
  EXPECT_EQ(Find("/d/f").nodeid, f.nodeid);
  EXPECT_EQ(ReadAll("/was_dir"), "now a file");
  EXPECT_EQ(ReadAll("/was_file/in"), "now a directory");
}

TEST_F(LazyRootTest, AdvanceKeepsHardLinksTogether) {
  TreeMaker maker;
  maker.File("/a/one", "x").HardLink("/b/two", "/a/one").File("/b/other", "o");
  Mount(maker);
  const auto one = Find("/a/one");
  Find("/b/two");
  maker.Edit("/b/other", "changed").File("/b/aa", "shifts the others");
  ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
  EXPECT_EQ(Find("/a/one").nodeid, one.nodeid);
  EXPECT_EQ(Find("/b/two").nodeid, one.nodeid);
  EXPECT_EQ(ReadAll("/b/two"), "x");
  kernel_->ForgetAll();
  while (root_->inodes() != 1) std::this_thread::yield();
}

TEST_F(LazyRootTest, AFailedAdvanceChangesNothing) {
  TreeMaker maker;
  maker.File("/d/f", "old");
  const Digest before = source_.Add(maker);
  Mount(before);
  Find("/d/f");
  maker.Edit("/d/f", "new");
  const Digest after = source_.Add(maker);
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.path == "/d") return Error(Code::kDenied, "no");
    return std::nullopt;
  });
  EXPECT_FALSE(root_->Advance(*dispatcher_, after));
  EXPECT_EQ(root_->tree(), before);
  EXPECT_EQ(kernel_->TakeNotifications().size(), 0u);
  EXPECT_EQ(ReadAll("/d/f"), "old");
  source_.FailWith(nullptr);
  ASSERT_TRUE(root_->Advance(*dispatcher_, after));
  EXPECT_EQ(ReadAll("/d/f"), "new");
}

TEST_F(LazyRootTest, AdvanceManyTimesAtRandomAgreesWithAFreshView) {
  std::mt19937_64 random(7);
  TreeMaker maker;
  std::vector<std::string> paths;
  for (int i = 0; i < 60; ++i) {
    paths.push_back("/d" + std::to_string(i % 4) + "/e" + std::to_string(i % 3) + "/f" + std::to_string(i));
    maker.File(paths.back(), std::to_string(i));
  }
  Mount(maker);
  std::set<std::string> alive(paths.begin(), paths.end());
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20; ++i) {
      const std::string& path = paths[random() % paths.size()];
      const auto entry = Find(path);
      EXPECT_EQ(entry.nodeid != 0, alive.count(path) == 1) << path;
      if (entry.nodeid != 0) {
        EXPECT_EQ(kernel_->Read(entry.nodeid, 0, 100).body, maker.content(maker.At(path).version()));
        if (random() % 2 == 0) kernel_->Forget(entry.nodeid, 1);
      }
    }
    for (int i = 0; i < 5; ++i) {
      const std::string& path = paths[random() % paths.size()];
      if (alive.count(path) == 0) {
        maker.File(path, "back" + std::to_string(round));
        alive.insert(path);
      } else if (random() % 2 == 0) {
        maker.Edit(path, "edit" + std::to_string(random()));
      } else {
        maker.Remove(path);
        alive.erase(path);
      }
    }
    ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
    if (round % 10 == 9) {
      kernel_->ForgetAll();
      while (root_->inodes() != 1) std::this_thread::yield();
    }
  }
}

}  // namespace
}  // namespace vrun::vfs
