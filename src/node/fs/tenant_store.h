// SPDX-License-Identifier: Apache-2.0
// The content store of one tenant on this node, opened by its file system server.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "store/store.h"

namespace vrun::node {

struct TenantStore {
  std::unique_ptr<store::Store> store;
  UniqueFd lock;  // shared, for as long as this is served: whoever tidies up caches leaves it alone
};

// Makes `options.directory` if need be. Where `options` has no limit (0) it is a quarter of the file system;
// descriptors are a quarter of what this process may have, whose limit is raised.
Result<TenantStore> OpenTenantStore(store::Options options);

}  // namespace vrun::node
