// SPDX-License-Identifier: Apache-2.0
// One HTTP request to an identity provider, by libcurl.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace vrun::oidc {

struct HttpRequest {
  std::string url;  // as CheckUrl allows; redirects are not followed
  std::optional<std::vector<std::pair<std::string, std::string>>> form;  // then it is a POST
  std::string ca;                                                        // PEM; "": the system's authorities
};
struct HttpAnswer {
  long status = 0;
  std::string body;
};
// Any thread. Blocks for up to 15 s. Answers above 1 MiB are refused. Errors name the host.
Result<HttpAnswer> Fetch(const HttpRequest& request);

}  // namespace vrun::oidc
