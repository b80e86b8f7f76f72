// SPDX-License-Identifier: Apache-2.0
// A certificate authority in a temporary directory, for tests that speak mTLS.
//
//   rpc::TestAuthority authority;
//   auto server = rpc::Server::Create(authority.Make("controller", "controller"));
#pragma once

#include <stdlib.h>

#include <string>

#include "base/files.h"
#include "rpc/credentials.h"

namespace vrun::rpc {

class TestAuthority {
 public:
  TestAuthority() {
    const char* base = getenv("TMPDIR");
    directory_ = std::string(base != nullptr ? base : "/var/tmp") + "/vrun-ca-XXXXXX";
    VRUN_CHECK(mkdtemp(directory_.data()) != nullptr);
    VRUN_CHECK(EnsureAuthority(directory_).has_value());
  }
  ~TestAuthority() { (void)RemoveTree(directory_); }
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // Contains ca.pem, ca.key and what Make has created: NAME.pem and NAME.key.
  const std::string& directory() const { return directory_; }
  Credentials Make(const std::string& role, const std::string& name) const {
    VRUN_CHECK(EnsureCertificate(directory_, directory_, role, name, 30).has_value());
    auto credentials = LoadCredentials(directory_, name);
    VRUN_CHECK(credentials.has_value());
    return *credentials;
  }

 private:
  std::string directory_;
};

}  // namespace vrun::rpc
