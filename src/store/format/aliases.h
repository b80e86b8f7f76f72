// SPDX-License-Identifier: Apache-2.0
// Maps provisional ids to final ids, in memory and in an append-only file of fixed records. Several processes may
// append.
//
//   record = provisional[32] final id[33] zero[7] check[8]
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "store/format/object_id.h"

namespace vrun::store {

class Aliases {
 public:
  // Reads the file at `path`, creating it if absent. Skips damaged records. Starts a new file when it has grown too
  // large.
  Status Load(const std::string& path);
  std::optional<ObjectId> Find(const Digest& provisional) const;
  // Ignores write errors: the alias is only lost at the next restart.
  void Add(const Digest& provisional, const ObjectId& final_id);
  size_t size() const;

 private:
  mutable Mutex mu_;  // not held during disk I/O
  std::string path_;
  std::unordered_map<Digest, ObjectId, DigestHash> map_ VRUN_GUARDED_BY(mu_);
};

}  // namespace vrun::store
