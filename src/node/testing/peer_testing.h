// SPDX-License-Identifier: Apache-2.0
// For tests of content sharing: an in-memory home that signs and counts, and nodes that are real except for mounts
// (stores on disk, gRPC with mTLS on loopback).
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/hash/secret.h"
#include "base/thread/mutex.h"
#include "node/peers/peer_server.h"
#include "node/peers/peer_source.h"
#include "node/source/content_source.h"
#include "proto/content.pb.h"
#include "proto/peer.pb.h"
#include "rpc/testing.h"
#include "store/format/statement.h"
#include "store/store.h"
#include "store/testing/names_testing.h"
#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"

namespace vrun::node {

inline constexpr char kTestHome[] = "u@h";

// One home and its nodes. Answers requests in order, on its own thread.
class PeerHome {
 public:
  struct File {
    std::string path;
    tree::FileVersion version;
    std::string content;
  };

  PeerHome() : key_(*SigningKey::Generate()), thread_([this] { Run(); }) {}
  ~PeerHome() {
    {
      MutexLock lock(mu_);
      stop_ = true;
    }
    wake_.notify_all();
    stopped_.notify_all();
    thread_.join();
  }

  File Add(const std::string& path, std::string content) {
    MutexLock lock(mu_);
    File file{path, {1, 100 + files_.size(), 7, content.size()}, std::move(content)};
    files_[file.version.ino] = file;
    return file;
  }
  // Serves the node's content stream. Home must outlive the source.
  void Serve(ContentSource* source) {
    source->AllowToken(kTestHome, "secret", 7, 1);
    auto line = std::make_shared<Line>();
    auto handler = source->Accept(std::make_unique<NodeEnd>(this, line));
    VRUN_CHECK(handler.has_value());
    line->handler = *handler;
    v1::ContentReply hello;
    hello.mutable_hello()->set_home_id(kTestHome);
    hello.mutable_hello()->set_token("secret");
    hello.mutable_hello()->set_job(7);
    hello.mutable_hello()->set_attempt(1);
    (*handler)->OnMessage(hello.SerializeAsString());
  }
  // Adds a member without a content stream, which the test plays itself.
  void Enlist(const std::string& name, const std::string& address) { Join(nullptr, 0, name, address); }
  void Dismiss(const std::string& name) {
    MutexLock lock(mu_);
    std::erase_if(members_, [&](const Member& m) { return m.name == name; });
    TellLocked();
  }
  const std::string& secret() const { return secret_; }
  const SigningKey& key() const { return key_; }
  // How often unit data was sent: the total, and the maximum for one unit.
  uint64_t units_sent() {
    MutexLock lock(mu_);
    uint64_t sum = 0;
    for (const auto& [unit, times] : sent_) sum += times;
    return sum;
  }
  uint64_t statements_sent() {
    MutexLock lock(mu_);
    return statements_;
  }

  // Delays the next answer with content, and all later ones, by this much: a full uplink.
  void Stall(int64_t micros) {
    MutexLock lock(mu_);
    stall_micros_ = micros;
  }

  // Holds the next trace tables until this many nodes have asked: runs that begin together.
  void TablesTogether(size_t nodes) {
    MutexLock lock(mu_);
    tables_together_ = nodes;
  }

  // Home's description of a frame, and its name.
  static constexpr uint64_t kFrameUnits = 4;
  static v1::TraceFrame Frame(const File& file, uint64_t first, uint64_t count, const SigningKey& key) {
    v1::TraceFrame frame;
    frame.set_data(file.content.substr(first * store::kUnitBytes, count * store::kUnitBytes));
    frame.set_raw_bytes(static_cast<uint32_t>(frame.data().size()));
    for (uint64_t i = 0; i < count; ++i) {
      frame.mutable_digests()->append(
          store::UnitDigest(file.content.substr((first + i) * store::kUnitBytes, store::kUnitBytes)).view());
    }
    frame.set_signature(key.Sign(store::FrameStatement(kTestHome, FrameName(file, first, count), frame.digests())));
    return frame;
  }
  static Digest FrameName(const File& file, uint64_t first, uint64_t count) {
    store::FrameNamer namer;
    namer.Add(file.version, first, count);
    return namer.Name();
  }
  // Home's answer for units of a file.
  v1::Units Units(const File& file, uint64_t offset, uint64_t length, const SigningKey& key) const {
    v1::Units units;
    units.set_offset(offset);
    std::string digests;
    const uint64_t unit = store::UnitBytes(file.version.size);
    for (uint64_t at = offset; at < offset + length; at += unit) {
      const std::string data = file.content.substr(at, unit);
      v1::Piece* told = units.add_piece();
      told->set_digests(std::string(store::UnitDigest(data).view()));
      told->set_data(data);
      told->set_raw_bytes(static_cast<uint32_t>(data.size()));
      digests += told->digests();
    }
    if (offset == 0 && length == file.version.size) units.set_object_id(store::FinalId(file.content).Encode());
    units.set_signature(key.Sign(store::UnitsStatement(kTestHome, file.version, offset, digests, units.object_id())));
    return units;
  }

 private:
  struct Line {
    Mutex mu;
    rpc::Stream::Handler* handler = nullptr;  // null: closed
  };
  class NodeEnd final : public rpc::Stream {
   public:
    NodeEnd(PeerHome* home, std::shared_ptr<Line> line) : home_(home), line_(std::move(line)) {}
    ~NodeEnd() override {
      home_->Leave(line_);
      MutexLock lock(line_->mu);
      line_->handler = nullptr;
    }
    void Send(std::string message) override { home_->Post(line_, std::move(message)); }
    void SendUrgent(std::string message) override { Send(std::move(message)); }
    size_t queued_bytes() const override { return 0; }
    void Finish() override {}
    void Cancel(Error) override {}

   private:
    PeerHome* home_;
    std::shared_ptr<Line> line_;
  };
  struct Member {
    uint64_t id;
    std::string name, address;
    std::shared_ptr<Line> line;
    uint64_t request;
  };

  static void Say(const std::shared_ptr<Line>& line, const v1::ContentReply& reply) {
    MutexLock lock(line->mu);
    if (line->handler) line->handler->OnMessage(reply.SerializeAsString());
  }
  void Post(const std::shared_ptr<Line>& line, std::string message) {
    MutexLock lock(mu_);
    queue_.emplace_back(line, std::move(message));
    wake_.notify_all();
  }
  void Join(const std::shared_ptr<Line>& line, uint64_t request, const std::string& name, const std::string& address) {
    MutexLock lock(mu_);
    members_.push_back({next_id_++, name, address, line, request});
    TellLocked();
  }
  void Leave(const std::shared_ptr<Line>& line) {
    MutexLock lock(mu_);
    std::erase_if(members_, [&](const Member& m) { return m.line == line; });
    TellLocked();
  }
  void TellLocked() {
    v1::Peers peers;
    peers.set_secret(secret_);
    peers.set_public_key(key_.public_key());
    for (const Member& m : members_) {
      auto* peer = peers.add_peer();
      peer->set_id(m.id);
      peer->set_name(m.name);
      peer->set_address(m.address);
    }
    for (const Member& m : members_) {
      if (!m.line) continue;
      v1::ContentReply reply;
      reply.set_id(m.request);
      *reply.mutable_peers() = peers;
      reply.mutable_peers()->set_self(m.id);
      queue_.emplace_back(m.line, "");
      replies_[m.line.get()].push_back(std::move(reply));
    }
    wake_.notify_all();
  }
  void Run() {
    MutexLock lock(mu_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const auto [line, message] = std::move(queue_.front());
      queue_.pop_front();
      std::vector<v1::ContentReply> told = std::exchange(replies_[line.get()], {});
      lock.unlock();
      for (const auto& reply : told) Say(line, reply);
      if (!message.empty()) Answer(line, message);
      lock.lock();
    }
  }
  void Answer(const std::shared_ptr<Line>& line, const std::string& message) {
    v1::ContentRequest request;
    VRUN_CHECK(request.ParseFromString(message));
    v1::ContentReply reply;
    reply.set_id(request.id());
    if (request.has_watch_peers()) {
      return Join(line, request.id(), request.watch_peers().name(), request.watch_peers().addresses(0));
    }
    reply.set_last(true);
    {
      MutexLock lock(mu_);
      const bool content = request.has_get_range() || request.has_get_frames();
      const auto stall = std::chrono::microseconds(content ? std::exchange(stall_micros_, 0) : 0);
      if (stall.count() > 0) stopped_.wait_for(lock, stall, [this] { return stop_; });
    }
    if (request.has_get_trace()) {
      std::vector<std::pair<std::shared_ptr<Line>, v1::ContentRequest>> due;
      {
        MutexLock lock(mu_);
        tables_asked_.emplace_back(line, request);
        if (tables_asked_.size() < tables_together_) return;
        due.swap(tables_asked_);
      }
      for (const auto& [to, asked] : due) {
        v1::ContentReply table;
        table.set_id(asked.id());
        table.set_last(true);
        Trace(asked, &table);
        Say(to, table);
      }
      return;
    }
    if (request.has_get_frames()) {
      Trace(request, &reply);
      return Say(line, reply);
    }
    if (!request.has_get_range()) {
      reply.mutable_error()->set_code(static_cast<int>(Code::kUnsupported));
      return Say(line, reply);
    }
    const auto& get = request.get_range();
    File file;
    {
      MutexLock lock(mu_);
      file = files_.at(get.version().ino());
      const uint64_t unit = store::UnitBytes(file.version.size);
      for (uint64_t at = get.offset(); at < get.offset() + get.length(); at += unit) {
        if (get.digests_only())
          ++statements_;
        else
          ++sent_[{file.version.ino, at / unit}];
      }
    }
    *reply.mutable_units() = Units(file, get.offset(), get.length(), key_);
    if (!get.sign()) reply.mutable_units()->clear_signature();
    for (v1::Piece& piece : *reply.mutable_units()->mutable_piece()) {
      if (get.digests_only()) piece.clear_data();
    }
    Say(line, reply);
  }

  // One trace of all files, in frames.
  void Trace(const v1::ContentRequest& request, v1::ContentReply* reply) {
    MutexLock lock(mu_);
    struct Part {
      const File* file;
      uint64_t first, count;
    };
    std::vector<Part> frames;
    v1::TraceTable* table = request.has_get_trace() ? reply->mutable_trace() : nullptr;
    if (table) {
      table->set_id(std::string(Sha256("table").view()));
      table->set_tree(std::string(Sha256("tree").view()));
    }
    uint64_t index = 0;
    for (const auto& [ino, file] : files_) {
      if (table) {
        v1::ResidentFile* told = table->add_file();
        told->set_path(file.path);
        told->mutable_version()->set_dev(file.version.dev);
        told->mutable_version()->set_ino(file.version.ino);
        told->mutable_version()->set_ctime_ns(file.version.ctime_ns);
        told->mutable_version()->set_size(file.version.size);
      }
      const uint64_t units = store::UnitCount(file.version.size);
      for (uint64_t first = 0; first < units; first += kFrameUnits) {
        frames.push_back({&file, first, std::min(kFrameUnits, units - first)});
        if (!table) continue;
        for (const uint64_t n : {index, first, frames.back().count}) table->add_range(n);
        table->add_frame(1);
      }
      ++index;
    }
    if (table) return;
    const Part& part = frames.at(request.get_frames().frame(0));
    for (uint64_t i = 0; i < part.count; ++i) ++sent_[{part.file->version.ino, part.first + i}];
    *reply->mutable_frame() = Frame(*part.file, part.first, part.count, key_);
    reply->mutable_frame()->set_index(request.get_frames().frame(0));
    if (!request.get_frames().sign()) reply->mutable_frame()->clear_signature();
  }

  const SigningKey key_;
  const std::string secret_ = *RandomSecret(32);
  Mutex mu_;
  CondVar wake_, stopped_;
  bool stop_ = false;
  int64_t stall_micros_ = 0;
  size_t tables_together_ = 1;
  std::vector<std::pair<std::shared_ptr<Line>, v1::ContentRequest>> tables_asked_;
  std::deque<std::pair<std::shared_ptr<Line>, std::string>> queue_;
  std::map<Line*, std::vector<v1::ContentReply>> replies_;
  std::map<uint64_t, File> files_;  // by inode
  std::vector<Member> members_;
  uint64_t next_id_ = 1;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> sent_;
  uint64_t statements_ = 0;
  std::thread thread_;
};

// A file system server without mounts.
class PeerNode {
 public:
  PeerNode(PeerHome* home, const rpc::TestAuthority& authority, const std::string& name,
           const std::string& home_id = kTestHome, int64_t wait_micros = PeerSourceOptions().wait_micros)
      : name_(name) {
    directory_ = std::string("/var/tmp/vrun-peer-XXXXXX");
    VRUN_CHECK(::mkdtemp(directory_.data()) != nullptr);
    store_ = std::move(*store::Store::Open({.directory = directory_}));
    source_ = std::make_unique<ContentSource>(ContentSourceOptions{.home_id = home_id});
    const rpc::Credentials credentials = authority.Make("node", name);
    server_ = rpc::Server::Create(credentials);
    server_->Streaming("/vrun.v1.Peer/Exchange", [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) {
      return peers_->Accept(peer, std::move(stream));
    });
    address_ = "127.0.0.1:" + std::to_string(*server_->Start("127.0.0.1:0"));
    peer_source_ = std::make_unique<PeerSource>(PeerSourceOptions{.home_id = home_id,
                                                                  .name = name,
                                                                  .address = address_,
                                                                  .pool = "p",
                                                                  .credentials = credentials,
                                                                  .wait_micros = wait_micros},
                                                source_.get());
    backend_ = vfs::Backend::Create({.home_id = home_id}, peer_source_.get(), store_.get());
    peers_ = std::make_unique<PeerServer>(peer_source_.get(), backend_.get());
    peer_source_->OnUpdate([this] { peers_->Updated(); });
    if (home) home->Serve(source_.get());
  }
  ~PeerNode() {
    server_.reset();
    peers_.reset();
    backend_.reset();
    peer_source_.reset();
    source_.reset();
    store_.reset();
    (void)RemoveTree(directory_);
  }
  // From now on other nodes may ask it.
  void Join() { peer_source_->HomeIsBack(); }
  // Waits until it knows this many other nodes.
  bool WaitMates(size_t n) {
    for (int i = 0; i < 1000 && peer_source_->stats().mates != n; ++i) ::usleep(10'000);
    return peer_source_->stats().mates == n;
  }
  // Reads the whole file like a program; "" on failure.
  std::string Read(const PeerHome::File& file) {
    auto content = backend_->files().Get(file.version, std::nullopt);
    std::string data(file.version.size, '\0');
    for (uint64_t at = 0; at < data.size();) {
      const size_t n = std::min<uint64_t>(128 << 10, data.size() - at);
      if (auto got = content->TryRead(at, data.data() + at, n)) {
        at += *got;
        continue;
      }
      std::promise<Status> came;
      content->Ensure({Sha256("tree"), file.path}, at, n, [&](Status status) { came.set_value(std::move(status)); });
      if (!came.get_future().get()) return "";
    }
    return data;
  }
  void Tick(int64_t now_micros) { peers_->Tick(now_micros); }
  // Begins a run that has a trace, and waits until this many units have arrived.
  bool RunWithTrace(uint64_t units) {
    BeginRun();
    for (int i = 0; i < 2000 && backend_->counters().units_fetched < units; ++i) ::usleep(10'000);
    return backend_->counters().units_fetched == units;
  }
  uint64_t units_fetched() const { return backend_->counters().units_fetched; }
  void BeginRun() { backend_->BeginRun({7, 1, "secret"}); }
  PeerStats stats() const { return peer_source_->stats(); }
  PeerSource* source() { return peer_source_.get(); }
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  // Its streams end and it becomes unreachable; home does not know yet.
  void Die() { server_.reset(); }

 private:
  const std::string name_;
  std::string directory_, address_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<ContentSource> source_;
  std::unique_ptr<PeerSource> peer_source_;
  std::shared_ptr<vfs::Backend> backend_;
  std::unique_ptr<PeerServer> peers_;
  std::unique_ptr<rpc::Server> server_;
};

// A listed node whose behaviour the test chooses.
class OddPeer {
 public:
  using Behave = std::function<void(const v1::PeerRequest&, std::function<void(const v1::PeerReply&)>)>;
  OddPeer(PeerHome* home, const rpc::TestAuthority& authority, const std::string& name, Behave behave)
      : home_(home), name_(name), behave_(std::move(behave)) {
    server_ = rpc::Server::Create(authority.Make("node", name));
    server_->Streaming(
        "/vrun.v1.Peer/Exchange",
        [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
          MutexLock lock(mu_);
          sessions_.push_back(std::make_unique<Session>(this, peer.name, std::move(stream)));
          return sessions_.back().get();
        });
    home->Enlist(name, "127.0.0.1:" + std::to_string(*server_->Start("127.0.0.1:0")));
  }
  ~OddPeer() {
    server_.reset();
    for (auto& session : sessions_) session->stream.reset();
  }
  int asked() const { return asked_; }
  // Tells all clients that it is alive and works on their requests.
  void Beat() {
    v1::PeerReply reply;
    reply.mutable_waiting();
    MutexLock lock(mu_);
    for (auto& session : sessions_) {
      if (session->stream && session->greeted) session->stream->SendUrgent(reply.SerializeAsString());
    }
  }

 private:
  struct Session final : rpc::Stream::Handler {
    Session(OddPeer* peer, std::string asker, std::unique_ptr<rpc::Stream> s)
        : peer(peer), asker(std::move(asker)), stream(std::move(s)) {}
    void OnMessage(std::string message) override {
      v1::PeerRequest request;
      VRUN_CHECK(request.ParseFromString(message));
      if (request.has_hello()) {
        v1::PeerReply hello;
        const Digest proof =
            PeerProof(peer->home_->secret(), PeerSide::kOwner, kTestHome, asker, peer->name_, request.hello().nonce());
        hello.mutable_hello()->set_proof(std::string(proof.view()));
        stream->Send(hello.SerializeAsString());
        greeted = true;
      } else if (request.has_get_units() || request.has_get_frame()) {
        ++peer->asked_;
        peer->behave_(request, [this, id = request.id()](const v1::PeerReply& reply) {
          v1::PeerReply answer = reply;
          answer.set_id(id);
          stream->Send(answer.SerializeAsString());
        });
      }
    }
    void OnClosed(Error) override {}
    OddPeer* peer;
    std::string asker;
    std::unique_ptr<rpc::Stream> stream;
    std::atomic<bool> greeted{false};
  };

  PeerHome* home_;
  const std::string name_;
  const Behave behave_;
  std::atomic<int> asked_{0};
  Mutex mu_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::unique_ptr<rpc::Server> server_;
};

inline std::string Bytes(size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string out(n, '\0');
  for (size_t i = 0; i + 8 <= n; i += 8) {
    const uint64_t word = random();
    std::memcpy(out.data() + i, &word, 8);
  }
  return out;
}

// A home with several nodes.
class PeerTest : public testing::Test {
 protected:
  // Starts nodes that know each other.
  void Start(int n) {
    for (int i = 0; i < n; ++i) {
      nodes_.push_back(std::make_unique<PeerNode>(&home_, authority_, "n" + std::to_string(nodes_.size() + 1)));
      nodes_.back()->Join();
    }
    for (auto& node : nodes_) ASSERT_TRUE(node->WaitMates(nodes_.size() - 1));
  }
  static uint64_t Units(const std::vector<PeerHome::File>& files) {
    uint64_t units = 0;
    for (const auto& file : files) units += store::UnitCount(file.version.size);
    return units;
  }
  std::vector<PeerHome::File> Tree(uint64_t large, int small) {
    std::vector<PeerHome::File> files = {home_.Add("/large", Bytes(large, 1))};
    for (int i = 0; i < small; ++i) {
      files.push_back(home_.Add("/small" + std::to_string(i),
                                Bytes(1000 + 9973 * static_cast<size_t>(i), 100 + static_cast<unsigned>(i))));
    }
    return files;
  }
  void ReadAll(PeerNode* node, const std::vector<PeerHome::File>& files) {
    for (const auto& file : files) EXPECT_TRUE(node->Read(file) == file.content) << node->name() << " " << file.path;
  }
  void ReadAllTogether(const std::vector<PeerHome::File>& files) {
    std::vector<std::thread> readers;
    for (auto& node : nodes_) readers.emplace_back([&] { ReadAll(node.get(), files); });
    for (auto& reader : readers) reader.join();
  }

  rpc::TestAuthority authority_;
  PeerHome home_;
  std::atomic<bool> ticked_{false};
  std::vector<std::unique_ptr<PeerNode>> nodes_;
};

}  // namespace vrun::node
