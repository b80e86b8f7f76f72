// SPDX-License-Identifier: Apache-2.0
#include "rpc/tls.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <map>

#include "base/thread/mutex.h"
#include "rpc/internal.h"

namespace vrun::rpc {
namespace {

namespace tls = grpc::experimental;
using Provider = std::shared_ptr<tls::CertificateProviderInterface>;

constexpr int64_t kMostSeconds = 60;  // between two looks at the files
constexpr int64_t kLooksPerLife = 40;

unsigned LookSeconds(const Credentials& mine) {
  const auto life = LifetimeOf(mine.certificate);
  const int64_t seconds = life ? (life->until_us - life->from_us) / 1'000'000 / kLooksPerLife : kMostSeconds;
  return static_cast<unsigned>(std::clamp<int64_t>(seconds, 1, kMostSeconds));
}

// A watcher has a thread, so all connections of a process with the same certificate share one. Whoever has read a newer
// certificate gets another one, which has it too.
Provider Watch(const Credentials& mine) {
  static Mutex mutex;
  static std::map<std::string, std::weak_ptr<tls::CertificateProviderInterface>> all;
  MutexLock lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[mine.base() + "\n" + mine.ca + mine.certificate + mine.key];
  Provider provider = known.lock();
  if (!provider) {
    provider = std::make_shared<tls::FileWatcherCertificateProvider>(mine.base() + ".key", mine.base() + ".pem",
                                                                     mine.directory + "/ca.pem", LookSeconds(mine));
    known = provider;
  }
  return provider;
}

Provider ProviderOf(const Credentials& mine) {
  if (!mine.directory.empty()) return Watch(mine);
  const std::vector<tls::IdentityKeyCertPair> pairs{{mine.key, mine.certificate}};
  return std::make_shared<tls::StaticDataCertificateProvider>(mine.ca, pairs);
}

// The other side's certificate is from our authority, as TLS has checked. Checks that it is of the right role.
class RoleVerifier : public tls::ExternalCertificateVerifier {
 public:
  RoleVerifier(std::string role, std::function<bool(const Peer&)> admit)
      : role_(std::move(role)), admit_(std::move(admit)) {}
  ~RoleVerifier() override = default;

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    Peer peer;
    int found = 0;
    for (const grpc::string_ref& uri : request->uri_names()) {
      if (ParseIdentity({uri.data(), uri.size()}, &peer)) ++found;
    }
    if (found != 1 || peer.role != role_) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "TLS handshake: the other side is no " + role_);
    } else if (admit_ && !admit_(peer)) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                             "TLS handshake: " + role_ + " " + peer.name +
                                 " is not the one that is expected here, or was shut out of this cluster");
    }
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string role_;
  const std::function<bool(const Peer&)> admit_;
};

}  // namespace

Result<Credentials> ReadAgain(const Credentials& credentials) {
  if (!credentials.directory.empty()) {
    auto now = LoadCredentials(credentials.directory, credentials.name);
    if (now && now->key == credentials.key && now->ca == credentials.ca) return now;
  }
  // The files are of somebody else by now.
  VRUN_TRY(CheckCredentials(credentials));
  Credentials fixed = credentials;
  fixed.directory.clear();
  return fixed;
}

std::shared_ptr<grpc::ChannelCredentials> ClientTls(const Credentials& mine, const std::string& role,
                                                    std::function<bool(const Peer&)> admit) {
  if (mine.certificate.empty()) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = mine.ca;
    return grpc::SslCredentials(options);
  }
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(ProviderOf(mine));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<RoleVerifier>(role, std::move(admit)));
  options.set_check_call_host(false);
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerTls(const Credentials& mine, bool strangers) {
  if (strangers) {
    // Who calls another method without a certificate is refused by the server, not by TLS.
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = mine.ca;
    options.pem_key_cert_pairs.push_back({mine.key, mine.certificate + mine.ca});
    return grpc::SslServerCredentials(options);
  }
  tls::TlsServerCredentialsOptions options(ProviderOf(mine));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

}  // namespace vrun::rpc
