// SPDX-License-Identifier: Apache-2.0
// Requests and answers of HTTP/1.1, without the library that moves them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vrun::http {

struct Request {
  std::string method;                          // "GET"
  std::string path;                            // as sent, without the query
  std::string query;                           // as sent, without the question mark
  std::map<std::string, std::string> headers;  // names in lower case; of repeated ones the first
  std::string body;
  std::string address;  // "127.0.0.1:4711"
};

struct Response {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};  // besides those that every answer has
};

// An error as RFC 9457 says: application/problem+json with type, title, status and detail.
Response Problem(int status, std::string_view detail);
// "Not Found"
std::string_view StatusText(int status);
bool IsUtf8(std::string_view bytes);
// Whether its body says that it is JSON, with parameters or without.
bool IsJson(const Request& request);
// A string of JSON, quoted. Valid UTF-8 for any input: other bytes become U+FFFD.
std::string JsonQuote(std::string_view bytes);

// Server-sent events to one client. Any thread.
class Events {
 public:
  virtual ~Events() = default;  // closes the stream
  // `data`: no line breaks. False: the client is gone, or was too slow and has been cut off.
  virtual bool Send(std::string_view event, std::string_view data) = 0;
  virtual bool open() const = 0;
};

// One request that waits for its answer. Any thread. Dropped without an answer, the client gets status 500.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Once, if StartEvents was not called.
  virtual void Answer(Response response) = 0;
  // Once, if Answer was not called. If too many clients have event streams, this one gets status 503 instead.
  virtual std::shared_ptr<Events> StartEvents() = 0;
};

}  // namespace vrun::http
