// SPDX-License-Identifier: Apache-2.0
// The file system server as seen by the agent and a home: a real process, real mounts, real mTLS; a small test home.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <thread>

#include "base/files.h"
#include "base/io/message_socket.h"
#include "base/thread/mutex.h"
#include "proto/content.pb.h"
#include "proto/fsctl.pb.h"
#include "rpc/rpc.h"
#include "rpc/testing.h"
#include "store/format/object_id.h"
#include "tree/codec.h"
#include "tree/tree.h"

namespace vrun::node {
namespace {

constexpr char kHome[] = "u@h";

// A root of a few files, served like home does.
class SmallHome final : public rpc::Stream::Handler {
 public:
  tree::TreePtr MakeTree(const std::map<std::string, std::string>& files) {
    std::vector<tree::Entry> entries;
    MutexLock lock(mu_);
    for (const auto& [name, content] : files) {
      tree::Entry e;
      e.name = name;
      e.mode = 0100644;
      e.size = content.size();
      e.dev = 1;
      e.ino = 100 + Sha256(name).bytes[0];
      e.ctime_ns = Sha256(content).bytes[0] + 1;
      e.mtime_ns = e.ctime_ns;
      entries.push_back(e);
      contents_[name + std::to_string(e.ctime_ns)] = content;
    }
    tree::Entry root;
    root.mode = 040755;
    auto directory = tree::Directory::Make(std::move(entries), [](std::string_view) { return nullptr; });
    root.child = directory->digest();
    auto snapshot = tree::AssembleTree(root, directory);
    trees_[snapshot->id] = snapshot;
    return snapshot;
  }

  void Dial(const std::string& address, const rpc::Credentials& credentials, const std::string& token) {
    channel_ = *rpc::Channel::Dial(address, credentials, "node");
    auto stream = channel_->OpenStream("/vrun.v1.Content/Serve", this);
    v1::ContentReply hello;
    hello.mutable_hello()->set_home_id(kHome);
    hello.mutable_hello()->set_token(token);
    hello.mutable_hello()->set_job(1);
    hello.mutable_hello()->set_attempt(1);
    stream->Send(hello.SerializeAsString());
    MutexLock lock(mu_);
    stream_ = std::move(stream);
    for (const auto& message : std::exchange(early_, {})) Answer(message);
  }
  void HangUp() {
    std::unique_ptr<rpc::Stream> stream;
    {
      MutexLock lock(mu_);
      stream = std::move(stream_);
    }
    stream.reset();
    channel_.reset();
  }
  int asked(v1::ContentRequest::WhatCase what) {
    MutexLock lock(mu_);
    return asked_[what];
  }
  // Forgets a file: requests for it report that it has changed.
  void Lose(const std::string& name) {
    MutexLock lock(mu_);
    std::erase_if(contents_, [&](const auto& item) { return item.first.starts_with(name); });
  }

 private:
  void OnMessage(std::string message) override {
    MutexLock lock(mu_);
    if (stream_)
      Answer(message);
    else
      early_.push_back(message);
  }
  void OnClosed(Error) override {}

  void Answer(const std::string& message) {
    v1::ContentRequest request;
    VRUN_CHECK(request.ParseFromString(message));
    ++asked_[request.what_case()];
    v1::ContentReply reply;
    reply.set_id(request.id());
    reply.set_last(true);
    const auto tree_of = [&](const std::string& bytes) { return trees_.at(*Digest::FromBytes(bytes)); };
    const auto directory = [&](const tree::Directory& d) {
      auto* object = reply.mutable_directory();
      object->set_digest(std::string(d.digest().view()));
      object->set_encoded(std::string(d.encoded()));
      object->set_raw_bytes(d.encoded().size());
      object->set_total_bytes(d.encoded().size());
    };
    if (request.has_get_resident() || request.has_get_trace() || request.has_put_trace() || request.has_watch_peers() ||
        request.has_watch_hidden()) {
      reply.mutable_error()->set_code(static_cast<int>(Code::kUnsupported));
    } else if (request.has_get_root()) {
      reply.mutable_root()->set_entry(tree::EncodeRoot(tree_of(request.get_root().tree())->root));
    } else if (request.has_get_tree()) {
      directory(*tree_of(request.get_tree().tree())->directory);
    } else if (request.has_get_directory()) {
      directory(*tree_of(request.get_directory().tree())->directory);
    } else if (request.has_get_range()) {
      const auto& get = request.get_range();
      auto it = contents_.find(get.path().substr(1) + std::to_string(get.version().ctime_ns()));
      if (it == contents_.end()) {
        reply.mutable_error()->set_code(static_cast<int>(Code::kAborted));
        reply.mutable_error()->set_message(get.path() + ": changed at home");
      } else {
        auto* units = reply.mutable_units();
        units->set_offset(get.offset());
        for (uint64_t at = get.offset(); at < get.offset() + get.length(); at += store::kUnitBytes) {
          const std::string data = it->second.substr(at, store::kUnitBytes);
          auto* piece = units->add_piece();
          piece->set_digests(std::string(store::UnitDigest(data).view()));
          piece->set_data(data);
          piece->set_raw_bytes(static_cast<uint32_t>(data.size()));
        }
      }
    }
    stream_->Send(reply.SerializeAsString());
  }

  Mutex mu_;
  std::map<Digest, tree::TreePtr> trees_;
  std::map<std::string, std::string> contents_;
  std::map<int, int> asked_;
  std::vector<std::string> early_;
  std::unique_ptr<rpc::Channel> channel_;
  std::unique_ptr<rpc::Stream> stream_;
};

class FsServerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    if (!PathExists("/dev/fuse")) GTEST_SKIP() << "needs /dev/fuse";
    const char* tmp = ::getenv("TMPDIR");
    directory_ = std::string(tmp ? tmp : "/var/tmp") + "/vrun-fs-test.XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    authority_ = std::make_unique<rpc::TestAuthority>();
    (void)authority_->Make("node", "n1");
    credentials_ = authority_->Make("home", kHome);
    ASSERT_EQ(::symlink(authority_->directory().c_str(), (directory_ + "/pki").c_str()), 0);
    Start();
  }
  void TearDown() override {
    home_.HangUp();
    Stop(SIGKILL);
    if (!directory_.empty()) (void)RemoveTree(directory_);
  }

  // "keeper": starts it through a keeper.
  void Spawn(const char* how = nullptr) {
    auto listener = ListenUnix(directory_ + "/sock");
    ASSERT_TRUE(listener) << listener.error().message();
    char* const argv[] = {const_cast<char*>(NODE_FS_FIXTURE), directory_.data(), const_cast<char*>(kHome),
                          const_cast<char*>(how), nullptr};
    pid_ = ::vfork();
    if (pid_ == 0) {
      if (listener->get() == 3)
        ::fcntl(3, F_SETFD, 0);
      else
        ::dup2(listener->get(), 3);
      ::execv(argv[0], argv);
      ::_exit(127);
    }
  }
  void Attach(const std::vector<uint64_t>& leases = {}, bool with_run = false) {
    auto socket = ConnectUnix(directory_ + "/sock");
    ASSERT_TRUE(socket) << socket.error().message();
    agent_ = *std::move(socket);
    v1::FsRequest request;
    request.mutable_attach()->mutable_leases()->Add(leases.begin(), leases.end());
    if (with_run) *request.mutable_attach()->add_runs() = Run();
    Send(request);
    auto listening = Receive();
    ASSERT_TRUE(listening.first.has_listening()) << listening.first.error().message();
    address_ = listening.first.listening().addresses(0);
  }
  void Start(const char* how = nullptr) {
    Spawn(how);
    Attach();
  }
  int Stop(int signal) {
    if (pid_ <= 0) return -1;
    if (signal != 0) ::kill(pid_, signal);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  std::pair<v1::FsReply, UniqueFd> Receive() {
    pollfd p{agent_.get(), POLLIN, 0};
    v1::FsReply reply;
    if (::poll(&p, 1, 20000) != 1) {
      ADD_FAILURE() << "the server does not answer";
      return {reply, UniqueFd()};
    }
    auto frame = ReceiveFrame(agent_.get());
    if (!frame || !reply.ParseFromString(frame->bytes)) {
      ADD_FAILURE() << "no frame";
      return {reply, UniqueFd()};
    }
    return {reply, frame->fds.empty() ? UniqueFd() : std::move(frame->fds[0])};
  }
  void Send(v1::FsRequest request) {
    request.set_id(++id_);
    ASSERT_TRUE(SendFrame(agent_.get(), request.SerializeAsString()));
  }
  v1::FsReply Call(const v1::FsRequest& request) {
    Send(request);
    auto reply = Receive().first;
    EXPECT_EQ(reply.id(), id_);
    return reply;
  }
  static v1::AllowToken Run() {
    v1::AllowToken run;
    run.set_home_id(kHome);
    run.set_token("secret");
    run.set_job(1);
    run.set_attempt(1);
    return run;
  }
  void Allow() {
    v1::FsRequest request;
    *request.mutable_allow_token() = Run();
    EXPECT_TRUE(Call(request).has_allowed());
  }
  static v1::FsRequest OpenRequest(const tree::TreePtr& tree, uint64_t lease) {
    v1::FsRequest request;
    request.mutable_open_view()->set_tree(std::string(tree->id.view()));
    request.mutable_open_view()->set_lease(lease);
    return request;
  }
  UniqueFd Open(const tree::TreePtr& tree, uint64_t lease) {
    Send(OpenRequest(tree, lease));
    auto [reply, fd] = Receive();
    EXPECT_TRUE(reply.has_view_opened()) << reply.error().message();
    return std::move(fd);
  }
  void Close(uint64_t lease) {
    v1::FsRequest request;
    request.mutable_close_view()->set_lease(lease);
    EXPECT_TRUE(Call(request).has_view_closed());
  }
  static std::string Read(const UniqueFd& mount, const std::string& name) {
    UniqueFd fd(::openat(mount.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return "open: " + std::to_string(errno);
    std::string out(1u << 20, '\0');
    auto n = PreadUpTo(fd.get(), out.data(), out.size(), 0);
    if (!n) return "read: " + std::to_string(n.error().error_number());
    out.resize(*n);
    return out;
  }

  // Waits until it is stored: readers get small files before the store does.
  bool IsStored(std::string_view content) {
    const std::string name = store::UnitDigest(content).Hex();
    for (int i = 0; i < 1000; ++i) {
      for (const auto& file : std::filesystem::recursive_directory_iterator(directory_ + "/store")) {
        if (file.path().filename().string().starts_with(name)) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  const std::string big_ = std::string(200000, 'b') + "end";
  std::string directory_, address_;
  std::unique_ptr<rpc::TestAuthority> authority_;
  rpc::Credentials credentials_;
  SmallHome home_;
  UniqueFd agent_;
  pid_t pid_ = -1;
  uint64_t id_ = 0;
};

TEST_F(FsServerTest, AViewShowsTheTreeAndTheSecondTimeFromTheCache) {
  auto tree = home_.MakeTree({{"hello", "hello world"}, {"big", big_}});
  Allow();
  home_.Dial(address_, credentials_, "secret");
  {
    UniqueFd mount = Open(tree, 1), again = Open(tree, 2);
    EXPECT_EQ(Read(mount, "hello"), "hello world");
    EXPECT_TRUE(Read(mount, "big") == big_);
    EXPECT_EQ(Read(again, "hello"), "hello world");
    EXPECT_EQ(Read(mount, "absent"), "open: " + std::to_string(ENOENT));
  }
  Close(1);
  Close(2);
  const int ranges = home_.asked(v1::ContentRequest::kGetRange);
  EXPECT_TRUE(IsStored("hello world"));

  home_.HangUp();
  Stop(SIGKILL);
  Start();
  Allow();
  home_.Dial(address_, credentials_, "secret");
  UniqueFd mount = Open(tree, 1);
  EXPECT_EQ(Read(mount, "hello"), "hello world");
  EXPECT_TRUE(Read(mount, "big") == big_);
  EXPECT_EQ(home_.asked(v1::ContentRequest::kGetRange), ranges) << "nothing is fetched twice";
}

TEST_F(FsServerTest, AnIdleViewAdvancesToTheNextTree) {
  auto one = home_.MakeTree({{"hello", "one"}, {"same", "same"}}),
       two = home_.MakeTree({{"hello", "two"}, {"same", "same"}});
  Allow();
  home_.Dial(address_, credentials_, "secret");
  {
    UniqueFd mount = Open(one, 1);
    EXPECT_EQ(Read(mount, "hello"), "one");
    UniqueFd other = Open(two, 2);
    EXPECT_EQ(Read(other, "hello"), "two");
    EXPECT_EQ(Read(mount, "hello"), "one");
  }
  Close(1);
  Close(2);
  UniqueFd mount = Open(one, 3);
  EXPECT_EQ(Read(mount, "hello"), "one");
  EXPECT_EQ(Read(mount, "same"), "same");
}

TEST_F(FsServerTest, HomeMayComeLaterAndComeBack) {
  auto tree = home_.MakeTree({{"hello", "hello"}, {"late", "late content"}});
  Allow();
  Send(OpenRequest(tree, 1));  // no server yet
  home_.Dial(address_, credentials_, "secret");
  auto [reply, mount] = Receive();
  ASSERT_TRUE(reply.has_view_opened());
  EXPECT_EQ(Read(mount, "hello"), "hello");
  home_.HangUp();
  std::string late;
  std::thread reader([&] { late = Read(mount, "late"); });
  home_.Dial(address_, credentials_, "secret");
  reader.join();
  EXPECT_EQ(late, "late content");
}

TEST_F(FsServerTest, AFileThatChangedAtHomeIsAnErrorAndIsReported) {
  auto tree = home_.MakeTree({{"gone", "will change"}, {"kept", "kept"}});
  home_.Lose("gone");
  Allow();
  home_.Dial(address_, credentials_, "secret");
  UniqueFd mount = Open(tree, 9);
  EXPECT_EQ(Read(mount, "gone"), "read: " + std::to_string(EIO));
  auto event = Receive().first;
  ASSERT_TRUE(event.has_content_lost());
  EXPECT_EQ(event.id(), 0u);
  EXPECT_EQ(event.content_lost().path(), "/gone");
  ASSERT_EQ(event.content_lost().leases_size(), 1);
  EXPECT_EQ(event.content_lost().leases(0), 9u);
  EXPECT_EQ(Read(mount, "kept"), "kept");
}

TEST_F(FsServerTest, OnlyAHomeWithATokenServes) {
  auto tree = home_.MakeTree({{"hello", "hello"}});
  Allow();
  SmallHome liar;
  auto same = liar.MakeTree({{"hello", "hello"}});
  liar.Dial(address_, credentials_, "guess");
  SmallHome node;
  node.MakeTree({{"hello", "hello"}});
  node.Dial(address_, authority_->Make("node", "n2"), "secret");
  SmallHome other;  // of another user, who has got the token
  other.MakeTree({{"hello", "hello"}});
  other.Dial(address_, authority_->Make("home", "eve@elsewhere"), "secret");
  Send(OpenRequest(tree, 1));
  home_.Dial(address_, credentials_, "secret");
  auto [reply, mount] = Receive();
  ASSERT_TRUE(reply.has_view_opened());
  EXPECT_EQ(Read(mount, "hello"), "hello");
  EXPECT_EQ(liar.asked(v1::ContentRequest::kGetRoot), 0);
  EXPECT_EQ(node.asked(v1::ContentRequest::kGetRoot), 0);
  EXPECT_EQ(other.asked(v1::ContentRequest::kGetRoot), 0);
  liar.HangUp();
  node.HangUp();
  other.HangUp();
}

TEST_F(FsServerTest, WithoutTheAgentItStaysForItsTasksOnly) {
  auto tree = home_.MakeTree({{"hello", "hello"}});
  Allow();
  home_.Dial(address_, credentials_, "secret");
  UniqueFd mount = Open(tree, 1);
  agent_.Reset();
  EXPECT_EQ(Read(mount, "hello"), "hello");
  const int status = Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  home_.HangUp();
  Start();
  agent_.Reset();
  const int idle = Stop(0);
  EXPECT_TRUE(WIFEXITED(idle) && WEXITSTATUS(idle) == 0);
}

TEST_F(FsServerTest, TheCacheIsAskedVerifiedAndPruned) {
  auto tree = home_.MakeTree({{"big", big_}, {"hello", "hello"}});
  Allow();
  home_.Dial(address_, credentials_, "secret");
  UniqueFd mount = Open(tree, 1);
  EXPECT_EQ(Read(mount, "big"), big_);
  EXPECT_EQ(Read(mount, "hello"), "hello");
  v1::FsRequest request;
  request.mutable_cache()->mutable_stat();
  v1::CacheStat stat = Call(request).cache().report().stat();
  EXPECT_GT(stat.bytes(), big_.size());
  EXPECT_GE(stat.objects(), 2u);
  EXPECT_GT(stat.misses(), 0u);
  EXPECT_GT(stat.fetched_bytes(), big_.size());
  EXPECT_EQ(stat.limit_bytes(), 64u << 20);
  EXPECT_GT(stat.disk_free_bytes(), stat.min_free_bytes());

  request.mutable_cache()->mutable_verify();
  auto reply = Call(request);
  while (reply.cache().has_progress()) reply = Receive().first;
  EXPECT_GE(reply.cache().report().verified().bytes(), big_.size());
  EXPECT_EQ(reply.cache().report().verified().corrupt_units(), 0u);

  mount.Reset();
  Close(1);
  request.mutable_cache()->mutable_prune()->set_to_bytes(0);
  reply = Call(request);
  EXPECT_GE(reply.cache().report().freed_bytes(), big_.size());
  EXPECT_LT(reply.cache().report().stat().bytes(), big_.size());

  request.mutable_cache()->clear_what();
  EXPECT_EQ(Call(request).cache().error().code(), static_cast<int>(Code::kUnsupported));

  v1::FsRequest limit;
  limit.mutable_set_cache_limit()->set_bytes(5u << 20);
  Send(limit);  // gets no answer
  request.mutable_cache()->mutable_stat();
  EXPECT_EQ(Call(request).cache().report().stat().limit_bytes(), 5u << 20);
}

TEST_F(FsServerTest, BadRequestsAreAnswered) {
  v1::FsRequest request;
  EXPECT_EQ(Call(request).error().code(), static_cast<int>(Code::kUnsupported));
  request.mutable_open_view()->set_tree("short");
  EXPECT_EQ(Call(request).error().code(), static_cast<int>(Code::kInvalid));
  request.mutable_close_view()->set_lease(77);
  EXPECT_TRUE(Call(request).has_view_closed());
  ASSERT_TRUE(SendFrame(agent_.get(), "\xff\xff garbage"));
  EXPECT_TRUE(Call(request).has_view_closed());
}

TEST_F(FsServerTest, WhatKeepsItFromStartingIsSaid) {
  Stop(SIGKILL);
  ASSERT_EQ(::unlink((directory_ + "/pki").c_str()), 0);
  for (const char* how : {"alone", "keeper"}) {
    Spawn(how);
    auto socket = ConnectUnix(directory_ + "/sock");
    ASSERT_TRUE(socket);
    agent_ = *std::move(socket);
    EXPECT_TRUE(Receive().first.has_error());
    const int status = Stop(0);
    EXPECT_EQ(WEXITSTATUS(status), 1) << how;
  }
}

// With a keeper: the server is a child of pid_.
class HandoverFsServerTest : public FsServerTest {
 protected:
  void SetUp() override {
    FsServerTest::SetUp();
    if (IsSkipped()) return;
    Stop(SIGKILL);
    Start("keeper");
  }
  void TearDown() override {
    home_.HangUp();
    agent_.Reset();
    if (pid_ > 0) {
      Stop(SIGTERM);
    }
    FsServerTest::TearDown();
  }
  pid_t Server() {
    const std::string children = "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children";
    return static_cast<pid_t>(std::strtol(ReadFile(children).value_or("0").c_str(), nullptr, 10));
  }
  // As seen by an agent and a home: connections break and are made again.
  void ServerEnds(int signal, const std::vector<uint64_t>& leases) {
    const pid_t before = Server();
    ASSERT_GT(before, 0);
    ::kill(before, signal);
    pollfd gone{agent_.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&gone, 1, 20000), 1);
    EXPECT_FALSE(ReceiveFrame(agent_.get()));
    home_.HangUp();
    const std::string address = address_;
    Attach(leases, true);
    EXPECT_EQ(address_, address) << "home would not find it";
    EXPECT_NE(Server(), before);
    home_.Dial(address_, credentials_, "secret");
  }
};

TEST_F(HandoverFsServerTest, ACrashAndAnUpgradeAreADelay) {
  auto tree = home_.MakeTree({{"hello", "hello world"}, {"big", big_}, {"later", "asked for later"}});
  Allow();
  home_.Dial(address_, credentials_, "secret");
  UniqueFd mount = Open(tree, 1), other = Open(tree, 2);
  EXPECT_EQ(Read(mount, "hello"), "hello world");
  home_.HangUp();
  // Requested while home is away, so unanswered when the server ends.
  std::string later;
  std::thread reader([&] { later = Read(mount, "later"); });
  for (const int signal : {SIGKILL, SIGHUP, SIGKILL}) ServerEnds(signal, {1, 2});
  reader.join();
  EXPECT_EQ(later, "asked for later");
  EXPECT_TRUE(Read(mount, "big") == big_);
  EXPECT_EQ(Read(other, "hello"), "hello world");
  // A lease that the agent does not list is over; a listed one is in use.
  ServerEnds(SIGKILL, {1});
  EXPECT_EQ(Call(OpenRequest(tree, 1)).error().code(), static_cast<int>(Code::kExists));
  UniqueFd again = Open(tree, 2);
  EXPECT_EQ(Read(again, "big"), big_);
  other.Reset();
}

// Uses a special server that fails the same way each time; the real one would have to be killed within some
// microseconds.
TEST_F(FsServerTest, AServerThatDiedWaitingForItselfIsFollowedByTheNext) {
  Stop(SIGKILL);
  ASSERT_TRUE(MakeDirs(directory_ + "/view", 0755));
  Spawn("waits");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string answered;
  while (answered.empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    answered = ReadFile(directory_ + "/answered").value_or("");
  }
  EXPECT_EQ(answered, "0") << "what somebody else had asked goes to the next server";
  if (const pid_t child = ::fork(); child == 0) {  // ends everything that still waits there
    const UniqueFd mounts(::open(("/proc/" + std::to_string(pid_) + "/ns/mnt").c_str(), O_RDONLY | O_CLOEXEC));
    if (::setns(mounts.get(), CLONE_NEWNS) == 0) ::umount2((directory_ + "/view").c_str(), MNT_FORCE | MNT_DETACH);
    ::_exit(0);
  } else {
    ::waitpid(child, nullptr, 0);
  }
  Stop(SIGTERM);
}

TEST_F(HandoverFsServerTest, ItEndsWithItsViewsWhenItIsToldTo) {
  auto tree = home_.MakeTree({{"hello", "hello"}});
  Allow();
  home_.Dial(address_, credentials_, "secret");
  UniqueFd mount = Open(tree, 1);
  const int status = Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(Read(mount, "hello"), "open: " + std::to_string(ENOTCONN));
}

TEST_F(HandoverFsServerTest, ItGoesOnWithoutItsKeeper) {
  auto tree = home_.MakeTree({{"hello", "hello"}});
  Allow();
  home_.Dial(address_, credentials_, "secret");
  UniqueFd mount = Open(tree, 1);
  Stop(SIGKILL);
  EXPECT_EQ(Read(mount, "hello"), "hello");
  Close(1);
  mount.Reset();
  v1::FsRequest stop;
  stop.mutable_stop();
  Send(stop);
  pollfd gone{agent_.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&gone, 1, 20000), 1);
}

}  // namespace
}  // namespace vrun::node
