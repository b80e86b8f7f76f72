// SPDX-License-Identifier: Apache-2.0
// `vrund pki`: makes the certificates of a cluster; the static command line has no TLS in it and runs this.
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

// The process's exit status; errors on stderr.
int PkiMain(const PkiOptions& options);

}  // namespace vrun::daemon
