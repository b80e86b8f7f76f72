// SPDX-License-Identifier: Apache-2.0
// The identity of a home for the controller and the nodes: 16 bytes that survive restarts.
#pragma once

#include <string>

namespace vrun::home {

// Returns 16 bytes as 32 hex digits, derived from random bytes in STATE/home_id (made at the first start) and the
// machine's id, so that a copied home directory gets another id. If the file cannot be written: derived from machine,
// user and path.
std::string LoadHomeId(const std::string& state_directory);

}  // namespace vrun::home
