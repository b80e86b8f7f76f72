// SPDX-License-Identifier: Apache-2.0
#include "s3/client.h"

#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/hash/digest.h"
#include "base/thread/mutex.h"
#include "s3/answer.h"

namespace vrun::s3 {
namespace {

// Once per process. Called before any other use of curl, and never undone.
void InitCurl() {
  static const CURLcode done = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  VRUN_CHECK(done == CURLE_OK);
}

bool Transient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_UPLOAD_FAILED: return true;
    default: return false;
  }
}

std::string CurlText(CURLcode code, const char* detail) {
  return detail[0] != 0 ? std::string(detail) : std::string(::curl_easy_strerror(code));
}

}  // namespace

class Client::Loop {
 public:
  explicit Loop(ClientOptions options) : options_(std::move(options)) {
    InitCurl();
    multi_ = ::curl_multi_init();
    VRUN_CHECK(multi_ != nullptr);
    ::curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options_.concurrency));
    ::curl_multi_setopt(multi_, CURLMOPT_MAX_TOTAL_CONNECTIONS, static_cast<long>(options_.concurrency));
    thread_ = std::thread([this] { Run(); });
  }

  ~Loop() {
    stopping_ = true;
    ::curl_multi_wakeup(multi_);
    thread_.join();
    for (CURL* easy : idle_) ::curl_easy_cleanup(easy);
    ::curl_multi_cleanup(multi_);
  }

  void Start(Request request, Done done) {
    auto transfer = std::make_unique<Transfer>();
    transfer->request = std::move(request);
    transfer->done = std::move(done);
    {
      MutexLock lock(mutex_);
      if (!stopping_ && waiting_.size() < options_.max_waiting) {
        waiting_.push_back(std::move(transfer));
        ::curl_multi_wakeup(multi_);
        return;
      }
    }
    transfer->done(stopping_ ? Error(Code::kAborted, "S3: the client ends")
                             : Error(Code::kExhausted, "S3: too many transfers wait"));
  }

  ClientStats stats() const {
    MutexLock lock(mutex_);
    return stats_;
  }

 private:
  struct Transfer {
    Request request;
    Done done;
    std::string body;
    size_t sent = 0;
    bool too_large = false;
    int tried = 0;
    int64_t not_before = 0;
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    char error[CURL_ERROR_SIZE] = {};
  };
  using TransferPtr = std::unique_ptr<Transfer>;

  static size_t Take(char* data, size_t, size_t n, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    if (transfer->body.size() + n > transfer->request.max_bytes) {
      transfer->too_large = true;
      return 0;
    }
    transfer->body.append(data, n);
    return n;
  }

  static size_t Give(char* buffer, size_t size, size_t count, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    const std::string& body = *transfer->request.body;
    const size_t n = std::min(size * count, body.size() - transfer->sent);
    body.copy(buffer, n, transfer->sent);
    transfer->sent += n;
    return n;
  }

  // libcurl rewinds the body when a kept connection turns out to be dead.
  static int Rewind(void* self, curl_off_t offset, int origin) {
    auto* transfer = static_cast<Transfer*>(self);
    if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
    transfer->sent = std::min(static_cast<size_t>(offset), transfer->request.body->size());
    return CURL_SEEKFUNC_OK;
  }

  void Prepare(Transfer* t) {
    if (idle_.empty()) idle_.push_back(::curl_easy_init());
    t->easy = idle_.back();
    idle_.pop_back();
    VRUN_CHECK(t->easy != nullptr);
    CURL* easy = t->easy;
    ::curl_easy_reset(easy);
    t->body.clear();
    t->sent = 0;
    t->error[0] = 0;
    ::curl_easy_setopt(easy, CURLOPT_URL, t->request.url.c_str());
    // Only the bucket's own host: a redirect elsewhere is an error.
    ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    ::curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    ::curl_easy_setopt(easy, CURLOPT_PROXY, "");
    ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    ::curl_easy_setopt(easy, CURLOPT_SSL_ENABLE_ALPN, 0L);
    ::curl_easy_setopt(easy, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    ::curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_micros / 1000));
    ::curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(options_.transfer_micros / 1000));
    ::curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->error);
    ::curl_easy_setopt(easy, CURLOPT_PRIVATE, t);
    ::curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Loop::Take);
    ::curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    ::curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L * 1024);
    if (!options_.keys) {
      // No "Expect: 100-continue", which many stores never answer, and no content type, which the signature does not
      // cover. (When libcurl signs, it would sign these as headers without a value; those bodies are small.)
      t->headers = ::curl_slist_append(nullptr, "Expect:");
      t->headers = ::curl_slist_append(t->headers, "Content-Type:");
    }
    std::string range;
    switch (t->request.method) {
      case Method::kGet:
        if (t->request.bytes > 0) {
          range = std::to_string(t->request.first) + "-" + std::to_string(t->request.first + t->request.bytes - 1);
          ::curl_easy_setopt(easy, CURLOPT_RANGE, range.c_str());
        }
        break;
      case Method::kHead: ::curl_easy_setopt(easy, CURLOPT_NOBODY, 1L); break;
      case Method::kDelete: ::curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE"); break;
      case Method::kPut:
        ::curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        ::curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, 512L * 1024);
        ::curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(t->request.body->size()));
        ::curl_easy_setopt(easy, CURLOPT_READFUNCTION, &Loop::Give);
        ::curl_easy_setopt(easy, CURLOPT_READDATA, t);
        ::curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, &Loop::Rewind);
        ::curl_easy_setopt(easy, CURLOPT_SEEKDATA, t);
        break;
    }
    if (!options_.ca_pem.empty()) {
      curl_blob ca{const_cast<char*>(options_.ca_pem.data()), options_.ca_pem.size(), CURL_BLOB_NOCOPY};
      ::curl_easy_setopt(easy, CURLOPT_CAINFO_BLOB, &ca);
    }
    if (options_.keys) {
      ::curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, ("aws:amz:" + options_.region + ":s3").c_str());
      ::curl_easy_setopt(easy, CURLOPT_USERNAME, options_.keys->access_key.c_str());
      ::curl_easy_setopt(easy, CURLOPT_PASSWORD, options_.keys->secret_key.c_str());
      // S3 requires this header, and libcurl 7.88 only passes it on.
      const Digest payload = Sha256(t->request.body ? std::string_view(*t->request.body) : std::string_view());
      t->headers = ::curl_slist_append(t->headers, ("x-amz-content-sha256: " + payload.Hex()).c_str());
      if (!options_.keys->session_token.empty()) {
        t->headers = ::curl_slist_append(t->headers, ("x-amz-security-token: " + options_.keys->session_token).c_str());
      }
    }
    ::curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
  }

  void Release(Transfer* t) {
    ::curl_slist_free_all(std::exchange(t->headers, nullptr));
    idle_.push_back(std::exchange(t->easy, nullptr));
  }

  void Run() {
    std::minstd_rand random(std::random_device{}());
    while (!stopping_) {
      int wait_ms = StartWaiting();
      int running = 0;
      ::curl_multi_perform(multi_, &running);
      bool finished = false;
      int left = 0;
      while (CURLMsg* message = ::curl_multi_info_read(multi_, &left)) {
        if (message->msg != CURLMSG_DONE) continue;
        Finished(message->easy_handle, message->data.result, &random);
        finished = true;
      }
      if (!finished) ::curl_multi_poll(multi_, nullptr, 0, wait_ms, nullptr);
    }
    BreakOff();
  }

  // Starts as many waiting transfers as there is room for. Returns the wait for the next one in milliseconds.
  int StartWaiting() {
    std::vector<TransferPtr> given_up;
    const int64_t next = StartSome(&given_up);
    for (const TransferPtr& t : given_up) t->done(Error(Code::kAborted, "S3: nobody waits for it any more"));
    return static_cast<int>(std::max<int64_t>(next - MonotonicMicros(), 0) / 1000 + 1);
  }

  int64_t StartSome(std::vector<TransferPtr>* given_up) {
    const int64_t now = MonotonicMicros();
    int64_t next = now + 1'000'000;
    MutexLock lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end() && running_.size() < options_.concurrency;) {
      if ((*it)->request.given_up && *(*it)->request.given_up) {
        given_up->push_back(std::move(*it));
        it = waiting_.erase(it);
        continue;
      }
      if ((*it)->not_before > now) {
        next = std::min(next, (*it)->not_before);
        ++it;
        continue;
      }
      TransferPtr t = std::move(*it);
      it = waiting_.erase(it);
      Prepare(t.get());
      ++t->tried;
      ++stats_.requests;
      if (t->tried > 1) ++stats_.retries;
      ::curl_multi_add_handle(multi_, t->easy);
      CURL* easy = t->easy;
      running_.emplace(easy, std::move(t));
    }
    return next;
  }

  void Finished(CURL* easy, CURLcode code, std::minstd_rand* random) {
    long status = 0, opened = 0;
    ::curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    ::curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &opened);
    ::curl_multi_remove_handle(multi_, easy);
    TransferPtr t = std::move(running_.extract(easy).mapped());
    Release(t.get());
    {
      MutexLock lock(mutex_);
      stats_.received_bytes += t->body.size();
      stats_.sent_bytes += t->sent;
      stats_.connections += static_cast<uint64_t>(opened);
    }
    Result<std::string> result = Judge(t.get(), code, status);
    const int most = t->request.tries > 0 ? t->request.tries : options_.tries;
    const bool again = code == CURLE_OK ? !result && result.error().code() == Code::kUnavailable : Transient(code);
    if (!again || t->tried >= most) return t->done(std::move(result));
    // Full jitter, so that requests that failed together do not retry together.
    const int64_t most_pause = options_.pause_micros << std::min(t->tried - 1, 6);
    t->not_before = MonotonicMicros() + static_cast<int64_t>((*random)() % static_cast<uint64_t>(most_pause + 1));
    MutexLock lock(mutex_);
    waiting_.push_front(std::move(t));
  }

  static Result<std::string> Judge(Transfer* t, CURLcode code, long status) {
    const std::string head = "S3: " + t->request.what + ": ";
    if (t->too_large) return Error(Code::kCorrupt, head + "the answer is larger than it can be");
    if (code == CURLE_OPERATION_TIMEDOUT) {
      return Error(Code::kTimeout, head + "no answer in time: " + CurlText(code, t->error) +
                                       ": check s3_endpoint and the network between here and there");
    }
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
      return Error(Code::kDenied,
                   head + CurlText(code, t->error) + ": give the authority of the store's certificate as s3_ca");
    }
    if (code != CURLE_OK) {
      return Error(Code::kUnavailable,
                   head + CurlText(code, t->error) + ": check s3_endpoint and the network between here and there");
    }
    if (status >= 300) return FromAnswer(status, t->body, t->request.what);
    if (t->request.bytes > 0 && status != 206) {
      return Error(Code::kCorrupt, head + "the store ignored the requested range");
    }
    return std::move(t->body);
  }

  void BreakOff() {
    std::deque<TransferPtr> left;
    for (auto& [easy, t] : running_) {
      ::curl_multi_remove_handle(multi_, easy);
      Release(t.get());
      left.push_back(std::move(t));
    }
    running_.clear();
    {
      MutexLock lock(mutex_);
      for (TransferPtr& t : waiting_) left.push_back(std::move(t));
      waiting_.clear();
    }
    for (const TransferPtr& t : left) t->done(Error(Code::kAborted, "S3: the client ends"));
  }

  const ClientOptions options_;
  CURLM* multi_ = nullptr;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  std::deque<TransferPtr> waiting_ VRUN_GUARDED_BY(mutex_);
  ClientStats stats_ VRUN_GUARDED_BY(mutex_);
  // Used by the thread:
  std::map<CURL*, TransferPtr> running_;
  std::vector<CURL*> idle_;
  std::thread thread_;
};

Client::Client(ClientOptions options) : loop_(std::make_unique<Loop>(std::move(options))) {}
Client::~Client() = default;
void Client::Start(Request request, Done done) { loop_->Start(std::move(request), std::move(done)); }
ClientStats Client::stats() const { return loop_->stats(); }

}  // namespace vrun::s3
