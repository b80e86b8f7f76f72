// SPDX-License-Identifier: Apache-2.0
// How a machine that has only a digest of the cluster's authority gets its certificate.
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>
#include <vector>

#include "base/escape.h"
#include "base/hash/blake3.h"
#include "rpc/authority.h"
#include "rpc/credentials.h"

namespace vrun::rpc {
namespace {

constexpr int kSeconds = 10;

struct Free {
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
  void operator()(BIO* p) const { BIO_free_all(p); }
};

// The PEM text as EnsureAuthority writes it.
std::string Pem(X509* certificate) {
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  char* text = nullptr;
  if (!bio || PEM_write_bio_X509(bio.get(), certificate) != 1) return "";
  const long n = BIO_get_mem_data(bio.get(), &text);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

// All certificates that the server shows.
Result<std::vector<std::string>> ShownBy(const std::string& address) {
  const std::string what = "controller at " + Escape(address);
  const std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_client_method()));
  if (!context) return Error(Code::kInternal, what + ": no TLS");
  // The digest decides. The server is asked for nothing before its certificate is verified with what this returns.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const std::unique_ptr<BIO, Free> bio(BIO_new_ssl_connect(context.get()));
  SSL* ssl = nullptr;
  if (bio) BIO_get_ssl(bio.get(), &ssl);
  if (ssl == nullptr) return Error(Code::kInternal, what + ": no TLS");
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};  // gRPC ends a connection without it
  SSL_set_alpn_protos(ssl, kHttp2, sizeof kHttp2);
  BIO_set_conn_hostname(bio.get(), address.c_str());
  const bool connected = BIO_do_connect_retry(bio.get(), kSeconds, -1) == 1;
  int fd = -1;
  if (connected && BIO_get_fd(bio.get(), &fd) >= 0) {
    const timeval limit{kSeconds, 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  const bool shook = connected && BIO_do_handshake(bio.get()) == 1;
  STACK_OF(X509)* chain = shook ? SSL_get_peer_cert_chain(ssl) : nullptr;
  ERR_clear_error();
  if (chain == nullptr) {
    return Error(Code::kUnavailable,
                 what + ": nobody answers, or it is no controller: is it up, and reachable from here?");
  }
  std::vector<std::string> shown;
  for (int i = 0; i < sk_X509_num(chain); ++i) shown.push_back(Pem(sk_X509_value(chain, i)));
  return shown;
}

}  // namespace

Digest AuthorityDigest(const std::string& ca_pem) { return Blake3(ca_pem); }

Result<std::string> FetchAuthority(const std::string& address, const Digest& expected) {
  VRUN_ASSIGN(std::vector<std::string> shown, ShownBy(address));
  for (std::string& pem : shown) {
    if (AuthorityDigest(pem) == expected) return std::move(pem);
  }
  return Error(Code::kDenied,
               "controller at " + Escape(address) + ": it is not the cluster of this token: ask for a new one");
}

Result<Digest> ShownAuthority(const std::string& address) {
  VRUN_ASSIGN(const std::vector<std::string> shown, ShownBy(address));
  return AuthorityDigest(shown.back());
}

}  // namespace vrun::rpc
