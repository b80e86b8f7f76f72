// SPDX-License-Identifier: Apache-2.0
// What a server shows of its authority, for a person to compare. FetchAuthority (credentials.h) compares it itself.
#pragma once

#include <string>

#include "base/hash/digest.h"
#include "base/result.h"

namespace vrun::rpc {

// As the server at HOST:PORT says, which may be anybody. Blocks for up to 10 s.
Result<Digest> ShownAuthority(const std::string& address);

}  // namespace vrun::rpc
