// SPDX-License-Identifier: Apache-2.0
// What the pods of an attempt make together. Pure functions of a job's row; a job of one process is a gang of one pod.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "control/store/store.h"
#include "jobs/gang.h"
#include "proto/control.pb.h"

namespace vrun::control {

// Bounds of a submission. Every pod is told of all others, so a start is quadratic in the number of pods.
constexpr uint32_t kMostPods = 1024;
constexpr uint32_t kMostRanksPerPod = 1024;
constexpr uint32_t kMostRanks = 65'536;
// A gang that could not be started this many times has failed.
constexpr uint32_t kMostFailedStarts = 3;

inline uint32_t PodsAsked(const JobRow& job) { return job.gang.pods() == 0 ? 1 : job.gang.pods(); }
inline uint32_t RanksPerPod(const JobRow& job) { return job.gang.ranks_per_pod() == 0 ? 1 : job.gang.ranks_per_pod(); }
// The fewest pods with which it runs.
inline uint32_t LeastPods(const JobRow& job) { return IsElastic(job.gang) ? job.gang.min_pods() : PodsAsked(job); }
// Whether the attempt has several pods, which start together, or may come to have several.
inline bool IsGang(const JobRow& job) { return job.pods.size() > 1 || (!job.pods.empty() && IsElastic(job.gang)); }

// kInvalid: such a gang cannot be.
Status CheckGang(const v1::RunSpec& spec);

// Whether the pod's command has ended, or never will start. Its writes may reach home long after that.
bool CommandEnded(const PodRow& pod);
bool CommandsEnded(const JobRow& job);
// While a job holds its room, it also holds that of pods that have ended, but not of those that it goes on without.
inline bool HoldsRoom(const PodRow& pod) { return pod.membership == Membership::kFull || !CommandEnded(pod); }
bool AllOver(const JobRow& job);
// Its end says nothing about the job: it was told to leave, or could not join.
bool HasLeft(const PodRow& pod);
// A pod that was added is prepared, and so are those that it must start with.
bool MayJoin(const JobRow& job, const PodRow& pod);
// The other pods know it.
bool IsMember(const JobRow& job, const PodRow& pod);
// All pods are prepared, and nothing speaks against their start.
bool MayGo(const JobRow& job);
// Whether the pod's command has been executed.
bool HasRun(const PodRow& pod);
bool AllHaveRun(const JobRow& job);
// Whether all ranks have ended with success.
bool Succeeded(const JobRow& job);
// Whether the command of some pod ended because the job was preempted.
bool WasPreempted(const JobRow& job);
// Whether the attempt, whose commands have all ended, is followed by another one.
bool RunsAgain(const JobRow& job);
// The first of the job's rules for ends of this kind (v1.RetryRule) that has a try left; -1: there is none.
int RuleFor(const v1::Scheduling& scheduling, const std::string& cause);

// The failure that the pod's record tells of, for people: "rank 3 on n2: exit 1". "": it did not fail by itself.
std::string FailureOf(const JobRow& job, const PodRow& pod);
// The end that the pods have come to, once their commands have ended. `reason` is left alone if there is none to give.
v1::JobState EndOf(const JobRow& job, std::string* reason);
// The record of the whole attempt, serialized: the highest status of its ranks, all ranks, times and sums. "": a pod
// has no record yet.
std::string ExitOf(const JobRow& job);

// For people: why a job whose writes were lost has failed.
std::string NotAllHome(const std::string& reason, uint32_t attempt);
// The pod as the others see it. `host`: where they reach it.
v1::GangPod GangPodOf(const JobRow& job, const PodRow& pod, const std::string& host);
// The host part of host:port.
std::string HostOf(const std::string& address);

}  // namespace vrun::control
