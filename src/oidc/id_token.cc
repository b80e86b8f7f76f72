// SPDX-License-Identifier: Apache-2.0
#include "oidc/id_token.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <algorithm>
#include <optional>

#include "base/escape.h"
#include "oidc/json.h"

namespace vrun::oidc {
namespace {

constexpr size_t kMostToken = 64 * 1024, kMostKeys = 100, kMostGroups = 1000, kMostGroupBytes = 200, kMostName = 100;
constexpr int64_t kSkew = 60;          // seconds by which clocks may differ
constexpr int64_t kMostAge = 10 * 60;  // of a token when it comes here

struct Free {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(EVP_PKEY_CTX* p) const { EVP_PKEY_CTX_free(p); }
  void operator()(EVP_MD_CTX* p) const { EVP_MD_CTX_free(p); }
  void operator()(OSSL_PARAM_BLD* p) const { OSSL_PARAM_BLD_free(p); }
  void operator()(OSSL_PARAM* p) const { OSSL_PARAM_free(p); }
  void operator()(BIGNUM* p) const { BN_free(p); }
  void operator()(ECDSA_SIG* p) const { ECDSA_SIG_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

const unsigned char* Bytes(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }

// base64url without padding (RFC 7515).
std::optional<std::string> Decode(std::string_view text) {
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<uint32_t>(c - 'a' + 26);
    else if (c >= '0' && c <= '9')
      value = static_cast<uint32_t>(c - '0' + 52);
    else if (c == '-')
      value = 62;
    else if (c == '_')
      value = 63;
    else
      return std::nullopt;
    bits = bits << 6 | value;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xff);
    }
  }
  return out;
}

Owned<EVP_PKEY> FromData(const char* type, OSSL_PARAM_BLD* builder) {
  const Owned<OSSL_PARAM> params(OSSL_PARAM_BLD_to_param(builder));
  const Owned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (!params || !context || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    return nullptr;
  }
  return Owned<EVP_PKEY>(key);
}

Owned<EVP_PKEY> RsaKey(const Json& json) {
  const auto n = Decode(Text(json, "n")), e = Decode(Text(json, "e"));
  if (!n || !e || n->size() < 256 || n->size() > 1024 || e->empty() || e->size() > 8) return nullptr;
  const Owned<BIGNUM> modulus(BN_bin2bn(Bytes(*n), static_cast<int>(n->size()), nullptr));
  const Owned<BIGNUM> exponent(BN_bin2bn(Bytes(*e), static_cast<int>(e->size()), nullptr));
  const Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  if (!modulus || !exponent || !builder || BN_num_bits(modulus.get()) < 2048 || !BN_is_odd(exponent.get()) ||
      BN_is_one(exponent.get()) || OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get()) != 1) {
    return nullptr;
  }
  return FromData("RSA", builder.get());
}

Owned<EVP_PKEY> EcKey(const Json& json) {
  const auto x = Decode(Text(json, "x")), y = Decode(Text(json, "y"));
  if (Text(json, "crv") != "P-256" || !x || !y || x->size() != 32 || y->size() != 32) return nullptr;
  const std::string point = "\x04" + *x + *y;
  const Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  if (!builder || OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(), point.size()) != 1) {
    return nullptr;
  }
  return FromData("EC", builder.get());  // refuses points that are not on the curve
}

// r and s, 32 bytes each, as OpenSSL takes them.
std::string EcSignature(const std::string& signature) {
  if (signature.size() != 64) return "";
  const Owned<ECDSA_SIG> both(ECDSA_SIG_new());
  BIGNUM* r = BN_bin2bn(Bytes(signature), 32, nullptr);
  BIGNUM* s = BN_bin2bn(Bytes(signature) + 32, 32, nullptr);
  if (!both || r == nullptr || s == nullptr || ECDSA_SIG_set0(both.get(), r, s) != 1) {
    BN_free(r);
    BN_free(s);
    return "";
  }
  unsigned char* bytes = nullptr;
  const int size = i2d_ECDSA_SIG(both.get(), &bytes);
  if (size <= 0) return "";
  std::string der(reinterpret_cast<char*>(bytes), static_cast<size_t>(size));
  OPENSSL_free(bytes);
  return der;
}

Error Denied(const std::string& why) { return {Code::kDenied, "the ID token " + why}; }

bool IsFor(const Json& claims, const std::string& client) {
  const Json* audience = Member(claims, "aud");
  if (audience == nullptr) return false;
  if (audience->is_string()) return Text(claims, "aud") == client;
  if (!audience->is_array()) return false;
  const bool there = std::any_of(audience->begin(), audience->end(),
                                 [&](const Json& one) { return one.is_string() && one.get<std::string>() == client; });
  // Of a token for several, only the one that asked for it may use it.
  return there && (audience->size() == 1 || Text(claims, "azp") == client);
}

Status CheckTimes(const Json& claims, int64_t now) {
  const auto until = Number(claims, "exp"), made = Number(claims, "iat"), from = Number(claims, "nbf");
  if (!until || !made) return Denied("has no times");
  if (*until <= now - kSkew) return Denied("has ended: log in again");
  if (*made > now + kSkew || (from && *from > now + kSkew)) {
    return Denied("is of the future: compare the controller's clock with the identity provider's");
  }
  if (*made < now - kMostAge) return Denied("is older than 10 minutes: log in again");
  return {};
}

Result<std::string> UserOf(const Json& claims, const Settings& settings) {
  std::string user = Text(claims, settings.user_claim);
  const std::string what = "has the " + settings.user_claim + " " + Escape(user.substr(0, 200));
  if (user.empty()) {
    return Denied("has no claim " + Escape(settings.user_claim) + ": set `user_claim` or `scopes` of [oidc]");
  }
  if (settings.user_claim == "email") {
    const Json* verified = Member(claims, "email_verified");
    if (verified != nullptr && *verified != Json(true)) return Denied(what + ", which nobody has verified");
  }
  if (!settings.domain.empty()) {
    if (!user.ends_with("@" + settings.domain)) return Denied(what + ", which is not in " + Escape(settings.domain));
    user.resize(user.size() - settings.domain.size() - 1);
  }
  const bool good = !user.empty() && user.size() <= kMostName && user[0] != '.' && user[0] != '-' &&
                    std::all_of(user.begin(), user.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                             std::string_view("._-+").find(c) != std::string_view::npos;
                    });
  if (!good) {
    return Denied(what + ", which cannot be a user's name: set `user_claim` of [oidc], or `domain` for addresses");
  }
  return user;
}

std::vector<std::string> GroupsOf(const Json& claims, const Settings& settings) {
  std::vector<std::string> groups;
  const Json* list = Member(claims, settings.groups_claim);
  if (list == nullptr || !list->is_array()) return groups;
  for (const Json& one : *list) {
    if (!one.is_string() || groups.size() == kMostGroups) continue;
    std::string group = one.get<std::string>();
    if (!group.empty() && group.size() <= kMostGroupBytes) groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

struct Keys::Key {
  Owned<EVP_PKEY> key;
  std::string algorithm;
};

Result<Keys> Keys::Parse(const std::string& text) {
  const Json json = ParseObject(text);
  const Json* list = Member(json, "keys");
  if (list == nullptr || !list->is_array())
    return Error(Code::kCorrupt, "the identity provider's keys are no list of keys");
  Keys keys;
  for (const Json& one : *list) {
    if (keys.keys_.size() == kMostKeys) break;
    const std::string use = Text(one, "use"), type = Text(one, "kty"), algorithm = type == "RSA" ? "RS256" : "ES256";
    const std::string said = Text(one, "alg");
    if ((!use.empty() && use != "sig") || (!said.empty() && said != algorithm)) continue;
    auto key = std::make_shared<Key>();
    key->algorithm = algorithm;
    key->key = type == "RSA" ? RsaKey(one) : type == "EC" ? EcKey(one) : nullptr;
    if (key->key) keys.keys_.emplace(Text(one, "kid"), std::move(key));
  }
  ERR_clear_error();
  return keys;
}

bool Keys::Verify(const std::string& id, const std::string& algorithm, const std::string& signed_text,
                  const std::string& signature) const {
  const auto found = keys_.find(id);
  if (found == keys_.end() || found->second->algorithm != algorithm) return false;
  const std::string form = algorithm == "ES256" ? EcSignature(signature) : signature;
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  const bool good =
      !form.empty() && context &&
      EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, found->second->key.get()) == 1 &&
      EVP_DigestVerify(context.get(), Bytes(form), form.size(), Bytes(signed_text), signed_text.size()) == 1;
  ERR_clear_error();
  return good;
}

Result<Identity> VerifyIdToken(const std::string& token, const Keys& keys, const Settings& settings, int64_t now_s) {
  const size_t first = token.find('.'), last = token.rfind('.');
  if (token.size() > kMostToken || first == std::string::npos || first == last) return Denied("is none");
  const auto head = Decode(std::string_view(token).substr(0, first));
  const auto body = Decode(std::string_view(token).substr(first + 1, last - first - 1));
  const auto signature = Decode(std::string_view(token).substr(last + 1));
  if (!head || !body || !signature) return Denied("is none");
  const Json header = ParseObject(*head), claims = ParseObject(*body);
  if (header.is_discarded() || claims.is_discarded() || header.contains("crit")) return Denied("is none");
  const std::string algorithm = Text(header, "alg"), id = Text(header, "kid");
  // Never what the token itself asks for: none, or a shared secret.
  if (algorithm != "RS256" && algorithm != "ES256") {
    return Denied("is signed by " + Escape(algorithm.substr(0, 20)) +
                  ": make the provider sign for this client by RS256 or ES256");
  }
  if (!keys.Has(id)) return Error(Code::kNotFound, "the ID token is signed with a key that its issuer does not show");
  if (!keys.Verify(id, algorithm, token.substr(0, last), *signature)) return Denied("is not signed by its issuer");
  if (const std::string issuer = Text(claims, "iss"); issuer != settings.issuer) {
    return Denied("is of the issuer " + Escape(issuer.substr(0, 200)) + ", not of " + Escape(settings.issuer));
  }
  if (!IsFor(claims, settings.client_id)) return Denied("is for another client than " + Escape(settings.client_id));
  VRUN_TRY(CheckTimes(claims, now_s));
  Identity who;
  who.subject = Text(claims, "sub");
  if (who.subject.empty() || who.subject.size() > 255) return Denied("names nobody");
  VRUN_ASSIGN(who.user, UserOf(claims, settings));
  who.groups = GroupsOf(claims, settings);
  const auto allowed = [&](const std::string& group) {
    return std::find(settings.allow.begin(), settings.allow.end(), group) != settings.allow.end();
  };
  if (!settings.allow.empty() && std::none_of(who.groups.begin(), who.groups.end(), allowed)) {
    return Error(Code::kDenied,
                 Escape(who.user) + ": in no group whose members may use this cluster: ask its administrator");
  }
  who.nonce = Text(claims, "nonce");
  who.until_s = *Number(claims, "exp");
  return who;
}

}  // namespace vrun::oidc
