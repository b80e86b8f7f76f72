// SPDX-License-Identifier: Apache-2.0
// Certificates of the daemons: one local CA, one certificate a role and name.
//
// A certificate says who its holder is by a URI in its subject alternative names: vrun://ROLE/NAME (also as CN), and by
// the DNS name ROLE.vrun, which clients check instead of a host name. Keys are EC P-256, files 0600, directory 0700.
#pragma once

#include <string>

#include "base/result.h"

namespace vrun::rpc {

// PEM texts.
struct Credentials {
  std::string ca;
  std::string certificate;
  std::string key;
};

// A new CA in `directory` (ca.pem, ca.key), or the one that is there. kDenied when a key's mode is too open.
Status EnsureAuthority(const std::string& directory);
// Makes directory/NAME.pem and NAME.key signed by the CA of `authority`, valid for `days`; replaces those that have
// less than a third of their time left or were made for another CA or role, keeps others. Copies the CA's certificate
// beside it. Roles and names are words of letters, digits and "._-+@".
Status EnsureCertificate(const std::string& authority, const std::string& directory, const std::string& role,
                         const std::string& name, int days);
// Reads ca.pem, NAME.pem and NAME.key. Refuses a key that others may read.
Result<Credentials> LoadCredentials(const std::string& directory, const std::string& name);

// kDenied with the reason when the key is not the certificate's, the certificate is not the CA's, or its time is over.
Status CheckCredentials(const Credentials& credentials);

}  // namespace vrun::rpc
