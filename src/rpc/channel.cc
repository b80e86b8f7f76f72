// SPDX-License-Identifier: Apache-2.0
#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <climits>
#include <condition_variable>
#include <mutex>
#include <unordered_set>

#include "rpc/internal.h"
#include "rpc/stream_core.h"

namespace vrun::rpc {
namespace {

std::string TrailingCode(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  auto it = metadata.find(kCodeKey);
  return it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
}

// One stream; deletes itself when gRPC is done with it.
class ClientReactor final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public StreamCore::Transport {
 public:
  explicit ClientReactor(std::string where)
      : core_(std::make_shared<StreamCore>(StreamCore::Side::kClient, this)), where_(std::move(where)) {}

  std::shared_ptr<StreamCore> core() const { return core_; }

  void Open(grpc::GenericStub* stub, const std::string& method, Stream::Handler* handler) {
    // The call may end, and this object with it, before Start returns.
    std::shared_ptr<StreamCore> core = core_;
    stub->PrepareBidiStreamingCall(&context_, method, {}, this);
    AddHold();  // released by CloseOut: writes are started from outside of reactions
    StartCall();
    core->Start(handler);
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
  void OnWritesDoneDone(bool ok) override { core_->WriteDone(ok); }
  void OnDone(const grpc::Status& status) override {
    core_->Done(FromGrpcStatus(status, TrailingCode(context_), where_));
    delete this;
  }

  void StartRead() override { ClientBidiReactor::StartRead(&read_); }
  void StartWrite(std::string message) override {
    write_ = ToBuffer(std::move(message));
    ClientBidiReactor::StartWrite(&write_);
  }
  void StartWritesDone() override { ClientBidiReactor::StartWritesDone(); }
  void CloseOut(const Error&) override { RemoveHold(); }
  void TryCancel() override { context_.TryCancel(); }

 private:
  const std::shared_ptr<StreamCore> core_;
  const std::string where_;
  grpc::ClientContext context_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer write_;
};

struct UnaryCall {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  std::function<void(Result<std::string>)> done;
};

// The calls that are under way, so that the channel's destructor can end them.
struct CallRegistry {
  std::mutex mu;
  std::condition_variable changed;
  std::unordered_set<UnaryCall*> open;
  int elsewhere = 0;  // callbacks that run now
  bool closing = false;
};

// Which channel's callback this thread is in, if any: its destructor must not wait for itself.
thread_local CallRegistry* running_callback_of = nullptr;

class GrpcChannel final : public Channel {
 public:
  GrpcChannel(std::string address, std::string peer, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)),
        where_(peer + " at " + address_),
        stub_(channel),
        calls_(std::make_shared<CallRegistry>()) {
    channel->GetState(/*try_to_connect=*/true);
  }

  ~GrpcChannel() override {
    std::unique_lock lock(calls_->mu);
    calls_->closing = true;
    for (UnaryCall* call : calls_->open) call->context.TryCancel();
    int own = running_callback_of == calls_.get() ? 1 : 0;
    calls_->changed.wait(lock, [&] { return calls_->open.empty() && calls_->elsewhere == own; });
  }

  void Call(const std::string& method, std::string request, int64_t timeout_micros,
            std::function<void(Result<std::string>)> done) override {
    auto* call = new UnaryCall;
    call->request = ToBuffer(std::move(request));
    call->done = std::move(done);
    if (timeout_micros > 0) {
      call->context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(timeout_micros, GPR_TIMESPAN)));
    }
    {
      std::lock_guard lock(calls_->mu);
      calls_->open.insert(call);
    }
    stub_.UnaryCall(&call->context, method, {}, &call->request, &call->response,
                    [call, calls = calls_, where = where_](grpc::Status status) { Answer(call, *calls, where, status); });
  }

  std::unique_ptr<Stream> OpenStream(const std::string& method, Stream::Handler* handler) override {
    auto* reactor = new ClientReactor(where_);
    std::shared_ptr<StreamCore> core = reactor->core();
    reactor->Open(&stub_, method, handler);
    return MakeStream(std::move(core));
  }

  const std::string& address() const override { return address_; }

 private:
  static void Answer(UnaryCall* raw, CallRegistry& calls, const std::string& where, const grpc::Status& status) {
    std::unique_ptr<UnaryCall> call(raw);
    bool closing = false;
    {
      std::lock_guard lock(calls.mu);
      calls.open.erase(raw);
      ++calls.elsewhere;
      closing = calls.closing;
    }
    CallRegistry* before = std::exchange(running_callback_of, &calls);
    if (status.ok()) {
      call->done(FromBuffer(call->response));
    } else if (closing && status.error_code() == grpc::StatusCode::CANCELLED) {
      call->done(Error(Code::kAborted, where + ": the connection was closed"));
    } else {
      call->done(FromGrpcStatus(status, TrailingCode(call->context), where));
    }
    call.reset();  // also what the callback holds, before the destructor of the channel goes on
    running_callback_of = before;
    std::lock_guard lock(calls.mu);
    --calls.elsewhere;
    calls.changed.notify_all();
  }

  const std::string address_;
  const std::string where_;
  grpc::GenericStub stub_;
  const std::shared_ptr<CallRegistry> calls_;
};

}  // namespace

Result<std::unique_ptr<Channel>> Channel::Dial(const std::string& address, const Credentials& mine,
                                               const std::string& peer) {
  UseOurLog();
  VRUN_TRY(CheckCredentials(mine));
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = mine.ca;
  tls.pem_cert_chain = mine.certificate;
  tls.pem_private_key = mine.key;

  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride(peer + ".vrun");
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMillis);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, INT_MAX);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Despite its name this is the time that one attempt to connect is given.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);

  auto channel = grpc::CreateCustomChannel(address, grpc::SslCredentials(tls), args);
  return std::unique_ptr<Channel>(std::make_unique<GrpcChannel>(address, peer, std::move(channel)));
}

}  // namespace vrun::rpc
