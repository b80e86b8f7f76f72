// SPDX-License-Identifier: Apache-2.0
// One owner's objects in the pool's S3 store, by name (proto/vault.proto). The controller holds the keys: it signs a
// URL for each transfer and provides the sealing secret. An object opens only under its own name (s3/extent.h), so a
// damaged or exchanged object is kCorrupt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/s3.pb.h"
#include "proto/vault.pb.h"
#include "s3/client.h"

namespace vrun::snapshots {

// The maximum size of one part of an object, and the maximum number of parts.
inline constexpr uint64_t kPartBytes = 256 * 1024;
inline constexpr size_t kMaxParts = 256;

// Any thread. All calls block until the store and the controller answer or time out.
class SealedObjects {
 public:
  // Asks the controller; blocks. Returns only transport errors; errors in the reply are handled here.
  using Presign = std::function<Result<v1::PresignReply>(const v1::VaultPresign&)>;
  // `store_id`: of this snapshot store.
  SealedObjects(std::string owner, std::string store_id, Presign presign);
  ~SealedObjects();

  // kNotFound: absent. kUnavailable, kTimeout, kDenied: a failure of the store or the controller, with advice.
  Result<std::string> Get(const std::string& name);
  Status Put(const std::string& name, std::string_view bytes);  // at most 60 MiB
  // Objects in parts; the reader must know the length of each part. The salt distinguishes an object from all others,
  // including earlier ones with the same name; empty: accept any.
  Result<std::vector<std::string>> GetParts(const std::string& name, const std::string& salt,
                                            const std::vector<uint64_t>& lengths);
  // returns its salt
  Result<std::string> PutParts(const std::string& name, const std::vector<std::string_view>& parts);
  // Missing objects are not an error.
  Status Delete(const std::vector<std::string>& names);

 private:
  struct Signed {
    std::vector<std::string> urls;
    std::string seal;
    std::shared_ptr<s3::Client> client;
  };
  Result<Signed> Sign(v1::VaultPresign::Method method, const std::vector<std::string>& names);
  // The stored bytes, and the secret that seals them.
  Result<std::string> Read(const std::string& name, std::string* seal);

  const std::string owner_, store_id_;
  const Presign presign_;
  Mutex mu_;
  std::shared_ptr<s3::Client> client_ VRUN_GUARDED_BY(mu_);
  std::string client_ca_ VRUN_GUARDED_BY(mu_);
};

}  // namespace vrun::snapshots
