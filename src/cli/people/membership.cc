// SPDX-License-Identifier: Apache-2.0
#include "cli/people/membership.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/files.h"
#include "cli/host/local_cluster.h"
#include "cli/request/job_command.h"

namespace vrun::cli {
namespace {

std::string FirstLine(const std::string& file) {
  const std::string text = ReadFile(file, 65536).value_or("");
  return text.substr(0, text.find('\n'));
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }
bool IsLoopback(const std::string& host) { return host.starts_with("127.") || host == "::1" || host == "localhost"; }

// "" when this machine has none that others could reach.
std::string FirstAddress() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* i = all; i != nullptr && found.empty(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN];
    if (::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof text)) {
      found = text;
    }
  }
  ::freeifaddrs(all);
  return found;
}

// Where others dial the controller.
Result<HostPort> Reached(const ControllerHere& here, const std::string& controller) {
  VRUN_ASSIGN(HostPort address,
              ParseHostPort(controller.empty() ? FirstLine(here.state_directory + "/address") : controller));
  if (IsWildcard(address.host)) address.host = FirstAddress();
  if (address.host.empty()) address.host = "127.0.0.1";
  return address;
}

}  // namespace

Result<ControllerHere> FindController(const Places& places) {
  const auto at = [](const std::string& state, const std::string& pki) -> Result<ControllerHere> {
    VRUN_ASSIGN(people::StatePlace place, people::ReadStatePlace(state));
    return ControllerHere{state, pki, std::move(place)};
  };
  if (PathExists(ClusterFiles(places).listen_file())) return at(places.state_dir + "/controller", places.pki_dir);
  // As the units of the package start it.
  if (PathExists("/var/lib/vrun/controller/address") && ::access("/var/lib/vrun/controller", W_OK) == 0) {
    return at("/var/lib/vrun/controller", "/etc/vrun/pki");
  }
  return Error(Code::kNotFound,
               "no controller of yours runs here: run this on its machine, as the user who started it");
}

Result<std::string> TokenUser(const std::optional<std::string>& given, const Places& places) {
  if (given) return *given;
  const auto config = ReadConfig(places.config_file);
  if (config && config->credentials_name.find('@') != std::string::npos) return config->credentials_name;
  return Error(Code::kNotFound, "no home of yours has joined this cluster: say for whom with --user USER@HOST");
}

Result<std::string> AddressOf(const Places& places, const std::string& controller) {
  VRUN_ASSIGN(const ControllerHere here, FindController(places));
  VRUN_ASSIGN(const HostPort address, Reached(here, controller));
  VRUN_ASSIGN(const std::string ca, ReadFile(here.pki_directory + "/ca.pem"));
  return DialAddress(address) + "/" + people::AuthorityDigest(ca);
}

Result<Invited> Invite(const Places& places, v1::Invitation invitation, const std::string& controller) {
  VRUN_ASSIGN(const ControllerHere here, FindController(places));
  VRUN_ASSIGN(const HostPort address, Reached(here, controller));
  auto snapshots = ParseHostPort(FirstLine(ClusterFiles(places).snapshots_listen_file()));
  if (snapshots && invitation.role() == "home") {
    if (IsWildcard(snapshots->host)) snapshots->host = address.host;
    invitation.set_snapshots(DialAddress(*snapshots));
  }
  VRUN_ASSIGN(const std::string ca, ReadFile(here.pki_directory + "/ca.pem"));
  Invited invited;
  invited.here_only = IsLoopback(address.host);
  VRUN_ASSIGN(invited.token.secret, here.members().Invite(invitation));
  invited.token.controller = DialAddress(address);
  invited.token.authority = people::AuthorityDigest(ca);
  return invited;
}

}  // namespace vrun::cli
