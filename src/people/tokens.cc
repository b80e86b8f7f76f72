// SPDX-License-Identifier: Apache-2.0
#include "people/tokens.h"

#include <dirent.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/hash/blake3.h"

namespace vrun::people {
namespace {

constexpr std::string_view kPrefix = "vrun_";
constexpr size_t kSecretBytes = 20;
constexpr size_t kMostBytes = 65536;  // of a file
constexpr size_t kMostTokens = 200;   // of one user: making one looks at all of them

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

bool IsHex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

std::string FileOf(std::string_view token) { return Hex(Blake3(std::string(token)).view()); }

Status CheckName(const std::string& name) {
  const bool fine = !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-").find(c) != std::string_view::npos;
  });
  if (fine) return {};
  return Error(Code::kInvalid, Escape(name) + ": not a name of a token: write up to 64 letters, digits and ._-");
}

}  // namespace

Result<std::vector<Tokens::Stored>> Tokens::ReadAll() const {
  std::vector<Stored> found;
  DIR* open = ::opendir(directory_.c_str());
  if (open == nullptr) {
    if (errno == ENOENT) return found;
    return ErrnoError("list " + Escape(directory_));
  }
  while (const dirent* entry = ::readdir(open)) {
    if (!IsHex(entry->d_name)) continue;
    Stored stored{directory_ + entry->d_name, {}};
    const auto text = ReadFile(stored.file, kMostBytes);
    if (text && stored.token.ParseFromString(*text)) found.push_back(std::move(stored));
  }
  ::closedir(open);
  std::sort(found.begin(), found.end(), [](const Stored& a, const Stored& b) {
    return std::tie(a.token.user(), a.token.name()) < std::tie(b.token.user(), b.token.name());
  });
  return found;
}

Result<std::string> Tokens::Create(const v1::ApiToken& token) const {
  VRUN_TRY(CheckName(token.name()));
  VRUN_TRY(MakeDirs(directory_, 0700));
  VRUN_ASSIGN(const std::vector<Stored> all, ReadAll());
  size_t own = 0;
  for (const Stored& other : all) {
    if (other.token.expires_us() > WallMicros() && other.token.user() == token.user()) ++own;
  }
  if (own >= kMostTokens) {
    return Error(Code::kExhausted, Escape(token.user()) + " has " + std::to_string(own) +
                                       " tokens, which is the limit of each user: revoke some");
  }
  for (const Stored& other : all) {
    if (other.token.expires_us() <= WallMicros()) {
      (void)::unlink(other.file.c_str());
    } else if (other.token.user() == token.user() && other.token.name() == token.name()) {
      return Error(Code::kExists, Escape(token.user()) + " has a token " + Escape(token.name()) +
                                      " already: choose another name, or revoke that one");
    }
  }
  std::string random(kSecretBytes, '\0');
  if (::getrandom(random.data(), random.size(), 0) != ssize_t{kSecretBytes}) return ErrnoError("random token");
  std::string text = std::string(kPrefix) + Hex(random);
  VRUN_TRY(WriteFileAtomic(directory_ + FileOf(text), token.SerializeAsString(), 0600));
  return text;
}

Result<v1::ApiToken> Tokens::Check(std::string_view text, int64_t now_us) const {
  const Error refused(Code::kDenied, "the token is unknown: `vctl token create` makes one");
  if (!text.starts_with(kPrefix)) return refused;
  const std::string_view digits = text.substr(kPrefix.size());
  if (digits.size() != 2 * kSecretBytes || !IsHex(digits)) return refused;
  v1::ApiToken token;
  const auto stored = ReadFile(directory_ + FileOf(text), kMostBytes);
  if (!stored || !token.ParseFromString(*stored)) return refused;
  if (token.expires_us() <= now_us) {
    return Error(Code::kDenied,
                 "the token ended at " + FormatRfc3339(token.expires_us()) + ": `vctl token create` makes a new one");
  }
  return token;
}

Result<v1::ApiToken> Tokens::Take(std::string_view text, int64_t now_us) const {
  VRUN_ASSIGN(v1::ApiToken token, Check(text, now_us));
  if (::unlink((directory_ + FileOf(text)).c_str()) != 0) return Error(Code::kDenied, "it was used already");
  return token;
}

Result<std::vector<v1::ApiToken>> Tokens::List() const {
  VRUN_ASSIGN(std::vector<Stored> all, ReadAll());
  std::vector<v1::ApiToken> tokens;
  for (Stored& stored : all) tokens.push_back(std::move(stored.token));
  return tokens;
}

Status Tokens::Revoke(const std::string& user, const std::string& name) const {
  VRUN_ASSIGN(const std::vector<Stored> all, ReadAll());
  for (const Stored& stored : all) {
    if (stored.token.user() != user || stored.token.name() != name) continue;
    if (::unlink(stored.file.c_str()) != 0) return ErrnoError("remove " + Escape(stored.file));
    return {};
  }
  return Error(Code::kNotFound, Escape(user) + " has no token " + Escape(name) + ": `vctl token list` shows all");
}

}  // namespace vrun::people
