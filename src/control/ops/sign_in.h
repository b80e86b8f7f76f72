// SPDX-License-Identifier: Apache-2.0
// /vrun.v1.SignIn at the controller: an ID token of the identity provider becomes a certificate, as a one-time token
// does (join.h).
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "control/ops/join.h"
#include "oidc/verifier.h"
#include "people/members.h"
#include "people/persons.h"
#include "proto/sign_in.pb.h"

namespace vrun::control {

// Any thread. `members` and `persons` outlive it.
class SignIn {
 public:
  SignIn(const people::Members* members, people::Persons* persons) : members_(members), persons_(persons) {}

  void Use(const oidc::Settings& settings) { verifier_.Use(settings); }
  // kUnsupported: nobody logs in here by an identity provider.
  Result<v1::SignInReply> Describe() const;
  // `done` is called once, by another thread.
  void LogIn(const Authority& authority, const v1::LogInRequest& request, const std::string& address,
             std::function<void(Result<v1::LogInReply>)> done);
  // kDenied: this machine (a name in a certificate) got in by a login that was too long ago.
  Status MayRenew(const std::string& name, int64_t now_us) const;

 private:
  Result<v1::LogInReply> Admit(const Authority& authority, const v1::LogInRequest& request, const std::string& address,
                               const oidc::Settings& settings, const oidc::Identity& who);

  const people::Members* const members_;
  people::Persons* const persons_;
  oidc::Verifier verifier_;
};

}  // namespace vrun::control
