// SPDX-License-Identifier: Apache-2.0
// A real root, home's real answers (a content server and its session), and a collection on disk that asks for them.
// Only the network in between is replaced by a queue. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/io/work_queue.h"
#include "home/root/root_files.h"
#include "home/serve/content_server.h"
#include "home/serve/requests/content_session.h"
#include "home/testing/test_directory.h"
#include "rpc/testing.h"
#include "snapshots/collection.h"
#include "snapshots/difference.h"
#include "tree/scan/scan.h"
#include "tree/subset.h"

namespace vrun::snapshots {

inline constexpr char kHomeId[] = "0123456789abcdef0123456789abcdef";
inline constexpr char kToken[] = "the token of this creation";

inline std::string Random(size_t n, uint32_t seed) {
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

// From home to the store: on a thread, like gRPC.
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

// Files of a user who cannot read all of them.
class SomeDenied final : public home::ContentFiles {
 public:
  explicit SomeDenied(home::RootFiles files) : files_(std::move(files)) {}
  Result<UniqueFd> OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const override {
    if (path == denied) return Error(Code::kDenied, "permission denied");
    return files_.OpenPart(path, version, offset, length);
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
  // Opens the collection as after a restart.
  void OpenCollection() {
    Disconnect();
    collection_.reset();
    auto collection =
        Collection::Open(&loop_, disk_.path(), store_id_, authority_.Make("snapshots", "snapshots"), vault_);
    ASSERT_TRUE(collection) << collection.error().message();
    collection_ = std::move(*collection);
    ASSERT_TRUE(collection_->Load());
    Realm* realm = collection_->RealmOf(kHomeId);
    realm->source().AllowToken(kHomeId, kToken, 0, 0);
    session_ = std::make_shared<home::ContentSession>(&*server_);
    to_store_ = std::make_unique<ToStore>();
    to_store_->handler = *realm->source().Accept(std::make_unique<ToHome>(session_));
    v1::ContentReply hello;
    hello.mutable_hello()->set_home_id(kHomeId);
    hello.mutable_hello()->set_token(kToken);
    to_store_->Send(hello.SerializeAsString());
    session_->Start(to_store_.get());
  }

  tree::TreePtr Scan(const std::vector<std::string>& paths = {}) {
    tree::ScanOptions scan;
    scan.root = root_.path();
    auto snapshot = tree::Scan(scan);
    EXPECT_TRUE(snapshot);
    trees_.SetCurrent(*snapshot, std::make_shared<const home::DenyRules>());
    return *tree::Subset(*snapshot, paths);
  }
  Result<Collection::Created> Create(const std::string& name, const tree::TreePtr& tree,
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
    EXPECT_TRUE(created->changed.empty());
    return created->info;
  }
  Result<std::string> ReadPart(const std::string& name, const std::string& path, uint64_t offset, uint64_t length) {
    VRUN_ASSIGN(const auto snapshot, collection_->Find(name));
    VRUN_ASSIGN(const tree::Entry entry, tree::Lookup(*snapshot->tree, path));
    VRUN_ASSIGN(const UniqueFd fd, snapshot->realm->files().OpenPart(path, entry.version(), offset, length));
    std::string bytes(std::min(length, entry.size - offset), '\0');
    VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), bytes.data(), bytes.size(), offset));
    bytes.resize(n);
    return bytes;
  }
  Result<std::string> Read(const std::string& name, const std::string& path) {
    return ReadPart(name, path, 0, UINT64_MAX);
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
  std::string store_id_ = "store";
  std::optional<VaultPlace> vault_;
  rpc::TestAuthority authority_;
  EventLoop loop_;
  home::TreeTable trees_;
  home::DigestCache digests_{""};
  std::optional<SomeDenied> files_;
  std::unique_ptr<home::ContentServer> server_;
  std::vector<home::TreeTable::Pin> pins_;
  std::unique_ptr<Collection> collection_;
  std::shared_ptr<home::ContentSession> session_;
  std::unique_ptr<ToStore> to_store_;
};

}  // namespace vrun::snapshots
