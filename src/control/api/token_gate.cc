// SPDX-License-Identifier: Apache-2.0
#include "control/api/token_gate.h"

#include <algorithm>

#include "base/clock.h"
#include "control/dashboard/sessions.h"

namespace vrun::control {
namespace {

constexpr double kPerSecond = 100, kBurst = 200;  // requests of one token
constexpr double kRefusedPerSecond = 20, kRefusedBurst = 100;
constexpr size_t kMostBuckets = 10'000;

http::Response TooMany() {
  http::Response response = http::Problem(429, "too many requests: wait a second");
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

// "" if the header names no bearer token.
std::string TokenOf(const http::Request& request) {
  const auto header = request.headers.find("authorization");
  if (header == request.headers.end()) return "";
  const std::string& text = header->second;
  constexpr std::string_view kScheme = "bearer ";
  if (text.size() < kScheme.size()) return "";
  const bool bearer = std::equal(kScheme.begin(), kScheme.end(), text.begin(),
                                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
  return bearer ? text.substr(kScheme.size()) : "";
}

}  // namespace

bool TokenGate::Bucket::Take(double per_second, double most, int64_t now_us) {
  left = at_us == 0 ? most : std::min(most, left + static_cast<double>(now_us - at_us) / 1e6 * per_second);
  at_us = now_us;
  if (left < 1) return false;
  left -= 1;
  return true;
}

Status TokenGate::Check(const std::string& token) const {
  VRUN_ASSIGN(const v1::ApiToken known, tokens_.Check(token, WallMicros()));
  return members_.Admit("home", known.user());
}

http::Response TokenGate::Refuse(const std::string& detail) {
  if (!refused_.Take(kRefusedPerSecond, kRefusedBurst, MonotonicMicros())) return TooMany();
  http::Response refusal = http::Problem(401, detail);
  refusal.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"vrun\"");
  return refusal;
}

TokenGate::Verdict TokenGate::Admit(const http::Request& request, bool write) {
  const int64_t now = MonotonicMicros();
  Verdict verdict;
  const auto refuse = [&](int status, const std::string& detail) {
    verdict.refusal = status == 401 ? Refuse(detail) : http::Problem(status, detail);
    return verdict;
  };
  const auto audit = [&](const std::string& who, const std::string& why) {
    members_.AuditRefused({"", who, request.address, request.method + " " + request.path, "", why});
  };
  std::string text = TokenOf(request);
  if (text.empty()) text = SessionToken(request);
  if (text.empty()) return refuse(401, "send a token: \"Authorization: Bearer TOKEN\"; `vctl token create` makes one");
  const auto token = tokens_.Check(text, WallMicros());
  if (!token) {
    audit("somebody", token.error().message());
    return refuse(401, token.error().message());
  }
  if (Status admitted = members_.Admit("home", token->user()); !admitted) {
    audit("home " + token->user(), admitted.error().message());
    return refuse(403, admitted.error().message());
  }
  if (buckets_.size() > kMostBuckets) buckets_.clear();
  if (!buckets_[token->user() + " " + token->name()].Take(kPerSecond, kBurst, now)) {
    verdict.refusal = TooMany();
    return verdict;
  }
  if (write && !token->write()) {
    audit("home " + token->user(), "the token " + token->name() + " may only read");
    return refuse(403, "the token may only read: make one with --scope write");
  }
  verdict.caller.peer = {"home", token->user(), request.address + " token " + token->name()};
  verdict.caller.token = std::move(text);
  verdict.caller.name = token->name();
  verdict.admitted = true;
  return verdict;
}

}  // namespace vrun::control
