// SPDX-License-Identifier: Apache-2.0
// The owner of a cache, a uid range and a file system server on a node: a home and the user that its certificate names.
// A home chooses its own id, which is neither secret nor proof. Because the user is part of the tenant, nobody can
// reach another user's data by claiming that user's home id.
#pragma once

#include <string>

#include "base/hash/digest.h"
#include "proto/control.pb.h"

namespace vrun::node {

struct Tenant {
  std::string user;     // the certificate's name
  std::string home_id;  // as home claims

  // The tenant of a job. Its root's content may belong to another home than the job's (a snapshot).
  static Tenant Of(const v1::StartAttempt& order) {
    return {order.user(), order.content_home_id().empty() ? order.home_id() : order.content_home_id()};
  }

  auto operator<=>(const Tenant&) const = default;
  // 32 hex digits: the name of its directories.
  std::string Key() const { return Sha256(std::to_string(user.size()) + ":" + user + home_id).Hex().substr(0, 32); }
};

}  // namespace vrun::node
