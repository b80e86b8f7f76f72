// SPDX-License-Identifier: Apache-2.0
// What a cluster knows of the identity provider (OpenID Connect) by which its people log in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::oidc {

struct Settings {
  std::string issuer;     // URL, exactly as the provider writes it; "": people do not log in by one
  std::string client_id;  // of this cluster alone: a token for another client is refused
  std::string scopes = "openid profile";
  std::string user_claim = "preferred_username";
  std::string
      domain;  // the user claim is an address in this domain, and the user is the part before the @; "": no address
  std::string groups_claim = "groups";
  std::vector<std::string> allow;      // only members of one of these groups log in; empty: all that the provider knows
  std::string ca;                      // PEM of the authority of the provider's certificate; "": those of the system
  std::string snapshots;               // HOST:PORT of the cluster's snapshot store, for machines that log in; "": none
  int64_t login_seconds = 30 * 86400;  // after so long certificates are not renewed before another login; 0: for ever
  bool operator==(const Settings&) const = default;
};

// https with a host and without a user; http only to this machine itself. kInvalid.
Status CheckUrl(const std::string& url);

}  // namespace vrun::oidc
