// SPDX-License-Identifier: Apache-2.0
#include "oidc/provider.h"

#include <algorithm>

#include "base/escape.h"
#include "oidc/http.h"
#include "oidc/json.h"
#include "oidc/settings.h"

namespace vrun::oidc {
namespace {

constexpr size_t kMostCode = 4096, kMostUserCode = 64;
constexpr int64_t kMostSeconds = 3600, kMostInterval = 60;

Error Bad(const std::string& what) { return {Code::kCorrupt, "the identity provider's answer " + what}; }

// What the provider says of an error, in one line.
std::string Reason(const Json& json, long status) {
  const std::string error = Text(json, "error"), description = Text(json, "error_description");
  if (error.empty()) return "it answered with status " + std::to_string(status);
  return Escape(error.substr(0, 100)) + (description.empty() ? "" : ": " + Escape(description.substr(0, 300)));
}

}  // namespace

Result<Provider> ParseProvider(const std::string& text, const std::string& issuer) {
  const Json json = ParseObject(text);
  if (json.is_discarded()) return Bad("is no OpenID configuration");
  if (const std::string said = Text(json, "issuer"); said != issuer) {
    return Error(Code::kDenied, "the identity provider calls itself " + Escape(said.substr(0, 200)) + ", not " +
                                    Escape(issuer) + ": set `issuer` of [oidc] to what it says, if that is right");
  }
  Provider provider{Text(json, "device_authorization_endpoint"), Text(json, "token_endpoint"), Text(json, "jwks_uri")};
  if (!provider.device_authorization.empty()) VRUN_TRY(CheckUrl(provider.device_authorization));
  VRUN_TRY(CheckUrl(provider.token));
  VRUN_TRY(CheckUrl(provider.keys));
  return provider;
}

Result<Provider> Discover(const std::string& issuer, const std::string& ca) {
  std::string base = issuer;
  while (base.ends_with('/')) base.pop_back();
  VRUN_ASSIGN(const HttpAnswer answer, Fetch({base + "/.well-known/openid-configuration", {}, ca}));
  if (answer.status != 200) {
    return Error(Code::kUnavailable,
                 Escape(issuer) + ": no identity provider: it answered with status " + std::to_string(answer.status));
  }
  return ParseProvider(answer.body, issuer);
}

Result<DeviceCode> ParseDeviceCode(long status, const std::string& text) {
  const Json json = ParseObject(text);
  if (status != 200) return Error(Code::kDenied, "the identity provider gives no code: " + Reason(json, status));
  if (json.is_discarded()) return Bad("is no device code");
  DeviceCode code{Text(json, "device_code"), Text(json, "user_code"), Text(json, "verification_uri"),
                  Text(json, "verification_uri_complete")};
  if (code.code.empty() || code.code.size() > kMostCode || code.user_code.empty() ||
      code.user_code.size() > kMostUserCode) {
    return Bad("has no device code");
  }
  VRUN_TRY(CheckUrl(code.uri));
  if (!code.complete_uri.empty() && !CheckUrl(code.complete_uri)) code.complete_uri.clear();
  code.seconds = std::clamp<int64_t>(Number(json, "expires_in").value_or(0), 1, kMostSeconds);
  code.interval_seconds = std::clamp<int64_t>(Number(json, "interval").value_or(5), 1, kMostInterval);
  return code;
}

Result<TokenAnswer> ParseTokenAnswer(long status, const std::string& text) {
  const Json json = ParseObject(text);
  if (status == 200) {
    TokenAnswer answer{TokenAnswer::kGiven, Text(json, "id_token")};
    if (answer.id_token.empty()) return Bad("has no ID token");
    return answer;
  }
  const std::string error = Text(json, "error");
  if (error == "authorization_pending") return TokenAnswer{TokenAnswer::kPending, ""};
  if (error == "slow_down") return TokenAnswer{TokenAnswer::kSlowDown, ""};
  if (error == "access_denied") return Error(Code::kDenied, "the login was refused at the identity provider");
  if (error == "expired_token") return Error(Code::kTimeout, "the code has ended before it was approved: log in again");
  return Error(Code::kDenied, "the identity provider gives no token: " + Reason(json, status));
}

}  // namespace vrun::oidc
