// SPDX-License-Identifier: Apache-2.0
#include "oidc/device_login.h"

#include <time.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/escape.h"
#include "oidc/http.h"
#include "oidc/settings.h"

namespace vrun::oidc {
namespace {

constexpr char kGrant[] = "urn:ietf:params:oauth:grant-type:device_code";

void Pause(int64_t seconds) {
  timespec left{static_cast<time_t>(seconds), 0};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

}  // namespace

Result<std::string> LogInByDevice(const DeviceLogin& login, const std::function<void(const DeviceCode&)>& show) {
  VRUN_TRY(CheckUrl(login.issuer));
  VRUN_ASSIGN(const Provider provider, Discover(login.issuer, login.ca));
  if (provider.device_authorization.empty()) {
    return Error(Code::kUnsupported, Escape(login.issuer) + ": this identity provider has no device flow");
  }
  VRUN_ASSIGN(const HttpAnswer given,
              Fetch({provider.device_authorization,
                     {{{"client_id", login.client_id}, {"scope", login.scopes}, {"nonce", login.nonce}}},
                     login.ca}));
  VRUN_ASSIGN(const DeviceCode code, ParseDeviceCode(given.status, given.body));
  show(code);
  const int64_t end = MonotonicMicros() + code.seconds * 1'000'000;
  const Error ended(Code::kTimeout, "the code has ended before it was approved: log in again");
  int64_t interval = code.interval_seconds;
  for (int64_t left; (left = (end - MonotonicMicros()) / 1'000'000) > 0;) {
    Pause(std::min(interval, std::max<int64_t>(left - 1, 1)));
    const Result<HttpAnswer> answer =
        Fetch({provider.token,
               {{{"grant_type", kGrant}, {"device_code", code.code}, {"client_id", login.client_id}}},
               login.ca});
    // RFC 8628, 3.5: a provider that does not answer is asked less often.
    if (!answer && answer.error().code() == Code::kUnavailable) {
      interval *= 2;
      continue;
    }
    if (!answer) return answer.error();
    Result<TokenAnswer> token = ParseTokenAnswer(answer->status, answer->body);
    if (!token && MonotonicMicros() >= end) return ended;  // some have forgotten a code that has ended
    if (!token) return std::move(token).error();
    if (token->what == TokenAnswer::kGiven) return std::move(token->id_token);
    if (token->what == TokenAnswer::kSlowDown) interval += 5;
  }
  return ended;
}

}  // namespace vrun::oidc
