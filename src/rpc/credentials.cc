// SPDX-License-Identifier: Apache-2.0
#include "rpc/credentials.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "rpc/internal.h"

namespace vrun::rpc {
namespace {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using CertPtr = std::unique_ptr<X509, Freer<X509_free>>;
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>>;
using RequestPtr = std::unique_ptr<X509_REQ, Freer<X509_REQ_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;

constexpr int64_t kDaySeconds = 24 * 3600;
constexpr int64_t kAuthorityDays = 3650;
// Certificates must be valid on machines whose clock is this much behind.
constexpr int64_t kClockSkewSeconds = 3600;

Error SslError(std::string_view what) {
  char text[256] = "unknown error of OpenSSL";
  if (unsigned long e = ERR_get_error(); e != 0) ERR_error_string_n(e, text, sizeof text);
  ERR_clear_error();
  return Error(Code::kInternal, std::string(what) + ": " + text);
}

Result<std::string> BioText(BIO* bio) {
  char* data = nullptr;
  long n = BIO_get_mem_data(bio, &data);
  if (n <= 0) return SslError("encode PEM");
  return std::string(data, static_cast<size_t>(n));
}

Result<std::string> CertToPem(X509* cert) {
  BioPtr bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_X509(bio.get(), cert) != 1) return SslError("encode certificate");
  return BioText(bio.get());
}

Result<std::string> KeyToPem(EVP_PKEY* key) {
  BioPtr bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return SslError("encode key");
  }
  return BioText(bio.get());
}

CertPtr CertFromPem(std::string_view pem) {
  BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  CertPtr cert(bio ? PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  ERR_clear_error();
  return cert;
}

KeyPtr KeyFromPem(std::string_view pem) {
  BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // The empty pass phrase keeps OpenSSL from prompting for one on the terminal.
  KeyPtr key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, const_cast<char*>("")) : nullptr);
  ERR_clear_error();
  return key;
}

// Seconds until the certificate expires; negative if it has.
int64_t SecondsLeft(const X509* cert) {
  int days = 0;
  int seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(cert)) != 1) return -1;
  return int64_t{days} * 86400 + seconds;
}

int64_t LifeSeconds(const X509* cert) {
  int days = 0;
  int seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, X509_get0_notBefore(cert), X509_get0_notAfter(cert)) != 1) return 0;
  return int64_t{days} * 86400 + seconds;
}

bool StartsInFuture(const X509* cert) { return X509_cmp_current_time(X509_get0_notBefore(cert)) > 0; }

std::string EndText(const X509* cert) { return FormatRfc3339(WallMicros() + SecondsLeft(cert) * 1'000'000); }

bool IsSignedBy(X509* cert, X509* ca) {
  EVP_PKEY* key = X509_get0_pubkey(ca);
  bool fine = key != nullptr && X509_verify(cert, key) == 1;
  ERR_clear_error();
  return fine;
}

std::vector<std::string> UrisOf(X509* cert) {
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(cert, NID_subject_alt_name, nullptr, nullptr));
  std::vector<std::string> found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* n = sk_GENERAL_NAME_value(names, i);
    if (n->type != GEN_URI) continue;
    const ASN1_IA5STRING* text = n->d.uniformResourceIdentifier;
    found.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                       static_cast<size_t>(ASN1_STRING_length(text)));
  }
  GENERAL_NAMES_free(names);
  return found;
}

bool HasIdentity(X509* cert, const std::string& uri) {
  const std::vector<std::string> uris = UrisOf(cert);
  return std::find(uris.begin(), uris.end(), uri) != uris.end();
}

Status AddExtension(X509* cert, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (!extension || X509_add_ext(cert, extension.get(), -1) != 1) return SslError("add extension " + value);
  return {};
}

Result<CertPtr> NewCertificate(EVP_PKEY* key, const std::string& common_name, int64_t seconds, X509* issuer) {
  CertPtr cert(X509_new());
  if (!cert) return SslError("make certificate");
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof serial) != 1) return SslError("random serial");
  serial[0] &= 0x7f;  // positive
  serial[0] |= 0x40;  // of full length
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  bool fine = number != nullptr && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert.get())) != nullptr;
  BN_free(number);
  // The standard limits a common name to 64 bytes; only the URI matters as identity.
  std::string cn = common_name.substr(0, 64);
  X509_NAME* subject = X509_get_subject_name(cert.get());
  fine = fine && X509_set_version(cert.get(), 2) == 1 &&
         X509_gmtime_adj(X509_getm_notBefore(cert.get()), -kClockSkewSeconds) != nullptr &&
         X509_time_adj_ex(X509_getm_notAfter(cert.get()), static_cast<int>(seconds / kDaySeconds),
                          static_cast<long>(seconds % kDaySeconds), nullptr) != nullptr &&
         X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(cn.data()),
                                    static_cast<int>(cn.size()), -1, 0) == 1 &&
         X509_set_issuer_name(cert.get(), issuer ? X509_get_subject_name(issuer) : subject) == 1 &&
         X509_set_pubkey(cert.get(), key) == 1;
  if (!fine) return SslError("make certificate");
  return cert;
}

Status RequirePrivate(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return ErrnoError("key " + Escape(path));
  if ((st.st_mode & 077) != 0) {
    return Error(Code::kDenied, "key " + Escape(path) +
                                    ": others may read or write it: chmod 600 it, or make a new one if "
                                    "somebody may have read it");
  }
  return {};
}

// Creates the directory (private if new) and locks it against concurrent processes.
Result<UniqueFd> LockDirectory(const std::string& directory) {
  VRUN_TRY(MakeDirs(directory, 0700));
  VRUN_ASSIGN(UniqueFd fd, OpenFile(directory + "/.lock", O_RDWR | O_CREAT, 0600));
  while (flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return ErrnoError("lock " + Escape(directory));
  }
  return fd;
}

struct Authority {
  CertPtr cert;
  KeyPtr key;
};

Result<Authority> LoadAuthority(const std::string& directory) {
  std::string key_path = directory + "/ca.key";
  VRUN_TRY(RequirePrivate(key_path));
  VRUN_ASSIGN(std::string cert_pem, ReadFile(directory + "/ca.pem"));
  VRUN_ASSIGN(std::string key_pem, ReadFile(key_path));
  Authority authority{CertFromPem(cert_pem), KeyFromPem(key_pem)};
  if (!authority.cert || !authority.key || X509_check_private_key(authority.cert.get(), authority.key.get()) != 1) {
    ERR_clear_error();
    return Error(Code::kCorrupt,
                 "certificate authority " + Escape(directory) +
                     ": ca.pem and ca.key do not parse or do not match: restore them, or remove both to "
                     "make a new authority (every certificate is made anew then)");
  }
  return authority;
}

Result<CertPtr> IssueFor(EVP_PKEY* key, const Authority& authority, const std::string& role, const std::string& name,
                         int64_t seconds) {
  const std::string uri = "vrun://" + role + "/" + name;
  X509* ca = authority.cert.get();
  VRUN_ASSIGN(CertPtr cert, NewCertificate(key, uri, seconds, ca));
  VRUN_TRY(AddExtension(cert.get(), ca, NID_basic_constraints, "critical,CA:FALSE"));
  VRUN_TRY(AddExtension(cert.get(), ca, NID_key_usage, "critical,digitalSignature"));
  VRUN_TRY(AddExtension(cert.get(), ca, NID_ext_key_usage, "serverAuth,clientAuth"));
  VRUN_TRY(AddExtension(cert.get(), ca, NID_subject_alt_name, "URI:" + uri + ",DNS:" + role + ".vrun"));
  VRUN_TRY(AddExtension(cert.get(), ca, NID_authority_key_identifier, "keyid"));
  if (X509_sign(cert.get(), authority.key.get(), EVP_sha256()) == 0) return SslError("sign certificate");
  return cert;
}

// Whoever made it has its key.
Result<RequestPtr> ReadRequest(const std::string& pem) {
  BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  RequestPtr request(bio ? PEM_read_bio_X509_REQ(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  EVP_PKEY* key = request ? X509_REQ_get0_pubkey(request.get()) : nullptr;
  const bool fine = key != nullptr && EVP_PKEY_get_base_id(key) == EVP_PKEY_EC && EVP_PKEY_get_bits(key) >= 256 &&
                    X509_REQ_verify(request.get(), key) == 1;
  ERR_clear_error();
  if (!fine) return Error(Code::kInvalid, "the request for a certificate is none of an elliptic curve's key");
  return request;
}

bool IsIdentity(const std::string& role, const std::string& name) {
  Peer ignored;
  return ParseIdentity("vrun://" + role + "/" + name, &ignored);
}

Status CheckIdentity(const std::string& role, const std::string& name) {
  if (IsIdentity(role, name) && name != "ca" && name != "." && name != "..") return {};
  return Error(Code::kInvalid,
               "certificate for " + Escape(role) + " " + Escape(name) + ": not a name: use letters, digits and ._-+@");
}

// Whether the pair on disk can be kept.
bool IsGoodFor(const std::string& base, X509* ca, const std::string& uri) {
  auto cert_pem = ReadFile(base + ".pem");
  auto key_pem = ReadFile(base + ".key");
  if (!cert_pem || !key_pem) return false;
  CertPtr cert = CertFromPem(*cert_pem);
  KeyPtr key = KeyFromPem(*key_pem);
  bool fine = cert && key && X509_check_private_key(cert.get(), key.get()) == 1;
  ERR_clear_error();
  return fine && IsSignedBy(cert.get(), ca) && HasIdentity(cert.get(), uri) && !StartsInFuture(cert.get()) &&
         SecondsLeft(cert.get()) * 3 > LifeSeconds(cert.get());
}

}  // namespace

Status EnsureAuthority(const std::string& directory) {
  VRUN_ASSIGN(UniqueFd lock, LockDirectory(directory));
  bool have_key = PathExists(directory + "/ca.key");
  bool have_cert = PathExists(directory + "/ca.pem");
  if (have_cert) {
    if (!have_key) {
      return Error(Code::kNotFound, "certificate authority " + Escape(directory) +
                                        ": ca.key is missing: restore it, or remove ca.pem to make a new authority");
    }
    VRUN_ASSIGN(Authority authority, LoadAuthority(directory));
    if (SecondsLeft(authority.cert.get()) <= 0) {
      return Error(Code::kDenied, "certificate authority " + Escape(directory) + ": it ended at " +
                                      EndText(authority.cert.get()) + ": remove ca.pem and ca.key to make a new one");
    }
    return {};
  }
  KeyPtr key(EVP_EC_gen("P-256"));
  if (!key) return SslError("make key");
  unsigned char id[8];
  if (RAND_bytes(id, sizeof id) != 1) return SslError("random name");
  std::string name = "vrun CA ";
  for (unsigned char c : id) {
    name += "0123456789abcdef"[c >> 4];
    name += "0123456789abcdef"[c & 15];
  }
  VRUN_ASSIGN(CertPtr cert, NewCertificate(key.get(), name, kAuthorityDays * kDaySeconds, nullptr));
  VRUN_TRY(AddExtension(cert.get(), cert.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  VRUN_TRY(AddExtension(cert.get(), cert.get(), NID_key_usage, "critical,keyCertSign,cRLSign"));
  VRUN_TRY(AddExtension(cert.get(), cert.get(), NID_subject_key_identifier, "hash"));
  if (X509_sign(cert.get(), key.get(), EVP_sha256()) == 0) return SslError("sign certificate");
  VRUN_ASSIGN(std::string key_pem, KeyToPem(key.get()));
  VRUN_ASSIGN(std::string cert_pem, CertToPem(cert.get()));
  // The key first: an authority exists once its certificate does.
  VRUN_TRY(WriteFileAtomic(directory + "/ca.key", key_pem, 0600));
  return WriteFileAtomic(directory + "/ca.pem", cert_pem, 0644);
}

Status EnsureCertificate(const std::string& authority_directory, const std::string& directory, const std::string& role,
                         const std::string& name, int days) {
  VRUN_TRY(CheckIdentity(role, name));
  VRUN_ASSIGN(UniqueFd lock, LockDirectory(directory));
  VRUN_ASSIGN(Authority authority, LoadAuthority(authority_directory));
  VRUN_ASSIGN(std::string ca_pem, CertToPem(authority.cert.get()));
  if (auto there = ReadFile(directory + "/ca.pem"); !there || *there != ca_pem) {
    VRUN_TRY(WriteFileAtomic(directory + "/ca.pem", ca_pem, 0644));
  }
  const std::string base = directory + "/" + name;
  const std::string uri = "vrun://" + role + "/" + name;
  if (PathExists(base + ".key")) {
    VRUN_TRY(RequirePrivate(base + ".key"));
    if (IsGoodFor(base, authority.cert.get(), uri)) return {};
  }

  KeyPtr key(EVP_EC_gen("P-256"));
  if (!key) return SslError("make key");
  VRUN_ASSIGN(CertPtr cert, IssueFor(key.get(), authority, role, name, days * kDaySeconds));
  VRUN_ASSIGN(std::string key_pem, KeyToPem(key.get()));
  VRUN_ASSIGN(std::string cert_pem, CertToPem(cert.get()));
  VRUN_TRY(WriteFileAtomic(base + ".key", key_pem, 0600));
  return WriteFileAtomic(base + ".pem", cert_pem, 0644);
}

Result<CertificateRequest> NewRequest() {
  KeyPtr key(EVP_EC_gen("P-256"));
  if (!key) return SslError("make key");
  CertificateRequest made;
  VRUN_ASSIGN(made.key, KeyToPem(key.get()));
  VRUN_ASSIGN(made.request, NewRequestFor(made.key));
  return made;
}

Result<std::string> NewRequestFor(const std::string& key_pem) {
  KeyPtr key = KeyFromPem(key_pem);
  RequestPtr request(X509_REQ_new());
  if (!key || !request || X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return SslError("make a request for a certificate");
  }
  BioPtr bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_X509_REQ(bio.get(), request.get()) != 1) return SslError("encode request");
  return BioText(bio.get());
}

Result<std::string> SignRequest(const std::string& authority_directory, const std::string& request_pem,
                                const std::string& role, const std::string& name, int64_t seconds) {
  VRUN_TRY(CheckIdentity(role, name));
  VRUN_ASSIGN(Authority authority, LoadAuthority(authority_directory));
  VRUN_ASSIGN(const RequestPtr request, ReadRequest(request_pem));
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  VRUN_ASSIGN(CertPtr cert, IssueFor(key, authority, role, name, seconds));
  return CertToPem(cert.get());
}

Result<Holder> HolderOf(const std::string& authority_directory, const std::string& certificate,
                        const std::string& request_pem) {
  const Error none(Code::kDenied, "this is no certificate of this cluster: ask for a new token");
  VRUN_ASSIGN(const std::string ca_pem, ReadFile(authority_directory + "/ca.pem"));
  const CertPtr ca = CertFromPem(ca_pem), cert = CertFromPem(certificate);
  if (!ca || !cert || !IsSignedBy(cert.get(), ca.get())) return none;
  std::vector<std::string> uris = UrisOf(cert.get());
  Peer peer;
  if (uris.size() != 1 || !ParseIdentity(uris[0], &peer)) return none;
  VRUN_ASSIGN(const RequestPtr request, ReadRequest(request_pem));
  const bool same = EVP_PKEY_eq(X509_REQ_get0_pubkey(request.get()), X509_get0_pubkey(cert.get())) == 1;
  ERR_clear_error();
  if (!same) return Error(Code::kDenied, "the request is of another key than the certificate");
  return Holder{peer.role, peer.name, SecondsLeft(cert.get())};
}

Result<Lifetime> LifetimeOf(const std::string& certificate) {
  const CertPtr cert = CertFromPem(certificate);
  if (!cert) return Error(Code::kCorrupt, "the certificate does not parse: create it again");
  const int64_t left = SecondsLeft(cert.get()), life = LifeSeconds(cert.get()) - kClockSkewSeconds;
  const int64_t until = WallMicros() + left * 1'000'000;
  return Lifetime{until - life * 1'000'000, until};
}

Status SaveCertificate(const std::string& directory, const std::string& name, const std::string& certificate) {
  VRUN_ASSIGN(UniqueFd lock, LockDirectory(directory));
  return WriteFileAtomic(directory + "/" + name + ".pem", certificate, 0644);
}

Status SaveCredentials(const std::string& directory, const std::string& name, const Credentials& credentials) {
  VRUN_ASSIGN(UniqueFd lock, LockDirectory(directory));
  VRUN_TRY(WriteFileAtomic(directory + "/ca.pem", credentials.ca, 0644));
  VRUN_TRY(WriteFileAtomic(directory + "/" + name + ".key", credentials.key, 0600));
  return WriteFileAtomic(directory + "/" + name + ".pem", credentials.certificate, 0644);
}

Result<Credentials> LoadCredentials(const std::string& directory, const std::string& name) {
  const std::string base = directory + "/" + name;
  VRUN_TRY(RequirePrivate(base + ".key"));
  Credentials credentials;
  VRUN_ASSIGN(credentials.ca, ReadFile(directory + "/ca.pem"));
  VRUN_ASSIGN(credentials.certificate, ReadFile(base + ".pem"));
  VRUN_ASSIGN(credentials.key, ReadFile(base + ".key"));
  credentials.directory = directory;
  credentials.name = name;
  if (auto fine = CheckCredentials(credentials); !fine) return fine.error().With("credentials " + Escape(base));
  return credentials;
}

Status CheckCredentials(const Credentials& credentials) {
  CertPtr ca = CertFromPem(credentials.ca);
  CertPtr cert = CertFromPem(credentials.certificate);
  KeyPtr key = KeyFromPem(credentials.key);
  if (!ca || !cert || !key)
    return Error(Code::kDenied, "the certificate, its key or the CA does not parse: create them again");
  bool match = X509_check_private_key(cert.get(), key.get()) == 1;
  ERR_clear_error();
  if (!match) return Error(Code::kDenied, "the key does not match the certificate: create both again");
  if (!IsSignedBy(cert.get(), ca.get())) {
    return Error(Code::kDenied,
                 "the certificate is not signed by this CA: it belongs to another cluster: make it anew");
  }
  for (X509* c : {ca.get(), cert.get()}) {
    const char* what = c == ca.get() ? "the CA" : "the certificate";
    if (StartsInFuture(c)) {
      return Error(Code::kDenied, std::string(what) + " is not valid yet: check this host's clock");
    }
    if (SecondsLeft(c) <= 0) {
      return Error(Code::kDenied,
                   std::string(what) + " ended at " + EndText(c) + ": make it anew, or check this host's clock");
    }
  }
  return {};
}

}  // namespace vrun::rpc
