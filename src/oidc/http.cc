// SPDX-License-Identifier: Apache-2.0
#include "oidc/http.h"

#include <curl/curl.h>

#include <memory>

#include "base/escape.h"
#include "oidc/settings.h"

namespace vrun::oidc {
namespace {

constexpr size_t kMostBytes = 1u << 20;
constexpr long kConnectMillis = 5'000, kMillis = 15'000;

struct Free {
  void operator()(CURL* easy) const { ::curl_easy_cleanup(easy); }
};

struct Body {
  std::string text;
  bool too_large = false;
};

size_t Take(char* data, size_t, size_t n, void* to) {
  auto* body = static_cast<Body*>(to);
  body->too_large = body->text.size() + n > kMostBytes;
  if (body->too_large) return 0;
  body->text.append(data, n);
  return n;
}

std::string Encoded(CURL* easy, const std::string& text) {
  char* escaped = ::curl_easy_escape(easy, text.data(), static_cast<int>(text.size()));
  std::string copy = escaped != nullptr ? escaped : "";
  ::curl_free(escaped);
  return copy;
}

// The scheme and the host of a URL.
std::string HostOf(const std::string& url) {
  const size_t host = url.find("://");
  return url.substr(0, url.find('/', host == std::string::npos ? 0 : host + 3));
}

bool IsLoopback(std::string_view host) { return host == "127.0.0.1" || host == "localhost" || host == "[::1]"; }

}  // namespace

Status CheckUrl(const std::string& url) {
  const Error bad(Code::kInvalid, Escape(url.substr(0, 200)) + ": not an https URL (http only to 127.0.0.1)");
  const bool https = url.starts_with("https://");
  if (url.size() > 2000 || (!https && !url.starts_with("http://"))) return bad;
  for (const char c : url) {
    if (c <= ' ' || c > '~' || c == '\\' || c == '"' || c == '<' || c == '>') return bad;
  }
  const size_t begin = https ? 8 : 7;
  const std::string place = url.substr(begin, url.find_first_of("/?#", begin) - begin);
  if (place.find('@') != std::string::npos) return bad;
  const size_t colon = place.rfind(':');
  const bool has_port = colon != std::string::npos && place.find(']', colon) == std::string::npos;
  const std::string host = has_port ? place.substr(0, colon) : place;
  if (host.empty() || (!https && !IsLoopback(host))) return bad;
  return {};
}

Result<HttpAnswer> Fetch(const HttpRequest& request) {
  VRUN_TRY(CheckUrl(request.url));
  const std::string where = Escape(HostOf(request.url)) + ": ";
  static const CURLcode ready = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, Free> owner(::curl_easy_init());
  CURL* easy = owner.get();
  if (ready != CURLE_OK || easy == nullptr) return Error(Code::kInternal, where + "no HTTP client");
  Body body;
  char detail[CURL_ERROR_SIZE] = {};
  ::curl_easy_setopt(easy, CURLOPT_URL, request.url.c_str());
  ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  ::curl_easy_setopt(easy, CURLOPT_SSL_ENABLE_ALPN, 0L);
  ::curl_easy_setopt(easy, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  ::curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectMillis);
  ::curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, kMillis);
  ::curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail);
  ::curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Take);
  ::curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
  if (!request.ca.empty()) {
    curl_blob ca{const_cast<char*>(request.ca.data()), request.ca.size(), CURL_BLOB_NOCOPY};
    ::curl_easy_setopt(easy, CURLOPT_CAINFO_BLOB, &ca);
  }
  std::string form;
  if (request.form) {
    for (const auto& [name, value] : *request.form) {
      form += (form.empty() ? "" : "&") + Encoded(easy, name) + "=" + Encoded(easy, value);
    }
    ::curl_easy_setopt(easy, CURLOPT_POSTFIELDS, form.c_str());
    ::curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(form.size()));
  }
  const CURLcode code = ::curl_easy_perform(easy);
  if (body.too_large) return Error(Code::kCorrupt, where + "the identity provider's answer is larger than it can be");
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    return Error(Code::kDenied, where + Escape(detail) + ": set `ca` of [oidc] to the authority of its certificate");
  }
  if (code != CURLE_OK) {
    return Error(Code::kUnavailable, where + "the identity provider does not answer: " +
                                         Escape(detail[0] != 0 ? detail : ::curl_easy_strerror(code)));
  }
  HttpAnswer answer;
  ::curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer.status);
  answer.body = std::move(body.text);
  return answer;
}

}  // namespace vrun::oidc
