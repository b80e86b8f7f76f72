// SPDX-License-Identifier: Apache-2.0
// What a job asks of GPUs, as people write it: whole GPUs, a share of one, or a MIG instance.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// Sets what is asked for, and forgets what was before. `text` is "[TYPE:]AMOUNT", or several of them with "|" between:
// alternatives with the same amount, the best type first. An amount is
//   2          whole GPUs
//   0.25       a share of one, in at most thousandths
//   0.25..1    the same, but it may compute with up to the second number while nobody else does
//   1g.10gb    a MIG instance; "1g.10gb:1" is the same
Status ParseGpuWish(std::string_view text, v1::RunSpec* out);
// Slurm's "gpu", "gpu:2", "gpu:a100", "gpu:a100:2", also with shares and instances; "mps:25": hundredths of a GPU.
Status ParseGres(std::string_view text, v1::RunSpec* out);
// "mps" or "time".
Status ParseShare(std::string_view text, v1::RunSpec* out);
// "20G": see v1.Resources.gpu_memory_bytes.
Status ParseGpuMemory(std::string_view text, v1::RunSpec* out);

// kInvalid for options that contradict each other. Call when all of them are known.
Status CheckGpus(const v1::Resources& resources);

enum class GpuKind { kNone, kWhole, kShare, kInstance, kByMemory };
GpuKind KindOf(const v1::Resources& resources);
// As -G takes it, without a type: "2", "0.25..1", "1g.10gb"; "20G" of memory alone; "0".
std::string AmountText(const v1::Resources& resources);
// The same with the type in front, for tables.
std::string GpusText(const v1::Resources& resources);

}  // namespace vrun::cli
