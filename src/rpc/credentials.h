// SPDX-License-Identifier: Apache-2.0
// Certificates of the daemons: one local CA, one certificate per role and name.
//
// A certificate identifies its holder by a URI in its subject alternative names, vrun://ROLE/NAME (also as CN), and by
// the DNS name ROLE.vrun, which clients check instead of a host name. Keys are EC P-256, files 0600, directory 0700.
#pragma once

#include <cstdint>
#include <string>

#include "base/hash/digest.h"
#include "base/result.h"

namespace vrun::rpc {

// PEM texts.
struct Credentials {
  std::string ca;
  std::string certificate;
  std::string key;
  // Where they were read (LoadCredentials). Connections that are made later use what is there then, because a
  // certificate is renewed while its process runs; its key stays. "": they are used as they are.
  std::string directory = {};
  std::string name = {};
  std::string base() const { return directory + "/" + name; }
};

// Creates a CA in `directory` (ca.pem, ca.key) unless there is one. kDenied when a key's mode is too open.
Status EnsureAuthority(const std::string& directory);
// Creates directory/NAME.pem and NAME.key, signed by the CA of `authority` and valid for `days`. Replaces existing ones
// that have less than a third of their lifetime left or were made for another CA or role. Copies the CA's certificate
// beside them. Roles and names consist of letters, digits and "._-+@".
Status EnsureCertificate(const std::string& authority, const std::string& directory, const std::string& role,
                         const std::string& name, int days);
// For a machine that joins: a new key, and the request (PKCS#10) that a holder of the authority answers with
// SignRequest. PEM texts. The request proves only that its maker has the key.
struct CertificateRequest {
  std::string key;
  std::string request;
};
Result<CertificateRequest> NewRequest();
// The same for a key that is there already.
Result<std::string> NewRequestFor(const std::string& key);
// The certificate (PEM) of the request's key for this role and name, whatever the request itself says.
Result<std::string> SignRequest(const std::string& authority, const std::string& request, const std::string& role,
                                const std::string& name, int64_t seconds);
// Whose certificate this is. kDenied: it is not from this authority, or whoever made the request has not its key.
struct Holder {
  std::string role, name;
  int64_t seconds_left = 0;  // negative: it ended so long ago
};
Result<Holder> HolderOf(const std::string& authority, const std::string& certificate, const std::string& request);
// Microseconds since 1970. `from`: when it was made.
struct Lifetime {
  int64_t from_us = 0, until_us = 0;
};
Result<Lifetime> LifetimeOf(const std::string& certificate);
// Writes ca.pem, NAME.pem and NAME.key.
Status SaveCredentials(const std::string& directory, const std::string& name, const Credentials& credentials);
// Replaces only NAME.pem, by a certificate of the same key.
Status SaveCertificate(const std::string& directory, const std::string& name, const std::string& certificate);

// What tells an authority from others, in a text that a person may copy.
Digest AuthorityDigest(const std::string& ca_pem);
// The certificate (PEM) of the authority of the server at HOST:PORT, taken only when it is the one of this digest:
// nothing else of the server is known or trusted. Blocks for up to 10 s.
Result<std::string> FetchAuthority(const std::string& address, const Digest& expected);

// Reads ca.pem, NAME.pem and NAME.key. Refuses a key that others may read.
Result<Credentials> LoadCredentials(const std::string& directory, const std::string& name);

// kDenied with the reason when the key does not match the certificate, the certificate is not from the CA, or it has
// expired.
Status CheckCredentials(const Credentials& credentials);

}  // namespace vrun::rpc
