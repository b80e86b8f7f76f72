// SPDX-License-Identifier: Apache-2.0
// Sessions of browsers. A session is a token of the API (people/tokens.h) in two halves that only together are the
// token: one in a cookie that scripts cannot read, one in the storage of the page, which sends it with each request.
//
// The second half is the proof against requests of other sites. It also makes the cookie worthless to others: browsers
// send cookies to all ports of a host, so another user's server on this machine may get to see it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "http/message.h"

namespace vrun::control {

struct Halves {
  std::string cookie, proof;  // hexadecimal
};
// Any thread, all of them. nullopt: no random numbers.
std::optional<Halves> Split(std::string_view token);
// The token of the request's two halves; "": it has not both.
std::string SessionToken(const http::Request& request);
// Header values for Set-Cookie. `secure`: only over TLS.
std::string SessionCookie(const http::Request& request, const std::string& half, int64_t seconds, bool secure);
std::string EndedCookie(const http::Request& request, bool secure);

}  // namespace vrun::control
