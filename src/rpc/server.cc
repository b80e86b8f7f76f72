// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>

#include "base/clock.h"
#include "base/escape.h"
#include "base/thread/mutex.h"
#include "rpc/acceptor.h"
#include "rpc/internal.h"
#include "rpc/poller.h"
#include "rpc/strangers.h"
#include "rpc/stream_core.h"
#include "rpc/tls.h"

namespace vrun::rpc {
namespace {

// One thread reads and decrypts while the other runs a handler.
constexpr int kServerThreads = 2;
// Calls that can arrive at once without waiting for a thread; more just wait.
constexpr int kWaitingCalls = 8;

// A connection that does not say who it is for so long is closed.
constexpr int kHandshakeMillis = 10'000;
// Where strangers may call, a connection without a call for so long is closed, whoever's it is: until the first call
// nobody knows. Homes call every 20 s, and nodes keep a stream open.
constexpr int kIdleMillis = 60'000;
// Where TLS asks for a certificate, whoever is still connected after that has one.
constexpr int64_t kLetInMicros = 2 * 1000 * int64_t{kHandshakeMillis};

void MarkAsAnswer(grpc::GenericServerContext* context, const Error& error) {
  if (error.code() != Code::kOk) {
    context->AddTrailingMetadata(kCodeKey, std::to_string(static_cast<int>(error.code())));
  }
}

// Exactly one identity, from the certificate that TLS has verified.
Result<Peer> PeerOf(const grpc::GenericServerContext& context) {
  Peer peer;
  int found = 0;
  auto auth = context.auth_context();
  if (auth && auth->IsPeerAuthenticated()) {
    for (const grpc::string_ref& san : auth->FindPropertyValues("x509_subject_alternative_name")) {
      if (ParseIdentity({san.data(), san.size()}, &peer)) ++found;
    }
  }
  if (found != 1) {
    return Error(Code::kDenied, "the caller's certificate names no role: it was not made by this cluster");
  }
  peer.address = context.peer();
  return peer;
}

class GrpcServer;

// One call: accepted, served and finished; deletes itself when its last operation has completed. A unary call is one
// message in each direction, so both kinds use the same generic stream.
class ServerCall final : public CountedCall, public StreamCore::Transport {
 public:
  ServerCall(GrpcServer* server, grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue);
  void Abort() override { context_.TryCancel(); }
  // Null: it has none, or the call has not begun.
  const Peer* peer() const { return known_.load(std::memory_order_acquire) ? &peer_ : nullptr; }

  int64_t stranger_since() const { return stranger_since_.load(std::memory_order_acquire); }

  void StartRead() override {
    Begin();
    call_.Read(&read_, read_done_.Arm());
  }
  void StartWrite(std::string message) override {
    Begin();
    write_ = ToBuffer(std::move(message));
    call_.Write(write_, write_done_.Arm());
  }
  void StartWritesDone() override {}
  void CloseOut(const Error& reason) override {  // its Begin is in Dispatch
    MarkAsAnswer(&context_, reason);
    call_.Finish(ToGrpcStatus(reason), finished_.Arm());
  }
  void TryCancel() override { context_.TryCancel(); }

 private:
  // Outlives the call, for a reply that comes after its end.
  struct ReplyLink {
    Mutex mu;
    ServerCall* call VRUN_GUARDED_BY(mu) = nullptr;  // until answered: a call stays until it is finished

    static void Answer(const std::shared_ptr<ReplyLink>& link, Result<std::string> answer) {
      ServerCall* call = nullptr;
      {
        MutexLock lock(link->mu);
        call = std::exchange(link->call, nullptr);
      }
      if (call != nullptr) call->FinishUnary(std::move(answer));
    }
  };

  void OnAccepted(bool ok);
  void Dispatch();
  void DispatchUnary(const Server::UnaryHandler* handler);
  void ServeUnary(bool ok);
  void FinishUnary(Result<std::string> answer) {
    if (!answer) return CloseOut(answer.error());
    write_ = ToBuffer(*std::move(answer));
    call_.WriteAndFinish(write_, {}, grpc::Status::OK, finished_.Arm());
  }
  void OnRead(bool ok) {
    if (unary_ != nullptr) {
      ServeUnary(ok);
    } else if (ok) {
      std::string message = FromBuffer(read_);
      read_.Clear();
      core_->ReadDone(std::move(message));
    } else {
      core_->ReadDone(std::nullopt);
    }
    End();
  }
  void OnWritten(bool ok) {
    write_.Clear();
    core_->WriteDone(ok);
    End();
  }
  void OnFinished(bool) { End(); }
  // gRPC considers the call over, in order or not. May run concurrently with OnAccepted: if the core has not started or
  // the link is not set, this does nothing, and the first read finds the end.
  void OnCallOver(bool) {
    if (context_.IsCancelled()) {
      core_->Cancelled();
      ReplyLink::Answer(link_, Error(Code::kAborted, "the call was cancelled"));
    }
    End();
  }
  void Over() override;

  GrpcServer* const server_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter call_{&context_};
  const std::shared_ptr<ReplyLink> link_ = std::make_shared<ReplyLink>();
  const std::shared_ptr<StreamCore> core_ = std::make_shared<StreamCore>(StreamCore::Side::kServer, this);
  const Server::UnaryHandler* unary_ = nullptr;  // for a unary call
  Peer peer_;
  std::shared_ptr<void> place_;              // of a stranger's call
  std::atomic<int64_t> stranger_since_ = 0;  // monotonic; 0: it is none
  std::atomic<bool> known_ = false;          // peer_ is set, and changes no more
  grpc::ByteBuffer read_;
  grpc::ByteBuffer write_;
  MemberTag<ServerCall, &ServerCall::OnAccepted> accepted_tag_{this};
  MemberTag<ServerCall, &ServerCall::OnRead> read_done_{this};
  MemberTag<ServerCall, &ServerCall::OnWritten> write_done_{this};
  MemberTag<ServerCall, &ServerCall::OnFinished> finished_{this};
  MemberTag<ServerCall, &ServerCall::OnCallOver> over_tag_{this};
};

class GrpcServer final : public Server {
 public:
  explicit GrpcServer(Credentials mine) : mine_(std::move(mine)) { PrepareGrpc(); }

  ~GrpcServer() override {
    if (!server_) return;
    VRUN_CHECK(!poller_->OnThisThread());
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    acceptor_->Stop();  // gRPC would leave a connection open that comes now
    // A deadline in the past cancels every call at once.
    server_->Shutdown(gpr_time_0(GPR_CLOCK_MONOTONIC));
    calls_.WaitEmpty();
    server_.reset();
    poller_.reset();
  }

  void Unary(const std::string& method, UnaryHandler handler) override { unary_[method] = std::move(handler); }
  void Streaming(const std::string& method, StreamHandler handler) override { streaming_[method] = std::move(handler); }
  void Stranger(const std::string& method, UnaryHandler handler) override { strangers_[method] = std::move(handler); }
  void Admit(std::function<Status(const Peer&)> admit) override { admit_ = std::move(admit); }
  void EndCalls(const std::function<bool(const Peer&)>& of) override {
    calls_.AbortIf([&](const CountedCall* call) {
      const Peer* peer = static_cast<const ServerCall*>(call)->peer();
      return peer != nullptr && of(*peer);
    });
  }
  std::vector<std::string> methods() const override {
    std::set<std::string> names;
    for (const auto* handlers : {&unary_, &strangers_}) {
      for (const auto& [name, handler] : *handlers) names.insert(name);
    }
    for (const auto& [name, handler] : streaming_) names.insert(name);
    return {names.begin(), names.end()};
  }

  Result<int> Start(const std::string& address) override {
    VRUN_ASSIGN(const Credentials now, ReadAgain(mine_));
    VRUN_ASSIGN(auto acceptor, Acceptor::Listen(address));
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMillis);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
    if (!strangers_.empty()) builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMillis);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, kEstimateWindow);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
    connections_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, ServerTls(now, !strangers_.empty()));
    builder.RegisterAsyncGenericService(&service_);
    auto queue = builder.AddCompletionQueue();
    queue_ = queue.get();
    server_ = builder.BuildAndStart();
    if (!server_) {
      Poller drain(std::move(queue), 1);
      return Error(Code::kUnavailable, "listen on " + Escape(address) + ": gRPC does not start: see the log");
    }
    poller_.emplace(std::move(queue), kServerThreads);
    for (int i = 0; i < kWaitingCalls; ++i) WaitForCall();
    acceptor_ = std::move(acceptor);
    acceptor_->Start(Acceptor::Bounds::OfProcess(strangers_.empty() ? kLetInMicros : 0), [this](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = fd;
      connections_->HandleNewConnection(&connection);
    });
    return acceptor_->port();
  }

  // --- for ServerCall ---
  void WaitForCall() {
    MutexLock lock(mu_);
    if (!stopping_) new ServerCall(this, &service_, queue_);
  }
  CallSet* calls() { return &calls_; }
  Strangers* strangers() { return &open_strangers_; }
  void Known(const std::string& address) { acceptor_->Known(address); }
  void EndOldStrangers() {
    const int64_t now = MonotonicMicros();
    calls_.AbortIf([now](const CountedCall* call) {
      const int64_t since = static_cast<const ServerCall*>(call)->stranger_since();
      return since != 0 && now - since > Strangers::kMostMicros;
    });
  }
  const UnaryHandler* FindUnary(const std::string& method) const { return Find(unary_, method); }
  const UnaryHandler* FindStranger(const std::string& method) const { return Find(strangers_, method); }
  const StreamHandler* FindStreaming(const std::string& method) const { return Find(streaming_, method); }
  Status Admits(const Peer& peer) const { return admit_ ? admit_(peer) : Status(); }

 private:
  template <typename Handler>
  static const Handler* Find(const std::map<std::string, Handler>& handlers, const std::string& method) {
    auto it = handlers.find(method);
    return it == handlers.end() ? nullptr : &it->second;
  }

  const Credentials mine_;
  std::function<Status(const Peer&)> admit_;
  std::map<std::string, UnaryHandler> unary_;
  std::map<std::string, UnaryHandler> strangers_;
  Strangers open_strangers_;
  std::map<std::string, StreamHandler> streaming_;
  Mutex mu_;
  bool stopping_ VRUN_GUARDED_BY(mu_) = false;
  CallSet calls_;
  grpc::AsyncGenericService service_;
  grpc::ServerCompletionQueue* queue_ = nullptr;
  std::optional<Poller> poller_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<Acceptor> acceptor_;
};

ServerCall::ServerCall(GrpcServer* server, grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue)
    : server_(server) {
  server_->calls()->Add(this);
  Begin();  // accepted_tag_
  Begin();  // over_tag_
  context_.AsyncNotifyWhenDone(over_tag_.Arm());
  service->RequestCall(&context_, &call_, queue, queue, accepted_tag_.Arm());
}

void ServerCall::OnAccepted(bool ok) {
  if (!ok) {  // the server stops; a call that never began has no end
    End();
    return End();
  }
  server_->WaitForCall();
  Dispatch();
  End();
}

void ServerCall::Dispatch() {
  Begin();  // finished_: a thread that is about to write or to end the call does not find it deleted
  if (const Server::UnaryHandler* handler = server_->FindStranger(context_.method())) {
    peer_ = Peer{"", "", context_.peer()};
    Result<std::shared_ptr<void>> place = server_->strangers()->Take(peer_.address);
    if (!place) {
      server_->EndOldStrangers();
      return core_->Refuse(std::move(place).error());
    }
    place_ = *std::move(place);
    stranger_since_.store(MonotonicMicros(), std::memory_order_release);
    return DispatchUnary(handler);
  }
  Result<Peer> peer = PeerOf(context_);
  if (!peer) return core_->Refuse(std::move(peer).error());
  peer_ = *std::move(peer);
  known_.store(true, std::memory_order_release);
  if (Status admitted = server_->Admits(peer_); !admitted) return core_->Refuse(std::move(admitted).error());
  server_->Known(peer_.address);
  if (const Server::UnaryHandler* handler = server_->FindUnary(context_.method())) return DispatchUnary(handler);
  if (const Server::StreamHandler* accept = server_->FindStreaming(context_.method())) {
    Result<Stream::Handler*> handler = (*accept)(peer_, MakeStream(core_));
    return handler ? core_->Start(*handler) : core_->Refuse(std::move(handler).error());
  }
  core_->Refuse(Error(Code::kUnsupported, "method " + Escape(context_.method()) +
                                              ": not served here: the other side may be a newer version"));
}

void ServerCall::DispatchUnary(const Server::UnaryHandler* handler) {
  unary_ = handler;
  {
    MutexLock lock(link_->mu);
    link_->call = this;
  }
  StartRead();
}

void ServerCall::ServeUnary(bool ok) {
  if (!ok) return ReplyLink::Answer(link_, Error(Code::kInvalid, "the call has no request"));
  if (place_ && read_.Length() > Strangers::kMostRequestBytes) {
    return ReplyLink::Answer(link_, Error(Code::kInvalid, "the request is larger than it can be"));
  }
  // When the last copy of the reply function is destroyed without a call, this answers the call.
  std::shared_ptr<void> dropped(nullptr, [link = link_](void*) {
    ReplyLink::Answer(link, Error(Code::kAborted, "the request was dropped: the server is stopping"));
  });
  std::string request = FromBuffer(read_);
  read_.Clear();
  (*unary_)(peer_, std::move(request),
            [link = link_, dropped](Result<std::string> answer) { ReplyLink::Answer(link, std::move(answer)); });
}

void ServerCall::Over() {
  core_->Done(Error(Code::kOk, ""));
  server_->calls()->Remove(this);
  delete this;
}

}  // namespace

std::unique_ptr<Server> Server::Create(const Credentials& mine) { return std::make_unique<GrpcServer>(mine); }

}  // namespace vrun::rpc
