// SPDX-License-Identifier: Apache-2.0
// Who belongs to a cluster: open invitations, members, and those who were shut out.
//
// Each is a file in a directory of the controller, because `vctl` makes invitations while the controller runs or not,
// and whoever may write there is the cluster's administrator:
//   invitations/DIGEST   an Invitation; the digest is of the token's secret, so the directory gives no token away
//   members/ROLE/NAME    a Member
//   revoked/ROLE/NAME    empty; NAME of a home is USER@HOST, or USER for all of his machines
// Nodes and homes have such a directory too, with nothing but `revoked`: what the controller told them last.
// Certificates that were made by hand (`vrund pki`) have no member: they are bound to nothing, and can be revoked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "people/audit.h"
#include "proto/people.pb.h"

namespace vrun::people {

// Any thread, several processes at once. Copies are the same.
class Members {
 public:
  // Made, with mode 0700, when something is written first.
  explicit Members(std::string directory) : directory_(std::move(directory)) {}

  // Returns the secret of the token, in hexadecimal digits. It is not kept. Forgets invitations that have ended.
  Result<std::string> Invite(const v1::Invitation& invitation) const;
  void Withdraw(const std::string& secret) const;
  // Ends the invitation of this secret, and returns it; not when `check` refuses. kDenied: there is none, it was used
  // before, or it is too old.
  Result<v1::Invitation> Take(const std::string& secret, int64_t now_us,
                              const std::function<Status(const v1::Invitation&)>& check) const;

  Status Add(const v1::Member& member) const;  // replaces
  std::optional<v1::Member> Find(const std::string& role, const std::string& name) const;
  bool Has(const std::string& role, const std::string& name) const;  // a lookup of a file
  // Ordered by role and name.
  Result<std::vector<v1::Member>> List() const;

  // For good: certificates of one name cannot be told apart.
  Status Revoke(const std::string& role, const std::string& name) const;
  bool IsRevoked(const std::string& role, const std::string& name) const;
  // kDenied, with what to do, for somebody who was shut out. Two lookups of a file.
  Status Admit(const std::string& role, const std::string& name) const;
  // All that were shut out, ordered.
  Result<v1::ShutOut> ShutOutList() const;
  // On a node or at home, in a directory of its own: makes this list the one here. Returns whether that changed
  // anything.
  Result<bool> Follow(const v1::ShutOut& list) const;

  // The cluster's audit log (people/audit.h).
  std::string audit_file() const { return directory_ + "/audit"; }
  // Adds the time; makes the directory. An error is only logged: what was done was done.
  void Audit(AuditEntry entry) const;
  // The same of an attempt that was refused. Whoever tries without end must not fill the disk: at most 100 a minute by
  // this process are written, and then how many were not.
  void AuditRefused(AuditEntry entry) const;

 private:
  std::string Place(const char* kind, const std::string& role, const std::string& name) const;

  const std::string directory_;
  struct Refused {
    Mutex mutex;
    int64_t since VRUN_GUARDED_BY(mutex) = 0;  // monotonic
    int64_t count VRUN_GUARDED_BY(mutex) = 0;  // since then
  };
  const std::shared_ptr<Refused> refused_ = std::make_shared<Refused>();  // of all copies
};

// A token is the text "HOST:PORT/AUTHORITY.SECRET": where the controller is, the digest of the certificate of its
// authority, and the secret, both in hexadecimal digits.
struct Token {
  std::string controller;
  std::string authority;  // 64 digits
  std::string secret;     // 32 digits
  std::string Text() const { return controller + "/" + authority + "." + secret; }
};
// BLAKE3 of the certificate's PEM text, in hexadecimal digits.
std::string AuthorityDigest(const std::string& ca_pem);
Result<Token> ParseToken(const std::string& text);

// The host name of this machine up to its first dot, of characters that a certificate's name may have.
std::string MachineName();

}  // namespace vrun::people
