// SPDX-License-Identifier: Apache-2.0
// Multi-Instance GPU: the instances that a GPU can be cut into and where they may lie.
//
// A GPU has memory slices (8, or 4). An instance takes a contiguous run of them that may begin only at certain slices.
// Runs that do not overlap never need more compute slices than exist, so only memory slices are counted. Instances with
// media extensions (+me) are not modelled. Source: NVIDIA's MIG User Guide, "Supported MIG Profiles", and the output of
// `nvidia-smi mig -lgipp`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vrun::sched::core::mig {

using Profile = uint8_t;    // a name that any model has; 0: none
using Model = uint8_t;      // 0: a GPU that is not cut
using SliceMask = uint8_t;  // of memory slices

// "1g.10gb"; 0 when unknown.
Profile FindProfile(std::string_view name);
std::string_view ProfileName(Profile profile);
// "a100-40gb", "a100-80gb", "h100-80gb", "h100-94gb", "h100-96gb", "h200-141gb", "b200-180gb", "a30-24gb"; 0 when
// unknown.
Model FindModel(std::string_view name);
// From the driver's product name ("NVIDIA H100 80GB HBM3"); 0 when it cannot be cut or is unknown.
Model ModelOfProduct(std::string_view product);
std::string_view ModelName(Model model);

constexpr int kMostSlices = 8;
// Memory slices of a GPU.
int Slices(Model model);
// Memory slices of one instance; 0 when the model has no such profile.
int Size(Model model, Profile profile);
// The memory that the profile's name says, in GB; the driver's own figures differ by some per cent.
int NominalMemory(Profile profile);
// The profile that takes the fewest slices and whose name says at least so many GB; among equal ones the one with the
// least compute. 0: none has so much.
Profile SmallestWith(Model model, int64_t gb);
// The names of all profiles of a model, or of all models, from the smallest to the largest: "1g.10gb, 1g.20gb, ...".
std::string ProfileNames(Model model);
// The least share of a GPU, in thousandths, that an instance takes on any model.
int32_t NominalMilli(Profile profile);
// How many more instances fit beside what is used.
int Count(Model model, Profile profile, SliceMask used);
// The slices that an instance takes from this start slice; 0 if it may not begin there.
SliceMask At(Model model, Profile profile, int start, SliceMask used);
// How many possibilities are left with `used` taken: the sum over all profiles of the slices that they could still
// take. For choosing among otherwise equal starts.
int Potential(Model model, SliceMask used);

}  // namespace vrun::sched::core::mig
