// SPDX-License-Identifier: Apache-2.0
#include "node/fs/fs_client.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "node/fs/fs_keeper.h"
#include "proto/fsctl.pb.h"

namespace vrun::node {

Result<std::unique_ptr<FsClient>> FsClient::Start(EventLoop* loop, const FsServerSettings& s, Events events) {
  const std::string path = SocketPath(s.socket_directory, s.tenant);
  VRUN_ASSIGN(const UniqueFd listener, ListenUnix(path, 0600));
  const std::string program = BinaryDirectory() + "/vrund";
  std::vector<std::string> argv = {program,
                                   "fs-keeper",
                                   "--fd",
                                   "3",
                                   "--",
                                   program,
                                   "fs",
                                   "--fd",
                                   std::to_string(kServerListenerFd),
                                   "--keeper-fd",
                                   std::to_string(kServerKeeperFd),
                                   "--home-id",
                                   s.home_id,
                                   "--tenant",
                                   s.tenant,
                                   "--uid-base",
                                   std::to_string(s.uid_base),
                                   "--uid-ranges",
                                   s.uid_ranges,
                                   "--store-dir",
                                   s.store_directory,
                                   "--views-dir",
                                   s.views_directory,
                                   "--listen",
                                   s.listen_host,
                                   "--pki",
                                   s.pki_directory,
                                   "--name",
                                   s.node_name,
                                   "--pool",
                                   s.pool};
  if (s.cache_bytes > 0) argv.insert(argv.end(), {"--cache-bytes", std::to_string(s.cache_bytes)});
  if (s.cache_min_free_bytes > 0) {
    argv.insert(argv.end(), {"--cache-min-free-bytes", std::to_string(s.cache_min_free_bytes)});
  }
  if (s.cache_min_free_percent > 0) {
    argv.insert(argv.end(), {"--cache-min-free-percent", std::to_string(s.cache_min_free_percent)});
  }
  for (const std::string& setting : s.fuse) argv.insert(argv.end(), {"--fuse", setting});
  if (s.s3) argv.push_back("--s3");
  std::unique_ptr<FsClient> client(new FsClient(loop, path, std::move(events)));
  VRUN_ASSIGN(client->child_, ChildProcess::Spawn(loop, argv, {listener.get()}));
  VRUN_TRY(client->Connect());
  return client;
}

Result<std::unique_ptr<FsClient>> FsClient::Adopt(EventLoop* loop, const std::string& socket_path,
                                                  const std::set<uint64_t>& leases, const std::vector<FsRun>& runs,
                                                  Events events) {
  std::unique_ptr<FsClient> client(new FsClient(loop, socket_path, std::move(events)));
  client->leases_ = leases;
  for (const FsRun& run : runs) client->runs_[run.key] = run;
  VRUN_TRY(client->Connect());
  return client;
}

// The keeper holds the listening socket, so this succeeds also while no server runs.
Status FsClient::Connect() {
  VRUN_ASSIGN(socket_, ConnectUnix(path_));
  reader_ = FrameReader();
  writer_ = FrameWriter();
  writing_ = false;
  VRUN_TRY(SetNonBlocking(socket_.get(), true));
  VRUN_TRY(loop_->Add(socket_.get(), EPOLLIN, [this](uint32_t e) { OnReady(e); }));
  v1::FsRequest attach;
  attach.set_id(next_id_++);
  attach.mutable_attach()->mutable_leases()->Add(leases_.begin(), leases_.end());
  attach.mutable_attach()->set_program(BinaryDirectory() + "/vrund");
  for (const auto& [key, run] : runs_) {
    v1::AllowToken* allow = attach.mutable_attach()->add_runs();
    allow->set_home_id(run.home_id);
    allow->set_token(run.token);
    allow->set_job(key.job);
    allow->set_attempt(key.attempt);
  }
  writer_.Queue(attach.SerializeAsString());
  for (const auto& [id, waiting] : waiting_) writer_.Queue(waiting.request);
  if (cache_limit_) {
    v1::FsRequest limit;
    limit.set_id(next_id_++);
    limit.mutable_set_cache_limit()->set_bytes(*cache_limit_);
    writer_.Queue(limit.SerializeAsString());
  }
  OnReady(EPOLLOUT);
  return {};
}

FsClient::~FsClient() { Close(); }

void FsClient::WhenListening(std::function<void(const std::vector<std::string>&)> callback) {
  if (!addresses_.empty()) return callback(addresses_);
  when_listening_.push_back(std::move(callback));
}

void FsClient::AllowToken(const std::string& home_id, const std::string& token, const AttemptKey& key) {
  runs_[key] = {home_id, token, key};
  v1::FsRequest request;
  v1::AllowToken* allow = request.mutable_allow_token();
  allow->set_home_id(home_id);
  allow->set_token(token);
  allow->set_job(key.job);
  allow->set_attempt(key.attempt);
  Send(std::move(request), [](Result<v1::FsReply>, std::vector<UniqueFd>) {});
}

void FsClient::EndRun(const AttemptKey& key) {
  runs_.erase(key);
  const auto other = runs_.lower_bound({key.job, key.attempt, 0});
  if (other != runs_.end() && other->first.job == key.job && other->first.attempt == key.attempt) return;
  v1::FsRequest request;
  request.mutable_end_run()->set_job(key.job);
  request.mutable_end_run()->set_attempt(key.attempt);
  Send(std::move(request), [](Result<v1::FsReply>, std::vector<UniqueFd>) {});
}

void FsClient::OpenView(const std::string& tree, const std::string& apart, uint64_t lease,
                        std::function<void(Result<std::vector<UniqueFd>>)> done) {
  v1::FsRequest request;
  request.mutable_open_view()->set_tree(tree);
  request.mutable_open_view()->set_apart(apart);
  request.mutable_open_view()->set_lease(lease);
  const size_t mounts = apart.empty() ? 1 : 2;
  Send(std::move(request), [this, lease, done, mounts](Result<v1::FsReply> reply, std::vector<UniqueFd> fds) {
    if (!reply) return done(std::move(reply).error());
    if (!reply->has_view_opened() || fds.size() != mounts) {
      return done(Error(Code::kInternal, "file system server: an answer without a mount"));
    }
    leases_.insert(lease);
    done(std::move(fds));
  });
}

void FsClient::OpenLiveView(const std::string& tree, uint64_t serial, uint64_t lease,
                            std::function<void(Result<uint64_t>, std::vector<UniqueFd>)> done) {
  v1::FsRequest request;
  request.mutable_open_view()->set_tree(tree);
  request.mutable_open_view()->set_live(true);
  request.mutable_open_view()->set_serial(serial);
  request.mutable_open_view()->set_lease(lease);
  Send(std::move(request), [this, lease, done](Result<v1::FsReply> reply, std::vector<UniqueFd> fds) {
    if (!reply) return done(std::move(reply).error(), {});
    if (!reply->has_view_opened() || fds.size() != 1) {
      return done(Error(Code::kInternal, "file system server: an answer without a mount"), {});
    }
    leases_.insert(lease);
    done(reply->view_opened().view(), std::move(fds));
  });
}

void FsClient::PublishView(uint64_t lease, std::function<void(Result<v1::FsReply>)> done) {
  v1::FsRequest request;
  request.mutable_publish_view()->set_lease(lease);
  Send(std::move(request), [done](Result<v1::FsReply> reply, std::vector<UniqueFd>) {
    if (reply && !reply->has_view_published()) {
      return done(Error(Code::kInternal, "file system server: the reply does not match the request"));
    }
    done(std::move(reply));
  });
}

void FsClient::CloseView(uint64_t lease) {
  leases_.erase(lease);
  v1::FsRequest request;
  request.mutable_close_view()->set_lease(lease);
  Send(std::move(request), [](Result<v1::FsReply>, std::vector<UniqueFd>) {});
}

uint64_t FsClient::Cache(const v1::CacheRequest& request, std::function<void(const v1::CacheEvent&)> done) {
  v1::FsRequest message;
  *message.mutable_cache() = request;
  const uint64_t id = next_id_;
  Send(std::move(message), [done = std::move(done)](Result<v1::FsReply> reply, std::vector<UniqueFd>) {
    if (reply && reply->has_cache()) return done(reply->cache());
    v1::CacheEvent event;
    const Error error = reply ? Error(Code::kInternal, "file system server: the reply does not match the request")
                              : std::move(reply).error();
    event.mutable_error()->set_code(static_cast<int>(error.code()));
    event.mutable_error()->set_message(error.message());
    done(event);
  });
  return id;
}

void FsClient::CancelCache(uint64_t id) {
  if (waiting_.erase(id) == 0) return;
  v1::FsRequest request;
  request.set_cancel_cache(id);
  SendOneWay(std::move(request));
}

void FsClient::SetCacheLimit(uint64_t bytes) {
  cache_limit_ = bytes;
  v1::FsRequest request;
  request.mutable_set_cache_limit()->set_bytes(bytes);
  SendOneWay(std::move(request));
}

void FsClient::Presigned(const v1::PresignReply& reply) {
  v1::FsRequest request;
  *request.mutable_presigned() = reply;
  SendOneWay(std::move(request));
}

void FsClient::SendOneWay(v1::FsRequest request) {
  if (!socket_) return;
  request.set_id(next_id_++);
  writer_.Queue(request.SerializeAsString());
  OnReady(EPOLLOUT);
}

void FsClient::Stop() {
  v1::FsRequest request;
  request.mutable_stop();
  SendOneWay(std::move(request));
  if (child_) child_->Kill(SIGTERM);  // even while there is no server to read
}

void FsClient::Send(v1::FsRequest request, Callback done) {
  if (!socket_) return done(Error(Code::kUnavailable, "the file system server of this home is gone"), {});
  request.set_id(next_id_++);
  Waiting& waiting = waiting_[request.id()];
  waiting = {request.SerializeAsString(), std::move(done)};
  writer_.Queue(waiting.request);
  OnReady(EPOLLOUT);
}

void FsClient::OnReady(uint32_t events) {
  if (events & EPOLLOUT) {
    Result<bool> done = writer_.Flush(socket_.get());
    bool more = done.has_value() && !*done;
    if (more != writing_) loop_->Modify(socket_.get(), more ? EPOLLIN | EPOLLOUT : EPOLLIN);
    writing_ = more;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  Result<bool> open = reader_.ReadAvailable(socket_.get(), [this](Frame frame) { OnFrame(std::move(frame)); });
  if (open && *open) return;
  Close();
  // Its keeper starts the next server or is about to exit too; then connecting soon fails.
  if (Connect()) return;
  Close();
  // A callback may start another server and destroy *this.
  const auto waiting = std::exchange(waiting_, {});
  const auto closed = std::exchange(events_.on_closed, nullptr);
  const Error reason = failure_.value_or(Error(Code::kUnavailable, "the file system server of this home died"));
  for (auto& [id, asked] : waiting) asked.done(reason, {});
  if (closed) closed();
}

void FsClient::OnFrame(Frame frame) {
  v1::FsReply reply;
  if (!reply.ParseFromString(frame.bytes)) {
    LogError("file system server: a frame that does not parse");
    return;
  }
  if (reply.has_listening()) {
    const bool moved = !addresses_.empty() &&
                       (reply.listening().addresses_size() == 0 || addresses_[0] != reply.listening().addresses(0));
    if (moved) LogError("the file system server listens elsewhere than before: homes that use it will not find it");
    failure_.reset();
    addresses_.assign(reply.listening().addresses().begin(), reply.listening().addresses().end());
    for (auto& callback : std::exchange(when_listening_, {})) callback(addresses_);
    return;
  }
  if (reply.has_presign()) {
    if (events_.on_presign) events_.on_presign(reply.presign());
    return;
  }
  if (reply.has_content_lost()) {
    const v1::ContentLost& lost = reply.content_lost();
    if (events_.on_content_lost) {
      events_.on_content_lost(lost.path(), lost.reason(), {lost.leases().begin(), lost.leases().end()});
    }
    return;
  }
  if (reply.id() == 0 && reply.has_error()) {
    // The reason why the server cannot start; it exits now.
    failure_ = Error(static_cast<Code>(reply.error().code()), "file system server: " + reply.error().message());
    LogError("{}", Escape(failure_->message()));
    return;
  }
  if (reply.has_cache() && reply.cache().has_progress()) {
    auto it = waiting_.find(reply.id());
    if (it == waiting_.end()) return;
    const Callback tell = it->second.done;  // a copy, because the callback may cancel itself
    return tell(std::move(reply), {});
  }
  auto node = waiting_.extract(reply.id());
  if (node.empty()) return;
  if (reply.has_error()) {
    node.mapped().done(Error(static_cast<Code>(reply.error().code()), reply.error().message()), {});
  } else {
    node.mapped().done(std::move(reply), std::move(frame.fds));
  }
}

void FsClient::Close() {
  if (!socket_) return;
  loop_->Remove(socket_.get());
  socket_.Reset();
}

}  // namespace vrun::node
