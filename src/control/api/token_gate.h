// SPDX-License-Identifier: Apache-2.0
// Who sends a request to the API: looks at its token, in a header or as a session (dashboard/sessions.h), and limits
// how many requests one token makes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "http/message.h"
#include "people/members.h"
#include "people/tokens.h"
#include "rpc/rpc.h"

namespace vrun::control {

// One thread, but for Check.
class TokenGate {
 public:
  // `people`: the directory of people::Members.
  explicit TokenGate(const std::string& people) : members_(people), tokens_(people) {}

  struct Caller {
    rpc::Peer peer;     // the home of the token's user
    std::string token;  // its text, for Check
    std::string name;   // of the token
  };
  // Any thread. Whether the token is still good and its user still a member.
  Status Check(const std::string& token) const;
  // Either the caller, or the answer that refuses the request.
  struct Verdict {
    Caller caller;
    bool admitted = false;
    http::Response refusal;
  };
  Verdict Admit(const http::Request& request, bool write);
  // The answer to a request that proves nothing; 429 if there are too many such.
  http::Response Refuse(const std::string& detail);

 private:
  // A bucket of requests that fills again.
  struct Bucket {
    double left = 0;
    int64_t at_us = 0;  // monotonic
    bool Take(double per_second, double most, int64_t now_us);
  };

  const people::Members members_;
  const people::Tokens tokens_;
  std::map<std::string, Bucket> buckets_;  // by user and name of the token
  Bucket refused_;                         // requests whose token is none, of all clients together
};

}  // namespace vrun::control
