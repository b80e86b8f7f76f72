// SPDX-License-Identifier: Apache-2.0
// What a job asks of GPUs, and what a node says of its own, in the words of the scheduler's core.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "control/store/store.h"
#include "proto/common.pb.h"
#include "sched/model/model.h"

namespace vrun::control {

enum class GpuKind { kNone, kWhole, kShare, kInstance, kByMemory };
GpuKind KindOf(const Needs& needs);
bool WantsGpus(const Needs& needs);

// kInvalid: two kinds at once, numbers out of range, or a MIG profile that no GPU has; names the known ones.
Status CheckGpuNeeds(const v1::Resources& resources);

// Request::sharers for the pods of this user or team. Never 0. Different names have different numbers but for one
// chance in 2^64 (BLAKE3).
uint64_t SharersOf(std::string_view name);

// Fills in what the core's request says of GPUs.
void SetGpus(const Needs& needs, sched::core::Request* request);
// What one pod has got, for its node and for people: the request with its kind decided.
v1::Resources GpusOfPod(const Needs& needs, const PodRow& pod);

// The part of each of its GPUs that a pod has, in thousandths. `model`: of its node.
uint32_t MilliOf(const PodRow& pod, const std::string& model);

// Fills in what the core's node says of GPUs. Where the node describes none of them, all are in MIG mode if it names a
// model, and none is otherwise.
void SetGpus(const v1::NodeFacts& facts, sched::core::NodeSpec* node);
// What a node says of its GPUs, cut to what is kept: 16 GPUs, texts of 256 bytes.
void CutGpus(google::protobuf::RepeatedPtrField<v1::Gpu>* gpus);
// Mask of the GPUs that have a problem.
uint32_t WithProblems(const v1::NodeFacts& facts);

// "2 h100 gpus", "0.25 of a h100 gpu", "a 1g.10gb on a h100 gpu", "20 GiB of a gpu".
std::string GpuText(const Needs& needs);
// As -G takes it, without a type.
std::string AmountOf(const Needs& needs);
// "0.25", "1".
std::string Decimal(int64_t milli);

}  // namespace vrun::control
