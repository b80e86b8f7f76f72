// SPDX-License-Identifier: Apache-2.0
// The elements of an array: which indexes it has, and what each of them runs. The command line, home and the controller
// use these functions, so they agree.
//
// An element has an index, which people see, and a position: 0 for the first element, 1 for the next. All functions but
// Complete and CheckArray expect an array that CheckArray accepts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/local.pb.h"

namespace vrun {

inline constexpr uint64_t kMaxElements = 1'000'000;
inline constexpr uint32_t kMaxIndex = 999'999'999;
inline constexpr int kMaxRanges = 10'000;

using ElementRanges = google::protobuf::RepeatedPtrField<v1::Array::Range>;

// Gives an array that has only sweeps its indexes, 0 to the number of combinations - 1.
void Complete(v1::Array* array);
// kInvalid: such an array cannot be. One line.
Status CheckArray(const v1::Array& array);
// kInvalid: the ranges are not ascending, overlap, or have an index above kMaxIndex. `what` begins the text.
Status CheckRanges(const ElementRanges& ranges, const std::string& what);

uint64_t ElementCount(const ElementRanges& ranges);
inline uint64_t ElementCount(const v1::Array& array) { return ElementCount(array.ranges()); }
// The index at a position below ElementCount.
uint32_t IndexAt(const v1::Array& array, uint64_t position);
// nullopt: the array has no such index.
std::optional<uint64_t> PositionOf(const v1::Array& array, uint32_t index);
inline bool Contains(const v1::Array& array, uint32_t index) { return PositionOf(array, index).has_value(); }
uint32_t MinIndex(const v1::Array& array);
uint32_t MaxIndex(const v1::Array& array);

// The shortest ranges that have exactly these indexes, which ascend.
ElementRanges RangesOf(const std::vector<uint32_t>& indexes);
// "0-9:3,12".
std::string RangesText(const ElementRanges& ranges);

// What the element with this index runs: {NAME} of a sweep in an argument or in the value of a variable of the
// environment is replaced by the value. ${NAME} is left to the shell.
v1::RunSpec ElementSpec(const v1::RunSpec& spec, const v1::Array& array, uint32_t index);
// Names used as {NAME} in the arguments which no sweep has. Without sweeps there are none: braces mean nothing then.
std::vector<std::string> UnknownNames(const v1::RunSpec& spec, const v1::Array& array);
// kInvalid: "no sweep is called {xx}: ...".
Status CheckNames(const v1::RunSpec& spec, const v1::Array& array);
// "lr=0.1", in the order of the sweeps.
std::vector<std::string> ElementVariables(const v1::Array& array, uint32_t index);

}  // namespace vrun
