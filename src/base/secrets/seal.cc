// SPDX-License-Identifier: Apache-2.0
#include "base/secrets/seal.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/escape.h"
#include "base/files.h"
#include "base/hash/secret.h"
#include "base/unique_fd.h"

namespace vrun {
namespace {

constexpr size_t kKeyBytes = 32, kNonceBytes = 12, kTagBytes = 16;

struct Free {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, Free>;

const unsigned char* Raw(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* Raw(std::string& bytes, size_t at) { return reinterpret_cast<unsigned char*>(bytes.data()) + at; }

}  // namespace

SealKey::SealKey(std::string_view key) { std::copy_n(key.begin(), key_.size(), key_.begin()); }

SealKey::~SealKey() { ::OPENSSL_cleanse(key_.data(), key_.size()); }

Result<SealKey> SealKey::Read(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return ErrnoError("key " + Escape(path));
  struct stat st {};
  if (::fstat(file.get(), &st) != 0) return ErrnoError("key " + Escape(path));
  if ((st.st_mode & 077) != 0) {
    return Error(Code::kDenied, "key " + Escape(path) + ": others may read it: make its mode 0600");
  }
  VRUN_ASSIGN(std::string key, ReadFile("/proc/self/fd/" + std::to_string(file.get()), kKeyBytes));
  if (key.size() != kKeyBytes) {
    return Error(Code::kCorrupt, "key " + Escape(path) + ": it is not whole: restore it from a backup");
  }
  SealKey made(key);
  ::OPENSSL_cleanse(key.data(), key.size());
  return made;
}

Result<SealKey> SealKey::Create(const std::string& path) {
  if (PathExists(path)) return Error(Code::kExists, "key " + Escape(path) + ": there is one");
  VRUN_ASSIGN(std::string key, RandomSecret(kKeyBytes));
  VRUN_TRY(WriteFileAtomic(path, key, 0600));
  return SealKey(key);
}

std::string SealKey::Seal(std::string_view bytes, std::string_view about) const {
  // Random nonces: under one key 2^32 of them are safe.
  Result<std::string> nonce = RandomSecret(kNonceBytes);
  VRUN_CHECK(nonce.has_value());
  std::string out = *nonce;
  out.resize(kNonceBytes + bytes.size() + kTagBytes);
  const Context context(EVP_CIPHER_CTX_new());
  int n = 0;
  const bool done =
      context && EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key_.data(), Raw(*nonce)) == 1 &&
      EVP_EncryptUpdate(context.get(), nullptr, &n, Raw(about), static_cast<int>(about.size())) == 1 &&
      EVP_EncryptUpdate(context.get(), Raw(out, kNonceBytes), &n, Raw(bytes), static_cast<int>(bytes.size())) == 1 &&
      EVP_EncryptFinal_ex(context.get(), Raw(out, kNonceBytes + bytes.size()), &n) == 1 &&
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, Raw(out, kNonceBytes + bytes.size())) == 1;
  VRUN_CHECK(done);
  return out;
}

Result<std::string> SealKey::Open(std::string_view sealed, std::string_view about) const {
  const Error bad(Code::kCorrupt, "sealed with another key, or damaged");
  if (sealed.size() < kOverhead) return bad;
  const std::string_view nonce = sealed.substr(0, kNonceBytes);
  const std::string_view body = sealed.substr(kNonceBytes, sealed.size() - kOverhead);
  std::string tag(sealed.substr(sealed.size() - kTagBytes)), out(body.size(), '\0'), end(kTagBytes, '\0');
  const Context context(EVP_CIPHER_CTX_new());
  int n = 0;
  const bool done = context &&
                    EVP_DecryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key_.data(), Raw(nonce)) == 1 &&
                    EVP_DecryptUpdate(context.get(), nullptr, &n, Raw(about), static_cast<int>(about.size())) == 1 &&
                    EVP_DecryptUpdate(context.get(), Raw(out, 0), &n, Raw(body), static_cast<int>(body.size())) == 1 &&
                    EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, tag.data()) == 1 &&
                    EVP_DecryptFinal_ex(context.get(), Raw(end, 0), &n) == 1;
  if (!done) return bad;
  return out;
}

}  // namespace vrun
