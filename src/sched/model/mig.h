// SPDX-License-Identifier: Apache-2.0
// Multi-Instance GPU: which instances a GPU can be cut into and where they may lie.
//
// A GPU has memory slices (8, or 4); an instance takes a contiguous run of them that may begin at certain slices only.
// Runs that do not overlap never ask for more compute slices than there are, so memory slices are all that is counted.
// Instances with media extensions (+me) are not modelled. Source: NVIDIA's MIG User Guide, "Supported MIG Profiles",
// and what `nvidia-smi mig -lgipp` prints.
#pragma once

#include <cstdint>
#include <string_view>

namespace vrun::sched::core::mig {

using Profile = uint8_t;    // of any model that has one of that name; 0: none
using Model = uint8_t;      // 0: a GPU that is not cut
using SliceMask = uint8_t;  // of memory slices

// "1g.10gb"; 0 when there is none such.
Profile FindProfile(std::string_view name);
std::string_view ProfileName(Profile profile);
// "a100-40gb", "a100-80gb", "h100-80gb", "h100-94gb", "h100-96gb", "h200-141gb", "b200-180gb", "a30-24gb"; 0 when there
// is none such.
Model FindModel(std::string_view name);
// From what the driver calls the product ("NVIDIA H100 80GB HBM3"); 0 when it cannot be cut or is not known.
Model ModelOfProduct(std::string_view product);
std::string_view ModelName(Model model);

constexpr int kMostSlices = 8;
// Memory slices of a GPU.
int Slices(Model model);
// Memory slices that an instance takes there; 0 when the model has no such profile.
int Size(Model model, Profile profile);
// Thousandths of a GPU that an instance takes at least, on whatever model.
int32_t NominalMilli(Profile profile);
// How many more instances fit beside what is used.
int Count(Model model, Profile profile, SliceMask used);
// Whether one may begin at this slice, and if so, which slices it takes; else 0.
SliceMask At(Model model, Profile profile, int start, SliceMask used);
// What an instance there would leave possible: the sum over all profiles of the slices they could still take. For
// choosing among starts that are otherwise equal.
int Potential(Model model, SliceMask used);

}  // namespace vrun::sched::core::mig
