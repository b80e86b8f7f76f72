// SPDX-License-Identifier: Apache-2.0
// The kept writes (--writes=keep) of all homes on a node: what exists, for how long, and what became of it.
//
// DIRECTORY/TENANT/JOB.ATTEMPT[.POD] belongs to one pod of an attempt (kept_series.h); TENANT is Tenant{user,
// home_id}.Key(). After writes are pulled, dropped or expired, their record stays for the same number of days again.
// All state is on the disk, so a restarted agent finds it.
//
// Any thread. Removal takes as long as the disk needs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "node/attempt_key.h"
#include "proto/kept.pb.h"

namespace vrun::node {

struct KeptLimits {
  uint64_t bytes = 50ull << 30;  // all homes together; the oldest is removed first
  uint32_t days = 14;
};

class KeptStore {
 public:
  // `now`: wall clock in microseconds.
  KeptStore(std::string directory, KeptLimits limits, std::function<int64_t()> now);

  // The directory for an attempt's writes.
  std::string PathOf(const std::string& tenant, const AttemptKey& key) const;
  // The entries of one job, by attempt and pod, except those that a later attempt continued.
  std::vector<v1::Kept> Of(const std::string& tenant, uint64_t job) const;
  // Removes the content and records why. kNotFound: there is none any more.
  Status Drop(const std::string& tenant, const AttemptKey& key, v1::Handover why);
  // Removes what is too old or above the limit.
  void Expire();
  // For a new attempt of the job: moves the upper directory of the same pod in the latest earlier attempt to `to`, if
  // it is here and was mounted over the same root. Returns that attempt's number; 0: there is none, start empty.
  Result<uint32_t> TakeUpper(const std::string& tenant, const AttemptKey& key, const std::string& root,
                             const std::string& to);

 private:
  struct Entry {
    std::string tenant;
    std::string directory;
    v1::Kept kept;
    bool superseded = false;  // a later attempt contains all of it
    uint64_t disk_bytes = 0;
  };
  std::vector<Entry> Entries(const std::string& tenant) const;
  std::vector<Entry> AllEntries() const;
  Status Remove(const Entry& entry, v1::Handover why);

  const std::string directory_;
  const KeptLimits limits_;
  const std::function<int64_t()> now_;
  mutable Mutex mutex_;  // serializes changes
};

}  // namespace vrun::node
