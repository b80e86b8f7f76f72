// SPDX-License-Identifier: Apache-2.0
#include "http/router.h"

#include <algorithm>

namespace vrun::http {

void Router::Add(Route route) {
  for (Entry& entry : entries_) {
    if (entry.routes[0].pattern != route.pattern) continue;
    entry.routes.push_back(std::move(route));
    return;
  }
  Entry entry{PathPattern(route.pattern), {}};
  const auto after = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.pattern.names() > entry.pattern.names(); });
  entry.routes.push_back(std::move(route));
  entries_.insert(after, std::move(entry));
}

void Router::Handle(Request request, std::shared_ptr<Exchange> exchange) const {
  for (const Entry& entry : entries_) {
    auto path = entry.pattern.Match(request.path);
    if (!path) continue;
    const std::string method = request.method == "HEAD" ? "GET" : request.method;
    std::string allowed;
    for (const Route& route : entry.routes) {
      allowed += (allowed.empty() ? "" : ", ") + route.method + (route.method == "GET" ? ", HEAD" : "");
      if (route.method != method) continue;
      auto query = ParseQuery(request.query);
      if (!query) return exchange->Answer(Problem(400, query.error().message()));
      return route.handler({std::move(request), *std::move(path), *std::move(query)}, std::move(exchange));
    }
    Response refused = Problem(405, "this path takes " + allowed);
    refused.headers.emplace_back("Allow", allowed);
    return exchange->Answer(std::move(refused));
  }
  exchange->Answer(Problem(404, "there is nothing at this path"));
}

}  // namespace vrun::http
