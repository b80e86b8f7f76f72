// SPDX-License-Identifier: Apache-2.0
#include "home/links/controller_client.h"

#include "base/escape.h"

namespace vrun::home {
namespace {
constexpr int64_t kCallTimeout = 10'000'000;
}

void ControllerClient::Use(const std::string& address, const rpc::Credentials& credentials) {
  // A certificate that replaces one of the same key is for new connections.
  if (channel_ && address == address_ && credentials.key == credentials_.key && credentials.ca == credentials_.ca) {
    return;
  }
  auto channel = rpc::Channel::Dial(address, credentials, "controller");
  address_ = address;
  credentials_ = credentials;
  if (!channel) return UseNone(channel.error().With("controller " + Escape(address)));
  channel_ = std::move(*channel);
  error_ = "not tried yet";
}

void ControllerClient::UseNone(Error why_not) {
  channel_.reset();
  connected_ = false;
  error_ = why_not.message();
  why_not_ = std::move(why_not);
}

void ControllerClient::Send(const std::string& method, std::string request, int64_t timeout_micros,
                            std::function<void(Result<std::string>)> done) {
  if (!channel_) {
    loop_->Post([alive = alive_, done = std::move(done), error = why_not_] {
      if (*alive) done(error);
    });
    return;
  }
  channel_->Call((method.find('/') == std::string::npos ? "/vrun.v1.Control/" : "/vrun.v1.") + method,
                 std::move(request), timeout_micros,
                 [this, loop = loop_, alive = alive_, done = std::move(done)](Result<std::string> reply) mutable {
                   loop->Post([this, alive, done = std::move(done), reply = std::move(reply)]() mutable {
                     if (!*alive) return;
                     connected_ = reply || reply.error().code() != Code::kUnavailable;
                     error_ = connected_ ? "" : reply.error().message();
                     done(std::move(reply));
                   });
                 });
}

void ControllerClient::Submit(const v1::SubmitRequest& request, std::function<void(Result<v1::SubmitReply>)> done) {
  Call<v1::SubmitRequest, v1::SubmitReply>("Submit", request, kCallTimeout, std::move(done));
}

void ControllerClient::Cancel(uint64_t job, int signal, std::function<void(Result<v1::CancelReply>)> done) {
  v1::CancelRequest request;
  request.set_job(job);
  request.set_signal(signal);
  Call<v1::CancelRequest, v1::CancelReply>("Cancel", request, kCallTimeout, std::move(done));
}

void ControllerClient::Get(uint64_t job, std::optional<uint32_t> element,
                           std::function<void(Result<v1::GetReply>)> done) {
  v1::GetRequest request;
  request.set_job(job);
  if (element) request.set_element(*element);
  Call<v1::GetRequest, v1::GetReply>("Get", request, kCallTimeout, std::move(done));
}

std::unique_ptr<WatchStream> ControllerClient::Watch(uint64_t job, uint32_t pod, WatchStream::Events events) {
  if (!channel_) return nullptr;
  auto stream = WatchStream::Open(loop_, channel_.get(), "/vrun.v1.Control/Watch", std::move(events));
  v1::WatchRequest request;
  request.set_job(job);
  request.set_pod(pod);
  stream->Send(request);
  return stream;
}

}  // namespace vrun::home
