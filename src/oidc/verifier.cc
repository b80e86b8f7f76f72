// SPDX-License-Identifier: Apache-2.0
#include "oidc/verifier.h"

#include "base/clock.h"
#include "oidc/http.h"
#include "oidc/provider.h"

namespace vrun::oidc {
namespace {

constexpr int kMostWaiting = 64;
constexpr int64_t kPause = 10'000'000;      // between two attempts to get keys
constexpr int64_t kKeysFor = 3600'000'000;  // a key that the provider has withdrawn is believed no longer
constexpr int64_t kSkewSeconds = 60;

}  // namespace

void Verifier::Use(const Settings& settings) {
  MutexLock lock(mutex_);
  settings_ = settings;
}

Settings Verifier::settings() const {
  MutexLock lock(mutex_);
  return settings_;
}

void Verifier::Check(std::string id_token, Done done) {
  if (waiting_.fetch_add(1) >= kMostWaiting) {
    --waiting_;
    return done({}, Error(Code::kExhausted, "too many people log in at once: try again in a moment"));
  }
  queue_.Post([this, id_token = std::move(id_token), done = std::move(done)] {
    const Settings settings = this->settings();
    Result<Identity> who = CheckNow(id_token, settings);
    --waiting_;
    done(settings, std::move(who));
  });
}

Status Verifier::GetKeys(const Settings& settings) {
  tried_us_ = MonotonicMicros();
  const auto get = [&]() -> Result<Keys> {
    VRUN_ASSIGN(const Provider provider, Discover(settings.issuer, settings.ca));
    VRUN_ASSIGN(const HttpAnswer answer, Fetch({provider.keys, {}, settings.ca}));
    if (answer.status != 200) return Error(Code::kUnavailable, "the identity provider does not show its keys");
    return Keys::Parse(answer.body);
  };
  Result<Keys> keys = get();
  if (!keys) {
    failure_ = keys.error();
    return keys.error();
  }
  failure_.reset();
  keys_ = *std::move(keys);
  got_us_ = tried_us_;
  return {};
}

Result<Identity> Verifier::CheckNow(const std::string& id_token, const Settings& settings) {
  if (settings.issuer.empty()) {
    return Error(Code::kUnsupported, "nobody logs in to this cluster by an identity provider: ask for a token");
  }
  if (used_ != settings) {
    used_ = settings;
    keys_.reset();
    tried_us_ = 0;
  }
  const int64_t now = MonotonicMicros(), wall = WallMicros() / 1'000'000;
  const bool may_ask = tried_us_ == 0 || now - tried_us_ >= kPause;
  if (keys_ && now - got_us_ > kKeysFor) keys_.reset();
  if (!keys_) {
    if (!may_ask && failure_) return *failure_;
    VRUN_TRY(GetKeys(settings));
  }
  std::erase_if(spent_, [&](const auto& one) { return one.second < wall - kSkewSeconds; });
  // Of what is signed: the same signature can be written in several ways.
  const Digest digest = Sha256(std::string_view(id_token).substr(0, id_token.rfind('.')));
  if (spent_.contains(digest)) return Error(Code::kDenied, "the ID token was used before: log in again");
  Result<Identity> who = VerifyIdToken(id_token, *keys_, settings, wall);
  if (!who && who.error().code() == Code::kNotFound && may_ask && now - tried_us_ >= kPause) {
    VRUN_TRY(GetKeys(settings));  // it may have a new key
    who = VerifyIdToken(id_token, *keys_, settings, wall);
  }
  if (!who && who.error().code() == Code::kNotFound) return Error(Code::kDenied, who.error().message());
  if (who) spent_.emplace(digest, who->until_s);
  return who;
}

}  // namespace vrun::oidc
