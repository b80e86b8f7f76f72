// SPDX-License-Identifier: Apache-2.0
// A real root, what home answers with (a content server and its session), and a collection on disk that asks it. Only
// the network between them is a queue.
#include "snapshots/collection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "base/files.h"
#include "base/work_queue.h"
#include "home/content_server.h"
#include "home/content_session.h"
#include "home/root_files.h"
#include "home/test_directory.h"
#include "rpc/testing.h"
#include "snapshots/difference.h"
#include "tree/scan.h"
#include "tree/subset.h"

namespace vrun::snapshots {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr char kHomeId[] = "0123456789abcdef0123456789abcdef";
constexpr char kToken[] = "the token of this creation";

std::string Random(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// From the store to home: requests go straight to the session.
class ToHome : public rpc::Stream {
 public:
  explicit ToHome(std::shared_ptr<home::ContentSession> session) : session_(std::move(session)) {}
  void Send(std::string message) override { session_->OnMessage(message); }
  void SendUrgent(std::string message) override { Send(std::move(message)); }
  size_t queued_bytes() const override { return 0; }
  void Finish() override {}
  void Cancel(Error) override {}

 private:
  const std::shared_ptr<home::ContentSession> session_;
};

// And back: on a thread, as gRPC would.
class ToStore : public rpc::Stream {
 public:
  rpc::Stream::Handler* handler = nullptr;
  ~ToStore() override { queue_.Stop(); }
  void Send(std::string message) override {
    queue_.Post([this, message = std::move(message)]() mutable { handler->OnMessage(std::move(message)); });
  }
  void SendUrgent(std::string message) override { Send(std::move(message)); }
  size_t queued_bytes() const override { return 0; }
  void Finish() override {}
  void Cancel(Error) override {}

 private:
  WorkQueue queue_{"to-store"};
};

// The files of a user who may not read all of them.
class SomeDenied final : public home::ContentFiles {
 public:
  explicit SomeDenied(home::RootFiles files) : files_(std::move(files)) {}
  Result<UniqueFd> OpenVersion(std::string_view path, const tree::FileVersion& version) const override {
    if (path == denied) return Error(Code::kDenied, "permission denied");
    return files_.OpenVersion(path, version);
  }
  Status Check(int fd, std::string_view path, const tree::FileVersion& version) const override {
    return files_.Check(fd, path, version);
  }
  std::string denied;

 private:
  const home::RootFiles files_;
};

class CollectionTest : public testing::Test {
 protected:
  void SetUp() override {
    files_.emplace(*home::RootFiles::Open(root_.path()));
    server_ = std::make_unique<home::ContentServer>(&trees_, &*files_, &digests_);
    OpenCollection();
  }
  void TearDown() override {
    Disconnect();
    collection_.reset();
    server_.reset();
  }

  void Disconnect() {
    if (session_) session_->Close();
    session_.reset();
    to_store_.reset();
  }
  // As after a restart of the store.
  void OpenCollection() {
    Disconnect();
    collection_.reset();
    auto collection = Collection::Open(&loop_, disk_.path(), "store", authority_.Make("snapshots", "snapshots"));
    ASSERT_TRUE(collection) << collection.error().message();
    collection_ = std::move(*collection);
    ASSERT_TRUE(collection_->Load());
    Realm* realm = collection_->RealmOf(kHomeId);
    realm->source().AllowToken(kHomeId, kToken, 0, 0);
    session_ = server_->NewSession();
    to_store_ = std::make_unique<ToStore>();
    to_store_->handler = *realm->source().Accept(std::make_unique<ToHome>(session_));
    v1::ContentReply hello;
    hello.mutable_hello()->set_home_id(kHomeId);
    hello.mutable_hello()->set_token(kToken);
    to_store_->Send(hello.SerializeAsString());
    session_->Start(to_store_.get());
  }

  tree::SnapshotPtr Scan(const std::vector<std::string>& paths = {}) {
    tree::ScanOptions scan;
    scan.root = root_.path();
    auto snapshot = tree::Scan(scan);
    EXPECT_TRUE(snapshot);
    trees_.SetCurrent(*snapshot, std::make_shared<const home::DenyRules>());
    return *tree::Subset(*snapshot, paths);
  }
  Result<Collection::Created> Create(const std::string& name, const tree::SnapshotPtr& tree,
                                     const std::vector<std::string>& paths = {}) {
    pins_.push_back(trees_.Add(tree, {}));
    v1::CreateSnapshot request;
    request.set_name(name);
    request.set_home_id(kHomeId);
    request.set_tree(std::string(tree->id.view()));
    for (const std::string& path : paths) request.add_path(path);
    return collection_->Create(request, nullptr);
  }
  v1::SnapshotInfo Made(const std::string& name, const std::vector<std::string>& paths = {}) {
    auto created = Create(name, Scan(paths), paths);
    EXPECT_TRUE(created) << created.error().message();
    if (!created) return {};
    EXPECT_THAT(created->changed, IsEmpty());
    return created->info;
  }
  Result<std::string> Read(const std::string& name, const std::string& path) {
    VRUN_ASSIGN(const auto snapshot, collection_->Find(name));
    VRUN_ASSIGN(const tree::Entry entry, tree::Lookup(*snapshot->tree, path));
    VRUN_ASSIGN(const UniqueFd fd, snapshot->realm->files().OpenVersion(path, entry.version()));
    std::string bytes(entry.size, '\0');
    VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), bytes.data(), bytes.size(), 0));
    bytes.resize(n);
    return bytes;
  }
  std::vector<std::string> Differences(const std::string& from, const std::string& to) {
    std::vector<std::string> all;
    Compare(**collection_->Find(from), **collection_->Find(to), [&](const v1::SnapshotDifference& d) {
      std::string text(1, "?+-~"[d.change()]);
      text += d.path();
      for (const std::string& kind : d.kind()) text += " " + kind;
      all.push_back(text);
    });
    return all;
  }
  uint64_t DiskBytes() const {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(disk_.path() + "/store/objects")) {
      if (file.is_regular_file()) bytes += file.file_size();
    }
    return bytes;
  }
  void Write(const std::string& path, const std::string& text) { root_.Put(path, text); }

  home::TestDirectory root_, disk_;
  rpc::TestAuthority authority_;
  EventLoop loop_;
  home::SnapshotTable trees_;
  home::DigestCache digests_{""};
  std::optional<SomeDenied> files_;
  std::unique_ptr<home::ContentServer> server_;
  std::vector<home::SnapshotTable::Pin> pins_;
  std::unique_ptr<Collection> collection_;
  std::shared_ptr<home::ContentSession> session_;
  std::unique_ptr<ToStore> to_store_;
};

TEST_F(CollectionTest, EverythingIsReadableWhenTheRootIsGoneAndTheStoreWasStartedAgain) {
  const std::string large = Random(9'500'000, 1), middle = Random(300'000, 2);
  Write("bin/large", large);
  Write("bin/middle", middle);
  Write("etc/small", "small\n");
  Write("etc/empty", "");
  std::filesystem::create_symlink("small", root_.path() + "/etc/link");
  std::filesystem::create_hard_link(root_.path() + "/etc/small", root_.path() + "/etc/other");
  const v1::SnapshotInfo info = Made("one");
  EXPECT_EQ(info.entries(), 8u);
  EXPECT_EQ(info.sent_bytes(), large.size() + middle.size() + 6);

  std::filesystem::remove_all(root_.path() + "/bin");
  std::filesystem::remove_all(root_.path() + "/etc");
  OpenCollection();
  Disconnect();
  EXPECT_EQ(*Read("one", "/bin/large"), large);
  EXPECT_EQ(*Read("one", "/bin/middle"), middle);
  EXPECT_EQ(*Read("one", "/etc/small"), "small\n");
  EXPECT_EQ(*Read("one", "/etc/other"), "small\n");
  EXPECT_EQ(*Read("one", "/etc/empty"), "");
  EXPECT_EQ(tree::Lookup(*(*collection_->Find("one"))->tree, "/etc/link")->target, "small");
  const auto loaded = collection_->List();
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].SerializeAsString(), info.SerializeAsString());
}

TEST_F(CollectionTest, TheNextSnapshotSendsWhatChanged) {
  Write("a/large", Random(5'000'000, 3));
  for (int i = 0; i < 100; ++i) Write("b/" + std::to_string(i), Random(1000, static_cast<uint32_t>(i)));
  Made("one");
  Write("b/7", "changed");
  const uint64_t before = server_->served_bytes();
  EXPECT_EQ(Made("two").sent_bytes(), 7u);
  EXPECT_LT(server_->served_bytes() - before, 20'000u);  // and two directories
  EXPECT_EQ(*Read("one", "/b/7"), Random(1000, 7));
  EXPECT_EQ(*Read("two", "/b/7"), "changed");
}

TEST_F(CollectionTest, ASnapshotOfAPartInBetweenCostsTheNextWholeOneNothing) {
  for (int i = 0; i < 500; ++i) Write("a/" + std::to_string(i), Random(100, static_cast<uint32_t>(i)));
  Write("b/file", "1");
  Made("whole");
  Made("part", {"/b"});
  Write("b/file", "2");
  const uint64_t before = server_->served_bytes();
  Made("next");
  EXPECT_LT(server_->served_bytes() - before, 2'000u);
}

TEST_F(CollectionTest, TheSameContentElsewhereIsNotKeptTwice) {
  const std::string content = Random(2'000'000, 4);
  Write("a", content);
  Made("one");
  const uint64_t before = DiskBytes();
  Write("b", content);
  Made("two");
  EXPECT_LT(DiskBytes(), before + 100'000);
  EXPECT_EQ(*Read("two", "/b"), content);
}

TEST_F(CollectionTest, WhatHomeMayNotReadIsLeftOutAndSaid) {
  Write("etc/shadow", "secret");
  Write("etc/passwd", "public");
  files_->denied = "/etc/shadow";
  const v1::SnapshotInfo info = Made("one");
  EXPECT_EQ(info.unreadable_files(), 1u);
  EXPECT_THAT(info.unreadable(), ElementsAre("/etc/shadow"));
  EXPECT_EQ(*Read("one", "/etc/passwd"), "public");
  EXPECT_EQ(Read("one", "/etc/shadow").error().code(), Code::kDenied);
  // It is known of later snapshots, too, and after a restart of the store.
  OpenCollection();
  Write("more", "m");
  EXPECT_THAT(Made("two").unreadable(), ElementsAre("/etc/shadow"));
  EXPECT_EQ(Read("two", "/etc/shadow").error().code(), Code::kDenied);
  EXPECT_THAT(Differences("one", "two"), ElementsAre("+/more"));
}

TEST_F(CollectionTest, AFileThatChangedMeanwhileIsNamedAndNothingIsMade) {
  Write("steady", "1");
  Write("busy", "2");
  const auto tree = Scan();
  Write("busy", "changed since");
  auto created = Create("one", tree);
  ASSERT_TRUE(created) << created.error().message();
  EXPECT_THAT(created->changed, ElementsAre("/busy"));
  EXPECT_THAT(collection_->List(), IsEmpty());
  EXPECT_EQ(*Read((Made("one"), "one"), "/busy"), "changed since");
}

TEST_F(CollectionTest, WhatIsDeletedIsFreeAndWhatOthersNeedIsNot) {
  Write("shared", Random(3'000'000, 5));
  Write("first", Random(4'000'000, 6));
  Made("one");
  std::filesystem::remove(root_.path() + "/first");
  Made("two");
  {
    const auto used = collection_->Find("one");
    const auto refused = collection_->Delete({"two", "one"});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("snapshot one: it is in use"));
  }
  auto freed = collection_->Delete({"one"});
  ASSERT_TRUE(freed) << freed.error().message();
  EXPECT_GE(*freed, 4'000'000u);
  EXPECT_LT(DiskBytes(), 3'200'000u);
  EXPECT_FALSE(collection_->Find("one"));
  OpenCollection();
  EXPECT_EQ(*Read("two", "/shared"), Random(3'000'000, 5));
  // The name is free, and what it needs comes again.
  Write("first", Random(4'000'000, 6));
  EXPECT_EQ(Made("one").sent_bytes(), 4'000'000u);
  EXPECT_EQ(*Read("one", "/first"), Random(4'000'000, 6));
}

TEST_F(CollectionTest, DifferencesSayWhatAPersonWouldSay) {
  Write("same", "x");
  Write("touched", "y");
  Write("content", "one");
  Write("mode", "m");
  Write("owner", "o");
  Write("attribute", "a");
  Write("type", "t");
  Write("gone/below", "g");
  std::filesystem::create_symlink("here", root_.path() + "/link");
  Made("from");
  Write("touched", "y");  // another time, another inode perhaps, the same content
  Write("content", "two");
  ::chmod((root_.path() + "/mode").c_str(), 0600);
  const bool root = ::geteuid() == 0 && ::chown((root_.path() + "/owner").c_str(), 12, 13) == 0;
  const bool xattrs = ::setxattr((root_.path() + "/attribute").c_str(), "user.note", "n", 1, 0) == 0;
  std::filesystem::remove(root_.path() + "/type");
  std::filesystem::create_directory(root_.path() + "/type");
  std::filesystem::remove_all(root_.path() + "/gone");
  Write("new/below", "n");
  std::filesystem::remove(root_.path() + "/link");
  std::filesystem::create_symlink("there", root_.path() + "/link");
  Made("to");
  std::vector<std::string> wanted{"~/content content", "~/mode mode", "~/type type", "-/gone",
                                  "-/gone/below",      "+/new",       "+/new/below", "~/link target"};
  if (root) wanted.push_back("~/owner owner");
  if (xattrs) wanted.push_back("~/attribute xattr");
  EXPECT_THAT(Differences("from", "to"), testing::UnorderedElementsAreArray(wanted));
  EXPECT_THAT(Differences("to", "to"), IsEmpty());
}

TEST_F(CollectionTest, APartOfTheRoot) {
  Write("home/project/main.py", "print()");
  Write("home/other", "o");
  Write("etc/passwd", "p");
  const v1::SnapshotInfo info = Made("part", {"/home/project", "/etc/passwd"});
  EXPECT_EQ(info.entries(), 5u);
  EXPECT_EQ(*Read("part", "/home/project/main.py"), "print()");
  EXPECT_EQ(*Read("part", "/etc/passwd"), "p");
  EXPECT_EQ(Read("part", "/home/other").error().code(), Code::kNotFound);
}

TEST_F(CollectionTest, DamageIsAnErrorAndNoWrongByte) {
  Write("file", Random(50'000, 8));
  Made("one");
  for (const auto& file : std::filesystem::recursive_directory_iterator(disk_.path() + "/store/objects")) {
    if (!file.is_regular_file() || file.path().extension() == ".map") continue;
    const UniqueFd fd(::open(file.path().c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(PwriteAll(fd.get(), "damage", 20'000));
  }
  OpenCollection();
  const auto read = Read("one", "/file");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Code::kCorrupt);
  EXPECT_THAT(read.error().message(), HasSubstr("/file: damaged in the snapshot store"));
}

TEST_F(CollectionTest, ADamagedRecordCostsThatSnapshotOnly) {
  Write("file", "content");
  Made("one");
  Write("more", "more");
  Made("two");
  ASSERT_TRUE(WriteFileAtomic(disk_.path() + "/snapshots/one", "rubbish", 0600));
  OpenCollection();
  EXPECT_EQ(collection_->Find("one").error().code(), Code::kCorrupt);
  EXPECT_EQ(*Read("two", "/file"), "content");
  ASSERT_TRUE(collection_->Delete({"one"}));
  EXPECT_EQ(collection_->Find("one").error().code(), Code::kNotFound);
  EXPECT_EQ(*Read("two", "/more"), "more");
}

TEST_F(CollectionTest, AFullDiskIsAnErrorAndCostsNoOtherSnapshot) {
  Disconnect();
  collection_.reset();
  if (::mount("none", disk_.path().c_str(), "tmpfs", 0, "size=8m") != 0) GTEST_SKIP() << "needs root to mount";
  OpenCollection();
  Write("first", Random(4'000'000, 9));
  Made("one");
  Write("second", Random(6'000'000, 10));
  const auto refused = Create("two", Scan());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted) << refused.error().message();
  EXPECT_EQ(*Read("one", "/first"), Random(4'000'000, 9));
  // With room again, it goes on.
  std::filesystem::remove(root_.path() + "/second");
  Write("third", "small");
  ASSERT_TRUE(collection_->Delete({"one"}));
  Made("three");
  EXPECT_EQ(*Read("three", "/first"), Random(4'000'000, 9));
  Disconnect();
  collection_.reset();
  ::umount2(disk_.path().c_str(), MNT_DETACH);
}

TEST_F(CollectionTest, NamesAreThoseOfTags) {
  for (const char* name : {"", "a/b", "..", ".a", "-a", "a b", "\x1b[2J"}) EXPECT_FALSE(CheckName(name)) << name;
  EXPECT_FALSE(CheckName(std::string(129, 'a')));
  for (const char* name : {"a", "v1.2-rc_3", "2026"}) EXPECT_TRUE(CheckName(name)) << name;
  Write("file", "content");
  Made("one");
  EXPECT_EQ(Create("one", Scan()).error().code(), Code::kExists);
}

}  // namespace
}  // namespace vrun::snapshots
