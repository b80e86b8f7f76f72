// SPDX-License-Identifier: Apache-2.0
// For tests of the whole daemon from outside: a client on the socket, a controller and a node over real mTLS. The
// daemon is a separate process, so that it can be killed.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <zstd.h>

#include <condition_variable>
#include <csignal>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>

#include "base/clock.h"
#include "base/config.h"
#include "base/io/message_socket.h"
#include "base/io/stream_progress.h"
#include "base/thread/mutex.h"
#include "home/testing/test_directory.h"
#include "proto/content.pb.h"
#include "proto/control.pb.h"
#include "proto/local.pb.h"
#include "proto/task.pb.h"
#include "rpc/rpc.h"
#include "rpc/testing.h"
#include "tree/codec.h"

namespace vrun::home {

inline constexpr auto kPatience = std::chrono::seconds(40);

// Messages of one stream, to be taken one by one.
template <typename Message>
class Inbox : public rpc::Stream::Handler {
 public:
  explicit Inbox(std::unique_ptr<rpc::Stream> stream) : stream_(std::move(stream)) {}
  void OnMessage(std::string bytes) override {
    MutexLock lock(mutex_);
    messages_.emplace_back();
    EXPECT_TRUE(messages_.back().ParseFromString(bytes));
    wake_.notify_all();
  }
  void OnClosed(Error) override {
    MutexLock lock(mutex_);
    closed_ = true;
    wake_.notify_all();
  }
  template <typename Out>
  void Send(const Out& message) {
    stream_->Send(message.SerializeAsString());
  }
  void Finish() { stream_->Finish(); }
  void Break() { stream_->Cancel(Error(Code::kUnavailable, "broken by the test")); }
  // The next message that `wanted` accepts; others are dropped.
  Message Next(const std::function<bool(const Message&)>& wanted) {
    MutexLock lock(mutex_);
    auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      while (!messages_.empty()) {
        Message m = std::move(messages_.front());
        messages_.pop_front();
        if (wanted(m)) return m;
      }
      if (wake_.wait_until(lock, deadline) == std::cv_status::timeout) {
        ADD_FAILURE() << "no such message within the time" << (closed_ ? ": the stream is closed" : "");
        return {};
      }
    }
  }
  bool WaitClosed() {
    MutexLock lock(mutex_);
    return wake_.wait_for(lock, kPatience, [this] { return closed_; });
  }

  std::string node;  // which has it

 private:
  std::unique_ptr<rpc::Stream> stream_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<Message> messages_;
  bool closed_ = false;
};

using TaskInbox = Inbox<v1::TaskUp>;
using ContentInbox = Inbox<v1::ContentReply>;
using WatchInbox = Inbox<v1::WatchRequest>;

template <typename T>
class Arrivals {
 public:
  rpc::Stream::Handler* Add(std::shared_ptr<T> item) {
    MutexLock lock(mutex_);
    all_.push_back(item);
    wake_.notify_all();
    return item.get();
  }
  std::shared_ptr<T> Next() {
    MutexLock lock(mutex_);
    if (!wake_.wait_for(lock, kPatience, [this] { return taken_ < all_.size(); })) {
      // The rest of the test needs the connection.
      throw std::runtime_error("nobody came");
    }
    return all_[taken_++];
  }
  size_t size() {
    MutexLock lock(mutex_);
    return all_.size();
  }

 private:
  Mutex mutex_;
  CondVar wake_;
  std::vector<std::shared_ptr<T>> all_;
  size_t taken_ = 0;
};

class HomeTest : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    root_.Put("etc/hosts", "127.0.0.1 localhost\n");
    root_.Put("project/data", "some data\n");
    node_address_ = AddressOf("n1");
    StartController();
    Config config;
    config.controller = controller_address_;
    config.credentials = authority_.directory();
    config.credentials_name = "ann";
    config.root = root_.path();
    authority_.Make("home", "ann");
    ASSERT_TRUE(WriteConfig(vrun_ / "config.toml", config));
    ASSERT_EQ(StartHome(), "ok\n");
  }
  void TearDown() override {
    StopHome(SIGTERM);
    controller_.reset();
    MutexLock lock(nodes_mutex_);
    nodes_.clear();
  }

  // --- the controller ---

  void StartController() {
    controller_ = rpc::Server::Create(authority_.Make("controller", "controller"));
    auto unary = [this](const std::string& name, auto answer) {
      controller_->Unary("/vrun.v1.Control/" + name,
                         [answer](const rpc::Peer&, std::string bytes, std::function<void(Result<std::string>)> reply) {
                           reply(answer(bytes));
                         });
    };
    unary("Submit", [this](const std::string& bytes) -> Result<std::string> {
      v1::SubmitRequest request;
      EXPECT_TRUE(request.ParseFromString(bytes));
      if (request.spec().pool() != "local") return Error(Code::kNotFound, "no pool " + request.spec().pool());
      MutexLock lock(mutex_);
      home_id_ = request.home_id();
      uint64_t& job = jobs_by_request_[request.request_id()];
      if (job == 0) job = ++last_job_;
      states_[job] = place_ ? v1::RUNNING : v1::PENDING;
      if (request.has_array()) arrays_[job] = request.array();
      if (request.spec().has_gang()) {
        gangs_[job] = request.spec().gang();
        pods_ = std::max(1u, request.spec().gang().pods());
      }
      v1::SubmitReply reply;
      reply.set_job(job);
      if (place_) *reply.mutable_placement() = PlacementOf(job);
      return reply.SerializeAsString();
    });
    unary("Cancel", [this](const std::string& bytes) -> Result<std::string> {
      v1::CancelRequest request;
      EXPECT_TRUE(request.ParseFromString(bytes));
      MutexLock lock(mutex_);
      cancelled_[request.job()] = request.signal();
      wake_.notify_all();
      if (states_[request.job()] == v1::PENDING) states_[request.job()] = v1::CANCELLED;
      v1::CancelReply reply;
      reply.set_state(states_[request.job()]);
      return reply.SerializeAsString();
    });
    unary("Get", [this](const std::string& bytes) -> Result<std::string> {
      v1::GetRequest request;
      EXPECT_TRUE(request.ParseFromString(bytes));
      MutexLock lock(mutex_);
      auto it = states_.find(request.job());
      if (it == states_.end()) return Error(Code::kNotFound, "no such job");
      v1::GetReply reply;
      reply.mutable_info()->set_job(request.job());
      reply.mutable_info()->set_state(it->second);
      SetArray(reply.mutable_info());
      if (arrays_.contains(request.job())) return reply.SerializeAsString();
      if (auto r = records_.find(request.job()); r != records_.end())
        *reply.mutable_info()->mutable_exit() = r->second;
      else
        *reply.mutable_placement() = PlacementOf(request.job());
      if (auto g = gangs_.find(request.job()); g != gangs_.end()) {
        *reply.mutable_info()->mutable_gang() = g->second;
        for (uint32_t pod = 0; pod < pods_ && reply.has_placement(); ++pod)
          *reply.add_placements() = PodPlacement(request.job(), pod);
        if (reply.has_placement()) *reply.mutable_placement() = reply.placements(0);
      }
      return reply.SerializeAsString();
    });
    unary("List", [this](const std::string& bytes) -> Result<std::string> {
      v1::ListRequest request;
      EXPECT_TRUE(request.ParseFromString(bytes));
      MutexLock lock(mutex_);
      v1::ListReply reply;
      for (auto& [job, state] : states_) {
        if (state != v1::RUNNING && !request.home_id().empty()) continue;
        v1::JobInfo* info = reply.add_jobs();
        info->set_job(job);
        info->set_state(state);
        SetArray(info);
      }
      return reply.SerializeAsString();
    });
    unary("Nodes", [](const std::string&) -> Result<std::string> { return v1::NodesReply().SerializeAsString(); });
    controller_->Streaming("/vrun.v1.Control/Watch",
                           [this](const rpc::Peer&, std::unique_ptr<rpc::Stream> s) -> Result<rpc::Stream::Handler*> {
                             return watches_.Add(std::make_shared<WatchInbox>(std::move(s)));
                           });
    auto port = controller_->Start(controller_address_.empty() ? "127.0.0.1:0" : controller_address_);
    ASSERT_TRUE(port) << port.error().message();
    controller_address_ = "127.0.0.1:" + std::to_string(*port);
  }
  void SetArray(v1::JobInfo* info) {
    if (auto a = arrays_.find(info->job()); a != arrays_.end())
      *info->mutable_array_info()->mutable_array() = a->second;
    if (auto e = elements_.find(info->job()); e != elements_.end()) {
      info->set_array(e->second.first);
      info->set_array_index(e->second.second);
    }
  }
  v1::Placement PlacementOf(uint64_t job) {
    v1::Placement p;
    p.set_job(job);
    p.set_attempt(1);
    p.set_epoch(1);
    p.set_node("n1");
    p.add_addresses(node_address_);
    p.set_token("token");
    return p;
  }
  // Of one pod of the present attempt of a gang, which has a node of its own.
  v1::Placement PodPlacement(uint64_t job, uint32_t pod) {
    v1::Placement p = PlacementOf(job);
    p.set_attempt(attempt_);
    p.set_epoch(attempt_);
    p.set_pod(pod);
    p.set_node("n" + std::to_string(pod + 1));
    if (pod > 0) p.set_addresses(0, AddressOf(p.node()));
    return p;
  }
  void Ended(uint64_t job, const v1::ExitRecord& record) {
    MutexLock lock(mutex_);
    states_[job] = record.exit_code() == 0 ? v1::COMPLETED : v1::FAILED;
    records_[job] = record;
  }
  int CancelSignal(uint64_t job) {
    MutexLock lock(mutex_);
    return wake_.wait_for(lock, kPatience, [&] { return cancelled_.contains(job); }) ? cancelled_[job] : -1;
  }

  // --- the daemon ---

  std::string StartHome() {
    int ready[2];
    VRUN_CHECK(::pipe2(ready, O_CLOEXEC) == 0);
    UniqueFd reader(ready[0]), writer(ready[1]);
    char self[4096];
    ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
    std::string program(self, static_cast<size_t>(n));
    program = program.substr(0, program.rfind('/')) + "/home_fixture";
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, writer.get(), 3);
    std::string log = vrun_ / "home.log";
    ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    std::string arg0 = "home_fixture", arg1 = "3", dir = "VRUN_DIR=" + vrun_.path(), home = "HOME=" + vrun_.path();
    char* argv[] = {arg0.data(), arg1.data(), nullptr};
    std::vector<char*> env = {dir.data(), home.data()};
    for (char** e = environ; *e != nullptr; ++e) {
      std::string_view v = *e;
      if (v.find("SAN_OPTIONS=") != std::string_view::npos) env.push_back(*e);
    }
    env.push_back(nullptr);
    VRUN_CHECK(::posix_spawn(&home_, program.c_str(), &actions, nullptr, argv, env.data()) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
    writer.Reset();
    std::string line(512, '\0');
    auto got = ReadUpTo(reader.get(), line.data(), line.size());
    line.resize(got ? *got : 0);
    return line;
  }
  int StopHome(int signal) {
    if (home_ <= 0) return -1;
    ::kill(home_, signal);
    int status = 0;
    while (::waitpid(home_, &status, 0) < 0 && errno == EINTR) {
    }
    home_ = 0;
    return status;
  }

  // --- the client ---

  struct Client {
    UniqueFd socket;
    UniqueFd in, out, err;  // our ends of its pipes
    UniqueFd in_home, out_home, err_home;
    UniqueFd memory;

    void Send(const v1::ClientMessage& message, const std::vector<int>& fds = {}) {
      EXPECT_TRUE(SendFrame(socket.get(), message.SerializeAsString(), fds));
    }
    v1::HomeMessage Next(const std::function<bool(const v1::HomeMessage&)>& wanted) {
      for (;;) {
        auto frame = ReceiveFrame(socket.get());
        if (!frame) {
          ADD_FAILURE() << "home has hung up or says nothing: " << frame.error().message();
          return {};
        }
        v1::HomeMessage message;
        EXPECT_TRUE(message.ParseFromString(frame->bytes));
        if (wanted(message)) return message;
      }
    }
    v1::Finished Finished() {
      return Next([](const v1::HomeMessage& m) {
               EXPECT_FALSE(m.has_error()) << m.error().message();
               return m.has_finished() || m.has_error();
             })
          .finished();
    }
    uint64_t Accepted() {
      return Next([](const v1::HomeMessage& m) { return m.has_accepted() || m.has_error() || m.has_finished(); })
          .accepted()
          .job();
    }
    std::string ReadOut(size_t n) {
      std::string s(n, '\0');
      size_t have = 0;
      while (have < n) {
        pollfd p{out.get(), POLLIN, 0};
        if (::poll(&p, 1, 40'000) <= 0) break;
        ssize_t r = ::read(out.get(), s.data() + have, n - have);
        if (r <= 0) break;
        have += static_cast<size_t>(r);
      }
      s.resize(have);
      return s;
    }
    bool OutAtEnd() {
      char c;
      pollfd p{out.get(), POLLIN, 0};
      return ::poll(&p, 1, 0) == 1 && ::read(out.get(), &c, 1) == 0;
    }
  };
  Client Connect() {
    Client c;
    auto socket = ConnectUnix(vrun_ / "home.sock");
    EXPECT_TRUE(socket);
    c.socket = std::move(*socket);
    timeval limit{40, 0};
    ::setsockopt(c.socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return c;
  }
  Client StartRun(std::function<void(v1::Run*)> change = [](v1::Run*) {}) {
    Client c = Connect();
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    c.in_home.Reset(fds[0]);
    c.in.Reset(fds[1]);
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    c.out.Reset(fds[0]);
    c.out_home.Reset(fds[1]);
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    c.err.Reset(fds[0]);
    c.err_home.Reset(fds[1]);
    c.memory = std::move(*CreateStreamProgress());
    v1::ClientMessage message;
    v1::Run* run = message.mutable_run();
    run->mutable_spec()->mutable_command()->add_argv("./train");
    run->mutable_spec()->mutable_command()->set_directory("/project");
    run->set_progress(true);
    change(run);
    c.Send(message, {c.in_home.get(), c.out_home.get(), c.err_home.get(), c.memory.get()});
    return c;
  }
  // Closes the client's own descriptors, as when it exits; only home's copies remain.
  static void LetGo(Client* c) {
    c->in_home.Reset();
    c->out_home.Reset();
    c->err_home.Reset();
  }

  // --- the nodes ---

  // Starts the node if it does not run yet.
  std::string AddressOf(const std::string& name) {
    MutexLock lock(nodes_mutex_);
    auto& [server, address] = nodes_[name];
    if (server) return address;
    server = rpc::Server::Create(authority_.Make("node", name));
    server->Streaming(
        "/vrun.v1.Node/Task",
        [this, name](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> s) -> Result<rpc::Stream::Handler*> {
          EXPECT_EQ(peer.role, "home");
          auto task = std::make_shared<TaskInbox>(std::move(s));
          task->node = name;
          return tasks_.Add(std::move(task));
        });
    server->Streaming("/vrun.v1.Content/Serve",
                      [this](const rpc::Peer&, std::unique_ptr<rpc::Stream> s) -> Result<rpc::Stream::Handler*> {
                        return contents_.Add(std::make_shared<ContentInbox>(std::move(s)));
                      });
    const auto port = server->Start("127.0.0.1:0");
    VRUN_CHECK(port.has_value());
    return address = "127.0.0.1:" + std::to_string(*port);
  }

  static v1::TaskDown OutputOf(v1::StreamId stream, uint64_t offset, const std::string& data, bool eof) {
    v1::TaskDown down;
    down.mutable_output()->set_stream(stream);
    down.mutable_output()->set_offset(offset);
    down.mutable_output()->set_data(data);
    down.mutable_output()->set_eof(eof);
    return down;
  }
  v1::Attach NextAttach(TaskInbox* task) {
    return task->Next([](const v1::TaskUp& up) { return up.has_attach(); }).attach();
  }
  void Attached(TaskInbox* task, bool started, uint64_t input_offset = 0, bool content = true) {
    v1::TaskDown down;
    if (content)
      down.mutable_attached()->add_content_addresses(task->node == "n1" ? node_address_ : AddressOf(task->node));
    down.mutable_attached()->set_started(started);
    down.mutable_attached()->set_input_offset(input_offset);
    task->Send(down);
  }
  void Started(TaskInbox* task) {
    v1::TaskDown down;
    down.mutable_started();
    task->Send(down);
  }
  v1::ExitRecord Exited(TaskInbox* task, uint64_t job, int code) {
    v1::TaskDown down;
    v1::ExitRecord* record = down.mutable_exited()->mutable_record();
    record->set_job(job);
    record->set_attempt(1);
    record->set_kind(v1::ExitRecord::EXITED);
    record->set_exit_code(code);
    record->set_started_us(1);
    record->set_ended_us(2);
    record->set_node("n1");
    task->Send(down);
    return *record;
  }
  void WritesEnd(TaskInbox* task, uint64_t sequence) {
    v1::TaskDown down;
    down.mutable_write_back_end()->set_sequence(sequence);
    task->Send(down);
  }
  void Put(TaskInbox* task, uint64_t sequence, const std::string& path, const std::string& content) {
    v1::TaskDown down;
    v1::WriteBack* write = down.mutable_write_back();
    write->set_sequence(sequence);
    write->set_path(path);
    v1::Meta* meta = write->mutable_put_file()->mutable_meta();
    meta->set_mode(S_IFREG | 0644);
    meta->set_uid(::geteuid());
    meta->set_gid(::getegid());
    meta->set_mtime_ns(1'000'000'000);
    write->mutable_put_file()->set_size(content.size());
    task->Send(down);
    write->set_sequence(sequence + 1);
    write->mutable_file_data()->set_data(content);
    write->mutable_file_data()->set_last(true);
    task->Send(down);
  }
  void Released(TaskInbox* task) {
    task->Next([](const v1::TaskUp& up) { return up.has_release(); });
  }
  // A whole run of a command without output and writes.
  void RunSilently(uint64_t job, int code) {
    auto task = tasks_.Next();
    NextAttach(task.get());
    Attached(task.get(), false);
    Started(task.get());
    task->Send(OutputOf(v1::STDOUT, 0, "", true));
    task->Send(OutputOf(v1::STDERR, 0, "", true));
    Exited(task.get(), job, code);
    WritesEnd(task.get(), 0);
    Released(task.get());
  }
  // Requests the root directory of a tree on home's content stream.
  tree::DirectoryPtr RootDirectory(ContentInbox* content, const std::string& tree, uint64_t id) {
    v1::ContentRequest request;
    request.set_id(id);
    request.mutable_get_root()->set_tree(tree);
    content->Send(request);
    auto reply = content->Next([&](const v1::ContentReply& r) { return r.id() == id; });
    EXPECT_TRUE(reply.has_root()) << reply.error().message();
    auto root = tree::DecodeRoot(reply.root().entry(), *Digest::FromBytes(tree));
    EXPECT_TRUE(root);
    request.set_id(id + 1);
    request.mutable_get_directory()->set_tree(tree);
    request.mutable_get_directory()->set_path("/");
    request.mutable_get_directory()->set_digest(std::string(root->child.view()));
    content->Send(request);
    reply = content->Next([&](const v1::ContentReply& r) { return r.id() == id + 1; });
    EXPECT_TRUE(reply.has_directory()) << reply.error().message();
    std::string encoded = reply.directory().encoded();
    if (reply.directory().zstd()) {
      std::string raw(reply.directory().raw_bytes(), '\0');
      EXPECT_EQ(::ZSTD_decompress(raw.data(), raw.size(), encoded.data(), encoded.size()), raw.size());
      encoded = raw;
    }
    auto directory = tree::Directory::Parse(encoded);
    EXPECT_TRUE(directory);
    return *directory;
  }

  rpc::TestAuthority authority_;
  TestDirectory root_, vrun_;
  std::unique_ptr<rpc::Server> controller_;
  std::string controller_address_, node_address_;
  Arrivals<TaskInbox> tasks_;
  Arrivals<ContentInbox> contents_;
  Arrivals<WatchInbox> watches_;
  pid_t home_ = 0;

  Mutex nodes_mutex_;
  std::map<std::string, std::pair<std::unique_ptr<rpc::Server>, std::string>> nodes_;  // and its address, by name

  Mutex mutex_;
  CondVar wake_;
  bool place_ = true;  // guarded by mutex_, as all below
  uint64_t last_job_ = 100;
  std::string home_id_;
  std::map<std::string, uint64_t> jobs_by_request_;
  std::map<uint64_t, v1::JobState> states_;
  std::map<uint64_t, v1::ExitRecord> records_;
  std::map<uint64_t, int> cancelled_;
  std::map<uint64_t, v1::Gang> gangs_;
  std::map<uint64_t, v1::Array> arrays_;
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> elements_;  // array and index
  uint32_t pods_ = 1;                                           // of the present attempt of a gang
  uint32_t attempt_ = 1;
};

}  // namespace vrun::home
