// SPDX-License-Identifier: Apache-2.0
// `vrund pki`: makes the certificates of a cluster. The CLI runs it, because its static binary has no TLS.
#pragma once

#include <string>

namespace vrun::daemon {

struct PkiOptions {
  bool make_authority = false;  // pki ca --dir DIR
  std::string authority;        // pki issue --ca DIR --dir OUT --role ROLE --name NAME [--days N]
  std::string directory;
  std::string role;
  std::string name;
  int days = 365;
};

// Returns the exit status; prints errors to stderr.
int PkiMain(const PkiOptions& options);

}  // namespace vrun::daemon
