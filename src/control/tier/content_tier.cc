// SPDX-License-Identifier: Apache-2.0
#include "control/tier/content_tier.h"

#include <openssl/rand.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "proto/control.pb.h"
#include "s3/sigv4.h"

namespace vrun::control {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr size_t kMaxCaBytes = 256 * 1024;
constexpr size_t kMaxNameBytes = 64;

// Created once. If it is lost, only the content of the bucket is lost, because it cannot be found any more.
Result<std::string> Secret(const std::string& file) {
  auto secret = ReadFile(file, 4096);
  if (secret && secret->size() == kSecretBytes) return secret;
  if (secret || secret.error().code() != Code::kNotFound) {
    return Error(Code::kCorrupt, Escape(file) + ": not a secret of " + std::to_string(kSecretBytes) +
                                     " bytes: put it back from a copy, or remove it");
  }
  std::string made(kSecretBytes, '\0');
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(made.data()), kSecretBytes) != 1) {
    return Error(Code::kUnavailable, "no random bytes");
  }
  VRUN_TRY(WriteFileAtomic(file, made, 0600));
  return made;
}

void SetError(const Error& error, v1::PresignReply* reply) {
  reply->mutable_error()->set_code(static_cast<int>(error.code()));
  reply->mutable_error()->set_message(error.message());
}

}  // namespace

ContentTier::ContentTier(ContentTierOptions options, const std::string& state_directory, EventLoop* loop,
                         const Clock* clock)
    : options_(std::move(options)), loop_(loop), clock_(clock) {
  if (options_.bucket.name.empty()) return;
  state_.set_bucket(options_.bucket.name);
  if (Status fine = Configure(state_directory); !fine) {
    state_.set_problem(fine.error().message());
    state_.set_checked_us(clock_->Wall());
    LogError("{}: the pool works without the S3 store", fine.error().message());
    return;
  }
  Check();
}

ContentTier::~ContentTier() { loop_->Cancel(timer_); }

Status ContentTier::Configure(const std::string& state_directory) {
  VRUN_TRY(s3::Normalize(&options_.bucket));
  state_.set_endpoint(options_.bucket.endpoint);
  if (!options_.ca_file.empty()) {
    auto pem = ReadFile(options_.ca_file, kMaxCaBytes);
    if (!pem) return std::move(pem).error().With("s3_ca");
    options_.bucket.ca_pem = *std::move(pem);
  }
  VRUN_ASSIGN(secret_, Secret(state_directory + "/content-secret"));
  return {};
}

Status ContentTier::ReadKeys() {
  auto keys = s3::ReadKeys(options_.credentials_file);
  if (!keys) {
    keys_.reset();
    return std::move(keys).error();
  }
  keys_ = *std::move(keys);
  return {};
}

void ContentTier::Check() {
  if (Status read = ReadKeys(); !read) return Checked(read);
  client_ = std::make_shared<s3::Client>(s3::ClientOptions{
      .concurrency = 1, .tries = 2, .ca_pem = options_.bucket.ca_pem, .keys = keys_, .region = options_.bucket.region});
  std::string random(16, '\0');
  (void)::RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), 16);
  const s3::Bucket& b = options_.bucket;
  CheckStep(0, b.base() + s3::UriEncode(b.PathOf("check-" + s3::Hex(random)), true), s3::Hex(random));
}

void ContentTier::CheckStep(int step, const std::string& url, const std::string& text) {
  static constexpr s3::Method kSteps[] = {s3::Method::kPut, s3::Method::kGet, s3::Method::kDelete, s3::Method::kGet};
  static constexpr int kGone = 3;
  s3::Request request{.method = kSteps[step],
                      .url = url,
                      .max_bytes = 65536,
                      .what = "bucket " + options_.bucket.name + " at " + options_.bucket.endpoint};
  if (step == 0) request.body = std::make_shared<const std::string>(text);
  client_->Start(std::move(request), [this, loop = loop_, alive = std::weak_ptr<bool>(alive_), step, url,
                                      text](Result<std::string> answer) {
    loop->Post([this, alive, step, url, text, answer = std::move(answer)] {
      if (alive.expired()) return;
      // Without the permission to list, Amazon answers "forbidden" for a missing object.
      if (step == kGone && answer) {
        return Checked(
            Error(Code::kCorrupt, "S3: bucket " + options_.bucket.name + ": a deleted object is still there"));
      }
      if (step == kGone && answer.error().code() == Code::kNotFound) return Checked({});
      if (step == kGone && answer.error().code() == Code::kDenied) {
        return Checked(Error(Code::kDenied, "S3: bucket " + options_.bucket.name +
                                                ": a missing object looks forbidden: give the keys s3:ListBucket too"));
      }
      if (!answer) return Checked(answer.error());
      if (step == 1 && *answer != text) {
        return Checked(Error(Code::kCorrupt, "S3: bucket " + options_.bucket.name +
                                                 ": an object reads back with other content than was written"));
      }
      CheckStep(step + 1, url, text);
    });
  });
}

void ContentTier::Checked(const Status& status) {
  const std::string problem = status ? "" : status.error().message();
  if (problem.empty() && !told_fine_) {
    LogInfo("S3: bucket {} at {} works", Escape(options_.bucket.name), Escape(options_.bucket.endpoint));
  } else if (!problem.empty() && problem != state_.problem()) {
    LogError("{}: the pool works without S3 until that is solved", Escape(problem));
  }
  told_fine_ = problem.empty();
  state_.set_problem(problem);
  state_.set_checked_us(clock_->Wall());
  // Deferred until this callback has returned, because it may be the client's own.
  loop_->Post([client = std::move(client_)] {});
  timer_ = loop_->After(problem.empty() ? kCheckMicros : kCheckMicros / 6, [this] { Check(); });
}

bool ContentTier::Usable(v1::PresignReply* reply) const {
  if (keys_ && !secret_.empty()) return true;
  SetError(options_.bucket.name.empty() ? Error(Code::kUnsupported, "the pool has no S3 store")
                                        : Error(Code::kUnavailable, "the S3 store is not usable: " + state_.problem()),
           reply);
  return false;
}

void ContentTier::Sign(const std::string& top, const std::string& tenant, const char* method,
                       const google::protobuf::RepeatedPtrField<std::string>& names, uint32_t expires_s,
                       v1::PresignReply* reply) const {
  if (names.size() > kMaxNames) return SetError(Error(Code::kInvalid, "too many names at a time"), reply);
  const std::string directory = top + s3::Hex(s3::HmacSha256(tenant, "directory")).substr(0, 32) + "/";
  const s3::Bucket& b = options_.bucket;
  const s3::Presigner presigner(*keys_, b.host(), b.region, clock_->Wall(), expires_s);
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kMaxNameBytes) {
      reply->clear_key();
      reply->clear_signature();
      return SetError(Error(Code::kInvalid, "not a name of content"), reply);
    }
    const std::string key = s3::Hex(s3::HmacSha256(tenant, "name" + name)).substr(0, 48);
    reply->add_key(key);
    reply->add_signature(presigner.Sign(method, b.PathOf(directory + key)));
  }
  reply->set_base(b.base() + s3::UriEncode(b.PathOf(directory), true));
  reply->set_query(presigner.query());
  reply->set_seal(s3::HmacSha256(tenant, "seal"));
  reply->set_expires_s(expires_s);
  reply->set_ca_pem(b.ca_pem);
}

v1::PresignReply ContentTier::PresignVault(const v1::VaultPresign& request) {
  v1::PresignReply reply;
  if (!Usable(&reply)) return reply;
  const char* method = nullptr;
  switch (request.method()) {
    case v1::VaultPresign::GET: method = "GET"; break;
    case v1::VaultPresign::PUT: method = "PUT"; break;
    case v1::VaultPresign::DELETE: method = "DELETE"; break;
    default: SetError(Error(Code::kUnsupported, "S3: unknown method: update vrun on the controller"), &reply);
  }
  if (method == nullptr) return reply;
  const bool writes = request.method() != v1::VaultPresign::GET;
  if (writes) {
    const int64_t left = wrote_micros_ + int64_t{kWriterSeconds} * 1'000'000 - clock_->Monotonic();
    if (!writer_.empty() && writer_ != request.store() && left > 0) {
      SetError(Error(Code::kAborted, "another snapshot store writes to the S3 store: stop it, and try again in " +
                                         std::to_string(left / 60'000'000 + 1) + " min"),
               &reply);
      return reply;
    }
    writer_ = request.store();
    wrote_micros_ = clock_->Monotonic();
  }
  Sign("snapshots/v1/", s3::HmacSha256(secret_, "snapshots of " + request.owner()), method, request.name(),
       writes ? kWriterSeconds : kExpiresSeconds, &reply);
  return reply;
}

v1::PresignReply ContentTier::Presign(const std::string& node, const Result<JobRow>& job,
                                      const v1::PresignRequest& request) {
  v1::PresignReply reply;
  reply.set_id(request.id());
  if (!Usable(&reply)) return reply;
  const bool over = job && job->ended_us != 0;
  const auto there = [&node](const PodRow& pod) { return pod.node == node; };
  const bool ran = job && std::any_of(job->pods.begin(), job->pods.end(), there);
  if (!ran || (over && clock_->Wall() - job->ended_us > kGraceMicros)) {
    SetError(Error(Code::kDenied, "job " + std::to_string(request.job()) + " is not this node's"), &reply);
    return reply;
  }
  // The owner of the content: home, or the snapshot in which the job runs.
  v1::SubmitRequest submitted;
  const bool parsed = submitted.ParseFromString(job->spec);
  const std::string& owner = parsed && submitted.has_snapshot() ? submitted.snapshot().content_home_id() : job->home_id;
  const std::string tenant =
      s3::HmacSha256(secret_, "tenant" + std::to_string(job->user.size()) + ":" + job->user + owner);
  Sign("v1/", tenant, request.put() ? "PUT" : "GET", request.name(), kExpiresSeconds, &reply);
  return reply;
}

}  // namespace vrun::control
