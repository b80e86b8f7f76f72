// SPDX-License-Identifier: Apache-2.0
// Whose a cache, a uid range and a file system server are on a node: a home, and the user that its certificate names.
// The id that a home gives itself is no secret and no proof; with the user in it, nobody reaches what another has there
// by giving that other's id.
#pragma once

#include <string>

#include "base/hash/digest.h"
#include "proto/control.pb.h"

namespace vrun::node {

struct Tenant {
  std::string user;     // the certificate's name
  std::string home_id;  // as home says

  // Of a job: the content of its root may be another's than its home's (a snapshot).
  static Tenant Of(const v1::StartAttempt& order) {
    return {order.user(), order.content_home_id().empty() ? order.home_id() : order.content_home_id()};
  }

  auto operator<=>(const Tenant&) const = default;
  // 32 hex digits: name of its directories.
  std::string Key() const { return Sha256(std::to_string(user.size()) + ":" + user + home_id).Hex().substr(0, 32); }
};

}  // namespace vrun::node
