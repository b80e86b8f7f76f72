// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sender.h"

#include <curl/curl.h>

#include <algorithm>
#include <optional>

#include "base/escape.h"
#include "telemetry/otlp.h"

namespace vrun::telemetry {
namespace {

constexpr size_t kMostAnswer = 64u << 10;
constexpr int kPollMillis = 50;
constexpr int64_t kMostWaitSeconds = 86'400;

struct FreeEasy {
  void operator()(CURL* easy) const { ::curl_easy_cleanup(easy); }
};
struct FreeMulti {
  void operator()(CURLM* multi) const { ::curl_multi_cleanup(multi); }
};
struct FreeList {
  void operator()(curl_slist* list) const { ::curl_slist_free_all(list); }
};

size_t TakeAnswer(char* data, size_t, size_t n, void* to) {
  auto* text = static_cast<std::string*>(to);
  text->append(data, std::min(n, kMostAnswer - std::min(kMostAnswer, text->size())));
  return n;
}

class HttpSender : public Sender {
 public:
  explicit HttpSender(const Settings& settings) : settings_(settings) {
    static const CURLcode ready = ::curl_global_init(CURL_GLOBAL_DEFAULT);
    if (ready != CURLE_OK) return;
    easy_.reset(::curl_easy_init());
    multi_.reset(::curl_multi_init());
    Add("Content-Type: application/x-protobuf");
    Add("Expect:");  // some collectors never answer it
    for (const auto& [name, value] : settings.headers) Add(name + ": " + value);
  }

  Answer Send(const std::string& body, int64_t timeout_ms, const std::function<bool()>& stop) override {
    CURL* easy = easy_.get();
    if (easy == nullptr || multi_ == nullptr) return {Error(Code::kInternal, "no HTTP client")};
    std::string text;
    char detail[CURL_ERROR_SIZE] = {};
    Prepare(body, timeout_ms, &text, detail);
    if (::curl_multi_add_handle(multi_.get(), easy) != CURLM_OK) return {Error(Code::kInternal, "no HTTP client")};
    const std::optional<CURLcode> code = Perform(stop);
    long status = 0;
    curl_off_t wait_seconds = 0;
    ::curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    ::curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &wait_seconds);
    ::curl_multi_remove_handle(multi_.get(), easy);
    ::curl_easy_reset(easy);
    if (!code) return {Error(Code::kAborted, "not sent before the end of the program")};
    if (*code != CURLE_OK) {
      return {Error(Code::kUnavailable, Escape(detail[0] != 0 ? detail : ::curl_easy_strerror(*code)))};
    }
    if (status >= 200 && status < 300) {
      Refusal refusal = RefusalIn(text);
      return {Status(), 0, refusal.spans, std::move(refusal.why)};
    }
    const std::string said = "it answers with status " + std::to_string(status);
    if (status >= 300 && status < 400) return {Error(Code::kInvalid, said + ": it has moved: write its new address")};
    // Those that the protocol says to try again.
    const bool later = status == 429 || status == 502 || status == 503 || status == 504;
    if (!later) return {Error(Code::kInvalid, said)};
    // libcurl has read dates, too, also those that are over.
    return {Error(Code::kUnavailable, said), std::clamp<int64_t>(wait_seconds, 0, kMostWaitSeconds) * 1'000'000};
  }

 private:
  void Add(const std::string& line) {
    curl_slist* more = ::curl_slist_append(headers_.get(), line.c_str());
    if (more == nullptr) return;
    (void)headers_.release();
    headers_.reset(more);
  }

  void Prepare(const std::string& body, int64_t timeout_ms, std::string* answer, char* detail) {
    CURL* easy = easy_.get();
    ::curl_easy_setopt(easy, CURLOPT_URL, settings_.url.c_str());
    ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    ::curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    ::curl_easy_setopt(easy, CURLOPT_PROXY, "");
    ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // it would wait for the answer of a name server that is away
    ::curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    ::curl_easy_setopt(easy, CURLOPT_SSL_ENABLE_ALPN, 0L);
    ::curl_easy_setopt(easy, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    if (!settings_.ca_file.empty()) ::curl_easy_setopt(easy, CURLOPT_CAINFO, settings_.ca_file.c_str());
    ::curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
    ::curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail);
    ::curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_.get());
    ::curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.data());
    ::curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    ::curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &TakeAnswer);
    ::curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);
  }

  // nullopt: it was stopped.
  std::optional<CURLcode> Perform(const std::function<bool()>& stop) {
    for (int running = 1; running > 0;) {
      if (::curl_multi_perform(multi_.get(), &running) != CURLM_OK) return CURLE_SEND_ERROR;
      if (running == 0) break;
      if (stop()) return std::nullopt;
      if (::curl_multi_poll(multi_.get(), nullptr, 0, kPollMillis, nullptr) != CURLM_OK) return CURLE_SEND_ERROR;
    }
    int left = 0;
    const CURLMsg* message = ::curl_multi_info_read(multi_.get(), &left);
    return message != nullptr && message->msg == CURLMSG_DONE ? message->data.result : CURLE_SEND_ERROR;
  }

  const Settings settings_;
  std::unique_ptr<CURLM, FreeMulti> multi_;
  std::unique_ptr<CURL, FreeEasy> easy_;  // destroyed before the multi handle
  std::unique_ptr<curl_slist, FreeList> headers_;
};

}  // namespace

std::unique_ptr<Sender> MakeHttpSender(const Settings& settings) { return std::make_unique<HttpSender>(settings); }

}  // namespace vrun::telemetry
