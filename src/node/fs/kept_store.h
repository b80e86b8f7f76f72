// SPDX-License-Identifier: Apache-2.0
// All that is kept on a node (--writes=keep), of all homes: what there is, how long it stays, and what became of it.
//
// DIRECTORY/TENANT/JOB.ATTEMPT is one attempt's (kept_series.h); TENANT is Tenant{user, home_id}.Key(). What is pulled,
// dropped or expired leaves its record, which goes after as many days again. State is on the disk alone: an agent that
// starts again finds everything.
//
// Any thread; removing takes as long as the disk needs.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/kept.pb.h"

namespace vrun::node {

struct KeptLimits {
  uint64_t bytes = 50ull << 30;  // of all homes together; the oldest goes first
  uint32_t days = 14;
};

class KeptStore {
 public:
  // `now`: wall clock in microseconds.
  KeptStore(std::string directory, KeptLimits limits, std::function<int64_t()> now);

  // Where an attempt's writes are to be put.
  std::string PathOf(const std::string& tenant, uint64_t job, uint32_t attempt) const;
  // Of one job, by attempt, without those that a later attempt has gone on with.
  std::vector<v1::Kept> Of(const std::string& tenant, uint64_t job) const;
  // Removes the content, and writes down why. kNotFound: there is none any more.
  Status Drop(const std::string& tenant, uint64_t job, uint32_t attempt, v1::KeptState why);
  // What is too old, or too much, goes.
  void Expire();
  // For a new attempt of the job: the upper directory of the latest one before it is moved to `to`, if it is here and
  // was seen on top of the same root. Its number; 0: it begins anew.
  Result<uint32_t> TakeUpper(const std::string& tenant, uint64_t job, uint32_t attempt, const std::string& root,
                             const std::string& to);

 private:
  struct Entry {
    std::string tenant;
    std::string directory;
    v1::Kept kept;
    bool superseded = false;  // a later attempt has it all
    uint64_t disk_bytes = 0;
  };
  std::vector<Entry> Entries(const std::string& tenant) const;
  std::vector<Entry> AllEntries() const;
  Status Remove(const Entry& entry, v1::KeptState why);

  const std::string directory_;
  const KeptLimits limits_;
  const std::function<int64_t()> now_;
  mutable std::mutex mutex_;  // one change at a time
};

}  // namespace vrun::node
