// SPDX-License-Identifier: Apache-2.0
// Opens the content store of one tenant on this node, for its file system server.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "store/store.h"

namespace vrun::node {

struct TenantStore {
  std::unique_ptr<store::Store> store;
  UniqueFd lock;  // shared lock, held while the store is served: cache cleanup skips a locked store
};

// Creates `options.directory` if needed. Fills in missing limits (0): a quarter of the file system, and a quarter of
// this process's descriptor limit, which is raised.
Result<TenantStore> OpenTenantStore(store::Options options);

}  // namespace vrun::node
