// SPDX-License-Identifier: Apache-2.0
#include "control/ops/sign_in.h"

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "rpc/credentials.h"

namespace vrun::control {
namespace {

constexpr size_t kMostMachineName = 64;

}  // namespace

Result<v1::SignInReply> SignIn::Describe() const {
  const oidc::Settings settings = verifier_.settings();
  if (settings.issuer.empty()) {
    return Error(Code::kUnsupported,
                 "nobody logs in to this cluster by an identity provider: ask its administrator for a token");
  }
  v1::SignInReply reply;
  reply.set_issuer(settings.issuer);
  reply.set_client_id(settings.client_id);
  reply.set_scopes(settings.scopes);
  reply.set_ca(settings.ca);
  reply.set_snapshots(settings.snapshots);
  return reply;
}

void SignIn::LogIn(const Authority& authority, const v1::LogInRequest& request, const std::string& address,
                   std::function<void(Result<v1::LogInReply>)> done) {
  if (authority.directory.empty()) {
    return done(
        Error(Code::kUnsupported, "this controller cannot make certificates: it was started without --authority"));
  }
  verifier_.Check(request.id_token(), [this, authority, request, address, done = std::move(done)](
                                          const oidc::Settings& settings, Result<oidc::Identity> who) {
    Result<v1::LogInReply> reply =
        who ? Admit(authority, request, address, settings, *who) : Result<v1::LogInReply>(who.error());
    if (!reply) {
      if (who) LogWarning("login of {} from {}: {}", who->user, address, reply.error().message());
      members_->AuditRefused(
          {"", who ? "home " + who->user : "somebody", address, "login", "", reply.error().message()});
    }
    done(std::move(reply));
  });
}

Result<v1::LogInReply> SignIn::Admit(const Authority& authority, const v1::LogInRequest& request,
                                     const std::string& address, const oidc::Settings& settings,
                                     const oidc::Identity& who) {
  // Whoever has taken the token from its owner has another key.
  if (!who.nonce.empty() && who.nonce != Sha256(request.request()).Hex()) {
    return Error(Code::kDenied, "the ID token was made for another machine");
  }
  const std::string& machine = request.machine();
  if (machine.empty() || machine.size() > kMostMachineName || machine.find('@') != std::string::npos) {
    return Error(Code::kInvalid, Escape(machine.substr(0, 100)) + ": not a name of a machine: choose one with --name");
  }
  const std::string name = who.user + "@" + machine;
  VRUN_TRY(members_->Admit("home", name));
  v1::LogInReply reply;
  VRUN_ASSIGN(*reply.mutable_certificate(),
              rpc::SignRequest(authority.directory, request.request(), "home", name, authority.seconds));
  const int64_t now = WallMicros();
  v1::Person person;
  person.set_user(who.user);
  person.set_issuer(settings.issuer);
  person.set_subject(who.subject);
  person.mutable_groups()->Assign(who.groups.begin(), who.groups.end());
  person.set_logged_in_us(now);
  VRUN_TRY(persons_->LogIn(person, machine));
  v1::Member member;
  member.set_role("home");
  member.set_name(name);
  member.set_most_gpus(-1);
  member.set_joined_us(now);
  member.set_address(address);
  VRUN_TRY(members_->Add(member));
  LogInfo("home {} has logged in from {}", name, address);
  members_->Audit({"", "home " + name, address, "login", "", "ok"});
  reply.set_name(name);
  return reply;
}

Status SignIn::MayRenew(const std::string& name, int64_t now_us) const {
  const int64_t limit = verifier_.settings().login_seconds;
  const size_t at = name.find('@');
  if (limit == 0 || at == std::string::npos) return {};
  const auto person = persons_->Find(name.substr(0, at));
  if (!person) return {};
  const auto& machines = person->machines();
  const bool by_login = std::find(machines.begin(), machines.end(), name.substr(at + 1)) != machines.end();
  if (!by_login || now_us - person->logged_in_us() <= limit * 1'000'000) return {};
  return Error(Code::kDenied, Escape(name) + ": the last login was too long ago: log in again with vctl login");
}

}  // namespace vrun::control
