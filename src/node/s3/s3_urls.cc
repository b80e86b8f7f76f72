// SPDX-License-Identifier: Apache-2.0
#include "node/s3/s3_urls.h"

#include <algorithm>
#include <utility>

#include "base/escape.h"

namespace vrun::node {

void S3Urls::Get(const std::string& name, bool put, int64_t now, Done done) {
  std::optional<std::string> url;
  std::optional<v1::PresignRequest> request;
  bool refused = false;
  {
    MutexLock lock(mutex_);
    const auto it = put ? kept_.end() : kept_.find(name);
    if (it != kept_.end() && it->second.until > now) {
      url = it->second.url;
    } else if (closed_ || waiting_[put].size() >= kMaxWaiting) {
      refused = true;
    } else {
      waiting_[put].push_back({name, std::exchange(done, nullptr), now});
      request = NextLocked(put);
    }
  }
  if (url) return done(*std::move(url));
  if (refused) return done(Error(Code::kUnavailable, "S3: too many URLs are being waited for"));
  if (request) ask_(*request);
}

std::optional<v1::PresignRequest> S3Urls::NextLocked(bool put) {
  if (request_[put] != 0 || waiting_[put].empty()) return std::nullopt;
  v1::PresignRequest request;
  request.set_id(request_[put] = next_id_++);
  request.set_put(put);
  while (!waiting_[put].empty() && request.name_size() < kBatch) {
    request.add_name(waiting_[put].front().name);
    under_way_[put].push_back(std::move(waiting_[put].front()));
    waiting_[put].pop_front();
  }
  return request;
}

void S3Urls::KeepLocked(const std::string& name, const std::string& url, int64_t until) {
  if (const auto it = kept_.find(name); it != kept_.end()) {
    ages_.erase(it->second.age);
    kept_.erase(it);
  }
  ages_.push_back(name);
  kept_[name] = {url, until, std::prev(ages_.end())};
  if (kept_.size() <= kMaxKept) return;
  kept_.erase(ages_.front());
  ages_.pop_front();
}

void S3Urls::Answered(const v1::PresignReply& reply, int64_t now) {
  Calls calls;
  std::optional<v1::PresignRequest> next;
  {
    MutexLock lock(mutex_);
    const int put = reply.id() != 0 && reply.id() == request_[1] ? 1 : 0;
    if (reply.id() == 0 || reply.id() != request_[put]) return;  // too late
    request_[put] = 0;
    const auto names = std::exchange(under_way_[put], {});
    const bool fits = reply.key_size() == static_cast<int>(names.size()) && reply.signature_size() == reply.key_size();
    std::optional<Error> error;
    if (reply.has_error()) {
      error = Error(Code::kUnavailable, Escape(reply.error().message()));
    } else if (!fits || reply.seal().empty()) {
      error = Error(Code::kUnavailable, "S3: the controller's answer has no URLs");
    } else {
      terms_ = Terms{reply.seal(), reply.ca_pem()};
    }
    for (size_t i = 0; i < names.size(); ++i) {
      if (error) {
        calls.push_back([done = names[i].done, error = *error] { done(error); });
        continue;
      }
      std::string url = reply.base() + reply.key(static_cast<int>(i)) + "?" + reply.query() +
                        "&X-Amz-Signature=" + reply.signature(static_cast<int>(i));
      if (put == 0) KeepLocked(names[i].name, url, now + int64_t{reply.expires_s()} * 1'000'000 - kMarginMicros);
      calls.push_back([done = names[i].done, url = std::move(url)]() mutable { done(std::move(url)); });
    }
    next = NextLocked(put != 0);
  }
  if (next) ask_(*next);
  for (auto& call : calls) call();
}

void S3Urls::Tick(int64_t now) {
  Calls calls;
  std::vector<v1::PresignRequest> requests;
  {
    MutexLock lock(mutex_);
    for (int put = 0; put < 2; ++put) {
      const auto late = [&](const Wanted& w) { return now - w.since > kPatienceMicros; };
      // A lost request (the controller restarted) must not block those behind it.
      if (request_[put] != 0 && std::all_of(under_way_[put].begin(), under_way_[put].end(), late)) {
        for (Wanted& w : under_way_[put]) waiting_[put].push_front(std::move(w));
        under_way_[put].clear();
        request_[put] = 0;
      }
      while (!waiting_[put].empty() && late(waiting_[put].front())) {
        calls.push_back([done = std::move(waiting_[put].front().done)] {
          done(Error(Code::kUnavailable, "S3: the controller does not answer"));
        });
        waiting_[put].pop_front();
      }
      if (auto request = NextLocked(put != 0)) requests.push_back(*std::move(request));
    }
  }
  for (const auto& request : requests) ask_(request);
  for (auto& call : calls) call();
}

void S3Urls::Close() {
  std::vector<Wanted> all;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (int put = 0; put < 2; ++put) {
      for (Wanted& w : waiting_[put]) all.push_back(std::move(w));
      for (Wanted& w : under_way_[put]) all.push_back(std::move(w));
      waiting_[put].clear();
      under_way_[put].clear();
      request_[put] = 0;
    }
  }
  for (const Wanted& w : all) w.done(Error(Code::kAborted, "S3: the file system server ends"));
}

std::optional<S3Urls::Terms> S3Urls::terms() const {
  MutexLock lock(mutex_);
  return terms_;
}

}  // namespace vrun::node
