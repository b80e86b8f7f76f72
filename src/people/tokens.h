// SPDX-License-Identifier: Apache-2.0
// Tokens of the HTTP API. Each is a file of the controller, tokens/DIGEST, beside those of people/members.h and with
// their rules: `vctl` writes them while the controller runs or not, and no file gives a token away.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/tokens.pb.h"

namespace vrun::people {

// Any thread, several processes at once.
class Tokens {
 public:
  // `directory`: as of Members. `kind`: "tokens", or "codes": those that `vctl dashboard` makes, good for one Take.
  explicit Tokens(const std::string& directory, const std::string& kind = "tokens")
      : directory_(directory + "/" + kind + "/") {}

  // Returns the token, which is not kept: "vrun_" and 40 hexadecimal digits. Forgets tokens that have ended. kExists:
  // this user has a token of this name. kInvalid: a name that is none.
  Result<std::string> Create(const v1::ApiToken& token) const;
  // kDenied: there is no such token, or it has ended. One lookup of a file.
  Result<v1::ApiToken> Check(std::string_view text, int64_t now_us) const;
  // As Check, and the token is good no more. Of several that take it at once, one gets it.
  Result<v1::ApiToken> Take(std::string_view text, int64_t now_us) const;
  // Ordered by user and name.
  Result<std::vector<v1::ApiToken>> List() const;
  // Works at once. kNotFound: `user` has none of this name.
  Status Revoke(const std::string& user, const std::string& name) const;

 private:
  struct Stored {
    std::string file;
    v1::ApiToken token;
  };
  Result<std::vector<Stored>> ReadAll() const;

  const std::string directory_;
};

}  // namespace vrun::people
