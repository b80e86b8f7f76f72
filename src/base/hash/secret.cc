// SPDX-License-Identifier: Apache-2.0
#include "base/hash/secret.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <utility>

namespace vrun {
namespace {

constexpr size_t kKeyBytes = 32, kSignatureBytes = 64;

const unsigned char* Raw(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

}  // namespace

Result<std::string> RandomSecret(size_t bytes) {
  std::string secret(bytes, '\0');
  for (size_t at = 0; at < bytes;) {
    const ssize_t n = ::getrandom(secret.data() + at, bytes - at, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("random secret");
    at += static_cast<size_t>(n);
  }
  return secret;
}

Digest HmacSha256(std::string_view key, std::string_view message) {
  Digest out;
  unsigned length = 0;
  VRUN_CHECK(::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Raw(message), message.size(),
                    out.bytes.data(), &length) != nullptr &&
             length == out.bytes.size());
  return out;
}

bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

struct SigningKey::Impl {
  Key key;
};

SigningKey::SigningKey(std::unique_ptr<Impl> impl, std::string public_key)
    : impl_(std::move(impl)), public_key_(std::move(public_key)) {}
SigningKey::SigningKey(SigningKey&&) noexcept = default;
SigningKey& SigningKey::operator=(SigningKey&&) noexcept = default;
SigningKey::~SigningKey() = default;

Result<SigningKey> SigningKey::Generate() {
  VRUN_ASSIGN(const std::string seed, RandomSecret(kSeedBytes));
  return FromSeed(seed);
}

Result<SigningKey> SigningKey::FromSeed(std::string_view seed) {
  if (seed.size() != kSeedBytes) return Error(Code::kInvalid, "signing key: a seed of another length");
  Key key(::EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, Raw(seed), seed.size()));
  std::string public_key(kKeyBytes, '\0');
  size_t length = public_key.size();
  if (!key ||
      ::EVP_PKEY_get_raw_public_key(key.get(), reinterpret_cast<unsigned char*>(public_key.data()), &length) != 1 ||
      length != kKeyBytes) {
    return Error(Code::kInternal, "signing key: OpenSSL has no Ed25519");
  }
  auto impl = std::make_unique<Impl>();
  impl->key = std::move(key);
  return SigningKey(std::move(impl), std::move(public_key));
}

std::string SigningKey::Sign(std::string_view message) const {
  std::string signature(kSignatureBytes, '\0');
  size_t length = signature.size();
  const Context context(::EVP_MD_CTX_new());
  VRUN_CHECK(::EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, impl_->key.get()) == 1);
  VRUN_CHECK(::EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &length, Raw(message),
                              message.size()) == 1 &&
             length == kSignatureBytes);
  return signature;
}

bool VerifySignature(std::string_view public_key, std::string_view message, std::string_view signature) {
  if (public_key.size() != kKeyBytes || signature.size() != kSignatureBytes) return false;
  const Key key(::EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, Raw(public_key), public_key.size()));
  const Context context(::EVP_MD_CTX_new());
  return key && context && ::EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
         ::EVP_DigestVerify(context.get(), Raw(signature), signature.size(), Raw(message), message.size()) == 1;
}

}  // namespace vrun
