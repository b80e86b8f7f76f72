// SPDX-License-Identifier: Apache-2.0
// Who a home is, for the controller and the nodes: 16 bytes that stay the same over restarts.
#pragma once

#include <string>

namespace vrun::home {

// 16 bytes as 32 hex digits, from random bytes in STATE/home_id (made at the first start) and the machine's id, so that
// a copied home directory is another home. Where the file cannot be written they are derived from machine, user and
// path.
std::string LoadHomeId(const std::string& state_directory);

}  // namespace vrun::home
