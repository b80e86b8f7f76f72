// SPDX-License-Identifier: Apache-2.0
// Verifies ID tokens with the keys that the identity provider shows. Strangers send them, so nothing here is asked of
// the provider on their word more than once in ten seconds, at most 64 tokens wait, and each is good once.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/hash/digest.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "oidc/id_token.h"
#include "oidc/settings.h"

namespace vrun::oidc {

class Verifier {
 public:
  using Done = std::function<void(const Settings&, Result<Identity>)>;

  // Any thread.
  void Use(const Settings& settings);
  Settings settings() const;
  // `done` is called by a thread of its own, once; dropped when the verifier ends. kExhausted: too many wait.
  void Check(std::string id_token, Done done);

 private:
  Result<Identity> CheckNow(const std::string& id_token, const Settings& settings);
  Status GetKeys(const Settings& settings);

  mutable Mutex mutex_;
  Settings settings_ VRUN_GUARDED_BY(mutex_);
  std::atomic<int> waiting_{0};
  // Of the queue's thread:
  Settings used_;  // whose keys these are
  std::optional<Keys> keys_;
  std::optional<Error> failure_;       // of the last attempt to get them
  int64_t got_us_ = 0, tried_us_ = 0;  // monotonic; 0: never
  std::map<Digest, int64_t> spent_;    // tokens that were good, until when they are (seconds since 1970)
  WorkQueue queue_{"oidc"};
};

}  // namespace vrun::oidc
