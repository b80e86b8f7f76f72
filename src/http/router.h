// SPDX-License-Identifier: Apache-2.0
// Finds the handler of a request: records of method, path pattern and handler.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "http/message.h"
#include "http/query.h"

namespace vrun::http {

// A request that a route has matched.
struct Call {
  Request request;
  std::map<std::string, std::string> path;  // by the names of the pattern, decoded
  Query query;
};

struct Route {
  std::string method;
  std::string pattern;  // query.h
  std::function<void(Call, std::shared_ptr<Exchange>)> handler;
};

// Any thread, after all routes were added.
class Router {
 public:
  // A path that several patterns match goes to the one with the fewest names, whatever the order of the calls.
  void Add(Route route);
  // Answers 404, 405 and 400 itself. HEAD is answered as GET; the server leaves the body out.
  void Handle(Request request, std::shared_ptr<Exchange> exchange) const;

 private:
  struct Entry {
    PathPattern pattern;
    std::vector<Route> routes;  // of this pattern, one a method
  };
  std::vector<Entry> entries_;
};

}  // namespace vrun::http
