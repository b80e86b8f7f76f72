// SPDX-License-Identifier: Apache-2.0
#include "s3/extent.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <zstd.h>

#include <cstring>
#include <memory>

#include "base/hash/blake3.h"
#include "s3/sigv4.h"

namespace vrun::s3 {
namespace {

constexpr std::string_view kMagic("vrunS3\0\1", 8);
constexpr size_t kPlainBytes = 32, kRowBytes = 37, kTagBytes = 16;
constexpr uint32_t kMostStored = 256 * 1024;  // no unit is larger

Error Corrupt(const char* what) { return Error(Code::kCorrupt, std::string("S3: ") + what); }

void PutU32(uint32_t v, char* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(v >> (8 * i));
}

uint32_t GetU32(const char* in) {
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i) v |= static_cast<uint32_t>(static_cast<unsigned char>(in[i])) << (8 * i);
  return v;
}

std::string ExtentKey(std::string_view key, std::string_view salt, std::string_view name) {
  return HmacSha256(key, "vrun-extent-1" + std::string(salt) + std::string(name));
}

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

unsigned char* Bytes(char* p) { return reinterpret_cast<unsigned char*>(p); }
const unsigned char* Bytes(const char* p) { return reinterpret_cast<const unsigned char*>(p); }

// Appends the sealed text and its tag.
void Seal(std::string_view key, uint32_t nonce, std::string_view aad, std::string_view text, std::string* out) {
  char iv[12] = {};
  PutU32(nonce, iv);
  Cipher cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  const size_t at = out->size();
  out->resize(at + text.size() + kTagBytes);
  int n = 0;
  bool fine = cipher != nullptr &&
              EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, Bytes(key.data()), Bytes(iv)) == 1;
  if (!aad.empty()) {
    fine = fine && EVP_EncryptUpdate(cipher.get(), nullptr, &n, Bytes(aad.data()), static_cast<int>(aad.size())) == 1;
  }
  fine = fine && EVP_EncryptUpdate(cipher.get(), Bytes(out->data() + at), &n, Bytes(text.data()),
                                   static_cast<int>(text.size())) == 1;
  fine = fine && EVP_EncryptFinal_ex(cipher.get(), Bytes(out->data() + at + text.size()), &n) == 1;
  fine =
      fine && EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, out->data() + at + text.size()) == 1;
  VRUN_CHECK(fine);  // fails only without memory
}

bool Unseal(std::string_view key, uint32_t nonce, std::string_view aad, std::string_view sealed, std::string* text) {
  if (sealed.size() < kTagBytes) return false;
  const std::string_view body = sealed.substr(0, sealed.size() - kTagBytes);
  char tag[kTagBytes];
  std::memcpy(tag, sealed.data() + body.size(), kTagBytes);
  char iv[12] = {};
  PutU32(nonce, iv);
  Cipher cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  text->resize(body.size());
  int n = 0;
  return cipher != nullptr &&
         EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, Bytes(key.data()), Bytes(iv)) == 1 &&
         (aad.empty() ||
          EVP_DecryptUpdate(cipher.get(), nullptr, &n, Bytes(aad.data()), static_cast<int>(aad.size())) == 1) &&
         EVP_DecryptUpdate(cipher.get(), Bytes(text->data()), &n, Bytes(body.data()), static_cast<int>(body.size())) ==
             1 &&
         EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, tag) == 1 &&
         EVP_DecryptFinal_ex(cipher.get(), Bytes(text->data() + body.size()), &n) == 1;
}

}  // namespace

std::string SealExtent(std::string_view key, std::string_view name, const std::vector<std::optional<ExtentUnit>>& units,
                       int zstd_level) {
  VRUN_CHECK(!units.empty() && units.size() <= kMaxExtentUnits);
  std::string plain(kPlainBytes, '\0');
  kMagic.copy(plain.data(), kMagic.size());
  PutU32(static_cast<uint32_t>(units.size()), plain.data() + 8);
  VRUN_CHECK(::RAND_bytes(Bytes(plain.data() + 16), 16) == 1);
  const std::string sealing = ExtentKey(key, std::string_view(plain).substr(16), name);

  std::string table(kRowBytes * units.size(), '\0'), body, packed;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!units[i]) continue;
    std::string_view stored = units[i]->data;
    // Room for only nine tenths: zstd then fails by itself when the saving is too small.
    packed.resize(stored.size() - stored.size() / 10);
    const size_t n = ::ZSTD_compress(packed.data(), packed.size(), stored.data(), stored.size(), zstd_level);
    const bool zstd = !::ZSTD_isError(n);
    if (zstd) stored = std::string_view(packed).substr(0, n);
    VRUN_CHECK(!stored.empty() && stored.size() <= kMostStored);
    char* row = table.data() + kRowBytes * i;
    std::memcpy(row, units[i]->digest.bytes.data(), 32);
    PutU32(static_cast<uint32_t>(stored.size()), row + 32);
    row[36] = zstd ? 1 : 0;
    Seal(sealing, static_cast<uint32_t>(i + 1), {}, stored, &body);
  }
  std::string out = plain;
  Seal(sealing, 0, plain + std::string(name), table, &out);
  return out + body;
}

Result<ExtentTable> ExtentTable::Open(std::string_view key, std::string_view name, uint64_t units,
                                      std::string_view header) {
  if (header.size() < ExtentHeaderBytes(units)) return Corrupt("the object is too short");
  if (header.substr(0, kMagic.size()) != kMagic) return Corrupt("an object that is not of this format");
  if (GetU32(header.data() + 8) != units) return Corrupt("an extent of another size");
  ExtentTable out;
  out.key_ = ExtentKey(key, header.substr(16, 16), name);
  std::string table;
  if (!Unseal(out.key_, 0, std::string(header.substr(0, kPlainBytes)) + std::string(name),
              header.substr(kPlainBytes, kRowBytes * units + kTagBytes), &table)) {
    return Corrupt("an object that is damaged or not ours");
  }
  for (uint64_t i = 0; i < units; ++i) {
    const char* row = table.data() + kRowBytes * i;
    Unit unit;
    std::memcpy(unit.digest.bytes.data(), row, 32);
    unit.stored = GetU32(row + 32);
    unit.zstd = (row[36] & 1) != 0;
    if (unit.stored > kMostStored || (row[36] & ~1) != 0) return Corrupt("the table is inconsistent");
    out.units_.push_back(unit);
  }
  return out;
}

uint64_t ExtentTable::OffsetOf(uint64_t unit) const {
  uint64_t at = ExtentHeaderBytes(units_.size());
  for (uint64_t i = 0; i < unit; ++i) {
    if (Has(i)) at += BytesOf(i);
  }
  return at;
}

Result<std::string> ExtentTable::OpenUnit(uint64_t unit, std::string_view stored, uint64_t length) const {
  if (!Has(unit) || stored.size() != BytesOf(unit)) return Corrupt("a unit of another length than its table says");
  std::string text;
  if (!Unseal(key_, static_cast<uint32_t>(unit + 1), {}, stored, &text)) return Corrupt("a unit that is damaged");
  if (units_[unit].zstd) {
    // The output buffer is the limit, whatever the frame claims.
    std::string out(length, '\0');
    const size_t n = ::ZSTD_decompress(out.data(), out.size(), text.data(), text.size());
    if (::ZSTD_isError(n) || n != length) return Corrupt("a unit that does not decompress to its length");
    text = std::move(out);
  }
  if (text.size() != length || Blake3(text) != units_[unit].digest) {
    return Corrupt("a unit that does not match its digest");
  }
  return text;
}

}  // namespace vrun::s3
