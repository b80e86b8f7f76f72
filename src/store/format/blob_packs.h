// SPDX-License-Identifier: Apache-2.0
// Directory objects by digest: thousands of small immutable blobs, appended to a few pack files. (One file per blob
// would dominate the cost of the first contact with a root.)
//
//   pack    = (header blob)*        blobs/TIME-PID-N.pack
//   header  = "VRBP" u32(length) digest[32] check[8]
// Each process appends to its own pack and reads those of others that existed when it started. When all packs together
// exceed the limit, the oldest is removed. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::store {

class BlobPacks {
 public:
  BlobPacks(std::string directory, uint64_t limit_bytes);

  // Indexes the existing packs. Must be called once; Get and Put wait for it.
  void Load();

  // kNotFound when absent; sets `*corrupt` if it was there but damaged (it is then forgotten).
  Result<std::string> Get(const Digest& digest, bool* corrupt);
  Status Put(const Digest& digest, std::string_view bytes);
  // Writes the needed blobs into new packs, durably, and removes all others.
  Status Sweep(const std::function<bool(const Digest&)>& needed);
  uint64_t bytes() const;
  // All known blobs.
  std::vector<Digest> List() const;

 private:
  struct Pack {
    std::string path;
    UniqueFd fd;
    uint64_t size = 0;
  };
  struct Place {
    std::shared_ptr<Pack> pack;
    uint64_t offset;  // offset of the blob
    uint32_t length;
  };
  void IndexPack(const std::shared_ptr<Pack>& pack) VRUN_REQUIRES(mu_);
  Status NewPack() VRUN_REQUIRES(mu_);
  Status PutLocked(const Digest& digest, std::string_view bytes) VRUN_REQUIRES(mu_);
  void DropOldest() VRUN_REQUIRES(mu_);

  const std::string directory_;
  const uint64_t limit_;
  mutable Mutex mu_;
  CondVar loaded_cv_;
  bool loaded_ VRUN_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<Pack>> packs_ VRUN_GUARDED_BY(mu_);  // oldest first
  std::shared_ptr<Pack> current_ VRUN_GUARDED_BY(mu_);             // this process's own; also in packs_
  uint64_t bytes_ VRUN_GUARDED_BY(mu_) = 0;
  std::unordered_map<Digest, Place, DigestHash> index_ VRUN_GUARDED_BY(mu_);
};

}  // namespace vrun::store
