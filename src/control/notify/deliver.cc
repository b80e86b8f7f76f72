// SPDX-License-Identifier: Apache-2.0
#include "control/notify/deliver.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/escape.h"
#include "control/notify/mail.h"
#include "control/notify/sign.h"
#include "control/notify/url.h"

namespace vrun::control::notify {
namespace {

constexpr long kConnectMillis = 5'000, kMillis = 20'000;
constexpr size_t kMostAnswer = 65536;  // more of it is not read

struct FreeEasy {
  void operator()(CURL* easy) const { ::curl_easy_cleanup(easy); }
};
struct FreeList {
  void operator()(curl_slist* list) const { ::curl_slist_free_all(list); }
};
using Easy = std::unique_ptr<CURL, FreeEasy>;
using List = std::unique_ptr<curl_slist, FreeList>;

struct Left {
  std::string_view text;
};

size_t Give(char* to, size_t size, size_t n, void* from) {
  auto* left = static_cast<Left*>(from);
  const size_t given = std::min(size * n, left->text.size());
  std::memcpy(to, left->text.data(), given);
  left->text.remove_prefix(given);
  return given;
}

size_t Skip(char*, size_t, size_t n, void* counted) {
  auto* count = static_cast<size_t*>(counted);
  *count += n;
  return *count > kMostAnswer ? 0 : n;
}

int AskEnded(void* ended, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(ended)->load() ? 1 : 0;
}

void Append(List* list, const std::string& text) {
  if (curl_slist* longer = ::curl_slist_append(list->get(), text.c_str())) {
    (void)list->release();
    list->reset(longer);
  }
}

// With what both protocols have in common. Null: there is no memory.
Easy Begin(const std::string& url, const char* protocols, const std::atomic<bool>* ended, char* detail) {
  static const CURLcode ready = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  Easy easy(ready == CURLE_OK ? ::curl_easy_init() : nullptr);
  if (!easy) return easy;
  ::curl_easy_setopt(easy.get(), CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(easy.get(), CURLOPT_PROTOCOLS_STR, protocols);
  ::curl_easy_setopt(easy.get(), CURLOPT_FOLLOWLOCATION, 0L);
  ::curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(easy.get(), CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  ::curl_easy_setopt(easy.get(), CURLOPT_CONNECTTIMEOUT_MS, kConnectMillis);
  ::curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, kMillis);
  ::curl_easy_setopt(easy.get(), CURLOPT_ERRORBUFFER, detail);
  ::curl_easy_setopt(easy.get(), CURLOPT_NOPROGRESS, 0L);
  ::curl_easy_setopt(easy.get(), CURLOPT_XFERINFOFUNCTION, &AskEnded);
  ::curl_easy_setopt(easy.get(), CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(ended));
  return easy;
}

std::string Why(CURLcode code, const char* detail) {
  return Escape(detail[0] != 0 ? detail : ::curl_easy_strerror(code));
}

Outcome DeliverMail(const NotifySettings& settings, const v1::Notification& message, const std::atomic<bool>* ended) {
  if (!settings.mails()) return {Outcome::Kind::kNever, "no mail server is configured any more"};
  if (!IsMailAddress(message.mail())) return {Outcome::Kind::kNever, "not an address"};
  const std::string mail =
      Compose({settings.from, message.mail(), message.subject(), message.text(), message.id(), message.made_us()});
  char detail[CURL_ERROR_SIZE] = {};
  const Easy easy = Begin(settings.smtp, "smtp,smtps", ended, detail);
  if (!easy) return {Outcome::Kind::kAgain, "no memory"};
  const bool plain = settings.smtp.starts_with("smtp://");
  ::curl_easy_setopt(easy.get(), CURLOPT_USE_SSL,
                     static_cast<long>(plain && !settings.starttls ? CURLUSESSL_NONE : CURLUSESSL_ALL));
  if (!settings.user.empty()) {
    ::curl_easy_setopt(easy.get(), CURLOPT_USERNAME, settings.user.c_str());
    ::curl_easy_setopt(easy.get(), CURLOPT_PASSWORD, settings.password.c_str());
    // No others: Kerberos is not linked in (s3/curl_absent.c).
    ::curl_easy_setopt(easy.get(), CURLOPT_LOGIN_OPTIONS, "AUTH=PLAIN;AUTH=LOGIN");
  }
  if (!settings.ca.empty()) {
    curl_blob ca{const_cast<char*>(settings.ca.data()), settings.ca.size(), CURL_BLOB_COPY};
    ::curl_easy_setopt(easy.get(), CURLOPT_CAINFO_BLOB, &ca);
  }
  const std::string from = "<" + settings.from + ">";
  List to;
  Append(&to, "<" + message.mail() + ">");
  Left left{mail};
  ::curl_easy_setopt(easy.get(), CURLOPT_MAIL_FROM, from.c_str());
  ::curl_easy_setopt(easy.get(), CURLOPT_MAIL_RCPT, to.get());
  ::curl_easy_setopt(easy.get(), CURLOPT_READFUNCTION, &Give);
  ::curl_easy_setopt(easy.get(), CURLOPT_READDATA, &left);
  ::curl_easy_setopt(easy.get(), CURLOPT_UPLOAD, 1L);
  const CURLcode code = ::curl_easy_perform(easy.get());
  if (code == CURLE_OK) return {Outcome::Kind::kSent, "", true};
  long status = 0;
  ::curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  // The server has refused the receiver, the sender or the mail. Not so a login: the password may be corrected.
  const bool answered = (code == CURLE_SEND_ERROR || code == CURLE_WEIRD_SERVER_REPLY) && status >= 400;
  const bool refused = answered && status >= 550 && status < 560;  // for good
  const std::string why = Why(code, detail) + (status != 0 ? " (" + std::to_string(status) + ")" : "");
  return {refused ? Outcome::Kind::kNever : Outcome::Kind::kAgain, why, answered};
}

Outcome DeliverWebhook(const NotifySettings& settings, const v1::Notification& message, int64_t now_us,
                       const std::atomic<bool>* ended) {
  std::string url = message.webhook(), key = settings.job_key;
  if (message.by_job()) {
    auto allowed = settings.JobWebhook(url);
    if (!allowed) return {Outcome::Kind::kNever, "no job may name it any more"};
    url = *std::move(allowed);
  } else {
    const auto hook = std::find_if(settings.webhooks.begin(), settings.webhooks.end(),
                                   [&](const Webhook& one) { return one.url == url; });
    if (hook == settings.webhooks.end()) return {Outcome::Kind::kNever, "it is not configured any more"};
    key = hook->key;
  }
  char detail[CURL_ERROR_SIZE] = {};
  const Easy easy = Begin(url, "http,https", ended, detail);
  if (!easy) return {Outcome::Kind::kAgain, "no memory"};
  const int64_t now_s = now_us / 1'000'000;
  List headers;
  for (const std::string& header :
       {std::string("Content-Type: application/json"), std::string("User-Agent: vrun/" VRUN_VERSION),
        std::string("Expect:"), "webhook-id: " + message.id(), "webhook-timestamp: " + std::to_string(now_s)}) {
    Append(&headers, header);
  }
  if (!key.empty()) Append(&headers, "webhook-signature: " + Sign(key, message.id(), now_s, message.body()));
  size_t read = 0;
  ::curl_easy_setopt(easy.get(), CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  ::curl_easy_setopt(easy.get(), CURLOPT_SSL_ENABLE_ALPN, 0L);
  ::curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, headers.get());
  ::curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDS, message.body().data());
  ::curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(message.body().size()));
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, &Skip);
  ::curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &read);
  const CURLcode code = ::curl_easy_perform(easy.get());
  long status = 0;
  ::curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  // A long answer counts too.
  if (status >= 200 && status < 300 && (code == CURLE_OK || code == CURLE_WRITE_ERROR)) {
    return {Outcome::Kind::kSent, "", true};
  }
  if (code != CURLE_OK && code != CURLE_WRITE_ERROR) return {Outcome::Kind::kAgain, Why(code, detail)};
  // As Standard Webhooks says: whoever is gone wants no more.
  return {status == 410 ? Outcome::Kind::kNever : Outcome::Kind::kAgain,
          "it answers " + std::to_string(status) +
              (status >= 300 && status < 400 ? ", and redirects are not followed" : ""),
          true};
}

}  // namespace

Outcome Deliver(const NotifySettings& settings, const v1::Notification& message, int64_t now_us,
                const std::atomic<bool>* ended) {
  return message.mail().empty() ? DeliverWebhook(settings, message, now_us, ended)
                                : DeliverMail(settings, message, ended);
}

}  // namespace vrun::control::notify
