// SPDX-License-Identifier: Apache-2.0
#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <climits>

#include "base/thread/mutex.h"
#include "rpc/internal.h"
#include "rpc/poller.h"
#include "rpc/stream_core.h"
#include "rpc/tls.h"

namespace vrun::rpc {
namespace {

std::string TrailingCode(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  auto it = metadata.find(kCodeKey);
  return it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
}

// One stream; deletes itself when its last operation has completed.
class ClientStream final : public CountedCall, public StreamCore::Transport {
 public:
  ClientStream(std::string where, CallSet* calls)
      : core_(std::make_shared<StreamCore>(StreamCore::Side::kClient, this)), where_(std::move(where)), calls_(calls) {
    calls_->Add(this);
  }

  std::shared_ptr<StreamCore> core() const { return core_; }

  void Open(grpc::GenericStub* stub, grpc::CompletionQueue* queue, const std::string& method,
            Stream::Handler* handler) {
    Begin();  // finished_: a thread that is about to write or to end the call does not find it deleted
    Begin();  // the call may be over before Start returns
    call_ = stub->PrepareCall(&context_, method, queue);
    Begin();
    call_->StartCall(started_.Arm());
    core_->Start(handler);
    End();
  }

  void Abort() override { core_->Cancel(Error(Code::kAborted, where_ + ": the connection was closed")); }

  void StartRead() override {
    Begin();
    call_->Read(&read_, read_done_.Arm());
  }
  void StartWrite(std::string message) override {
    Begin();
    write_ = ToBuffer(std::move(message));
    call_->Write(write_, write_done_.Arm());
  }
  void StartWritesDone() override {
    Begin();
    call_->WritesDone(write_done_.Arm());
  }
  void CloseOut(const Error&) override { call_->Finish(&status_, finished_.Arm()); }  // its Begin is in Open
  void TryCancel() override { context_.TryCancel(); }

 private:
  void OnStarted(bool ok) {
    core_->WriteDone(ok);
    End();
  }
  void OnRead(bool ok) {
    if (ok) {
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
  void Over() override {
    core_->Done(FromGrpcStatus(status_, TrailingCode(context_), where_));
    CallSet* calls = calls_;
    calls->Remove(this);
    delete this;
  }

  const std::shared_ptr<StreamCore> core_;
  const std::string where_;
  CallSet* const calls_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer write_;
  grpc::Status status_;
  MemberTag<ClientStream, &ClientStream::OnStarted> started_{this};
  MemberTag<ClientStream, &ClientStream::OnRead> read_done_{this};
  MemberTag<ClientStream, &ClientStream::OnWritten> write_done_{this};
  MemberTag<ClientStream, &ClientStream::OnFinished> finished_{this};
};

class ClientUnary final : public CountedCall {
 public:
  ClientUnary(std::string where, CallSet* calls, std::function<void(Result<std::string>)> done)
      : where_(std::move(where)), calls_(calls), done_(std::move(done)) {
    calls_->Add(this);
  }

  void Open(grpc::GenericStub* stub, grpc::CompletionQueue* queue, const std::string& method, std::string request,
            int64_t timeout_micros) {
    if (timeout_micros > 0) {
      // Monotonic clock: a step of the wall clock must not end calls.
      context_.set_deadline(
          gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(timeout_micros, GPR_TIMESPAN)));
    }
    Begin();
    call_ = stub->PrepareUnaryCall(&context_, method, ToBuffer(std::move(request)), queue);
    call_->StartCall();
    call_->Finish(&response_, &status_, finished_.Arm());
  }

  void Abort() override {
    aborted_ = true;
    context_.TryCancel();
  }

 private:
  void OnFinished(bool) { End(); }
  void Over() override {
    if (status_.ok()) {
      done_(FromBuffer(response_));
    } else if (aborted_ && status_.error_code() == grpc::StatusCode::CANCELLED) {
      done_(Error(Code::kAborted, where_ + ": the connection was closed"));
    } else {
      done_(FromGrpcStatus(status_, TrailingCode(context_), where_));
    }
    done_ = nullptr;  // what it holds is released before the channel's destructor continues
    CallSet* calls = calls_;
    calls->Remove(this);
    delete this;
  }

  const std::string where_;
  CallSet* const calls_;
  std::function<void(Result<std::string>)> done_;
  std::atomic<bool> aborted_ = false;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  MemberTag<ClientUnary, &ClientUnary::OnFinished> finished_{this};
};

// Keeps an idle connection polled and connected. Without a watch gRPC polls an idle connection only every 5 s (too late
// for the peer's keepalive) and reconnects only at the next call. Configures new connections.
class ConnectionWatch {
 public:
  ConnectionWatch(grpc::Channel* channel, grpc::CompletionQueue* queue, const std::string& address)
      : channel_(channel), queue_(queue), address_(address) {
    Arm();
  }

  // The channel is about to be destroyed, which ends the watch.
  void Stop() {
    MutexLock lock(mu_);
    channel_ = nullptr;
  }
  void WaitEnd() {
    MutexLock lock(mu_);
    ended_changed_.wait(lock, [this]() VRUN_REQUIRES(mu_) { return ended_; });
  }

 private:
  void Arm() {
    const grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) KeepKernelQueueShort(address_);
    channel_->NotifyOnStateChange(state, gpr_inf_future(GPR_CLOCK_MONOTONIC), queue_, changed_.Arm());
  }
  void OnChange(bool) {
    MutexLock lock(mu_);
    if (channel_ != nullptr) return Arm();
    ended_ = true;
    ended_changed_.notify_all();
  }

  Mutex mu_;
  CondVar ended_changed_;
  bool ended_ VRUN_GUARDED_BY(mu_) = false;
  grpc::Channel* channel_;
  grpc::CompletionQueue* const queue_;
  const std::string address_;
  MemberTag<ConnectionWatch, &ConnectionWatch::OnChange> changed_{this};
};

class GrpcChannel final : public Channel {
 public:
  GrpcChannel(std::string address, const std::string& peer, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)),
        where_(peer + " at " + address_),
        poller_(std::make_unique<grpc::CompletionQueue>(), 1),
        channel_(std::move(channel)),
        stub_(std::make_unique<grpc::GenericStub>(channel_)),
        watch_(channel_.get(), poller_.queue(), address_) {}

  ~GrpcChannel() override {
    VRUN_CHECK(!poller_.OnThisThread());
    calls_.AbortAll();
    calls_.WaitEmpty();
    watch_.Stop();
    stub_.reset();
    channel_.reset();
    watch_.WaitEnd();
  }

  void Call(const std::string& method, std::string request, int64_t timeout_micros,
            std::function<void(Result<std::string>)> done) override {
    auto* call = new ClientUnary(where_, &calls_, std::move(done));
    call->Open(stub_.get(), poller_.queue(), method, std::move(request), timeout_micros);
  }

  std::unique_ptr<Stream> OpenStream(const std::string& method, Stream::Handler* handler) override {
    auto* stream = new ClientStream(where_, &calls_);
    std::shared_ptr<StreamCore> core = stream->core();
    stream->Open(stub_.get(), poller_.queue(), method, handler);
    return MakeStream(std::move(core));
  }

  const std::string& address() const override { return address_; }
  bool failing() const override { return channel_->GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE; }

 private:
  const std::string address_;
  const std::string where_;
  CallSet calls_;
  Poller poller_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
  ConnectionWatch watch_;
};

bool HasOthers(const std::string& address) { return address.find(',') != std::string::npos; }

// Of several addresses, as of an active controller and one that stands by, gRPC takes the first that answers.
std::string TargetOf(const std::string& address) { return HasOthers(address) ? "ipv4:" + address : address; }

}  // namespace

Result<std::unique_ptr<Channel>> Channel::Dial(const std::string& address, const Credentials& mine,
                                               const std::string& peer, std::function<bool(const Peer&)> admit) {
  PrepareGrpc();
  Credentials now = mine;
  if (!mine.certificate.empty() || !mine.key.empty()) {
    VRUN_ASSIGN(now, ReadAgain(mine));
  }

  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride(peer + ".vrun");
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  const Patience& patience = HasOthers(address) ? kPatienceWithOthers : kPatienceAlone;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, patience.ping_millis);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, patience.answer_millis);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, INT_MAX);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Despite its name, this is the timeout of one connection attempt. It grows to the back-off of 2 s where connecting
  // takes longer.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, patience.connect_millis);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, kEstimateWindow);
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);

  auto channel = grpc::CreateCustomChannel(TargetOf(address), ClientTls(now, peer, std::move(admit)), args);
  return std::unique_ptr<Channel>(std::make_unique<GrpcChannel>(address, peer, std::move(channel)));
}

}  // namespace vrun::rpc
