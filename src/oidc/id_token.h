// SPDX-License-Identifier: Apache-2.0
// ID tokens (OpenID Connect Core) and the keys with which an identity provider signs them (RFC 7517).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "oidc/settings.h"

namespace vrun::oidc {

// Public keys for RS256 (2048 to 8192 bits) and ES256; others of the provider are left out.
class Keys {
 public:
  // kCorrupt: not a list of keys.
  static Result<Keys> Parse(const std::string& json);
  size_t size() const { return keys_.size(); }
  bool Has(const std::string& id) const { return keys_.contains(id); }
  // Whether this key, of this algorithm, has made the signature (in the form of JWS).
  bool Verify(const std::string& id, const std::string& algorithm, const std::string& signed_text,
              const std::string& signature) const;

 private:
  struct Key;
  std::map<std::string, std::shared_ptr<const Key>> keys_;  // by their id
};

// Who has logged in.
struct Identity {
  std::string subject;  // never given to anybody else by this issuer
  std::string user;     // as a certificate may name it
  std::vector<std::string> groups;
  std::string nonce;    // "": none
  int64_t until_s = 0;  // end of the token, seconds since 1970
};
// `now_s`: seconds since 1970. kNotFound: signed with a key that is not among these. kDenied says in one line what is
// wrong: signature, issuer, client, time, user, group.
Result<Identity> VerifyIdToken(const std::string& token, const Keys& keys, const Settings& settings, int64_t now_s);

}  // namespace vrun::oidc
