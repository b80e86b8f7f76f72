// SPDX-License-Identifier: Apache-2.0
// ID tokens that are good, and all that are not: made here with keys of OpenSSL, as an identity provider would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include "oidc/id_token.h"
#include "oidc/json.h"
#include "oidc/provider.h"

namespace vrun::oidc {
namespace {

constexpr int64_t kNow = 1'800'000'000;

std::string Base64Url(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6;) text += kDigits[bits >> (count -= 6) & 63];
  }
  if (count > 0) text += kDigits[bits << (6 - count) & 63];
  return text;
}

class Signer {
 public:
  explicit Signer(bool rsa, unsigned bits = 2048)
      : rsa_(rsa), key_(rsa ? EVP_RSA_gen(bits) : EVP_EC_gen("P-256")), id_(rsa ? "r" : "e") {}
  ~Signer() { EVP_PKEY_free(key_); }

  std::string Number(const char* name) const {
    BIGNUM* number = nullptr;
    EVP_PKEY_get_bn_param(key_, name, &number);
    std::string bytes(static_cast<size_t>(rsa_ ? BN_num_bytes(number) : 32), '\0');
    BN_bn2binpad(number, reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
    BN_free(number);
    return Base64Url(bytes);
  }
  Json Jwk() const {
    if (rsa_)
      return {{"kty", "RSA"}, {"kid", id_}, {"n", Number(OSSL_PKEY_PARAM_RSA_N)}, {"e", Number(OSSL_PKEY_PARAM_RSA_E)}};
    return {{"kty", "EC"},
            {"kid", id_},
            {"crv", "P-256"},
            {"x", Number(OSSL_PKEY_PARAM_EC_PUB_X)},
            {"y", Number(OSSL_PKEY_PARAM_EC_PUB_Y)}};
  }
  std::string Token(const Json& claims, Json header = {}) const {
    if (header.is_null()) header = {{"alg", rsa_ ? "RS256" : "ES256"}, {"kid", id_}};
    const std::string text = Base64Url(header.dump()) + "." + Base64Url(claims.dump());
    return text + "." + Base64Url(Sign(text));
  }

 private:
  std::string Sign(const std::string& text) const {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    std::string out(1024, '\0');
    size_t size = out.size();
    EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key_);
    EVP_DigestSign(context, reinterpret_cast<unsigned char*>(out.data()), &size, bytes, text.size());
    EVP_MD_CTX_free(context);
    out.resize(size);
    if (rsa_) return out;
    const auto* der = reinterpret_cast<const unsigned char*>(out.data());
    ECDSA_SIG* both = d2i_ECDSA_SIG(nullptr, &der, static_cast<long>(size));
    std::string raw(64, '\0');
    BN_bn2binpad(ECDSA_SIG_get0_r(both), reinterpret_cast<unsigned char*>(raw.data()), 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(both), reinterpret_cast<unsigned char*>(raw.data()) + 32, 32);
    ECDSA_SIG_free(both);
    return raw;
  }

  const bool rsa_;
  EVP_PKEY* const key_;
  const std::string id_;
};

class IdTokenTest : public ::testing::Test {
 protected:
  IdTokenTest() {
    settings_.issuer = "https://id.example.org";
    settings_.client_id = "vrun";
    Json keys;
    keys["keys"] = Json::array({rsa_.Jwk(), ec_.Jwk(), Json("noise"), Json{{"kty", "oct"}, {"k", "AAAA"}}});
    keys_ = Keys::Parse(keys.dump()).value();
    claims_ = {{"iss", settings_.issuer},     {"aud", "vrun"}, {"sub", "1"},
               {"exp", kNow + 300},           {"iat", kNow},   {"preferred_username", "anna"},
               {"groups", {"ml", 7, "staff"}}};
  }
  Result<Identity> Verify(const std::string& token) { return VerifyIdToken(token, keys_, settings_, kNow); }
  // What is said of a token with this claim instead.
  std::string Refused(const std::string& name, Json value) {
    Json claims = claims_;
    value.is_null() ? claims.erase(name) : (claims[name] = std::move(value), 0);
    const auto who = Verify(rsa_.Token(claims));
    if (who) return "good";
    EXPECT_EQ(who.error().code(), Code::kDenied);
    EXPECT_EQ(who.error().message().find('\n'), std::string::npos);
    return who.error().message();
  }

  const Signer rsa_{true}, ec_{false};
  Settings settings_;
  Keys keys_;
  Json claims_;
};

TEST_F(IdTokenTest, BothAlgorithmsTellWhoItIs) {
  EXPECT_EQ(keys_.size(), 2u);
  for (const Signer* signer : {&rsa_, &ec_}) {
    const auto who = Verify(signer->Token(claims_));
    ASSERT_TRUE(who) << who.error().message();
    EXPECT_EQ(who->user, "anna");
    EXPECT_EQ(who->subject, "1");
    EXPECT_EQ(who->groups, (std::vector<std::string>{"ml", "staff"}));
    EXPECT_EQ(who->until_s, kNow + 300);
  }
}

TEST_F(IdTokenTest, ClaimsThatAreNotForThisCluster) {
  using ::testing::HasSubstr;
  EXPECT_THAT(Refused("iss", "https://id.example.org/"), HasSubstr("of the issuer"));
  EXPECT_THAT(Refused("iss", nullptr), HasSubstr("of the issuer"));
  EXPECT_THAT(Refused("aud", "other"), HasSubstr("another client"));
  EXPECT_THAT(Refused("aud", {"vrun", "other"}), HasSubstr("another client"));  // and nobody says for which
  EXPECT_THAT(Refused("aud", Json::object()), HasSubstr("another client"));
  EXPECT_EQ(Refused("aud", Json::array({"vrun"})), "good");
  EXPECT_THAT(Refused("exp", kNow - 61), HasSubstr("has ended"));
  EXPECT_THAT(Refused("exp", "later"), HasSubstr("no times"));
  EXPECT_THAT(Refused("exp", nullptr), HasSubstr("no times"));
  EXPECT_THAT(Refused("exp", 1e300), HasSubstr("no times"));
  EXPECT_THAT(Refused("iat", kNow - 601), HasSubstr("older than"));
  EXPECT_THAT(Refused("iat", kNow + 61), HasSubstr("of the future"));
  EXPECT_THAT(Refused("nbf", kNow + 61), HasSubstr("of the future"));
  EXPECT_THAT(Refused("sub", ""), HasSubstr("names nobody"));
  for (const char* name : {"../x", "a/b", "", "-x", ".x", "anna@example.org", "a\nb", "ann\xc3\xa4"}) {
    EXPECT_NE(Refused("preferred_username", name), "good") << name;
  }
  settings_.allow = {"gpu"};
  EXPECT_THAT(Refused("groups", {"ml"}), HasSubstr("in no group"));
  EXPECT_EQ(Refused("groups", {"ml", "gpu"}), "good");
}

TEST_F(IdTokenTest, AnAddressIsAUserInOneDomainOnly) {
  settings_.user_claim = "email";
  settings_.domain = "example.org";
  EXPECT_NE(Refused("email", "anna@example.com"), "good");
  EXPECT_NE(Refused("email", "anna@evil.example.org"), "good");
  EXPECT_NE(Refused("email", "anna@x@example.org"), "good");
  EXPECT_EQ(Refused("email", "anna@example.org"), "good");
  claims_["email"] = "anna@example.org";
  EXPECT_NE(Refused("email_verified", false), "good");
  EXPECT_NE(Refused("email_verified", "yes"), "good");
}

TEST_F(IdTokenTest, SignaturesThatAreNone) {
  const std::string good = rsa_.Token(claims_);
  const auto says = [&](const std::string& token) {
    const auto who = Verify(token);
    return who ? "good" : who.error().message();
  };
  for (const Json& header :
       {Json{{"alg", "none"}, {"kid", "r"}}, Json{{"alg", "HS256"}, {"kid", "r"}}, Json{{"kid", "r"}}}) {
    EXPECT_NE(says(rsa_.Token(claims_, header)).find("is signed by"), std::string::npos);
  }
  EXPECT_EQ(says(rsa_.Token(claims_, {{"alg", "ES256"}, {"kid", "r"}})), "the ID token is not signed by its issuer");
  EXPECT_EQ(says(ec_.Token(claims_, {{"alg", "RS256"}, {"kid", "r"}})), "the ID token is not signed by its issuer");
  EXPECT_EQ(Verify(rsa_.Token(claims_, {{"alg", "RS256"}, {"kid", "x"}})).error().code(), Code::kNotFound);
  EXPECT_EQ(says(rsa_.Token(claims_, {{"alg", "RS256"}, {"kid", "r"}, {"crit", {"b64"}}})), "the ID token is none");
  const Signer stranger(true);
  EXPECT_EQ(says(stranger.Token(claims_)), "the ID token is not signed by its issuer");
  const size_t first = good.find('.'), last = good.rfind('.');
  EXPECT_NE(says(good.substr(0, last + 1)), "good");
  EXPECT_NE(says(good.substr(0, last)), "good");
  Json other = claims_;
  other["preferred_username"] = "bob";
  EXPECT_NE(says(good.substr(0, first + 1) + Base64Url(other.dump()) + good.substr(last)), "good");
  for (const char* text : {"", ".", "..", "...", "a.b.c", "e30.e30.", "bnVsbA.bnVsbA.AA"})
    EXPECT_NE(says(text), "good") << text;
  EXPECT_NE(says(std::string(100'000, 'A') + "." + good), "good");
}

TEST(KeysTest, WeakAndBrokenKeysAreLeftOut) {
  const Signer weak(true, 1024), ec(false);
  Json off = ec.Jwk();
  off["y"] = off["x"];
  Json encrypts = ec.Jwk();
  encrypts["use"] = "enc";
  Json keys;
  keys["keys"] = Json::array(
      {weak.Jwk(), off, encrypts, Json{{"kty", "RSA"}, {"n", "AQAB"}, {"e", "AQAB"}}, Json{{"kty", "EC"}}, nullptr, 7});
  EXPECT_EQ(Keys::Parse(keys.dump()).value().size(), 0u);
  for (const char* text : {"", "[]", "{}", "{\"keys\":{}}", "null", "{\"keys\":["})
    EXPECT_FALSE(Keys::Parse(text)) << text;
}

TEST(ProviderTest, AnswersOfAProviderThatCannotBeTrusted) {
  const std::string issuer = "https://id.example.org";
  const auto provider = [&](Json more) {
    Json json = {{"issuer", issuer},
                 {"token_endpoint", issuer + "/t"},
                 {"jwks_uri", issuer + "/k"},
                 {"device_authorization_endpoint", issuer + "/d"}};
    json.update(more);
    return ParseProvider(json.dump(), issuer);
  };
  EXPECT_EQ(provider(Json::object())->device_authorization, issuer + "/d");
  EXPECT_FALSE(provider({{"issuer", "https://other.example.org"}}));
  for (const char* url : {"http://id.example.org/t", "file:///etc/passwd", "https://", "https://a@b/t",
                          "http://127.0.0.1:1@b/t", "https://x/\n", ""}) {
    EXPECT_FALSE(provider({{"token_endpoint", url}})) << url;
  }
  EXPECT_TRUE(provider({{"token_endpoint", "http://127.0.0.1:8080/t"}}));
  EXPECT_FALSE(ParseProvider("<html>", issuer));

  EXPECT_FALSE(ParseDeviceCode(200, "{}"));
  EXPECT_FALSE(ParseDeviceCode(200, R"({"device_code":"a","user_code":"b","verification_uri":"javascript:alert"})"));
  const auto code = ParseDeviceCode(
      200,
      R"({"device_code":"a","user_code":"b","verification_uri":"https://x/d","verification_uri_complete":"http://y/","expires_in":1e9,"interval":-4})");
  ASSERT_TRUE(code);
  EXPECT_EQ(code->complete_uri, "");
  EXPECT_LE(code->seconds, 3600);
  EXPECT_EQ(code->interval_seconds, 1);
  const auto error = ParseDeviceCode(400, "{\"error\":\"invalid_client\",\"error_description\":\"a\\nb\\u001b[2J\"}");
  EXPECT_EQ(error.error().message().find_first_of("\n\x1b"), std::string::npos);

  EXPECT_EQ(ParseTokenAnswer(400, R"({"error":"authorization_pending"})")->what, TokenAnswer::kPending);
  EXPECT_EQ(ParseTokenAnswer(400, R"({"error":"slow_down"})")->what, TokenAnswer::kSlowDown);
  EXPECT_EQ(ParseTokenAnswer(400, R"({"error":"access_denied"})").error().code(), Code::kDenied);
  EXPECT_EQ(ParseTokenAnswer(400, R"({"error":"expired_token"})").error().code(), Code::kTimeout);
  EXPECT_FALSE(ParseTokenAnswer(500, "down"));
  EXPECT_FALSE(ParseTokenAnswer(200, R"({"id_token":7})"));
}

}  // namespace
}  // namespace vrun::oidc
