// SPDX-License-Identifier: Apache-2.0
#include "people/members.h"

#include <dirent.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/hash/blake3.h"
#include "base/log.h"

namespace vrun::people {
namespace {

constexpr size_t kSecretBytes = 16, kSecretDigits = 2 * kSecretBytes, kDigestDigits = 64;
constexpr size_t kMostBytes = 65536;  // of a file

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

std::string DigestOf(const std::string& text) { return Hex(Blake3(text).view()); }

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// A name is a part of a path here.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= 200 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  std::string_view("._-+@").find(c) != std::string_view::npos;
         });
}

Status CheckName(const std::string& name) {
  if (IsName(name)) return {};
  return Error(Code::kInvalid, Escape(name) + ": not a name: use letters, digits and ._-+, and begin with no dot");
}

Result<std::vector<std::string>> Names(const std::string& directory) {
  std::vector<std::string> names;
  DIR* open = ::opendir(directory.c_str());
  if (open == nullptr) {
    if (errno == ENOENT) return names;
    return ErrnoError("list " + Escape(directory));
  }
  while (const dirent* entry = ::readdir(open)) {
    if (IsName(entry->d_name)) names.emplace_back(entry->d_name);
  }
  ::closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string Members::Place(const char* kind, const std::string& role, const std::string& name) const {
  return directory_ + "/" + kind + "/" + role + "/" + name;
}

Result<std::string> Members::Invite(const v1::Invitation& invitation) const {
  if (!invitation.name().empty()) VRUN_TRY(CheckName(invitation.name()));
  std::string random(kSecretBytes, '\0');
  if (::getrandom(random.data(), random.size(), 0) != ssize_t{kSecretBytes}) return ErrnoError("random secret");
  std::string secret = Hex(random);
  const std::string place = directory_ + "/invitations/";
  VRUN_TRY(MakeDirs(place, 0700));
  VRUN_ASSIGN(const std::vector<std::string> open, Names(place));
  for (const std::string& digest : open) {
    const auto text = ReadFile(place + digest, kMostBytes);
    v1::Invitation other;
    if (text && other.ParseFromString(*text) && other.expires_us() <= WallMicros()) {
      (void)::unlink((place + digest).c_str());
    }
  }
  VRUN_TRY(WriteFileAtomic(place + DigestOf(secret), invitation.SerializeAsString(), 0600));
  return secret;
}

void Members::Withdraw(const std::string& secret) const {
  (void)::unlink((directory_ + "/invitations/" + DigestOf(secret)).c_str());
}

Result<v1::Invitation> Members::Take(const std::string& secret, int64_t now_us,
                                     const std::function<Status(const v1::Invitation&)>& check) const {
  const Error refused(Code::kDenied, "the token is unknown, or was used before: ask for a new one");
  if (!IsHex(secret, kSecretDigits)) return refused;
  const std::string place = directory_ + "/invitations/" + DigestOf(secret);
  const auto text = ReadFile(place, kMostBytes);
  v1::Invitation invitation;
  if (!text || !invitation.ParseFromString(*text)) return refused;
  if (invitation.expires_us() <= now_us) {
    (void)::unlink(place.c_str());
    return Error(Code::kDenied, "the token ended at " + FormatRfc3339(invitation.expires_us()) + ": ask for a new one");
  }
  VRUN_TRY(check(invitation));
  // Of several at once one removes it.
  if (::unlink(place.c_str()) != 0) return refused;
  return invitation;
}

Status Members::Add(const v1::Member& member) const {
  VRUN_TRY(CheckName(member.name()));
  VRUN_TRY(MakeDirs(directory_ + "/members/" + member.role(), 0700));
  return WriteFileAtomic(Place("members", member.role(), member.name()), member.SerializeAsString(), 0600);
}

std::optional<v1::Member> Members::Find(const std::string& role, const std::string& name) const {
  v1::Member member;
  if (!IsName(role) || !IsName(name)) return std::nullopt;
  const auto text = ReadFile(Place("members", role, name), kMostBytes);
  if (!text || !member.ParseFromString(*text)) return std::nullopt;
  return member;
}

bool Members::Has(const std::string& role, const std::string& name) const {
  return IsName(role) && IsName(name) && PathExists(Place("members", role, name));
}

Result<std::vector<v1::Member>> Members::List() const {
  std::vector<v1::Member> found;
  for (const char* role : {"home", "node"}) {
    VRUN_ASSIGN(const std::vector<std::string> names, Names(directory_ + "/members/" + role));
    for (const std::string& name : names) {
      if (auto member = Find(role, name)) found.push_back(*std::move(member));
    }
  }
  return found;
}

Status Members::Revoke(const std::string& role, const std::string& name) const {
  VRUN_TRY(CheckName(name));
  VRUN_TRY(MakeDirs(directory_ + "/revoked/" + role, 0700));
  return WriteFileAtomic(Place("revoked", role, name), "", 0600);
}

bool Members::IsRevoked(const std::string& role, const std::string& name) const {
  if (!IsName(role) || !IsName(name)) return true;
  if (PathExists(Place("revoked", role, name))) return true;
  const size_t at = name.find('@');
  return role == "home" && at != std::string::npos && at > 0 && PathExists(Place("revoked", role, name.substr(0, at)));
}

Status Members::Admit(const std::string& role, const std::string& name) const {
  VRUN_TRY(CheckName(name));
  if (!IsRevoked(role, name)) return {};
  return Error(Code::kDenied, Escape(name) + ": shut out of this cluster: ask its administrator");
}

Result<v1::ShutOut> Members::ShutOutList() const {
  v1::ShutOut list;
  VRUN_ASSIGN(const std::vector<std::string> homes, Names(directory_ + "/revoked/home"));
  VRUN_ASSIGN(const std::vector<std::string> nodes, Names(directory_ + "/revoked/node"));
  list.mutable_homes()->Assign(homes.begin(), homes.end());
  list.mutable_nodes()->Assign(nodes.begin(), nodes.end());
  return list;
}

Result<bool> Members::Follow(const v1::ShutOut& list) const {
  VRUN_ASSIGN(const v1::ShutOut here, ShutOutList());
  bool changed = false;
  const auto follow = [&](const char* role, const auto& wanted, const auto& there) -> Status {
    for (const std::string& name : wanted) {
      if (std::find(there.begin(), there.end(), name) != there.end()) continue;
      VRUN_TRY(Revoke(role, name));
      changed = true;
    }
    for (const std::string& name : there) {
      if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) continue;
      (void)::unlink(Place("revoked", role, name).c_str());
      changed = true;
    }
    return {};
  };
  VRUN_TRY(follow("home", list.homes(), here.homes()));
  VRUN_TRY(follow("node", list.nodes(), here.nodes()));
  return changed;
}

void Members::Audit(AuditEntry entry) const {
  entry.time = FormatRfc3339(WallMicros());
  Status written = AppendAudit(audit_file(), entry);
  if (!written && MakeDirs(directory_, 0700)) written = AppendAudit(audit_file(), entry);
  if (!written) LogError("audit: {}", written.error().message());
}

void Members::AuditRefused(AuditEntry entry) const {
  constexpr int64_t kMinute = 60'000'000, kMostRefused = 100;
  int64_t left_out = 0;
  {
    MutexLock lock(refused_->mutex);
    const int64_t now = MonotonicMicros();
    if (refused_->since == 0 || now - refused_->since >= kMinute) {
      left_out = std::max<int64_t>(refused_->count - kMostRefused, 0);
      refused_->since = now;
      refused_->count = 0;
    }
    if (++refused_->count > kMostRefused) return;
  }
  if (left_out > 0)
    Audit({"", "controller", "here", "refused", std::to_string(left_out) + " more attempts", "refused"});
  if (!entry.result.starts_with("refused")) entry.result = "refused: " + entry.result;
  Audit(std::move(entry));
}

std::string AuthorityDigest(const std::string& ca_pem) { return DigestOf(ca_pem); }

Result<Token> ParseToken(const std::string& text) {
  const Error bad(Code::kInvalid,
                  "the token is not whole: it is HOST:PORT/, 64 digits, a dot and 32 digits (an address of `vctl user "
                  "address` ends "
                  "after the 64)");
  const size_t slash = text.rfind('/');
  if (slash == std::string::npos) return bad;
  Token token;
  token.controller = text.substr(0, slash);
  const std::string rest = text.substr(slash + 1);
  const size_t colon = token.controller.rfind(':');
  if (rest.size() != kDigestDigits + 1 + kSecretDigits || rest[kDigestDigits] != '.' || colon == 0 ||
      colon == std::string::npos || colon + 1 == token.controller.size()) {
    return bad;
  }
  token.authority = rest.substr(0, kDigestDigits);
  token.secret = rest.substr(kDigestDigits + 1);
  if (!IsHex(token.authority, kDigestDigits) || !IsHex(token.secret, kSecretDigits)) return bad;
  return token;
}

std::string MachineName() {
  utsname names;
  std::string name = ::uname(&names) == 0 ? names.nodename : "";
  name = name.substr(0, name.find('.'));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !IsName(std::string(1, c)); }, '-');
  return IsName(name) ? name : "local";
}

}  // namespace vrun::people
