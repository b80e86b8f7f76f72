// SPDX-License-Identifier: Apache-2.0
// For tests of home's answers to nodes: a root, a server and one session with a stream that records the answers.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/thread/mutex.h"
#include "home/root/deny_list.h"
#include "home/root/root_files.h"
#include "home/serve/content_server.h"
#include "home/serve/requests/content_session.h"
#include "home/testing/test_directory.h"
#include "tree/scan/scan.h"

namespace vrun::home {

inline std::string RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 r(seed);
  std::string s(n, '\0');
  for (char& c : s) c = static_cast<char>(r());
  return s;
}

class FakeStream : public rpc::Stream {
 public:
  void Send(std::string message) override { Take(message, false); }
  void SendUrgent(std::string message) override { Take(message, true); }
  size_t queued_bytes() const override {
    MutexLock lock(mutex_);
    return queued_;
  }
  void Finish() override {}
  void Cancel(Error) override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    wake_.notify_all();
  }

  // All parts of the answer to `id`, once the last one has come.
  std::vector<v1::ContentReply> Answer(uint64_t id) {
    MutexLock lock(mutex_);
    std::vector<v1::ContentReply> parts;
    bool whole = wake_.wait_for(lock, std::chrono::seconds(30), [&] {
      parts.clear();
      for (const auto& r : replies_) {
        if (r.id() == id) parts.push_back(r);
      }
      return !parts.empty() && parts.back().last();
    });
    EXPECT_TRUE(whole);
    return parts;
  }
  // The parts of the answer to `id` so far.
  std::vector<v1::ContentReply> All(uint64_t id) const {
    MutexLock lock(mutex_);
    std::vector<v1::ContentReply> parts;
    for (const auto& r : replies_) {
      if (r.id() == id) parts.push_back(r);
    }
    return parts;
  }
  // Whether everything that has come of it is urgent.
  bool urgent(uint64_t id) const {
    MutexLock lock(mutex_);
    return !ordinary_.contains(id);
  }
  void Hold() {
    MutexLock lock(mutex_);
    hold_ = true;
  }
  void LetGo() {
    MutexLock lock(mutex_);
    hold_ = false;
    queued_ = 0;
  }
  // Waits until at least `n` replies have come and the count has stopped growing: that is what back-pressure allows.
  bool WaitForReplies(size_t n) {
    MutexLock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::seconds(30), [&] { return replies_.size() >= n; });
  }
  size_t replies() const {
    MutexLock lock(mutex_);
    return replies_.size();
  }

 private:
  void Take(const std::string& message, bool urgent) {
    MutexLock lock(mutex_);
    v1::ContentReply reply;
    EXPECT_TRUE(reply.ParseFromString(message));
    if (!urgent) ordinary_.insert(reply.id());
    queued_ += hold_ ? message.size() : 0;
    replies_.push_back(std::move(reply));
    wake_.notify_all();
  }

  mutable Mutex mutex_;
  CondVar wake_;
  std::vector<v1::ContentReply> replies_;
  std::set<uint64_t> ordinary_;
  size_t queued_ = 0;
  bool hold_ = false;
  bool cancelled_ = false;
};

inline std::string Unpack(const std::string& data, bool zstd, size_t raw) {
  if (!zstd) return data;
  std::string out(raw, '\0');
  size_t n = ::ZSTD_decompress(out.data(), out.size(), data.data(), data.size());
  EXPECT_EQ(n, raw);
  return out;
}

class ContentTest : public testing::Test {
 protected:
  void Serve() {
    DenyList::Options deny;
    deny.root = root_.path();
    deny.homes = {"/root"};
    deny.home_parents = {"/home"};
    deny_ = std::make_unique<DenyList>(deny);
    Rescan();
    auto files = RootFiles::Open(root_.path());
    ASSERT_TRUE(files);
    files_ = std::make_unique<RootFiles>(std::move(*files));
    server_ = std::make_unique<ContentServer>(&trees_, files_.get(), &digests_);
    session_ = std::make_shared<ContentSession>(&*server_);
    session_->Start(&stream_);
  }
  void Rescan() {
    tree::ScanOptions scan;
    scan.root = root_.path();
    auto rules = deny_->Current();
    scan.hidden = rules->Hidden();
    auto snapshot = tree::Scan(scan);
    ASSERT_TRUE(snapshot);
    snapshot_ = *snapshot;
    trees_.SetCurrent(snapshot_, rules);
  }
  void TearDown() override {
    if (session_) session_->Close();
    session_.reset();
    server_.reset();
  }

  tree::FileVersion VersionOf(const std::string& path) {
    struct stat st;
    EXPECT_EQ(::lstat((root_.path() + path).c_str(), &st), 0);
    return {st.st_dev, st.st_ino, st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec,
            static_cast<uint64_t>(st.st_size)};
  }
  v1::ContentRequest RangeRequest(const std::string& path, const tree::FileVersion& v, uint64_t offset,
                                  uint64_t length) {
    v1::ContentRequest request;
    request.set_id(++next_id_);
    auto* get = request.mutable_get_range();
    get->set_path(path);
    get->mutable_version()->set_dev(v.dev);
    get->mutable_version()->set_ino(v.ino);
    get->mutable_version()->set_ctime_ns(v.ctime_ns);
    get->mutable_version()->set_size(v.size);
    get->set_offset(offset);
    get->set_length(length);
    get->set_tree(std::string(snapshot_->id.view()));
    return request;
  }
  v1::ContentRequest ResidentRequest(const std::string& path, bool siblings) {
    v1::ContentRequest request;
    request.set_id(++next_id_);
    auto* get = request.mutable_get_resident();
    get->set_path(path);
    get->set_siblings(siblings);
    const tree::FileVersion v = VersionOf(path);
    get->mutable_version()->set_dev(v.dev);
    get->mutable_version()->set_ino(v.ino);
    get->mutable_version()->set_ctime_ns(v.ctime_ns);
    get->mutable_version()->set_size(v.size);
    get->set_tree(std::string(snapshot_->id.view()));
    return request;
  }
  std::vector<v1::ContentReply> Ask(const v1::ContentRequest& request) {
    session_->OnMessage(request.SerializeAsString());
    return stream_.Answer(request.id());
  }
  std::string Content(const std::vector<v1::ContentReply>& parts, std::string* object_id = nullptr) {
    std::string all;
    for (const auto& part : parts) {
      EXPECT_TRUE(part.has_units()) << part.error().message();
      EXPECT_EQ(part.units().offset(), all.size());
      for (const auto& piece : part.units().piece()) {
        const std::string data = Unpack(piece.data(), piece.zstd(), piece.raw_bytes());
        std::string digests;
        for (size_t at = 0; at < data.size(); at += store::kUnitBytes)
          digests += store::UnitDigest(data.substr(at, store::kUnitBytes)).view();
        EXPECT_EQ(digests, data.empty() ? "" : piece.digests());
        all += data;
      }
      if (object_id != nullptr) *object_id = part.units().object_id();
    }
    return all;
  }
  Code ErrorOf(const std::vector<v1::ContentReply>& parts) {
    return parts.empty() ? Code::kOk : static_cast<Code>(parts.back().error().code());
  }

  TestDirectory root_;
  TreeTable trees_;
  DigestCache digests_{""};
  std::unique_ptr<DenyList> deny_;
  std::unique_ptr<RootFiles> files_;
  tree::TreePtr snapshot_;
  FakeStream stream_;
  std::unique_ptr<ContentServer> server_;
  std::shared_ptr<ContentSession> session_;
  uint64_t next_id_ = 0;
};

}  // namespace vrun::home
