// SPDX-License-Identifier: Apache-2.0
// A person logs in by an identity provider, and his machine gets a certificate for that.
#include <cstdio>
#include <future>

#include "base/escape.h"
#include "base/hash/digest.h"
#include "daemon/join.h"
#include "oidc/device_login.h"
#include "oidc/settings.h"
#include "people/address.h"
#include "people/members.h"
#include "proto/sign_in.pb.h"
#include "rpc/authority.h"
#include "rpc/rpc.h"

namespace vrun::daemon {
namespace {

constexpr int64_t kLoginMicros = 60'000'000;  // the controller may have to ask the provider for its keys

template <typename Reply, typename Request>
Result<Reply> Ask(rpc::Channel& channel, const char* method, const Request& request) {
  std::promise<Result<std::string>> answered;
  channel.Call(method, request.SerializeAsString(), kLoginMicros,
               [&](Result<std::string> answer) { answered.set_value(std::move(answer)); });
  VRUN_ASSIGN(const std::string bytes, answered.get_future().get());
  Reply reply;
  if (!reply.ParseFromString(bytes)) return Error(Code::kCorrupt, "the controller's answer does not parse");
  return reply;
}

void Show(const oidc::DeviceCode& code) {
  const bool complete = !code.complete_uri.empty();
  std::printf("To log in, open %s\n%s %s\n", Escape(complete ? code.complete_uri : code.uri).c_str(),
              complete ? "and check that it shows the code" : "and enter the code", Escape(code.user_code).c_str());
  std::fflush(stdout);
}

// Whoever pretends to be the controller would get an ID token with which he is this person.
Result<std::string> AuthorityOf(const people::ClusterAddress& address) {
  if (!address.authority.empty()) {
    auto ca = rpc::FetchAuthority(address.controller, *Digest::FromHex(address.authority));
    if (ca || ca.error().code() != Code::kDenied) return ca;
    return Error(Code::kDenied, "controller at " + Escape(address.controller) +
                                    ": it is not the cluster of this address: ask its administrator for it");
  }
  VRUN_ASSIGN(const Digest shown, rpc::ShownAuthority(address.controller));
  return Error(Code::kDenied,
               "it is not known yet whether this is your cluster: if its administrator says (`vctl user "
               "address`) that this is its address, run: vctl login " +
                   Escape(address.controller) + "/" + shown.Hex());
}

}  // namespace

Result<Joined> JoinByLogin(const JoinOptions& options) {
  const auto address = people::ParseClusterAddress(options.controller);
  if (!address) return Error(Code::kInvalid, "write HOST:PORT/AUTHORITY, as `vctl user address` prints it");
  VRUN_ASSIGN(const std::string ca, AuthorityOf(*address));
  VRUN_ASSIGN(auto channel, rpc::Channel::Dial(address->controller, {ca, "", ""}, "controller"));
  VRUN_ASSIGN(const v1::SignInReply provider,
              Ask<v1::SignInReply>(*channel, "/vrun.v1.SignIn/Describe", v1::SignInRequest()));
  VRUN_ASSIGN(const rpc::CertificateRequest made, rpc::NewRequest());
  v1::LogInRequest request;
  request.set_request(made.request);
  request.set_machine(options.name.empty() ? people::MachineName() : options.name);
  VRUN_ASSIGN(*request.mutable_id_token(),
              oidc::LogInByDevice({provider.issuer(), provider.client_id(), provider.scopes(), provider.ca(),
                                   Sha256(made.request).Hex()},
                                  Show));
  VRUN_ASSIGN(const v1::LogInReply reply, Ask<v1::LogInReply>(*channel, "/vrun.v1.SignIn/LogIn", request));
  VRUN_TRY(rpc::SaveCredentials(options.directory, reply.name(), {ca, reply.certificate(), made.key}));
  const Joined joined{address->controller, "home", reply.name(), "", provider.snapshots()};
  VRUN_TRY(SaveJoined(options.directory, joined));
  return joined;
}

}  // namespace vrun::daemon
