// SPDX-License-Identifier: Apache-2.0
// One owner's objects in the pool's S3 store, by name (proto/vault.proto). The keys are the controller's: it signs a
// URL for each transfer, and what it seals them with is its secret too. An object opens under its own name only
// (s3/extent.h), so what was damaged or exchanged in the bucket is kCorrupt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/s3.pb.h"
#include "proto/vault.pb.h"
#include "s3/client.h"

namespace vrun::snapshots {

// The most that one part of an object may have, and the most parts.
inline constexpr uint64_t kPartBytes = 256 * 1024;
inline constexpr size_t kMaxParts = 256;

// Any thread; all calls block, for as long as the store and the controller need to answer or to be given up.
class SealedObjects {
 public:
  // Asks the controller, and blocks. Errors of its own; the reply's are not looked at.
  using Presign = std::function<Result<v1::PresignReply>(const v1::VaultPresign&)>;
  // `store_id`: of this snapshot store.
  SealedObjects(std::string owner, std::string store_id, Presign presign);
  ~SealedObjects();

  // kNotFound: there is none. kUnavailable, kTimeout, kDenied: the store or the controller, with what to do.
  Result<std::string> Get(const std::string& name);
  Status Put(const std::string& name, std::string_view bytes);  // at most 60 MiB
  // In parts: whoever reads knows how long each is. The salt tells an object from all others, those that had its name
  // before included; empty: any.
  Result<std::vector<std::string>> GetParts(const std::string& name, const std::string& salt,
                                            const std::vector<uint64_t>& lengths);
  Result<std::string> PutParts(const std::string& name, const std::vector<std::string_view>& parts);  // its salt
  // One that is not there is no error.
  Status Delete(const std::vector<std::string>& names);

 private:
  struct Signed {
    std::vector<std::string> urls;
    std::string seal;
    std::shared_ptr<s3::Client> client;
  };
  Result<Signed> Sign(v1::VaultPresign::Method method, const std::vector<std::string>& names);
  // The object as it is, and what it is sealed with.
  Result<std::string> Read(const std::string& name, std::string* seal);

  const std::string owner_, store_id_;
  const Presign presign_;
  std::mutex mu_;
  std::shared_ptr<s3::Client> client_;  // guarded by mu_, as below
  std::string client_ca_;
};

}  // namespace vrun::snapshots
