// SPDX-License-Identifier: Apache-2.0
#include "identity/renewal.h"

#include <algorithm>
#include <future>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "proto/people.pb.h"

namespace vrun::identity {
namespace {

constexpr char kRenew[] = "/vrun.v1.People/Renew";
constexpr int64_t kAnswerMicros = 20'000'000;
// Clocks may be set, and machines sleep: it looks at least so often.
constexpr int64_t kLongestWait = 600'000'000, kShortestWait = 200'000;
constexpr size_t kMostBytes = 65536;

bool HasJoined(const Place& place) { return PathExists(place.directory + "/joined"); }

Result<rpc::Lifetime> LifetimeHere(const Place& place) {
  VRUN_ASSIGN(const std::string pem, ReadFile(place.directory + "/" + place.name + ".pem", kMostBytes));
  return rpc::LifetimeOf(pem);
}

// Without a certificate, because one that has ended opens no connection. The request says who it is.
Result<std::unique_ptr<rpc::Channel>> Dial(const Place& place) {
  VRUN_ASSIGN(const std::string ca, ReadFile(place.directory + "/ca.pem", kMostBytes));
  return rpc::Channel::Dial(place.controller, {ca, "", ""}, "controller");
}

Result<std::string> RequestOf(const Place& place) {
  const std::string base = place.directory + "/" + place.name;
  VRUN_ASSIGN(const std::string key, ReadFile(base + ".key", kMostBytes));
  v1::RenewRequest request;
  VRUN_ASSIGN(*request.mutable_certificate(), ReadFile(base + ".pem", kMostBytes));
  VRUN_ASSIGN(*request.mutable_request(), rpc::NewRequestFor(key));
  return request.SerializeAsString();
}

Status Save(const Place& place, const Result<std::string>& answer) {
  if (!answer) return answer.error();
  v1::RenewReply reply;
  if (!reply.ParseFromString(*answer) || !rpc::LifetimeOf(reply.certificate())) {
    return Error(Code::kCorrupt, "the controller's answer is no certificate");
  }
  return rpc::SaveCertificate(place.directory, place.name, reply.certificate());
}

}  // namespace

Status RenewIfEnded(const Place& place) {
  if (!HasJoined(place)) return {};
  const auto life = LifetimeHere(place);
  if (!life || life->until_us > WallMicros()) return {};
  LogWarning("the certificate of {} has ended: asking for another one", Escape(place.name));
  VRUN_ASSIGN(const std::string request, RequestOf(place));
  VRUN_ASSIGN(const auto channel, Dial(place));
  std::promise<Result<std::string>> answered;
  channel->Call(kRenew, request, kAnswerMicros,
                [&](Result<std::string> answer) { answered.set_value(std::move(answer)); });
  return Save(place, answered.get_future().get());
}

Renewal::Renewal(EventLoop* loop, Place place) : loop_(loop), place_(std::move(place)) {
  if (HasJoined(place_)) Look();
}

Renewal::~Renewal() {
  *alive_ = false;
  loop_->Cancel(timer_);
}

void Renewal::Look() {
  timer_ = 0;
  const auto life = LifetimeHere(place_);
  int64_t wait = kLongestWait;
  if (life) {
    wait = life->from_us + (life->until_us - life->from_us) / 2 - WallMicros();
    if (wait <= 0) return Ask();
  }
  timer_ = loop_->After(std::clamp(wait, kShortestWait, kLongestWait), [this] { Look(); });
}

void Renewal::Ask() {
  const Result<std::string> request = RequestOf(place_);
  if (!request) return Answered(request);
  Result<std::unique_ptr<rpc::Channel>> channel = Dial(place_);
  if (!channel) return Answered(channel.error());
  channel_ = *std::move(channel);
  channel_->Call(kRenew, *request, kAnswerMicros, [this, loop = loop_, alive = alive_](Result<std::string> answer) {
    loop->Post([this, alive, answer = std::move(answer)] {
      if (*alive) Answered(answer);
    });
  });
}

void Renewal::Answered(const Result<std::string>& answer) {
  channel_.reset();
  const Status saved = Save(place_, answer);
  if (saved) {
    LogInfo("the certificate of {} is renewed", Escape(place_.name));
    pause_us_ = 0;
    return Look();
  }
  // The first time, and then rarely.
  if (pause_us_ == 0 || pause_us_ >= kLongestWait) {
    LogWarning("the certificate of {} is not renewed: {}", Escape(place_.name), saved.error().message());
  }
  pause_us_ = std::clamp(pause_us_ * 2, kShortestWait * 5, kLongestWait);
  timer_ = loop_->After(pause_us_, [this] { Look(); });
}

}  // namespace vrun::identity
