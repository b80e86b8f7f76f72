// SPDX-License-Identifier: Apache-2.0
#include "daemon/join.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <map>

#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/hash/digest.h"
#include "base/unique_fd.h"
#include "identity/renewal.h"
#include "people/members.h"
#include "proto/people.pb.h"
#include "rpc/rpc.h"

namespace vrun::daemon {
namespace {

constexpr int64_t kAnswerMicros = 20'000'000;

Result<v1::JoinReply> Ask(const std::string& controller, const std::string& ca, const v1::JoinRequest& request) {
  VRUN_ASSIGN(auto channel, rpc::Channel::Dial(controller, {ca, "", ""}, "controller"));
  std::promise<Result<std::string>> answered;
  channel->Call("/vrun.v1.People/Join", request.SerializeAsString(), kAnswerMicros,
                [&](Result<std::string> answer) { answered.set_value(std::move(answer)); });
  VRUN_ASSIGN(const std::string bytes, answered.get_future().get());
  v1::JoinReply reply;
  if (!reply.ParseFromString(bytes)) return Error(Code::kCorrupt, "the controller's answer does not parse");
  return reply;
}

// The address of this machine from which packets to HOST:PORT, or to the first of several, leave it. "": none do.
std::string AddressTowards(const std::string& controller) {
  const auto address = ParseHostPort(controller.substr(0, controller.find(',')));
  if (!address) return "";
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address->host.c_str(), std::to_string(address->port).c_str(), &hints, &found) != 0) return "";
  std::string from;
  for (const addrinfo* a = found; a != nullptr && from.empty(); a = a->ai_next) {
    const UniqueFd fd(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage mine{};
    socklen_t size = sizeof mine;
    char text[NI_MAXHOST];
    // Sends nothing: only the route is looked up.
    if (!fd || ::connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0) continue;
    auto* const name = reinterpret_cast<sockaddr*>(&mine);
    if (::getsockname(fd.get(), name, &size) != 0) continue;
    if (::getnameinfo(name, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) from = text;
  }
  ::freeaddrinfo(found);
  return from.find(':') == std::string::npos ? from : "[" + from + "]";
}

}  // namespace

Status SaveJoined(const std::string& directory, const Joined& joined) {
  return WriteFileAtomic(directory + "/joined",
                         "controller=" + joined.controller + "\nrole=" + joined.role + "\nname=" + joined.name +
                             "\npool=" + joined.pool + "\nsnapshots=" + joined.snapshots + "\n",
                         0600);
}

Result<Joined> Join(const JoinOptions& options) {
  if (options.token.empty()) return Error(Code::kInvalid, "give a token or --controller");
  VRUN_ASSIGN(const people::Token token, people::ParseToken(options.token));
  VRUN_ASSIGN(const std::string ca, rpc::FetchAuthority(token.controller, *Digest::FromHex(token.authority)));
  VRUN_ASSIGN(rpc::CertificateRequest made, rpc::NewRequest());
  v1::JoinRequest request;
  request.set_secret(token.secret);
  request.set_request(made.request);
  request.set_role(options.role);
  request.set_renews(true);
  request.set_name(options.name.empty() ? people::MachineName() : options.name);
  VRUN_ASSIGN(const v1::JoinReply reply, Ask(token.controller, ca, request));
  VRUN_TRY(rpc::SaveCredentials(options.directory, reply.name(), {ca, reply.certificate(), made.key}));
  const Joined joined{token.controller, reply.role(), reply.name(), reply.pool(), reply.snapshots()};
  VRUN_TRY(SaveJoined(options.directory, joined));
  return joined;
}

Result<Joined> ReadJoined(const std::string& directory) {
  VRUN_ASSIGN(const std::string text, ReadFile(directory + "/joined", 65536));
  std::map<std::string, std::string> values;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const size_t equals = line.find('=');
    if (equals != std::string::npos) values[line.substr(0, equals)] = line.substr(equals + 1);
    at = end + 1;
  }
  return Joined{values["controller"], values["role"], values["name"], values["pool"], values["snapshots"]};
}

int JoinMain(const JoinOptions& options) {
  const Result<Joined> joined = options.controller.empty() ? Join(options) : JoinByLogin(options);
  if (joined) return 0;
  std::fprintf(stderr, "vrund join: %s\n", joined.error().message().c_str());
  return 1;
}

int BecomeNode(const std::string& token, node::AgentOptions* options) {
  const auto fail = [](const std::string& why) {
    std::fprintf(stderr, "vrund node: %s\n", why.c_str());
    return 1;
  };
  if (options->pki_directory.empty()) options->pki_directory = options->state_directory + "/pki";
  Result<Joined> joined = ReadJoined(options->pki_directory);
  if (!joined && !token.empty()) {
    if (Status made = MakeDirs(options->state_directory, 0755); !made) return fail(made.error().message());
    joined = Join({token, options->pki_directory, options->name, "node"});
    if (!joined) return fail("join: " + joined.error().message());
  }
  if (joined) {
    if (options->controller.empty()) options->controller = joined->controller;
    if (options->name.empty()) options->name = joined->name;
    if (options->pool.empty()) options->pool = joined->pool;
  }
  if (options->pool.empty()) options->pool = "local";
  if (const Status renewed = identity::RenewIfEnded({options->pki_directory, options->name, options->controller});
      !renewed) {
    std::fprintf(stderr, "vrund node: certificate: %s\n", renewed.error().message().c_str());
  }
  if (options->controller.empty() || options->name.empty()) {
    return fail("--controller and --name are missing: give both, or a token with --join (`vctl node token` makes one)");
  }
  if (options->listen_host.empty()) options->listen_host = AddressTowards(options->controller);
  if (options->listen_host.empty()) options->listen_host = "127.0.0.1";
  return 0;
}

}  // namespace vrun::daemon
