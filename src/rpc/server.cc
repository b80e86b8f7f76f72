// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <map>
#include <mutex>

#include "base/escape.h"
#include "base/log.h"
#include "rpc/internal.h"
#include "rpc/stream_core.h"

namespace vrun::rpc {
namespace {

void MarkAsAnswer(grpc::CallbackServerContext* context, const Error& error) {
  if (error.code() != Code::kOk) {
    context->AddTrailingMetadata(kCodeKey, std::to_string(static_cast<int>(error.code())));
  }
}

class ServerStreamReactor final : public grpc::ServerGenericBidiReactor, public StreamCore::Transport {
 public:
  explicit ServerStreamReactor(grpc::CallbackServerContext* context)
      : core_(std::make_shared<StreamCore>(StreamCore::Side::kServer, this)), context_(context) {}

  void Open(const Server::StreamHandler& accept, const Peer& peer) {
    Result<Stream::Handler*> handler = accept(peer, MakeStream(core_));
    if (handler) {
      core_->Start(*handler);
    } else {
      core_->Refuse(std::move(handler).error());
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return core_->ReadDone(std::nullopt);
    std::string message = FromBuffer(read_);
    read_.Clear();
    core_->ReadDone(std::move(message));
  }
  void OnWriteDone(bool ok) override {
    write_.Clear();
    core_->WriteDone(ok);
  }
  void OnCancel() override { core_->Cancelled(); }
  void OnDone() override {
    core_->Done(Error(Code::kOk, ""));
    delete this;
  }

  void StartRead() override { ServerBidiReactor::StartRead(&read_); }
  void StartWrite(std::string message) override {
    write_ = ToBuffer(std::move(message));
    ServerBidiReactor::StartWrite(&write_);
  }
  void StartWritesDone() override {}
  void CloseOut(const Error& reason) override {
    MarkAsAnswer(context_, reason);
    ServerBidiReactor::Finish(ToGrpcStatus(reason));
  }
  void TryCancel() override { context_->TryCancel(); }

 private:
  const std::shared_ptr<StreamCore> core_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer write_;
};

// A unary call, read and answered through the same generic reactor.
class ServerUnaryReactor final : public grpc::ServerGenericBidiReactor {
 public:
  ServerUnaryReactor(grpc::CallbackServerContext* context, const Server::UnaryHandler* handler, Peer peer)
      : link_(std::make_shared<Link>()), context_(context), handler_(handler), peer_(std::move(peer)) {
    link_->reactor = this;
  }

  void Open() { StartRead(&read_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Link::Answer(link_, Error(Code::kInvalid, "the call has no request"));
      return;
    }
    // The last copy of the reply function that goes without having been called answers the call.
    std::shared_ptr<void> dropped(nullptr, [link = link_](void*) {
      Link::Answer(link, Error(Code::kAborted, "the request was dropped: the server is stopping"));
    });
    std::string request = FromBuffer(read_);
    read_.Clear();
    (*handler_)(peer_, std::move(request), [link = link_, dropped](Result<std::string> answer) {
      Link::Answer(link, std::move(answer));
    });
  }
  void OnCancel() override { Link::Answer(link_, Error(Code::kAborted, "the call was cancelled")); }
  void OnDone() override { delete this; }

 private:
  // What outlives the reactor when a reply comes after the call is over.
  struct Link {
    std::mutex mu;
    ServerUnaryReactor* reactor = nullptr;  // until answered: a reactor stays until its Finish

    static void Answer(const std::shared_ptr<Link>& link, Result<std::string> answer) {
      ServerUnaryReactor* reactor = nullptr;
      {
        std::lock_guard lock(link->mu);
        reactor = std::exchange(link->reactor, nullptr);
      }
      if (reactor == nullptr) return;
      if (answer) {
        reactor->write_ = ToBuffer(*std::move(answer));
        reactor->StartWriteAndFinish(&reactor->write_, {}, grpc::Status::OK);
      } else {
        MarkAsAnswer(reactor->context_, answer.error());
        reactor->Finish(ToGrpcStatus(answer.error()));
      }
    }
  };

  const std::shared_ptr<Link> link_;
  grpc::CallbackServerContext* const context_;
  const Server::UnaryHandler* const handler_;
  const Peer peer_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer write_;
};

class RefusingReactor final : public grpc::ServerGenericBidiReactor {
 public:
  RefusingReactor(grpc::CallbackServerContext* context, const Error& error) {
    MarkAsAnswer(context, error);
    Finish(ToGrpcStatus(error));
  }
  void OnDone() override { delete this; }
};

// Exactly one identity, from the certificate that TLS has verified.
Result<Peer> PeerOf(const grpc::CallbackServerContext& context) {
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

class GrpcServer final : public Server, private grpc::CallbackGenericService {
 public:
  explicit GrpcServer(Credentials mine) : mine_(std::move(mine)) { UseOurLog(); }

  ~GrpcServer() override {
    if (!server_) return;
    // A deadline that has passed cancels every call at once; Wait returns after the last reaction.
    server_->Shutdown(gpr_time_0(GPR_CLOCK_MONOTONIC));
    server_->Wait();
    server_.reset();
  }

  void Unary(const std::string& method, UnaryHandler handler) override { unary_[method] = std::move(handler); }
  void Streaming(const std::string& method, StreamHandler handler) override { streaming_[method] = std::move(handler); }

  Result<int> Start(const std::string& address) override {
    VRUN_TRY(CheckCredentials(mine_));
    grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = mine_.ca;
    tls.pem_key_cert_pairs.push_back({mine_.key, mine_.certificate});

    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    // Without this a second server could bind the same port and take half of the calls.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMillis);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    int port = 0;
    builder.AddListeningPort(address, grpc::SslServerCredentials(tls), &port);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      server_.reset();
      return Error(Code::kUnavailable, "listen on " + Escape(address) +
                                           ": the port is in use or the address is not one of this host: "
                                           "stop what uses it or choose another");
    }
    return port;
  }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    Result<Peer> peer = PeerOf(*context);
    if (!peer) return new RefusingReactor(context, peer.error());
    if (auto it = unary_.find(context->method()); it != unary_.end()) {
      auto* reactor = new ServerUnaryReactor(context, &it->second, *peer);
      reactor->Open();
      return reactor;
    }
    if (auto it = streaming_.find(context->method()); it != streaming_.end()) {
      auto* reactor = new ServerStreamReactor(context);
      reactor->Open(it->second, *peer);
      return reactor;
    }
    return new RefusingReactor(context,
                               Error(Code::kUnsupported, "method " + Escape(context->method()) +
                                                             ": not served here: the other side may be a newer version"));
  }

  const Credentials mine_;
  std::map<std::string, UnaryHandler> unary_;
  std::map<std::string, StreamHandler> streaming_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<Server> Server::Create(const Credentials& mine) { return std::make_unique<GrpcServer>(mine); }

}  // namespace vrun::rpc
