// SPDX-License-Identifier: Apache-2.0
// The shape of a job of several processes, and how it ended.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "proto/common.pb.h"

namespace vrun {

// Several pods or several ranks; any other job is one process in one sandbox.
bool IsGang(const v1::Gang& gang);
// Pods of an attempt, at most.
uint32_t MostPods(const v1::Gang& gang);
// The number of pods may change while the job runs (-N 2:8).
inline bool IsElastic(const v1::Gang& gang) { return gang.min_pods() > 0 && gang.min_pods() < gang.pods(); }
// Pods of an attempt are numbered in the order in which they come, and a number is not used again. After so many have
// joined, an attempt grows no more.
inline constexpr uint32_t kMostJoins = 1024;
// The numbers that the pods of an attempt may have are below.
uint32_t PodNumbers(const v1::Gang& gang);
// Processes of a pod that home reads from. A launcher starts the processes itself: each pod then has one stream of each
// kind.
uint32_t RanksPerPod(const v1::Gang& gang);

// The name of a signal without "SIG": "TERM"; its number if it has none.
std::string SignalName(int signal);
// How one rank ended: "rank 3 on n2: exit 1". "" for a rank that ended with 0, or because others had failed.
std::string DescribeFailure(const v1::RankExit& rank);
// The exit status of one rank: its code, or 128 and the signal's number.
int RankStatus(const v1::RankExit& rank);

// All ranks of a pod: those of its record, or one made of it. `first_rank`: the number of the pod's first rank.
google::protobuf::RepeatedPtrField<v1::RankExit> RanksOf(const v1::ExitRecord& record, uint32_t first_rank);

// The record of a gang from those of its pods, in order. Its kind and reason are those of the first failure, its status
// is the highest of all ranks that were not ended by the job itself.
v1::ExitRecord GangRecord(std::span<const v1::ExitRecord> pods, const v1::Gang& gang);

}  // namespace vrun
