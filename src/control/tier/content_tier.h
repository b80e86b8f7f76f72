// SPDX-License-Identifier: Apache-2.0
// The controller's side of the pool's S3 store. Only this process has the store's keys. Nodes get URLs, each valid for
// one object of one tenant for a quarter of an hour. The snapshot store gets URLs for its owners' snapshots
// (proto/vault.proto).
//
// A tenant is a (user, home id). The controller creates a secret once (`content-secret` in its state directory) and
// derives a directory and a key for each tenant from it. An object's key in the bucket is an HMAC of its content's
// name, so knowing a file's digest does not reveal whether somebody has the file. The object is sealed with a key that
// only this tenant's nodes get (src/s3/extent.h). Why: docs/decisions/0008.
//
// State thread only. Check talks to the store on the client's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/io/event_loop.h"
#include "base/result.h"
#include "control/store/store.h"
#include "proto/s3.pb.h"
#include "proto/vault.pb.h"
#include "s3/bucket.h"
#include "s3/client.h"

namespace vrun::control {

struct ContentTierOptions {
  s3::Bucket bucket;             // name "": there is no store; not normalized yet
  std::string credentials_file;  // in the format of s3::ReadKeys; read again before each check
  std::string ca_file;           // PEM; "": the system's authorities
};

class ContentTier {
 public:
  static constexpr uint32_t kExpiresSeconds = 900;
  static constexpr uint32_t kWriterSeconds = 180;  // for snapshot writes: another snapshot store must wait until these
                                                   // URLs expire
  // After a job has ended, its node may still write content that it fetched for the job.
  static constexpr int64_t kGraceMicros = 15 * 60 * 1'000'000ll;
  static constexpr int kMaxNames = 1000;
  static constexpr int64_t kCheckMicros = 60'000'000;

  // Never fails. Problems are in state() and in the log, and the pool works without the store. All arguments outlive
  // it.
  ContentTier(ContentTierOptions options, const std::string& state_directory, EventLoop* loop, const Clock* clock);
  ~ContentTier();

  // For the snapshot store, about an owner's snapshots (proto/vault.proto). Only one snapshot store may write at a
  // time: another one may write once all URLs of the previous writer have expired.
  v1::PresignReply PresignVault(const v1::VaultPresign& request);
  // For `node`, which claims to have or have had `job`.
  v1::PresignReply Presign(const std::string& node, const Result<JobRow>& job, const v1::PresignRequest& request);
  const v1::S3State& state() const { return state_; }

 private:
  // Returns false when nothing can be signed, with the reason in *reply.
  bool Usable(v1::PresignReply* reply) const;
  // URLs of a tenant's objects below `top`.
  void Sign(const std::string& top, const std::string& tenant, const char* method,
            const google::protobuf::RepeatedPtrField<std::string>& names, uint32_t expires_s,
            v1::PresignReply* reply) const;
  Status Configure(const std::string& state_directory);
  Status ReadKeys();
  void Check();  // writes, reads and removes a small object and looks up a missing one; repeats every kCheckMicros
  void CheckStep(int step, const std::string& url, const std::string& text);
  void Checked(const Status& status);

  ContentTierOptions options_;
  EventLoop* const loop_;
  const Clock* const clock_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::string secret_;
  std::optional<s3::Keys> keys_;
  v1::S3State state_;
  bool told_fine_ = false;
  std::string writer_;        // the snapshot store that may write
  int64_t wrote_micros_ = 0;  // its last request; monotonic
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<s3::Client> client_;  // of the running check
};

}  // namespace vrun::control
