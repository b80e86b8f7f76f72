// SPDX-License-Identifier: Apache-2.0
// URLs of webhooks and addresses of mail, before anything is sent there. Pure.
#pragma once

#include <string>

#include "base/result.h"

namespace vrun::control::notify {

// A URL with http or https, as libcurl itself reads it, so that nobody reads it differently later.
struct Url {
  std::string text;    // in its normal form
  std::string origin;  // "https://hooks.example.org:443", in lower case
  std::string path;    // "/" at least, without dots
};
// kInvalid: another scheme, user names, a fragment, or bytes by which two readers could read two URLs.
Result<Url> ParseUrl(const std::string& text);
// Whether it has the origin of the other one, and its path begins with all parts of the other's path.
bool IsUnder(const Url& url, const Url& prefix);

// "anna@example.org": what goes into a header and to a mail server as it is.
bool IsMailAddress(const std::string& text);

}  // namespace vrun::control::notify
