// SPDX-License-Identifier: Apache-2.0
// A node that does what it likes with the streams that home opens to it: what it asks and writes when no job runs
// there, or another one than it asks for. Real TLS, real content server, real files.
#include "home/links/node_links.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "home/serve/live_writes.h"
#include "home/serve/private_files.h"
#include "home/testing/content_testing.h"
#include "rpc/testing.h"

namespace vrun::home {
namespace {

constexpr uint64_t kView = 0x1234'5678'0000'0001;

// The server of /vrun.v1.Content/Serve. Remembers what home has sent.
class ForgedNode : public rpc::Stream::Handler {
 public:
  explicit ForgedNode(const rpc::Credentials& mine) : server_(rpc::Server::Create(mine)) {
    server_->Streaming("/vrun.v1.Content/Serve",
                       [this](const rpc::Peer&, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
                         MutexLock lock(mutex_);
                         stream_ = std::move(stream);
                         return this;
                       });
    const auto port = server_->Start("127.0.0.1:0");
    EXPECT_TRUE(port);
    if (port) address_ = "127.0.0.1:" + std::to_string(*port);
  }
  ~ForgedNode() override {
    stream_.reset();
    server_.reset();
  }
  void OnMessage(std::string message) override {
    v1::ContentReply reply;
    EXPECT_TRUE(reply.ParseFromString(message));
    MutexLock lock(mutex_);
    if (reply.live_ack().begin() != 0) begin_ = reply.live_ack().begin();
    replies_.push_back(std::move(reply));
  }
  void OnClosed(Error) override {}

  void Send(const v1::ContentRequest& request) {
    MutexLock lock(mutex_);
    ASSERT_NE(stream_, nullptr);
    stream_->Send(request.SerializeAsString());
  }
  std::vector<v1::ContentReply> Answers(uint64_t id) {
    MutexLock lock(mutex_);
    std::vector<v1::ContentReply> found;
    std::copy_if(replies_.begin(), replies_.end(), std::back_inserter(found),
                 [id](const auto& r) { return r.id() == id; });
    return found;
  }
  uint64_t begin() {
    MutexLock lock(mutex_);
    return begin_;
  }
  uint64_t acknowledged() {
    MutexLock lock(mutex_);
    uint64_t most = 0;
    for (const auto& reply : replies_) most = std::max(most, reply.live_ack().ack().sequence());
    return most;
  }
  const std::string& address() const { return address_; }

 private:
  Mutex mutex_;
  std::vector<v1::ContentReply> replies_;
  uint64_t begin_ = 0;
  std::unique_ptr<rpc::Stream> stream_;
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
};

class NodeLinksTest : public ContentTest {
 protected:
  void Begin() {
    Serve();
    private_ = std::make_unique<PrivateFiles>(&trees_);
    files_->SetJudge(
        [this](int fd, const struct stat& st, std::string_view path) { return private_->Check(fd, st, path); });
    live_ = std::make_unique<LiveWrites>(LiveWrites::Options{root_.path(), "", [this] { return trees_.rules(); }});
    server_->SetLiveWrites(live_.get());
    links_ = std::make_unique<NodeLinks>(&loop_, server_.get(), "home");
    links_->UseCredentials(authority_.Make("home", "ann@h"));
    node_ = std::make_unique<ForgedNode>(authority_.Make("node", "n1"));
  }
  void TearDown() override {
    frozen_.Reset();
    links_.reset();
    loop_.RunOnce(0);
    node_.reset();
    ContentTest::TearDown();
    live_.reset();
  }

  template <typename Is>
  bool Until(Is is, int seconds = 20) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!is()) {
      if (std::chrono::steady_clock::now() > end) return false;
      loop_.RunOnce(10);
    }
    return true;
  }
  NodeLinks::ContentJob Job(bool live, std::vector<tree::TreePtr> trees = {}, const std::string& node = "n1") {
    NodeLinks::ContentJob job;
    job.placement.set_job(7);
    job.placement.set_node(node);
    job.serves = {.any = true, .live = live, .trees = {}};
    for (const auto& tree : trees) job.serves.trees.insert(std::string(tree->id.view()));
    job.withheld = [this](const std::string& path) { withheld_.push_back(path); };
    return job;
  }
  std::unique_ptr<NodeLinks::ContentUse> Use(NodeLinks::ContentJob job) {
    auto use = links_->UseContent({node_->address()}, std::move(job));
    EXPECT_TRUE(Until([&] { return !node_->Answers(0).empty(); }));  // Hello
    return use;
  }
  uint64_t AskRoot(const tree::TreePtr& tree) {
    v1::ContentRequest request;
    request.set_id(++next_id_);
    request.mutable_get_root()->set_tree(std::string(tree->id.view()));
    node_->Send(request);
    return request.id();
  }
  uint64_t AskFile(const std::string& path) {
    const auto request = RangeRequest(path, VersionOf(path), 0, VersionOf(path).size);
    node_->Send(request);
    return request.id();
  }
  bool Answered(uint64_t id) {
    return Until([&] { return !node_->Answers(id).empty(); });
  }
  // With something other than that no job there has the tree.
  bool Given(uint64_t id) {
    const auto answers = node_->Answers(id);
    return std::any_of(answers.begin(), answers.end(), [](const auto& answer) { return !answer.has_error(); });
  }
  // What came before on the same stream has been looked at.
  void Settle() {
    for (int i = 0; i < 20; ++i) loop_.RunOnce(10);
  }
  void BeginWrites(uint64_t view = kView) {
    v1::ContentRequest request;
    request.set_id(++next_id_);
    request.mutable_begin_writes()->set_view(view);
    node_->Send(request);
  }
  void SendWrite(uint64_t operation, const std::string& path, const std::string& content, ForgedNode* by = nullptr) {
    if (by == nullptr) by = node_.get();
    v1::ContentRequest request;
    request.mutable_write()->set_view(kView);
    request.mutable_write()->set_begin(node_->begin());
    auto* write = request.mutable_write()->mutable_write();
    write->set_sequence(operation << 24);
    write->set_path(path);
    auto* put = write->mutable_put_file();
    put->set_size(content.size());
    put->mutable_meta()->set_mode(S_IFREG | 0644);
    put->mutable_meta()->set_uid(::geteuid());
    put->mutable_meta()->set_gid(::getegid());
    by->Send(request);
    write->set_sequence((operation << 24) + 1);
    write->mutable_file_data()->set_data(content);
    write->mutable_file_data()->set_last(true);
    by->Send(request);
  }
  std::string Text(const std::string& name) { return ReadFile(root_ / name).value_or("(none)"); }

  const rpc::TestAuthority authority_;
  EventLoop loop_;
  std::unique_ptr<PrivateFiles> private_;
  std::unique_ptr<LiveWrites> live_;
  std::unique_ptr<NodeLinks> links_;
  std::unique_ptr<ForgedNode> node_;
  TreeTable::Pin frozen_;
  std::vector<std::string> withheld_;
};

TEST_F(NodeLinksTest, ANodeGetsTheTreesOfItsJobsOnly) {
  root_.Put("f", "one\n");
  root_.Put("root/.netrc", "machine x password y\n");
  Begin();
  const tree::TreePtr old = snapshot_;
  frozen_ = trees_.Add(old, {});
  root_.Put("f", "another\n");
  Rescan();
  ASSERT_NE(old->id, snapshot_->id);
  auto use = Use(Job(/*live=*/false, {old}));
  EXPECT_TRUE(Answered(AskRoot(old)));
  const uint64_t other = AskRoot(snapshot_), content = AskFile("/f");
  v1::ContentRequest watch;
  watch.set_id(++next_id_);
  watch.mutable_watch_tree();
  node_->Send(watch);
  EXPECT_TRUE(Answered(AskRoot(old)));
  Settle();
  EXPECT_TRUE(node_->Answers(other).empty());
  EXPECT_FALSE(Given(content));
  EXPECT_TRUE(node_->Answers(watch.id()).empty());
  // A live job comes there: what waited is answered.
  auto live = links_->UseContent({node_->address()}, Job(/*live=*/true));
  EXPECT_TRUE(Answered(other));
  EXPECT_TRUE(Answered(content));
  EXPECT_TRUE(node_->Answers(other).back().has_root());
}

// Of what a node asks for it has only so much on the way: what the last job was reading must not stand before the next
// one.
TEST_F(NodeLinksTest, AReadOfAJobThatIsOverIsRefusedAndMayBeAskedAgain) {
  root_.Put("f", "one\n");
  Begin();
  const tree::TreePtr old = snapshot_;
  frozen_ = trees_.Add(old, {});
  root_.Put("other", "x\n");
  Rescan();
  auto use = Use(Job(/*live=*/false, {old}));
  const uint64_t content = AskFile("/f"), root = AskRoot(snapshot_);
  ASSERT_TRUE(Answered(content));
  EXPECT_EQ(ErrorOf(node_->Answers(content)), Code::kUnavailable);
  EXPECT_TRUE(node_->Answers(root).empty());
  const uint64_t later = AskFile("/f");
  ASSERT_TRUE(Answered(later));
  EXPECT_EQ(ErrorOf(node_->Answers(later)), Code::kUnavailable);
  auto next = links_->UseContent({node_->address()}, Job(/*live=*/false, {snapshot_}));
  EXPECT_TRUE(Answered(root));
  const uint64_t again = AskFile("/f");
  ASSERT_TRUE(Answered(again));
  EXPECT_TRUE(Given(again));
}

// --expose opens a file to one job, not to a live job at another node.
TEST_F(NodeLinksTest, WhatIsExposedToAnotherJobIsNotServed) {
  root_.Put("root/.netrc", "machine x password y\n");
  Begin();
  tree::ScanOptions scan;
  scan.root = root_.path();
  const auto exposing = tree::Scan(scan);
  ASSERT_TRUE(exposing);
  frozen_ = trees_.Add(*exposing, {"/root/.netrc"});
  auto request = RangeRequest("/root/.netrc", VersionOf("/root/.netrc"), 0, VersionOf("/root/.netrc").size);
  request.mutable_get_range()->set_tree(std::string((*exposing)->id.view()));
  auto use = Use(Job(/*live=*/true));
  node_->Send(request);
  EXPECT_TRUE(Answered(AskRoot(snapshot_)));
  Settle();
  EXPECT_TRUE(node_->Answers(request.id()).empty());
  auto job = links_->UseContent({node_->address()}, Job(/*live=*/false, {*exposing}));
  ASSERT_TRUE(Answered(request.id()));
  EXPECT_TRUE(node_->Answers(request.id()).back().has_units());
}

TEST_F(NodeLinksTest, ANodeThatKeepsItsStreamGetsAndWritesNothingAfterItsJob) {
  root_.Put("f", "home's\n");
  Begin();
  auto use = Use(Job(/*live=*/true));
  EXPECT_TRUE(Answered(AskFile("/f")));
  BeginWrites();
  ASSERT_TRUE(Until([&] { return node_->begin() != 0; }));
  SendWrite(1, "/by-the-job", "x\n");
  ASSERT_TRUE(Until([&] { return node_->acknowledged() >= (1 << 24) + 1; }));
  EXPECT_EQ(Text("by-the-job"), "x\n");
  use->AllHome();
  use.reset();
  // The stream is open, and home has heard all of this.
  const uint64_t content = AskFile("/f"), root = AskRoot(snapshot_);
  SendWrite(2, "/f", "evil\n");
  SendWrite(3, "/new", "evil\n");
  Settle();
  EXPECT_FALSE(Given(content));
  EXPECT_TRUE(node_->Answers(root).empty());
  EXPECT_EQ(Text("f"), "home's\n");
  EXPECT_EQ(Text("new"), "(none)");
  // A view that ends takes nothing with it, and nothing hangs.
  v1::ContentRequest end;
  end.mutable_end_writes()->set_view(kView);
  node_->Send(end);
  Settle();
  EXPECT_EQ(Text("f"), "home's\n");
  EXPECT_EQ(Text("new"), "(none)");
  // The next job finds all of it working.
  use = links_->UseContent({node_->address()}, Job(/*live=*/true));
  EXPECT_TRUE(Answered(content));
  EXPECT_TRUE(Answered(root));
  const uint64_t before = node_->begin();
  BeginWrites(kView + 1);
  EXPECT_TRUE(Until([&] { return node_->begin() != before; }));
}

// Its supervisor was killed, or its node: what the job wrote is still on the way.
TEST_F(NodeLinksTest, WritesOfAJobWhoseEndHomeDidNotSeeArrive) {
  Begin();
  auto use = Use(Job(/*live=*/true));
  BeginWrites();
  ASSERT_TRUE(Until([&] { return node_->begin() != 0; }));
  use.reset();
  SendWrite(1, "/late", "x\n");
  EXPECT_TRUE(Until([&] { return node_->acknowledged() >= (1 << 24) + 1; }));
  EXPECT_EQ(Text("late"), "x\n");
}

TEST_F(NodeLinksTest, ANodeIsServedFromTheMomentWhenItsNextJobIsPlaced) {
  root_.Put("f", "x\n");
  Begin();
  EXPECT_EQ(links_->ExpectContent(Job(/*live=*/true)), nullptr);  // no stream yet
  auto use = Use(Job(/*live=*/true));
  use->AllHome();
  use.reset();
  const uint64_t early = AskFile("/f");
  Settle();
  EXPECT_FALSE(Given(early));
  EXPECT_EQ(links_->ExpectContent(Job(/*live=*/true, {}, "n2")), nullptr);
  const auto expected = links_->ExpectContent(Job(/*live=*/true));
  ASSERT_NE(expected, nullptr);
  EXPECT_TRUE(Answered(early));
}

TEST_F(NodeLinksTest, ANodeTakesNoViewOfAnother) {
  Begin();
  auto use = Use(Job(/*live=*/true));
  BeginWrites();
  ASSERT_TRUE(Until([&] { return node_->begin() != 0; }));
  ForgedNode other(authority_.Make("node", "n2"));
  auto second = links_->UseContent({other.address()}, Job(/*live=*/true, {}, "n2"));
  ASSERT_TRUE(Until([&] { return !other.Answers(0).empty(); }));
  v1::ContentRequest request;
  request.set_id(++next_id_);
  request.mutable_begin_writes()->set_view(kView);
  other.Send(request);
  ASSERT_TRUE(Until([&] { return !other.Answers(request.id()).empty(); }));
  EXPECT_EQ(ErrorOf(other.Answers(request.id())), Code::kDenied);
  // Nor does it write into the view without having begun it, even if it knows its series.
  SendWrite(1, "/evil", "evil\n", &other);
  SendWrite(1, "/f", "the first node's\n");
  EXPECT_TRUE(Until([&] { return node_->acknowledged() >= (1 << 24) + 1; }));
  EXPECT_EQ(Text("f"), "the first node's\n");
  EXPECT_EQ(Text("evil"), "(none)");
  // Nor does it begin more views than home has threads for.
  for (uint64_t view = 1; view <= 600; ++view) {
    request.set_id(++next_id_);
    request.mutable_begin_writes()->set_view(1'000'000 + view);
    other.Send(request);
    if (view % 50 == 0) Settle();
  }
  ASSERT_TRUE(Until([&] { return !other.Answers(next_id_).empty(); }));
  EXPECT_EQ(ErrorOf(other.Answers(next_id_)), Code::kExhausted);
  use.reset();
  second.reset();
  links_.reset();  // before `other`
}

TEST_F(NodeLinksTest, ANodeAtTheAddressOfAnotherGetsNothing) {
  Begin();
  ForgedNode other(authority_.Make("node", "n2"));
  auto use = links_->UseContent({other.address()}, Job(/*live=*/true, {}, "n1"));
  EXPECT_FALSE(Until([&] { return !other.Answers(0).empty(); }, 2));
  auto right = Use(Job(/*live=*/true));
  EXPECT_TRUE(other.Answers(0).empty());
  use.reset();
  right.reset();
  links_.reset();  // before `other`
}

TEST_F(NodeLinksTest, AJobIsToldWhatWasWithheld) {
  root_.Put("srv/deploy", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb\n");
  ASSERT_EQ(::chmod((root_ / "srv/deploy").c_str(), 0600), 0);
  root_.Put("f", "x\n");
  Begin();
  auto use = Use(Job(/*live=*/true));
  EXPECT_TRUE(Answered(AskFile("/f")));
  const uint64_t asked = AskFile("/srv/deploy");
  ASSERT_TRUE(Answered(asked));
  EXPECT_EQ(ErrorOf(node_->Answers(asked)), Code::kDenied);
  EXPECT_TRUE(Until([&] { return !withheld_.empty(); }));
  EXPECT_EQ(withheld_, std::vector<std::string>{"/srv/deploy"});
}

}  // namespace
}  // namespace vrun::home
