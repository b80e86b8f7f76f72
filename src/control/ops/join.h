// SPDX-License-Identifier: Apache-2.0
// /vrun.v1.People/Join at the controller: a token becomes a certificate.
#pragma once

#include <string>

#include "base/result.h"
#include "people/members.h"
#include "proto/people.pb.h"

namespace vrun::control {

// `authority`: directory of ca.pem and ca.key. `address`: of the caller, for the record. A request that is
// refused does not use the token up. Any thread; blocks for a file or two.
Result<v1::JoinReply> Join(const people::Members& members, const std::string& authority, const v1::JoinRequest& request,
                           const std::string& address, int64_t now_us);

// Whether a node may join this pool and offer so many GPUs: what its token was bound to.
Status CheckBounds(const people::Members& members, const std::string& node, const std::string& pool, int64_t gpus);

}  // namespace vrun::control
