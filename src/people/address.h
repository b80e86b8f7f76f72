// SPDX-License-Identifier: Apache-2.0
// Where a cluster is, for people who log in by an identity provider: "HOST:PORT/AUTHORITY", as a token begins
// (members.h), or "HOST:PORT" for whoever does not know the digest of the authority yet.
#pragma once

#include <optional>
#include <string>

namespace vrun::people {

struct ClusterAddress {
  std::string controller;  // HOST:PORT
  std::string authority;   // 64 hexadecimal digits; "": unknown
};
// nullopt: the text is none.
std::optional<ClusterAddress> ParseClusterAddress(const std::string& text);

}  // namespace vrun::people
