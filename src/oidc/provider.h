// SPDX-License-Identifier: Apache-2.0
// Where an identity provider is asked for what (OpenID Connect Discovery), and its answers to a device that logs in
// (RFC 8628). All that is read here comes from another machine.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace vrun::oidc {

struct Provider {
  std::string device_authorization, token, keys;  // URLs; the first is "" if it has no device flow
};
// kDenied: the text is of another issuer. kCorrupt: it is none.
Result<Provider> ParseProvider(const std::string& json, const std::string& issuer);
// Asks the issuer. Blocks for up to 15 s.
Result<Provider> Discover(const std::string& issuer, const std::string& ca);

// What a person does to approve, and how often the device asks.
struct DeviceCode {
  std::string code;          // for the device
  std::string user_code;     // that the person compares or types
  std::string uri;           // that he opens
  std::string complete_uri;  // the same with the code in it; "": none
  int64_t seconds = 0;       // how long it is good
  int64_t interval_seconds = 5;
};
Result<DeviceCode> ParseDeviceCode(long status, const std::string& json);

struct TokenAnswer {
  enum { kGiven, kPending, kSlowDown } what = kPending;
  std::string id_token;
};
// kDenied: the person has refused. kTimeout: the code has ended.
Result<TokenAnswer> ParseTokenAnswer(long status, const std::string& json);

}  // namespace vrun::oidc
