// SPDX-License-Identifier: Apache-2.0
#include "control/ops/join.h"

#include "base/escape.h"
#include "base/log.h"
#include "rpc/credentials.h"

namespace vrun::control {
namespace {

// The name in the certificate.
Result<std::string> NameOf(const people::Members& members, const v1::Invitation& invitation, const std::string& asked) {
  if (invitation.role() == "home") return invitation.name() + "@" + asked;
  if (!invitation.name().empty()) {
    if (asked == invitation.name()) return asked;
    return Error(Code::kDenied, "the token is for the node " + invitation.name() + ", not for " + Escape(asked));
  }
  // Otherwise a token for a new node would be one for the place of another.
  if (members.Find("node", asked)) {
    return Error(Code::kExists, "a node " + Escape(asked) + " has joined before: choose another --name, or ask for a " +
                                    "token of this name: vctl node token --name " + Escape(asked));
  }
  return asked;
}

}  // namespace

Result<v1::JoinReply> Join(const people::Members& members, const Authority& authority, const v1::JoinRequest& request,
                           const std::string& address, int64_t now_us) {
  if (authority.directory.empty()) {
    return Error(Code::kUnsupported, "this controller cannot make certificates: it was started without --authority");
  }
  v1::JoinReply reply;
  std::string name;
  const auto answer = [&](const v1::Invitation& invitation) -> Status {
    if (!request.role().empty() && request.role() != invitation.role()) {
      return Error(Code::kInvalid, invitation.role() == "node" ? "the token is for a node: `vrund node --join` takes it"
                                                               : "the token is for a user: `vctl login` takes it");
    }
    VRUN_ASSIGN(name, NameOf(members, invitation, request.name()));
    VRUN_TRY(members.Admit(invitation.role(), name));
    VRUN_ASSIGN(*reply.mutable_certificate(),
                rpc::SignRequest(authority.directory, request.request(), invitation.role(), name, authority.seconds));
    return {};
  };
  VRUN_ASSIGN(const v1::Invitation invitation, members.Take(request.secret(), now_us, answer));
  v1::Member member;
  member.set_role(invitation.role());
  member.set_name(name);
  member.set_pool(invitation.pool());
  member.set_most_gpus(invitation.most_gpus());
  member.set_joined_us(now_us);
  member.set_address(address);
  VRUN_TRY(members.Add(member));
  LogInfo("{} {} has joined from {}", invitation.role(), name, address);
  members.Audit({"", invitation.role() + " " + name, address, "join", "", "ok"});
  reply.set_role(invitation.role());
  reply.set_name(name);
  reply.set_pool(invitation.pool());
  reply.set_snapshots(invitation.snapshots());
  return reply;
}

Result<v1::RenewReply> Renew(const people::Members& members, const Authority& authority,
                             const v1::RenewRequest& request,
                             const std::function<Status(const std::string& home)>& may) {
  if (authority.directory.empty()) {
    return Error(Code::kUnsupported, "this controller cannot make certificates: it was started without --authority");
  }
  VRUN_ASSIGN(const rpc::Holder holder, rpc::HolderOf(authority.directory, request.certificate(), request.request()));
  VRUN_TRY(members.Admit(holder.role, holder.name));
  if (holder.role != "home" && holder.role != "node") {
    return Error(Code::kDenied, "certificates of the role " + holder.role + " are made by hand");
  }
  if (may && holder.role == "home") VRUN_TRY(may(holder.name));
  if (holder.seconds_left < -kRenewedSeconds) {
    return Error(Code::kDenied,
                 "the certificate of " + holder.name + " ended more than 30 days ago: ask for a new token");
  }
  v1::RenewReply reply;
  VRUN_ASSIGN(*reply.mutable_certificate(),
              rpc::SignRequest(authority.directory, request.request(), holder.role, holder.name, authority.seconds));
  return reply;
}

Status KeepName(const people::Members& members, const std::string& node, int64_t now_us) {
  if (members.Has("node", node)) return {};
  v1::Member member;
  member.set_role("node");
  member.set_name(node);
  member.set_most_gpus(-1);
  member.set_joined_us(now_us);
  return members.Add(member);
}

Status CheckBounds(const people::Members& members, const std::string& node, const std::string& pool, int64_t gpus) {
  const auto member = members.Find("node", node);
  if (!member) return {};
  if (!member->pool().empty() && member->pool() != pool) {
    return Error(Code::kDenied, "node " + Escape(node) + ": its token was for the pool " + member->pool() + ", not " +
                                    Escape(pool) + ": correct --pool");
  }
  if (member->most_gpus() >= 0 && gpus > member->most_gpus()) {
    return Error(Code::kDenied, "node " + Escape(node) + ": it offers " + std::to_string(gpus) +
                                    " GPUs, and its token was for " + std::to_string(member->most_gpus()));
  }
  return {};
}

}  // namespace vrun::control
