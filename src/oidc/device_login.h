// SPDX-License-Identifier: Apache-2.0
// A machine asks an identity provider who sits before it: the device flow (RFC 8628).
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "oidc/provider.h"

namespace vrun::oidc {

struct DeviceLogin {
  std::string issuer, client_id, scopes;
  std::string ca;     // as in Settings
  std::string nonce;  // for providers that put it into the token
};
// The ID token, not verified: whoever trusts it does that. `show` is called once, with what the person has to do.
// Blocks until he has done it, or the code has ended.
Result<std::string> LogInByDevice(const DeviceLogin& login, const std::function<void(const DeviceCode&)>& show);

}  // namespace vrun::oidc
