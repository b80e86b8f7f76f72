// SPDX-License-Identifier: Apache-2.0
// The pool's S3 store, seen from the controller: the only process that has its keys. Nodes get URLs, each good for one
// object of one tenant and a quarter of an hour; the snapshot store gets them for its owners' snapshots
// (proto/vault.proto).
//
// A tenant is a (user, home id). Under a secret of the controller's own (`content-secret` in its state directory),
// which it makes once, each tenant has a directory and a key of its own: an object's key in the bucket is an HMAC of
// what it holds, so who knows a file's digest cannot tell whether somebody has it; and what is in it is sealed with a
// key that only this tenant's nodes get (src/s3/extent.h). Why: docs/decisions/0008.
//
// State thread only. The store is asked on the client's thread, by Check.
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
  std::string credentials_file;  // as s3::ReadKeys wants it; read again before each check
  std::string ca_file;           // PEM; "": the system's authorities
};

class ContentTier {
 public:
  static constexpr uint32_t kExpiresSeconds = 900;
  static constexpr uint32_t kWriterSeconds = 180;  // of what writes snapshots: another store waits for its end
  // An ended job's node may still write what it fetched for it.
  static constexpr int64_t kGraceMicros = 15 * 60 * 1'000'000ll;
  static constexpr int kMaxNames = 1000;
  static constexpr int64_t kCheckMicros = 60'000'000;

  // Never fails: what is wrong is in state() and in the log, and the pool works without it. All outlive it.
  ContentTier(ContentTierOptions options, const std::string& state_directory, EventLoop* loop, const Clock* clock);
  ~ContentTier();

  // For the snapshot store, of an owner's snapshots (proto/vault.proto). Who may write is one store at a time: another
  // one only when no URL of the one before is good any more.
  v1::PresignReply PresignVault(const v1::VaultPresign& request);
  // For `node`, which says that it has or had `job`.
  v1::PresignReply Presign(const std::string& node, const Result<JobRow>& job, const v1::PresignRequest& request);
  const v1::S3State& state() const { return state_; }

 private:
  // False, and why in *reply: nothing can be signed.
  bool Usable(v1::PresignReply* reply) const;
  // URLs of a tenant's objects below `top`.
  void Sign(const std::string& top, const std::string& tenant, const char* method,
            const google::protobuf::RepeatedPtrField<std::string>& names, uint32_t expires_s,
            v1::PresignReply* reply) const;
  Status Configure(const std::string& state_directory);
  Status ReadKeys();
  void Check();  // writes, reads and removes a small object, and looks for it in vain; then again, every kCheckMicros
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
  std::string writer_;        // the snapshot store that writes
  int64_t wrote_micros_ = 0;  // when it asked last; monotonic
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<s3::Client> client_;  // of the check that runs
};

}  // namespace vrun::control
