// SPDX-License-Identifier: Apache-2.0
// /vrun.v1.People/Join and Renew at the controller: a token becomes a certificate, and that another one.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "people/members.h"
#include "proto/people.pb.h"

namespace vrun::control {

// How long certificates are good.
constexpr int64_t kCertificateSeconds = 24 * 3600;
// After its end a certificate is still renewed for so long: a machine may have been off.
constexpr int64_t kRenewedSeconds = 30 * 24 * 3600;

// Makes certificates.
struct Authority {
  std::string directory;  // of ca.pem and ca.key; "": there is none
  int64_t seconds = kCertificateSeconds;
};

// `address`: of the caller, for the record. A request that is refused does not use the token up. Any thread; blocks for
// a file or two.
Result<v1::JoinReply> Join(const people::Members& members, const Authority& authority, const v1::JoinRequest& request,
                           const std::string& address, int64_t now_us);
// Another certificate for the name and the key of an old one, which may have ended. kDenied: the caller has not its
// key, or was shut out, or `may` refuses his name. Any thread; blocks likewise.
Result<v1::RenewReply> Renew(const people::Members& members, const Authority& authority,
                             const v1::RenewRequest& request,
                             const std::function<Status(const std::string& home)>& may = nullptr);

// The name of a node that has registered is its own, also if its certificate was made by hand: no token for a new node
// is good for it.
Status KeepName(const people::Members& members, const std::string& node, int64_t now_us);

// Whether a node may join this pool and offer so many GPUs: what its token was bound to.
Status CheckBounds(const people::Members& members, const std::string& node, const std::string& pool, int64_t gpus);

}  // namespace vrun::control
