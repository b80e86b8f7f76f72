// SPDX-License-Identifier: Apache-2.0
#include "daemon/pki.h"

#include <cstdio>

#include "rpc/credentials.h"

namespace vrun::daemon {

int PkiMain(const PkiOptions& o) {
  Status status = o.make_authority ? rpc::EnsureAuthority(o.directory)
                                   : rpc::EnsureCertificate(o.authority, o.directory, o.role, o.name, o.days);
  if (status) return 0;
  std::fprintf(stderr, "vrund pki: %s\n", status.error().message().c_str());
  return 1;
}

}  // namespace vrun::daemon
