// SPDX-License-Identifier: Apache-2.0
// MIG instances on demand: from the scheduler's place (GPU, first memory slice, profile) to an instance that exists.
//
// An instance is a GPU instance with one compute instance that takes all of it. The GPU must be in MIG mode: that takes
// a reset of the GPU, so it is the administrator's decision and is never changed here.
//
// Crash safety: a file <directory>/<uuid>.<start> exists from before an instance is made until after it is destroyed.
// What has such a file and no living pod is ours to destroy. Instances without a file are the administrator's: a pod
// may use one that lies exactly where the scheduler wants it, and it stays.
//
// One thread at a time; all calls block (creating one takes about 0.1 to 1 s on a card).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gpu/allotment.h"
#include "gpu/nvml.h"
#include "proto/common.pb.h"

namespace vrun::gpu {

// The minor of nvidia-caps for a key of /proc/driver/nvidia-caps/mig-minors, whose lines are "gpu0/gi1/access 12".
// kNotFound, kCorrupt.
Result<uint32_t> MigMinor(std::string_view mig_minors, std::string_view key);

class MigInstances {
 public:
  // `directory`: of the files, exists. `proc`: the node's /proc or that of a device root.
  MigInstances(Nvml* nvml, std::string directory, std::string proc)
      : nvml_(nvml), directory_(std::move(directory)), proc_(std::move(proc)) {}

  // The instance of `profile` ("1g.10gb") at `start` on GPU `number`, made if it is not there. kExhausted: something
  // else lies there. kNotFound: the GPU has no such profile. kUnsupported: it is not in MIG mode.
  Result<MigInstance> Take(uint32_t number, const v1::Gpu& gpu, const std::string& profile, uint32_t start);
  // Destroys it if it was made by Take. Also says well when there is none. kExists: a process still uses it, so try
  // again.
  Status Give(uint32_t number, const v1::Gpu& gpu, uint32_t start);
  // After a start: destroys what was made for pods that are gone. `alive`: uuid and start. Returns what could not be
  // done.
  std::vector<std::string> Recover(const std::vector<v1::Gpu>& gpus,
                                   const std::set<std::pair<std::string, uint32_t>>& alive);

 private:
  std::string File(const v1::Gpu& gpu, uint32_t start) const;
  Result<MigInstance> Describe(const v1::Gpu& gpu, const Nvml::Instance& instance) const;

  Nvml* nvml_;
  const std::string directory_, proc_;
};

}  // namespace vrun::gpu
